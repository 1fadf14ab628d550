from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradscope.diagnostics.inputs.steps import EngineOptions, measure_steps
from gradscope.diagnostics.logged.entropy import policy_entropy
from gradscope.diagnostics.logged.sampler import sampler_mismatch
from gradscope.diagnostics.logged.step_tokens import counts_in_loss
from gradscope.errors import InputError
from gradscope.gradients.plan.obstacles import several_sequences
from gradscope.metrics.uncertainty.resampling import RESAMPLING
from gradscope.progress import no_progress
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines

LOG = REPOSITORY / "fixtures" / "logs" / "prime_rl_stream"
TRACES = LOG / "monitors/file/traces"


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return shutil.copytree(LOG, tmp_path / "run")


def episode(**cells: Any) -> dict[str, Any]:
    row = json.loads((TRACES / "stream/00001.jsonl").read_text().splitlines()[1])
    return {**row, **cells}


def ships(*steps: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"version": 1, "trace_id": name, "info": {"ship": {"step": step}}} for name, step in steps]


def trace(name: str, **cells: Any) -> dict[str, Any]:
    return {**episode()["traces"][0], "id": name, **cells}


def read(tmp_path: Path, *rows: Any, annotations: list[dict[str, Any]] | None = None) -> Run:
    write_lines(tmp_path / "traces/stream/00000.jsonl", *rows)
    if annotations is not None:
        write_lines(tmp_path / "traces/annotations/orchestrator/00000.jsonl", *annotations)
    return read_run(tmp_path)


@pytest.mark.parametrize(
    "below", ["", "monitors", "monitors/file", "monitors/file/traces", "monitors/file/traces/stream"]
)
def test_every_episode_is_in_its_group_at_the_step_that_trained_on_it(below: str) -> None:
    run = read_run(LOG / below)
    assert rewards_of(run) == {
        "1:g1": (1.0, 0.0),
        "1:g2": (0.0, 0.0),
        "2:g3": (1.0, 0.0),
        "2:g4": (1.0, 0.0),
        "4:g5": (0.0, 1.0),
    }
    assert run.source.quarantined.num_rows == 0
    assert {step: metrics["grad_norm"] for step, metrics in run.metrics.items()} == {1: 0.25, 2: 0.5}
    assert run.metrics[1]["reward"] == 0.5
    assert {step: str(reason) for step, reason in run.notes.items()} == dict.fromkeys(
        (2, 3), "rollouts of one group were trained on at several steps"
    )


def test_advantages_come_from_annotations_and_what_no_batch_held_is_in_no_loss() -> None:
    (first, second), (dropped, _) = (group.rollouts for group in read_run(LOG).groups_at(1))
    assert (first.completion_ids, first.token_advantages, first.logprobs) == ((11, 2), (0.5, 0.5), (-0.1054, -0.0101))
    assert (first.advantage, second.advantage) == (0.5, -0.5)
    assert (dropped.mask, dropped.token_advantages) == ((False, False), (0.0, 0.0))


def test_the_trainers_log_probabilities_and_entropies_come_from_its_annotations() -> None:
    (first, second), (dropped, _) = (group.rollouts for group in read_run(LOG).groups_at(1))
    assert (first.trainer_logprobs, first.entropies) == ((-0.1053, -0.0102), (0.3, 0.1))
    assert (second.trainer_logprobs, second.entropies) == ((-0.1, -0.0101), None)  # one entropy is null
    assert (dropped.trainer_logprobs, dropped.entropies) == (None, None)


def test_an_attempt_to_compact_that_was_refused_is_no_sequence() -> None:
    compacted, branching = read_run(LOG).groups[3].rollouts
    assert (compacted.prompt_ids, compacted.completion_ids) == ((5, 9, 7), (20, 21, 7, 11, 2))
    assert compacted.mask == (True, True, False, True, True)
    assert compacted.earlier == ()
    assert (branching.completion_ids, branching.advantage, branching.completion) == ((12, 2), -0.5, "right")


def test_each_branch_is_a_sequence_of_one_rollout_with_what_it_sampled_itself() -> None:
    forked, compacted = read_run(LOG).groups_at(4)[0].rollouts
    (left,) = forked.earlier
    assert (left.prompt_ids, left.completion_ids, left.mask) == ((5, 9, 7), (20, 7, 21, 2), (True, False, True, True))
    assert (left.logprobs, left.trainer_logprobs) == ((-0.5, 0.0, -0.25, -0.125), (-0.5, 0.0, -0.25, -0.25))
    assert left.entropies == (0.5, 0.0, 0.25, 0.125)
    assert (forked.prompt_ids, forked.completion_ids, forked.mask) == ((5, 9, 7, 20, 7), (22,), (True,))
    assert (forked.logprobs, forked.trainer_logprobs, forked.entropies) == ((-0.75,), (-0.5,), (1.0,))
    assert (forked.num_tokens, forked.advantage, forked.reward, forked.completion) == (5, -0.5, 0.0, "try\nright")
    (before,) = compacted.earlier  # the attempt to compact, from which the agent went on
    assert (before.prompt_ids, before.completion_ids) == ((5, 9, 7), (20, 21, 7, 30))
    assert (compacted.prompt_ids, compacted.completion_ids, compacted.num_tokens) == ((5, 31, 7), (11, 2), 6)


def test_all_sequences_count_in_what_a_log_says_of_its_policy() -> None:
    run = read_run(LOG)
    last = sampler_mismatch(run, RESAMPLING).by_step[-1]
    assert (last.step, last.num_tokens, last.num_sequences) == (4, 9, 4)
    worst = sampler_mismatch(run, RESAMPLING).worst[:3]
    assert [(at.step, at.row, at.sequence, at.position) for at in worst] == [(4, 0, 1, 0), (4, 1, 0, 3), (4, 0, 0, 3)]
    entropy = policy_entropy(run, RESAMPLING).by_step[-1].mean.value
    assert entropy == pytest.approx((0.5 + 0.25 + 0.125 + 1.0 + 0.5 + 0.25 + 0.5 + 0.2 + 0.1) / 9)
    assert reward_table(run.groups).sums(reward_table(run.groups).num_tokens)[-1] == 11


def test_a_step_with_a_rollout_of_several_sequences_is_not_recomputed() -> None:
    run = read_run(LOG)
    (measured,) = measure_steps(run, (4,), EngineOptions(), no_progress)
    assert measured.reason is not None
    assert measured.reason.cause == "several_sequences"
    assert "2 of 2 rollouts were trained on as several sequences" in str(measured.reason)


def test_branches_that_no_batch_held_are_in_no_loss(tmp_path: Path) -> None:
    forked = json.loads((TRACES / "stream/00001.jsonl").read_text().splitlines()[2])
    run = read(tmp_path, forked, episode(traces=[trace("a")]), annotations=ships(("a", 4)))
    rollout = next(one for group in run.groups for one in group.rollouts if one.earlier)
    assert (rollout.mask, rollout.earlier[0].mask) == ((False,), (False,) * 4)
    assert several_sequences([rollout]) is None
    assert not counts_in_loss(rollout)


def test_what_rounds_and_branches_is_said(run_folder: Path) -> None:
    source = read_run(LOG).source
    assert "several sequences" in source.inferred[1]
    assert "unset float_decimals" in source.missing[0]
    live = run_folder / "monitors/file/traces/stream/00001.jsonl"
    live.write_text(live.read_text().replace("-0.1054", "-0.10536051"))
    assert not any("float_decimals" in sentence for sentence in read_run(run_folder).source.missing)


def test_one_file_of_several_says_that_groups_may_be_incomplete() -> None:
    run = read_run(TRACES / "stream/00000.jsonl.zst")
    assert rewards_of(run) == {"1:g1": (1.0, 0.0), "1:g2": (0.0, 0.0), "2:g3": (1.0,), "2:g4": (1.0,)}
    assert "Other files of the stream are left out" in run.source.missing[-1]


def test_a_chunk_that_is_being_sealed_counts_once(run_folder: Path) -> None:
    live = run_folder / "monitors/file/traces/stream/00001.jsonl"
    live.with_name("00001.jsonl.zst").write_bytes(pa.compress(live.read_bytes(), codec="zstd", asbytes=True)[:20])
    live.with_name("00000.jsonl.zst.tmp").write_bytes(b"half")
    assert rewards_of(read_run(run_folder)) == rewards_of(read_run(LOG))


def test_a_damaged_chunk_and_a_cut_line_are_set_aside(run_folder: Path) -> None:
    chunk = run_folder / "monitors/file/traces/stream/00001.jsonl"
    chunk.write_text(chunk.read_text()[:-30])
    run = read_run(run_folder)
    assert (set_aside(run), run.groups[4].size) == ({"the last line is cut off": 1}, 1)
    sealed = chunk.with_name("00000.jsonl.zst")
    sealed.write_bytes(sealed.read_bytes()[:-200])
    (lost,) = read_run(run_folder).source.quarantined.lost
    assert "00000.jsonl.zst cannot be read" in lost


def test_without_annotations_nothing_is_known_of_batches(run_folder: Path) -> None:
    shutil.rmtree(run_folder / "monitors/file/traces/annotations")
    run = read_run(run_folder)
    assert set(rewards_of(run)) == {"1:g1", "1:g2", "2:g3", "2:g4", "4:g5"}
    assert "No annotation says what was trained on" in run.source.missing[0]
    assert {str(reason) for reason in run.notes.values()} == {"what was trained on at this step is not in the log"}
    assert set(run.notes) == {1, 2, 4}


def test_a_step_that_a_restart_repeated_is_noted(tmp_path: Path) -> None:
    rows = [episode(group={"id": name}, traces=[trace(name)]) for name in "abc"]
    run = read(tmp_path, *rows, annotations=ships(("a", 1), ("b", 2), ("c", 1)))
    assert [str(run.notes[1])] == ["a restart trained on this step again, and the log holds the rollouts of both"]


def test_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    whole = {"type": "train", "work": {"type": "train", "step": 2}}
    rows = [
        episode(traces=[trace("a")]),
        episode(traces=[trace("a")]),
        episode(traces=[trace("a", rewards={"correct": {"score": 1.0}})]),
        episode(traces=[trace("b", info={})], run={**whole, "work": {"step": "2"}}),
        episode(traces=[trace("c", info=None)], run={**whole, "work": None}),
        episode(group=None),
        episode(traces=[]),
        episode(traces=None),
        episode(traces=[trace("d", rewards=None)]),
        episode(traces=[trace("e", rewards={"correct": {"score": "1"}})]),
        episode(traces=[trace("f", nodes=[None, {"parent": 7, "mask": 3}])]),
        episode(run=None, traces=[trace("g", info={"dispatch": {"step": 2}})]),
    ]
    run = read(tmp_path, *rows)
    assert rewards_of(run) == {"2:g3": (None, None, None, 0.0, 0.0)}
    assert set_aside(run) == {
        "the row repeats an earlier one of the same sample": 1,
        "the row contradicts an earlier one of the same sample, so that neither counts": 2,
        "the step is not a whole number": 2,
        "group.id is missing": 1,
        "the episode has no trace of a trained agent": 2,
        "the reward is missing": 1,
        "the reward is text": 1,
    }


def test_agents_are_told_apart_by_name_whatever_their_order(tmp_path: Path) -> None:
    solver, critic = ({"name": name} for name in ("solver", "critic"))
    rows = [
        episode(traces=[trace("a", agent=solver), trace("b", agent=critic)]),
        episode(traces=[trace("c", agent=critic), trace("d", agent=solver)]),
        episode(group={"id": "h"}, traces=[trace("e", agent=solver), trace("f", agent=solver)]),
    ]
    run = read(tmp_path, *rows)
    assert {group.group_id: group.size for group in run.groups} == {
        "2:g3/solver": 2,
        "2:g3/critic": 2,
        "2:h/0": 1,
        "2:h/1": 1,
    }
    assert "several trained agents" in run.source.inferred[0]


def test_the_layout_of_an_earlier_version_beside_the_stream_is_left_out(run_folder: Path) -> None:
    shutil.copytree(LOG.parent / "prime_rl/rollouts", run_folder / "rollouts")
    assert "an earlier version of prime-rl" in read_run(run_folder).source.missing[-1]
    assert rewards_of(read_run(run_folder / "rollouts")) == {"3:g7": (1.5, 0.5), "3:g8": (0.5, 0.5)}


def test_evaluations_alone_are_no_stream_of_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a log that gradscope knows"):
        read(tmp_path, episode(run={"type": "eval", "id": "r"}))


def test_a_group_is_of_one_prompt_even_where_its_name_comes_again(tmp_path: Path) -> None:
    rows = [episode(traces=[trace(name)], task={"hash": name[0]}) for name in ("a1", "b1", "a2", "b2")]
    run = read(tmp_path, *rows, annotations=ships(("a1", 2), ("a2", 2), ("b1", 3), ("b2", 3)))
    assert {name: len(rewards) for name, rewards in rewards_of(run).items()} == {"2:g3/math/a": 2, "3:g3/math/b": 2}
    assert run.notes == {}
