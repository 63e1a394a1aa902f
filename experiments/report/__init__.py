"""What is said of a finished experiment, for the page that shows it and for the report in one file.

Reading order: ``findings`` (verdicts with their arithmetic, from the records), ``drawing`` (figures, ours and the
papers', as plotly figures; ``axes`` and ``look`` belong to it), ``strip`` (effects against their threshold),
``settings`` (what the runs share and where they differ), ``words``, ``html`` (tables, and the whole report).
"""
