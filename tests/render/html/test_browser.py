"""What groups and rollouts are told by, and which of them are shown token by token."""

from __future__ import annotations

from dataclasses import replace

from gradscope.render.html.browser import rollout_line, share_of_group, summary_of, token_texts_of
from gradscope.render.html.page import render_page
from tests.render.report_example import run_report

REPORT = run_report()
MIXED, DEAD = REPORT.rollouts
PAGE = render_page(REPORT)


def test_a_group_is_told_by_its_reward_and_its_part_of_the_gradient() -> None:
    assert summary_of(MIXED) == " · mean reward 1 · +40.0 % of the gradient"
    assert (share_of_group(MIXED), share_of_group(DEAD)) == ("0.4", "0.1")
    unknown = replace(MIXED, rollouts=MIXED.rollouts[1:])
    assert (summary_of(unknown), share_of_group(unknown)) == ("", "")


def test_a_rollout_is_told_by_what_is_known_of_it() -> None:
    assert [rollout_line(one) for one in MIXED.rollouts] == [
        "#0 · reward 1 · advantage 0.7 · +40.0 % of the gradient",
        "#1",
    ]


def test_a_rollout_that_was_measured_leads_to_its_tokens() -> None:
    signal = REPORT.sections[0]
    named = replace(signal, texts=(replace(signal.texts[0], title="1:1 #1"),))
    report = replace(REPORT, sections=(named, *REPORT.sections[1:]))
    assert token_texts_of(report) == {("1:1", 1): "signal-text-1"}
    page = render_page(report)
    assert 'id="signal-text-1"' in page
    assert '<a href="#signal-text-1">token by token</a>' in page
    assert 'data-like="signal-text-1"' in page


def test_line_breaks_and_spaces_of_a_text_stay() -> None:
    assert '<p class="text">no\n  indent</p>' in PAGE


def test_a_report_without_texts_has_no_list_of_rollouts() -> None:
    assert 'id="rollouts"' in PAGE
    assert 'id="rollouts"' not in render_page(replace(REPORT, rollouts=()))
