from typing import get_args, get_type_hints

import pytest

from gradscope.estimate import Estimate
from gradscope.results.envelope import to_jsonable
from gradscope.results.logged import EntropyNumbers, LoggedPolicy, PolicyEntropy

PARTS = {name: kind for name, kind in get_type_hints(LoggedPolicy).items() if name != "missing"}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_part_has_the_same_numbers_of_the_log_and_of_each_step(part: type) -> None:
    hints = get_type_hints(part)
    assert get_args(hints["overall"])[0] is get_args(hints["by_step"])[0]
    assert get_args(hints["overall"])[0].__struct_fields__[0] == "step"
    assert part().overall is None


def test_a_document_holds_numbers_and_reasons() -> None:
    overall = EntropyNumbers(step=None, mean=Estimate.exact(0.5))
    policy = LoggedPolicy(entropy=PolicyEntropy(overall=overall, origin="entropy"), missing={"sampler": "no such log"})
    document = to_jsonable(policy)
    assert document["entropy"]["overall"]["mean"]["value"] == 0.5
    assert (document["sampler"]["overall"], document["missing"]) == (None, {"sampler": "no such log"})
