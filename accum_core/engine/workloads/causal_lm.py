"""Text of one's own for a causal model of transformers: fine-tuning, whole or by adapters.

Which model and which text is the run's ``language`` (``accum_core.language_settings``); ``python -m experiments
finetune`` makes such runs. Every so many texts one is held out to validate, always padded, so that padded and packed
runs are judged alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor, nn

from accum_core import text_files
from accum_core.engine.causal import places, pretrained, rows
from accum_core.engine.causal.model import CausalModel, TokenLoss
from accum_core.engine.causal.tokens import Encoder
from accum_core.errors import DataError, SettingError
from accum_core.language_settings import LanguageSettings
from accum_core.records import Validation

TITLE = "Text of one's own, a causal model of transformers"
MODELS = ("pretrained",)
MEASURE = "token_loss"
SAMPLES = "samples"
ORDER = 95
LANGUAGE = True
IN_LAB = False
"""It needs a model and text that do not come with the project."""


class OwnText:
    """Samples of the user's text: one text each, or a packed row.

    Attributes:
        texts, held_out: texts to train on, pieces of long ones counted each, and to validate on.
        tokens: predictions that count in an epoch.
        cut: pairs and chats that lost their end to the context, held-out ones included.
        left_out: those that lost all that is learnt, and are not used.
        longest: tokens read of the longest sample or held-out text.
    """

    def __init__(self, settings: LanguageSettings) -> None:
        self._settings = settings
        pretrained.check_context(settings.model, settings.context, settings.model_digest)
        self.tokenizer = pretrained.load_tokenizer(settings.model, settings.model_digest)
        encoder = Encoder(self.tokenizer, settings.context)
        found = [encoder.encode(written, place) for place, written in _written(settings)]
        used = [pieces for pieces in found if pieces]
        if len(used) < 2:
            raise DataError(
                f"data {settings.data}: holds {len(used) or 'no'} text with something to learn within "
                f"{settings.context} tokens: give at least 2, as one is held out to validate."
            )
        every = min(settings.hold_out_every, len(used))
        training = [text for index, pieces in enumerate(used, 1) if index % every for text in pieces]
        held_out = [text for index, pieces in enumerate(used, 1) if index % every == 0 for text in pieces]
        self._rows = rows.packed(training, settings.context) if settings.packed else [(text,) for text in training]
        self._held_out = sorted(held_out, key=lambda text: len(text.tokens))
        self.texts, self.held_out = len(training), len(held_out)
        self.tokens = sum(text.weight for text in training)
        self.cut, self.left_out = encoder.cut, len(found) - len(used)
        self.longest = max(map(_read, (*self._rows, *((text,) for text in held_out))))
        self._highest = max(max(text.tokens) for text in (*training, *held_out))
        self.num_samples = len(self._rows)
        self.objective = TokenLoss()

    def build_model(self, name: str) -> nn.Module:
        """The pretrained model, with new adapters if they are to be trained.

        Raises:
            SettingError, DataError: as ``pretrained.load_model`` and ``CausalModel.check``, and for a tokenizer with
                more tokens than the model.
        """
        settings = self._settings
        network = pretrained.load_model(settings.model, settings.lora_rank, settings.model_digest)
        known = network.get_input_embeddings().num_embeddings  # type: ignore[operator]
        if self._highest >= known:
            remedy = (
                f"knows {known} tokens, and its tokenizer gives number {self._highest}; take those that belong together"
            )
            raise SettingError("model", settings.model, remedy)
        model = CausalModel(network, settings.packed)
        model.check()
        return model

    def samples(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Inputs int64 ``[B, 2, T]`` and targets int64 ``[B, T]``, see ``rows.laid_out``."""
        return rows.laid_out([self._rows[index] for index in indices])

    def longest_samples(self, count: int) -> tuple[Tensor, Tensor]:
        """The samples and held-out texts with the most tokens, which need the most memory."""
        order = sorted((*self._rows, *((text,) for text in self._held_out)), key=_read, reverse=True)
        return rows.laid_out(order[:count])

    def validate(self, model: nn.Module) -> Validation:
        """Loss per learnt token over the held-out texts, in nats."""
        device = next(model.parameters()).device
        loss = tokens = 0.0
        for inputs, targets in self._batches():
            sums = self.objective.sums(model, inputs.to(device), targets.to(device))
            loss += sums["cross_entropy"].item()
            tokens += self.objective.weights(targets)["cross_entropy"]
        return Validation(token_loss=loss / tokens, loss=loss / tokens)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The held-out texts, the shortest first; no batch has more tokens than a training pass of one sample may."""
        batch: list[rows.Row] = []
        for row in ((text,) for text in self._held_out):
            if batch and (len(batch) + 1) * _read(row) > self.longest:
                yield rows.laid_out(batch)
                batch = []
            batch.append(row)
        yield rows.laid_out(batch)


def _read(row: rows.Row) -> int:
    """Tokens that a model reads of a row."""
    return sum(len(text.tokens) - 1 for text in row)


def _written(settings: LanguageSettings) -> Iterator[tuple[str, text_files.Written]]:
    """What the data holds, each with its place."""
    path = Path(settings.data)
    yield from text_files.read_lines(path) if path.is_file() else _rows(settings.data)


def _rows(name: str) -> Iterator[tuple[str, text_files.Written]]:
    for number, row in enumerate(pretrained.load_rows(name), 1):
        place = f"data {name}, row {number}"
        yield place, text_files.parse(row, place)


def data_digest(name: str) -> str:
    """SHA-256 of a file, or of the rows of a data set, hexadecimal.

    Raises:
        DataError: for data that is missing or damaged.
    """
    path = Path(name)
    return text_files.digest(path) if path.is_file() else text_files.digest_of(text for _, text in _rows(name))


def check_unchanged(settings: LanguageSettings) -> None:
    """Refuse to go on with other data or another model than a run was begun with; digests of "" let all pass.

    A model on the hub is read at the commit that the run was begun with, so it cannot have changed.

    Raises:
        DataError: naming what has changed, or is missing or damaged.
    """
    if settings.digest and data_digest(settings.data) != settings.digest:
        raise DataError(f"data {settings.data}: has changed since the run was begun: put it back, or start anew.")
    model = settings.model
    if settings.model_digest and Path(model).is_dir() and places.model_digest(model) != settings.model_digest:
        raise DataError(f"model {model}: has changed since the run was begun: put its files back, or start anew.")


def load() -> OwnText:
    """Refuses: nothing says which model and which text.

    Raises:
        SettingError: saying how such runs are made.
    """
    remedy = "needs a model and text of your own; use `python -m experiments finetune --model ... --data ...`"
    raise SettingError("workload", "causal_lm", remedy)


def load_with(settings: LanguageSettings) -> OwnText:
    """The samples and tokenizer.

    Raises:
        SettingError: for a context that is too large.
        DataError: for a model or text that is missing or damaged.
    """
    return OwnText(settings)
