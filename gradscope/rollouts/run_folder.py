"""Folders of runs: our own with its manifest, and complete sets of weights in those of any trainer.

::

    RUN/manifest.json                  RunManifest
    RUN/rollouts/step_00001.parquet    the rollouts of update 1 (gradscope.rollouts.store), with
                                       step_00001.parquet.sha256, which `sha256sum -c` reads;
                                       twenty small ones are joined as steps_00001-00020.parquet
    RUN/metrics.jsonl                  one line a step: {"step": N, <the trainer's metrics>}
    RUN/heldout/before.jsonl           k rows a prompt: prompt_id, prompt, answer, completion, reward, correct
    RUN/heldout/after.jsonl
    RUN/checkpoints/checkpoint-N/      weights after N updates
    RUN/base_model/                    an adapter's base, where it is part of the run

``checkpoint-0`` holds the weights before the first update. A checkpoint is a Hugging Face model folder or a PEFT
adapter folder; the trainer's own files for resuming lie in it too.

Only safetensors count: a pickle is never loaded. A file is complete if it is as long as its own header says, so a
checkpoint that was cut off while being written or copied is recognized without loading it.
"""

from __future__ import annotations

import filecmp
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct, ValidationError, convert
from msgspec.structs import asdict, fields, replace

from gradscope.errors import InputError
from gradscope.outside.limits import open_file, read_limited
from gradscope.outside.numerals import number_from
from gradscope.outside.plain_json import parse_json, read_json
from gradscope.results.envelope import to_jsonable
from gradscope.results.source import CUT_OFF
from gradscope.rollouts.listing import is_awaited
from gradscope.rollouts.run import WeightsRef
from gradscope.writing import atomic_write, naming, open_own

_CHECKPOINT = re.compile(r"checkpoint-([0-9]+)")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
_NOUNS = {"full": ("a whole model", "whole models"), "adapter": ("an adapter", "adapters")}
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
        is_hub_id = len(folder.parts) == 2 and all(re.fullmatch(r"\w[\w.-]*", part) for part in folder.parts)
        to_download = f"Name a folder; of a hub id: hf download {folder} --local-dir {folder.name}"
        hint = to_download if is_hub_id and not folder.parent.exists() else "Check the path."
        raise InputError(f"There is no folder {folder} of weights.", hint=hint)
    else:
        raise InputError(
            f"{folder} holds neither config.json nor adapter_config.json.",
            hint="Name a Hugging Face model folder or a PEFT adapter folder.",
        )
    for file in files:
        if is_awaited(file):
            continue
        if not file.is_file():
            pickled = next((f" and has {file.name}, a pickle, which stays shut" for file in folder.glob("*.bin")), "")
            raise InputError(f"{folder} lacks {file.name}{pickled}.", hint="Save the weights as safetensors.")
        if not is_whole(file):
            raise InputError(f"{file} is cut off.", hint="Copy the checkpoint again, or use another one.")
    return kind


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
        reason = f"{len(trained)} adapters of a checkpoint change, and which of them made the gradient is not known"
        if damaged is not None:
            damaged |= {weights.num_updates: reason for weights in refs}
        return ()
    return tuple(replace(weights, path=weights.path / folder) for weights in refs for folder in trained or ("",))


def _trained_adapters(checkpoints: Sequence[Path]) -> list[str]:
    """Folders, within checkpoints, of the adapters that change from the first to the last; "" for the checkpoint."""
    if len(checkpoints) < 2:
        return []
    first, last = checkpoints[0], checkpoints[-1]
    folders = (path.name for path in sorted(last.iterdir()) if path.is_dir() and path.name != REFERENCE_ADAPTER)
    files = {name: Path(name, "adapter_model.safetensors") for name in folders}
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
    refs: Iterable[WeightsRef], initial: Path | None, base_of: Callable[[Path], str | None], *, before_0: bool = False
) -> tuple[WeightsRef, ...]:
    """A run's weights by updates, those of ``initial`` for 0, or before 0; mixed models and adapters are refused."""
    if initial is None:
        return tuple(refs)
    num_updates = -1 if before_0 else 0
    later = tuple(weights for weights in refs if weights.num_updates > num_updates)
    nested = initial / later[-1].path.name if later else initial
    is_nested = (nested / "adapter_config.json").is_file()
    first = weights_at(nested if is_nested else initial, num_updates=num_updates, base_of=base_of)
    if later and later[-1].kind != first.kind:
        raise InputError(
            f"{initial} is {_NOUNS[first.kind][0]}, and the checkpoints of the run are {_NOUNS[later[-1].kind][1]}.",
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


def find_tokenizer(*folders: Path | str | None) -> Path | None:
    """The first of these folders, None and missing ones skipped, that holds a tokenizer; None where none does."""
    candidates = (Path(folder) for folder in folders if folder)
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


SCHEMA = "gradscope/run"
SCHEMA_VERSION = 1
TRL_ADVANTAGE = "trl"  # a manifest's ``advantage`` where it is TRL's own and ``scale_rewards`` says which
CUSTOM_ADVANTAGE = "custom"  # the same where a subclass of the trainer computes it, in a way we cannot know

_LARGEST_STEP = 1 << 53
_RESTORE = "Restore the file from where the run was made."


class SetAside(Protocol):
    """Receives the unusable rows and files of a run, as the quarantine log of a reader does."""

    def add(self, reason: str, location: str) -> None:
        """Set a row aside: why, in a few words, and its ``file:line``."""

    def add_unreadable(self, error: InputError) -> None:
        """Set a file aside."""


class RunManifest(Struct, frozen=True, kw_only=True):
    """Everything needed to repeat a run and to read its rollouts."""

    run_id: str  # a name that is unique among runs
    created_at: str  # when it started, ISO 8601 with time zone
    command: str  # the command line that started it, or a name for the call
    config: Mapping[str, Any]  # the resolved configuration of ``gradscope train``; ``--config`` reads it back
    seed: int  # the seed of everything random
    model: str  # the model's folder or hub id, as given
    task: str  # the task's name
    versions: Mapping[str, str]  # package -> version
    commit: str | None  # the commit of the code that ran, where it ran from a checkout
    trainer_arguments: Mapping[str, Any]  # the trainer's arguments, in TRL's names
    advantage: str
    """The advantage formulation that the optimizer saw; for somebody's own script also ``trl`` or ``custom``."""
    advantage_digest: str | None = None
    """SHA-256 of the file that a user's own formulation is from; None for one of the package."""
    notes: tuple[str, ...] = ()
    """Sentences for readers of the run: where log-probabilities come from, which rows are left out."""


def manifest_path(run: Path) -> Path:
    """``RUN/manifest.json``."""
    return run / "manifest.json"


def rollouts_path(run: Path) -> Path:
    """``RUN/rollouts``."""
    return run / "rollouts"


def step_path(run: Path, step: int) -> Path:
    """``RUN/rollouts/step_00001.parquet`` for step 1."""
    return rollouts_path(run) / f"step_{step:05d}.parquet"


def checkpoints_path(run: Path) -> Path:
    """``RUN/checkpoints``."""
    return run / "checkpoints"


def checkpoint_path(run: Path, num_updates: int) -> Path:
    """``RUN/checkpoints/checkpoint-N``, the weights after N updates; 0 is before the first."""
    return checkpoints_path(run) / f"checkpoint-{num_updates}"


def base_model_path(run: Path) -> Path:
    """``RUN/base_model``, the base of a run's adapters, which need not exist."""
    return run / "base_model"


def metrics_path(run: Path) -> Path:
    """``RUN/metrics.jsonl``, the trainer's metrics, one line a step."""
    return run / "metrics.jsonl"


def heldout_path(run: Path, when: Literal["before", "after"]) -> Path:
    """``RUN/heldout/<when>.jsonl``, samples of the held-out prompts before or after training."""
    return run / "heldout" / f"{when}.jsonl"


def write_manifest(run: Path, manifest: RunManifest, *, force: bool = False) -> None:
    """Write a run's manifest, whose mappings are plain JSON; ``OutputExistsError`` where one is, unless ``force``."""
    document = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **asdict(manifest)}
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    atomic_write(manifest_path(run), text, force=force)


def read_manifest(run: Path) -> RunManifest:
    """A run's manifest without unknown keys; an InputError where it is missing, damaged or of another version."""
    path = manifest_path(run)
    try:
        document = read_json(path)
    except OSError as error:
        hint = "Name a folder that `gradscope train` wrote."
        raise InputError(f"{run} has no readable manifest.json.", hint=hint) from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}.", hint=_RESTORE) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{path} is not a gradscope manifest.", hint=f'Its "schema" should read "{SCHEMA}".')
    version = document.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {document.get('schema_version')}; this gradscope reads {SCHEMA_VERSION}.",
            hint="Use the gradscope that wrote the run.",
        )
    absent = [field.name for field in fields(RunManifest) if field.required and field.name not in document]
    if absent:
        raise InputError(f"{path} lacks {', '.join(absent)}.", hint=_RESTORE)
    try:
        return convert(document, RunManifest)
    except ValidationError as error:
        raise InputError(f"{path} has a value of the wrong kind: {error}.", hint=_RESTORE) from error


def append_metrics(run: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Add the line of a step to the metrics, replacing a last line that was cut off."""
    path = metrics_path(run)
    with naming(path), open(path, "a+b", opener=open_own) as stream:
        stream.seek(0)
        stream.truncate(stream.read().rfind(b"\n") + 1)
        # a value that is not finite is written as text, which `read_metrics` reads back
        line = json.dumps({"step": step, **to_jsonable(dict(metrics))}, allow_nan=False) + "\n"
        stream.write(line.encode())


def read_metrics(run: Path, quarantine: SetAside | None = None) -> dict[int, dict[str, float]]:
    """Step -> name -> value; the last line of a step repeated after a resume counts; bad lines are set aside."""
    path = metrics_path(run)
    metrics: dict[int, dict[str, float]] = {}
    lines = read_limited(path).split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                step, values = _metrics_in(parse_json(line))
                metrics[step] = values
        except ValueError as error:
            if quarantine is not None:
                quarantine.add(CUT_OFF if number == len(lines) else str(error), f"{path}:{number}")
    return metrics


def step_of(line: bytes) -> int | None:
    """The step of a line of metrics; None where the line is damaged."""
    try:
        return _metrics_in(parse_json(line))[0]
    except ValueError:
        return None


def _metrics_in(row: Any) -> tuple[int, dict[str, float]]:
    step = row.get("step") if isinstance(row, dict) else None
    if type(step) is not int or not 0 <= step <= _LARGEST_STEP:
        raise ValueError("it has no whole number as its step")
    values = {name: value for name, value in row.items() if name != "step"}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError("it has a metric that is no number")
        try:
            values[name] = number_from(value) if isinstance(value, str) else float(value)
        except OverflowError:
            values[name] = math.inf if value > 0 else -math.inf  # type: ignore[operator]
    return step, values


def find_weights(run: Path, damaged: dict[int, str] | None = None) -> tuple[WeightsRef, ...]:
    """All complete sets of weights of a run, by number of updates.

    A run that was recorded from a user's own script also has the checkpoints in its trainer's ``output_dir``, where
    it has none of its own. An adapter's base is ``RUN/base_model`` where that exists, else the one that the adapter's
    config names, else the manifest's model.
    """

    def base_of(adapter: Path) -> str | None:
        if (base_model_path(run) / "config.json").is_file():
            return str(base_model_path(run))
        return find_base(adapter, run) or (read_manifest(run).model if manifest_path(run).is_file() else None)

    weights: dict[int, WeightsRef] = {}
    named = read_manifest(run).trainer_arguments.get("output_dir") if manifest_path(run).is_file() else None
    for folder in ((Path(named),) if isinstance(named, str) else ()) + (checkpoints_path(run),):
        if folder.is_dir():
            weights |= {ref.num_updates: ref for ref in find_checkpoints(folder, base_of, damaged)}
    return tuple(weights[num_updates] for num_updates in sorted(weights))
