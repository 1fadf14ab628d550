"""A folder that TRL's GRPOTrainer wrote: ``output_dir`` with ``log_completions=True``.

The file of step N holds what the weights after N - 1 updates sampled. Nothing is read from ``training_args.bin``: it is
a pickle. Prompts and completions are text here; ids are known only where a side file or a column has them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradscope.errors import InputError
from gradscope.machine.threads import in_threads
from gradscope.results.source import Source
from gradscope.rollouts.checkpoint_folders import find_base, find_checkpoints, find_tokenizer, with_initial
from gradscope.rollouts.groups import GroupsOfTable, num_used, reward_table
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing.counted import counted
from gradscope.rollouts.readers.parsing.quarantine import BROKEN_ADVANTAGE, QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest, read_side_ids, read_trainer_settings
from gradscope.rollouts.readers.parsing.scalars import (
    finite_or_none,
    is_not_finite,
    logged_number,
    parse_messages,
    text_of,
)
from gradscope.rollouts.readers.trl.blocks import Block, group_size, uncut
from gradscope.rollouts.readers.trl.files import (
    StepFile,
    completion_files,
    logged_ids,
    read_step_file,
    run_of,
    split_training,
)
from gradscope.rollouts.readers.trl.model_card import trainer_of, with_card
from gradscope.rollouts.readers.trl.notes import repeats, step_notes, windows
from gradscope.rollouts.readers.trl.rewards import reward_weights, scalar_reward, scalar_rewards
from gradscope.rollouts.readers.trl.state import TrlState, has_state, read_state
from gradscope.rollouts.readers.trl.table import table_of_files, without_reward
from gradscope.rollouts.run import Run, WeightsRef
from gradscope.rollouts.types import Rollout, RolloutGroup

_MASKS = ("completion_mask", "env_mask", "tool_mask")
SideIds = Mapping[tuple[int, int], tuple[int, ...]]


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path is TRL's ``output_dir``, its folder of completions, or one of the files."""
    return bool(completion_files(request.path)) or has_state(request.path)


def _read(request: ReadRequest) -> Run:
    """Read a TRL run.

    Returns:
        The run.

    Raises:
        InputError: There are no completions, or none of training.
    """
    run = run_of(request.path)
    paths = completion_files(request.path)
    if not paths:
        trainer, wanted = trainer_of(run), "Train with GRPOConfig(log_completions=True), TRL 0.28 or newer."
        if trainer not in (None, "GRPO"):
            raise InputError(
                f"{request.path} was trained with {trainer}, as its README.md says, and holds no "
                "completions/completions_*.parquet, which GRPOTrainer writes.",
                hint="Log rollouts as JSON lines from a reward function in the next run; see the docs on logs.",
            )
        raise InputError(f"{request.path} holds no completions/completions_*.parquet.", hint=wanted)
    state = read_state(run)
    quarantine = QuarantineLog()
    for file in state.damaged:
        quarantine.lose(InputError(f"{file} is damaged: what it logged is not known.", hint="Copy it again."))
    settings = with_card(read_trainer_settings(request.run_config), run)
    training, evaluation = split_training(_readable(paths, quarantine, whole=not request.rewards_only), state)
    if not training:
        raise InputError(
            f"Every file of completions in {request.path} holds evaluation rows.",
            hint="Log at steps without an evaluation: set logging_steps so that it does not always meet eval_steps.",
        )
    functions = reward_weights(training, state, settings)
    blocks = [_block(file, functions.weights, state) for file in training]
    for place in reversed(uncut(blocks, settings)):
        quarantine.lose(
            InputError(
                f"{training.pop(place).path} is left out: its rows do not come in groups of one prompt, so that "
                "some were lost, doubled or exchanged.",
                hint="Copy it again.",
            )
        )
        del blocks[place]
    size, cut = group_size(blocks, settings)
    groups: Sequence[RolloutGroup]
    if request.rewards_only and request.completion_ids is None:
        groups = GroupsOfTable(table_of_files(training, size, functions.weights, quarantine))
    else:
        groups = _all_groups(training, size, functions.weights, request, quarantine)
    damaged_weights: dict[int, str] = {}
    weights = _find_weights(run, request, damaged_weights)
    read_files = (*paths, state.path, request.run_config, request.completion_ids)
    source = Source(
        path=str(request.path),
        format="trl",
        recognized=f"TRL output_dir, {counted(len(paths), 'file')} of completions",
        files=tuple(str(path) for path in read_files if path is not None),
        num_rows=num_used(groups),
        inferred=(*functions.inferred, *cut, *_left_out(training, evaluation)),
        missing=(*functions.missing, *_missing(state, settings.origin, groups, weights)),
        quarantined=quarantine.result(),
    )
    return Run(
        path=request.path,
        source=source,
        groups=groups,
        metrics=state.metrics,
        settings=settings,
        weights=weights,
        damaged_weights=damaged_weights,
        tokenizer=_find_tokenizer(run, request, weights),
        notes=step_notes(training, state, settings),
        windows=windows(training, state),
        repeats=repeats(training, settings),
    )


def _readable(paths: Sequence[Path], quarantine: QuarantineLog, *, whole: bool) -> list[StepFile]:
    """The files of completions that can be read; a damaged one is set aside and leaves the other steps alone.

    Args:
        whole: Whether completions are looked at, too.

    Returns:
        One or more.

    Raises:
        InputError: None can be read.
    """

    def read(path: Path) -> StepFile | InputError:
        try:
            return read_step_file(path, whole=whole)
        except InputError as error:
            return error

    found = in_threads(read, paths)
    files = [file for file in found if isinstance(file, StepFile)]
    errors = [error for error in found if isinstance(error, InputError)]
    for error in errors:
        quarantine.lose(error)
    if not files:
        raise errors[0]
    return files


def _block(file: StepFile, weights: Mapping[str, float], state: TrlState) -> Block:
    share = state.metrics.get(file.step, {}).get("frac_reward_zero_std")
    return Block(
        path=file.path,
        prompts=file.prompts,
        rewards=scalar_rewards({name: file.numbers(name) for name in weights}, weights),
        advantages=file.numbers("advantage"),
        logged_share=finite_or_none(share) if state.window(file.step) == 1 else None,
    )


def _all_groups(
    files: Sequence[StepFile],
    size: int,
    weights: Mapping[str, float],
    request: ReadRequest,
    quarantine: QuarantineLog,
) -> tuple[RolloutGroup, ...]:
    side_ids = read_side_ids(request.completion_ids)
    groups = tuple(group for file in files for group in _groups(file, size, weights, side_ids, quarantine))
    if side_ids and not side_ids.keys() & {(group.step, rollout.row) for group in groups for rollout in group.rollouts}:
        raise InputError(
            f"No row of {request.completion_ids} belongs to {request.path}.",
            hint="Its step and row (from 0, in the order of the log) must be those of the run.",
        )
    return groups


def _groups(
    file: StepFile, size: int, weights: Mapping[str, float], side_ids: SideIds, quarantine: QuarantineLog
) -> list[RolloutGroup]:
    """One step's rows cut into groups of ``size``; rows without a reward are set aside, but stay in their group."""
    groups = []
    for start in range(0, file.size, size):
        group_id = f"{file.step}:{start // size}"
        rollouts = []
        for at in range(start, min(start + size, file.size)):
            rewards, reward = scalar_reward(file.rows[at], weights)
            if reward is None:
                quarantine.add(without_reward(weights), f"{file.path}:{at + 1}")
            elif is_not_finite(file.rows[at]["advantage"]):
                quarantine.add(BROKEN_ADVANTAGE, f"{file.path}:{at + 1}")
            ids = side_ids.get((file.step, at)) or logged_ids(file.rows[at].get("completion_ids"))
            rollouts.append(_rollout(file.rows[at], group_id, at - start, at, rewards, reward, ids))
        prompt = file.prompts.ids[file.prompts.of_row[start]]
        groups.append(RolloutGroup(step=file.step, group_id=group_id, prompt_id=prompt, rollouts=tuple(rollouts)))
    return groups


def _rollout(
    row: Mapping[str, Any],
    group_id: str,
    sample: int,
    at: int,
    rewards: Mapping[str, float | None],
    reward: float | None,
    ids: tuple[int, ...] | None,
) -> Rollout:
    return Rollout(
        group_id=group_id,
        sample=sample,
        row=at,
        prompt=text_of(row["prompt"]),
        completion=text_of(row["completion"]),
        messages=parse_messages(row["prompt"]),
        prompt_ids=logged_ids(row.get("prompt_ids")),
        completion_ids=ids,
        mask=_logged_mask(row),
        logprobs=_logged_logprobs(row, "sampling_logprobs"),
        trainer_logprobs=_logged_logprobs(row, "old_per_token_logps"),
        reward=reward,
        rewards=rewards,
        advantage=finite_or_none(row["advantage"]),
    )


def _logged_mask(row: Mapping[str, Any]) -> tuple[bool, ...] | None:
    """Which completion tokens the policy sampled, under any of the names that trainers have for it; None: all."""
    for column in _MASKS:
        mask = row.get(column)
        if isinstance(mask, list) and all(type(part) in (int, bool) and part in (0, 1) for part in mask):
            return tuple(bool(part) for part in mask)
    return None


def _logged_logprobs(row: Mapping[str, Any], column: str) -> tuple[float, ...] | None:
    """Log-probabilities of the sampler or the trainer, logged by a reward function; NaN where it gave none."""
    values = row.get(column)
    if not isinstance(values, list):
        return None
    numbers = [math.nan if value is None else logged_number(value) for value in values]
    known = tuple(number for number in numbers if number is not None)
    return known if len(known) == len(numbers) else None


def _left_out(training: Sequence[StepFile], evaluation: Sequence[StepFile]) -> list[str]:
    sentences = []
    if evaluation:
        steps = ", ".join(str(file.step) for file in evaluation)
        sentences.append(
            f"Files with evaluation rows, because the trainer evaluated at their step, are left out: {steps}."
        )
    repeats = [(step, file.step) for file in training for step in file.repeated_at]
    if repeats:
        pairs = ", ".join(f"{again} repeats {first}" for again, first in repeats)
        sentences.append(
            f"A batch that serves several updates is logged at each of them; it counts once (step {pairs})."
        )
    return sentences


def _missing(
    state: TrlState, settings_origin: str | None, groups: Sequence[RolloutGroup], weights: Sequence[WeightsRef]
) -> list[str]:
    sentences = []
    if state.path is None and not state.damaged:
        sentences.append(
            "There is no trainer_state.json: logged metrics are unknown, and evaluation files cannot be told from "
            "training files."
        )
    table = reward_table(groups)
    unlogged = bool(np.any(table.step > state.last_step))
    if state.path is not None and unlogged:
        sentences.append(f"{state.path} ends at step {state.last_step}; nothing is known of what was logged after it.")
    if settings_origin is None:
        sentences.append("The trainer's arguments are in a pickle, which is never opened: give them with --run-config.")
    if table.num_tokens is None or not np.any(table.num_tokens > 0):
        sentences.append(
            "Completions are text without token ids: they are re-tokenized where a model runs. A reward function can "
            'log them: log_extra("completion_ids", [list(map(int, c)) for c in completion_ids]).'
        )
    if not any(ref.num_updates == 0 for ref in weights):
        sentences.append("The weights before the first update are not in the folder: give them with --initial.")
    return sentences


def _find_weights(run: Path, request: ReadRequest, damaged: dict[int, str]) -> tuple[WeightsRef, ...]:
    def base_of(adapter: Path) -> str | None:
        return request.model or find_base(adapter, run)

    return with_initial(find_checkpoints(run, base_of, damaged), request.initial, base_of)


def _find_tokenizer(run: Path, request: ReadRequest, weights: Sequence[WeightsRef]) -> Path | None:
    bases = {weights.base: None for weights in weights if weights.base is not None}
    model = None if request.model is None else Path(request.model)
    trained = (ref.path for ref in weights if ref.num_updates > 0)  # the trainer saves its own with each of them
    return find_tokenizer(*trained, run, request.initial, *map(Path, bases), model)


FORMAT = Format(
    name="trl",
    looks_for="completions/completions_*.parquet (TRL)",
    recognizes=_recognizes,
    read=_read,
    takes=frozenset({"completion_ids"}),
)
