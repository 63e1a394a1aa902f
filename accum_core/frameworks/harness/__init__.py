"""Puts a framework's file through the cases: problems, right answers, candidate formulas, verdicts.

One framework, one kind, one case, in this process's children, with the row printed as JSON:

    python -m accum_core.frameworks.harness hf_trainer --kind own --case unequal_tokens --show

The name is that of the file or its ``NAME``; ``--kind`` and ``--case`` may be repeated, by default all there are.
``--show`` also prints what the framework printed.
"""
