"""What a NeMo-RL run leaves beside its training data: checkpoints with their configuration, and TensorBoard's files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gradscope.rollouts.event_file import event_files, scalars_in
from gradscope.rollouts.readers.beside.configuration import trainer_settings
from gradscope.rollouts.readers.beside.metric_lines import Metrics, metric_lines, renamed
from gradscope.rollouts.readers.beside.step_weights import CheckpointLayout, numbered_folders, saved_weights
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, with_set_aside
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.run import Run, TrainerSettings

_NAMES = {"train/grad_norm": "grad_norm", "train/reward": "reward"}
_CHECKPOINTS = ("step_*", "*/step_*", "results/*/step_*")
_FULL_PRECISION = ("float32", "fp32")
NO_NORMS = (
    "NeMo-RL's grad_norm goes to its logging backends alone: logger.tensorboard_enabled=true puts it beside the "
    "training data."
)
"""What to switch on where no metrics were found."""


def with_nemo_rls(request: ReadRequest, run: Run) -> Run:
    """The run with its arguments, metrics and weights."""
    roots = list(_roots(request.path))
    settings = _settings(request, roots)
    saved = saved_weights(request, _LAYOUT, roots)
    metrics = _metrics(roots, quarantine := QuarantineLog())
    missing = run.source.missing if metrics else (*run.source.missing, NO_NORMS)
    return replace(
        run,
        source=with_set_aside(replace(run.source, missing=missing), quarantine),
        metrics=metrics,
        settings=settings,
        weights=saved.weights,
        unmerged_weights=saved.unmerged,
        tokenizer=saved.tokenizer or run.tokenizer,
    )


def _roots(path: Path) -> Iterator[Path]:
    """The folder of the training data, and the two above it."""
    here = path.resolve()
    here = here if here.is_dir() else here.parent
    return iter((here, here.parent, here.parent.parent))


def _settings(request: ReadRequest, roots: list[Path]) -> TrainerSettings:
    checkpoints = (folder for root in roots for _, folder in numbered_folders(root, _CHECKPOINTS))
    settings = trainer_settings(request, "nemo-rl", (folder / "config.yaml" for folder in (*roots, *checkpoints)))
    reduced = str(settings.at("policy.precision", "bfloat16")) not in _FULL_PRECISION
    size = settings.at("policy.train_micro_batch_size")
    common = {"bf16": reduced, "casts_weights": reduced, "per_device_train_batch_size": size}
    return replace(settings, values={**settings.values, **common})


def _metrics(roots: list[Path], quarantine: QuarantineLog) -> Metrics:
    """From TensorBoard's files in the folder or beside it, else from JSON lines under the same names."""
    here, above, *_ = roots
    for root, files in (here, event_files(here)), (above, event_files(above, below=("", "tensorboard"))):
        found: dict[int, dict[str, float]] = {}
        for file in files:
            for step, scalars in scalars_in(file, quarantine.of_metrics(file)).items():
                found.setdefault(step, {}).update(renamed(scalars, _NAMES))
        found = found or metric_lines(sorted(root.glob("metrics.jsonl")), _NAMES, quarantine)
        if any("grad_norm" in metrics for metrics in found.values()):
            return found
    return {}


def _merge(folder: Path) -> str:
    weights = folder / "policy" / "weights"
    if any(weights.glob("iter_*")):
        script, given = "convert_megatron_to_hf.py", f"--megatron-ckpt-path {weights}/iter_0000000"
    else:
        script, given = "convert_dcp_to_hf.py", f"--dcp-ckpt-path {weights}"
    return (
        f"Convert it: python examples/converters/{script} --config {folder / 'config.yaml'} {given} "
        f"--hf-ckpt-path {folder / 'hf'}; with checkpointing.save_consolidated NeMo-RL writes such a folder itself."
    )


_LAYOUT = CheckpointLayout(
    patterns=_CHECKPOINTS,
    inside=("hf", "policy/hf", "policy/weights/model/consolidated", "policy/weights", "policy/weights/*", "*"),
    merge=_merge,
)
