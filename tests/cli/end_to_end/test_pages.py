"""Pages of real runs, written by the command and opened in a real browser: light, dark, on a phone and on paper."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.conftest import LOGS
from tests.render.end_to_end.browser import NEEDS_CHROMIUM, Browser, judged, started
from tests.rollouts.readers.lines import write_lines

pytestmark = [pytest.mark.slow, NEEDS_CHROMIUM]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as browser:
        yield browser


def long_log(path: Path) -> Path:
    """600 steps of two groups of four, texts included, whose pass rate rises."""
    chance = random.Random(17)
    rows = [
        {
            **{"step": step, "group_id": f"{step}-{group}", "prompt_id": f"p{(step * 2 + group) % 90}"},
            **{"prompt": f"{step} + {group} =", "completion": "so " * chance.randint(3, 30) + str(step + group)},
            "reward": float(chance.random() < 0.2 + step / 1000),
        }
        for step in range(1, 601)
        for group in range(2)
        for _ in range(4)
    ]
    return write_lines(path, *rows)


def test_a_run_with_its_weights(cli: Cli, browser: Browser, tiny_run: Path, tmp_path: Path) -> None:
    assert cli("report", tiny_run, "--step", "1", "--output", tmp_path / "page.html").code == 0
    assert judged(browser, tmp_path / "page.html")[1] == []


def test_a_long_log(cli: Cli, browser: Browser, tmp_path: Path) -> None:
    assert cli("report", long_log(tmp_path / "log.jsonl"), "--output", tmp_path / "page.html").code == 0
    assert judged(browser, tmp_path / "page.html")[1] == []


def test_runs_side_by_side(cli: Cli, browser: Browser, tmp_path: Path) -> None:
    runs = (LOGS / name for name in ("trl", "open_instruct", "slime", "ragen"))
    assert cli("report", *runs, "--output", tmp_path / "page.html").code == 0
    assert judged(browser, tmp_path / "page.html")[1] == []
