from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.render.terminal.layout import draw
from gradscope.render.views.rank import merge_same, short_tensor
from gradscope.render.views.view import (
    Column,
    Selection,
    Sparkline,
    View,
    Word,
    entry,
    first_of,
    last_of,
    lines_over,
    tabulate,
    view_table,
)
from gradscope.render.words import Footnotes
from tests.render import examples
from tests.render.printing import printed

Record = SimpleNamespace


def lines_of(view: View, records: list[Record]) -> list[str]:
    notes = Footnotes()
    tables = list(draw((view,), Record(records=records), notes))
    return [line.rstrip() for table in tables for line in printed(table).splitlines()] + list(notes.lines())


def test_a_table_without_records_is_not_drawn_and_says_nothing() -> None:
    assert lines_of(View("records", (Column("a", "a"),), last_of, ("never said",)), []) == []


def test_titles_name_facts_and_nothing_else_of_a_log_is_filled_in() -> None:
    columns = (Column("step {step}", "name"), Column("cosine, {0}{who}", "name"))
    shown = lines_of(View("records", columns, last_of), [Record(step=3, name="a"), Record(step=41, name="b")])
    assert shown[0] == "step 41  cosine, {0}{who}"
    assert shown[2:] == ["b        b"]


def test_a_cell_reads_by_its_value() -> None:
    columns = (
        Column("word", lambda record: Word("abcdefgh", note="twice"), limit=6),
        Column("course", lambda record: Sparkline((0.0, 1.0), width=2)),
        Column("absent", lambda record: None, "share"),
        Column("number", "number", "rank"),
        Column("estimate", "estimate", lambda record: "gap", interval_note=lambda record: record.why),
        Column("short", "estimate", "share"),
        Column("entry", entry("map", "there"), "count"),
        Column("none", entry("map", "absent"), "count"),
    )
    full = Record(number=2, estimate=Estimate(value=0.5, low=0.25, high=0.75), why="", map={"there": 12345})
    alone = Record(number=1.5, estimate=Estimate.exact(0.5), why="one group", map={})
    undefined = Record(number=0, estimate=Estimate.undefined_because("no reward"), why="", map={"there": "7/8"})
    assert lines_of(View("records", columns), [full, alone, undefined])[2:] == [
        "abcd…¹  ▁█           —    2.00  +0.500 [+0.25, +0.75]  0.500  12,345     —",
        "abcd…¹  ▁█           —    1.50  +0.500²                0.500       —     —",
        "abcd…¹  ▁█           —    0.00  —³                        —³     7/8     —",
        "¹ twice",
        "² no interval: one group",
        "³ no reward",
        "Intervals that have no room here are in the JSON and the CSV",
    ]


def test_text_of_a_log_is_escaped_and_a_word_may_have_lines() -> None:
    columns = (Column("log", "text"), Column("ours", lambda record: Word("two\nlines")))
    assert lines_of(View("records", columns), [Record(text="a\nb\x1b")])[2:] == [
        r"a\x0ab\x1b  two",
        "            lines",
    ]


def test_rows_that_are_left_out_are_counted_once() -> None:
    view = View("records", (Column("n", "n"),), lambda all: first_of(all[1:], all, 2, "things"), ("said first",))
    assert lines_of(view, [Record(n=str(n)) for n in range(5)])[2:] == [
        *("1", "2"),
        "said first",
        "3 more things are in the JSON and the CSV",
    ]
    assert first_of("ab", "ab", 2, "things") == Selection("ab")


def test_a_page_has_the_same_columns_unrounded() -> None:
    columns = (Column("name", "name", limit=1), Column("share", lambda record: record.share / 3, "share", "never said"))
    (table,) = tabulate("caption", columns, [Record(name="long", share=1.0)], folded_as="fold")
    assert [(column.title, column.style) for column in table.columns] == [("name", "text"), ("share", "share")]
    assert (table.rows, table.folded_as, table.by_step) == ((("long", 1.0 / 3),), "fold", False)


def test_equal_curves_share_a_row_and_others_do_not() -> None:
    merged = merge_same(examples.rank_report().curve)
    assert [names for names, _ in merged] == [("logged", "dr_grpo"), ("sign",), (examples.HOSTILE,)]
    assert all(point.advantage == "logged" for point in merged[0][1])


def test_arithmetic_does_not_tell_curves_apart_and_dead_groups_do() -> None:
    point = examples.rank_report().curve[0]
    near = Estimate.exact((point.effective_rank.value or 0.0) * (1 + 1e-9))
    twin = replace(point, advantage="twin", effective_rank=near)
    deader = replace(point, advantage="deader", num_dead=point.num_dead + 1)
    none = replace(point, advantage="none", effective_rank=Estimate.undefined_because("dead"))
    assert [names for names, _ in merge_same([point, twin, deader, none])] == [
        ("logged", "twin"),
        ("deader",),
        ("none",),
    ]


def test_rows_of_other_signs_have_equal_ranks_and_another_sum() -> None:
    point = examples.rank_report().curve[0]
    turned = replace(point, advantage="turned", summed_energy=Estimate.exact(0.2))
    assert [names for names, _ in merge_same([point, turned])] == [("logged",), ("turned",)]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("model.layers.11.mlp.up_proj.weight", "11.mlp.up_proj"),
        ("model.embed_tokens.weight", "embed_tokens"),
        ("transformer.h.0.attn.c_attn.bias", "transformer.h.0.attn.c_attn.bias"),
    ],
)
def test_words_that_all_parameters_share_are_left_out(name: str, short: str) -> None:
    assert short_tensor(name) == short


def test_a_course_is_a_chart_and_a_single_step_is_none() -> None:
    (chart,) = lines_over([1, 4], "norms", {"logged": [0.5, None]}, y_label="norm", kinds={"logged": "logged"})
    assert (chart.kind, chart.places, chart.x_label, chart.y_range) == ("lines", (1, 4), "step", None)
    assert [(series.name, series.values, series.kind) for series in chart.series] == [("logged", (0.5, None), "logged")]
    assert lines_over([1], "norms", {"logged": [0.5]}, y_label="norm") == ()


def test_a_view_is_plain_data_for_a_page() -> None:
    columns = (
        Column("step {step},\nadvan-\ntage", lambda record: Word(record.name, "fine", "never said")),
        Column("course", lambda record: Sparkline((0.0, 1.0))),
        Column("share", "share", "share"),
    )
    view = View("records", columns, lambda all: Selection(all[:1], {"step": 3}, ("1 more",)), ("said elsewhere",))
    (table,) = view_table(view, Record(records=[Record(name="a", share=0.25)] * 2), "Caption")
    assert (table.caption, [column.title for column in table.columns]) == (
        "Caption. 1 more",
        ["step 3, advantage", "share"],
    )
    assert table.rows == (("a", 0.25),)
    assert view_table(view, Record(records=[]), "Caption") == ()
