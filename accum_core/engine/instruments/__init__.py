"""One file an instrument: the literal constant ``TITLE`` and ``create()``, which returns a new ``Instrument``.

One with ``DEFAULT = False`` is expensive, and watches only the runs that name it in ``extra_instruments``.
"""
