"""Models, tokenizers and data sets of Hugging Face: from a folder first, or else by their name on the hub."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from accum_core.engine.causal.places import expect, framework, read
from accum_core.errors import DataError, LabError, SettingError

TOKENIZERS = ("tokenizer", "vocab", "spiece", "sentencepiece")
"""What the files of a tokenizer begin with."""


def check_context(name: str, context: int, commit: str = "") -> None:
    """Refuse a context that a model cannot read; its weights are not loaded for that.

    Args:
        name, commit: as for ``load_model``.
        context: tokens that it has to read at once.

    Raises:
        SettingError: naming how many it can read.
        DataError: for a model that is not there or is damaged.
    """
    config = _from_pretrained("AutoConfig", name, commit)
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    if isinstance(longest, int) and context > longest:
        raise SettingError("context", context, f"is more than the {longest} tokens that {name} can read; use fewer")


def load_model(name: str, lora_rank: int | None, commit: str = "") -> nn.Module:
    """A causal model in training mode, in the number type that it was saved in.

    Args:
        name: a folder, or a name on the hub.
        lora_rank: rank of new adapters on every linear layer but the last (alpha is twice the rank, without dropout);
            they alone are trained. None trains every weight.
        commit: which version of a model on the hub; "" for the newest.

    Raises:
        SettingError: for a model with layers that a run's norm would exchange.
        DataError: for one that is not there, is damaged or lacks weights.
    """
    model, info = _from_pretrained("AutoModelForCausalLM", name, commit, output_loading_info=True)
    if missing := sorted(info["missing_keys"]):
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(
            f"model {name}: its files lack the weights {missing[0]}{others}, which would be random: take the whole "
            "model, with the head that predicts tokens."
        )
    norms = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm)
    if found := [layer for layer, module in model.named_modules() if isinstance(module, norms)]:
        remedy = f"has a layer {found[0]}, which the norm of a run would exchange; use another model"
        raise SettingError("model", name, remedy)
    if lora_rank is not None:
        peft = framework("peft")
        is_conv1d = any(type(module).__name__ == "Conv1D" for module in model.modules())
        settings = peft.LoraConfig(
            r=lora_rank,
            lora_alpha=2 * lora_rank,
            target_modules="all-linear",
            fan_in_fan_out=is_conv1d,  # GPT-2's layers hold their weights transposed
            task_type="CAUSAL_LM",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name of its past
            model = peft.get_peft_model(model, settings)
    found_model: nn.Module = model
    return found_model.train()


def load_tokenizer(name: str, commit: str = "") -> Any:
    """The tokenizer that lies beside a model.

    Raises:
        DataError: for one that is not there or is damaged.
    """
    folder = Path(name)
    if folder.is_dir() and not any(path.name.startswith(TOKENIZERS) for path in folder.iterdir()):
        raise DataError(f"model {name}: the folder has no tokenizer: place the model's own there (tokenizer.json).")
    return _from_pretrained("AutoTokenizer", name, commit)


def load_rows(name: str) -> Any:
    """The part ``train`` of a data set, which gives rows.

    Args:
        name: a folder with files that ``datasets`` reads, or a name on the hub.

    Raises:
        DataError: for one that is not there or cannot be read.
    """
    datasets = framework("datasets")
    expect(name, "data", "")

    def load() -> Any:
        try:
            return datasets.load_dataset(name, split="train")
        except datasets.exceptions.DatasetGenerationError as error:
            raise error.__cause__ or error from None  # which says what is wrong with which file

    return read(load, "data", name)


def save(network: Any, tokenizer: Any, folder: Path) -> None:
    """Write a trained model, or its adapters, and the tokenizer, as transformers and peft read them.

    The folder is there whole or not at all; one that exists is replaced.

    Args:
        network: of ``load_model``, in the number type that it was trained in.

    Raises:
        LabError: when it cannot be written, say on a full disk.
    """
    part = folder.with_name(f"{folder.name}.part")
    has_adapters = hasattr(network, "peft_config")
    try:
        shutil.rmtree(part, ignore_errors=True)
        # Adapters leave the embeddings alone; peft would ask the hub whether that is so.
        network.save_pretrained(part, **({"save_embedding_layers": False} if has_adapters else {}))
        tokenizer.save_pretrained(part)
        shutil.rmtree(folder, ignore_errors=True)
        part.replace(folder)
    except (OSError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise LabError(f"{folder} could not be written ({reason}): free some space, then go on by --resume.") from None


def _from_pretrained(kind: str, name: str, commit: str, **options: Any) -> Any:
    """What one of transformers' classes makes of a model's folder or name; never by code that came with the model."""
    reader = getattr(framework("transformers"), kind)
    expect(name, "model", "config.json")
    if commit and not Path(name).is_dir():
        options["revision"] = commit
    what = "tokenizer of model" if kind == "AutoTokenizer" else "model"
    return read(lambda: reader.from_pretrained(name, trust_remote_code=False, **options), what, name)
