"""At equal tokens, does a small language model do better by many updates of one sample than by few of accumulated ones?

Protocol of the paper (Marek et al. 2025, arXiv 2507.07101, and the settings in its repository martin-marek/batch-size):
GPT-2 with 124 million parameters on 2.5 billion tokens of FineWeb, sequences of 1,024 tokens, cosine after a warm-up of
5 %, a rate for each arm from a grid. AdamW at a batch of 512 with rate 0.0048, beta2 0.95 and weight decay 0.1,
accumulated from micro-batches of 16; at a batch of 1 with 0.0024 and beta2 0.9999, which is 0.95^(1/512): the same
half-life in tokens; the same with beta2 left at 0.95 and 0.00015; SGD without momentum at a batch of 1 with 0.2.

``bench``: next byte of Python's documentation, a GPT of 137 thousand parameters, 4,096 blocks of 64 bytes, each seen
once: in 64 updates of 64 blocks (8 micro-batches of 8), 512 of 8, or 4,096 of one. ``full``: the paper's recipe on text
of one's own, over bytes and for a fifth of its tokens.

When not to accumulate: where the memory already holds the batch that trains best per token. A larger effective batch
then makes fewer updates of the same tokens, and saves no memory, because the micro-batch decides what is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any, Final

from accum_core.claims import Claim, VerdictWord
from accum_core.experiment import Difference, Drawn, Experiment, Figure, Paper, Points, Preset, Published, SeedRuns
from accum_core.records import RunConfig, RunResult

PAPER: Final = Paper(
    "Marek et al.",
    2025,
    "Small Batch Size Training for Language Models: When Vanilla SGD Works, and Why Gradient Accumulation Is Wasteful",
    "arXiv 2507.07101",
    "figure 1",
)
BETA2: Final = 0.95
"""Of the largest batch of a preset; at another batch with the same half-life, unless a label says ``fixed``."""
RATES: Final = {
    "adam_large": 0.008, "adam_8": 0.008, "adam_1": 0.002, "adam_1_fixed": 0.002,
    "sgd_large": 0.3, "sgd_8": 0.2, "sgd_1": 0.2,
}  # fmt: skip
"""The best of each arm's grid on the pilot seeds."""
ITS_RATES: Final = {"adam_large": 0.0048, "adam_1": 0.0024, "adam_1_fixed": 0.00015, "sgd_1": 0.2}
"""The paper's, at a largest batch of 512 (runs/gpt2s/optimizer_comp/final_configs.sh in its repository)."""


def _runs(
    seed: int, samples: int, large: int, micro: int, rates: Mapping[str, float], **settings: Any
) -> dict[str, RunConfig]:
    """One arm a rate, each over the same samples once."""
    runs = {}
    for label, rate in rates.items():
        effective = int(size) if (size := label.split("_")[1]).isdigit() else large
        adam = label.startswith("adam")
        runs[label] = RunConfig.of(
            **{
                "norm": "layer",
                "effective_batch_size": effective,
                "micro_batch_size": min(micro, effective),
                "updates": samples // effective,
                "warmup_updates": samples // effective // 20,
                "schedule": "cosine",
                "validate_every": -(-samples // effective // 4),
                "measure_every": samples // effective,
                "learning_rate": rate,
                "optimizer": "adamw" if adam else "sgd",
                "momentum": 0.9 if adam else 0.0,
                "weight_decay": 0.0,
                "beta2": BETA2,
                "scaling": "half_life" if adam and not label.endswith("fixed") else "none",
                "base_batch_size": large,
                "seed": seed,
                **settings,
            }
        )
    return runs


def _bench(seed: int) -> dict[str, RunConfig]:
    return _runs(seed, 4096, 64, 8, RATES, workload="pydoc_blocks", model="gpt")


def _smoke(seed: int) -> dict[str, RunConfig]:
    arms = {label: rate for label, rate in RATES.items() if "8" not in label}
    return _runs(seed, 16, 8, 4, arms, workload="pydoc_paragraphs_equal", model="gpt", validate_every=16)


def _full(seed: int) -> dict[str, RunConfig]:
    settings = {"workload": "text_file", "model": "gpt2_small", "precision": "bfloat16_autocast"}
    runs = _runs(seed, 512 * 1000, 512, 8, ITS_RATES, **settings)
    return runs | {"adam_large": runs["adam_large"].model_copy(update={"weight_decay": 0.1})}


def _measure(runs: SeedRuns) -> dict[str, float]:
    """One seed's effects, in nats per token on held-out text; above 0 where the second run named is better."""
    loss = {label: run.metrics["token_loss"] for label, run in runs.items()}
    gains = {
        "small_gain": ("adam_large", "adam_1"),
        "half_life_gain": ("adam_1_fixed", "adam_1"),
        "sgd_gain": ("adam_large", "sgd_1"),
    }
    effects = {effect: loss[first] - loss[second] for effect, (first, second) in gains.items()}
    if "sgd_large" in loss:
        effects["lead_lost"] = (loss["sgd_large"] - loss["adam_large"]) - (loss["sgd_1"] - loss["adam_1"])
    return effects


def _claims(large: int, gain: float, sgd: float) -> tuple[Claim, ...]:
    """What a preset judges: at least ``gain`` by the small batch, and at least ``sgd`` by SGD there."""
    side = "at least {:g} nats per token below" if sgd >= 0 else "at most {:g} nats per token above"
    return (
        Claim(
            id="small_batch_no_worse",
            statement="At equal tokens AdamW with beta2 at equal half-life ends at a batch of 1 at least "
            f"{gain:g} nats per token below an accumulated batch of {large}.",
            effect="small_gain",
            at_least=gain,
            unit="nats",
        ),
        Claim(
            id="half_life_helps",
            statement="At a batch of 1, beta2 at equal half-life ends at least 0 nats per token below beta2 as it was.",
            effect="half_life_gain",
            at_least=0,
            unit="nats",
        ),
        Claim(
            id="sgd_works_at_batch_one",
            statement=f"SGD without momentum at a batch of 1 ends {side.format(abs(sgd))} AdamW at a batch of {large}.",
            effect="sgd_gain",
            at_least=sgd,
            unit="nats",
        ),
    )


LEAD: Final = Claim(
    id="lead_shrinks",
    statement="AdamW's lead over SGD without momentum is at least 0 nats per token smaller at a batch of 1 than at 64.",
    effect="lead_lost",
    at_least=0,
    unit="nats",
)

LINES: Final = {
    "AdamW, beta2 at equal half-life": ("adam_1", "adam_8", "adam_large"),
    "AdamW, beta2 as it was": ("adam_1_fixed", "adam_large"),
    "SGD without momentum": ("sgd_1", "sgd_8", "sgd_large"),
}
CURVES: Final = {
    "AdamW, accumulated": "adam_large", "AdamW, batch 1": "adam_1",
    "SGD, accumulated": "sgd_large", "SGD, batch 1": "sgd_1",
}  # fmt: skip


def _by_batch(runs: Mapping[int, SeedRuns]) -> Drawn:
    def points(of_seed: SeedRuns, labels: tuple[str, ...]) -> Points:
        found = (of_seed[label] for label in labels if label in of_seed)
        return [(run.config.effective_batch_size, run.metrics["token_loss"]) for run in found]

    return {name: {seed: points(of_seed, labels) for seed, of_seed in runs.items()} for name, labels in LINES.items()}


def _best(drawn: Drawn, name: str) -> tuple[float, float]:
    """A line's batch with the lowest mean over seeds, and that mean."""
    by_batch: dict[float, list[float]] = {}
    for points in drawn[name].values():
        for batch, loss in points:
            by_batch.setdefault(batch, []).append(loss)
    return min(((batch, fmean(losses)) for batch, losses in by_batch.items()), key=lambda pair: pair[1])


def _batch_finding(drawn: Drawn) -> str:
    adam, sgd = _best(drawn, "AdamW, beta2 at equal half-life"), _best(drawn, "SGD without momentum")
    best = f"at a batch of {adam[0]:g} ({adam[1]:.2f} nats per token), SGD at one of {sgd[0]:g} ({sgd[1]:.2f})"
    return f"At equal tokens AdamW does best {best}"


def _course(run: RunResult) -> Points:
    return [(r.samples, r.validation.token_loss) for r in run.records if r.validation and r.validation.token_loss]


def _by_samples(runs: Mapping[int, SeedRuns]) -> Drawn:
    return {
        name: {seed: _course(of_seed[label]) for seed, of_seed in runs.items() if label in of_seed}
        for name, label in CURVES.items()
        if any(label in of_seed for of_seed in runs.values())
    }


def _course_finding(drawn: Drawn) -> str:
    ends = {name: fmean(points[-1][1] for points in seeds.values()) for name, seeds in drawn.items()}
    first, last = min(ends, key=ends.__getitem__), max(ends, key=ends.__getitem__)
    return f"{first} ends at {ends[first]:.2f} nats per token, {last} at {ends[last]:.2f}"


PUBLISHED: Final = (
    Published(
        key="marek_2025_rates",
        citation=PAPER.citation,
        statement="GPT-2 (124 million parameters) on FineWeb: the learning rate that did best at each batch, from the "
        "configurations in the paper's repository. The best rate of AdamW with beta2 at equal half-life halves while "
        "the batch falls to a 512th; with beta2 left at 0.95 it falls to a 32nd.",
        x_label="batch (sequences of 1,024 tokens)",
        y_label="best learning rate",
        series={
            "AdamW, beta2 at equal half-life": ((512, 0.0048), (1, 0.0024)),
            "AdamW, beta2 0.95": ((512, 0.0048), (1, 0.00015)),
            "SGD without momentum": ((1, 0.2),),
        },
    ),
)
PROTOCOL: Final = (
    Difference("network", "GPT-2, 124 million parameters, 1,024 tokens", "the same design, 137 thousand, 64 tokens"),
    Difference(
        "text", "FineWeb, 2.5 billion tokens of 50,257 kinds", "Python's documentation, 262 thousand bytes, once"
    ),
    Difference("batches", "512 (16 x 32) against 1", "64 (8 x 8) and 8 against 1"),
    Difference("updates of the large batch", "4,768", "64: few, which favours small batches more than the paper does"),
    Difference("rates", "the best of 8 for each arm", "the best of 2 to 5 for each arm, on pilot seeds"),
    Difference("weight decay", "0.1 at a batch of 512, 0 at 1", "0 everywhere"),
    Difference(
        "when not to accumulate",
        "advises against accumulation, unless several replicas are bound by the bandwidth between them",
        "Do not accumulate where the memory already holds the batch that trains best per token: a larger effective "
        "batch makes fewer updates of the same tokens and saves no memory, as the micro-batch decides what is held. "
        "Accumulate where that batch does not fit, or where a recipe is to be followed as it was published.",
    ),
)
CHOSEN: Final = (
    "On pilot seeds 1 to 4, all arms on seed 1: 23 learning rates by the held-out loss (AdamW 3 at each batch, 4 with "
    "beta2 as it was; SGD 5, 2 and 3 at 64, 8 and 1), and before them 4 scales of the initial weights. The gains were "
    "0.41 (deviation over seeds 0.10) for the small batch, 0.15 (0.09) for SGD, 0.03 (0.05) for the half-life and 0.04 "
    "(0.08) for the lead, where the paper's claim stands as a threshold of 0 that may not be reached. With 6 seeds the "
    "t interval has a half-width of 1.05 deviations: enough for the first two."
)
REMARKS: Final[Mapping[str, Mapping[VerdictWord, str]]] = {
    "small_batch_no_worse": {
        "supported": "At this size 64 updates are far too few, so a batch that fits the memory should not be "
        "accumulated into a larger one. What gap remains after thousands of updates is the preset full's to say.",
    },
    "half_life_helps": dict.fromkeys(
        ("inconclusive", "refuted"),
        "With a rate of its own, beta2 as it was keeps up here. It then averages over 20 blocks of 64 bytes; what the "
        "paper finds too short is an average over 20 sequences of 1,024 tokens in a run of 2.4 million updates.",
    ),
    "sgd_works_at_batch_one": {
        "supported": "It keeps no state: a third of what AdamW holds for its parameters and their two averages.",
    },
    "lead_shrinks": dict.fromkeys(
        ("inconclusive", "refuted"),
        "At this size AdamW gains about as much from a small batch as SGD does: 64 updates are too few for either. "
        "The paper's large batches make thousands.",
    ),
}

EXPERIMENT = Experiment(
    name="marek_2025_small_batches",
    title="Small batches instead of accumulation",
    question="At equal tokens, does a small language model do better by many updates of one sample than by few of "
    "accumulated ones?",
    papers=(PAPER,),
    claims=(*_claims(64, 0.1, 0.0), LEAD),
    presets={
        "smoke": Preset(
            (901, 902), _smoke, "2 seeds, 16 blocks of text in batches of 8 and 1: seconds, decides nothing"
        ),
        "bench": Preset(
            (31, 32, 33, 34, 35, 36),
            _bench,
            "6 seeds, 262 thousand bytes of text in batches of 64, 8 and 1: minutes on 2 cores",
        ),
        "full": Preset(
            (31, 32, 33),
            _full,
            "3 seeds, GPT-2 small over bytes on 524 MB of your own text, batches of 512 and 1: for a GPU, days",
            claims=_claims(512, 0.0, -0.1),
            long=True,
        ),
    },
    measure=_measure,
    published=PUBLISHED,
    protocol=PROTOCOL,
    chosen=CHOSEN,
    figures=(
        Figure(
            "loss_by_batch",
            "effective batch (blocks)",
            "held-out loss (nats per token)",
            _by_batch,
            _batch_finding,
            log_x=True,
        ),
        Figure("loss_by_samples", "samples seen", "held-out loss (nats per token)", _by_samples, _course_finding),
    ),
    remarks=REMARKS,
)
