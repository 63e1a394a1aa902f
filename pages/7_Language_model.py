"""Language model: fine-tune one by micro-batches, read what it writes, and see what the same batch costs."""

from accum_ui.language_model import page

GROUP = "See"

page.show()
