"""What comes of dividing each micro-batch's mean by N where micro-batches hold different numbers of tokens or pixels?

Found in October 2024 in the trainers of language models, and mended by dividing the window's summed loss by its tokens:
posts by Unsloth (unsloth.ai/blog/gradient) and Hugging Face (huggingface.co/blog/gradient_accumulation), pull requests
34191 and 34198 of transformers. With L_i the summed loss of micro-batch i and m_i its tokens, the wrong loss is
(1 / N) sum L_i / m_i and the right one sum L_i / sum m_i: ``mean_of_means`` and ``exact``.

``bench``: next byte of Python's documentation by a small GPT, one paragraph a micro-batch and 16 a window, in three
corpora of about one mean length, whose lengths differ by nothing, by three tenths of it and by two thirds of it; and
land cover whose tiles are partly labelled, two a micro-batch and 16 a window, by a U-Net with GroupNorm. Gradient error
and logged loss are both taken at the same parameters, before the first of 150 updates and after 38, 76 and 114. The
exact runs pass a window in one micro-batch, which is the same gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any, Final

from accum_core.claims import Claim, VerdictWord
from accum_core.experiment import Difference, Drawn, Experiment, Figure, Paper, Preset, SeedRuns
from accum_core.records import RunConfig, RunResult

SEEDS: Final = (31, 32, 33, 34, 35, 36, 37)
PAPERS: Final = (
    Paper(
        "Hugging Face",
        2024,
        "Fixing Gradient Accumulation",
        "huggingface.co/blog/gradient_accumulation",
        "transformers pull requests 34191 and 34198",
    ),
    Paper("Unsloth", 2024, "Bugs in LLM Training - Gradient Accumulation Fix", "unsloth.ai/blog/gradient"),
)
CORPORA: Final = {"equal": "pydoc_paragraphs_equal", "medium": "pydoc_paragraphs_medium", "all": "pydoc_paragraphs"}
SPREADS: Final = {"equal": 0.0, "medium": 0.31, "all": 0.68}
"""Standard deviation of the paragraphs' lengths over their mean (tests/test_workload_text.py)."""
TEXT: Final[dict[str, Any]] = {
    "model": "gpt", "norm": "layer", "micro_batch_size": 1, "optimizer": "adamw", "learning_rate": 0.003,
    "weight_decay": 0.0, "schedule": "cosine",
}  # fmt: skip
MASKS: Final[dict[str, Any]] = {
    "workload": "landcover_ignored", "model": "unet", "norm": "group", "micro_batch_size": 2, "learning_rate": 0.03,
}  # fmt: skip


def _pair(name: str, seed: int, updates: int, **settings: Any) -> dict[str, RunConfig]:
    """A run that divides wrongly, measured four times, and one that divides exactly, in one pass."""
    common = {"effective_batch_size": 16, "updates": updates, "warmup_updates": updates // 10, "seed": seed}
    common |= {"validate_every": updates} | settings
    wrong = {"reduction": "mean_of_means", "measure_every": -(-updates // 4), "extra_instruments": ("logged_loss",)}
    exact = {"micro_batch_size": common["effective_batch_size"], "measure_every": updates}
    return {f"{name}_means": RunConfig.of(**common | wrong), f"{name}_exact": RunConfig.of(**common | exact)}


def _runs(seed: int, updates: int, **settings: Any) -> dict[str, RunConfig]:
    runs: dict[str, RunConfig] = {}
    for corpus, workload in CORPORA.items():
        runs |= _pair(corpus, seed, updates, **TEXT | {"workload": workload} | settings)
    runs |= _pair("masks", seed, updates, **MASKS | settings)
    # Where all weigh the same, or nearly, the two divisions train alike: one of them is enough.
    return {label: run for label, run in runs.items() if label not in ("equal_exact", "medium_exact")}


def _bench(seed: int) -> dict[str, RunConfig]:
    return _runs(seed, 150)


def _smoke(seed: int) -> dict[str, RunConfig]:
    return _runs(seed, 1, effective_batch_size=4, warmup_updates=0)


def _full(seed: int) -> dict[str, RunConfig]:
    settings = TEXT | {"workload": "text_file_paragraphs", "model": "gpt2_small", "learning_rate": 0.0006}
    settings |= {"effective_batch_size": 64, "precision": "bfloat16_autocast", "clip_norm": 1.0, "weight_decay": 0.1}
    runs = _pair("all", seed, 5000, **settings)
    return runs | {"all_exact": runs["all_exact"].model_copy(update={"micro_batch_size": 4})}


def _off(run: RunResult) -> list[float]:
    """How far the mean of means is from the exact loss at the same parameters, as a share of it, in every window."""
    found = [r.instruments["logged_loss"] for r in run.records if "logged_loss" in r.instruments]
    return [abs(loss["mean_of_means"] - loss["exact"]) / loss["exact"] for loss in found]


def _measure(runs: SeedRuns) -> dict[str, float]:
    """One seed's effects; those of a corpus that the preset has not are left out."""
    effects = {}
    for label, run in runs.items():
        if label.endswith("_means"):
            name = label.removesuffix("_means")
            effects[f"error_{name}"] = run.metrics["gradient_error"]
            effects[f"logged_{name}"] = fmean(_off(run))
    if "medium_means" in runs:
        effects["error_grows"] = effects["error_all"] - effects["error_medium"]
    effects["text_loss"] = runs["all_means"].metrics["token_loss"] - runs["all_exact"].metrics["token_loss"]
    if "masks_means" in runs:
        effects["map_loss"] = runs["masks_exact"].metrics["miou"] - runs["masks_means"].metrics["miou"]
    return effects


TEXT_CLAIMS: Final = (
    Claim(
        id="text_gradient_is_another",
        statement="With paragraphs of all lengths, one a micro-batch, the gradient error of mean_of_means is at least "
        "0.2.",
        effect="error_all",
        at_least=0.2,
    ),
    Claim(
        id="text_log_is_off",
        statement="With paragraphs of all lengths the loss that mean_of_means logs is off by at least 0.005 of the "
        "window's loss per token, in the mean over windows.",
        effect="logged_all",
        at_least=0.005,
    ),
    Claim(
        id="text_model_suffers",
        statement="With paragraphs of all lengths the model that mean_of_means trains ends at least 0.005 nats per "
        "token above the exact one on held-out text.",
        effect="text_loss",
        at_least=0.005,
        unit="nats",
    ),
)
CLAIMS: Final = (
    Claim(
        id="equal_lengths_are_exact",
        statement="With paragraphs of one length the gradient error of mean_of_means is at most 1e-5 in float32.",
        effect="error_equal",
        at_most=1e-5,
    ),
    Claim(
        id="error_grows_with_the_spread",
        statement="The gradient error of mean_of_means is at least 0.1 larger with paragraphs of all lengths than with "
        "those of similar length.",
        effect="error_grows",
        at_least=0.1,
    ),
    *TEXT_CLAIMS,
    Claim(
        id="map_gradient_is_another",
        statement="With partly labelled tiles, two a micro-batch, the gradient error of mean_of_means is at least 0.2.",
        effect="error_masks",
        at_least=0.2,
    ),
    Claim(
        id="map_model_suffers",
        statement="With partly labelled tiles the model that mean_of_means trains ends at least 0 points of mIoU below "
        "the exact one.",
        effect="map_loss",
        at_least=0,
        unit="mIoU",
    ),
)


def _by_spread(runs: Mapping[int, SeedRuns]) -> Drawn:
    corpora = {
        seed: [
            (spread, of_seed[f"{name}_means"].metrics["gradient_error"])
            for name, spread in SPREADS.items()
            if f"{name}_means" in of_seed
        ]
        for seed, of_seed in runs.items()
    }
    return {"mean of means": corpora}


def _spread_finding(drawn: Drawn) -> str:
    ends = [points[-1] for points in drawn["mean of means"].values()]
    spread, error = ends[0][0], fmean(error for _, error in ends)
    return f"Where lengths spread by {100 * spread:.0f} % of their mean, the gradient is off by {100 * error:.0f} %"


def _logged(runs: Mapping[int, SeedRuns]) -> Drawn:
    """The logged loss less the exact one, at the updates where both were taken."""
    found = {}
    for seed, of_seed in runs.items():
        records = [r for r in of_seed["all_means"].records if "logged_loss" in r.instruments]
        losses = [(r.update, r.instruments["logged_loss"]) for r in records]
        found[seed] = [(update - 1, loss["mean_of_means"] - loss["exact"]) for update, loss in losses]
    return {"paragraphs of all lengths": found}


def _logged_finding(drawn: Drawn) -> str:
    gaps = [abs(gap) for points in drawn["paragraphs of all lengths"].values() for _, gap in points]
    return f"A log of mean of means is off by {fmean(gaps):.2f} nats per token either way, at the same parameters"


def _by_update(runs: Mapping[int, SeedRuns]) -> Drawn:
    def points(run: RunResult) -> list[tuple[float, float]]:
        found = [(r.update - 1, r.instruments.get("gradient_error")) for r in run.records]
        return [(update, error["relative_error"]) for update, error in found if error]

    names = {"all": "text, all lengths", "medium": "text, similar lengths", "masks": "partly labelled tiles"}
    return {
        name: {seed: points(of_seed[f"{key}_means"]) for seed, of_seed in runs.items()}
        for key, name in names.items()
        if all(f"{key}_means" in of_seed for of_seed in runs.values())
    }


def _update_finding(drawn: Drawn) -> str:
    seeds = drawn["text, all lengths"].values()
    first, last = (100 * fmean(points[k][1] for points in seeds) for k in (0, -1))
    made = next(iter(seeds))[-1][0]
    off = f"off by {first:.0f} % at first and by {last:.0f} % after {made:g} updates"
    return f"On paragraphs of all lengths the gradient is {off}"


PROTOCOL: Final = (
    Difference("wrong", "(1 / N) sum of L_i / m_i", "the same: the reduction mean_of_means"),
    Difference("right", "sum of L_i / sum of m_i", "the same: the reduction exact"),
    Difference("models", "language models, fine-tuned", "a GPT of 0.15 million parameters, new"),
    Difference("text", "unequal sequences; blocks of 128 tokens, where both agree", "paragraphs, 4 to 256 bytes"),
    Difference("micro-batch and N", "1 x 32 (in pull request 34191)", "1 x 16; for maps 2 x 8"),
    Difference("held against", "one batch of all sequences", "the same, at the same parameters, in float32"),
    Difference("maps", "none", "land cover whose tiles are labelled from a 64th of their pixels to all"),
)
CHOSEN: Final = (
    "On pilot seeds 1 to 4, text at rates 0.003 and 0.006 over 60 to 150 updates, maps at one rate. At 0.006 the runs "
    "differed by up to 0.11 nats either way; at 0.003 and 150 updates mean_of_means ended 0.028, 0.025 and 0.010 nats "
    "higher. At 0.006 the gradient error was 0.57 to 0.80 with all lengths and 0.24 with similar ones, the log off by "
    "1.6 to 2.6 %; on maps the error was 0.38 to 0.60 and mIoU fell by 0.1, 0.1, 1.0 and 3.4 points, too uneven to "
    "promise more than a loss. With 7 seeds the t interval has a half-width of 0.92 deviations: 0.009 nats of text, "
    "where 0.016 lie between the pilots' mean and the threshold."
)
REMARKS: Final[Mapping[str, Mapping[VerdictWord, str]]] = {
    "text_model_suffers": {
        "supported": "Small beside the error of the gradient: what is trained is another goal, in which each paragraph "
        "counts the same however long it is, and this text's short paragraphs are not so different from its long ones.",
        "inconclusive": "The goal is another: each paragraph counts the same however long it is. On this text a model "
        "trained for that is hardly better or worse per token, and still not the one that was asked for.",
        "refuted": "The goal is another: each paragraph counts the same however long it is. On this text a model "
        "trained for that is no worse per token, and still not the one that was asked for.",
    },
    "map_model_suffers": {
        "supported": "A tile with a few labelled pixels pulls as hard as one labelled all over, so the gradient "
        "is noisier; the whole tiles that validate count every pixel alike.",
        "inconclusive": "The gradient is another one, so these are two different trainings, and which of them ends "
        "better does not follow from that: the pilot seeds pointed the other way, to a loss of 0.1 to 3.4 points. What "
        "mean_of_means weighs up, tiles with few labelled pixels, may even help on tiles as scarce as these.",
    },
}

EXPERIMENT = Experiment(
    name="token_weighting_2024",
    title="Mean of means against sums over tokens",
    question="What comes of dividing each micro-batch's mean by N where micro-batches hold different numbers of "
    "tokens or pixels?",
    papers=PAPERS,
    claims=CLAIMS,
    presets={
        "smoke": Preset((901, 902), _smoke, "2 seeds, one update of 4 samples: seconds, and decides nothing"),
        "bench": Preset(
            SEEDS, _bench, "7 seeds, three corpora and partly labelled maps, 150 updates: minutes on 2 cores"
        ),
        "full": Preset(
            (31, 32, 33),
            _full,
            "3 seeds, GPT-2 small over bytes on paragraphs of your own text, 5,000 updates of 64: for a GPU",
            claims=TEXT_CLAIMS,
            long=True,
        ),
    },
    measure=_measure,
    protocol=PROTOCOL,
    chosen=CHOSEN,
    figures=(
        Figure(
            "error_by_spread",
            "standard deviation of the lengths over their mean",
            "gradient error",
            _by_spread,
            _spread_finding,
        ),
        Figure("error_by_update", "updates made", "gradient error", _by_update, _update_finding),
        Figure("logged_loss", "updates made", "logged less exact loss (nats per token)", _logged, _logged_finding),
    ),
    remarks=REMARKS,
)
