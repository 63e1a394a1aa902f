"""The page of frameworks: what each computed in each case, one cell opened, and a run for the versions here.

Reading order: ``choice`` (what the address asks for), ``reading`` (committed results and those of this machine),
``job`` (the command in a process of its own), ``words`` (sentences), and what is drawn: ``matrix``, ``cell``, ``run``,
``page``.
"""
