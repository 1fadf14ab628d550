"""A model's folder before it is loaded: regular files, bounded JSON, and a configuration that its weights bear out.

A configuration decides how much memory and time a loader takes. So what it declares is compared with the headers of the
weights first: a model of a billion layers is refused in a moment instead of being built for hours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.gradients.model.checked.loading import UNREADABLE
from gradscope.outside.limits import require_regular
from gradscope.outside.plain_json import parse_json, read_json
from gradscope.outside.rules import FieldRule, is_finite, require_fields
from gradscope.rollouts.checkpoint_folders import is_whole

_AGAIN = "Copy the file again."
_FIT = "The folder's config.json and its weights are not from the same model."
_BUFFERS = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias", "position_ids")
"""Ends of names of buffers that older checkpoints hold and that are computed, not read."""
_SHARE = FieldRule("a number from 0 to 1", lambda value: is_finite(value) and 0 <= value <= 1).or_null()


def require_readable(folder: Path) -> None:
    """Refuse a folder with anything in it that a loader should not open.

    Args:
        folder: A folder of a model, an adapter or a tokenizer.

    Raises:
        InputError: A pipe, a socket or a device lies in it, or a file of JSON is none, too large or too deep.
    """
    for file in sorted(folder.iterdir()):
        require_regular(file)
        if file.suffix == ".json" and file.is_file():
            _document(file)


def read_configuration(file: Path) -> dict[str, Any]:
    """The fields of a configuration.

    Args:
        file: A file of JSON in the folder of a model or an adapter.

    Returns:
        Field -> value.

    Raises:
        InputError: It cannot be read, or is no object.
    """
    document = _document(file)
    if not isinstance(document, dict):
        raise InputError(f"{file} is not a JSON object.", hint=_AGAIN, cause=UNREADABLE)
    return document


def _document(file: Path) -> dict[str, Any] | list[Any]:
    try:
        document = read_json(file)
    except OSError as error:
        raise InputError(
            f"{file.parent} has no readable {file.name}: {error.strerror}.", hint=_AGAIN, cause=UNREADABLE
        ) from error
    except ValueError as error:
        raise InputError(f"{file} is not JSON: {error}.", hint=_AGAIN, cause=UNREADABLE) from error
    if not isinstance(document, (dict, list)):
        raise InputError(f"{file} is not a JSON object.", hint=_AGAIN, cause=UNREADABLE)
    return document


def require_possible(folder: Path) -> None:
    """Refuse a configuration that its own weights cannot be of.

    Args:
        folder: A model's folder with ``config.json`` and ``*.safetensors``.

    Raises:
        InputError: It is no object, it is of a quantized model, a dropout of it is no share, or it declares more layers
            or a larger embedding than the weights have numbers for.
    """
    file = folder / "config.json"
    if not file.is_file():
        return
    config = read_configuration(file)
    quantized = config.get("quantization_config")
    if quantized is not None:
        method = quantized.get("quant_method") if isinstance(quantized, Mapping) else None
        raise InputError(
            f"{folder} is quantized{f' ({method})' if isinstance(method, str) else ''}: gradients are those of weights "
            "that are trained, and these are rounded.",
            hint="Name the model before it was quantized.",
            cause="model_unsupported",
        )
    shapes = [shape for weights in sorted(folder.glob("*.safetensors")) for shape in _shapes(weights)]
    numbers = sum(map(math.prod, shapes))
    for part in (config, *(config[name] for name in ("text_config",) if isinstance(config.get(name), Mapping))):
        dropped = {name: _SHARE for name in part if name.endswith(("dropout", "pdrop"))}
        require_fields(part, dropped, file, hint=_AGAIN, cause=UNREADABLE)
        layers, rows, width = (part.get(name) for name in ("num_hidden_layers", "vocab_size", "hidden_size"))
        if type(layers) is int and layers > len(shapes):
            raise InputError(f"{file} declares {layers:,} layers, and there are {len(shapes)} tensors.", hint=_FIT)
        if type(rows) is int and type(width) is int and rows * width > numbers:
            raise InputError(
                f"{file} declares an embedding of {rows:,} by {width:,}, and the weights are {numbers:,} numbers.",
                hint=_FIT,
                cause=UNREADABLE,
            )


def _shapes(weights: Path) -> list[list[int]]:
    """The shapes of the tensors in a file of safetensors, by its header alone."""
    if not is_whole(weights):
        raise InputError(f"{weights} is cut off.", hint="Copy the checkpoint again.", cause=UNREADABLE)
    with weights.open("rb") as stream:
        header = parse_json(stream.read(int.from_bytes(stream.read(8), "little")))
    return [_shape(entry) for name, entry in header.items() if name != "__metadata__"]


def _shape(entry: Mapping[str, Any]) -> list[int]:
    sizes = entry.get("shape")
    return [size for size in sizes if type(size) is int] if isinstance(sizes, list) else []


def require_same_tensors(source: str, report: Mapping[str, Any]) -> None:
    """Refuse weights that are not those of their configuration: what a loader fills up or leaves out by itself.

    Args:
        source: The folder, for the message.
        report: What transformers tells of a loading.

    Raises:
        InputError: A tensor has another shape, is missing, or is of no part of the model.
    """
    for name, actual, wanted in sorted(report["mismatched_keys"]):
        raise InputError(
            f"{source}: {name} has the shape {tuple(actual)} and the model wants {tuple(wanted)}.",
            hint=_FIT,
            cause=UNREADABLE,
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise InputError(f"{source}: {_named(missing)} missing.", hint=_FIT, cause=UNREADABLE)
    left = sorted(name for name in report["unexpected_keys"] if not name.endswith(_BUFFERS))
    if left:
        raise InputError(
            f"{source}: {_named(left)} of no part of the model in config.json.", hint=_FIT, cause=UNREADABLE
        )


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
    return f"the tensor {names[0]}{more}"
