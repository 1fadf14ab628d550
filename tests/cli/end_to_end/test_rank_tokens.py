import re
from pathlib import Path

import pytest

from gradscope.diagnostics.rank.measure import measure_rank
from gradscope.diagnostics.rank.options import RankOptions
from gradscope.rollouts.store import read_steps

pytestmark = pytest.mark.slow  # a run is trained for it


def test_progress_moves_within_a_step_by_rollouts_tokens_and_groups(tiny_run: Path) -> None:
    reports: list[tuple[float, int, str]] = []
    result = measure_rank(
        tiny_run,
        rows="token",
        advantages=("logged",),
        options=RankOptions(tokens=4),
        progress=lambda *words: reports.append(words),
    )
    assert any("of the tokens were measured, drawn at random" in finding for finding in result.findings)
    lengths = {
        (group.step, group.group_id): sum(len(rollout.completion_ids or ()) for rollout in group.rollouts)
        for group in read_steps(tiny_run)
    }
    sampled = [
        spectrum for spectrum in result.spectra if spectrum.label.group_size == 4 and spectrum.tokens is not None
    ]
    for spectrum in sampled:
        assert spectrum.tokens.method == "sampled"
        assert spectrum.tokens.frac_seen == pytest.approx(4 / lengths[spectrum.label.step, spectrum.label.group_id])
    assert sampled
    of_steps = [words for words in reports if words[1] == 2]
    done = [share for share, _, _ in of_steps]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, 2)
    within = [label for share, _, label in of_steps if 0 < share < 1]
    assert len(within) > 2
    assert any(re.fullmatch(r"steps, now step 1: \d+ of 16 rollouts, \d+ tokens", label) for label in within)
    assert any(label.endswith(" groups") for label in within)
