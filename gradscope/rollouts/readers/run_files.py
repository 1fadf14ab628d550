"""What a trainer wrote next to its log: its configuration, which ``--run-config`` overrides, metrics and weights."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, starmap
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.reason import Reason
from gradscope.rollouts.event_file import event_files, scalars_in
from gradscope.rollouts.groups import RolloutGroup, reward_table
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers import column_roles as roles
from gradscope.rollouts.readers.metrics_alone.log import holds_metrics, logs_with, read_metrics_log
from gradscope.rollouts.readers.metrics_alone.naming import Naming, naming_of
from gradscope.rollouts.readers.parsing.cells import logged_number, logged_numbers, step_number, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, with_set_aside
from gradscope.rollouts.readers.parsing.records import ReadRequest, peek
from gradscope.rollouts.readers.parsing.settings import flattened, read_document, read_trainer_settings
from gradscope.rollouts.readers.parsing.tables import expand, read_jsonl, read_rows, stem_of, stem_with_step
from gradscope.rollouts.run import Run, StepMetrics, TrainerSettings, WeightsRef
from gradscope.rollouts.run_folder import find_base, find_tokenizer, weights_at, with_initial
from gradscope.say import counted


def trainer_settings(request: ReadRequest, trainer: str, files: Iterable[Path]) -> TrainerSettings:
    """Path -> value of the first readable configuration and of ``--run-config``, and the trainer's name."""
    overrides = read_trainer_settings(request.run_config)
    config = next(filter(None, map(readable, files)), None)
    origins = filter(None, (None if config is None else str(config[0]), overrides.origin))
    values = {} if config is None else flattened(config[1])
    return TrainerSettings(
        values={**values, **flattened(overrides.values), "trainer": trainer}, origin=" and ".join(origins) or None
    )


def readable(file: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """A file and the configuration in it; None where it is missing or holds none."""
    if not file.is_file():
        return None
    try:
        document = read_document(file)
    except (OSError, ValueError):
        return None
    return (file, document) if isinstance(document, Mapping) else None


def in_precision(settings: TrainerSettings, precision: Any, **common: Any) -> TrainerSettings:
    """The settings with what every trainer has in TRL's names: whether it computes in bfloat16, and others."""
    is_reduced = str(precision) not in _FULL_PRECISION
    return settings.with_values({"bf16": is_reduced, "casts_weights": is_reduced, **common})


_FULL_PRECISION = ("float32", "fp32", "float", "32")
Metrics = dict[int, dict[str, float]]


def metric_lines(files: Iterable[Path], names: Mapping[str, str], quarantine: QuarantineLog) -> Metrics:
    """Step -> common name -> value, of all lines of a step together; lines without a step are left out."""
    lines = QuarantineLog()
    metrics_of: Metrics = {}
    for file in files:
        for _, row in read_jsonl(file, lines):
            step = whole_number(row.get("step", row.get("training_step")))
            if step is not None:
                metrics_of.setdefault(step, {}).update(_renamed(logged_numbers(row), names))
    quarantine.add_unreadable_metrics(lines)
    for values in metrics_of.values():
        values.pop("step", None)
    return metrics_of


def _renamed(metrics: Mapping[str, float], names: Mapping[str, str]) -> dict[str, float]:
    return {names.get(name, name): value for name, value in metrics.items()}


def with_run_files(request: ReadRequest, run: Run) -> Run:
    """The run with the checkpoints and metrics in its folder, or in the one above a folder of rollouts.

    Metrics are TensorBoard's files, ``metrics.jsonl``, or the file of any name that a script wrote.

    Returns:
        The run; without metrics, but with a note, where they are in several folders or files, which may be several
        runs.
    """
    folder = request.path if request.path.is_dir() else request.path.parent
    folders = [folder, folder.parent] if _ROLLOUT_FOLDER.fullmatch(folder.name) else [folder]
    is_script = run.source.format == "generic"
    counts_from_0 = is_script and 0 in run.steps
    run = replace(run, **saved_weights(request, _LAYOUT, folders, counts_from_0=counts_from_0))
    run = replace(run, settings=_per_update(run.settings))
    for folder in folders:
        events, lines, quarantine = event_files(folder), folder / "metrics.jsonl", QuarantineLog()
        if conflict := several_sources("TensorBoard's files", "folder", sorted({str(file.parent) for file in events})):
            return run.without_metrics(conflict)
        if events:
            return _logged(run, events, scalar_metrics(events, {}, quarantine), quarantine)
        metrics = StepMetrics.from_mapping(metric_lines(filter(Path.is_file, [lines]), {}, quarantine))
        if is_script and metrics and "grad_norm" not in naming_of(metrics.columns, {}).parts:
            metrics = StepMetrics.from_mapping(table_metrics(lines, quarantine) or metrics)  # in objects, or as text
        if metrics or (lines.is_file() and (not is_script or quarantine.result().lost)):
            return _logged(run, [lines], metrics, quarantine)
        if not is_script:
            continue
        below = [inner for pattern in _METRIC_FOLDERS for inner in sorted(folder.glob(pattern)) if inner.is_dir()]
        tables = logs_with("grad_norm", [folder, *below], run.source.files)
        if conflict := several_sources("Metrics", "file", tables):
            return run.without_metrics(conflict)
        path = request.path
        siblings = sorted(path.parent.glob(f"*{path.suffix}")) if tables and path.is_file() else ()
        for other in siblings:
            is_other_kind = word_of(other) != word_of(path) and not HELD_OUT.search(other.name)
            if is_other_kind and roles.have_rollouts(roles.columns_of_rows(peek(other), request.columns)):
                return run.without_metrics(
                    f"Metrics lie in {tables[0]}, but rollouts in {other} too: of which is not known; none were read."
                )
        if tables:
            logged = table_metrics(tables[0], quarantine)
            if logged and len(run.steps) > 1 and logged.keys().isdisjoint(run.steps):
                why = f"Metrics in {tables[0]} are of other steps than the rollouts, and none were read."
                return run.without_metrics(why)
            inferred = (*run.source.inferred, f"Metrics are those of {tables[0]}.")
            run = replace(run, source=replace(run.source, inferred=inferred))
            return _logged(run, tables, logged, quarantine)
    return _with_metrics_of_rows(request, run) if is_script and not request.rewards_only else run


_OF_A_STEP = {"grad_norm", "kl", "loss", "entropy", "learning_rate"}
"""Metrics that a script may write into each row of their step."""


def _with_metrics_of_rows(request: ReadRequest, run: Run) -> Run:
    """The run with the norm of each step, and other metrics of it, that all rows of the step agree on."""
    first = peek(request.path)
    columns = roles.columns_in(first)
    step = request.columns.step or roles.first_present(columns, roles.USUAL["step"])
    names = {name: part.formula for name, part in naming_of(columns, {}).parts.items()}
    names = {name: key for name, key in names.items() if name in _OF_A_STEP and key in columns}
    if step is None or "grad_norm" not in names:
        return run
    values: dict[str, dict[int, set[float]]] = {name: {} for name in names}
    for _, row in chain.from_iterable(read_rows(file, QuarantineLog()) for file in expand(request.path)):
        if (number := step_number(row.get(step))) is None:
            continue
        for name, key in names.items():
            if (value := logged_number(row.get(key))) is not None:
                values[name].setdefault(number, set()).add(value)
    common = {name: by_step for name, by_step in values.items() if max(map(len, by_step.values()), default=0) == 1}
    if "grad_norm" not in common:
        return run
    metrics: Metrics = {}
    for name, by_step in common.items():
        for number, (value,) in by_step.items():
            metrics.setdefault(number, {})[name] = value
    inferred = (*run.source.inferred, f"Each row has the {' and '.join(common)} of its step.")
    return _logged(replace(run, source=replace(run.source, inferred=inferred)), [], metrics, QuarantineLog())


HELD_OUT = re.compile(r"(?<![a-z])(eval|valid|val(?![a-z])|test)", re.IGNORECASE)
"""What names files and folders of evaluations."""

_RUN_IN_NAME = re.compile(
    r"(?<![a-z])(?:seed|run|exp|experiment|trial|arm|variant|config|lr|beta|kl|g|v)[-_.=]?[0-9][0-9.e-]*"
)
"""What tells runs apart by a number, in the name of a file."""


def word_of(file: Path) -> str:
    """The letters in the name of a file, where they may be a word, and the number of a run."""
    stem = stem_with_step(file).lower()
    letters, runs = re.sub("[^a-z]+", "", stem), "".join(_RUN_IN_NAME.findall(stem))
    return letters + runs if runs or len(letters) > 2 or letters == stem else ""


_ROLLOUT_FOLDER = re.compile(r"(train_?)?(rollout|sample|completion|generation|trajectorie|trace)s?(_data)?")
"""What names folders of rollouts, in a folder with the run's checkpoints and metrics."""
_METRIC_FOLDERS = ("*log*", "*metric*", "wandb/run-*")  # folders in which scripts keep their metrics


def several_sources(kind: str, noun: str, paths: Sequence[Path | str]) -> str:
    """A sentence on metrics in several files or folders, which are therefore not read; empty for one."""
    named = f"{counted(len(paths), noun)} ({', '.join(map(str, paths[:3]))}{', ...' if len(paths) > 3 else ''})"
    return f"{kind} lie in {named}: which are of this run is not known, and none were read." if len(paths) > 1 else ""


def tables_of_metrics(folder: Path) -> list[Path]:
    """The CSV files and databases of trackio's in a folder that hold metrics by step; W&B's file of a folder of its."""
    above = (folder, *folder.resolve().parents)
    wandb_run = next((parent for parent in above if _WANDB_RUN.match(parent.name)), folder)
    files = sorted([*folder.glob("*.csv"), *folder.glob("*.db"), *wandb_run.glob("*.wandb")])
    return [file for file in files if holds_metrics(file, ReadOptions())]


_WANDB_RUN = re.compile(r"(offline-)?run-")


def _per_update(settings: TrainerSettings) -> TrainerSettings:
    """Arguments of verl as a script has them, each update of which is a step: epochs of one mini-batch use it again."""
    if settings.get("trainer") != "verl":
        return settings
    flat = replace(settings, values=flattened(settings.values))
    prompts, mini_batch = flat.lookup("data.train_batch_size"), flat.lookup(f"{_ACTOR}.ppo_mini_batch_size")
    epochs = flat.lookup(f"{_ACTOR}.ppo_epochs", 1)
    epochs_per_batch = {"num_iterations": epochs} if epochs != 1 and mini_batch in (None, prompts) else {}
    size = prompts if mini_batch is None else mini_batch
    rollouts = {"actor_rollout_ref.rollout.n": None} if size is None else {}  # an update has those of its step
    one_update = {"data.train_batch_size": size or 1, f"{_ACTOR}.ppo_mini_batch_size": size or 1}
    return flat.with_values({**epochs_per_batch, **rollouts, **one_update, f"{_ACTOR}.ppo_epochs": 1})


def table_metrics(file: Path, quarantine: QuarantineLog) -> Mapping[int, Mapping[str, float]]:
    """The metrics of such a file; none, and the file set aside, where it holds several runs."""
    try:
        return read_metrics_log(ReadRequest(path=file)).metrics
    except InputError as error:
        quarantine.add_unreadable(error)
        return {}


def _logged(run: Run, files: list[Path], metrics: Mapping[int, Mapping[str, float]], quarantine: QuarantineLog) -> Run:
    source = replace(run.source, files=(*run.source.files, *map(str, files)))
    logged = StepMetrics.from_mapping(metrics)
    # not the reward, which open-instruct and slime log of more rollouts than these, as they filter afterwards
    norms = {name: key for name, key in naming_of(logged.columns, {}).parts.items() if name == "grad_norm"}
    named, period, sampled = Naming(norms).apply(logged), run.settings.updates_per_batch, frozenset(run.steps)
    starts = {step: step - (step - 1) % period for step in named.by_step("grad_norm") if step not in sampled}
    repeats = {step: start for step, start in starts.items() if start in sampled}
    return replace(run, source=with_set_aside(source, quarantine), metrics=named, repeats={**run.repeats, **repeats})


def scalar_metrics(files: Iterable[Path], names: Mapping[str, str], quarantine: QuarantineLog) -> Metrics:
    """Step -> common name -> value, of TensorBoard's files."""
    metrics: Metrics = {}
    for file in files:
        for step, scalars in scalars_in(file, quarantine.damage_reporter(file)).items():
            metrics.setdefault(step, {}).update(_renamed(scalars, names))
    return metrics


class CheckpointLayout(Struct, frozen=True, kw_only=True):
    """Where a trainer saves its weights."""

    patterns: Sequence[str]
    """Globs from a folder of the run to the checkpoints, whose names end in their number of updates."""
    inside: Sequence[str]
    """Globs from a checkpoint to the model; the first with complete weights counts, the checkpoint itself last."""
    merge: Callable[[Path], str]  # the sentence that says what to run for a checkpoint that holds no model yet


_NAMES = ("checkpoint*", "step*", "global_step*", "iter*", "ckpt*", "update*", "*[-_]step*")
_PREFIXES = ("", "epoch*/", "ckpt*/", "weights/")
_LAYOUT = CheckpointLayout(
    patterns=(*(f"{above}{name}" for above in _PREFIXES for name in _NAMES), "checkpoints/*"),
    inside=("hf_model", "hf", "huggingface", "model", "policy", "actor"),
    merge=lambda _: "Save it with save_pretrained() in the next run.",
)


def saved_weights(
    request: ReadRequest, layout: CheckpointLayout, roots: Iterable[Path], *, counts_from_0: bool = False
) -> dict[str, Any]:
    """The fields of a run that its checkpoints, the first of each number, and the weights of ``--initial`` make.

    ``counts_from_0``: steps count from 0, so that checkpoint 0 may have had the update of step 0.
    """
    weights_of: dict[int, WeightsRef] = {}
    unmerged: dict[int, Reason] = {}
    for root in roots:
        for number, folder in numbered_folders(root, layout.patterns):
            weights = None if number in weights_of else _model_in(folder, number, layout, request)
            if weights is not None:
                weights_of[number] = weights
            elif number not in weights_of:
                text = f"{folder.name} holds no Hugging Face model"
                unmerged.setdefault(number, Reason("weights_unmerged", text, hint=layout.merge(folder)))

    def base_of(adapter: Path) -> str | None:
        return request.model or find_base(adapter, adapter.parent)

    refs = [weights_of[number] for number in sorted(weights_of)]
    weights_of_all = with_initial(refs, request.initial, base_of, before_0=counts_from_0 and 0 in weights_of)
    readable = {weights.num_updates for weights in weights_of_all}
    folders = (*(ref.path for ref in weights_of_all), request.initial, *(ref.base for ref in weights_of_all))
    return {
        "weights": weights_of_all,
        "unmerged_weights": {number: reason for number, reason in unmerged.items() if number not in readable},
        "tokenizer": find_tokenizer(*folders, request.model),
    }


def numbered_folders(root: Path, patterns: Iterable[str]) -> Iterator[tuple[int, Path]]:
    """Number of updates and folder of each checkpoint; a pattern that matches those of several runs yields none."""
    for pattern in patterns:
        folders = [folder for folder in sorted(root.glob(pattern)) if folder.is_dir()]
        if len({folder.parent for folder in folders}) == 1:
            numbered = ((re.fullmatch("[^0-9]*([0-9]+)", folder.name), folder) for folder in folders)
            yield from ((int(number[1]), folder) for number, folder in numbered if number)


def _model_in(folder: Path, num_updates: int, layout: CheckpointLayout, request: ReadRequest) -> WeightsRef | None:
    for inner in (*(inner for pattern in layout.inside for inner in sorted(folder.glob(pattern))), folder):
        try:
            return weights_at(inner, num_updates=num_updates, base_of=request.base_of(folder))
        except InputError:  # a configuration and a tokenizer alone, or pickles
            continue
    return None


SWITCH_ON = (
    'No file of verl\'s metrics lies in or beside the folder: add "file" to trainer.logger and put it there '
    "(VERL_FILE_LOGGER_PATH)."
)
COMMON_NAMES = {"actor/grad_norm": "grad_norm", "critic/score/mean": "reward"}
"""verl's names of what every trainer logs."""
_are_close = partial(math.isclose, abs_tol=1e-4)  # means of one batch differ by less: verl adds up in float32


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
    files: list[Path] = []
    for parent in (folder, folder.parent):
        logs = (file for file in sorted(parent.glob("*.jsonl")) if file.is_file() and file not in skip)
        files = files or [file for file in logs if are_metrics(peek(file, num_rows=1))]
    if not files and experiment is None:
        return None, {}, []
    chosen = [file for file in files if experiment in (None, stem_of(file))]
    means: dict[int, float] = {}
    if experiment is None:
        table = reward_table(groups)
        means = table.mean_by_step(table.sums(np.nan_to_num(table.reward)), table.sums(~np.isnan(table.reward)))
    if len(chosen) > 1:  # that with every step of the rollouts, with their mean reward wherever it has one
        read = {file: read_verl_metrics(file, QuarantineLog()) for file in files}
        complete = {file: metrics for file, metrics in read.items() if means.keys() <= metrics.keys()}
        pairs_of = {file: _mean_pairs(metrics, means) for file, metrics in complete.items()}
        chosen = [file for file, pairs in pairs_of.items() if pairs and all(starmap(_are_close, pairs))]
    if len(chosen) != 1:
        names = ", ".join(str(file) for file in files) or "none"
        have = f"{len(chosen) or 'none'} of them have the rewards of these rollouts"
        reason = "none is called so" if experiment else have
        raise InputError(
            f"{folder} has metrics of {len(files)} experiments ({names}), and {reason}.",
            hint="Name the one of these rollouts by its file: --metric-run NAME; or move the others away.",
        )
    (file,) = chosen
    metrics, sentences = read_verl_metrics(file, quarantine), list[str]()
    pairs = [pair for pair in _mean_pairs(metrics, means) if math.isfinite(pair[0])]
    if len(files) > 1 and experiment is None:
        sentences.append(
            f"Of {len(files)} files of metrics {file.name} is that of these rollouts: its mean rewards are theirs."
        )
    elif pairs and not any(starmap(_are_close, pairs)):
        sentences.append(
            f"At none of {counted(len(pairs), 'step')} is the mean reward in {file.name} that of the rollouts: it may "
            "be of another experiment."
        )
    return file, metrics, sentences


def _mean_pairs(metrics: Mapping[int, Mapping[str, float]], means: Mapping[int, float]) -> list[tuple[float, float]]:
    """The logged and the own mean reward of each step that has both."""
    return [(metrics[step]["reward"], mean) for step, mean in means.items() if "reward" in metrics.get(step, ())]


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
        metrics[step] = _renamed(logged_numbers(row["data"]), COMMON_NAMES)
    quarantine.add_unreadable_metrics(lines)
    return metrics


_ACTOR = "actor_rollout_ref.actor"
_ENGINE = f"{_ACTOR}.fsdp_config"
_SAVED_AT = "trainer.default_local_dir"


def verl_settings(request: ReadRequest, folder: Path, *, is_v1: bool) -> TrainerSettings:
    """The configuration of verl, and in TRL's names what every trainer has: the precision and the micro-batch."""
    folder = folder.resolve()
    files = (parent / name for parent in (folder, folder.parent) for name in (".hydra/config.yaml", "config.yaml"))
    settings = trainer_settings(request, "verl", files)
    common: dict[str, Any] = {"verl_v1": True} if is_v1 else {}
    if not settings.lookup("actor_rollout_ref.actor.use_dynamic_bsz", False):
        common["per_device_train_batch_size"] = settings.lookup("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu")
    precision = settings.get(f"{_ENGINE}.mixed_precision.param_dtype", settings.get(f"{_ENGINE}.dtype", "bfloat16"))
    return in_precision(settings, precision, **common)


def verl_weights(request: ReadRequest, folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """:func:`saved_weights` next to or above the rollouts, or where the configuration says that they were saved."""
    named, folder = values.get(_SAVED_AT), folder.resolve()
    roots = [folder, folder.parent, *((Path(named),) if isinstance(named, str) else ())]
    return saved_weights(request, _VERL_LAYOUT, (root for root in roots if root.is_dir()))


_VERL_LAYOUT = CheckpointLayout(
    patterns=("global_step_*", "*/global_step_*", "checkpoints/*/*/global_step_*"),
    inside=("actor/lora_adapter", "actor/huggingface/lora_adapter", "actor/huggingface", "actor", "*", "actor/*"),
    merge=lambda folder: (
        "Merge it: python -m verl.model_merger merge --backend "
        f"{'megatron' if any(folder.glob('actor/**/dist_ckpt')) else 'fsdp'} --local_dir {folder / 'actor'} "
        f"--target_dir {folder / 'actor' / 'huggingface'}; with hf_model in actor.checkpoint.save_contents verl does "
        "it itself."
    ),
)
