"""Errors of loaders over damaged or foreign files, as errors of the input."""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging as progress

from gradscope.errors import InputError
from gradscope.outside.limits import allowed, in_mib, raise_limits, require_regular
from gradscope.outside.plain_json import parse_json, read_json
from gradscope.outside.rules import FLAG, TEXT, TEXTS, FieldRule, integer_between, is_finite, require_fields
from gradscope.rollouts.fetch import fetch_weights
from gradscope.rollouts.run_folder import is_whole

_REFUSED = (
    *(OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, ImportError),
    *(RuntimeError, SafetensorError, StrictDataclassError),
)
"""Errors that transformers and PEFT raise over an impossible configuration."""
_FOREIGN = ("jinja2", "pyo3_runtime")
"""Modules whose errors are always about a template, or about a text that tokenizers rejects."""
UNREADABLE = "weights_unreadable"  # the cause of an error over weights that are there and cannot be used
_SHOWN = 300


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says so: CUDA's, Python's, or that of PyTorch's CPU allocator, which has no type."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


@contextmanager
def loading_errors(headline: str, hint: str | None = None) -> Iterator[None]:
    """Turn a loader's error into one that names the folder; running out of memory is passed on.

    The headline goes before the loader's own words: "<folder> does not load as a tokenizer".

    Raises:
        InputError: The loader gave up.
    """
    try:
        yield
    except BaseException as error:
        is_file_error = isinstance(error, _REFUSED) or type(error) is Exception  # tokenizers has no type of its own
        is_file_error |= type(error).__module__.partition(".")[0] in _FOREIGN
        if not is_file_error or is_out_of_memory(error):
            raise
        message = " ".join(str(error).split())[:_SHOWN] or type(error).__name__
        raise InputError(f"{headline}: {message}", hint=hint, cause=UNREADABLE) from error


@contextmanager
def open_safetensors(file: Path) -> Iterator[Any]:
    """A file of tensors, open.

    Raises:
        InputError: It is no safetensors, or a tensor that is asked of it is not as its header says.
    """
    hint = "Save it again with save_pretrained()."
    with loading_errors(f"{file} cannot be read", hint), safe_open(file, "pt") as tensors:
        yield tensors


@contextmanager
def quiet() -> Iterator[None]:
    """Silence prints and warnings of loaders: those that matter are checked in this module."""
    bars = progress.is_progress_bar_enabled()
    loggers = [logging.getLogger(name) for name in ("transformers", "peft")]
    levels = [logger.level for logger in loggers]
    try:
        progress.disable_progress_bar()
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            progress.enable_progress_bar()


# A model's folder before it is loaded: regular files, bounded JSON, and a configuration that its weights bear out.
#
# A configuration decides how much memory and time a loader takes. So what it declares is compared with the headers of
# the weights first: a model of a billion layers is refused in a moment instead of being built for hours.
# An adapter's configuration before PEFT believes it: types, sizes, and regular expressions that end.
#
# PEFT holds the names of all modules against the expressions in ``target_modules`` and its like. Python's matcher takes
# exponential time for some, such as ``(a*)*b``, and cannot be stopped. Names of modules need none of those, so an
# expression is read where it repeats no group and has few wildcards, with letters between them, and refused otherwise.
_COPY_HINT = "Copy the file again."
_FIT = "The folder's config.json and its weights are not from the same model."
_TRAINER_STATE = "trainer_state.json"  # which no loader opens
_MAX_CONFIGURATION = 4 << 20  # bytes: of a million labels transformers makes objects for a quarter of a minute
_BUFFERS = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias", "position_ids")
"""Ends of names of buffers that older checkpoints hold and that are computed, not read."""
_SHARE = FieldRule("a number from 0 to 1", lambda value: is_finite(value) and 0 <= value <= 1).or_null()


def require_readable(folder: Path) -> None:
    """Refuse a folder of a model, an adapter or a tokenizer with anything in it that a loader should not open.

    Raises:
        InputError: A pipe, a socket or a device lies in it, or a file of JSON is none, too large or too deep.
    """
    for file in sorted(folder.iterdir()):
        require_regular(file)
        if file.suffix == ".json" and file.is_file() and file.name != _TRAINER_STATE:
            _document(file)


def _read_configuration(file: Path) -> dict[str, Any]:
    """The fields of a configuration."""
    if file.is_file() and file.stat().st_size > allowed(_MAX_CONFIGURATION):
        message = f"{file} is larger than {in_mib(allowed(_MAX_CONFIGURATION))}."
        raise InputError(message, hint=raise_limits(file), cause=UNREADABLE)
    document = _document(file)
    if not isinstance(document, dict):
        raise InputError(f"{file} is not a JSON object.", hint=_COPY_HINT, cause=UNREADABLE)
    return document


def _document(file: Path) -> dict[str, Any] | list[Any]:
    try:
        document = read_json(file)
    except OSError as error:
        raise InputError(
            f"{file.parent} has no readable {file.name}: {error.strerror}.", hint=_COPY_HINT, cause=UNREADABLE
        ) from error
    except ValueError as error:
        raise InputError(f"{file} is not JSON: {error}.", hint=_COPY_HINT, cause=UNREADABLE) from error
    if not isinstance(document, (dict, list)):
        raise InputError(f"{file} is not a JSON object.", hint=_COPY_HINT, cause=UNREADABLE)
    return document


_INNER = ("intermediate_size", "moe_intermediate_size", "n_inner", "ffn_dim", "d_ff")
"""Names of the width between the two layers of a perceptron."""


def require_consistent_config(folder: Path) -> None:
    """Refuse a configuration that the weights next to it, ``*.safetensors``, cannot belong to.

    Raises:
        InputError: It is no object, it is of a quantized model, a dropout of it is no share, or it declares more layers
            than there are tensors, or a larger embedding, perceptron or attention than there are numbers.
    """
    file = folder / "config.json"
    if not file.is_file():
        return
    config = _read_configuration(file)
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
        require_fields(part, dropped, file, hint=_COPY_HINT, cause=UNREADABLE)
        layers, rows, width = (part.get(name) for name in ("num_hidden_layers", "vocab_size", "hidden_size"))
        if type(layers) is int and layers > len(shapes):
            raise InputError(f"{file} declares {layers:,} layers, and there are {len(shapes)} tensors.", hint=_FIT)
        inner = max((part[name] for name in _INNER if type(part.get(name)) is int), default=0)
        heads = [part.get(name) for name in ("num_attention_heads", "head_dim")]
        attended = math.prod(heads) if {type(size) for size in heads} == {int} else 0
        for part_name, size in (("an embedding", rows), ("a layer", inner), ("attention", attended)):
            if type(size) is int and type(width) is int and size * width > numbers:
                raise InputError(
                    f"{file} declares {part_name} of {size:,} by {width:,}, and the weights are {numbers:,} numbers.",
                    hint=_FIT,
                    cause=UNREADABLE,
                )


def _shapes(weights: Path) -> list[list[int]]:
    """The shapes of the tensors in a file of safetensors, by its header alone."""
    if not is_whole(weights):
        raise InputError(f"{weights} is cut off.", hint="Copy the checkpoint again.", cause=UNREADABLE)
    with weights.open("rb") as stream:
        header = parse_json(stream.read(int.from_bytes(stream.read(8), "little")))
    shapes = [entry.get("shape") for name, entry in header.items() if name != "__metadata__"]
    return [[size for size in shape if type(size) is int] if isinstance(shape, list) else [] for shape in shapes]


def require_same_tensors(source: str, report: Mapping[str, Any]) -> None:
    """Refuse weights that are not those of their configuration: what transformers says that it filled up or left out.

    Raises:
        InputError: A tensor has another shape, is missing, or is of no part of the model.
    """
    for name, actual, expected in sorted(report["mismatched_keys"]):
        raise InputError(
            f"{source}: {name} has the shape {tuple(actual)} and the model wants {tuple(expected)}.",
            hint=_FIT,
            cause=UNREADABLE,
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise InputError(f"{source}: {_named(missing)} missing.", hint=_FIT, cause=UNREADABLE)
    unexpected = sorted(name for name in report["unexpected_keys"] if not name.endswith(_BUFFERS))
    if unexpected:
        raise InputError(
            f"{source}: {_named(unexpected)} of no part of the model in config.json.", hint=_FIT, cause=UNREADABLE
        )


def _named(names: Sequence[str]) -> str:
    verb = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
    return f"the tensor {names[0]}{verb}"


_TOKENIZER_CONFIG = "tokenizer_config.json"
_ANY_TOKENIZER = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Names that transformers saves a tokenizer under that is of no model's own class."""


def load_tokenizer(folders: Sequence[Path]) -> Any:
    """The tokenizer in the first folder that has a complete one; None where no folder has one.

    It may know tokens that the model has no row for.

    Raises:
        InputError: There are tokenizers, and none loads.
    """
    failed: InputError | None = None
    fetch_weights(*folders)
    for folder in dict.fromkeys(folders):
        if not any((folder / name).is_file() for name in ("tokenizer.json", _TOKENIZER_CONFIG)):
            continue
        try:
            require_readable(folder)
            with loading_errors(f"{folder} does not load as a tokenizer"), quiet():
                return _tokenizer_class(folder).from_pretrained(str(folder), trust_remote_code=False)
        except InputError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return None


def _tokenizer_class(folder: Path) -> Any:
    """The class that a tokenizer was saved by; transformers would go by the model's kind."""
    try:
        named = read_json(folder / _TOKENIZER_CONFIG).get("tokenizer_class")
    except (OSError, ValueError, AttributeError):
        named = None
    return PreTrainedTokenizerFast if named in _ANY_TOKENIZER else AutoTokenizer


_LARGEST = 1e12
_MAX_WILDCARDS = 4
_MAX_LETTERS = 4096
_ATOM = r"(?:\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.)"
_PARTS = re.compile(
    r"(?P<look>\(\?<?[=!])|(?P<flags>\(\?[a-zA-Z-]+\))|(?P<open>\((?:\?(?:P<\w+>|[a-zA-Z-]*:))?)|(?P<or>\|)"
    rf"|(?P<atom>{_ATOM})(?P<repeat>[*+]|\{{[0-9]*,[0-9]*\}}|\{{[0-9]+\}})?(?P<after>[?+]?)",
    re.DOTALL,
)
_NARROW = re.compile(r"\\d|\[(?:0-9|\\d)\]|[A-Za-z0-9_]|\\\.")
"""Atoms that no long part of a module's name consists of: repeating them is cheap, and they match at few positions."""
_COUNT = integer_between(0, 1 << 16)
_SIZE = FieldRule("a number below 1e12", lambda value: is_finite(value) and abs(value) < _LARGEST)
_NAMES = FieldRule("text, a list of texts", lambda value: isinstance(value, str) or TEXTS.holds(value)).or_null()
_TABLE = FieldRule(
    "an object of numbers", lambda value: isinstance(value, Mapping) and all(map(_SIZE.holds, value.values()))
).or_null()
_RULES = {
    "peft_type": TEXT,
    "r": _COUNT.or_null(),
    "lora_alpha": _SIZE.or_null(),
    "lora_dropout": _SIZE,
    "target_modules": _NAMES,
    "exclude_modules": _NAMES,
    "layers_pattern": _NAMES,
    "modules_to_save": TEXTS.or_null(),
    "target_parameters": TEXTS.or_null(),
    "rank_pattern": _TABLE,
    "alpha_pattern": _TABLE,
    "fan_in_fan_out": FLAG.or_null(),
    "use_dora": FLAG.or_null(),
    "use_rslora": FLAG.or_null(),
}
"""Field -> what it is, where it is there."""
_LORA_RULES = {
    "r": integer_between(1, 1 << 16),
    "lora_alpha": _SIZE,
}  # other kinds have a rank of 0 or null, and no scale
_SAVE_AGAIN = "Save the adapter again with save_pretrained()."


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """The fields of an ``adapter_config.json``.

    Raises:
        InputError: It cannot be read, a field is not what it can be, or an expression may take without end.
    """
    file = folder / "adapter_config.json"
    config = _read_configuration(file)
    kind_rules = _LORA_RULES if config.get("peft_type") == "LORA" else {}
    require_fields(config, _RULES | kind_rules, file, hint=_SAVE_AGAIN, cause=UNREADABLE)
    for name, pattern in _patterns(config):
        why = _why_unbounded(pattern)
        if why is not None:
            raise InputError(
                f"{file}: the regular expression of {name} {why}: {pattern[:60]!r}.",
                hint="List the modules by their names instead.",
                cause=UNREADABLE,
            )
    return config


def _why_unbounded(pattern: str) -> str | None:
    r"""Why a regular expression over names of modules is refused; None where it is read.

    >>> _why_unbounded(r".*\.layers\.[0-9]+\.(q_proj|v_proj)")
    >>> _why_unbounded("(a*)*b")
    'repeats a group'
    """
    if len(pattern) > _MAX_LETTERS:
        return f"has more than {_MAX_LETTERS} letters"
    if re.search(r"\\[1-9]|\(\?P=|\(\?\(", pattern):
        return "refers to a group of its own"
    if re.search(r"\(\?[a-zA-Z]*x", pattern):
        return "has the flag x"
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is none ({error})"
    return _why_slow(re.sub(r"\(\?#[^)]*\)", "", pattern))


def _why_slow(pattern: str) -> str | None:
    """Why an expression may take long over a name of n letters: each wildcard that may start anywhere is a factor n."""
    # A wildcard behind another one starts at few positions where a letter is between them on every path: in
    # each alternative, not in an optional part, and not in what only looks ahead or back.
    wildcards, is_adjacent = 0, False
    groups: list[tuple[bool, bool, bool]] = [(False, False, False)]
    for part in _PARTS.finditer(pattern):
        is_narrow = _NARROW.fullmatch(part["atom"] or "") is not None
        if part["flags"]:
            continue
        if part["look"] or part["open"]:
            groups.append((is_adjacent, False, part["look"] is not None))
        elif part["or"]:
            before, ended_adjacent, looks = groups[-1]
            groups[-1] = (before, ended_adjacent or is_adjacent, looks)
            is_adjacent = before
        elif part["atom"] == ")":
            if part["repeat"]:
                return "repeats a group"
            before, ended_adjacent, looks = groups.pop()
            is_adjacent = before if looks else is_adjacent or ended_adjacent or (part["after"] == "?" and before)
        elif part["repeat"] is None:
            is_adjacent &= not is_narrow or part["after"] == "?"
        elif not is_narrow:
            if is_adjacent:
                return "has a wildcard beside a wildcard"
            wildcards, is_adjacent = wildcards + 1, True
    return f"has more than {_MAX_WILDCARDS} wildcards" if wildcards > _MAX_WILDCARDS else None


def _patterns(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The fields that PEFT reads as regular expressions."""
    for name in ("target_modules", "exclude_modules"):
        if isinstance(config.get(name), str):
            yield name, config[name]
    layers = config.get("layers_pattern") or ()
    yield from (("layers_pattern", pattern) for pattern in ([layers] if isinstance(layers, str) else layers))
    for name in ("rank_pattern", "alpha_pattern"):
        yield from ((name, pattern) for pattern in config.get(name) or ())
