"""Our own run folder: its layout, and the manifest that records how to repeat the run.

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
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from gradscope.errors import InputError
from gradscope.outside.limits import read_limited
from gradscope.outside.numerals import number_from
from gradscope.outside.plain_json import parse_json, read_json
from gradscope.results.envelope import to_jsonable
from gradscope.results.source import CUT_OFF
from gradscope.rollouts.checkpoint_folders import find_base, find_checkpoints
from gradscope.rollouts.run import WeightsRef
from gradscope.writing import atomic_write, naming, open_own

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

    def lose(self, error: InputError) -> None:
        """Set a file aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunManifest:
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
    document = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **dataclasses.asdict(manifest)}
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
    names = [field.name for field in dataclasses.fields(RunManifest) if field.name not in _OPTIONAL]
    absent = [name for name in names if name not in document]
    if absent:
        raise InputError(f"{path} lacks {', '.join(absent)}.", hint=_RESTORE)
    notes = document.get("notes", [])
    wrong = [name for name, kinds in _KINDS.items() if not isinstance(document[name], kinds)]
    if isinstance(document["seed"], bool):
        wrong.append("seed")
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        wrong.append("notes")
    if wrong:
        raise InputError(f"{path} has no {wrong[0]} of the right kind.", hint=_RESTORE)
    digest = document.get("advantage_digest")
    return RunManifest(
        **{name: document[name] for name in names},
        advantage_digest=digest if isinstance(digest, str) else None,
        notes=tuple(notes),
    )


_OPTIONAL = ("advantage_digest", "notes")  # fields that manifests of older versions lack
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("run_id", "created_at", "command", "model", "task", "advantage"), (str,)),
    **dict.fromkeys(("config", "versions", "trainer_arguments"), (dict,)),
    "seed": (int,),
    "commit": (str, type(None)),
}


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
    """The step and the numbers of a line."""
    step = row.get("step") if isinstance(row, dict) else None
    if type(step) is not int or not 0 <= step <= _LARGEST_STEP:
        raise ValueError("it has no whole number as its step")
    return step, {name: _metric(value) for name, value in row.items() if name != "step"}


def _metric(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("it has a metric that is no number")
    try:
        return number_from(value) if isinstance(value, str) else float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def find_weights(run: Path, damaged: dict[int, str] | None = None) -> tuple[WeightsRef, ...]:
    """All complete sets of weights of a run, by number of updates.

    A run that was recorded from a user's own script also has the checkpoints in its trainer's ``output_dir``, where
    it has none of its own. An adapter's base is ``RUN/base_model`` where that exists, else the one that the adapter's
    config names, else the manifest's model.
    """
    weights: dict[int, WeightsRef] = {}
    named = read_manifest(run).trainer_arguments.get("output_dir") if manifest_path(run).is_file() else None
    for folder in ((Path(named),) if isinstance(named, str) else ()) + (checkpoints_path(run),):
        if folder.is_dir():
            weights |= {
                ref.num_updates: ref
                for ref in find_checkpoints(folder, lambda adapter: _base_of(run, adapter), damaged)
            }
    return tuple(weights[num_updates] for num_updates in sorted(weights))


def _base_of(run: Path, adapter: Path) -> str | None:
    own = base_model_path(run)
    if (own / "config.json").is_file():
        return str(own)
    named = find_base(adapter, run)
    return named if named is not None or not manifest_path(run).is_file() else read_manifest(run).model
