"""NeMo-RL's training data: every row is a batch of one, so each value is a list of length 1.

Beside it a run leaves checkpoints with their configuration, and TensorBoard's files.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, Raw, UnsetType
from numpy.typing import NDArray

from gradscope.rollouts.arrays import to_floats
from gradscope.rollouts.event_file import event_files, scalars_in
from gradscope.rollouts.groups import Tokens
from gradscope.rollouts.readers.beside import (
    CheckpointLayout,
    Metrics,
    metric_lines,
    numbered_folders,
    renamed,
    saved_weights,
    trainer_settings,
)
from gradscope.rollouts.readers.format import LogColumns, LogRow, Reading, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.cells import (
    ABSENT,
    NOT_ALIGNED,
    cut_sequence,
    digest,
    in_environment,
    list_of,
    mapping_of,
    number_in_name,
    text_of,
    whole_number,
)
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, UnusableRowError, hidden_by, with_set_aside
from gradscope.rollouts.readers.parsing.records import Record, peek
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.reduction.columns import (
    Columns,
    Keys,
    LineColumns,
    ids_digest,
    json_of,
    jsons_of,
    numbers_of,
)
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


_STEP = re.compile(r"^train_data_step([0-9]+)\.jsonl")
_BY_IDS = "Rows carry no group id: rollouts of equal prompt tokens at one step are a group, as for NeMo-RL's baseline."
_BY_TEXT = (
    "Rows carry no group id and no tokens (NeMo-RL before 0.4): all messages but the last are taken as the prompt, and "
    "rollouts of equal prompts at one step are a group."
)
_FLAT = b" 0123456789,.-+eEnultrfas"
"""Letters of lists of numbers, without their brackets."""
_IDS = b"[] 0123456789,"
"""Letters of lists of ids."""
_NOT_PLAIN = (-1, b"[]", None)
"""Stands for the tokens of a row whose lists are not plain."""
_FILTERED = hidden_by("Dynamic sampling was on (filtered_rewards) and removes groups of equal rewards")


def _records(row: LogRow) -> Iterator[Record]:
    cells = {name: _only(value) for name, value in row.cells.items()}
    step = number_in_name(_STEP, row.file)
    if step is None:
        raise UnusableRowError("the file's name has no step")
    tokens = _tokens(cells)
    row.reading.noted.add(_BY_TEXT if tokens is None else _BY_IDS)
    if "filtered_rewards" in cells:
        row.reading.noted.add(_FILTERED)
    texts = [text_of(text) for text in list_of(cells.get("content"))]
    prompt_id = digest(texts[:-1] if tokens is None else tokens.prompt_ids)
    yield Record(
        step=step,
        group=prompt_id,
        prompt_id=_in_agent(cells.get("agent_ref"), prompt_id),
        prompt="\n".join(texts[:-1]),
        completion="".join(texts[-1:]),
        reward=row.reward(cells.get("filtered_rewards", cells.get("rewards", ABSENT))),
        tokens=tokens,
    )


def _in_agent(cell: Any, prompt_id: str) -> str:
    """The id of a prompt within the agent of NeMo Gym that a row names."""
    return in_environment(mapping_of(_only(cell)).get("name"), prompt_id)


def _tokens(cells: Mapping[str, Any]) -> Tokens | None:
    """One row's tokens, without the padding; None where the release did not log them."""
    if "token_ids" not in cells:
        return None
    length = whole_number(cells.get("input_lengths"))
    lists = {name: cells.get(name) for name in ("token_ids", "token_loss_mask", "generation_logprobs", "advantages")}
    if length is None or not all(values is None or len(list_of(values)) >= length for values in lists.values()):
        raise UnusableRowError(NOT_ALIGNED)
    ids, mask, logprobs, advantages = (
        None if values is None else list_of(values)[:length] for values in lists.values()
    )
    trainer_logprobs = list_of(cells.get("prev_logprobs"))[:length]
    tokens = cut_sequence(ids, mask, logprobs=logprobs, advantages=advantages, trainer_logprobs=trainer_logprobs)
    if cells.get("sample_loss_mask") == 0:  # the row has a reward, but no part in the loss
        return dataclasses.replace(tokens, mask=(False,) * len(tokens.mask))
    return tokens


def _columns(reading: Reading) -> LogColumns:
    has_tokens = any("token_ids" in row for row in peek(reading.files[0]))
    return LogColumns(lines=_token_columns() if has_tokens else _text_columns())


def _text_columns() -> LineColumns:
    keys = Keys()
    scores = _Scores(keys)
    content, tokens = keys("content", list[list[str]]), keys("token_ids", Any | UnsetType)
    agent = keys("agent_ref", Any | UnsetType)

    def take(rows: Sequence[Any], file: Path) -> Columns:
        texts = [tuple(cell[0]) if len(cell) == 1 else () for cell in map(content, rows)]
        ids = {text: digest(text[:-1]) for text in dict.fromkeys(texts)}
        groups = [ids[text] for text in texts]
        return Columns(
            step=scores.steps(rows, file),
            group=groups,
            prompts=lambda some: [_in_agent(agent(rows[at]), groups[at]) for at in some],
            texts=lambda some: ["\n".join(texts[at][:-1]) for at in some],
            numbers={"reward": scores.of(rows)},
            is_odd=np.array([not text or tokens(row) is not UNSET for text, row in zip(texts, rows, strict=True)]),
            noted=scores.noted(rows, _BY_TEXT),
        )

    return LineColumns(row=keys.struct(), take=take, looks_at_path=True)


def _token_columns() -> LineColumns:
    keys = Keys()
    scores = _Scores(keys)
    length, ids, mask = keys("input_lengths", list[int]), keys("token_ids", Raw), keys("token_loss_mask", Raw)
    logprobs, advantages = (keys(name, Raw | UnsetType) for name in ("generation_logprobs", "advantages"))
    content, counts = keys("content", Raw | UnsetType), keys("sample_loss_mask", Any | UnsetType)
    agent = keys("agent_ref", Any | UnsetType)

    def take(rows: Sequence[Any], file: Path) -> Columns:
        texts = [jsons_of(list(map(cell, rows))) for cell in (ids, mask, logprobs, advantages)]
        lengths, prompts, levels = zip(*map(_plain_tokens, map(length, rows), *texts), strict=True)
        known = {text: ids_digest(text) for text in dict.fromkeys(prompts)}
        groups = [known[text] for text in prompts]
        num_tokens = np.array(lengths)
        is_in_loss = [_only(counts(row)) != 0 for row in rows]
        return Columns(
            step=scores.steps(rows, file),
            group=groups,
            prompts=lambda some: [_in_agent(agent(rows[at]), groups[at]) for at in some],
            texts=lambda some: [_prompt_in(json.loads(json_of(content(rows[at])))) for at in some],
            numbers={
                "reward": scores.of(rows),
                "advantage": to_floats(
                    level if counted else None for level, counted in zip(levels, is_in_loss, strict=True)
                ),
                "num_tokens": num_tokens,
            },
            is_odd=num_tokens < 0,
            noted=scores.noted(rows, _BY_IDS),
        )

    return LineColumns(row=keys.struct(), take=take, looks_at_path=True)


class _Scores:
    """The rewards of rows, each a list of one."""

    def __init__(self, keys: Keys) -> None:
        kind = list[float | bool] | UnsetType
        self._all, self._kept = keys("rewards", kind), keys("filtered_rewards", kind)

    def of(self, rows: Sequence[Any]) -> NDArray[np.float64]:
        cells = (self._all(row) if self._kept(row) is UNSET else self._kept(row) for row in rows)
        return numbers_of([cell[0] if type(cell) is list and len(cell) == 1 else None for cell in cells])

    def noted(self, rows: Sequence[Any], how: str) -> dict[str, NDArray[np.bool_]]:
        are_filtered = np.array([self._kept(row) is not UNSET for row in rows])
        return {how: np.ones(len(rows), dtype=np.bool_), _FILTERED: are_filtered}

    def steps(self, rows: Sequence[Any], file: Path) -> NDArray[np.int64]:
        step = number_in_name(_STEP, file)
        return np.full(len(rows), -1 if step is None else step)


def _plain_tokens(
    length: Sequence[int], ids: bytes, mask: bytes, logprobs: bytes, advantages: bytes
) -> tuple[int, bytes, float | None]:
    """What is told of a row's tokens without a list of them: of four JSON texts, each a list of one list, or null.

    Returns:
        The number of tokens of the completion, -1 where the lists are not plain; the prompt's ids, as JSON; and the
        advantage of all sampled tokens, None where they differ or have none.
    """
    logged = [text for text in (ids, mask, logprobs, advantages) if text != b"null"]
    outline = b"".join(logged).translate(None, _FLAT)
    are_one = {text[:2] + text[-2:] for text in logged} == {b"[[]]"}
    if len(length) != 1 or len(logged) < 2 or not are_one or outline != b"[[]]" * len(logged):
        return _NOT_PLAIN
    size, num_commas = length[0], [text.count(b",") for text in logged]
    first = mask.find(b"1") if b"1" in mask else mask.find(b"true")
    start = mask.count(b",", 0, max(first, 0))
    is_flag = mask[first + 1 : first + 2] in (b",", b"]", b".", b"r", b" ")
    is_plain = first > 0 and is_flag and not mask[2:first].strip(b"0,. fales") and not ids.translate(None, _IDS)
    if not is_plain or min(num_commas) + 1 < size or start >= size:
        return _NOT_PLAIN
    advantage = None
    if advantages != b"null":
        number, comma, _ = advantages[2:-2].partition(b",")
        gap = b", " if advantages[2 + len(number) : 4 + len(number)] == b", " else comma
        is_one_level = advantages[2:-2] == number + (gap + number) * num_commas[-1]
        levels = {number} if is_one_level else set(advantages[2:-2].replace(b" ", b"").split(b",")[start:size])
        if levels & {b"null", b"true", b"false"}:
            return _NOT_PLAIN
        if len(levels) > 1:
            flags, numbers = (json.loads(text)[0][start:size] for text in (mask, advantages))
            levels = {number for number, flag in zip(numbers, flags, strict=True) if flag}
        advantage = float(levels.pop()) if len(levels) == 1 else None
    return size - start, b"[" + b",".join(ids[2:-2].split(b",", start)[:start]) + b"]", advantage


def _only(cell: Any) -> Any:
    """The value in a list of length 1; any other cell as it is."""
    return cell[0] if isinstance(cell, list) and len(cell) == 1 else cell


def _prompt_in(content: Any) -> str:
    return "\n".join(text_of(text) for text in list_of(_only(content))[:-1])


FORMAT = RowFormat(
    name="nemo-rl",
    looks_for="train_data_step*.jsonl with content and rewards (NeMo-RL)",
    title="NeMo-RL training data",
    patterns=("train_data_step*.jsonl", "exp_*/train_data_step*.jsonl"),
    recognizes_file=has_keys("content", "rewards"),
    records=_records,
    columns=_columns,
    inferred=(_BY_IDS, _BY_TEXT),
    missing=(_FILTERED,),
    if_noted=frozenset({_BY_IDS, _BY_TEXT, _FILTERED}),
    completes=with_nemo_rls,
)
