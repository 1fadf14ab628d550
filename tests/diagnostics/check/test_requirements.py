from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.diagnostics.check.requirements import parse_requirement, read_requirements, read_settings
from gradscope.errors import InputError, UsageError
from gradscope.results.check import Requirement


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
    assert parse_requirement(text) == requirement


@pytest.mark.parametrize("text", ["", "pass@8", "pass@8 0.5", "<= 0.5", "a <= 0.5 0.6"])
def test_what_is_no_requirement_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not '<metric> <op> <number>'"):
        parse_requirement(text)


@pytest.mark.parametrize(
    ("op", "hint"),
    [("=", "Write 'pass@8 == 1'"), ("=>", "Write 'pass@8 >= 1'"), ("<<", "The operators are <, <=, >, >=, ==, !=.")],
)
def test_unknown_operator_is_refused(op: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"There is no operator '{op}'") as caught:
        parse_requirement(f"pass@8 {op} 1")
    assert caught.value.hint == hint


@pytest.mark.parametrize(("limit", "share"), [("half", "0.5"), ("45%", "0.45"), ("nan", "0.5"), ("inf", "0.5")])
def test_limit_is_a_finite_number(limit: str, share: str) -> None:
    with pytest.raises(UsageError, match=f"The limit '{limit}' .* is not a finite number") as caught:
        parse_requirement(f"pass@8 > {limit}")
    assert caught.value.hint == f"Write 'pass@8 > {share}'"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", "[tool.gradscope.check]\nrequire = ['pass@1 > 0']"),
        ("gradscope.toml", "[tool.gradscope.check]\nrequire = ['pass@1 > 0']"),
        ("gradscope.toml", "[check]\nrequire = ['pass@1 > 0']"),
    ],
)
def test_requirements_of_a_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_requirements(tmp_path / name) == (Requirement(metric="pass@1", op=">", limit=0.0),)


def test_file_without_the_table_requires_nothing(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[check]\nrequire = ['pass@1 > 0']\n[tool.ruff]\n")
    assert read_requirements(tmp_path / "pyproject.toml") == ()


@pytest.mark.parametrize("value", ["'pass@1 > 0'", "[1]"])
def test_require_is_a_list_of_strings(tmp_path: Path, value: str) -> None:
    (tmp_path / "gradscope.toml").write_text(f"[check]\nrequire = {value}")
    with pytest.raises(UsageError, match=r"`require` in .* is not a list of strings"):
        read_requirements(tmp_path / "gradscope.toml")


def test_unreadable_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gradscope\.toml cannot be read: No such file"):
        read_requirements(tmp_path / "gradscope.toml")
    (tmp_path / "gradscope.toml").write_text("[check\n")
    with pytest.raises(InputError, match=r"gradscope\.toml is not TOML"):
        read_requirements(tmp_path / "gradscope.toml")


def test_settings_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "gradscope.toml").write_text(
        '[check]\nrequire = ["pass@1 > 0"]\ntrack = ["pass@8"]\nallow_unknown = ["pass@8"]\n'
        'baseline = "base.json"\nrule = "value"\nmargins = { "pass@8" = 0.02 }\n'
    )
    settings = read_settings(tmp_path / "gradscope.toml")
    assert (settings.track, settings.allow_unknown, settings.rule) == (("pass@8",), ("pass@8",), "value")
    assert settings.baseline == tmp_path / "base.json"
    assert settings.margins == {"pass@8": 0.02}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("requires = []", "sets 'requires', which check does not know"),
        ("baseline = 1", "`baseline` in .* is not a path"),
        ("rule = 'mean'", "`rule` in .* is 'mean'"),
        ("margins = { x = -1 }", "`margins` in .* is not a table of numbers from 0 on"),
        (f"margins = {{ x = {'9' * 400} }}", "`margins` in .* is not a table of numbers from 0 on"),
        ("track = 'x'", "`track` in .* is not a list of strings"),
    ],
)
def test_settings_that_do_not_read_are_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "gradscope.toml").write_text(f"[check]\n{line}\n")
    with pytest.raises(UsageError, match=message):
        read_settings(tmp_path / "gradscope.toml")
