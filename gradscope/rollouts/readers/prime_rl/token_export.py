"""prime-rl's token export: a packed sequence a row, with everything per token and neither reward nor group."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gradscope.rollouts.readers.format import LogRow, RowFormat, has_keys
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import number_in_name, required_whole
from gradscope.rollouts.readers.parsing.scalars import digest, text_of
from gradscope.rollouts.readers.parsing.token_lists import cut_sequence
from gradscope.rollouts.readers.prime_rl.left_behind import with_prime_rls

_STEP = re.compile(r"^step_([0-9]+)$")


def _records(row: LogRow) -> Iterator[Record]:
    cells = row.cells
    step = required_whole(cells.get("step", number_in_name(_STEP, row.file)), "the step")
    tokens = cut_sequence(
        cells.get("token_ids"),
        cells.get("loss_mask"),
        logprobs=cells.get("inference_logprobs"),
        advantages=cells.get("advantages"),
        trainer_logprobs=cells.get("trainer_logprobs"),
        entropies=cells.get("entropy"),
    )
    prompt_id = f"{text_of(cells.get('env_name'))}/{digest(tokens.prompt_ids)}"
    yield Record(step=step, group=prompt_id, prompt_id=prompt_id, prompt="", completion="", reward=None, tokens=tokens)


FORMAT = RowFormat(
    name="prime-rl-tokens",
    looks_for="token_exports/step_*/rank_*.jsonl (prime-rl)",
    title="prime-rl token export",
    patterns=("token_exports/step_*/rank_*.jsonl", "step_*/rank_*.jsonl", "rank_*.jsonl"),
    recognizes_file=has_keys("token_ids", "loss_mask", "advantages"),
    records=_records,
    needs_reward=False,
    completes=with_prime_rls,
    inferred=("Rows carry no group id: rollouts of equal prompt tokens at one step are a group; equal prompts merge.",),
    missing=(
        "The export has no rewards: degeneracy and pass@k need the traces (rollouts/step_<N>/train/all/traces.jsonl).",
        "The trainer removes tokens of zero advantage before the export (filter_zero_advantages): dead groups are "
        "absent.",
    ),
)
