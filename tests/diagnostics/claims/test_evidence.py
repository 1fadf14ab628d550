"""What claims look at: read once, refused with a reason."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from gradscope.diagnostics.claims import evidence as module
from gradscope.diagnostics.rank import measure, tokens
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.rollouts.groups import RolloutGroup
from tests.diagnostics.claims.made_up_evidence import between, collected_of
from tests.diagnostics.made_up_runs import group_of, run_of, two_steps
from tests.rollouts.readers.lines import write_lines


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.5, 2.5, "supported"),
        (1.49, 2.5, "cannot_tell"),
        (1.5, 2.51, "cannot_tell"),
        (1.0, 1.49, "contradicted"),
        (2.51, 3.0, "contradicted"),
    ],
)
def test_a_number_is_in_its_range_where_its_whole_interval_is(low: float, high: float, verdict: str) -> None:
    assert module.in_range(between(low, high), 1.5, 2.5) == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.001, 0.3, "supported"),
        (0.0, 0.3, "cannot_tell"),
        (-0.1, 0.05, "cannot_tell"),
        (0.001, 0.049, "contradicted"),
        (0.001, 0.05, "supported"),
    ],
)
def test_a_rise_is_above_zero_and_may_be_as_large_as_its_margin(low: float, high: float, verdict: str) -> None:
    assert module.rises(between(low, high), 0.0, 0.05) == verdict
    assert module.rises(between(1 + low, 1 + high), 1.0, 0.05) == verdict


@pytest.mark.parametrize("number", [Estimate.exact(2.0), Estimate.undefined_because("not logged")])
def test_without_an_interval_nobody_can_tell(number: Estimate) -> None:
    assert module.in_range(number, 1.5, 2.5) == module.in_range(number, 5.0, 6.0, num_tests=2) == "cannot_tell"
    assert module.rises(number, 0.0, 0.1) == "cannot_tell"


def test_verdicts_hold_together_and_a_reason_becomes_a_sentence() -> None:
    assert module.all_hold(["supported", "supported"]) == "supported"
    assert module.all_hold(["supported", "cannot_tell"]) == "cannot_tell"
    assert module.all_hold(["cannot_tell", "contradicted", "supported"]) == "contradicted"
    assert module.all_hold([]) == "cannot_tell"
    judged = module.cannot_tell("no step has such a gradient", steps=(1, 2))
    assert (judged.verdict, judged.why, judged.steps) == ("cannot_tell", "No step has such a gradient.", (1, 2))
    assert judged.estimate.undefined == "no step has such a gradient"
    assert judged.null is module.NO_NULL
    assert module.cannot_tell("too few", estimate=Estimate.exact(0.5)).estimate.value == 0.5


def with_tokens(*rollouts: dict[str, object]) -> RolloutGroup:
    group = group_of([float(index % 2) for index in range(len(rollouts))], step=1)
    made = [replace(rollout, **fields) for rollout, fields in zip(group.rollouts, rollouts, strict=True)]
    return replace(group, rollouts=tuple(made))


def test_logged_advantages_of_tokens_go_before_rewards_of_tokens() -> None:
    group = with_tokens({"token_advantages": (1.0, 0.0), "token_rewards": (1.0, 0.0)}, {"token_advantages": (0.5, 0.5)})
    assert module.token_credit([group]) == ("the logged advantages of tokens", (group,))
    group = with_tokens({"token_rewards": (1.0, 0.0, 1.0)}, {"token_rewards": (0.0, 0.0)}, {"token_rewards": ()})
    origin, (credited,) = module.token_credit([group])
    assert "add up to from there on" in origin
    advantages = [rollout.token_advantages for rollout in credited.rollouts]
    assert advantages == [pytest.approx((4 / 3, 2 / 3, 2 / 3)), pytest.approx((-2 / 3, -1 / 3)), ()]


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
        module.token_credit([with_tokens(*rollouts)])


def test_without_steps_there_are_no_gradients_and_an_error_is_raised_again() -> None:
    evidence = module.Evidence(run=two_steps(), steps=(), no_gradients="nobody asked")
    for ask in (lambda: evidence.gradients("token"), evidence.credited):
        with pytest.raises(InputError, match=r"^nobody asked\.$"):
            ask()
    assert evidence.computed() is None
    evidence = module.Evidence(run=two_steps(), steps=())
    with pytest.raises(InputError, match="An update needs two checkpoints") as first:
        evidence.updates()
    with pytest.raises(InputError) as second:
        evidence.updates()
    assert first.value is second.value


def test_kinds_are_collected_once_with_sizes_below_the_largest_group(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def collect(run, steps, requests, engine, progress, *, max_tokens):
        calls.append((steps, [request.rows for request in requests], requests[0].group_sizes, max_tokens))
        step = SimpleNamespace(step=2)
        return {request.rows: collected_of(steps=[step], rows=[step]) for request in requests}

    monkeypatch.setattr(measure, "collect_kinds", collect)
    evidence = module.Evidence(run=run_of(group_of([0.0] * 9, step=2)), steps=(2,))
    assert evidence.computed() is None
    assert evidence.gradients("token") is not evidence.gradients("rollout")
    assert evidence.computed() is evidence.gradients("rollout")
    assert evidence.rows(2).step == 2
    assert calls == [((2,), ["rollout", "token", "weight", "hidden", "logit"], (2, 4, 8), module.MAX_TOKENS)]


def test_steps_without_a_gradient_give_their_first_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    skipped = collected_of(skipped={1: "the weights of step 1 are gone", 2: "so are those of step 2"})
    monkeypatch.setattr(measure, "collect_kinds", lambda *_, **__: {"rollout": skipped})
    evidence = module.Evidence(run=two_steps(), steps=(1, 2))
    with pytest.raises(InputError, match="the weights of step 1 are gone"):
        evidence.gradients("rollout")
    assert evidence.computed() is skipped
    kinds = {
        "rollout": collected_of(steps=[SimpleNamespace(step=1)]),
        "weight": collected_of(skipped={1: "no group has a gradient"}),
    }
    monkeypatch.setattr(measure, "collect_kinds", lambda *_, **__: kinds)
    monkeypatch.setattr(module, "token_credit", lambda groups: ("tokens", tuple(groups)))
    with pytest.raises(InputError, match="no group has a gradient"):
        module.Evidence(run=two_steps(), steps=(1,)).credited()


def test_tokens_are_followed_once_and_those_at_hand_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    kinds = {"token": collected_of(steps=[SimpleNamespace(step=1)], weighed={1: SimpleNamespace(tokens="tokens")})}
    monkeypatch.setattr(measure, "collect_kinds", lambda *_, **__: kinds)
    monkeypatch.setattr(tokens, "token_changes", lambda run, steps, engine: (calls.append(steps) or {1: "change"}, {}))
    evidence = module.Evidence(run=two_steps(), steps=(1,))
    assert evidence.followed_tokens() == evidence.followed_tokens() == {1: ("tokens", "change")}
    assert calls == [{1: "tokens"}]
    for missing, words in (({1: "no weights"}, "no weights."), ({}, f"{module.NO_TOKENS}.")):
        monkeypatch.setattr(tokens, "token_changes", lambda *_, missing=missing: ({}, missing))
        with pytest.raises(InputError, match=words):
            replace(evidence, cache={}).followed_tokens()
    of_report = replace(evidence, is_restricted=True, cache={"weighed_tokens": {1: "at hand"}})
    assert of_report.weighed_tokens() == {1: "at hand"}


def test_groups_and_their_degeneracy_are_those_of_the_log() -> None:
    evidence = module.Evidence(run=two_steps(), steps=())
    assert evidence.groups().dead.tolist() == [True, True, False, True]
    assert evidence.degeneracy().frac_reward_zero_std.value == 0.75
    assert evidence.degeneracy() is evidence.degeneracy()
    assert evidence.request("weight").group_sizes == (2,)
    assert module.Evidence(run=run_of(), steps=()).request("weight").group_sizes == ()
    run = run_of(*(group_of([0.2, 0.7], step=1, prompt=name) for name in "ab"))
    assert module.Evidence(run=run, steps=(), success_threshold=0.5).degeneracy().pass_rate.value == 0.5


def sample_files_of(folder: Path, *names: str) -> tuple[str, ...]:
    counts = [[{"task_id": f"t{task}", "n": 4, "c": min(4, task + file)} for task in range(6)] for file in range(3)]
    return tuple(str(write_lines(folder / name, *rows)) for name, rows in zip(names, counts, strict=True))


def test_reach_takes_two_files_of_samples(tmp_path: Path) -> None:
    files = sample_files_of(tmp_path, "before.jsonl", "after.jsonl", "later.jsonl")
    report = module.Evidence(run=two_steps(), steps=(), samples=files[:2]).held_out()
    assert report.comparison.rows[0].difference.value == pytest.approx(4 / 24)
    with pytest.raises(InputError, match="two files of samples, before and after, and there are 3"):
        module.Evidence(run=two_steps(), steps=(), samples=files).held_out()
    for few in ((), files[:1]):
        with pytest.raises(InputError, match="no samples of held-out prompts before and after training"):
            module.Evidence(run=two_steps(), steps=(), samples=few).held_out()
