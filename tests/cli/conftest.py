"""Commands are run as a shell runs them: arguments in, exit code, stdout and stderr out, read apart."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from gradscope.__main__ import main
from tests.render.examples import HOSTILE
from tests.rollouts.readers.lines import write_lines


class Done(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Done]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    def call(*arguments: str | Path) -> Done:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        return Done(code, *capfd.readouterr())

    return call


@contextmanager
def without_figures() -> Iterator[None]:
    """Results are written without their figures, which take longer than all the rest."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gradscope.render.files.draw_figures", lambda _: {})
        yield


@pytest.fixture
def no_figures() -> Iterator[None]:
    with without_figures():
        yield


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two steps of three groups of four: all pass, all fail, mixed."""
    rows = [
        {"prompt_id": name, "step": step, "reward": reward}
        for step in (1, 2)
        for name, rewards in (("easy", (1, 1, 1, 1)), ("hard", (0, 0, 0, 0)), (HOSTILE, (1, 0, 1, 0)))
        for reward in rewards
    ]
    return write_lines(tmp_path / "log.jsonl", *rows)


@pytest.fixture
def samples(tmp_path: Path) -> tuple[Path, Path]:
    """Two files of four samples of each of six prompts; the second policy solves more of them."""
    return tuple(  # type: ignore[return-value]
        write_lines(
            tmp_path / f"{name}.jsonl",
            *({"task_id": f"t{task}", "n": 4, "c": max(0, min(4, task - shift))} for task in range(6)),
        )
        for name, shift in (("before", 3), ("after", 1))
    )
