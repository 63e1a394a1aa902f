"""The page on normalisation: layers raced over micro-batch sizes, and one layer's statistics seen from near.

Reading order: ``choice`` (what the reader chose, and its address), ``race`` (the stored runs of that choice, and those
that are missing), ``opened`` (one run's layers), ``depth`` (its gradient error by layer), ``costs`` (what
``sync_batch`` takes), ``lines``, ``figures``, ``tables``, ``words`` and ``notes`` (pure), ``state``, ``queue``,
``layer`` and ``page`` (the widgets).
"""
