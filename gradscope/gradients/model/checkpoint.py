"""Weights from disk: safetensors only, no pickle, no remote code, and a clear sentence for whatever does not fit.

Shapes: O outputs, I inputs, r the rank of an adapter.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from msgspec import Struct
from peft import PeftConfig, PeftType, get_peft_model, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gradscope.errors import InputError
from gradscope.gradients.model import checked
from gradscope.gradients.model.sharding import call_as_module, local_tensor, settle, sharding_arguments
from gradscope.gradients.processes import num_connected, true_in_all_processes
from gradscope.metrics.gram.spectrum import Array
from gradscope.rollouts.fetch import fetch_weights
from gradscope.rollouts.run import WeightsRef

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_TIMEOUT = 5
_FALSE = {"", "0", "false", "no", "off"}


def require_hub(name: str, *, may_ask: bool = True) -> None:
    """Refuse a hub id whose model is neither in the cache nor to be had; a folder is not looked at.

    The hub may not be asked where only a file names the id.

    Raises:
        InputError: The hub may not be asked, cannot be reached, or HF_HUB_OFFLINE is set, and the cache does not hold
            the model.
    """
    if Path(name).exists() or not _HUB_ID.fullmatch(name):
        return
    if not may_ask:
        if _is_cached(name):
            return
        raise InputError(
            f"The base model is named {name}, which is no folder here, and the hub's cache does not hold it.",
            hint=f"Name its folder, or let it be downloaded: --model {name}",
        )
    is_offline = os.environ.get("HF_HUB_OFFLINE", "").lower() not in _FALSE
    if (not is_offline and _is_reachable(_endpoint())) or _is_cached(name):
        return
    host = urllib.parse.urlsplit(_endpoint()).hostname
    raise InputError(
        f"There is no folder {name}, the hub's cache does not hold that model, and "
        f"{'HF_HUB_OFFLINE is set' if is_offline else f'{host} cannot be reached'}.",
        hint="Unset HF_HUB_OFFLINE to download it, or name a folder."
        if is_offline
        else "Name a folder, or download it where there is network; HF_HUB_OFFLINE=1 then reads the cache alone.",
    )


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def _is_reachable(address: str) -> bool:
    """Whether a host answers; where only the loaders could find out, such as behind a SOCKS proxy, let them try."""
    if "all" in urllib.request.getproxies():
        return True
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=_TIMEOUT).close()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        return not isinstance(error.reason, socket.gaierror | ConnectionError)
    except (OSError, ValueError):
        return True
    return True


def _is_cached(name: str) -> bool:
    try:
        AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError):
        return False
    return True


FloatName = Literal["float32", "bfloat16", "float16"]  # dtypes that weights are trained in

_ADAPTER = "adapter_model.safetensors"
_FACTOR = re.compile(r"\.(lora_(?:embedding_)?)([AB])((?:\.weight|\.bias)?)$")


def load_model(source: Path | str, dtype: torch.dtype | None, *, may_ask: bool = True) -> Any:
    """A causal language model with all weights from a folder or a hub id, by default in the checkpoint's own dtype.

    Only the cache is looked at where a file alone names the id.

    Raises:
        InputError: There is no model, it is not in safetensors, or its configuration is none of its tensors.
    """
    folder = Path(source)
    fetch_weights(folder)
    if folder.is_dir():
        checked.require_readable(folder)
        _require_safetensors(folder)
        checked.require_consistent_config(folder)
    require_hub(str(source), may_ask=may_ask)
    with (
        checked.loading_errors(
            f"{source} does not load as a causal language model",
            "Point --model at a Hugging Face model folder with config.json and model.safetensors.",
        ),
        checked.quiet(),
    ):
        config = AutoConfig.from_pretrained(str(source), trust_remote_code=False, local_files_only=not may_ask)
        # the class that the weights were saved from, as TRL picks it: of a model that also sees, that is not the text's
        named: Any = getattr(transformers, next(iter(config.architectures or ()), ""), None)
        is_model = inspect.isclass(named) and issubclass(named, PreTrainedModel)
        model_class = (
            named if is_model and named.can_generate() and not config.is_encoder_decoder else AutoModelForCausalLM
        )
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
    checked.require_same_tensors(str(source), report)
    settle(model)
    return model


def load_adapter(weights: WeightsRef, dtype: torch.dtype | None, start: Path | None = None) -> Any:
    """An adapter of any of PEFT's kinds on its base model, its own parameters trainable; None: the stored dtype.

    ``start`` is the adapter before the first update, where it is known.

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
    taken_out = _taken_out_of_base(weights.path, config, start)
    model = load_model(base, dtype, may_ask=weights.is_base_given)
    if num_connected() > 1:
        _require_plain_lora(weights.path, config, tensors, model)
    with checked.quiet():
        try:
            model = get_peft_model(model, config)
            call_as_module(model)
            if taken_out:
                set_peft_model_state_dict(model, taken_out)
                for layer in (m for m in model.modules() if isinstance(m, LoraLayer) and m.lora_A):
                    layer.get_base_layer().weight.data -= layer.get_delta_weight("default").detach()
            result = set_peft_model_state_dict(model, tensors)
        except KeyError as error:  # peft, over a module in modules_to_save
            raise InputError(
                f"{weights.path}: the adapter lacks the tensor {error.args[0]}.",
                hint="Save it again with save_pretrained().",
            ) from error
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            # PyTorch lists the tensors that do not fit below a headline
            reason = str(error).strip().splitlines()[:2][-1].strip()
            raise InputError(
                f"{weights.path}: the adapter does not fit the base model {base}: {reason}",
                hint="Point --model at the base model that it was trained on.",
            ) from error
    wrong = [*_never_read(model, set(result.missing_keys)), *result.unexpected_keys]
    if wrong:
        raise InputError(
            f"{weights.path}: the adapter does not fit the base model {base}: {wrong[0]} has no counterpart "
            f"({len(wrong)} such tensors).",
            hint="Point --model at the base model that it was trained on.",
            cause=checked.UNREADABLE,
        )
    return model


_UNREPEATABLE = ("pissa_niter", "corda", "lora_ga")
"""Initializations of LoRA that take its first product out of the base, and draw random numbers or look at data."""


def _taken_out_of_base(folder: Path, config: Any, start: Path | None) -> dict[str, torch.Tensor]:
    """The factors whose product such an initialization took out of the base, which it does not do again; else none."""
    if not str(getattr(config, "init_lora_weights", "")).startswith(_UNREPEATABLE):
        return {}
    factors = {} if start is None else _adapter_tensors(start)
    if all(torch.equal(factor, factor.bfloat16().to(factor)) for factor in factors.values()):  # or there are none
        raise InputError(
            f"{folder} started from {config.init_lora_weights}, which took the adapter's first product out of the "
            f"base, and that adapter is {'stored in bfloat16' if factors else 'not known'}.",
            hint=None if factors else "Give the adapter before the first update with --initial PATH.",
            cause="precision" if factors else "first_weights_missing",
        )
    config.init_lora_weights = True
    return factors


def _require_plain_lora(folder: Path, config: Any, tensors: Mapping[str, torch.Tensor], model: Any) -> None:
    """Refuse adapters that read or copy full weights of the base, where several processes hold parts of it."""
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
    return [aliases[0] for aliases in names.values() if missing.issuperset(aliases)]


def is_fresh(folder: Path) -> bool:
    """Whether switching an adapter off changes nothing yet: LoRA starts with A or B of every pair at zero.

    Magnitudes and fully saved modules count as a change, for their initial values are not in the folder. Biases of the
    base do not: they stay as they are when an adapter is switched off, also in TRL's reference.
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
    """The padding token of a model's configuration, which gets no embedding gradient; None without one.

    Raises:
        InputError: The folder has no configuration of a model.
    """
    with checked.loading_errors(f"{folder} has no readable config.json"), checked.quiet():
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    return getattr(config.get_text_config(), "pad_token_id", None)


def stored_dtype(weights: WeightsRef) -> FloatName:
    """The dtype that a model, or the base of an adapter, is stored in: the least precise of its tensors'.

    Raises:
        InputError: A file of its tensors cannot be read.
    """
    dtypes = tensor_dtypes(weights).values()
    return "bfloat16" if "BF16" in dtypes else "float16" if "F16" in dtypes else "float32"


def tensor_dtypes(weights: WeightsRef) -> dict[str, str]:
    """The dtypes of a model's tensors, or of those of an adapter's base, by name and as safetensors call them.

    Raises:
        InputError: A file of its tensors cannot be read.
    """
    folder = Path(weights.base or "") if weights.kind == "adapter" else weights.path
    dtypes: dict[str, str] = {}
    fetch_weights(folder)
    for file in sorted(folder.glob("*.safetensors")):
        with checked.open_safetensors(file) as tensors:
            dtypes |= {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
    return dtypes


def keep_unread(model: Any, weights: WeightsRef) -> None:
    """Put back the tensors of ``weights.kept_from`` that a resumed training did not read from its checkpoint.

    Raises:
        InputError: It read all of them, or a file cannot be read.
    """
    unread = {name for name, _ in model.named_parameters()} - tensor_dtypes(weights).keys()
    if weights.kept_from is None or not unread:
        raise InputError(f"{weights.path} has the names of the model.")
    first = load_model(weights.kept_from, model.dtype)
    with torch.no_grad():
        for name in unread:
            model.get_parameter(name).copy_(first.get_parameter(name))


def require_finite(model: nn.Module, source: str) -> None:
    """Refuse weights that are not numbers.

    Raises:
        InputError: A parameter holds NaN or infinity.
    """
    for name, parameter in model.named_parameters():
        values = local_tensor(parameter.detach())
        ends = torch.stack(values.aminmax()) if values.numel() else values  # either is NaN where one value is
        if not true_in_all_processes(bool(torch.isfinite(ends).all())):
            raise InputError(
                f"{source}: {name} holds values that are not finite.",
                hint="The run diverged before this checkpoint; use an earlier one.",
                cause=checked.UNREADABLE,
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
    checked.require_readable(folder)
    checked.read_adapter_config(folder)
    with checked.loading_errors(f"{folder} has no readable adapter_config.json"), checked.quiet():
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
                cause="model_unsupported",
            )
    config.inference_mode = False
    return config


def _adapter_tensors(folder: Path) -> dict[str, torch.Tensor]:
    path = folder / _ADAPTER
    fetch_weights(folder)
    if not path.is_file():
        _require_safetensors(folder)
        raise InputError(f"{folder} has no {_ADAPTER}.", hint="Save it again with save_pretrained().")
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a readable safetensors file: {error}", cause=checked.UNREADABLE) from error


# Weight matrices of several checkpoints, tensor by tensor, from safetensors alone: no model is built, no code runs.
#
# Of an adapter the product that it adds to its base is the matrix, s B A; nothing is merged, so what is compared
# between checkpoints is exact in the adapter's own precision.
_LORA_FACTOR = re.compile(r"^base_model\.model\.(.+)\.lora_[AB](?:\.[^.]+)?\.weight$")
_UNSUPPORTED = ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save")


class Checkpoint(Struct, frozen=True, kw_only=True):
    """One set of weights, its matrices read when they are asked for."""

    num_updates: int  # how many optimizer updates it has had
    matrices: dict[str, Callable[[], Array]]  # tensor -> reads its matrix, [O, I]
    factors: dict[str, Callable[[], tuple[Array, Array]]] = {}
    """Of an adapter: tensor -> reads A, [r, I], and B, [O, r]; the scale is in neither."""


def open_checkpoint(weights: WeightsRef) -> Checkpoint:
    """The two-dimensional tensors of a model folder or LoRA adapter, by the model's own names.

    Raises:
        InputError: A file of tensors cannot be read, or an adapter is not one product of two factors.
    """
    folder = weights.path
    if weights.kind != "adapter":
        return Checkpoint(num_updates=weights.num_updates, matrices=_matrices(folder))
    config = checked.read_adapter_config(folder)
    used = next((name for name in _UNSUPPORTED if config.get(name)), None)
    if config.get("peft_type") != "LORA" or used is not None:
        raise InputError(
            f"{folder}: this adapter is not one product of two factors ({used or config.get('peft_type')}).",
            hint="Merge the adapters into their base model and give the merged folders.",
        )
    rank, alpha = float(config["r"]), float(config["lora_alpha"])
    scale = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
    modules: dict[str, dict[str, Callable[[], Array]]] = {}
    for name, factor in _matrices(folder).items():
        match = _LORA_FACTOR.match(name)
        if match is None:
            raise InputError(f"{folder}: {name} is no factor of a LoRA adapter.", hint="Merge it into its base model.")
        modules.setdefault(match[1], {})["A" if ".lora_A" in name else "B"] = factor

    def read(factors: dict[str, Callable[[], Array]]) -> tuple[Array, Array]:
        return factors["A"](), factors["B"]()

    def product(factors: dict[str, Callable[[], Array]]) -> Array:
        a, b = read(factors)
        matrix = scale * (b @ a)
        return np.ascontiguousarray(matrix.T) if config.get("fan_in_fan_out") else matrix

    return Checkpoint(
        num_updates=weights.num_updates,
        matrices={f"{module}.weight": partial(product, factors) for module, factors in modules.items()},
        factors={f"{module}.weight": partial(read, factors) for module, factors in modules.items()},
    )


def base_matrices(weights: WeightsRef) -> dict[str, Callable[[], Array]]:
    """Readers of the matrices that updates are measured against: those of the model itself, or of an adapter's base.

    None where an adapter's base model is not on this disk.
    """
    folder = weights.path if weights.kind == "full" else Path(weights.base or "")
    return _matrices(folder) if (folder / "config.json").is_file() else {}


def changed_in_bfloat16(before: Array, after: Array) -> float:
    """Share of entries whose bfloat16 rounding differs between two matrices, [O, I] each."""
    first, second = (torch.from_numpy(matrix).to(torch.bfloat16) for matrix in (before, after))
    return float((first != second).double().mean())


def _matrices(folder: Path) -> dict[str, Callable[[], Array]]:
    """Readers of the two-dimensional tensors of a folder, by their names."""
    readers: dict[str, Callable[[], Array]] = {}
    fetch_weights(folder)
    for file in sorted(folder.glob("*.safetensors")):
        with checked.open_safetensors(file) as tensors:
            names = [name for name in tensors.keys() if len(tensors.get_slice(name).get_shape()) == 2]  # noqa: SIM118
        readers |= {name: partial(_matrix, file, name) for name in names}
    return readers


def _matrix(file: Path, name: str) -> Array:
    with checked.open_safetensors(file) as tensors:
        return np.asarray(tensors.get_tensor(name).double().numpy(), dtype=np.float64)


def common_tensors(checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Names of the tensors that every checkpoint holds, in the order of the first."""
    return [name for name in checkpoints[0].matrices if all(name in other.matrices for other in checkpoints)]
