from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gradscope.diagnostics.inputs.steps import EngineOptions, measure_steps
from gradscope.diagnostics.logged.tokens import ENTROPY, MISMATCH, _counts_in_loss, logged_part
from gradscope.gradients.plan.objective import several_sequences
from gradscope.metrics.uncertainty.intervals import RESAMPLING
from gradscope.progress import no_progress
from gradscope.rollouts.groups import holds_rewards_alone, reward_table
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing.quarantine import BRANCHED, QuarantineLog
from gradscope.rollouts.readers.trainers.prime_rl_stream import Annotations, read_annotations
from gradscope.rollouts.run import Run
from tests.conftest import LOGS
from tests.rollouts.readers.lines import refused, rewards_of, set_aside, write_lines
from tests.rollouts.readers.reduced import STRANGE, assert_reduced, assert_same, in_small_blocks, mutated
from tests.rollouts.readers.trainers.test_prime_rl_episode import KEYS, OTHER, longer, row, trace

NODES = [
    {"token_ids": [5, 9], "mask": [False, False]},
    {"parent": 0, "token_ids": [7, 11], "mask": [False, True]},
    {"parent": 1, "token_ids": [2], "mask": [True]},
    {"parent": 0, "token_ids": [8, 3], "mask": [True, True]},
]
TRACE = {"id": "t", "info": {"kind": "train"}, "nodes": NODES}


def ship(name: Any, step: Any, **cells: Any) -> dict[str, Any]:
    """An annotation of the trace of a name, of a number ``t<number>``."""
    name = f"t{name}" if type(name) is int else name
    return {"version": 1, "trace_id": name, "info": {"ship": {"step": step}}} | cells


def shipped(step: Any, *branches: dict[str, Any], **cells: Any) -> dict[str, Any]:
    return ship("t", step, branches=list(branches), **cells)


def read(tmp_path: Path, *rows: Any) -> tuple[Annotations, dict[str, int]]:
    quarantine = QuarantineLog()
    annotations = read_annotations([write_lines(tmp_path / "00000.jsonl", *rows)], quarantine)
    return annotations, {reason.reason: reason.num_rows for reason in quarantine.result().reasons}


def advantages(annotations: Annotations) -> list[Any]:
    return [node.get("advantages") for node in annotations.folded(TRACE)["nodes"]]


def test_each_node_takes_its_part_of_its_branch_and_the_newest_counts(tmp_path: Path) -> None:
    first = shipped(3, {"index": 0, "advantages": [None, None, None, 0.5, 0.5]})
    newer = shipped(4, {"index": 0, "advantages": [0, 0, 0, 0.25, 0.25]}, {"index": 1, "advantages": [0, 0, 1, 1]})
    annotations, set_aside = read(tmp_path, first, newer)
    assert advantages(annotations) == [None, [0.25], [0.25], [1, 1]]
    assert annotations.folded(TRACE)["info"] == {"kind": "train", "ship": {"step": 4}}
    assert (annotations.record_batches, set_aside) == (True, {})
    assert "advantages" not in NODES[1]


def test_streams_of_several_producers_join(tmp_path: Path) -> None:
    trainers = {"index": 1, "trainer_logprobs": [None, None, -0.5, -0.25], "entropies": [None, None, 0.5, None]}
    annotations, _ = read(tmp_path, shipped(3, {"index": 1, "advantages": [0, 0, 1, 1]}), shipped(3, trainers))
    last = annotations.folded(TRACE)["nodes"][3]
    assert (last["advantages"], last["trainer_logprobs"], last.get("entropies")) == ([1, 1], [-0.5, -0.25], None)


@pytest.mark.parametrize(
    ("branch", "expected"),
    [
        ({"index": 0, "advantages": [0, 0, 0, 0.5]}, [None, [0.5], None, None]),  # cut off before the last node
        ({"index": 0, "advantages": [0, 0, 0, None, 0.5]}, [None, None, [0.5], None]),
        ({"index": 2, "advantages": [1, 1, 1, 1]}, [None] * 4),
        ({"index": -1, "advantages": [1, 1, 1, 1]}, [None] * 4),
        ({"index": True, "advantages": [1, 1, 1, 1]}, [None] * 4),
        ({"index": 0, "advantages": "high"}, [None] * 4),
        ({"advantages": [1]}, [None] * 4),
        (None, [None] * 4),
    ],
)
def test_a_node_takes_only_what_covers_it(tmp_path: Path, branch: Any, expected: list[Any]) -> None:
    assert advantages(read(tmp_path, shipped(3, branch))[0]) == expected


def test_what_is_no_annotation_is_set_aside(tmp_path: Path) -> None:
    annotations, set_aside = read(tmp_path, shipped(3), shipped(4, version=2), shipped(4, trace_id=None), [])
    assert set_aside == {"the annotation is not of version 1 or names no trace": 2, "the line is not a JSON object": 1}
    assert annotations.records_of(["t"], [None])[0].tolist() == [3.0]
    assert annotations.folded({"id": 7}) == {"id": 7}


@pytest.mark.parametrize("step", ["3", 3.5, None, True])
def test_a_step_that_is_no_whole_number_tells_no_batch(tmp_path: Path, step: Any) -> None:
    assert not read(tmp_path, shipped(step))[0].record_batches


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch, block=300)


NAMES = ("a", "b", "ü\u0000😀", 'quo"te', "\ud800", "")


@pytest.mark.slow
def test_damaged_annotations_give_the_same_steps_whether_or_not_all_are_stored(tmp_path: Path) -> None:
    rows = [ship(name, step) for name in NAMES for step in (1, 2, None)]
    restarted = {"ship": {"step": 3}, "dispatch": {"step": 1}}
    rows += [ship("a", 3, info=restarted), ship("b", None, info={"advantage": 1.0})]
    for seed in range(20):
        lines = [mutated(rows, 2 * seed + index, nested=("info", "ship")) for index in range(1 + seed % 2)]
        files = [write_lines(tmp_path / f"{seed}-{index}.jsonl", *damaged) for index, damaged in enumerate(lines)]
        quarantines = QuarantineLog(), QuarantineLog()
        full, steps = (read_annotations(files, aside, is_whole=not index) for index, aside in enumerate(quarantines))
        assert quarantines[0].result() == quarantines[1].result()
        assert full.trained_again == steps.trained_again
        wanted = full.records_of(names := (*NAMES, "nobody"), [None] * len(names))[0]
        np.testing.assert_array_equal(steps.records_of(names, [None] * len(names))[0], wanted)
        dispatched = {name: info for name, info in full.info.items() if "dispatch" in info}
        assert {name: repr(steps.info[name].get("dispatch")) for name in dispatched} == {
            name: repr(info["dispatch"]) for name, info in dispatched.items()
        }


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_with_any_name_has_its_step(tmp_path: Path, name: str) -> None:
    write_lines(tmp_path / "0.jsonl", ship(name, 4), ship("other", 5))
    annotations = read_annotations([tmp_path / "0.jsonl"], QuarantineLog(), is_whole=False)
    steps, _ = annotations.records_of((name, "other", "nobody", 7), (None, None, {"step": 6}, {"step": "6"}))
    assert steps[:3].tolist() == [4.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("steps", "twice"), [((1, 1, 2), set()), ((1, 2, 1), {1}), ((1, 2, 2, 1, 2), {1, 2}), ((0, 3, 0), {0}), ((), set())]
)
@pytest.mark.parametrize("names", ["abcde", "aaaaa"])
def test_steps_repeat_where_another_was_between(
    tmp_path: Path, names: str, steps: Sequence[int], twice: set[int]
) -> None:
    annotations, _ = read(tmp_path, *(ship(*row) for row in zip(names, steps, strict=False)))
    assert annotations.trained_again == twice


LOG = LOGS / "prime_rl_stream"
TRACES = LOG / "monitors/file/traces"


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return shutil.copytree(LOG, tmp_path / "run")


def stream_episode(**cells: Any) -> dict[str, Any]:
    row = json.loads((TRACES / "stream/00001.jsonl").read_text().splitlines()[1])
    return {**row, **cells}


def stream_trace(name: str, **cells: Any) -> dict[str, Any]:
    return {**stream_episode()["traces"][0], "id": name, **cells}


def read_stream(tmp_path: Path, *rows: Any, annotations: Sequence[dict[str, Any]] = ()) -> Run:
    return read_run(write(tmp_path, rows, annotations))


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
    # so do the trainer's log-probabilities and entropies
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
    last = logged_part(MISMATCH, run, RESAMPLING).by_step[-1]
    assert (last.step, last.num_tokens, last.num_sequences) == (4, 9, 4)
    worst = logged_part(MISMATCH, run, RESAMPLING).worst[:3]
    assert [(i.step, i.row, i.sequence, i.position) for i in worst] == [(4, 0, 1, 0), (4, 1, 0, 3), (4, 0, 0, 3)]
    entropy = logged_part(ENTROPY, run, RESAMPLING).by_step[-1].mean.value
    assert entropy == pytest.approx((0.5 + 0.25 + 0.125 + 1.0 + 0.5 + 0.25 + 0.5 + 0.2 + 0.1) / 9)
    assert reward_table(run.groups).sums(reward_table(run.groups).num_tokens)[-1] == 11


def test_a_step_with_a_rollout_of_several_sequences_is_not_recomputed() -> None:
    (measured,) = measure_steps(read_run(LOG), (4,), EngineOptions(), no_progress)
    assert measured.reason is not None
    assert measured.reason.cause == "several_sequences"
    assert "2 of 2 rollouts were trained on as several sequences" in str(measured.reason)


def test_branches_that_no_batch_held_are_in_no_loss(tmp_path: Path) -> None:
    forked = json.loads((TRACES / "stream/00001.jsonl").read_text().splitlines()[2])
    run = read_stream(tmp_path, forked, stream_episode(traces=[stream_trace("a")]), annotations=[ship("a", 4)])
    rollout = next(sampled for group in run.groups for sampled in group.rollouts if sampled.earlier)
    assert (rollout.mask, rollout.earlier[0].mask) == ((False,), (False,) * 4)
    assert several_sequences([rollout]) is None
    assert not _counts_in_loss(rollout)


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


def test_chunks_may_be_compressed_by_anything(run_folder: Path) -> None:
    live = run_folder / "monitors/file/traces/stream/00001.jsonl"
    live.with_name("00001.jsonl.gz").write_bytes(gzip.compress(live.read_bytes()))
    live.unlink()
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


def test_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    run = {"type": "train", "work": {"type": "train", "step": 2}}
    rows = [
        stream_episode(traces=[stream_trace("a")]),
        stream_episode(traces=[stream_trace("a")]),
        stream_episode(traces=[stream_trace("a", rewards={"correct": {"score": 1.0}})]),
        stream_episode(traces=[stream_trace("b", info={})], run={**run, "work": {"step": "2"}}),
        stream_episode(traces=[stream_trace("c", info=None)], run={**run, "work": None}),
        stream_episode(group=None),
        stream_episode(traces=[]),
        stream_episode(traces=None),
        stream_episode(traces=[stream_trace("d", rewards=None)]),
        stream_episode(traces=[stream_trace("e", rewards={"correct": {"score": "1"}})]),
        stream_episode(traces=[stream_trace("f", nodes=[None, {"parent": 7, "mask": 3}])]),
        stream_episode(run=None, traces=[stream_trace("g", info={"dispatch": {"step": 2}})]),
    ]
    run = read_stream(tmp_path, *rows)
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


def test_agents_are_identified_by_name_in_any_order(tmp_path: Path) -> None:
    solver, critic = ({"name": name} for name in ("solver", "critic"))
    rows = [
        stream_episode(traces=[stream_trace("a", agent=solver), stream_trace("b", agent=critic)]),
        stream_episode(traces=[stream_trace("c", agent=critic), stream_trace("d", agent=solver)]),
        stream_episode(group={"id": "h"}, traces=[stream_trace("e", agent=solver), stream_trace("f", agent=solver)]),
    ]
    run = read_stream(tmp_path, *rows)
    assert {group.group_id: group.size for group in run.groups} == {
        "2:g3/solver": 2,
        "2:g3/critic": 2,
        "2:h/0": 1,
        "2:h/1": 1,
    }
    assert "several trained agents" in run.source.inferred[0]


def test_the_layout_of_an_earlier_version_is_left_out_where_there_is_a_stream(run_folder: Path) -> None:
    shutil.copytree(LOG.parent / "prime_rl/rollouts", run_folder / "rollouts")
    assert "an earlier version of prime-rl" in read_run(run_folder).source.missing[-1]
    assert rewards_of(read_run(run_folder / "rollouts")) == {"3:g7": (1.5, 0.5), "3:g8": (0.5, 0.5)}


def test_evaluations_alone_are_no_stream_of_training(tmp_path: Path) -> None:
    refused("has no rows itself", read_stream, tmp_path, stream_episode(run={"type": "eval", "id": "r"}))


def tokens(*logprobs: Any, parent: Any = 0) -> list[dict[str, Any]]:
    """The messages of a trace with log-probabilities."""
    ask = {"message": {"role": "user", "content": "?"}, "token_ids": [5, 9], "mask": [False, False]}
    ids, mask = list(range(len(logprobs))), [True] * len(logprobs)
    return [ask, {"parent": parent, "sampled": True, "token_ids": ids, "mask": mask, "logprobs": list(logprobs)}]


def episode(number: int = 0, group: str = "g", *, sent: int = 1, **cells: Any) -> dict[str, Any]:
    """An episode with one trace, ``t<number>``."""
    info = {"kind": "train", "dispatch": {"step": sent}}
    return row(sent, group, trace(f"t{number}", number / 3, info=info, **cells))


def write(folder: Path, rows: Sequence[Any], annotations: Sequence[Any] = (), *, chunk: str = "00000") -> Path:
    write_lines(folder / "traces" / "stream" / f"{chunk}.jsonl", *rows)
    if annotations:
        write_lines(folder / "traces" / "annotations" / "orchestrator" / f"{chunk}.jsonl", *annotations)
    return folder


def steps_of_groups(run: Run) -> dict[str, int]:
    return {group.group_id: group.step for group in run.groups}


EPISODES = [
    *(episode(4 * i + 2 * step + index, "gh"[i], sent=step) for i in (0, 1) for step in (1, 2) for index in (0, 1)),
    episode(0, "g"),
    episode(8, "h", nodes=tokens(-0.1, -0.25)),
    episode(9, "h", nodes=longer(None, 0, 1, 2)),
    episode(10, "g", nodes=longer(None, 0, 0)),
    episode(11, "é\u0000😀", rewards=OTHER),
    row(2, "g", trace("t12"), task={"hash": "else"}),
    row(2, "g", trace("t13"), trace("t14", agent={"name": "critic", "trainable": False})),
    row(2, "g", trace("t15", info={"kind": "eval"})),
]
ANNOTATIONS = [
    *(ship(number, 2 + number % 3) for number in (*range(10), 12)),
    ship(3, 4, info={"advantage": 0.5}),
    ship(5, 4, info={"dispatch": {"step": 7}, "ship": None}),
    ship(0, 3),
]
NESTED = (*KEYS, "info", "ship", "dispatch")


@pytest.mark.slow
@pytest.mark.parametrize("agents", [1, 2])
def test_damaged_streams_have_the_answers_of_the_row_reader(tmp_path: Path, agents: int) -> None:
    num_reduced = 0
    rows = EPISODES if agents == 1 else [*EPISODES, row(1, "g", trace("t20"), trace("t21"))]
    for seed in range(8):
        folder, chance = tmp_path / str(seed), random.Random(seed)
        for chunk in ("00000", "00001")[: 1 + seed % 2]:
            lines = [json.dumps(episode()), *mutated(rows, chance.randrange(1 << 30), nested=NESTED)]
            annotations = mutated(ANNOTATIONS, chance.randrange(1 << 30), nested=NESTED) if seed % 5 else []
            write(folder, lines, annotations, chunk=chunk)
        run = assert_same(folder, has_texts=False)
        num_reduced += run is not None and holds_rewards_alone(run.groups)
    assert num_reduced > 3


def test_the_sample_of_the_format_is_reduced() -> None:
    run = assert_reduced(LOG)
    assert (run.source.inferred[1].startswith("Some rollouts are several"), set(run.notes)) == (True, {2, 3})


def test_a_group_has_the_first_step_that_trained_on_it_else_that_of_its_dispatch(tmp_path: Path) -> None:
    rows = [episode(index, "gh"[index // 3], sent=3 - index % 2) for index in range(6)]
    run = assert_reduced(write(tmp_path, rows, [ship(1, 9), ship(2, 8), ship(7, 1)]))
    assert steps_of_groups(run) == {"8:g": 8, "2:h": 2}
    assert run is not None
    assert set(run.notes) == {8, 9}


def test_the_newest_of_several_annotations_counts(tmp_path: Path) -> None:
    rows = [episode(index, "ghij"[index]) for index in range(4)]
    annotations = [ship(0, 5), ship(0, 6), ship(1, 5), ship(1, None), ship(2, 5), ship(2, 6), ship(2, 5), ship(3, 6)]
    run = assert_reduced(write(tmp_path, rows, annotations))
    assert steps_of_groups(run) == {"6:g": 6, "1:h": 1, "5:i": 5, "6:j": 6}


def test_a_step_that_a_restart_repeated_is_noted_in_a_reduction(tmp_path: Path) -> None:
    rows, annotations = [episode(index, "ghi"[index]) for index in range(3)], [ship(0, 1), ship(1, 2), ship(2, 1)]
    write(tmp_path, rows, annotations[:1])
    run = assert_reduced(write(tmp_path, rows[:1], annotations[1:], chunk="00001"))
    assert {step: str(note).split(" trained")[0] for step, note in run.notes.items()} == {1: "a restart"}


def test_an_episode_that_is_logged_again_counts_once_and_not_where_it_contradicts_itself(tmp_path: Path) -> None:
    rows = [episode(0), episode(1), episode(0), episode(1, sent=0), row(1, "g", trace("t1", 0.9))]
    run = assert_reduced(write(tmp_path, rows, [ship(9, 1)]))
    assert [(group.group_id, group.rewards) for group in run.groups] == [("g", (0.07 + 0.2, None))]


def test_a_name_that_several_prompts_share_is_several_groups(tmp_path: Path) -> None:
    rows = [row(1, "g", trace(f"t{index}"), task={"hash": "ab"[index % 2]}) for index in range(4)]
    run = assert_reduced(write(tmp_path, rows, [ship(0, 2), ship(2, 2), ship(1, 3)]))
    assert steps_of_groups(run) == {"2:g/math/a": 2, "3:g/math/b": 3}


def test_groups_that_would_share_a_name_are_one_at_the_first_of_their_steps(tmp_path: Path) -> None:
    rows = [row(3, "g", trace(f"t{index}"), task={"hash": "ab"[index % 2]}) for index in range(4)]
    run = assert_reduced(write(tmp_path, [*rows, row(2, "g/math/a", trace("t7"), task={"hash": "a"})]))
    assert {group.group_id: group.size for group in run.groups} == {"2:g/math/a": 3, "3:g/math/b": 2}


def test_several_agents_are_several_groups(tmp_path: Path) -> None:
    named = [trace(f"t{index}", agent={"name": name}) for index, name in enumerate(("solver", "critic"), start=5)]
    run = assert_reduced(write(tmp_path, [episode(0), row(1, "g", *named)], [ship(5, 2)]))
    assert set(steps_of_groups(run)) == {"1:g", "2:g/solver", "1:g/critic"}
    assert_reduced(write(tmp_path / "alone", [row(1, "g", *named)], [ship(5, 2)]))


@pytest.mark.parametrize("branching", [0, 30])
def test_a_trace_that_branches_is_reported_at_any_position(tmp_path: Path, branching: int) -> None:
    rows = [episode(index) for index in range(31)]
    forked = tokens(-0.1, -0.2)
    rows[branching] = episode(branching, nodes=[*forked, forked[1]])
    run = assert_reduced(write(tmp_path, [*rows, episode(40, nodes=[*forked, *forked[1:] * 3])]))
    assert run.source.inferred == (BRANCHED,)


def test_episodes_of_evaluations_are_left_out(tmp_path: Path) -> None:
    work = {"type": "eval", "step": 1}
    extra = [episode(1) | {"run": {"type": "train", "work": work}}, row(1, "g", trace("t2", info={"kind": "eval"}))]
    escaped = json.dumps(extra[1]).replace('"eval"', '"ev\\u0061l"')
    run = assert_reduced(write(tmp_path, [episode(0), *extra, escaped]))
    assert [group.size for group in run.groups] == [1]


def test_groups_that_go_on_in_another_chunk_are_one_also_where_it_is_compressed(tmp_path: Path) -> None:
    for chunk in ("00000", "00001"):
        write(tmp_path, [episode(2 * int(chunk) + i, sent=2 - int(chunk)) for i in range(2)], [ship(0, 7)], chunk=chunk)
    first = tmp_path / "traces" / "stream" / "00000.jsonl"
    first.with_name("00000.jsonl.zst").write_bytes(pa.compress(first.read_bytes(), codec="zstd", asbytes=True))
    first.unlink()
    assert [(group.group_id, group.size) for group in assert_reduced(tmp_path).groups] == [("7:g", 4)]


@pytest.mark.parametrize(
    "logprobs",
    [
        [],
        [(-0.1, -0.25)],
        [(-0.1, -0.25), (-0.12345,)],
        [(-0.12345,), (-0.1,)],
        [(-0.1,), (-1e-7,)],
        [(-0.1,), (float("nan"),), ("-0.12345",), (True,)],
        [(), (0.5,)],
    ],
)
def test_rounding_is_reported_where_all_values_are_rounded(tmp_path: Path, logprobs: list[Any]) -> None:
    extra = [episode(100 + index) for index in range(25 if len(logprobs) > 1 else 1)]
    rows = [episode(index, nodes=tokens(*values)) for index, values in enumerate(logprobs)]
    deep = [episode(50 + index, nodes=[*tokens(*values), {"parent": 1}]) for index, values in enumerate(logprobs)]
    assert_reduced(write(tmp_path / "short", [*extra, *rows]))
    assert_reduced(write(tmp_path / "long", [*rows[:1], *extra, *deep]))


ODD_KEYS = ("work", "step", "type", "id", "info", "kind", "ship", "dispatch", "group", "hash")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [
        (key, value)
        for index, key in enumerate(ODD_KEYS)
        for number, value in enumerate(STRANGE)
        if (index + number) % 10 == 0
    ],
)  # each value in one of the places, each place with a tenth of the values
def test_an_odd_cell_has_the_answer_of_the_row_reader(tmp_path: Path, key: str, value: Any) -> None:
    def other(cell: Any) -> Any:
        if isinstance(cell, dict):
            return {name: value if name == key else other(item) for name, item in cell.items()}
        return [other(item) for item in cell] if isinstance(cell, list) else cell

    row = json.dumps(other(episode(1) | {"traces": [trace("t1", info={"kind": "train", "ship": {}, "dispatch": {}})]}))
    annotations = [ship(0, 2), other(ship(1, 3)), other(ship(2, 3, info={"dispatch": {"step": 5}}))]
    assert_same(write(tmp_path, [episode(0), row, episode(2), row], annotations))


def test_traces_without_a_name_are_in_no_batch_and_repeat_nothing(tmp_path: Path) -> None:
    rows = [row(index, "g", trace(name)) for index, name in enumerate((None, 7, None, 7))]
    run = assert_reduced(write(tmp_path, rows, [ship(0, 7)]))
    assert [(group.step, group.size) for group in run.groups] == [(0, 4)]


def test_a_trace_may_tell_its_batch_itself_unless_an_annotation_does(tmp_path: Path) -> None:
    rows = [row(1, "gh"[i], trace(f"t{i}", info={"ship": {"step": 6}})) for i in (0, 1)]
    run = assert_reduced(write(tmp_path, [*rows, episode(2)], [ship(2, 7), ship(1, None)]))
    assert steps_of_groups(run) == {"6:g": 6, "1:h": 1}


def test_what_is_set_aside_is_first_where_the_row_reader_finds_it_first(tmp_path: Path) -> None:
    run = assert_reduced(write(tmp_path, ["{", episode(0), "", "{"], [ship(0, 1), "{", {}, ship(1, 2), ""]))
    first_files = {reason.reason: Path(reason.first).parent.name for reason in run.source.quarantined.reasons}
    assert first_files == {
        "the line is not JSON": "orchestrator",
        "the line is blank": "orchestrator",
        "the annotation is not of version 1 or names no trace": "orchestrator",
    }


@pytest.mark.parametrize(
    ("work", "dispatch", "step"),
    [({"step": 3}, 4, 3), ({"step": True}, 4, 4), ({"step": 1.0}, None, None), ({"step": 10**400}, "1", None)],
)
def test_a_dispatch_counts_where_the_work_names_no_step(tmp_path: Path, work: Any, dispatch: Any, step: Any) -> None:
    strange = row(1, "h", trace("t1"), run={"type": "train", "work": work})
    annotations = [ship(0, 2), ship(1, None, info={"dispatch": {"step": dispatch}})]
    run = assert_reduced(write(tmp_path, [episode(0), strange], annotations))
    assert [group.step for group in run.groups if group.group_id.endswith("h")] == ([] if step is None else [step])
    assert set_aside(run) == ({"the step is not a whole number": 1} if step is None else {})
