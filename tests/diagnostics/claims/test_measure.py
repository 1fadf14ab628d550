"""From a run to one row a claim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.diagnostics.claims import measure as module
from gradscope.diagnostics.claims.claim import Claim, Judgement
from gradscope.diagnostics.claims.evidence import Evidence
from gradscope.diagnostics.claims.measure import MOST_STEPS, claims_of, measure_claims
from gradscope.diagnostics.claims.registry import CLAIMS
from gradscope.diagnostics.rank.collected import Collected
from gradscope.errors import InputError, UsageError
from gradscope.estimate import Estimate
from gradscope.rollouts.run import Run, WeightsRef
from tests.diagnostics.claims.made_up_evidence import Given
from tests.diagnostics.made_up_runs import group_of, run_of, two_steps


def claim(judge, name: str = "mine") -> Claim:
    return Claim(name=name, source="A test", claim="It is so.", metric="a number", settle="Look.", judge=judge)


def says(verdict: str) -> Claim:
    judged = Judgement(estimate=Estimate.exact(1.0), verdict=verdict, why="It was seen.", steps=(7,))
    return claim(lambda _: judged, verdict)


def run_with(steps: range, updates: range, notes: dict[int, str] | None = None) -> Run:
    weights = tuple(WeightsRef(num_updates=num, path=Path(f"checkpoint-{num}"), kind="full") for num in updates)
    groups = [group_of([0.0, 1.0], step=step) for step in steps]
    return replace(run_of(*groups, notes=notes), weights=weights)


def seen(run: Run, monkeypatch: pytest.MonkeyPatch, **options: object) -> Evidence:
    """The evidence that a judge is given."""
    given: list[Evidence] = []

    def judge(evidence: Evidence) -> Judgement:
        given.append(evidence)
        return Judgement(estimate=Estimate.exact(1.0), verdict="cannot_tell", why="Not looked at.")

    monkeypatch.setattr(module, "read_run", lambda *_, **__: run)
    measure_claims("run", claims=[claim(judge)], **options)
    return given[0]


def test_ranks_are_measured_under_the_formulation_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(run_with(range(1, 3), range(2)), monkeypatch).advantage == "dr_grpo"
    assert seen(run_with(range(1, 3), range(2)), monkeypatch, advantage="sign").advantage == "sign"
    with pytest.raises(UsageError, match="There is no advantage formulation 'nope'"):
        measure_claims("anything", advantage="nope")


@pytest.mark.parametrize(
    ("num_steps", "chosen"), [(1, (1,)), (5, (1, 2, 3, 4, 5)), (9, (1, 3, 5, 7, 9)), (101, (1, 26, 51, 76, 101))]
)
def test_at_most_five_steps_from_first_to_last(num_steps: int, chosen: tuple[int, ...], monkeypatch) -> None:
    run = run_with(range(1, num_steps + 1), range(num_steps))
    assert seen(run, monkeypatch).steps == chosen
    assert len(chosen) <= MOST_STEPS


def test_only_steps_with_weights_and_rollouts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(range(1, 10), range(0, 9, 2), {3: "two updates share these rollouts"})
    assert seen(run, monkeypatch).steps == (1, 5, 7, 9)
    assert seen(run, monkeypatch, steps=[2, 9, 2]).steps == (2, 9)
    with pytest.raises(InputError, match="no rollouts of step 11"):
        seen(run, monkeypatch, steps=[11])


@pytest.mark.parametrize(
    ("run", "options", "reason"),
    [
        (run_with(range(1, 3), range(2)), {"gradients": False}, "Gradients were not recomputed, as asked"),
        (run_with(range(1, 3), range(0)), {}, "the weights after 0 updates, which made step 1, are not on disk"),
        (
            run_with(range(1, 3), range(1), {1: "A window of steps."}),
            {},
            "No gradient was recomputed: A window of steps",
        ),
        (run_with(range(1), range(0)), {}, "which weights made step 0 is not known: steps are counted from 1"),
    ],
)
def test_why_no_gradient_is_recomputed(run: Run, options: dict[str, bool], reason: str, monkeypatch) -> None:
    evidence = seen(run, monkeypatch, **options)
    assert evidence.steps == ()
    assert reason in evidence.no_gradients
    assert not evidence.no_gradients.endswith(".")


def test_a_row_is_its_claim_and_its_judgement() -> None:
    (row,) = claims_of(Given(), [says("supported")]).claims
    assert (row.name, row.source, row.claim, row.metric) == ("supported", "A test", "It is so.", "a number")
    assert (row.settle, row.why, row.steps, row.verdict) == ("Look.", "It was seen.", (7,), "supported")
    assert row.null.undefined == "no chance model belongs to this number"


def test_what_a_judge_lacks_is_its_row() -> None:
    def refuse(evidence: Evidence) -> Judgement:
        raise InputError("the log has no rewards.", hint="Log them.")

    report = claims_of(Given(), [claim(refuse), says("contradicted")])
    assert (report.claims[0].verdict, report.claims[0].why) == ("cannot_tell", "The log has no rewards.")
    assert report.claims[1].verdict == "contradicted"


def test_findings_count_and_warn_where_something_is_said() -> None:
    report = claims_of(Given(), [says("supported"), says("contradicted"), says("cannot_tell"), says("supported")])
    assert report.findings[0] == "Of 4 claims this run supports 2, contradicts 1 and cannot tell 1."
    assert "not for all together" in report.findings[1]
    ours = claims_of(Given(), [replace(says(verdict), ours=True) for verdict in ("supported", "contradicted")])
    assert "contradicts 0, does not show 1 by our measure and cannot tell 0" in ours.findings[0]
    assert [row.words for row in ours.claims] == ["supported", "this run does not show it, by our measure"]
    assert [row.verdict for row in ours.claims] == ["supported", "contradicted"]
    assert len(claims_of(Given(), [says("cannot_tell")]).findings) == 1


def test_what_was_recomputed_is_told() -> None:
    evidence = Evidence(run=two_steps(), steps=(1, 2))
    assert (claims_of(evidence, ()).steps, claims_of(evidence, ()).engine) == ((), {})
    evidence.cache["gradients"] = {"rollout": Collected(skipped={2: "gone"}, engine={"engine": "loop"})}
    report = claims_of(evidence, ())
    assert (report.steps, report.skipped, report.engine) == ((), {2: "gone"}, {"engine": "loop"})


def test_a_log_of_rewards_is_held_against_every_claim(tmp_path: Path) -> None:
    rows = "".join(
        f'{{"prompt_id": "p{prompt}", "step": {step}, "reward": {int((prompt * sample) % 3 == 0)}}}\n'
        for step in range(1, 5)
        for prompt in range(12)
        for sample in range(4)
    )
    (tmp_path / "log.jsonl").write_text(rows)
    report = measure_claims(tmp_path / "log.jsonl")
    assert [row.name for row in report.claims] == [one.name for one in CLAIMS]
    assert report.source.num_rows == 192
    known = {row.name for row in report.claims if row.estimate.is_defined}
    assert {"dead_groups.excess", "dead_groups.failures", "dead_groups.persist", "sparser.groups"} <= known
