"""Models, tokenizers and data sets of Hugging Face: from a folder first, or else by their name on the hub."""

from __future__ import annotations

import importlib
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from accum_core.engine.tolerant import is_out_of_memory
from accum_core.errors import DataError, LabError, SettingError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
ADAPTERS = "adapter_config.json"


def framework(name: str) -> Any:
    """A library that is not needed for anything else.

    Raises:
        LabError: saying what to install.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        remedy = "install it by `pip install -r requirements-frameworks.txt`"
        raise LabError(
            f"Language models of one's own need {name}, which cannot be imported ({error}): {remedy}."
        ) from None


def load_model(name: str, lora_rank: int | None, context: int) -> nn.Module:
    """A causal model in training mode, in the number type that it was saved in.

    Args:
        name: a folder, or a name on the hub.
        lora_rank: rank of new adapters on every linear layer but the last (alpha is twice the rank, without dropout);
            they alone are trained. None trains every weight.
        context: tokens that it has to read at once.

    Raises:
        SettingError: for a model that cannot read so many, or that has layers which a run's norm would exchange.
        DataError: for one that is not there, is damaged or lacks weights.
    """
    transformers = framework("transformers")
    _expect(name, "model", "config.json", f"hf download {name} --local-dir FOLDER")
    model, info = _read(
        lambda: transformers.AutoModelForCausalLM.from_pretrained(name, output_loading_info=True),
        "model",
        name,
        f"`hf download {name} --local-dir FOLDER`",
    )
    if missing := sorted(info["missing_keys"]):
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(
            f"model {name}: its files lack the weights {missing[0]}{others}, which would be random: take the whole "
            "model, with the head that predicts tokens."
        )
    longest = getattr(model.config, "max_position_embeddings", None)
    if isinstance(longest, int) and context > longest:
        raise SettingError("context", context, f"is more than the {longest} tokens that {name} can read; use fewer")
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


def load_tokenizer(name: str) -> Any:
    """The tokenizer that lies beside a model.

    Raises:
        DataError: for one that is not there or is damaged.
    """
    transformers = framework("transformers")
    _expect(name, "model", "config.json", f"hf download {name} --local-dir FOLDER")
    remedy = f"`hf download {name} --local-dir FOLDER`"
    return _read(lambda: transformers.AutoTokenizer.from_pretrained(name), "tokenizer of model", name, remedy)


def load_rows(name: str) -> Any:
    """The part ``train`` of a data set, which gives rows.

    Args:
        name: a folder with files that ``datasets`` reads, or a name on the hub.

    Raises:
        DataError: for one that is not there or cannot be read.
    """
    datasets = framework("datasets")
    download = f"hf download {name} --repo-type dataset --local-dir FOLDER"
    _expect(name, "data", "", download)
    return _read(lambda: datasets.load_dataset(name, split="train"), "data", name, f"`{download}`")


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


def _expect(name: str, what: str, file: str, download: str) -> None:
    """Refuse what is neither a folder with that file nor a name that the hub could know."""
    folder = Path(name)
    if folder.is_dir():
        if not (folder / file).exists():
            adapters = (
                " (it holds adapters; name the model that they belong to)" if (folder / ADAPTERS).exists() else ""
            )
            raise DataError(
                f"{what} {name}: the folder has no {file}{adapters}: name one as save_pretrained writes it."
            )
    elif not HUB_NAME.fullmatch(name):
        raise DataError(f"{what} {name}: there is no such folder, and no hub has such a name: check the path.")


def _read(read: Any, what: str, name: str, download: str) -> Any:
    """What a library reads; whatever it raises becomes a sentence."""
    try:
        return read()
    except Exception as error:  # damaged files and missing networks raise errors of any class
        if is_out_of_memory(error):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
        if Path(name).is_dir():
            raise DataError(f"{what} {name}: the folder cannot be read ({reason}): mend or replace it.") from None
        raise DataError(
            f"{what} {name}: is no folder here, and the hub did not give it ({reason}): on a machine with a network "
            f"run {download}, place FOLDER here, and give its path instead of the name."
        ) from None
