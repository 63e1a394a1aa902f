"""Normalisation: layers raced over micro-batch sizes, one of them opened, and what the exact BatchNorm costs."""

from accum_ui.normalisation import page

GROUP = "See"

page.show()
