from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli


def test_check_reaches_the_gradients(cli: Cli, tiny_run: Path) -> None:
    requirements = ("replay_grad_norm_error <= 1e-5", "effective_rank >= 1", "pass@4 >= 0")
    done = cli("check", tiny_run, *(word for text in requirements for word in ("--require", text)))
    assert (done.code, done.out.splitlines()[0]) == (0, "Check: pass")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rank", "--rows", "tokens"), "'tokens' is not one of"),
        (("rank", "--device", "tpu"), "'tpu' is not one of"),
        (("rank", "--step", "one"), "is not a whole number or a range"),
        (("rank", "--advantage", "gpro"), "grpo"),
        (("replay", "--tolerance", "small"), "--tolerance"),
        (("replay", "--model", "no/such/model/here", "--dtype", "float"), "'float' is not one of"),
    ],
)
def test_usage_errors_exit_2_with_a_next_step(cli: Cli, tiny_run: Path, arguments: tuple[str, ...], words: str) -> None:
    command, *options = arguments
    done = cli(command, tiny_run, *options)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "hint: " in done.err
