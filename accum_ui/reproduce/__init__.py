"""The page of papers: each as a card, one opened with its figures, verdicts, runs and settings to vary.

Reading order: ``choice`` (what the address asks for), ``reading`` (committed results, read once), ``plan`` (the bench's
runs in the store: done, under way, missing, and how long), ``varied`` (runs with other settings beside the committed
ones), ``words`` (sentences), and the widgets: ``cards``, ``paper``, ``run``, ``vary``, ``page``.
"""
