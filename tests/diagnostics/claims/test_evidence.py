"""What claims look at: read once, refused with a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gradscope.diagnostics.claims import evidence as module
from gradscope.diagnostics.claims.evidence import AtHand, Evidence, NotAtHand, token_credit
from gradscope.diagnostics.rank.collected import Collected
from gradscope.errors import InputError
from gradscope.rollouts.groups import RolloutGroup
from tests.diagnostics.made_up_runs import group_of, run_of, two_steps


def with_tokens(*rollouts: dict[str, object]) -> RolloutGroup:
    group = group_of([float(place % 2) for place in range(len(rollouts))], step=1)
    made = [replace(one, **fields) for one, fields in zip(group.rollouts, rollouts, strict=True)]
    return replace(group, rollouts=tuple(made))


def test_logged_advantages_of_tokens_go_first() -> None:
    group = with_tokens({"token_advantages": (1.0, 0.0), "token_rewards": (1.0, 0.0)}, {"token_advantages": (0.5, 0.5)})
    assert token_credit([group]) == ("the logged advantages of tokens", (group,))


def test_rewards_of_tokens_are_what_each_led_to() -> None:
    group = with_tokens({"token_rewards": (1.0, 0.0, 1.0)}, {"token_rewards": (0.0, 0.0)}, {"token_rewards": ()})
    origin, (credited,) = token_credit([group])
    assert "add up to from there on" in origin
    advantages = [rollout.token_advantages for rollout in credited.rollouts]
    assert advantages == [
        pytest.approx((4 / 3, 2 / 3, 2 / 3)),
        pytest.approx((-2 / 3, -1 / 3)),
        (),
    ]


@pytest.mark.parametrize(
    ("rollouts", "words"),
    [
        ([{}, {}], "neither advantages nor rewards of single tokens"),
        ([{"token_rewards": (0.0, 1.0)}, {}], "neither advantages nor rewards of single tokens"),
        ([{"token_advantages": (0.0, 1.0)}, {}], "neither advantages nor rewards of single tokens"),
        ([{"token_advantages": (0.5, 0.5)}, {"token_advantages": (-0.5,)}], "the same at every token of a rollout"),
        ([{"token_rewards": (0.0, 1.0)}, {"token_rewards": ()}], "Only last tokens have a reward"),
    ],
)
def test_what_says_no_more_than_the_outcome_is_refused(rollouts: list[dict[str, object]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        token_credit([with_tokens(*rollouts)])


def test_without_steps_there_are_no_gradients() -> None:
    evidence = Evidence(run=two_steps(), steps=(), no_gradients="nobody asked")
    for ask in (lambda: evidence.gradients("token"), evidence.credited):
        with pytest.raises(InputError, match=r"^nobody asked\.$"):
            ask()
    assert evidence.computed() is None


def test_kinds_are_collected_once_with_sizes_below_the_largest_group(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def collect(run, steps, requests, engine, progress, *, most):
        asked.append((steps, [request.rows for request in requests], requests[0].group_sizes, most))
        return {
            request.rows: Collected(steps=[SimpleNamespace(step=2)], rows=[SimpleNamespace(step=2)])
            for request in requests
        }

    monkeypatch.setattr(module, "collect_kinds", collect)
    evidence = Evidence(run=run_of(group_of([0.0] * 9, step=2)), steps=(2,))
    assert evidence.computed() is None
    assert evidence.gradients("token") is not evidence.gradients("rollout")
    assert evidence.computed() is evidence.gradients("rollout")
    assert evidence.rows(2).step == 2
    assert asked == [((2,), ["rollout", "token", "weight", "hidden", "logit"], (2, 4, 8), module.MOST_TOKENS)]


def test_the_reason_of_the_first_step_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    skipped = Collected(skipped={1: "the weights of step 1 are gone", 2: "so are those of step 2"})
    monkeypatch.setattr(module, "collect_kinds", lambda *_, **__: {"rollout": skipped})
    evidence = Evidence(run=two_steps(), steps=(1, 2))
    with pytest.raises(InputError, match="the weights of step 1 are gone"):
        evidence.gradients("rollout")
    assert evidence.computed() is skipped


def test_token_credit_that_cannot_be_measured_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {
        "rollout": Collected(steps=[SimpleNamespace(step=1)]),
        "weight": Collected(skipped={1: "no group has a gradient"}),
    }
    monkeypatch.setattr(module, "collect_kinds", lambda *_, **__: kinds)
    monkeypatch.setattr(module, "token_credit", lambda groups: ("tokens", tuple(groups)))
    with pytest.raises(InputError, match="no group has a gradient"):
        Evidence(run=two_steps(), steps=(1,)).credited()


def test_an_error_is_kept_as_a_number_is() -> None:
    evidence = Evidence(run=two_steps(), steps=())
    with pytest.raises(InputError, match="An update needs two checkpoints") as first:
        evidence.updates()
    with pytest.raises(InputError) as second:
        evidence.updates()
    assert first.value is second.value


def test_tokens_are_followed_once_and_those_at_hand_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    kinds = {"token": Collected(steps=[SimpleNamespace(step=1)], weighed={1: "tokens"})}
    monkeypatch.setattr(module, "collect_kinds", lambda *_, **__: kinds)
    monkeypatch.setattr(module, "follow", lambda run, weighed, engine: asked.append(weighed) or "followed")
    evidence = Evidence(run=two_steps(), steps=(1,))
    assert evidence.followed_tokens() == evidence.followed_tokens() == "followed"
    assert asked == [{1: "tokens"}]
    at_hand = AtHand(degeneracy=None, steps=(), held_out=None, tokens={1: "at hand"})
    assert Evidence(run=two_steps(), steps=(1,), at_hand=at_hand).weighed_tokens() == {1: "at hand"}
    for evidence in (
        Evidence(run=two_steps(), steps=(1,), at_hand=at_hand),
        Evidence(run=two_steps(), steps=(1,), at_hand=replace(at_hand, tokens=None)),
    ):
        with pytest.raises(NotAtHand):
            evidence.followed_tokens()
    with pytest.raises(NotAtHand):
        evidence.weighed_tokens()


def test_groups_and_their_degeneracy_are_those_of_the_log() -> None:
    evidence = Evidence(run=two_steps(), steps=())
    assert evidence.groups().dead.tolist() == [True, True, False, True]
    assert evidence.degeneracy().frac_reward_zero_std.value == 0.75
    assert evidence.degeneracy() is evidence.degeneracy()
    assert evidence.largest_group == 4
    assert Evidence(run=run_of(), steps=()).largest_group == 0


def test_a_threshold_says_what_passes() -> None:
    run = run_of(*(group_of([0.2, 0.7], step=1, prompt=name) for name in "ab"))
    assert Evidence(run=run, steps=(), success_threshold=0.5).degeneracy().pass_rate.value == 0.5


def sample_files_of(folder: Path, *names: str) -> tuple[str, ...]:
    files = []
    for place, name in enumerate(names):
        rows = [{"task_id": f"t{task}", "n": 4, "c": min(4, task + place)} for task in range(6)]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        files.append(str(folder / name))
    return tuple(files)


def test_reach_takes_two_files_of_samples(tmp_path: Path) -> None:
    files = sample_files_of(tmp_path, "before.jsonl", "after.jsonl", "later.jsonl")
    report = Evidence(run=two_steps(), steps=(), samples=files[:2]).held_out()
    assert report.comparison.rows[0].difference.value == pytest.approx(4 / 24)
    with pytest.raises(InputError, match="two files of samples, before and after, and there are 3"):
        Evidence(run=two_steps(), steps=(), samples=files).held_out()
    for few in ((), files[:1]):
        with pytest.raises(InputError, match="no samples of held-out prompts before and after training"):
            Evidence(run=two_steps(), steps=(), samples=few).held_out()
