"""The tables of the page Language model as HTML: on a narrow screen each row becomes a list. No Streamlit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from accum_core.quantities import number
from accum_core.records import RunConfig
from accum_ui.language_model.measured import Arm
from accum_ui.readings import duration, mebibytes

DIVIDED: Final = {
    "exact": "by the window's docstring bytes (exact)",
    "mean_of_means": "each micro-batch by its own (mean_of_means)",
}


def costs(arms: Sequence[Arm]) -> str:
    """A row a micro-batch size."""
    names = ("Micro-batch", "N", "Kept for backward", "One update", "Learnt tokens a second")
    rows = []
    for arm in arms:
        config, found = arm.config, arm.measured
        cells = (
            (_state(arm), "", "")
            if found is None
            else (mebibytes(found.kept_bytes), f"{found.seconds:.2f} s", f"{found.tokens_per_second:,.0f}")
        )
        rows.append((str(config.micro_batch_size), str(config.accumulation_steps), *cells))
    return _table(names, rows)


def divisions(arms: Sequence[Arm]) -> str:
    """A row a way to divide the window, the one in one pass first."""
    names = ("Window", "Divided", "Gradient error", "Held-out loss (nats a byte)")
    rows = []
    for arm in arms:
        found = arm.measured
        error = "" if found is None or found.gradient_error is None else number(found.gradient_error)
        rows.append((_cut(arm.config), DIVIDED[arm.config.reduction], error, _loss(arm)))
    return _table(names, rows)


def advice(arms: Sequence[Arm]) -> str:
    """The two runs, a row each."""
    names = ("Effective batch", "Updates", "Learning rate", "beta2", "Held-out loss (nats a byte)", "Time")
    rows = []
    for arm in arms:
        config, found = arm.config, arm.measured
        rate, beta2 = f"{config.peak_learning_rate:g}", f"{config.scaled_beta2:.5g}"
        passed = "" if found is None else duration(found.total_seconds)
        rows.append((_cut(config), str(config.updates), rate, beta2, _loss(arm), passed))
    return _table(names, rows)


def _cut(config: RunConfig) -> str:
    """A run's effective batch and how it is cut ("32 = 8 × 4")."""
    return f"{config.effective_batch_size} = {config.accumulation_steps} × {config.micro_batch_size}"


def _loss(arm: Arm) -> str:
    found = arm.measured
    return _state(arm) if found is None or found.token_loss is None else f"{found.token_loss:.4f}"


def _state(arm: Arm) -> str:
    return "missing" if arm.run is None or arm.is_missing else arm.run.state


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first cell of a row is its head; an empty cell is left out of a row's list."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = ""
    for first, *cells in rows:
        labelled = "".join(
            f'<td data-label="{escape(name)}">{escape(cell)}</td>' if cell else "<td></td>"
            for name, cell in zip(names[1:], cells, strict=True)
        )
        body += f'<tr><th scope="row">{escape(first)}</th>{labelled}</tr>'
    return f'<table class="facts"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
