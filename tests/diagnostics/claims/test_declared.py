"""A user's own claims."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.diagnostics.check.metric_values import MetricValues
from gradscope.diagnostics.claims import declared
from gradscope.diagnostics.claims.claim import Claim
from gradscope.diagnostics.claims.declared import read_claims
from gradscope.errors import InputError, UsageError
from gradscope.rollouts.read_options import ReadOptions
from tests.diagnostics.claims.made_up_evidence import Given
from tests.diagnostics.made_up_runs import group_of, run_of

TEXTS = {"name": "mine", "source": "me", "claim": "So it is.", "metric": "pass_rate", "settle": "More."}


def toml(between: str = "[0.2, 0.8]", **changes: str | None) -> str:
    texts = {key: text for key, text in (TEXTS | changes).items() if text is not None}
    lines = [f'{key} = "{text}"' for key, text in texts.items()]
    return "\n".join(["[[claims]]", *lines, *([f"between = {between}"] if between else [])]) + "\n"


def read(folder: Path, text: str) -> tuple[Claim, ...]:
    file = folder / "mine.toml"
    file.write_text(text)
    return read_claims(file)


def log(num_groups: int = 40, **more: object) -> Given:
    groups = [
        group_of([1.0, 0.0, float(place % 2)], step=1 + place % 2, prompt=f"p{place}") for place in range(num_groups)
    ]
    return Given(run=run_of(*groups, **more), no_gradients="nobody asked for gradients")


def test_claims_are_read_in_order(tmp_path: Path) -> None:
    first, second = read(tmp_path, toml() + toml("[-inf, 1]", name="other"))
    assert (first.name, second.name) == ("mine", "other")
    assert {key: getattr(first, key) for key in TEXTS} == TEXTS


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
    logged, selected = read(tmp_path, toml("[0, 1]", metric="grad_norm") + toml("[0, 1]", metric="pass_rate@last1"))
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
        ("frac_replay_mismatch", "Nobody asked for gradients."),
        ("effective_rank@last", "Nobody asked for gradients."),
    ],
)
def test_a_metric_that_cannot_be_had_says_why(tmp_path: Path, metric: str, words: str) -> None:
    (claim,) = read(tmp_path, toml(metric=metric))
    judged = claim.judge(log())
    assert (judged.verdict, judged.why) == ("cannot_tell", words)


def test_a_run_is_read_again_as_it_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def values(**fields: object) -> MetricValues:
        made.append(fields["read"])
        return MetricValues(**fields)

    monkeypatch.setattr(declared, "MetricValues", values)
    (claim,) = read(tmp_path, toml())
    options = ReadOptions(initial_weights=tmp_path)
    claim.judge(replace(log(), read=options))
    assert made == [options]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no claim"),
        ("claims = 3", "holds no claim"),
        ("claims = []", "holds no claim"),
        ("claims = [1]", "Claim 1 of .* has no text 'name'"),
        (toml() + toml(source=None), "Claim 2 of .* has no text 'source'"),
        (toml(settle="  "), "has no text 'settle'"),
        (toml("").replace("name = ", "name = 3 #"), "has no text 'name'"),
        (toml(""), "no range `between` of two numbers"),
        (toml("[1]"), "no range `between` of two numbers"),
        (toml("[0, nan]"), "no range `between` of two numbers"),
        (toml("[false, true]"), "no range `between` of two numbers"),
        (toml('"0 to 1"'), "no range `between` of two numbers"),
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
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"bytes\.toml is not TOML"):
        read_claims(tmp_path / "bytes.toml")
