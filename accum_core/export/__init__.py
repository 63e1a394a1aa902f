"""Take it home: a run's settings as a program that trains the same without the app.

The script and the notebook hold a loop of plain PyTorch, whose losses are those of ``engine.train`` to the last bit on
one machine with one number of threads. The forms for frameworks train with the framework's own loop, in the app's order
of samples. Where every micro-batch weighs the same they divide as the framework does by itself, which is exact then;
where micro-batches weigh unequally they divide by what the window holds, as its documentation tells; and a run that
asks for the mean of means gets it from the framework's own division. What a form cannot carry over is told in it and by
``departures``. Proven by tests/test_export_script.py, test_export_notebook.py, test_export_frameworks.py and, for what
ends a run, test_export_stops.py.
"""

from __future__ import annotations

from accum_core.export.departures import check, departures
from accum_core.export.forms import FORMS, Form, Kind
from accum_core.export.program import file_name, source

__all__ = ["FORMS", "Form", "Kind", "check", "departures", "file_name", "source"]
