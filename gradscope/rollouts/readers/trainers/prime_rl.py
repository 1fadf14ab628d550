"""prime-rl's traces: an episode on each line, with exact tokens, log-probabilities and rewards of trained agents.

Evaluations by verifiers are of the same episodes.

Since September 2026 they are one stream (``stream``); before, every step had files of its own.

``all`` holds every episode as it finished, ``effective`` those that were trained on, with their advantages: whatever
else ``all`` holds was in no loss. Where a run has both, rollouts are read from ``all``, so that no filter hides a
group, and advantages from ``effective``. A run also leaves its configuration, metrics, and weights by step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from gradscope.reason import Reason
from gradscope.rollouts.arrays import Counts, Floats
from gradscope.rollouts.groups import Tokens
from gradscope.rollouts.readers import run_files
from gradscope.rollouts.readers.format import Format, IfNoted, Reading, RowFormat, has_keys, has_row, interpreted_by
from gradscope.rollouts.readers.parsing.cells import cut_sequence, digest, list_of, mapping_of, number_in_name, text_of
from gradscope.rollouts.readers.parsing.quarantine import (
    BRANCHED,
    QuarantineLog,
    UnusableRowError,
    WatchedLog,
    filter_caveat,
    with_set_aside,
)
from gradscope.rollouts.readers.parsing.records import ReadRequest, assemble_groups, peek
from gradscope.rollouts.readers.parsing.settings import flattened
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, Fact, Note, facts_in, texts_in
from gradscope.rollouts.readers.reduction.lines import LineBlock, blocks_in
from gradscope.rollouts.readers.reduction.log import ColumnLog, reduced_groups
from gradscope.rollouts.readers.reduction.numbers import int_steps, step_numbers
from gradscope.rollouts.readers.trainers import prime_rl_episode as episodes
from gradscope.rollouts.readers.trainers.prime_rl_stream import read_stream, stream_files
from gradscope.rollouts.run import Run, TrainerSettings
from gradscope.say import counted

STEP = re.compile(r"^step_([0-9]+)$")  # a step's folder

_NAMES = {"optim/grad_norm": "grad_norm", "reward/all/mean": "reward", "reward/mean": "reward"}
_SUFFIXES = (".json", ".toml")
_DEEPEST = 5  # folders from a file of rollouts up to the run's


def with_prime_rls(request: ReadRequest, run: Run) -> Run:
    """The run with its arguments, metrics and weights."""
    path = request.path.resolve()
    above = [path, *path.parents][: _DEEPEST + 1]  # the run's is above its rollouts, export of tokens or monitors
    inside = [folder.parent for folder in above if folder.name in ("rollouts", "token_exports", "monitors")]
    folder = inside[0] if inside else path if path.is_dir() else path.parent
    settings = _settings(request, folder)
    files = [folder / "metrics.jsonl", folder / "monitors/file/metrics.jsonl", *sorted(folder.glob("*/metrics.jsonl"))]
    metrics = run_files.metric_lines(filter(Path.is_file, files), _NAMES, quarantine := QuarantineLog())
    return replace(
        run,
        source=with_set_aside(run.source, quarantine),
        metrics=metrics,
        # prime-rl casts weights to bfloat16 for each pass, unless ``bf16 = false`` is given
        settings=run_files.in_precision(settings, "bfloat16" if settings.get("bf16", True) else "float32"),
        **run_files.saved_weights(request, _LAYOUT, (folder,)),
    )


def _settings(request: ReadRequest, folder: Path) -> TrainerSettings:
    """The configuration of the run, or of its trainer and its orchestrator, in separate files."""
    below = folder / "configs"
    settings = run_files.trainer_settings(request, "prime-rl", (below / f"rl{suffix}" for suffix in _SUFFIXES))
    if settings.origin is not None and settings.origin.startswith(str(below)):
        return settings
    parts: dict[str, Any] = {}
    origins = []
    for part in ("trainer", "orchestrator"):
        for file, document in filter(None, (run_files.readable(below / f"{part}{suffix}") for suffix in _SUFFIXES)):
            parts |= flattened({part: document})
            origins.append(str(file))
    origins += [settings.origin] if settings.origin is not None else []
    return TrainerSettings(values={**parts, **settings.values}, origin=" and ".join(origins) or None)


_LAYOUT = run_files.CheckpointLayout(
    patterns=("weights/step_*", "checkpoints/step_*", "broadcasts/step_*", "run_default/broadcasts/step_*"),
    inside=("weight", "weights", "hf"),
    merge=lambda folder: (
        f"Copy config.json and the tokenizer of the model that training started from into {folder}."
        if any(folder.glob("*.safetensors"))
        else "Keep weights as safetensors in the next run: weight_broadcast.type = filesystem writes "
        "broadcasts/step_N, to which config.json of the first model must be copied."
    ),
)


def _exported(rows: Cells) -> Columns:
    in_name, flaws, usable = number_in_name(STEP, rows.path), list[tuple[int, str]](), dict[int, Tokens]()
    for row, cells in enumerate(rows.rows):
        try:
            usable[row] = cut_sequence(
                cells.get("token_ids"),
                cells.get("loss_mask"),
                logprobs=cells.get("inference_logprobs"),
                advantages=cells.get("advantages"),
                trainer_logprobs=cells.get("trainer_logprobs"),
                entropies=cells.get("entropy"),
            )
        except UnusableRowError as error:
            flaws.append((row, str(error)))
    rows, tokens = rows.chosen(list(usable)), list(usable.values())
    environments = texts_in(rows.names("env_name"))
    return Columns(
        row=np.array(list(usable), dtype=np.int64),
        flaws=flaws,
        step=step_numbers([in_name if cell is UNSET else cell for cell in rows.column("step")]),
        group=[f"{name}/{digest(sequence.prompt_ids)}" for name, sequence in zip(environments, tokens, strict=True)],
        numbers={"reward": np.full(len(rows), np.nan)},
        no_reward=lambda _: None,
        details=lambda row: {"completion": "", "tokens": tokens[row]},
    )


TOKEN_EXPORT = RowFormat(
    name="prime-rl-tokens",
    title="prime-rl token export",
    patterns=("token_exports/step_*/rank_*.jsonl", "step_*/rank_*.jsonl", "rank_*.jsonl"),
    recognizes_file=has_keys("token_ids", "loss_mask", "advantages"),
    columns=interpreted_by(_exported),
    needs_reward=False,
    completes=with_prime_rls,
    inferred=("Rows carry no group id: rollouts of equal prompt tokens at one step are a group; equal prompts merge.",),
    missing=(
        "The export has no rewards: degeneracy and pass@k need the traces (rollouts/step_<N>/train/all/traces.jsonl).",
        "The trainer removes tokens of zero advantage before the export (filter_zero_advantages): dead groups are "
        "absent.",
    ),
)


class Trained(Struct, frozen=True, kw_only=True):
    """A rollout as it was trained on."""

    batch: int | None  # the step of its batch, where that is known
    num_tokens: int  # of its completions, -1 where that is unknown
    advantage: float  # that of all its sampled tokens; NaN where they differ
    rollout: episodes.AgentRollout | None  # itself, where its tokens are wanted


class TrainedBatches(Struct, frozen=True):
    """The batches of a run."""

    rollouts: Mapping[str, Trained] = {}
    """By the ids of their traces; empty where the batches are missing or the only files that are read."""

    def trained(self, rollout: episodes.AgentRollout) -> Trained | None:
        """A rollout as it was trained on; None where it was not."""
        return self.rollouts.get(text_of(rollout.trace.id)) if self.rollouts else None

    def as_trained(self, rollout: episodes.AgentRollout) -> episodes.AgentTrace:
        """The trace of a rollout with its advantages; without a batch none of its tokens counts."""
        if (trained := self.trained(rollout)) is not None and trained.rollout is not None:
            return episodes.read_trace(trained.rollout.as_json)
        trace = episodes.read_trace(rollout.as_json)
        return episodes.untrained(trace) if self.rollouts else trace

    def count_tokens(self, rollouts: Sequence[episodes.AgentRollout]) -> tuple[Counts, Floats]:
        """The tokens of :meth:`as_trained`, counted, and their advantages, [R] each."""
        num_tokens, advantages = episodes.count_tokens(rollouts)
        for index, trained in enumerate(map(self.trained, rollouts)) if self.rollouts else ():
            advantages[index] = math.nan if trained is None else trained.advantage
            num_tokens[index] = num_tokens[index] if trained is None else trained.num_tokens
        return num_tokens, advantages


def rollouts_in(block: LineBlock) -> Iterator[episodes.AgentRollout]:
    """All agents of the episodes in lines, trained or not, without their groups; lines that hold none are skipped."""
    rows, indices, bounds = block.decoded(_EPISODES)
    by_line: dict[int, list[episodes.AgentRollout]] = {
        number: [episodes.AgentRollout(episode, trace, "") for trace in episode.traces]
        for number, episode in zip(indices.tolist(), rows, strict=True)
    }
    for line in block.irregular_rows(bounds, [number for number in range(len(bounds) - 1) if number not in by_line]):
        if isinstance(line.row, dict):
            episode = episodes.episode_of(line.row)
            pairs = zip(episode.traces, map(mapping_of, list_of(line.row.get("traces"))), strict=True)
            by_line[line.index] = [
                episodes.AgentRollout(episode, trace, "", line.row, parsed) for trace, parsed in pairs if parsed
            ]
    return chain.from_iterable(rollouts for _, rollouts in sorted(by_line.items(), key=itemgetter(0)))


_EPISODES = Decoder(episodes.Episode)


def batches_in(files: Iterable[Path], quarantine: QuarantineLog, *, with_tokens: bool) -> TrainedBatches:
    """The batches in files; bad lines are reported where ``all`` is read, unreadable files in the quarantine."""
    trained: dict[str, Trained] = {}
    for file in files:
        batch = number_in_name(STEP, file)
        for block in blocks_in(file):
            if block.lost is not None:
                quarantine.add_unreadable(block.lost)
                continue
            rollouts = [rollout for rollout in rollouts_in(block) if isinstance(rollout.trace.id, str)]
            counted = (values.tolist() for values in episodes.count_tokens(rollouts))
            for rollout, num_tokens, advantage in zip(rollouts, *counted, strict=True):
                trained[rollout.trace.id] = Trained(
                    batch=batch, num_tokens=num_tokens, advantage=advantage, rollout=rollout if with_tokens else None
                )
    return TrainedBatches(trained)


_ONLY_EFFECTIVE = filter_caveat(
    "Only the effective traces were read, from which filters have removed rollouts (the folder `all` beside them holds "
    "everything)"
)
_OTHER_STEPS = Reason(
    "rollouts_missing",
    "episodes of this step were trained on at another step",
    hint="Replay the export of tokens, or rollouts/step_N/train/effective/traces.jsonl alone.",
)


def _recognizes(request: ReadRequest) -> bool:
    files = _files(request.path, "all") or _files(request.path, "effective")
    return bool(stream_files(request.path)) or (bool(files) and not any(map(episodes.is_standalone, peek(files[0]))))


def _read(request: ReadRequest) -> Run:
    """Read prime-rl's traces of training: of a run, its ``rollouts``, one of its folders, or one file."""
    stream = stream_files(request.path)
    all_files, effective = _files(request.path, "all"), _files(request.path, "effective")
    if stream:
        return with_prime_rls(request, read_stream(request, stream, has_earlier=bool(all_files or effective)))
    files = all_files or effective
    batch_files = effective if all_files else ()
    quarantine = WatchedLog(request.progress, files)
    batches = batches_in(batch_files, quarantine, with_tokens=not request.rewards_only)
    layout = step_layout(batches)
    groups = reduced_groups(layout.log(files, quarantine), request) or ()
    run = assemble_groups(
        request,
        request.source(
            "prime-rl",
            f"prime-rl traces, {counted(len(files), 'file')}",
            files=(*files, *batch_files),
            inferred=[
                *(sentence for sentence in (episodes.AGENTS, BRANCHED) if sentence in layout.noted),
                *(["Rollouts were read from all/, their advantages from effective/."] if batches.rollouts else []),
            ],
            missing=[] if all_files else [_ONLY_EFFECTIVE],
        ),
        groups=groups,
        quarantine=quarantine,
    )
    notes = dict.fromkeys(facts_in(layout.noted, "elsewhere"), _OTHER_STEPS)
    return replace(with_prime_rls(request, run), notes=notes)


def step_layout(batches: TrainedBatches) -> episodes.EpisodeLayout:
    """How files of steps are read."""
    noted: set[Note] = set()

    def to_columns(rollouts: Sequence[episodes.AgentRollout], path: Path) -> Columns:
        in_name = number_in_name(STEP, path)
        step = int_steps([in_name if rollout.step is UNSET else rollout.step for rollout in rollouts])
        as_trained = list(map(batches.trained, rollouts))
        elsewhere = {
            Fact("elsewhere", number)
            for arrived, trained in zip(step.tolist(), as_trained, strict=True)
            if trained is not None and trained.batch not in (None, arrived)
            for number in (arrived, trained.batch)
            if number is not None and number >= 0
        }

        def details(row: int) -> dict[str, Any]:
            cells, trained = columns.details(row), as_trained[row]
            if trained is None or trained.rollout is not None:
                return dict(cells)
            counted = {"num_tokens": trained.num_tokens, "advantage": trained.advantage}
            return {**cells, "tokens": None, "earlier": (), **counted}

        columns = episodes.columns_of(
            rollouts,
            step,
            lambda row: batches.as_trained(rollouts[row]),
            noted.add,
            lambda: batches.count_tokens(rollouts),
        )
        return replace(columns, details=details, notes=list(elsewhere))

    return episodes.EpisodeLayout(names=episodes.names_by_position, to_columns=to_columns, noted=noted)


def _files(path: Path, kind: str) -> tuple[Path, ...]:
    below = f"{kind}/traces.jsonl"
    deep = (f"rollouts/step_*/train/{below}", f"step_*/train/{below}", f"train/{below}", below)
    if path.is_dir() and path.name != kind:
        return files_like(path, *deep)
    files = files_like(path, "traces.jsonl")
    return tuple(file for file in files if (file.resolve().parent.name == "effective") == (kind == "effective"))


FORMAT = Format(name="prime-rl", recognizes=_recognizes, read=_read)


def _verifiers_columns(reading: Reading) -> ColumnLog:
    def to_columns(rollouts: Sequence[episodes.AgentRollout], _: Path) -> Columns:
        step = np.zeros(len(rollouts), dtype=np.int64)
        columns = episodes.columns_of(
            rollouts, step, lambda row: episodes.read_trace(rollouts[row].as_json), reading.noted.add
        )
        ids = [rollout.trace.id if isinstance(rollout.trace.id, str) else None for rollout in rollouts]
        return replace(
            columns, prompts=lambda chosen: [_verifiers_prompt(rollouts[row].line) for row in chosen], samples=ids
        )

    return reading.log(
        to_columns=episodes.EpisodeLayout(
            names=episodes.names_by_agent, group=_verifiers_prompt, to_columns=to_columns
        ).columns_of_cells
    )


def _verifiers_prompt(episode: Mapping[str, Any]) -> str:
    if not episodes.is_standalone(episode):
        raise UnusableRowError("the episode is not of an evaluation")
    task, environment = mapping_of(episode.get("task")), mapping_of(episode.get("env"))
    name = text_of(task.get("key")) or text_of(task.get("hash")) or (digest(task["data"]) if task.get("data") else "")
    if not name:
        raise UnusableRowError("task.key, task.hash and task.data are missing")
    return f"{text_of(environment.get('name')) or text_of(environment.get('id'))}/{name}"


VERIFIERS = RowFormat(
    name="verifiers",
    title="verifiers evaluation",
    patterns=("traces.jsonl",),
    recognizes_file=has_row(episodes.is_standalone),
    columns=_verifiers_columns,
    inferred=(
        "Episodes of one task (task.key, else task.hash) of an environment are the samples of a prompt.",
        IfNoted(episodes.AGENTS),
    ),
)
