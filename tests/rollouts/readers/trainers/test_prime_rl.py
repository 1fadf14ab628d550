import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.reduction.lines import blocks_in
from gradscope.rollouts.readers.trainers.prime_rl import TrainedBatches, batches_in, rollouts_in
from tests.conftest import LOGS
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines
from tests.rollouts.readers.test_run_files import write_model
from tests.rollouts.readers.trainers.test_prime_rl_episode import prime_row


def test_prime_rl_token_export_has_tokens_and_says_that_rewards_are_elsewhere() -> None:
    run = read_run(LOGS / "prime_rl_tokens")
    assert [(group.step, group.rewards) for group in run.groups] == [(3, (None, None))]
    rollout = run.groups[0].rollouts[1]
    assert (rollout.completion_ids, rollout.advantage, rollout.logprobs) == ((12, 2), -0.5, (-0.1, -0.01))
    assert "has no rewards" in run.source.missing[0]


def test_prime_rl_token_export_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    row = {"step": 1, "token_ids": [1, 2], "loss_mask": [False, True], "advantages": [0.5, 0.5]}
    rows = [row, {**row, "step": None}, {**row, "loss_mask": [False, False]}]
    run = read_run(write_lines(tmp_path / "rank_0.jsonl", *rows))
    assert set_aside(run) == {"the step is not a whole number": 1, "no token of the row was sampled": 1}


def test_prime_rl_token_export_has_the_trainers_log_probabilities_and_entropies(tmp_path: Path) -> None:
    rollout = read_run(LOGS / "prime_rl_tokens").groups[0].rollouts[0]
    assert (rollout.trainer_logprobs, rollout.entropies) == ((-0.11, -0.01), (0.4, 0.0))
    row = {"step": 1, "token_ids": [1, 2, 3], "loss_mask": [False, True, True], "advantages": [0.5] * 3}
    run = read_run(write_lines(tmp_path / "rank_0.jsonl", {**row, "trainer_logprobs": [0, None, -1.0], "entropy": [1]}))
    rollout = run.groups[0].rollouts[0]
    assert rollout.trainer_logprobs == pytest.approx((math.nan, -1.0), nan_ok=True)
    assert rollout.entropies is None


def test_prime_rl_reads_everything_and_takes_advantages_from_what_was_trained_on() -> None:
    run = read_run(LOGS / "prime_rl")
    assert rewards_of(run) == {"3:g7": (1.5, 0.5), "3:g8": (0.5, 0.5)}
    trained, dropped = run.groups[0].rollouts[0], run.groups[1].rollouts[0]
    assert (trained.prompt_ids, trained.completion_ids, trained.mask) == ((5, 9, 7), (11, 2), (True, True))
    assert (trained.advantage, trained.token_advantages, dropped.advantage) == (0.5, (0.5, 0.5), None)
    assert trained.rewards == {"correct": 1.0, "short": 1.0}
    assert run.source.missing == ()
    assert run.source.inferred == ("Rollouts were read from all/, their advantages from effective/.",)


def test_prime_rl_effective_alone_is_a_lower_bound() -> None:
    run = read_run(LOGS / "prime_rl/rollouts/step_3/train/effective")
    assert rewards_of(run) == {"3:g7": (1.5, 0.5)}
    assert "lower bound" in run.source.missing[0]


def test_prime_rl_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    trace = prime_row()["traces"][0]
    rows = [
        prime_row(),
        prime_row(run={"work": {"step": "3"}}),
        prime_row(run={"work": {"step": 10**400}}),
        prime_row(group={"id": ""}),
        prime_row(group=None),
        prime_row(traces=[{**trace, "agent": {"trainable": False}}]),
        prime_row(ok=False, traces=[{**trace, "rewards": {}}]),
        prime_row(traces=[{**trace, "rewards": {"correct": {"score": None}}}]),
    ]
    run = read_run(write_lines(tmp_path / "traces.jsonl", *rows))
    assert rewards_of(run) == {"3:g7": (1.5, None, None)}
    assert run.groups[0].rollouts[1].status == "error"
    assert set_aside(run) == {
        "the step is not a whole number": 2,
        "group.id is missing": 2,
        "the episode has no trace of a trained agent": 1,
        "the reward is missing": 1,
        "the reward is null": 1,
    }


def test_prime_rl_agents_of_an_episode_are_groups_of_their_own(tmp_path: Path) -> None:
    trace = prime_row()["traces"][0]
    run = read_run(write_lines(tmp_path / "traces.jsonl", prime_row(traces=[trace, trace])))
    assert list(rewards_of(run)) == ["3:g7/0", "3:g7/1"]
    assert "several trained agents" in run.source.inferred[0]


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ({"start": 1, "end": 2}, (1, 2)),
        ({"start": 3, "end": 2}, None),
        ({"start": -1, "end": 2}, None),
        ({"start": 1}, None),
        ({"start": 10**400, "end": 10**400}, None),
        ("new", None),
        (None, None),
    ],
)
def test_prime_rl_names_an_episodes_weights(tmp_path: Path, policy: Any, versions: tuple[int, int] | None) -> None:
    row = prime_row(run={"work": {"step": 3, "policy": policy}})
    run = read_run(write_lines(tmp_path / "traces.jsonl", row))
    assert run.groups[0].rollouts[0].policy_versions == versions


def test_what_no_batch_holds_is_in_no_loss(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "step_3/train/effective/traces.jsonl", prime_row())
    (rollout,) = rollouts_in(next(blocks_in(file)))
    batches = batches_in([file], QuarantineLog(), with_tokens=True)
    another = replace(rollout, trace=replace(rollout.trace, id="another"))
    dropped, trained = batches.as_trained(another).tokens, batches.as_trained(rollout).tokens
    assert dropped is not None
    assert trained is not None
    assert (dropped.mask, dropped.token_advantages) == ((False, False), (0.0, 0.0))
    assert all(trained.mask)
    num_tokens, advantages = batches.count_tokens([another, rollout])
    assert (num_tokens.tolist(), np.isnan(advantages).tolist()) == ([2, 2], [True, True])


def test_a_batch_that_cannot_be_read_is_set_aside(tmp_path: Path) -> None:
    shutil.copytree(LOGS / "prime_rl", tmp_path / "run")
    file = tmp_path / "run/rollouts/step_3/train/effective/traces.jsonl"
    file.unlink()
    file.with_suffix(".jsonl.gz").write_bytes(b"no archive")
    run = read_run(tmp_path / "run")
    assert [group.rewards for group in run.groups] == [group.rewards for group in read_run(LOGS / "prime_rl").groups]
    assert "traces.jsonl.gz cannot be read" in run.source.quarantined.lost[0]


def test_a_trace_of_another_steps_batch_spoils_both_steps(tmp_path: Path) -> None:
    row = json.loads(json.dumps(prime_row()))
    write_lines(tmp_path / "rollouts/step_3/train/all/traces.jsonl", row)
    write_lines(tmp_path / "rollouts/step_4/train/effective/traces.jsonl", row)
    run = read_run(tmp_path)
    assert {step: reason.cause for step, reason in run.notes.items()} == {3: "rollouts_missing", 4: "rollouts_missing"}


def test_without_batches_a_trace_is_as_it_is(tmp_path: Path) -> None:
    (rollout,) = rollouts_in(next(blocks_in(write_lines(tmp_path / "traces.jsonl", prime_row()))))
    tokens = TrainedBatches().as_trained(rollout).tokens
    assert tokens is not None
    assert all(tokens.mask)


def test_metrics_and_weights_of_the_run_folder(tmp_path: Path) -> None:
    run_folder = shutil.copytree(LOGS / "prime_rl", tmp_path / "run")
    (run_folder / "metrics.jsonl").write_text(json.dumps({"step": 3, "optim/grad_norm": 0.5}) + "\n")
    write_model(run_folder / "weights" / "step_2")
    (write_model(run_folder / "broadcasts" / "step_3") / "config.json").unlink()
    for path in (run_folder, run_folder / "rollouts", run_folder / "rollouts" / "step_3" / "train"):
        run = read_run(path)
        assert run.metrics == {3: {"grad_norm": 0.5}}
        assert [weights.num_updates for weights in run.weights] == [2]
        assert "Copy config.json" in run.unmerged_weights[3].advice


@pytest.mark.parametrize(
    ("files", "kl_tau"),
    [
        ({"rl.json": '{"trainer": {"loss": {"kl_tau": 0.5}}, "orchestrator": {"n": 2}}'}, 0.5),
        ({"trainer.json": '{"loss": {"kl_tau": 0.5}}', "orchestrator.json": '{"n": 2}'}, 0.5),
        ({"trainer.toml": "loss = [", "orchestrator.toml": "n = 2\n"}, None),  # damaged
    ],
)
def test_configurations_of_the_run_or_of_its_parts(files: dict[str, str], kl_tau: float | None, tmp_path: Path) -> None:
    run_folder = shutil.copytree(LOGS / "prime_rl", tmp_path / "run")
    (run_folder / "configs").mkdir()
    for name, text in files.items():
        (run_folder / "configs" / name).write_text(text)
    settings = read_run(run_folder).settings
    assert (settings.lookup("trainer.loss.kl_tau"), settings.lookup("orchestrator.n")) == (kl_tau, 2)
    assert (settings.get("trainer"), settings.get("casts_weights")) == ("prime-rl", True)
    assert (settings.origin or "").endswith(str(run_folder / "configs" / name))
