"""slime's dumps of rollouts: exact tokens, rewards and log-probabilities, a file of ``torch.save`` a step.

They are read as plain data: nothing in them is run. The dumps of training beside them hold rewards that are already
normalized within groups, and are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gradscope.errors import InputError
from gradscope.rollouts.readers.beside.logged_metrics import with_logged_metrics
from gradscope.rollouts.readers.format import LogRow, RowFormat
from gradscope.rollouts.readers.parsing.counted import hidden_by
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import list_of, mapping_of
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.scalars import text_of
from gradscope.rollouts.readers.parsing.tables import Row
from gradscope.rollouts.readers.slime.sample import logged_tokens, sample_record, survey_rewards
from gradscope.rollouts.readers.slime.table import table_of_samples
from gradscope.rollouts.readers.slime.torch_archive import is_archive, read_archive

_EVALUATION = re.compile(r"eval_[0-9]+\.pt$")


def _holds_samples(file: Path) -> bool:
    try:
        return isinstance(mapping_of(read_archive(file)).get("samples"), list)
    except InputError:
        return False


def _is_of_training(file: Path) -> bool:
    return _EVALUATION.search(file.name) is None and is_archive(file)


def _rows_of(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The samples of a file, each beside the rollout's number; what is no sample lacks everything a row needs."""
    document = mapping_of(read_archive(file))
    samples = list_of(document.get("samples"))
    quarantine.passed(file.stat().st_size, len(samples))
    for number, sample in enumerate(samples, start=1):
        yield f"{file}:{number}", {"rollout_id": document.get("rollout_id"), "sample": mapping_of(sample)}


def _records(row: LogRow, part: str | None) -> Iterator[Record]:
    sample = row.cells["sample"]
    completion = text_of(sample.get("response"))
    yield sample_record(row, part, tokens=logged_tokens(sample), completion=completion, index=sample.get("index"))


FORMAT = RowFormat(
    name="slime",
    looks_for="rollout_data/<step>.pt with samples (slime)",
    title="slime rollouts",
    patterns=("rollout_data/*[0-9].pt", "*[0-9].pt"),
    keeps_file=_is_of_training,
    recognizes_file=_holds_samples,
    rows_of=_rows_of,
    survey=survey_rewards,
    records=_records,
    missing=(hidden_by("slime's dynamic sampling (--dynamic-sampling-filter-path) drops groups of equal rewards"),),
    completes=with_logged_metrics,
    table_of_rows=table_of_samples,
    takes=frozenset({"reward_column"}),
)
