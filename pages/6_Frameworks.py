"""Frameworks: what each computes in each case, its loop, the batch's gradient, and how to get it right."""

from accum_ui.conformance import page

GROUP = "Decide"

page.show()
