"""Files written by hand, and what is said where one is not what it should be."""

from pathlib import Path

import pytest

from gradscope.catalog.lookup import CATALOG
from gradscope.diagnostics.check import requirements
from gradscope.errors import InputError, UsageError
from gradscope.results.verdicts import Requirement


@pytest.mark.parametrize(("text", "words"), [(None, "cannot be read"), ("[check", "is not TOML")])
def test_an_unusable_file_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "a.toml").write_text(text)
    with pytest.raises(InputError, match=f"a.toml {words}"):
        requirements.read_toml(tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [
        ("all", (2, 4, 6, 8, 10)),
        ("4-8", (4, 6, 8)),
        ("2,6-8", (2, 6, 8)),
        ("last3", (6, 8, 10)),
        ("first20%", (2,)),
        ("last30%", (8, 10)),
        ("last0", ()),
        ("2,5:9", (2, 6, 8)),
    ],
)
def test_steps_that_a_selector_means(steps: str, chosen: tuple[int, ...]) -> None:
    assert requirements.Selector(steps=steps, aggregate="mean").choose((2, 4, 6, 8, 10)) == chosen


@pytest.mark.parametrize(
    ("logged", "steps", "must_have", "reason"),
    [
        ([], range(1, 9), "all", None),
        ([1], [], "all", None),
        ([3], range(1, 9), "last", "is last known at step 3, and the run goes on to step 8"),
        ([3], range(1, 4), "all", "is not known at steps 1 to 2"),
        ([6], range(1, 9), "all", None),  # its window of three steps, and less than another
        ([5, 10, 15], range(1, 20), "all", None),
        ([5, 10, 15], range(1, 21), "all", "is last known at step 15, and the run goes on to step 20"),
        ([0, 5, 10, 20], range(0, 21), "all", "is not known at steps 11 to 19"),
        ([1, 2, 3], range(0, 4), "all", None),  # a validation before the first step
        ([1, 2, 3, 9], [1, 2, 3, 9], "all", None),
        ([1, 2, 3, 9], [2, 3, 5, 9], "all", "is not known at step 5"),
        ([1, 2, 3, 9], [2, 3, 5, 9], "last", None),
        ([9, 10], range(1, 9), "last", None),
        (range(1, 91), range(1, 101), "most", None),
        (range(1, 90), range(1, 101), "most", "is last known at step 89, and the run goes on to step 100"),
        ([1, 2], range(1, 4), "most", None),
    ],
)
def test_a_metric_is_silent_where_it_skips_more_than_its_usual_distance(
    logged: list[int], steps: list[int], must_have: requirements.Needed, reason: str | None
) -> None:
    assert requirements.coverage_gap(logged, steps, {6: 3}, must_have) == reason


def test_what_is_no_selector_belongs_to_the_name() -> None:
    names = [*CATALOG, "pass@8", "val/mean@8", "x@", "@max", "x@last20%:median", "x@last200%", "x@5", "x@5,", "x@5:max"]
    assert [requirements.split_metric(name) for name in names] == [(name, None) for name in names]
    # a single step is one where no number has the whole name
    names = ["kl", "val/mean", "val/mean@8", "pass_at_k"]
    texts = ["kl@5", "kl@5:max", "pass@8@5", "val/mean@8", "val/mean@9", "pass@8", "kl@5:median", "x@5", "kl@5-9"]
    assert [requirements.with_range(text, names) for text in texts] == [
        *("kl@5-5", "kl@5-5:max", "pass@8@5-5", "val/mean@8", "val/mean@9-9", "pass@8", "kl@5:median", "x@5", "kl@5-9")
    ]


@pytest.mark.parametrize(
    ("aggregate", "value"), [("mean", 7 / 3), ("max", 4.0), ("min", 1.0), ("last", 2.0), ("trend", 1.0)]
)
def test_numbers_of_steps_become_one(aggregate: requirements.Aggregate, value: float) -> None:
    """1, 4 and 2 at steps 2, 4 and 6: the least-squares slope is 1/4 a step, over four steps 1."""
    selector = requirements.Selector(steps="all", aggregate=aggregate)
    estimate = requirements.aggregate_steps({2: 1.0, 4: 4.0, 6: 2.0}, selector)
    assert estimate.value == pytest.approx(value)
    assert (estimate.interval is None) == (aggregate != "trend")
    assert estimate.num_units == 3
    nothing = requirements.aggregate_steps({}, requirements.Selector(steps="last3", aggregate=aggregate))
    assert nothing.undefined == "none of the steps 'last3' has a value"


@pytest.mark.parametrize(
    ("text", "steps", "aggregate"),
    [
        ("kl@max", "all", "max"),
        ("kl@5-20", "5-20", "mean"),
        ("kl@5:20,30:max", "5:20,30", "max"),
        ("pass@8@first10%:min", "first10%", "min"),
        ("a@b@trend", "all", "trend"),
    ],
)
def test_what_follows_the_last_at_sign_selects(text: str, steps: str, aggregate: requirements.Aggregate) -> None:
    selector = requirements.Selector(steps=steps, aggregate=aggregate)
    assert requirements.split_metric(text) == (text.rpartition("@")[0], selector)


@pytest.mark.parametrize(
    ("text", "requirement"),
    [
        ("frac_reward_zero_std <= 0.5", Requirement(metric="frac_reward_zero_std", op="<=", limit=0.5)),
        (" pass@8>.25 ", Requirement(metric="pass@8", op=">", limit=0.25)),
        ("rewards/acc/mean != -1e-3", Requirement(metric="rewards/acc/mean", op="!=", limit=-0.001)),
        ("sparsity.gini==0", Requirement(metric="sparsity.gini", op="==", limit=0.0)),
    ],
)
def test_grammar(text: str, requirement: Requirement) -> None:
    assert requirements.parse_requirement(text) == requirement


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        *(
            (text, "is not '<metric> <op> <number>'", requirements._EXAMPLE)
            for text in ("", "pass@8", "pass@8 0.5", "<= 0.5", "a <= 0.5 0.6")
        ),
        ("pass@8 = 1", "There is no operator '='", "Write 'pass@8 == 1'"),
        ("pass@8 => 1", "There is no operator '=>'", "Write 'pass@8 >= 1'"),
        ("pass@8 << 1", "There is no operator '<<'", "The operators are <, <=, >, >=, ==, !=."),
        *(
            (f"pass@8 > {limit}", f"The limit '{limit}' .* is not a finite number", f"Write 'pass@8 > {share}'")
            for limit, share in (("half", 0.5), ("45%", 0.45), ("nan", 0.5), ("inf", 0.5))
        ),
    ],
)
def test_what_is_no_requirement_is_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        requirements.parse_requirement(text)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", "[tool.gradscope.check]\nrequire = ['pass@1 > 0']"),
        ("gradscope.toml", "[check]\nrequire = ['pass@1 > 0']"),
    ],
)
def test_requirements_of_a_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    read = requirements.read_settings(tmp_path / name)
    assert read.requirements == (Requirement(metric="pass@1", op=">", limit=0.0),)
    (tmp_path / "pyproject.toml").write_text("[check]\nrequire = ['pass@1 > 0']\n[tool.ruff]\n")
    assert requirements.read_settings(tmp_path / "pyproject.toml").requirements == ()


def test_settings_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "gradscope.toml").write_text(
        '[check]\nrequire = ["pass@1 > 0"]\ntrack = ["pass@8"]\nallow_unknown = ["pass@8"]\n'
        'baseline = "base.json"\nrule = "value"\nmargins = { "pass@8" = 0.02 }\n'
    )
    settings = requirements.read_settings(tmp_path / "gradscope.toml")
    assert (settings.track, settings.allow_unknown, settings.rule) == (("pass@8",), ("pass@8",), "value")
    assert settings.baseline == tmp_path / "base.json"
    assert settings.margins == {"pass@8": 0.02}


def test_one_text_is_a_list_of_one() -> None:
    """Its letters were the list: "The requirement 'p' is not ..."."""
    settings = requirements.CheckSettings(requirements="pass@4 > 0", track="pass@8", allow_unknown="pass@1")
    assert (*settings.requirements, *settings.track, *settings.allow_unknown) == ("pass@4 > 0", "pass@8", "pass@1")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("requires = []", "sets 'requires', which check does not know"),
        ("baseline = 1", "`baseline` in .* is not a path"),
        ("rule = 'mean'", "`rule` is 'mean'"),
        ("margins = { x = -1 }", "`margins` in .* is not a table of numbers from 0 on"),
        (f"margins = {{ x = {'9' * 400} }}", "`margins` in .* is not a table of numbers from 0 on"),
        *(
            (f"{key} = {value}", f"`{key}` in .* is not a list of strings")
            for key, value in (("track", "'x'"), ("require", "'pass@1 > 0'"), ("require", "[1]"))
        ),
    ],
)
def test_settings_that_do_not_read_are_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "gradscope.toml").write_text(f"[check]\n{line}\n")
    with pytest.raises(UsageError, match=message):
        requirements.read_settings(tmp_path / "gradscope.toml")
