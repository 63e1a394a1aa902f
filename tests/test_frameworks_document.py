"""docs/frameworks.md: it is what the committed results say, and it leaves nothing out."""

from __future__ import annotations

import re

import made_conformance

from accum_core.conformance import document, findings
from accum_core.conformance.loops import Defect, Loops, all_loops
from accum_core.conformance.results import Results


def test_it_is_made_from_the_committed_results() -> None:
    """``python -m accum_core.conformance.document`` writes it anew."""
    assert document.REPORT.read_text(encoding="utf-8") == document.text(Results.read(), all_loops())


def test_every_row_is_told() -> None:
    made = made_conformance.usual()
    told = document.text(made, all_loops())
    for row in made.results:
        title = findings.case_title(row.case)
        if row.verdict != "exact":
            assert f"| {title} | {findings.SIGNS[row.verdict]} {row.verdict} |" in told
    assert told.count(f"**To get it right:** {made_conformance.MENDED}") == 2
    assert "2 × 10⁻¹⁶" in told  # the mend's own error
    assert "| schedule over an epoch | ✗ wrong | 0.25 | 4 | 4 | 0.1 | 8.1 × 10⁻⁴ | mean of means over N |" in told


def test_tables_hold_together_and_nobody_writes_tags() -> None:
    made = made_conformance.usual()
    raised = made_conformance.row("keras", "class_weights", "refuses", explanation="It raised A|B in <module>.")
    told = document.text(made.model_copy(update={"results": (*made.results, raised)}), all_loops())
    assert "<b>made</b> |" not in told and "It raised A\\|B in &lt;module>." in told
    for head, line in re.findall(r"^(\| .*\|)\n(\|(?:---\|)+)$", told, re.MULTILINE):
        assert line.count("---") == len(re.findall(r"(?<!\\)\|", head)) - 1


def test_what_looks_like_a_defect_stands_with_its_script() -> None:
    defect = Defect("Labels are counted before they are shifted", "Each sequence adds a token.", "print(1)\n")
    loops = Loops("Keras", "accum_core/frameworks/keras_fit.py", "keras", {"own": "a module"}, (defect,), "", "", "")
    told = document.text(made_conformance.usual(), {"keras": loops})
    assert f"### {defect.title}\n\n{defect.sentence}\n\n```python\nprint(1)\n```" in told


def test_what_is_exact_may_have_a_remark() -> None:
    made = made_conformance.usual()
    rows = (*made.results, made_conformance.row("keras", "resume", remark="It begins <again>."))
    told = document.text(made.model_copy(update={"results": rows}), all_loops())
    assert "\n\n- **resume in mid-epoch**: It begins &lt;again>.\n" in told


def test_a_framework_that_was_not_there_is_named() -> None:
    sentence = "Keras is not installed: pip install -r requirements-frameworks.txt."
    made = made_conformance.usual().model_copy(update={"missing": {"keras": sentence}})
    assert f"## Not run\n\n- {sentence}" in document.text(made, all_loops())
    assert "## Not run" not in document.text(made_conformance.usual(), all_loops())
