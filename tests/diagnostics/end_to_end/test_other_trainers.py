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
        *("seq-mean-token-sum, temperature", "k3+ in the loss, several turns"),
        *("k2 in the loss, entropy bonus", "truncated correction by token", "bypass, clipped low, high and dual"),
        *("gspo", "adapter, low_var_kl to its base", "bfloat16", "shards"),
    ),
    "prime-rl": (
        *("several turns, token export", "large kl_tau and adv_tau"),
        *("far off policy, masked by sign", "no log-probabilities", "stream of traces, groups over two steps"),
        *("weights without a configuration", "stream of traces, several turns and a group without advantage"),
    ),
    "nemo-rl": (
        *("token level, before 0.7", "icepop, sequence level", "dual clip, sequences masked", "cispo, several turns"),
        *("reinforce, all as baseline", "gspo without KL", "no norms", "not converted"),
    ),
}
"""tests/gradients/plan/test_trainers.py holds the other refusals and terms on plain numbers."""

pytestmark = pytest.mark.slow  # trains


@pytest.mark.parametrize(("trainer", "name"), [(trainer, name) for trainer, names in CASES.items() for name in names])
def test_a_run_is_reproduced_or_refused_with_its_reason(trainer: str, name: str, tmp_path: Path) -> None:
    judged = judge(TRAINERS[trainer], name, tmp_path, ranks=name == CASES[trainer][0])
    assert judged.right, judged


@pytest.mark.parametrize(
    ("trainer", "name", "log", "config", "old", "new"),
    [
        ("verl", "low_var_kl in the loss", "rollouts", ".hydra/config.yaml", "low_var_kl", "mse"),
        ("prime-rl", "large kl_tau and adv_tau", ".", "configs/rl.json", '"adv_tau": 0.6', '"adv_tau": 0.7'),
    ],
)
def test_another_loss_than_the_one_trained_with_is_a_mismatch(
    trainer: str, name: str, log: str, config: str, old: str, new: str, tmp_path: Path
) -> None:
    TRAINERS[trainer].make(tmp_path, TRAINERS[trainer].CASES[name])
    written = tmp_path / "run" / config
    assert old in written.read_text()
    written.write_text(written.read_text().replace(old, new))
    report = replay_run(tmp_path / "run" / log, read=ReadOptions(initial_weights=tmp_path / "initial"))
    verdicts = [part.verdict for step in report.steps for part in step.quantities if part.name == "grad_norm"]
    assert "mismatch" in verdicts
    assert "match" not in verdicts[1:]
