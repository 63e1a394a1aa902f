"""One export: the text of a form for a run's settings."""

from __future__ import annotations

from typing import Any, Final

from accum_core import catalogue
from accum_core.export.departures import check, departures, is_plain
from accum_core.export.facts import factor, facts
from accum_core.export.forms import FORMS, Form
from accum_core.export.rendering import render, with_imports
from accum_core.records import RunConfig
from accum_core.reduction import ReductionKind

BITS: Final = (
    "It prints the losses of a run with these settings from its first update on, to the last bit on one machine with "
    "one number of threads."
)
CURVE: Final = (
    "It shows the samples in the app's order, so its losses can be laid over the run's. It trains in one process; what "
    "layers draw at random (dropout) is drawn in another order."
)
OWN_WAY: Final = "Each micro-batch's mean is divided by N, as {} does by itself."
EQUAL: Final = "That is the large batch's mean, since every micro-batch holds as many {}."
UNEQUAL: Final = "That is not the large batch's mean where micro-batches hold unequally many {}."
RIGHT_WAY: Final = {
    "trainer": "compute_loss_func, by the number of items in the window that the Trainer counts",
    "lightning": "manual optimization, which sees the window's labels before its first pass",
    "accelerate": "its guide to gradient accumulation, which collects a window before its first pass",
}
PROSE: Final[dict[ReductionKind, str]] = {
    "exact": "The mean over {n} samples is one sum divided by one count, that of the whole window. So the loss of each "
    "micro-batch is a **sum**, and each is divided by the number of {unit} in the **window**, which the labels tell "
    "before the first pass. Every {each} then weighs the same, whatever the split.",
    "mean_of_means": "Each micro-batch's loss is the **mean** over its own {unit}, divided by the number of "
    "micro-batches. That is the mean of the large batch only where all micro-batches hold as many {unit}; where one "
    "holds fewer, each of its {unit} weighs more.",
    "sum_of_means": "Each micro-batch's loss is the **mean** over its own {unit}, and nothing divides by the number of "
    "micro-batches: the gradient is about N times too large. With N = 1 nothing would show.",
    "sum": "Each micro-batch's loss is a **sum**, and nothing divides it: the gradient grows with the number of "
    "{unit} in the window, and the learning rate is right for one size of it alone.",
}


def source(form: Form, config: RunConfig, *, altered: bool = False) -> str:
    """The text of an export's file; a notebook's is JSON.

    Args:
        form: script, notebook, trainer, lightning or accelerate.
        config: the run's settings.
        altered: the run took live changes, which no export carries over.

    Raises:
        SettingError: for settings that this form cannot carry over at all.
    """
    check(form, config)
    names = facts(config) | _texts(form, config, altered)
    text = render(form, names)
    if form == "notebook":
        # Here, since it takes a while to load and most readers take the script.
        from accum_core.export.notebook import notebook

        return notebook(text)
    return with_imports(text, text)


def file_name(form: Form, config: RunConfig) -> str:
    """What the file is called: norm, split and form."""
    return f"{config.norm}_{config.accumulation_steps}x{config.micro_batch_size}{FORMS[form].suffix}"


def _texts(form: Form, config: RunConfig, altered: bool) -> dict[str, Any]:
    """What is written beside the code."""
    norm, workload = catalogue.entries("norms")[config.norm], catalogue.entries("workloads")[config.workload]
    names = facts(config)
    unit = names["unit"]
    plain = is_plain(config)
    if form in RIGHT_WAY:
        sentences = [CURVE, _division(form, config, plain, unit), f"It needs {FORMS[form].needs} installed."]
    else:
        sentences = [BITS]
    prose = PROSE[config.reduction].format(n=config.effective_batch_size, unit=unit, each=unit.removesuffix("s"))
    others = {}
    if form in RIGHT_WAY:
        others = {"average": None, "factor": factor(config, "all" if names["loss"] == "all" else "valid", unit)}
        if config.norm == "sync_batch":
            others |= {"norm": "batch", "options": ""}
    return others | {
        "sentences": [*sentences, *departures(form, config, altered=altered)],
        "plain": plain,
        "norm_title": norm["TITLE"],
        "independent": norm["BATCH_INDEPENDENT"],
        "workload_title": workload["TITLE"],
        "prose": prose,
    }


def _division(form: Form, config: RunConfig, plain: bool, unit: str) -> str:
    """How the framework comes to the run's divisor."""
    title = {"trainer": "the Trainer", "lightning": "Lightning", "accelerate": "Accelerate"}[form]
    if plain:
        return f"{OWN_WAY.format(title)} {(EQUAL if config.reduction == 'exact' else UNEQUAL).format(unit)}"
    if config.reduction == "exact":
        return f"The window's sum is divided by its {unit}: {RIGHT_WAY[form]}."
    return f"What divides the loss is the run's {config.reduction}, not the division of {title}."
