"""Cross-entropy over the pixels of a network with several heads, as torchvision's segmentation networks have them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from torch import Tensor

from accum_core.engine.objectives.cross_entropy import CrossEntropy
from accum_core.engine.objectives.objective import Predict
from accum_core.errors import SettingError

Outputs = Mapping[str, Tensor]


class HeadsCrossEntropy:
    """One term a head, named as the network's outputs are: coefficient times the mean over the valid pixels.

    The network gives a mapping ``{"out": [M, C, H, W], "aux": [M, C, H, W]}``; targets are ``[M, H, W]``. torchvision's
    reference recipe weighs ``out`` by 1 and ``aux`` by 0.5. Outputs without a coefficient add nothing. Exact under
    accumulation for every split of a window (tests/test_heads.py).

    Args:
        coefficients: output -> its factor.
        ignore_index: label of a pixel that counts for nothing; VOC's is 255.

    Raises:
        SettingError: on the first batch, for outputs that lack a head, naming those that there are.
    """

    def __init__(self, coefficients: Mapping[str, float], ignore_index: int = 255) -> None:
        self.coefficients = MappingProxyType(dict(coefficients))
        self._head = CrossEntropy(ignore_index)

    def weights(self, targets: Tensor) -> dict[str, float]:
        """The valid pixels, for each head."""
        (pixels,) = self._head.weights(targets).values()
        return dict.fromkeys(self.coefficients, pixels)

    def sums(self, model: Predict, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Each head's summed cross-entropy over the micro-batch."""
        return self.sums_of(cast("Outputs", model(inputs)), targets)

    def sums_of(self, outputs: Outputs, targets: Tensor) -> dict[str, Tensor]:
        """The same, from what the network gave."""
        for name in self.coefficients:
            if name not in outputs:
                raise SettingError("objective", name, f"is no output of the network; it has {', '.join(outputs)}")
        return {name: self._sum(outputs[name], targets) for name in self.coefficients}

    def _sum(self, logits: Tensor, targets: Tensor) -> Tensor:
        (total,) = self._head.sums(lambda _: logits, logits, targets).values()
        return total
