import re
from pathlib import Path

import pytest

from gradscope.diagnostics.rank.measure import measure_rank
from gradscope.diagnostics.rank.options import RankOptions
from tests.cli.conftest import Cli


def test_check_reaches_the_gradients(cli: Cli, tiny_run: Path) -> None:
    requirements = ("replay_grad_norm_error <= 1e-5", "effective_rank >= 1", "pass@4 >= 0")
    done = cli("check", tiny_run, *(word for text in requirements for word in ("--require", text)))
    assert (done.code, done.out.splitlines()[0]) == (0, "Check: pass. Of 3 requirements: 3 held.")


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


def test_progress_moves_within_a_step_by_rollouts_tokens_and_groups(tiny_run: Path) -> None:
    reported: list[tuple[float, int, str]] = []
    measure_rank(tiny_run, rows="token", options=RankOptions(tokens=4), progress=lambda *words: reported.append(words))
    of_steps = [words for words in reported if words[1] == 2]
    done = [share for share, _, _ in of_steps]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, 2)
    within = [label for share, _, label in of_steps if 0 < share < 1]
    assert len(within) > 2
    assert any(re.fullmatch(r"steps, now step 1: \d+ of 24 rollouts, \d+ tokens", label) for label in within)
    assert any(label.endswith(" groups") for label in within)
