"""What the page on normalisation says of its runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from accum_core import catalogue
from accum_core.measures import Measure, measure_of
from accum_core.quantities import POINT, number
from accum_core.records import RunConfig
from accum_ui.normalisation.choice import subjects
from accum_ui.normalisation.race import Estimate, Measured, Race
from accum_ui.readings import duration
from accum_ui.words import AGREES, SAME, model_title, norm_title, percent

QUESTION: Final = "Which normalisation makes N micro-batches the same as one batch?"


def by_norm(race: Race, field: str) -> dict[str, dict[int, dict[str, float]]]:
    """Norm -> micro-batch size -> seed -> value, of those runs that measured the field."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for run in race.done:
        if (value := getattr(run, field)) is not None:
            found.setdefault(run.norm, {}).setdefault(run.micro, {})[f"seed {run.seed}"] = value
    return {norm: found[norm] for norm in race.choice.norms if norm in found}


def means(race: Race, field: str) -> dict[str, dict[int, float]]:
    """The same, averaged over seeds."""
    return {
        norm: {micro: fmean(seeds.values()) for micro, seeds in sizes.items()}
        for norm, sizes in by_norm(race, field).items()
    }


def losses(race: Race) -> dict[str, tuple[int, float]]:
    """Norm -> its finest split, and by how much that is worse than the whole batch: paired by seed, in [-1, 1]."""
    measure, whole = measure_of(_base(race).workload), _base(race).effective_batch_size
    found = {}
    for norm, sizes in by_norm(race, "quality").items():
        paired = {micro: sorted(set(seeds) & set(sizes.get(whole, {}))) for micro, seeds in sizes.items()}
        if split := [micro for micro, seeds in paired.items() if seeds and micro < whole]:
            micro = min(split)
            found[norm] = micro, fmean(measure.worsening(sizes[whole][s], sizes[micro][s]) for s in paired[micro])
    return found


def answer(race: Race) -> str:
    """The sentence under the question."""
    split = {norm: _finest(line) for norm, line in means(race, "gradient_error").items() if _is_split(line, race)}
    if not split:
        return "No split run of these layers is stored yet: choose others, or run what is missing."
    exact = [norm for norm, (_, error) in split.items() if error <= SAME]
    wrong = [norm for norm in split if norm not in exact]
    sentences = []
    if exact:
        worst = max(split[norm][1] for norm in exact)
        sentences.append(
            f"{_listed(exact)}: at the same weights {'its gradient is' if len(exact) == 1 else 'their gradients are'} "
            f"the batch's to within {number(worst, 1)}, which is rounding."
        )
    if wrong:
        sentences.append(f"Not {_listed(wrong, 'or')}: {_wrong(wrong, split)}.")
    lost = losses(race)
    told = [norm for norm in lost if norm in wrong]
    if told:
        norm, measure = max(told, key=lambda norm: lost[norm][1]), measure_of(_base(race).workload)
        micro, loss = lost[norm]
        if loss < AGREES * POINT:
            who = "it" if len(told) == 1 else "any of them"
            sentences.append(f"Yet that does not cost {who} {AGREES} points of {measure.title}.")
        else:
            sentences.append(f"At micro-batch {micro}, {_lost(norm, loss, measure)}.")
    return " ".join(sentences)


def _wrong(wrong: Sequence[str], split: Mapping[str, tuple[int, float]]) -> str:
    worst = max(wrong, key=lambda norm: split[norm][1])
    micro, error = split[worst]
    whose = "its gradient is" if len(wrong) == 1 else f"the gradient of {norm_title(worst)} is"
    return f"at micro-batch {micro} {whose} off by {percent(error)}"


def quality_title(race: Race) -> str:
    """What the finest split costs the layer that it costs most, and the one that it costs least."""
    measure, lost = measure_of(_base(race).workload), losses(race)
    if not lost:
        return f"Validation {measure.title} by micro-batch size"
    order = sorted(lost, key=lambda norm: lost[norm][1], reverse=True)
    told = [order[0], order[-1]] if len(order) > 1 else order
    sizes = {lost[norm][0] for norm in told}
    if len(lost) > 1 and all(abs(loss) < AGREES * POINT for _, loss in lost.values()):
        return (
            f"Down to micro-batch {min(micro for micro, _ in lost.values())}, every layer keeps its {measure.title} "
            f"within {AGREES} points"
        )
    if len(sizes) == 1:
        clauses = [_lost(norm, lost[norm][1], measure) for norm in told]
        return f"At micro-batch {sizes.pop()}, {'; '.join(clauses)}"
    return _capital("; ".join(f"{_lost(norm, lost[norm][1], measure)} at micro-batch {lost[norm][0]}" for norm in told))


def _lost(norm: str, loss: float, measure: Measure) -> str:
    if abs(loss) < AGREES * POINT:
        return f"{norm_title(norm)} keeps its {measure.title} within {AGREES} points"
    size = f"{abs(loss) / POINT:.1f} points"
    if measure.higher_is_better:
        return f"{norm_title(norm)} {'loses' if loss > 0 else 'gains'} {size} of {measure.title}"
    return f"the {measure.title} of {norm_title(norm)} {'rises' if loss > 0 else 'falls'} by {size}"


def gradient_title(race: Race) -> str:
    """The largest and the smallest gradient error of a split."""
    split = {norm: _finest(line) for norm, line in means(race, "gradient_error").items() if _is_split(line, race)}
    if not split:
        return "Gradient error by micro-batch size"
    order = sorted(split, key=lambda norm: split[norm][1], reverse=True)
    told = [order[0], order[-1]] if len(order) > 1 else order
    clauses = [
        f"{'the gradient' if not place else 'that'} of {norm_title(norm)} is off by {_error(split[norm][1])}"
        + (f" at micro-batch {split[norm][0]}" if not place else "")
        for place, norm in enumerate(told)
    ]
    return _capital(", ".join(clauses))


def distance_title(race: Race) -> str:
    """How far the finest micro-batches' means lie from the window's."""
    found = [_finest(line) for line in means(race, "distance").values() if _is_split(line, race)]
    if not found:
        return "Distance of the micro-batches' means from the window's"
    micro = min(micro for micro, _ in found)
    values = [value for size, value in found if size == micro]
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    samples = "1 sample" if micro == 1 else f"{micro} samples"
    return f"A mean over {samples} lies {low if low == high else f'{low} to {high}'} deviations from the window's"


def seconds_title(race: Race) -> str:
    """The slowest and the quickest layer at one micro-batch size."""
    found = means(race, "seconds")
    shared = set.intersection(*(set(line) for line in found.values())) if found else set()
    if len(found) < 2 or not shared:
        return "Time of one update"
    micro = min(shared)
    slow, quick = (which(found, key=lambda norm: found[norm][micro]) for which in (max, min))
    times = found[slow][micro] / found[quick][micro]
    return f"At micro-batch {micro}, {norm_title(slow)} takes {times:.1f} × the time of {norm_title(quick)}"


def memory_title(race: Race) -> str:
    """What splitting saves."""
    whole = _base(race).effective_batch_size
    for line in means(race, "kept_bytes").values():
        if whole in line and min(line) < whole:
            micro = min(line)
            return f"A pass of {micro} keeps {number(line[whole] / line[micro])} × less than one of {whole}"
    return "Kept for the backward pass, by micro-batch size"


def missing_line(missing: Sequence[RunConfig], found: Estimate | None) -> str:
    """The button's text."""
    runs = "the missing run" if len(missing) == 1 else f"the {len(missing)} missing runs"
    return f"Run {runs}" + (f": about {duration(found.seconds)} on this machine" if found else "")


def estimate_line(found: Estimate | None) -> str:
    """What the estimate rests on."""
    if found is None:
        return "There is no stored run of this network to estimate the time from."
    side = f", {found.workers} at once" if found.workers > 1 else ""
    line = f"The time is estimated from the stored runs' seconds an update, wherever they were computed{side}."
    if found.guessed:
        line += f" No run of {_listed(found.guessed, 'or')} is stored: its time is taken from the others."
    return line


def run_line(run: Measured | RunConfig) -> str:
    """A run's name in a list ("BatchNorm, micro-batch 2, seed 11")."""
    micro = run.micro if isinstance(run, Measured) else run.micro_batch_size
    return f"{norm_title(run.norm)}, micro-batch {micro}, seed {run.seed}"


def origin_line(done: Sequence[Measured]) -> str:
    """Where the runs come from."""
    committed = sum(run.source != "lab" for run in done)
    if not done:
        return "None of these runs is stored."
    versions = len({run.code_version for run in done})
    origin = f"{len(done)} stored runs" if len(done) > 1 else "1 stored run"
    parts = [f"{committed} of them committed results" if committed else "computed here"]
    if versions > 1:
        parts.append(f"by {versions} versions of the code")
    line = f"{origin}, {', '.join(parts)}."
    if any(norm_constants(run.norm).get("EXACT_UNDER_ACCUMULATION") for run in done):
        line += " With N = 1, BatchNorm over the window is BatchNorm, whose run may stand for it."
    return line


def norm_constants(norm: str) -> Mapping[str, Any]:
    """What a norm's file says of it."""
    return catalogue.entries("norms")[norm]


def _base(race: Race) -> RunConfig:
    return subjects()[race.choice.on]


def _is_split(line: Mapping[int, float], race: Race) -> bool:
    return min(line) < _base(race).effective_batch_size


def _finest(line: Mapping[int, float]) -> tuple[int, float]:
    micro = min(line)
    return micro, line[micro]


def _error(value: float) -> str:
    return percent(value) if value > SAME else number(value, 1)


def _listed(norms: Sequence[str], word: str = "and") -> str:
    *first, last = [norm_title(norm).replace(", ", " with ") for norm in norms]
    return f"{', '.join(first)} {word} {last}" if first else last


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def subject_title(on: str) -> str:
    """A workload and its network ("Digits, perceptron")."""
    config = subjects()[on]
    workload = catalogue.entries("workloads").get(config.workload, {}).get("TITLE", config.workload)
    return f"{workload} · {model_title(config.model)}"
