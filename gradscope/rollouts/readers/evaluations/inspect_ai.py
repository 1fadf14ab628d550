"""inspect_ai's logs, ``.eval`` (a zip of JSON) and ``.json``: epochs of a sample are the samples of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradscope.rollouts.readers.evaluations.inspect_archive import SUFFIX, is_log, read_archived_samples
from gradscope.rollouts.readers.evaluations.inspect_shards import find_logs
from gradscope.rollouts.readers.flat.columns import chosen_name
from gradscope.rollouts.readers.format import Format
from gradscope.rollouts.readers.parsing.assemble import assemble
from gradscope.rollouts.readers.parsing.counted import TEXT_ONLY, counted
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.nested_cells import list_of, mapping_of, usable_reward, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.parsing.scalars import ABSENT, digest, finite_or_none, parse_messages, text_of
from gradscope.rollouts.run import Run

_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""inspect_ai's own values of correct, partial, incorrect and no answer."""


def _recognizes(request: ReadRequest) -> bool:
    """Whether the path is a log of inspect_ai's."""
    files = [*find_logs(request.path)]
    archives = [file for file in files if file.suffix == SUFFIX]
    return any(map(is_log, archives or files[:1]))


def _read(request: ReadRequest) -> Run:
    """Read logs of inspect_ai's: one group a sample of a log, at step 0; its epochs are the rollouts."""
    found = find_logs(request.path)
    files = {file: log for file, log in found.items() if is_log(file)}
    several = len(set(files.values())) > 1
    quarantine = QuarantineLog()
    for file in found.keys() - files.keys():
        if file.suffix == SUFFIX:
            quarantine.add("the file is no zip archive", f"{file}:1")
    samples = [
        (log if several else "", *located)
        for file, log in files.items()
        for located in read_archived_samples(file, quarantine)
    ]
    names = (name for _, _, sample in samples for name in mapping_of(sample.get("scores")))
    scorer = chosen_name(names, request, "scorer", "no scored samples")
    return assemble(
        request,
        records=[_record(sample, scorer, log, location, quarantine) for log, location, sample in samples],
        quarantine=quarantine,
        format="inspect-ai",
        recognized=f"inspect_ai, {counted(len(files), 'log')}",
        inferred=(f"The score is that of the scorer {scorer}; C, P, I and N count 1, 0.5, 0 and 0.",),
        missing=(TEXT_ONLY,),
        files=tuple(files),
    )


def _record(sample: Mapping[str, Any], scorer: str, log: str, location: str, quarantine: QuarantineLog) -> Record:
    prompt = sample.get("input")
    name = text_of(sample.get("id")) or digest(prompt)
    scores = {key: mapping_of(score).get("value", ABSENT) for key, score in mapping_of(sample.get("scores")).items()}
    epoch = whole_number(sample.get("epoch"))
    choice = mapping_of(next(iter(list_of(mapping_of(sample.get("output")).get("choices"))), None))
    return Record(
        step=0,
        group=f"{log}/{name}" if log else name,
        prompt_id=name,
        prompt=text_of(prompt),
        completion=text_of([choice["message"]]) if parse_messages([choice.get("message")]) else "",
        messages=parse_messages(prompt),
        reward=usable_reward(_value(scores.get(scorer, ABSENT)), location, quarantine),
        rewards={key: finite_or_none(_value(value)) for key, value in scores.items()},
        status="error" if sample.get("error") else "unknown",
        sample_id=None if epoch is None else str(epoch),
        location=location,
    )


def _value(value: Any) -> Any:
    return _LETTERS.get(value, value) if isinstance(value, str) else value


FORMAT = Format(
    name="inspect-ai",
    looks_for="*.eval, *.shards/*/*.eval, or .json with eval and samples (inspect_ai)",
    recognizes=_recognizes,
    read=_read,
    takes=frozenset({"reward_column"}),
)
