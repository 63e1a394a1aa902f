"""What an export cannot carry over from a run's settings: said in it and beside it, or refused."""

from __future__ import annotations

from typing import Final

from accum_core.errors import SettingError
from accum_core.export.facts import loss_kind, weighs_equally
from accum_core.export.forms import Form
from accum_core.records import RunConfig

NAMES: Final = {"trainer": "the Trainer", "lightning": "Lightning", "accelerate": "Accelerate"}


def check(form: Form, config: RunConfig) -> None:
    """Refuse what an export of this form would get wrong as a whole.

    Raises:
        SettingError: naming the setting, its value and which exports there are.
    """
    if form in NAMES:
        if config.plan_at(config.updates) != config.plan:
            remedy = f"grows N on the way, which {NAMES[form]} cannot; export the script or the notebook"
            raise SettingError("decay", config.decay, remedy)
        if loss_kind(config) == "other":
            remedy = "says nothing of its loss (LOSS in its file); export the script or the notebook"
            raise SettingError("workload", config.workload, remedy)
        clips = config.clip_norm or config.clip_value
        if form == "lightning" and config.precision == "float16_autocast" and clips and not is_plain(config):
            remedy = "leaves the gradient scaled where Lightning's manual loop clips; export another form"
            raise SettingError("precision", config.precision, remedy)


def is_plain(config: RunConfig) -> bool:
    """Whether a framework's own division, each micro-batch's mean by N, is what the run's reduction asks for.

    It is for ``mean_of_means``, and for ``exact`` where every micro-batch weighs the same. Otherwise an export divides
    by what the window holds, in the way that the framework's documentation has for it.
    """
    return config.reduction == "mean_of_means" or (config.reduction == "exact" and weighs_equally(config))


def departures(form: Form, config: RunConfig, *, altered: bool = False) -> tuple[str, ...]:
    """Sentences on what the export does not do as the run does; none where it does all of it.

    Args:
        form: of the export.
        config: the run's settings.
        altered: the run took live changes; ``config`` holds the settings after them.
    """
    found = []
    if altered:
        found.append("The run's live changes are not carried over: its present settings hold from the first update on.")
    if form in NAMES:
        found += _of_frameworks(form, config)
    elif loss_kind(config) == "other":
        found.append(
            "The loss is taken as sums and weights: one whose samples meet one another, or that has a penalty, "
            "is not carried over."
        )
    if done := _non_finite(form, config):
        found.append(f"non_finite = {config.non_finite} is not carried over: {done}.")
    if config.shrink_on_out_of_memory:
        found.append("shrink_on_out_of_memory is not carried over: a window that is too large for the memory ends it.")
    if config.exchange_every_micro_batch:
        found.append("exchange_every_micro_batch is not carried over: it trains in one process.")
    return tuple(found)


def _of_frameworks(form: Form, config: RunConfig) -> list[str]:
    found, plain, name = [], is_plain(config), NAMES[form]
    if config.norm == "sync_batch" and config.accumulation_steps > 1:
        found.append(
            "sync_batch is not carried over: its statistics need all micro-batches of a window at once. Here each "
            "layer is BatchNorm over one micro-batch, and the losses are others."
        )
    if tail := _tail(form, config, plain):
        found.append(tail)
    if plain and not weighs_equally(config):
        found.append(
            "The loss that it prints is the mean of the micro-batches' means; the run's is the mean over the window."
        )
    elif form == "trainer" and not plain and config.reduction != "exact":
        found.append(
            f"The loss that it prints is added up as the reduction {config.reduction} says; the run's is the mean over "
            "the window."
        )
    if form == "trainer" and config.precision == "float64":
        found.append("The losses that it prints are added up in float32.")
    if loss_kind(config) in ("valid", "heads") and (plain or form == "trainer"):
        which = "micro-batch" if plain else "window"
        found.append(f"A {which} without a valid label has no mean here: the loss becomes nan.")
    if config.precision == "bfloat16" and config.accumulate_in_float32:
        found.append("accumulate_in_float32 is not carried over: a window's gradients are summed in bfloat16.")
    if config.precision == "float16_autocast":
        found.append(f"{name[0].upper()}{name[1:]} keeps a loss scale of its own, and counts a window that it skips.")
    if config.clip_value and (form == "trainer" or (form == "lightning" and plain and config.clip_norm)):
        found.append(f"clip_value is not carried over: {name} clips by norm{' alone' if form == 'lightning' else ''}.")
    if config.average_decay:
        found.append("average_decay is not carried over: the validation is that of the weights themselves.")
    return found


def _non_finite(form: Form, config: RunConfig) -> str:
    """What becomes of a window that is not finite, where that is not what the run's policy says."""
    if form == "trainer" and config.precision == "float16_autocast":
        return "" if config.non_finite == "skip_window" else "the Trainer skips a window that is not finite"
    kept = ("stop",) if form in NAMES else ("stop", "skip_window")
    return "" if config.non_finite in kept else "it stops at a loss or gradient that is not finite"


def _tail(form: Form, config: RunConfig, plain: bool) -> str:
    """What becomes of the rule for an epoch's short window."""
    if config.tail == "drop" or config.reduction in ("sum", "sum_of_means"):
        return ""
    asked = config.tail
    done = "rescale" if form == "trainer" else "divide_by_n"
    if form != "trainer" and not plain:
        return ""
    return "" if done == asked else f"tail = {asked} is not carried over: {NAMES[form]} does as {done} says."
