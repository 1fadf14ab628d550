"""Finds folders with a complete set of weights, and the base model of an adapter.

Only safetensors count: a pickle is never loaded. A file is complete if it is as long as its own header says, so a
checkpoint that was cut off while being written or copied is recognized without loading it.
"""

from __future__ import annotations

import filecmp
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from gradscope.errors import InputError
from gradscope.outside.limits import open_file
from gradscope.outside.plain_json import parse_json, read_json
from gradscope.rollouts.run import WeightsRef
from gradscope.rollouts.sources.listing import is_awaited

_CHECKPOINT = re.compile(r"checkpoint-([0-9]+)")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
_KINDS = {"full": ("a whole model", "whole models"), "adapter": ("an adapter", "adapters")}
_HINTS = {
    "adapter": "Name the base model with --model {initial}, and with --initial the adapter before the first update: "
    "trainer.save_model(FOLDER) before trainer.train().",
    "full": "Name with --initial the model before the first update: trainer.save_model(FOLDER) before trainer.train().",
}
REFERENCE_ADAPTER = "ref"
"""The folder within a checkpoint for TRL's copy of the adapter that training started from."""
_MAX_HEADER = 100_000_000  # longest header that the safetensors format allows, in bytes


def weights_kind(folder: Path) -> Literal["full", "adapter"]:
    """``adapter`` or ``full``; an InputError where a folder is missing, holds neither, or has cut-off weights."""
    kind: Literal["full", "adapter"]
    files: tuple[Path, ...]
    if (folder / "adapter_config.json").is_file():
        kind, files = "adapter", (folder / "adapter_model.safetensors",)
    elif (folder / "config.json").is_file():
        kind, files = "full", _model_files(folder)
    elif not folder.is_dir():
        raise InputError(f"There is no folder {folder} of weights.", hint=_where(folder))
    else:
        raise InputError(
            f"{folder} holds neither config.json nor adapter_config.json.",
            hint="Name a Hugging Face model folder or a PEFT adapter folder.",
        )
    for file in files:
        if is_awaited(file):
            continue
        if not file.is_file():
            raise InputError(f"{folder} lacks {file.name}.", hint="Save the weights as safetensors; pickles stay shut.")
        if not is_whole(file):
            raise InputError(f"{file} is cut off.", hint="Copy the checkpoint again, or use another one.")
    return kind


def _where(folder: Path) -> str:
    """The hint for a folder that does not exist; a name like a hub id may be downloaded."""
    parts = folder.parts
    if len(parts) != 2 or folder.parent.exists() or not all(re.fullmatch(r"\w[\w.-]*", part) for part in parts):
        return "Check the path."
    return f"Name a folder; of a hub id: hf download {folder} --local-dir {folder.name}"


def is_whole(file: Path) -> bool:
    """Whether a file is as long as its safetensors header says, so neither cut off nor of another format."""
    with open_file(file) as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= _MAX_HEADER:
            return False
        try:
            header = parse_json(stream.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            return file.stat().st_size == 8 + length + max(ends, default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return False


def find_checkpoints(
    run: Path, base_of: Callable[[Path], str | None], damaged: dict[int, str] | None = None
) -> tuple[WeightsRef, ...]:
    """The complete ``checkpoint-N`` folders of a run, by number of updates; for ``base_of`` see :func:`weights_at`.

    Args:
        damaged: Receives the reason why a folder is unusable, by number of updates.

    Returns:
        The weights of each. PEFT saves an adapter that is not named ``default`` in a folder within the checkpoint, as
        it does those that were not trained; of several adapters the one that changes counts.
    """
    numbered = ((_CHECKPOINT.fullmatch(path.name), path) for path in run.iterdir() if path.is_dir())
    refs: list[WeightsRef] = []
    for num_updates, folder in sorted((int(match[1]), path) for match, path in numbered if match):
        try:
            refs.append(weights_at(folder, num_updates=num_updates, base_of=base_of))
        except InputError as error:  # half-written, or saved as pickles
            if damaged is not None:
                damaged[num_updates] = error.message.rstrip(".")
    trained = _trained_adapters([weights.path for weights in refs if weights.kind == "adapter"])
    if len(trained) > 1:
        which = f"{len(trained)} adapters of a checkpoint change, and which of them made the gradient is not known"
        if damaged is not None:
            damaged |= {weights.num_updates: which for weights in refs}
        return ()
    return tuple(replace(weights, path=weights.path / folder) for weights in refs for folder in trained or ("",))


def _trained_adapters(checkpoints: Sequence[Path]) -> list[str]:
    """Folders, within checkpoints, of the adapters that change from the first to the last; "" for the checkpoint."""
    if len(checkpoints) < 2:
        return []
    first, last = checkpoints[0], checkpoints[-1]
    within = (path.name for path in sorted(last.iterdir()) if path.is_dir() and path.name != REFERENCE_ADAPTER)
    files = {name: Path(name, "adapter_model.safetensors") for name in within}
    named = {name: file for name, file in files.items() if (first / file).is_file() and (last / file).is_file()}
    if not named:
        return []
    named[""] = Path("adapter_model.safetensors")
    return [name for name, file in named.items() if not filecmp.cmp(first / file, last / file, shallow=False)]


def weights_at(folder: Path, *, num_updates: int, base_of: Callable[[Path], str | None]) -> WeightsRef:
    """The weights in a folder, after ``num_updates``; ``base_of`` returns the base of an adapter."""
    kind = weights_kind(folder)
    return WeightsRef(
        num_updates=num_updates, path=folder, kind=kind, base=base_of(folder) if kind == "adapter" else None
    )


def with_initial(
    refs: Iterable[WeightsRef], initial: Path | None, base_of: Callable[[Path], str | None]
) -> tuple[WeightsRef, ...]:
    """A run's weights by updates, with those of ``initial`` for 0; mixed models and adapters are refused."""
    if initial is None:
        return tuple(refs)
    later = tuple(weights for weights in refs if weights.num_updates > 0)
    same_adapter = initial / later[-1].path.name if later else initial
    of_several = (same_adapter / "adapter_config.json").is_file()
    first = weights_at(same_adapter if of_several else initial, num_updates=0, base_of=base_of)
    if later and later[-1].kind != first.kind:
        raise InputError(
            f"{initial} is {_KINDS[first.kind][0]}, and the checkpoints of the run are {_KINDS[later[-1].kind][1]}.",
            hint=_HINTS[later[-1].kind].format(initial=initial),
        )
    return (first, *later)


def find_base(adapter: Path, run: Path) -> str | None:
    """The base model that an adapter's configuration names; None where it names none.

    An existing folder where there is one, for a run may have moved: a relative name may start at the run, at the
    adapter or at the working folder. Else the name as written, perhaps a hub id.
    """
    try:
        name = read_json(adapter / "adapter_config.json")["base_model_name_or_path"]
    except (InputError, OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(name, str) or not name:
        return None
    written = Path(name)
    candidates = (written,) if written.is_absolute() else (adapter / written, run / written, written)
    existing = next((folder for folder in candidates if (folder / "config.json").is_file()), None)
    return name if existing is None else str(existing.resolve())


def find_tokenizer(*folders: Path | None) -> Path | None:
    """The first of these folders, None and missing ones skipped, that holds a tokenizer; None where none does."""
    candidates = (folder for folder in folders if folder is not None)
    return next((f for f in candidates if any((f / name).is_file() for name in _TOKENIZER_FILES)), None)


def _model_files(folder: Path) -> tuple[Path, ...]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return (folder / "model.safetensors",)
    try:
        shards = sorted(set(read_json(index)["weight_map"].values()))
        if any(Path(shard).name != shard for shard in shards):
            raise ValueError("a shard is no file of the folder")
        return tuple(folder / shard for shard in shards)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index} is not a safetensors index.", hint="Copy the checkpoint again.") from error
