"""A model's normalising layers, as the instruments see them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from accum_core.engine.normalization import norm_kinds
from accum_core.engine.norms import sync_batch


@dataclass(frozen=True, slots=True)
class NormLayer:
    """One normalising layer.

    Attributes:
        name: in the model; empty if it is the model itself.
        kind: its file under ``norms``.
        across: whether it looks across samples in the mode that it is in.
        eps: what it adds to a variance.
    """

    name: str
    module: nn.Module
    kind: str
    across: bool
    eps: float


def norm_layers(model: nn.Module) -> list[NormLayer]:
    """Every layer that a kind of norm owns, in the order in which the model registers them."""
    found = []
    for name, module in model.named_modules():
        for kind, file in norm_kinds().items():
            if file.owns(module):
                # In evaluation mode running statistics take the samples' place, where a layer has them.
                alone = file.BATCH_INDEPENDENT or not (module.training or getattr(module, "running_mean", None) is None)
                eps = module.eps if isinstance(getattr(module, "eps", None), float) else 1e-5
                found.append(NormLayer(name, module, kind, not alone, float(eps)))
                break
    return found


def runs_in_step(model: nn.Module) -> bool:
    """Whether the passes of its windows advance together, with one backward pass for all of them."""
    return any(sync_batch.owns(module) for module in model.modules())
