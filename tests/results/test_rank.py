from dataclasses import fields
from typing import get_type_hints

import pytest

from gradscope.estimate import Estimate
from gradscope.results.envelope import to_jsonable
from gradscope.results.rank import NullRank, RankCurvePoint, TokenRankPoint, WeightRankPoint
from gradscope.results.tokens import GradientSparsity
from tests.render.examples import filled

POINTS = (RankCurvePoint, TokenRankPoint, WeightRankPoint)


@pytest.mark.parametrize("point", POINTS)
def test_a_point_says_of_which_matrix_it_is_and_has_ranks_and_nulls(point: type) -> None:
    names = [field.name for field in fields(point)]
    assert names[:3] == ["step", "advantage", "group_size"]
    assert {"num_groups", "num_dead", "effective_rank", "stable_rank", "participation_ratio", "nulls"} <= set(names)
    assert get_type_hints(point)["effective_rank"] is Estimate


def test_a_document_holds_a_point_without_a_number_and_its_reason() -> None:
    none = Estimate.undefined_because("every group is dead")
    labels = {"step": 1, "advantage": "grpo", "group_size": 4, "num_groups": 2, "num_dead": 2}
    document = to_jsonable(filled(RankCurvePoint, none, nulls={"random": filled(NullRank, none)}, **labels))
    assert document["effective_rank"]["undefined"] == "every group is dead"
    assert document["nulls"]["random"]["ratio"]["value"] is None


def test_sparsity_is_of_tokens_or_of_entries() -> None:
    assert [field.name for field in fields(GradientSparsity)][:3] == ["step", "parts", "tensor"]
