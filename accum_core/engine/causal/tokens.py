"""What was written, as tokens: each with a mark that says whether it is learnt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accum_core.errors import DataError
from accum_core.text_files import Chat, Pair, Text, Written

MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text as a model reads it.

    Attributes:
        tokens: ids; the model reads all but the last and predicts all but the first.
        learnt: for each token, whether its prediction counts. The first one's never does.
    """

    tokens: tuple[int, ...]
    learnt: tuple[bool, ...]

    @property
    def weight(self) -> int:
        """Predictions that count: what the text adds to a loss's denominator."""
        return sum(self.learnt[1:])


class Encoder:
    """Makes tokens of texts.

    A text is learnt whole, with an end-of-text token behind it; one that is too long is cut into pieces, of which each
    begins with the last token of the one before, so that every token but the first is predicted once. Of a pair the
    completion and the end are learnt; prompt and completion are tokenised apart, as they are when the model is used. Of
    a chat, shown as the tokenizer's template shows it, what the template marks as generated is learnt, or where it
    marks nothing, each assistant's message up to where the next one begins. Pairs and chats that are too long lose
    their end.

    Args:
        tokenizer: of transformers.
        context: tokens that the model may read at once.

    Attributes:
        cut: pairs and chats that lost their end.
    """

    def __init__(self, tokenizer: Any, context: int) -> None:
        self._tokenizer = tokenizer
        self._context = context
        self._end = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self.cut = 0

    def encode(self, written: Written, place: str) -> list[Tokens]:
        """The samples of one text, pair or chat; none where no token that is learnt fits in.

        Args:
            place: where it stands, for a refusal.

        Raises:
            DataError: for a chat that the tokenizer's template cannot show.
        """
        if isinstance(written, Text):
            tokens = self._ids(written.text)
            tokens += () if tokens[-1:] == self._end else self._end
            starts = range(0, len(tokens) - 1, self._context)
            pieces = [tokens[start : start + self._context + 1] for start in starts]
            return [Tokens(piece, (False,) + (True,) * (len(piece) - 1)) for piece in pieces]
        whole = self._pair(written) if isinstance(written, Pair) else self._chat(written, place)
        kept = Tokens(whole.tokens[: self._context + 1], whole.learnt[: self._context + 1])
        self.cut += len(kept.tokens) < len(whole.tokens)
        return [kept] if kept.weight else []

    def _ids(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        # Texts may be longer than the model reads: they are cut here, so nothing is to be warned of.
        return tuple(self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])

    def _pair(self, pair: Pair) -> Tokens:
        prompt = self._ids(pair.prompt)
        if self._end and prompt[-1:] == self._end and len(prompt) > 1:
            prompt = prompt[:-1]  # some tokenizers end every text
        completion = self._ids(pair.completion, special=False) + self._end
        return Tokens(prompt + completion, (False,) * len(prompt) + (True,) * len(completion))

    def _chat(self, chat: Chat, place: str) -> Tokens:
        if not self._tokenizer.chat_template:
            raise DataError(
                f"{place}: holds messages, and the model's tokenizer has no chat template: place a chat_template.jinja "
                "in the model's folder, or write prompt and completion."
            )
        messages = list(chat.messages)
        if MARKED.search(self._tokenizer.get_chat_template()):
            shown: Mapping[str, Sequence[int]] = self._show(messages, place, return_assistant_tokens_mask=True)
            return Tokens(tuple(shown["input_ids"]), tuple(map(bool, shown["assistant_masks"])))
        whole = self._show(messages, place)
        spans = []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                before = self._show(messages[:index], place, add_generation_prompt=True) if index else ""
                after = self._show(messages[: index + 1], place)
                if not (whole.startswith(after) and after.startswith(before)):
                    raise DataError(
                        f"{place}: the tokenizer's chat template shows a message otherwise once others follow, so the "
                        "assistant's tokens cannot be told: mark them in the template with {% generation %}."
                    )
                spans.append(range(len(before), len(after)))
        found = self._tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        starts = [start for start, _ in found["offset_mapping"]]
        return Tokens(tuple(found["input_ids"]), tuple(any(start in span for span in spans) for start in starts))

    def _show(self, messages: list[Mapping[str, str]], place: str, **options: bool) -> Any:
        masked = options.get("return_assistant_tokens_mask", False)
        try:
            return self._tokenizer.apply_chat_template(messages, tokenize=masked, return_dict=masked, **options)
        except Exception as error:  # a template may raise what it likes
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(
                f"{place}: the tokenizer's chat template cannot show these messages ({reason}): mend them, or it."
            ) from None
