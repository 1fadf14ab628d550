"""prime-rl's token export: a packed sequence a row, with everything per token and neither reward nor group."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gradscope.rollouts.readers.parsing.assemble import assemble, peek
from gradscope.rollouts.readers.parsing.counted import counted
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.jsonl import read_jsonl
from gradscope.rollouts.readers.parsing.nested_cells import number_in_name, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import digest, text_of
from gradscope.rollouts.readers.parsing.tables import files_like
from gradscope.rollouts.readers.parsing.token_lists import cut_sequence
from gradscope.rollouts.run import Run

_STEP = re.compile(r"^step_(\d+)$")
_KEYS = frozenset({"token_ids", "loss_mask", "advantages"})
_INFERRED = ("Rows carry no group id: rollouts of equal prompt tokens at one step are a group; equal prompts merge.",)
_MISSING = (
    "The export has no rewards: degeneracy and pass@k need the traces (rollouts/step_<N>/train/all/traces.jsonl).",
    "The trainer removes tokens of zero advantage before the export (filter_zero_advantages): dead groups are absent.",
)


def recognizes(request: ReadRequest) -> bool:
    """Whether the path is a token export of prime-rl's.

    Args:
        request: What to read; its path exists.

    Returns:
        True for files ``rank_<R>.jsonl`` with token ids, loss mask and advantages.
    """
    files = _files(request.path)
    return bool(files) and any(row.keys() >= _KEYS for row in peek(files[0]))


def read(request: ReadRequest) -> Run:
    """Read a token export.

    Args:
        request: A run, its ``token_exports``, one step of them, or one file.

    Returns:
        The run; no rollout has a reward.
    """
    files = _files(request.path)
    quarantine = QuarantineLog()
    return assemble(
        request,
        records=_records(files, quarantine),
        quarantine=quarantine,
        format="prime-rl-tokens",
        recognized=f"prime-rl token export, {counted(len(files), 'file')}",
        inferred=_INFERRED,
        missing=_MISSING,
        files=files,
        needs_reward=False,
    )


def _files(path: Path) -> tuple[Path, ...]:
    return files_like(path, "token_exports/step_*/rank_*.jsonl", "step_*/rank_*.jsonl", "rank_*.jsonl")


def _records(files: tuple[Path, ...], quarantine: QuarantineLog) -> Iterator[Record]:
    for file in files:
        for place, row in read_jsonl(file, quarantine):
            step = whole_number(row.get("step", number_in_name(_STEP, file)))
            tokens = cut_sequence(
                row.get("token_ids"),
                row.get("loss_mask"),
                logprobs=row.get("inference_logprobs"),
                advantages=row.get("advantages"),
            )
            if step is None:
                quarantine.add("the step is not a whole number", place)
            elif isinstance(tokens, str):
                quarantine.add(tokens, place)
            else:
                prompt_id = f"{text_of(row.get('env_name'))}/{digest(tokens.prompt_ids)}"
                yield Record(
                    step=step,
                    group=prompt_id,
                    prompt_id=prompt_id,
                    prompt="",
                    completion="",
                    reward=None,
                    tokens=tokens,
                )
