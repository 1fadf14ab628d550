"""The rows of the catalogue: complete, apart from each other, and one for every number that a result holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import get_args, get_origin, get_type_hints

import pytest

from gradscope.catalog.entry import Metric
from gradscope.catalog.lookup import CATALOG
from gradscope.estimate import Estimate
from gradscope.metrics.gram.sparsity import row_sparsity
from gradscope.results.degeneracy import (
    DegeneracyReport,
    GapDecomposition,
    GroupSizeDegeneracy,
    Overdispersion,
    StepDegeneracy,
)
from gradscope.results.passk import PassAtK, PassAtKComparison, PassAtKDifference
from gradscope.results.rank import (
    BaselineNoise,
    FormulationUpdate,
    GroupShare,
    RankCurvePoint,
    RankReport,
    Ranks,
    StepGeometry,
)
from gradscope.results.rank_tokens import GradientSparsity
from gradscope.results.replay import ReplayReport
from gradscope.results.signal import AdvantageMass, PassRateDistribution, SignalCost
from gradscope.results.update import WeightUpdate

DIFFERENCES = {"difference"}
"""Differences of two metrics of the catalogue are no metric of their own."""


NULLS = {"gaussian", "principal_null"}
"""What a number would be by chance; the entry of the number says how."""


def estimates_of(result: type) -> set[str]:
    return {field.name for field in dataclasses.fields(result) if field.type == "Estimate"} - DIFFERENCES - NULLS


@pytest.mark.parametrize(
    "result",
    [
        DegeneracyReport,
        GroupSizeDegeneracy,
        StepDegeneracy,
        PassAtK,
        PassAtKDifference,
        PassAtKComparison,
        Ranks,
        RankCurvePoint,
        StepGeometry,
        FormulationUpdate,
        GroupShare,
        BaselineNoise,
        WeightUpdate,
    ],
)
def test_every_number_of_a_result_is_in_the_catalogue(result: type) -> None:
    assert estimates_of(result)
    assert estimates_of(result) <= set(CATALOG)


def test_parts_of_the_gap_and_sparsity_are_in_the_catalogue() -> None:
    assert {f"gap_{name}" for name in estimates_of(GapDecomposition)} <= set(CATALOG)
    assert {f"sparsity.{name}" for name in row_sparsity([1.0])} <= set(CATALOG)


@pytest.mark.parametrize(
    ("family", "result"),
    [
        ("starvation", SignalCost),
        ("overdispersion", Overdispersion),
        ("pass_rates", PassRateDistribution),
        ("advantages", AdvantageMass),
        ("token_sparsity", GradientSparsity),
        ("weight_sparsity", GradientSparsity),
    ],
)
def test_every_number_about_the_signal_is_in_the_catalogue(family: str, result: type) -> None:
    assert {f"{family}.{name}" for name in estimates_of(result)} <= set(CATALOG)


def test_every_entry_says_everything() -> None:
    for name, entry in CATALOG.items():
        assert entry.name == name
        assert all(getattr(entry, field.name).strip() for field in dataclasses.fields(entry) if field.name != "path")
        assert "2606.29238" not in entry.source


RESULTS = {"degeneracy": DegeneracyReport, "rank": RankReport, "replay": ReplayReport}


@pytest.mark.parametrize("entry", [entry for entry in CATALOG.values() if entry.path], ids=lambda entry: entry.name)
def test_a_path_leads_to_a_number_of_the_commands_result(entry: Metric) -> None:
    reached: object = RESULTS[entry.command]
    for name in entry.path.split("."):
        origin, arguments = get_origin(reached), get_args(reached)
        if origin is tuple:
            reached = get_type_hints(arguments[0])[name]
        elif origin is Mapping:
            reached = arguments[1]
        else:
            reached = get_type_hints(reached)[name]
    assert (reached if get_origin(reached) is None else get_args(reached)[1]) in (Estimate, float)


def test_no_two_metrics_share_a_title_or_formula() -> None:
    assert len({entry.title for entry in CATALOG.values()}) == len(CATALOG)
    assert len({entry.formula for entry in CATALOG.values()}) == len(CATALOG)
