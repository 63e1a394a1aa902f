"""The recipes: what each computes follows from its division, and what it makes of a short last window."""

from __future__ import annotations

import pytest

from accum_core.frameworks.harness import host

pytestmark = pytest.mark.timeout(180)
GOES_ON = "; the short window goes on into the next epoch"
STAYS = "; the short window's gradient stays for the next epoch's first window"
EXPECTED = {
    ("recipe_nanogpt", "equal"): ("exact", "sum over weight"),
    ("recipe_nanogpt", "unequal_tokens"): ("user's duty", "mean of means over N"),
    ("recipe_nanogpt", "short_window"): ("wrong", f"sum over weight{GOES_ON}"),
    ("recipe_timm", "unequal_tokens"): ("user's duty", "mean of means over N"),
    ("recipe_timm", "short_window"): ("exact", "sum over weight"),
    ("recipe_timm", "iterable"): ("refuses", None),
    ("recipe_torchtune", "unequal_tokens"): ("exact", "sum over weight"),
    ("recipe_torchtune", "two_ranks"): ("exact", "sum over weight"),
    ("recipe_torchtune", "short_window"): ("wrong", f"sum over weight{STAYS}"),
    ("recipe_torchtune", "class_weights"): ("wrong", "sum over samples"),
}


@pytest.mark.parametrize(("file", "case"), EXPECTED)
def test_a_recipe_computes_what_its_division_says(file: str, case: str) -> None:
    (row,) = host.rows(file, ["own"], [case], limit=120)
    assert (row.verdict, row.formula) == EXPECTED[file, case]
    assert row.mended_verdict in (None, "exact")
    assert (row.mended_verdict is None) == (row.verdict in ("exact",) or row.mend == "")
