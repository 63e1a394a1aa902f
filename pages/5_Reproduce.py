"""Reproduce: papers on large batches measured again, each claim with verdict, arithmetic and a button to run it."""

from accum_ui.reproduce import page

GROUP = "Reproduce"

page.show()
