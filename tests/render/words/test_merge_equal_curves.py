from __future__ import annotations

import dataclasses

from gradscope.estimate import Estimate
from gradscope.render.words.merge_equal_curves import merge_same
from tests.render import examples


def test_equal_curves_share_a_row_and_others_do_not() -> None:
    merged = merge_same(examples.rank_report().curve)
    assert [names for names, _ in merged] == [("logged", "dr_grpo"), ("sign",), (examples.HOSTILE,)]
    assert all(point.advantage == "logged" for point in merged[0][1])


def test_arithmetic_does_not_tell_curves_apart_and_dead_groups_do() -> None:
    point = examples.rank_report().curve[0]
    near = Estimate.exact((point.effective_rank.value or 0.0) * (1 + 1e-9))
    twin = dataclasses.replace(point, advantage="twin", effective_rank=near)
    deader = dataclasses.replace(point, advantage="deader", num_dead=point.num_dead + 1)
    none = dataclasses.replace(point, advantage="none", effective_rank=Estimate.undefined_because("dead"))
    assert [names for names, _ in merge_same([point, twin, deader, none])] == [
        ("logged", "twin"),
        ("deader",),
        ("none",),
    ]


def test_rows_of_other_signs_have_equal_ranks_and_another_sum() -> None:
    point = examples.rank_report().curve[0]
    turned = dataclasses.replace(point, advantage="turned", summed_energy=Estimate.exact(0.2))
    assert [names for names, _ in merge_same([point, turned])] == [("logged",), ("turned",)]
