"""From a run to one row a claim."""

from itertools import product
from pathlib import Path

import pytest
from msgspec.structs import replace

from gradscope.diagnostics.claims import measure as module
from gradscope.diagnostics.claims.evidence import Claim, ClaimOptions, Evidence, Judgement
from gradscope.diagnostics.claims.measure import MAX_STEPS, claims_of, measure_claims, read_claims
from gradscope.diagnostics.claims.registry import CLAIMS
from gradscope.errors import InputError, UsageError
from gradscope.estimate import Estimate
from gradscope.rollouts.run import Run, WeightsRef
from tests.diagnostics.claims.made_up_evidence import Answered, collected_of
from tests.diagnostics.made_up_runs import group_of, run_of, two_steps
from tests.rollouts.readers.lines import write_lines


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
    seen_evidence: list[Evidence] = []

    def judge(evidence: Evidence) -> Judgement:
        seen_evidence.append(evidence)
        return Judgement(estimate=Estimate.exact(1.0), verdict="cannot_tell", why="Not looked at.")

    monkeypatch.setattr(module, "read_run", lambda *_, **__: run)
    measure_claims("run", claims=[claim(judge)], **options)
    return seen_evidence[0]


def test_formulation_and_steps_are_the_named_ones_or_those_with_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(run_with(range(1, 3), range(2)), monkeypatch).advantage == "dr_grpo"
    options = ClaimOptions(advantage="sign")
    assert seen(run_with(range(1, 3), range(2)), monkeypatch, options=options).advantage == "sign"
    with pytest.raises(UsageError, match="There is no advantage formulation 'nope'"):
        measure_claims("anything", options=ClaimOptions(advantage="nope"))
    run = run_with(range(1, 10), range(0, 9, 2), {3: "two updates share these rollouts"})
    assert seen(run, monkeypatch).steps == (1, 5, 7, 9)
    assert seen(run, monkeypatch, steps=[2, 9, 2]).steps == (2, 9)
    with pytest.raises(InputError, match="no rollouts of step 11"):
        seen(run, monkeypatch, steps=[11])


@pytest.mark.parametrize(("num_steps", "chosen"), [(1, (1,)), (5, (1, 2, 3, 4, 5)), (101, (1, 26, 51, 76, 101))])
def test_at_most_five_steps_from_first_to_last(num_steps: int, chosen: tuple[int, ...], monkeypatch) -> None:
    assert seen(run_with(range(1, num_steps + 1), range(num_steps)), monkeypatch).steps == chosen
    assert len(chosen) <= MAX_STEPS


@pytest.mark.parametrize(
    ("run", "options", "reason"),
    [
        (run_with(range(1, 3), range(2)), {"gradients": False}, "Gradients were not recomputed, as asked"),
        (run_with(range(1, 3), range(0)), {}, "the weights after 0 updates, which made step 1, are not on disk"),
        (run_with(range(1, 3), range(1), {1: "A window."}), {}, "No gradient was recomputed: A window"),
        (run_with(range(1), range(0)), {}, "which weights made step 0 is not known: steps are counted from 1"),
    ],
)
def test_why_no_gradient_is_recomputed(run: Run, options: dict[str, bool], reason: str, monkeypatch) -> None:
    evidence = seen(run, monkeypatch, **options)
    assert evidence.steps == ()
    assert reason in evidence.no_gradients
    assert not evidence.no_gradients.endswith(".")


def test_a_row_is_its_claim_and_its_judgement_or_why_there_is_none() -> None:
    (row,) = claims_of(Answered(), [says("supported")]).claims
    assert (row.name, row.source, row.claim, row.metric) == ("supported", "A test", "It is so.", "a number")
    assert (row.settle, row.why, row.steps, row.verdict) == ("Look.", "It was seen.", (7,), "supported")
    assert row.null.value == 0.0

    def refuse(evidence: Evidence) -> Judgement:
        raise InputError("the log has no rewards.", hint="Log them.")

    report = claims_of(Answered(), [claim(refuse), says("contradicted")])
    assert (report.claims[0].verdict, report.claims[0].why) == ("cannot_tell", "The log has no rewards.")
    assert report.claims[0].null.undefined == "no chance model belongs to this number"
    assert report.claims[1].verdict == "contradicted"


def test_findings_count_verdicts_and_warn_of_several_tests() -> None:
    report = claims_of(Answered(), [says("supported"), says("contradicted"), says("cannot_tell"), says("supported")])
    assert report.findings[0] == "Of 4 claims this run supports 2, contradicts 1 and cannot tell 1."
    assert "not for all together" in report.findings[1]
    ours = claims_of(Answered(), [replace(says(verdict), ours=True) for verdict in ("supported", "contradicted")])
    assert "contradicts 0, does not show 1 by our measure and cannot tell 0" in ours.findings[0]
    assert [row.words for row in ours.claims] == ["supported", "this run does not show it, by our measure"]
    assert [row.verdict for row in ours.claims] == ["supported", "contradicted"]
    assert len(claims_of(Answered(), [says("cannot_tell")]).findings) == 1


@pytest.mark.parametrize(("high", "ours"), [(0.04, True), (-0.01, False)])
def test_a_claim_that_only_a_margin_of_ours_contradicts_refutes_no_source(high: float, ours: bool) -> None:
    estimate = Estimate(value=-0.03, low=-0.1, high=high, num_units=9)
    judged = Judgement(estimate=estimate, verdict="contradicted", why="It was seen.")
    assert claims_of(Answered(), [claim(lambda evidence: judged)]).claims[0].ours == ours


def test_recomputed_steps_and_the_engine_are_reported() -> None:
    evidence = Evidence(run=two_steps(), steps=(1, 2))
    assert (claims_of(evidence, ()).steps, claims_of(evidence, ()).engine) == ((), {})
    evidence.cache["kinds"] = {"rollout": collected_of(skipped={2: "gone"}, engine={"engine": "loop"})}
    report = claims_of(evidence, ())
    assert (report.steps, report.skipped, report.engine) == ((), {2: "gone"}, {"engine": "loop"})


def test_a_log_of_rewards_is_held_against_every_claim(tmp_path: Path) -> None:
    rows = (
        {"prompt_id": f"p{prompt}", "step": step, "reward": int((prompt * sample) % 3 == 0)}
        for step, prompt, sample in product(range(1, 5), range(12), range(4))
    )
    report = measure_claims(write_lines(tmp_path / "log.jsonl", *rows))
    assert [row.name for row in report.claims] == [claim.name for claim in CLAIMS]
    assert report.source.num_rows == 192
    defined = {row.name for row in report.claims if row.estimate.is_defined}
    assert {"dead_groups.excess", "dead_groups.failures", "dead_groups.persist", "sparser.groups"} <= defined


TEXTS = {"name": "mine", "source": "me", "claim": "So it is.", "metric": "pass_rate", "settle": "More."}


def toml(between: str = "[0.2, 0.8]", **changes: str | None) -> str:
    texts = {key: text for key, text in (TEXTS | changes).items() if text is not None}
    lines = [f'{key} = "{text}"' for key, text in texts.items()]
    return "\n".join(["[[claims]]", *lines, *([f"between = {between}"] if between else [])]) + "\n"


def read(folder: Path, text: str) -> tuple[Claim, ...]:
    file = folder / "mine.toml"
    file.write_text(text)
    return read_claims(file)


def log(num_groups: int = 40, **fields: object) -> Answered:
    groups = [
        group_of([1.0, 0.0, float(index % 2)], step=1 + index % 2, prompt=f"p{index}") for index in range(num_groups)
    ]
    return Answered(run=run_of(*groups, **fields), no_gradients="nobody asked for gradients")


@pytest.mark.parametrize(
    ("between", "verdict"),
    [
        ("[0.4, 0.6]", "supported"),
        ("[0, 0.5]", "cannot_tell"),
        ("[0.7, inf]", "contradicted"),
        ("[0, 0]", "contradicted"),
    ],
)
def test_the_metric_lies_in_its_range_or_does_not(tmp_path: Path, between: str, verdict: str) -> None:
    (claim,) = read(tmp_path, toml(between))
    judged = claim.judge(log())
    assert judged.estimate.value == pytest.approx(0.5)
    assert judged.verdict == verdict
    assert judged.why.startswith("pass_rate of 40 groups is said to lie in [")


def test_metrics_of_the_trainer_and_of_some_steps_have_no_interval_or_their_own(tmp_path: Path) -> None:
    texts = toml("[-inf, 1]", metric="grad_norm"), toml("[0, 1]", name="other", metric="pass_rate@last1")
    logged, selected = read(tmp_path, "".join(texts))
    assert {key: getattr(logged, key) for key in TEXTS} == TEXTS | {"metric": "grad_norm"}
    assert selected.name == "other"
    evidence = log(metrics={2: {"grad_norm": 0.5}})
    judged = logged.judge(evidence)
    assert (judged.verdict, judged.estimate.value) == ("cannot_tell", 0.5)
    assert judged.why.endswith("; without an interval nobody can tell.")
    assert selected.judge(evidence).verdict == "supported"


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("no_such_metric", "No_such_metric is not one number of a run."),
        ("effective_rank", "Nobody asked for gradients."),
        ("effective_rank@last", "Nobody asked for gradients."),
    ],
)
def test_a_metric_that_cannot_be_had_says_why(tmp_path: Path, metric: str, words: str) -> None:
    (claim,) = read(tmp_path, toml(metric=metric))
    judged = claim.judge(log())
    assert (judged.verdict, judged.why) == ("cannot_tell", words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no claim"),
        ("claims = [1]", "Claim 1 of .* has no text 'name'"),
        (toml() + toml(source=None), "Claim 2 of .* has no text 'source'"),
        (toml(settle="  "), "has no text 'settle'"),
        (toml("").replace("name = ", "name = 3 #"), "has no text 'name'"),
        (toml(""), "no range `between` of two numbers"),
        (toml("[0, nan]"), "no range `between` of two numbers"),
        (toml("[1, 0]"), "The range of claim 1 of .* ends before it begins"),
    ],
)
def test_what_a_claim_lacks_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        read(tmp_path, text)
    assert "[[claims]] with name, source, claim, metric, settle and between" in str(error.value.hint)


def test_files_that_are_no_toml(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_claims(tmp_path / "absent.toml")
    with pytest.raises(InputError, match=r"mine\.toml is not TOML"):
        read(tmp_path, "[[claims\n")


def test_claims_on_dead_groups_are_open_where_a_filter_has_dropped_them() -> None:
    passing = [[1.0, float(n % 4 == 0), 0.0, 0.0] for n in range(200)]
    run = run_of(*(group_of(rewards, step=n // 20, prompt=str(n % 20)) for n, rewards in enumerate(passing)))
    reasons = [row.why for row in claims_of(Evidence(run=run, steps=())).claims if row.name.startswith("dead_groups.")]
    assert set(reasons) == {"A filter has probably dropped dead groups before they were logged."}


def test_what_must_not_be_computed_for_claims_leaves_them_out() -> None:
    needs = (None, "rollout", "weighed", "token", "update")
    claims = [replace(says("supported"), name=str(need), needs=need) for need in needs]
    evidence = Evidence(run=two_steps(), steps=(1,), is_restricted=True, cache={"weighed_tokens": {1: "at hand"}})
    assert [row.name for row in claims_of(evidence, claims).claims] == ["None", "rollout", "weighed"]
    assert [row.name for row in claims_of(replace(evidence, cache={}), claims).claims] == ["None", "rollout"]
    assert len(claims_of(replace(evidence, is_restricted=False), claims).claims) == len(needs)
