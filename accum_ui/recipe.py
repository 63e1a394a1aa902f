"""The settings as a script: the plain PyTorch loop that gives the run's own losses, to the last bit."""

from __future__ import annotations

from string import Template
from typing import Final

from accum_core import catalogue
from accum_core.measures import measure_of
from accum_core.records import RunConfig

_SCRIPT: Final = Template('''\
"""$title. Save it in the repository's root and run it there.

It prints the losses of a run with these settings from its first update on, to the last bit on one machine with one
number of threads.
"""

${partial}import numpy as np
import torch
from torch.nn.functional import cross_entropy

from accum_core.engine import convert_norms
${in_step}from accum_core.engine.workloads import load

EFFECTIVE, MICRO, N = $effective, $micro, $steps  # samples an update, samples a pass, passes an update
UPDATES, WARMUP, LR, SEED = $updates, $warmup, $rate, $seed

torch.backends.cudnn.deterministic = True  # with the next line: the same bits twice on a GPU too
torch.backends.cudnn.allow_tf32 = False
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
workload = load("$workload")
torch.manual_seed(SEED * 1_000_003)  # decides the initial weights
model = convert_norms(workload.build_model("$model"), "$norm"$options)
model.to(device, torch.$precision, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), LR, momentum=$momentum, weight_decay=$decay)


def windows():
    """The samples of each update, in an order that the seed and the epoch decide and the split does not."""
    epoch = 0
    while True:
        order = np.random.default_rng((SEED, epoch)).permutation(workload.num_samples)
        # $tail
        for start in range(0, $end, EFFECTIVE):
            yield workload.samples(order[start : start + EFFECTIVE])
        epoch += 1

$summed_loss
for update, (images, labels) in zip(range(1, UPDATES + 1), windows()):
    for group in optimizer.param_groups:  # the schedule counts updates, not micro-batches
        group["lr"] = LR * ($warmup_factor * ((UPDATES - update + 1) / UPDATES) ** 0.9)
    torch.manual_seed(SEED * 1_000_003 + update)  # for layers that draw random numbers
    pixels, summed = labels.numel(), 0.0  # every pixel has a label here; where some have none, count the others
    micro_batches = list(zip(images.to(torch.$precision).split(MICRO), labels.split(MICRO)))
$passes
    optimizer.step()
    optimizer.zero_grad()
    print(f"update {update}: loss {summed / pixels!r}")

model.eval()
with torch.no_grad():
    print(f"validation $measure {workload.validate(model).$field!r}")
''')

_ONE_BY_ONE: Final = Template("""\
    for inputs, targets in micro_batches:
        loss = cross_entropy(model(inputs.to(device)), targets.to(device), reduction="sum")
        # $why
        (loss * ($factor)).backward()  # adds to .grad
        summed += loss.item()""")
_IN_STEP: Final = Template("""\
    # Every norm waits for all micro-batches of the window, so they advance together, and one backward pass goes
    # through all of them. One at a time is computed, and "offload" says where it keeps what that pass needs.
    losses = in_step(model, [partial(summed_loss, *micro_batch) for micro_batch in micro_batches])
    # $why
    sum(loss * ($factor) for loss, (_, targets) in zip(losses, micro_batches)).backward()
    summed = sum(loss.item() for loss in losses)""")
_SUMMED_LOSS: Final = """
def summed_loss(inputs, targets):
    \"\"\"The summed loss of one micro-batch.\"\"\"
    return cross_entropy(model(inputs.to(device)), targets.to(device), reduction="sum")

"""

# The order of the operations is that of ``LossReduction.factors``, as another order would round differently.
_FACTORS: Final = {
    "exact": ("1 / pixels", "one divisor for the window: every pixel weighs the same, whatever the split"),
    "mean_of_means": (
        "1 / (targets.numel() * len(micro_batches))",
        "the mean of the micro-batches' means: right only where all of them hold as many pixels",
    ),
    "sum_of_means": ("1 / targets.numel()", "the sum of the micro-batches' means: N times too large"),
    "sum": ("1.0", "divided by nothing: the step grows with the number of pixels"),
}
_TAILS: Final = {
    "drop": ("len(order) - EFFECTIVE + 1", "the tail is dropped: an epoch's last window when it is not full"),
    "rescale": ("len(order)", "the tail is kept: an epoch's last window may be short"),
    "divide_by_n": ("len(order)", "the tail is kept: an epoch's last window may be short"),
}


def _warmup(config: RunConfig) -> str:
    """What multiplies the decayed rate, in the order of operations of ``Schedule``."""
    if not config.warmup_updates:
        return "1.0"
    climbed, start = "min(1.0, update / WARMUP)", config.shape.warmup_from
    return f"({start!r} + (1 - {start!r}) * {climbed})" if start else climbed


def source(config: RunConfig) -> str:
    """A complete script for the repository's root: one loop of plain PyTorch with these settings.

    Its losses are those of ``engine.train(config)`` to the last bit on one machine (tests/test_recipe.py). It fits
    workloads whose objective is the cross-entropy over labels that are all valid.
    """
    norm, measure = catalogue.entries("norms")[config.norm], measure_of(config.workload)
    factor, why = _FACTORS[config.reduction]
    if config.tail == "divide_by_n" and config.reduction in ("exact", "mean_of_means"):
        factor, why = f"{factor} * len(micro_batches) / N", f"{why}; a short window counts as if it were full"
    end, tail = _TAILS[config.tail]
    waits = config.norm == "sync_batch" and config.accumulation_steps > 1  # for the other micro-batches of its window
    options = {option: getattr(config, field) for option, field in norm.get("OPTIONS", {}).items()}
    return _SCRIPT.substitute(
        title=f"{norm['TITLE']} at {config.accumulation_steps} × {config.micro_batch_size}",
        effective=config.effective_batch_size,
        micro=config.micro_batch_size,
        steps=config.accumulation_steps,
        updates=config.updates,
        warmup=config.warmup_updates,
        warmup_factor=_warmup(config),
        rate=repr(config.peak_learning_rate),
        seed=config.seed,
        workload=config.workload,
        model=config.model,
        measure=measure.title,
        field=measure.field,
        norm=config.norm,
        options="".join(f", {option}={value!r}" for option, value in options.items()).replace("'", '"'),
        precision=config.precision,
        momentum=repr(config.momentum),
        decay=repr(config.weight_decay),
        end=end,
        tail=tail,
        partial="from functools import partial\n\n" if waits else "",
        in_step="from accum_core.engine.lockstep import in_step\n" if waits else "",
        summed_loss=_SUMMED_LOSS if waits else "",
        passes=(_IN_STEP if waits else _ONE_BY_ONE).substitute(factor=factor, why=why),
    )
