"""What a verl run leaves beside its rollouts: Hydra's copy of the configuration, checkpoints and metrics.

The logger "file" writes the metrics, a line a step: ``{"step": N, "data": {...}}``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np

from gradscope.errors import InputError
from gradscope.rollouts.groups import RolloutGroup, reward_table
from gradscope.rollouts.readers.parsing.cells import logged_numbers, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.records import peek
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.tables import read_jsonl
from gradscope.rollouts.readers.run_files import CheckpointLayout, in_precision, saved_weights, trainer_settings
from gradscope.rollouts.run import TrainerSettings
from gradscope.say import counted

SWITCH_ON = (
    'No file of verl\'s metrics lies in or beside the folder: add "file" to trainer.logger and put it there '
    "(VERL_FILE_LOGGER_PATH)."
)
COMMON_NAMES = {"actor/grad_norm": "grad_norm", "critic/score/mean": "reward"}
"""verl's names of what every trainer logs."""
_CLOSE = 1e-4  # means of one batch differ by less: verl adds up in float32


def verl_metrics(
    folder: Path, groups: Sequence[RolloutGroup], experiment: str | None, quarantine: QuarantineLog, skip: set[Path]
) -> tuple[Path | None, dict[int, dict[str, float]], list[str]]:
    """The metrics of some rollouts: of several experiments' the ones whose steps and mean rewards are theirs.

    Args:
        folder: The rollouts' own; its files count before those of the folder above.
        experiment: The name of the file that was chosen, without its ending; None: none was.
        skip: Files that are known to hold none.

    Returns:
        The file, None where there is none; step -> name -> number; sentences where there was something to choose.

    Raises:
        InputError: There are several files, and none, or not one alone, has these rewards; or none has that name.
    """
    files = next((candidates for where in (folder, folder.parent) if (candidates := _metrics_files(where, skip))), [])
    if not files and experiment is None:
        return None, {}, []
    chosen = [file for file in files if experiment in (None, file.name.split(".")[0])]
    means = _mean_rewards(groups) if experiment is None else {}
    if len(chosen) > 1:
        chosen = [file for file in files if _agree(read_verl_metrics(file, QuarantineLog()), means)]
    if len(chosen) != 1:
        names = ", ".join(str(file) for file in files) or "none"
        have = f"{len(chosen) or 'none'} of them have the rewards of these rollouts"
        which = "none is called so" if experiment else have
        raise InputError(
            f"{folder} has metrics of {len(files)} experiments ({names}), and {which}.",
            hint="Name the one of these rollouts by its file: --metric-run NAME; or move the others away.",
        )
    (file,) = chosen
    metrics, sentences = read_verl_metrics(file, quarantine), list[str]()
    pairs = [pair for pair in _mean_pairs(metrics, means) if math.isfinite(pair[0])]
    if len(files) > 1 and experiment is None:
        sentences.append(
            f"Of {len(files)} files of metrics {file.name} is that of these rollouts: its mean rewards are theirs."
        )
    elif pairs and not any(starmap(_is_close, pairs)):
        sentences.append(
            f"At none of {counted(len(pairs), 'step')} is the mean reward in {file.name} that of the rollouts: it may "
            "be of another experiment."
        )
    return file, metrics, sentences


def _metrics_files(folder: Path, skip: set[Path]) -> list[Path]:
    files = (file for file in sorted(folder.glob("*.jsonl")) if file not in skip and file.is_file())
    return [file for file in files if are_metrics(peek(file, num_rows=1))]


def _mean_rewards(groups: Sequence[RolloutGroup]) -> dict[int, float]:
    """The mean reward of each step, of the rollouts that have one."""
    table = reward_table(groups)
    steps, of_group = np.unique(table.step, return_inverse=True)
    is_known = ~np.isnan(table.reward)
    of_rollout = np.repeat(of_group, table.size)[is_known]
    sums = np.bincount(of_rollout, weights=table.reward[is_known], minlength=len(steps))
    with np.errstate(invalid="ignore"):
        return dict(zip(steps.tolist(), (sums / np.bincount(of_rollout, minlength=len(steps))).tolist(), strict=True))


def _agree(metrics: Mapping[int, Mapping[str, float]], means: Mapping[int, float]) -> bool:
    """Whether a log has every step of the rollouts, with their mean reward wherever it has one."""
    pairs = _mean_pairs(metrics, means)
    return means.keys() <= metrics.keys() and bool(pairs) and all(starmap(_is_close, pairs))


def _mean_pairs(metrics: Mapping[int, Mapping[str, float]], means: Mapping[int, float]) -> list[tuple[float, float]]:
    """The logged and the own mean reward of each step that has both."""
    return [(metrics[step]["reward"], mean) for step, mean in means.items() if "reward" in metrics.get(step, ())]


def _is_close(logged: float, mean: float) -> bool:
    return math.isclose(logged, mean, abs_tol=_CLOSE)


def are_metrics(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the first of a file's readable rows has a step and an object ``data``, and nothing else."""
    first = rows[0] if rows else {}
    return first.keys() == {"step", "data"} and isinstance(first["data"], Mapping)


def read_verl_metrics(file: Path, quarantine: QuarantineLog) -> dict[int, dict[str, float]]:
    """Step -> numbers, finite or not, under verl's names but for the common ones; of a repeated step the later."""
    metrics: dict[int, dict[str, float]] = {}
    lines = QuarantineLog()
    for location, row in read_jsonl(file, lines):
        step = whole_number(row.get("step"))
        if step is None or not isinstance(row.get("data"), Mapping):
            lines.add("it has no step or no data", location)
            continue
        numbers = logged_numbers(row["data"])
        metrics[step] = {COMMON_NAMES.get(name, name): number for name, number in numbers.items()}
    quarantine.lose_metrics(lines)
    return metrics


_ENGINE = "actor_rollout_ref.actor.fsdp_config"
_SAVED_AT = "trainer.default_local_dir"


def verl_settings(request: ReadRequest, folder: Path, *, by_v1: bool) -> TrainerSettings:
    """The configuration of verl, and in TRL's names what every trainer has: the precision and the micro-batch."""
    files = (parent / name for parent in _parents(folder) for name in (".hydra/config.yaml", "config.yaml"))
    settings = trainer_settings(request, "verl", files)
    common: dict[str, Any] = {"verl_v1": True} if by_v1 else {}
    if not settings.at("actor_rollout_ref.actor.use_dynamic_bsz", False):
        common["per_device_train_batch_size"] = settings.at("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu")
    precision = settings.get(f"{_ENGINE}.mixed_precision.param_dtype", settings.get(f"{_ENGINE}.dtype", "bfloat16"))
    return in_precision(settings, precision, **common)


def verl_weights(request: ReadRequest, folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """:func:`saved_weights` beside or above the rollouts, or where the configuration says that they were saved."""
    named = values.get(_SAVED_AT)
    roots = [*_parents(folder), *((Path(named),) if isinstance(named, str) else ())]
    return saved_weights(request, _LAYOUT, (root for root in roots if root.is_dir()))


def _parents(folder: Path) -> Iterator[Path]:
    """The folder of rollouts, and the one above it."""
    absolute = folder.resolve()
    return iter((absolute, absolute.parent))


def _merge(folder: Path) -> str:
    backend = "megatron" if any(folder.glob("actor/**/dist_ckpt")) else "fsdp"
    actor = folder / "actor"
    return (
        f"Merge it: python -m verl.model_merger merge --backend {backend} --local_dir {actor} --target_dir "
        f"{actor / 'huggingface'}; with hf_model in actor.checkpoint.save_contents verl does it itself."
    )


_LAYOUT = CheckpointLayout(
    patterns=("global_step_*", "*/global_step_*", "checkpoints/*/*/global_step_*"),
    inside=("actor/lora_adapter", "actor/huggingface/lora_adapter", "actor/huggingface", "actor", "*", "actor/*"),
    merge=_merge,
)
