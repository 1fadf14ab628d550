"""Made-up trainers with verl's, prime-rl's and NeMo-RL's semantics: replay's norm and rank's singular values."""

from pathlib import Path

import pytest

from benchmarks.other_trainers import nemo_rl, prime_rl, verl
from benchmarks.other_trainers.judge import judge
from gradscope.diagnostics.replay.measure import replay_run
from gradscope.rollouts.read_options import ReadOptions

TRAINERS = {"verl": verl, "prime-rl": prime_rl, "nemo-rl": nemo_rl}
CASES = {
    "verl": (
        *("seq-mean-token-sum, temperature", "k3+ in the loss, several turns", "k2 in the loss, entropy bonus"),
        *("truncated correction by token", "adapter, low_var_kl to its base", "bfloat16", "shards"),
    ),
    "prime-rl": (
        *("several turns, token export", "large kl_tau and adv_tau"),
        *("far off policy, masked by sign", "stream of traces, groups over two steps"),
        *("weights without a configuration", "stream of traces, several turns and a group without advantage"),
    ),
    "nemo-rl": (
        *("token level, before 0.7", "icepop, sequence level", "dual clip, sequences masked", "cispo, several turns"),
        *("reinforce, all as baseline", "gspo without KL"),
    ),
}
"""tests/gradients/plan/test_trainers.py holds the other refusals and terms on plain numbers."""

pytestmark = pytest.mark.slow  # trains


@pytest.mark.parametrize(("trainer", "name"), [(trainer, name) for trainer, names in CASES.items() for name in names])
def test_a_run_is_reproduced_or_refused_with_its_reason(trainer: str, name: str, tmp_path: Path) -> None:
    judged = judge(TRAINERS[trainer], name, tmp_path, rank_all=False)
    assert judged.right, judged


def test_another_loss_than_the_one_trained_with_is_a_mismatch(tmp_path: Path) -> None:
    verl.make(tmp_path, verl.CASES["low_var_kl in the loss"])
    config = tmp_path / "run" / ".hydra" / "config.yaml"
    assert "low_var_kl" in config.read_text()
    config.write_text(config.read_text().replace("low_var_kl", "mse"))
    report = replay_run(tmp_path / "run" / "rollouts", read=ReadOptions(initial_weights=tmp_path / "initial"))
    verdicts = [
        quantity.verdict for step in report.steps for quantity in step.quantities if quantity.name == "grad_norm"
    ]
    assert "mismatch" in verdicts
    assert "match" not in verdicts[1:]
