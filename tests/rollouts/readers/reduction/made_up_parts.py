"""Records, and the parts of a log that they are cut into."""

from collections.abc import Iterable, Sequence

from gradscope.rollouts.groups import RewardTable
from gradscope.rollouts.readers.parsing.cells import Tokens
from gradscope.rollouts.readers.parsing.records import Record
from gradscope.rollouts.readers.reduction.parts import GrowingTable, Part, part_of_records


def record(step: int = 1, group: str = "a", reward: float | None = 1.0, prompt: str = "p", **further: float) -> Record:
    length = int(further.pop("length", 0))
    tokens = Tokens(prompt_ids=(), completion_ids=(1,) * length, mask=(True,) * length) if length else None
    return Record(
        step=step,
        group=group,
        prompt_id=prompt,
        prompt="",
        completion="",
        reward=reward,
        rewards={"reward": reward, **{name: value for name, value in further.items() if name != "seconds"}},
        seconds=further.get("seconds"),
        tokens=tokens,
    )


def parts_of(records: Sequence[Record], cuts: Sequence[int]) -> list[Part]:
    numbered = list(enumerate(records))
    ends = sorted({*(cut for cut in cuts if 0 < cut < len(records)), len(records)})
    return [part_of_records(numbered[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def whole_of(parts: Iterable[Part]) -> GrowingTable:
    whole = GrowingTable()
    for part in parts:
        whole.add(part)
    return whole


def table_of(records: Sequence[Record]) -> RewardTable:
    return whole_of(parts_of(records, ())).table()[0]
