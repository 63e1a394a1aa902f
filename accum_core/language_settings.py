"""Which language model of the user's own a run trains, and on which text: the part of a run's configuration for it."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from accum_core.errors import SettingError


class LanguageSettings(BaseModel):
    """What the workload ``causal_lm`` reads, and how; part of ``RunConfig``, so part of a run's identity.

    Attributes:
        model: a folder with a causal model of transformers and its tokenizer, or the name of one on the hub.
        data: a JSON-lines file, a folder that ``datasets`` reads, or the name of a data set on the hub.
        digest: SHA-256 of the data when the run was asked for: of a file, or of a data set's rows; "" for unknown.
        model_digest: what the model was then: SHA-256 of a folder's files, or a hub model's commit; "" for unknown.
        context: tokens that one pass may read; what is longer is cut.
        packed: whether a sample is a row of ``context`` tokens filled with several texts, which do not see one another,
            or else one text, padded.
        lora_rank: of the adapters that are trained in the place of the model's weights; None trains the weights.
        hold_out_every: every so many samples one validates and is not trained on.
        watched: whether instruments watch the run; most pass a window as one batch, too much for a large model.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1)
    data: str = Field(min_length=1)
    digest: str = ""
    model_digest: str = ""
    context: int = Field(1024, ge=2, le=1_048_576)
    packed: bool = False
    lora_rank: int | None = Field(None, ge=1, le=4096)
    hold_out_every: int = Field(50, ge=2, le=1_000_000)
    watched: bool = False

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """Checked settings.

        Raises:
            SettingError: naming the field, the value and what to do.
        """
        try:
            return cls(**settings)
        except ValidationError as error:
            first = error.errors()[0]
            message = first["msg"][0].lower() + first["msg"][1:]
            raise SettingError(".".join(map(str, first["loc"])), first["input"], message) from None
