"""A causal model of transformers as a training takes one: called with one tensor, and giving logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from accum_core.engine.causal.places import framework
from accum_core.engine.causal.rows import positions
from accum_core.engine.language import IGNORED
from accum_core.engine.modes import evaluating
from accum_core.engine.objectives import CrossEntropy
from accum_core.engine.objectives.objective import Predict
from accum_core.engine.precision import LOW
from accum_core.errors import SettingError

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Of the largest logit, for what rounding alone may change; in low precision ``ROUGH``."""
ROUGH = 0.02


class CausalModel(nn.Module):
    """Logits ``[M, T, vocabulary]`` of inputs ``[M, 2, T]``: tokens, and the number of the text that each belongs to.

    Padded rows need no attention mask: they are padded behind their end, which no token of a causal model sees, and
    positions are counted from their beginning. In packed rows each text has positions of its own, from which
    transformers tells the texts apart in its masks; whether a model does keep them apart is tried out by ``check``.

    In low precision, buffers such as the frequencies of rotary positions stay as wide as they were (in eight bits they
    are wrong by whole turns at the thousandth token), and so do adapters, which are added to weights that stay frozen.
    A state holds what is trained and no frozen weight.

    Args:
        network: of ``load_model``.
        packed: whether rows hold several texts.
    """

    def __init__(self, network: nn.Module, packed: bool) -> None:
        super().__init__()
        self.network = network
        self.packed = packed
        if _frozen(self):
            self.register_state_dict_post_hook(_leave_out_frozen)  # type: ignore[no-untyped-call]
            self.register_load_state_dict_post_hook(_expect_no_frozen)  # type: ignore[no-untyped-call]

    def forward(self, inputs: Tensor) -> Tensor:
        """One forward pass."""
        tokens, numbers = inputs.unbind(1)
        places = {"position_ids": positions(numbers)} if self.packed else {}
        logits: Tensor = self.network(input_ids=tokens, use_cache=False, **places).logits
        return logits

    def activation_blocks(self) -> Iterator[nn.Module]:
        """The layers of the decoder, for ``checkpoint_activations``.

        Raises:
            SettingError: for a model that does not say which they are.
        """
        layer = framework("transformers.modeling_layers").GradientCheckpointingLayer
        blocks = {name: module for name, module in self.named_modules() if isinstance(module, layer)}
        if not blocks:
            remedy = f"finds no layers in {type(self.network).__name__}; train it without"
            raise SettingError("activation_checkpointing", True, remedy)
        for name, block in blocks.items():
            if not any(name.startswith(f"{other}.") for other in blocks):
                yield block

    def check(self) -> None:
        """Try out on a few tokens that none sees those after it, and, if packed, none those of another text.

        Raises:
            SettingError: if one does, or if logits are not finite.
        """
        name = type(self.network).__name__
        size = self.network.get_input_embeddings().num_embeddings  # type: ignore[operator]
        drawn = torch.randint(size, (2, 12), generator=torch.Generator().manual_seed(0))
        first, other = torch.stack([drawn, torch.ones_like(drawn)], 1).split(1)
        second = first.clone()
        second[..., 0, 6:] = other[..., 0, 6:]
        with evaluating(self):
            logits = self(first)
            if not logits.isfinite().all():
                raise SettingError("model", name, "gives logits that are not finite; its weights are damaged")
            if not _close(self(second)[:, :6], logits[:, :6]):
                raise SettingError("model", name, "is not causal: its tokens see those after them; use one that is")
            if self.packed:
                row = torch.cat([other[..., :5], first + torch.tensor([[[0], [1]]])], 2)
                if not _close(self(row)[:, 5:], logits):
                    remedy = f"does not keep the texts of one row apart in {name}; train it padded"
                    raise SettingError("packed", True, remedy)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CausalModel:
        adapters = [p for p in self.parameters() if p.requires_grad] if _frozen(self) else []
        wide = {id(tensor) for tensor in (*adapters, *self.buffers()) if tensor.dtype not in LOW}

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if id(tensor) in wide and moved.dtype in LOW else moved

        applied: CausalModel = super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return applied


class TokenLoss(CrossEntropy):
    """Cross-entropy of the tokens that are learnt; a micro-batch is cut behind the last of them before it is passed.

    A window is padded to its longest row, most of its micro-batches are shorter. What is cut off is padding, or is seen
    by no token that is learnt, so the sum is the same.
    """

    def __init__(self) -> None:
        super().__init__(IGNORED)

    def sums(self, model: Predict, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The summed cross-entropy of inputs ``[M, 2, T]`` and targets ``[M, T]``."""
        used = (targets != IGNORED).any(0).nonzero()
        length = int(used.max()) + 1 if len(used) else 1
        return super().sums(model, inputs[..., :length], targets[:, :length])


def _frozen(model: nn.Module) -> set[str]:
    named = model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if not parameter.requires_grad}


def _leave_out_frozen(model: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in _frozen(model):
        state.pop(prefix + name, None)


def _expect_no_frozen(model: nn.Module, keys: Any) -> None:
    frozen = _frozen(model)
    keys.missing_keys[:] = [key for key in keys.missing_keys if not any(key.endswith(name) for name in frozen)]


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether two logits differ by rounding at most."""
    return bool((a - b).abs().max() <= TOLERANCE.get(a.dtype, ROUGH) * b.abs().max())
