"""One file an instrument: the literal constant ``TITLE`` and ``create()``, which returns a new ``Instrument``."""
