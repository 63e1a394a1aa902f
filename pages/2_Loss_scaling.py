"""Loss scaling: a window of micro-batches that the reader sets, divided in every way that loops divide it."""

from accum_ui import loss_scaling

GROUP = "See"

loss_scaling.show()
