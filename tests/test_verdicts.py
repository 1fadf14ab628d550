"""The table of verdicts: its thresholds are the code's, and its scripts are there."""

import ast
import re
from importlib import import_module

import pytest

from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "research" / "verdicts.csv").read_text(encoding="utf-8")
THRESHOLD = re.compile(r"`(?P<module>[a-z_.]+)\.(?P<name>_?[A-Z_]+)` = (?P<value>\([^)]*\)|-?[\d.]+(?:e-?\d+)?)")
MATCHES = [(match["module"], match["name"], match["value"]) for match in THRESHOLD.finditer(PAGE)]


@pytest.mark.parametrize(("module", "name", "value"), sorted(set(MATCHES)))
def test_a_threshold_of_the_table_is_that_of_the_code(module: str, name: str, value: str) -> None:
    assert getattr(import_module(f"gradscope.{module}"), name) == ast.literal_eval(value)


def test_every_threshold_is_written_so_that_it_can_be_held() -> None:
    assert len(MATCHES) >= 35
    assert len(MATCHES) == len(re.findall(r"`[a-z_.]+\._?[A-Z_]+`", PAGE))


def test_every_script_of_the_table_is_there() -> None:
    scripts = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "benchmarks").rglob("*.py")}
    assert set(re.findall(r"(benchmarks/[\w/]+\.py)(?! \(at [0-9a-f]{8}\))", PAGE)) <= scripts
