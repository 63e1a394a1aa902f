"""The Trainer's file: what it computes follows from transformers' source and from counting labels by hand."""

from __future__ import annotations

import pytest

from accum_core.conformance.frameworks import defects
from accum_core.frameworks import hf_heads
from accum_core.frameworks.harness import host

# transformers warns of its own deprecations, which are its to mend.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(180)]


def row(kind: str, case: str):
    (found,) = host.rows("hf_trainer", [kind], [case], limit=120)
    return found


def test_gpt2_counts_a_label_too_many_a_sequence_and_llama_none() -> None:
    """Eight sequences of 166 tokens have 158 predicted ones: the gradient is 158 / 166 of the right one."""
    assert sum(hf_heads.LENGTHS) == 166
    found = row("causal", "unequal_tokens")
    assert found.verdict == "wrong" and found.formula == "sum over labels that are not -100"
    assert found.gradient_error == pytest.approx(8 / 166, rel=1e-4)
    assert found.mended_verdict == "exact"
    assert row("llama", "unequal_tokens").verdict == "exact"


def test_a_head_that_ignores_the_count_has_a_gradient_n_times_too_large() -> None:
    """N = 4 equal micro-batches: the sum of the means is 4 times their mean, so the error is 3."""
    found = row("sequence_classes", "equal")
    assert (found.verdict, found.formula, found.mended_verdict) == ("wrong", "sum of means", "exact")
    assert found.gradient_error == pytest.approx(3, rel=1e-6)


def test_a_module_of_ones_own_is_a_mean_of_means_and_the_trainers_count_mends_it() -> None:
    found = row("own", "unequal_tokens")
    assert (found.verdict, found.formula) == ("user's duty", "mean of means over N")
    assert found.mended_error is not None and found.mended_error <= 1e-10


@pytest.mark.parametrize("case", ["short_window", "n_above_epoch", "schedule", "resume"])
def test_windows_and_schedules_are_counted_rightly_where_the_length_is_known(case: str) -> None:
    assert row("own", case).verdict == "exact"


@pytest.mark.parametrize(
    ("defect", "right"),
    # N; two sequences of 5 tokens, 4 of them predicted; (1 + 2) / 2 + 4 instead of 4; N
    list(zip(defects("hf_trainer"), (4.0, 10 / 8, 5.5 / 4, 4.0), strict=True)),
)
def test_a_defect_shows(
    defect: tuple[str, str, str], right: float, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each script prints what it found ``instead of`` what is right; their ratio is known."""
    _, _, script = defect
    exec(script, {})
    line = next(line for line in capsys.readouterr().out.splitlines() if "instead of" in line)
    found, expected = (float(part.split()[-1]) for part in line.split(" instead of "))
    assert found / expected == pytest.approx(right, rel=1e-2)
