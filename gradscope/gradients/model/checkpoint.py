"""Weights from disk: safetensors only, no pickle, no remote code, and a clear sentence for whatever does not fit."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from peft import PeftConfig, PeftType, get_peft_model, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gradscope.errors import InputError
from gradscope.gradients.model.checked.adapter import read_adapter_config
from gradscope.gradients.model.checked.loading import UNREADABLE, opened_tensors, quiet, refusing
from gradscope.gradients.model.checked.model_folder import require_possible, require_readable, require_same_tensors
from gradscope.gradients.model.hub import require_hub
from gradscope.gradients.processes.group import holds_everywhere, num_connected
from gradscope.gradients.processes.sharding import call_as_module, own_slice, settle, sharding_arguments
from gradscope.rollouts.places.fetch import bring_weights
from gradscope.rollouts.run import WeightsRef

FloatName = Literal["float32", "bfloat16", "float16"]
"""Dtypes that weights are trained in."""

_ADAPTER = "adapter_model.safetensors"
_FACTOR = re.compile(r"\.(lora_(?:embedding_)?)([AB])((?:\.weight|\.bias)?)$")


def load_model(source: Path | str, dtype: torch.dtype | None, *, may_ask: bool = True) -> Any:
    """A whole causal language model.

    Args:
        source: A folder, or a hub id.
        dtype: The dtype to load in; None: the checkpoint's own.
        may_ask: Whether the hub may be asked for an id; the cache alone is looked at where only a file names it.

    Returns:
        The model.

    Raises:
        InputError: There is no model, it is not in safetensors, or its configuration is none of its tensors.
    """
    folder = Path(source)
    bring_weights(folder)
    if folder.is_dir():
        require_readable(folder)
        _require_safetensors(folder)
        require_possible(folder)
    require_hub(str(source), may_ask=may_ask)
    with (
        refusing(
            f"{source} does not load as a causal language model",
            "Point --model at a Hugging Face model folder with config.json and model.safetensors.",
        ),
        quiet(),
    ):
        config = AutoConfig.from_pretrained(str(source), trust_remote_code=False, local_files_only=not may_ask)
        model_class = _model_class(config)
        model, report = model_class.from_pretrained(
            str(source),
            dtype=dtype if dtype is not None else "auto",
            trust_remote_code=False,
            local_files_only=not may_ask,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **sharding_arguments(model_class, config),
        )
    require_same_tensors(str(source), report)
    settle(model)
    return model


def _model_class(config: Any) -> Any:
    """The class that the weights were saved from, as TRL picks it: of a model that also sees, that is not the text's.

    Returns:
        The class that the configuration names, where it is one that writes text from text; else transformers' own pick.
    """
    named: Any = getattr(transformers, next(iter(config.architectures or ()), ""), None)
    is_model = inspect.isclass(named) and issubclass(named, PreTrainedModel)
    return named if is_model and named.can_generate() and not config.is_encoder_decoder else AutoModelForCausalLM


def load_adapter(weights: WeightsRef, dtype: torch.dtype | None) -> Any:
    """An adapter of any of PEFT's kinds on its base model, its own parameters trainable.

    Args:
        dtype: The dtype to load in; None: the checkpoint's own.

    Returns:
        The model with the adapter.

    Raises:
        InputError: The base is missing, the adapter is not one of its own in safetensors, or it does not fit the base.
    """
    base = weights.base
    if base is None or (not Path(base).is_dir() and (Path(base).is_absolute() or base.startswith((".", "~")))):
        raise InputError(
            f"{weights.path} is an adapter, and its base model {base or '(not named)'} is not there.",
            hint="Name the base model with --model PATH_OR_ID.",
        )
    config = _adapter_config(weights.path)
    tensors = _adapter_tensors(weights.path)
    model = load_model(base, dtype, may_ask=weights.is_base_given)
    if num_connected() > 1:
        _require_plain_lora(weights.path, config, tensors, model)
    with quiet():
        try:
            model = get_peft_model(model, config)
            call_as_module(model)
            result = set_peft_model_state_dict(model, tensors)
        except KeyError as error:  # what peft says of a module that was to be saved whole
            raise InputError(
                f"{weights.path}: the adapter lacks the tensor {error.args[0]}.",
                hint="Save it again with save_pretrained().",
            ) from error
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                f"{weights.path}: the adapter does not fit the base model {base}: {_second_line(error)}",
                hint="Point --model at the base model that it was trained on.",
            ) from error
    wrong = [*_never_read(model, set(result.missing_keys)), *result.unexpected_keys]
    if wrong:
        raise InputError(
            f"{weights.path}: the adapter does not fit the base model {base}: {wrong[0]} has no counterpart "
            f"({len(wrong)} such tensors).",
            hint="Point --model at the base model that it was trained on.",
            cause=UNREADABLE,
        )
    return model


def _require_plain_lora(folder: Path, config: Any, tensors: Mapping[str, torch.Tensor], model: Any) -> None:
    """Refuse adapters that look at whole weights of the base, or copy some, where several processes hold parts of it.

    Raises:
        InputError: It is such an adapter.
    """
    head = model.get_output_embeddings()
    is_tied = head is not None and head.weight is model.get_input_embeddings().weight
    head_name = next((name for name, module in model.named_modules() if module is head), "")
    reasons = (
        (config.peft_type != PeftType.LORA, "it is not LoRA"),
        (getattr(config, "use_dora", False), "DoRA takes norms of whole weights"),
        (getattr(config, "modules_to_save", None), "it trains copies of whole modules (modules_to_save)"),
        (is_tied and any(f"{head_name}.base_layer." in name for name in tensors), "it adapts a tied head"),
    )
    for holds, reason in reasons:
        if holds:
            raise InputError(
                f"{folder}: this adapter does not go on a base that several processes share: {reason}.",
                hint="Call gradscope without torchrun, on a base that one device holds.",
                cause="model_unsupported",
            )


def _never_read(model: Any, missing: set[str]) -> list[str]:
    """Trainable parameters that the file has under none of their names: some adapters share one among all layers."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            names.setdefault(id(parameter), []).append(name)
    return [known[0] for known in names.values() if missing.issuperset(known)]


def is_fresh(folder: Path) -> bool:
    """Whether switching an adapter off changes nothing yet: LoRA starts with A or B of every pair at zero.

    Magnitudes and modules saved whole count as a change, for what they started from is not in the folder. Biases of the
    base do not: they stay as they are when an adapter is switched off, also in TRL's reference.

    Returns:
        True where every product is zero and there is nothing else.
    """
    tensors = _adapter_tensors(folder)
    for name, tensor in tensors.items():
        factor = _FACTOR.search(name)
        if factor is None and not name.endswith(".bias") and ".base_layer." not in name:
            return False
        if factor is not None and bool(tensor.any()):
            other = tensors.get(f"{name[: factor.start()]}.{factor[1]}{'BA'['AB'.index(factor[2])]}{factor[3]}")
            if other is None or bool(other.any()):
                return False
    return True


def padding_id(folder: Path) -> int | None:
    """The padding token of a model's configuration.

    Returns:
        The token, which gets no embedding gradient; None without one.

    Raises:
        InputError: The folder has no configuration of a model.
    """
    with refusing(f"{folder} has no readable config.json"), quiet():
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    return getattr(config.get_text_config(), "pad_token_id", None)


def stored_dtype(weights: WeightsRef) -> FloatName:
    """The dtype that a model, or the base of an adapter, is stored in.

    Returns:
        The least precise of its tensors'.

    Raises:
        InputError: A file of its tensors cannot be read.
    """
    folder = Path(weights.base or "") if weights.kind == "adapter" else weights.path
    found = set()
    bring_weights(folder)
    for file in sorted(folder.glob("*.safetensors")):
        with opened_tensors(file) as tensors:
            found |= {tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
    return "bfloat16" if "BF16" in found else "float16" if "F16" in found else "float32"


def require_finite(model: nn.Module, source: str) -> None:
    """Refuse weights that are not numbers.

    Raises:
        InputError: A parameter holds NaN or infinity.
    """
    for name, parameter in model.named_parameters():
        own = own_slice(parameter.detach())
        ends = torch.stack(own.aminmax()) if own.numel() else own  # either is NaN where one value is
        if not holds_everywhere(bool(torch.isfinite(ends).all())):
            raise InputError(
                f"{source}: {name} holds values that are not finite.",
                hint="The run diverged before this checkpoint; use an earlier one.",
                cause=UNREADABLE,
            )


def _require_safetensors(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(path.name for path in (*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")))
    weights = f"only {pickles[0]}, a pickle, which is never loaded" if pickles else "no weights"
    raise InputError(
        f"{folder} has no *.safetensors: {weights}.",
        hint="Save it again with save_pretrained(), which writes safetensors.",
    )


def _adapter_config(folder: Path) -> PeftConfig:
    require_readable(folder)
    read_adapter_config(folder)
    with refusing(f"{folder} has no readable adapter_config.json"), quiet():
        config = PeftConfig.from_pretrained(str(folder))
    kind = getattr(config.peft_type, "value", config.peft_type)
    reasons = (
        (getattr(config, "adapters", None), "it mixes adapters from other folders"),
        (config.is_prompt_learning, "it puts prompts before each padded row, and where the padding was changes them"),
    )
    for holds, reason in reasons:
        if holds:
            raise InputError(
                f"{folder} is an adapter of the kind {kind}, whose gradient cannot be recomputed: {reason}.",
                hint="Gradients of LoRA and of other adapters inside the layers can be.",
            )
    config.inference_mode = False
    return config


def _adapter_tensors(folder: Path) -> dict[str, torch.Tensor]:
    path = folder / _ADAPTER
    bring_weights(folder)
    if not path.is_file():
        _require_safetensors(folder)
        raise InputError(f"{folder} has no {_ADAPTER}.", hint="Save it again with save_pretrained().")
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a readable safetensors file: {error}", cause=UNREADABLE) from error


def _second_line(error: Exception) -> str:
    """PyTorch lists the tensors that do not fit below a headline."""
    lines = str(error).strip().splitlines()
    return lines[min(1, len(lines) - 1)].strip()
