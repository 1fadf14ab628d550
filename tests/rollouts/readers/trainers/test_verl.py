import json
import math
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gradscope.rollouts.groups import GroupsOnDisk, reward_table
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing.quarantine import UnusableRowError
from gradscope.rollouts.readers.trainers.verl import dump_columns, row_tokens
from tests.conftest import LOGS
from tests.rollouts.readers.lines import refusal, set_aside, write_lines
from tests.rollouts.readers.reduced import assert_reduced, assert_same, in_small_blocks, mutated


@pytest.fixture(autouse=True)
def reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_blocks(monkeypatch, block=300)


def row(uid: str | None = "u_0_0", **cells: Any) -> dict[str, Any]:
    named = {} if uid is None else {"uid": uid}
    return {"input": "2+2", "output": "4", "gts": "4", "score": 1.0, "step": 1} | named | cells


def write(folder: Path, *rows: dict[str, Any] | str) -> Path:
    return write_lines(folder / "1.jsonl", *rows).parent


V1 = [
    row(f"{group}_{session}_{index}", score=float(session == 1), input=f"{group}?", acc=session > 0, step=step)
    for step in (1, 2)
    for group in ("u", "a_b", "0_0")
    for session in range(3)
    for index in range(1 + (group == "u" and session == 2))
]
LEGACY = [
    row(None, input=text, gts=gts, score=score, fmt=score / 2)
    for text in ("2+2", "3+3")
    for gts in ("4", {"a": [1]}, None)
    for score in (0.0, 1.0)
]
SEVERAL = [
    row(f"u_{session}_{index}", output=str(index), input=f"{index}") for session in (0, 1) for index in (0, 1, 2)
]
TOKENS: dict[str, Any] = {
    "prompts": [0, 5, 6],
    "responses": [7, 8, 9, 0],
    "attention_mask": [0, 1, 1, 1, 1, 1, 0],
    "response_mask": [1, 0, 1, 0],
    "rollout_log_probs": [-0.5, 0.0, -1.25e-05, 0.0],
    "old_log_probs": [-0.5, None, -0.25, "x"],
    "advantages": [1.0, 0.0, 1.0, 0.0],
}
BARE = {"prompt_ids": [5], "response_ids": [7, 8], "advantages": -0.5}
WITH_TOKENS = [
    {**row, **(TOKENS if number % 3 else BARE), "acc": number / 2, "origin": "gsm8k"} for number, row in enumerate(V1)
]
LEGACY_TOKENS = [{**row, **(TOKENS if number % 3 else BARE)} for number, row in enumerate(LEGACY)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows",
    [V1, LEGACY, SEVERAL, [*V1, *LEGACY], WITH_TOKENS, LEGACY_TOKENS],
    ids=["v1", "legacy", "several", "mixed", "tokens", "legacy tokens"],
)
def test_damaged_dumps_have_the_answers_of_the_row_reader(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    for seed in range(4):
        folder = tmp_path / str(seed)
        for number in range(1 + seed % 3):
            write_lines(folder / f"{number}.jsonl", *mutated(rows, 10 * seed + number), ended=seed % 2 == 0)
        write_lines(folder / "9.jsonl", rows[0])
        assert_same(folder)


@pytest.mark.parametrize(
    "rows",
    [V1, LEGACY, SEVERAL, WITH_TOKENS, LEGACY_TOKENS],
    ids=["v1", "legacy", "several", "tokens", "legacy tokens"],
)
def test_proper_dumps_are_reduced(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    run = assert_reduced(write(tmp_path, *rows))
    assert set(run.notes) == ({1, 2} if rows in (V1, WITH_TOKENS) else {1} if rows is SEVERAL else set())
    assert (reward_table(run.groups).num_tokens is not None) == (rows in (WITH_TOKENS, LEGACY_TOKENS))


@pytest.mark.parametrize(
    "cells",
    [
        {"attention_mask": None, "response_mask": None, "rollout_log_probs": None, "advantages": None},
        {"attention_mask": [0, 1, 1, 1, 0, 0, 0], "advantages": 0},
        {"attention_mask": [False, True, True, True, True, True, False]},
        {"attention_mask": [0, 1, 1, 1, 1, 2, 0]},
        {"responses": [], "attention_mask": [0, 1, 1], "response_mask": [], "rollout_log_probs": [], "advantages": []},
        {"prompts": [], "attention_mask": [1, 1, 1, 1]},
        {"responses": None},
        {"prompts": None, "prompt_ids": [5]},
        {"rollout_log_probs": [-0.5, 0, True, -1e-300]},
        {"advantages": [1, 0, 1, 10**30]},
    ],
)
def test_tokens_of_any_kind_stay_on_disk(tmp_path: Path, cells: dict[str, Any]) -> None:
    rows = [row("u_0_0", **TOKENS), row("u_1_0", **TOKENS | cells), row("v_0_0", **TOKENS | cells, score=0.0)]
    assert_reduced(write(tmp_path, *rows))


@pytest.mark.parametrize(
    "cells", [{"responses": "x"}, {"response_mask": [1]}, {"rollout_log_probs": [float("nan"), 0, 0, 0]}]
)
@pytest.mark.parametrize("named", [True, False])
def test_tokens_that_contradict_each_other_cost_their_row(tmp_path: Path, cells: dict[str, Any], named: bool) -> None:
    rows = [row(f"u_{number}_0" if named else None, **TOKENS) for number in range(3)]
    write(tmp_path, *rows, rows[2] | cells)
    assert_same(tmp_path, is_reduced=not named)


@pytest.mark.parametrize(("cell", "is_late"), [(1.0, True), (True, True), ("a", False), (None, False), ([1], False)])
def test_rewards_that_no_file_begins_with(tmp_path: Path, cell: Any, is_late: bool) -> None:
    lines = [row(None, input=str(number), origin=None) for number in range(60)]
    write(tmp_path, *lines, row(None, late=cell), row(None, origin=cell))
    assert_reduced(tmp_path)
    run = read_run(tmp_path)
    assert isinstance(run.groups, GroupsOnDisk)
    assert run.groups[-1].rollouts[-1].rewards == ({"score": 1.0, "origin": float(cell)} if is_late else {"score": 1.0})


@pytest.mark.parametrize(
    "late",
    [
        row("u_0_0", prompts=[1], responses=[2]),
        row("u_0_0", prompt_ids=[1], response_ids="x"),
        row(None),
        row("u_1_0", score=None),
        row("u_1_0", score="x"),
    ],
)
def test_rows_that_only_a_look_at_all_of_them_can_judge(tmp_path: Path, late: dict[str, Any]) -> None:
    rows = [row(f"u_{session}_{index}") for session in range(30) for index in (0, 1)]
    write(tmp_path, *rows, late)
    assert_same(tmp_path, is_reduced=late.get("score") == 1.0 and late.get("response_ids") != "x")


@pytest.mark.slow
def test_a_uid_that_comes_late_in_a_dump_without(tmp_path: Path) -> None:
    rows = [row(None, input=str(index // 2)) for index in range(60)]
    write(tmp_path, *rows, row("u_0_0"))
    assert_same(tmp_path, is_reduced=False)


@pytest.mark.slow
def test_a_line_nested_deeper_than_a_row_may_be_is_set_aside(tmp_path: Path) -> None:
    deep = json.dumps(row("x_0_0", input="new", extra=0)).replace("0}", f"{'[' * 101}{']' * 101}}}")
    long = json.dumps(row("x_2_0", extra=0)).replace('"extra": 0', f'"extra": {"9" * 5000}')
    write(tmp_path, *V1, deep, long, row("x_1_0", input="new"))
    assert [entry.num_rows for entry in assert_reduced(tmp_path).source.quarantined.reasons] == [1, 1]


@pytest.mark.parametrize(
    "uid", ["__0_0", "_0_0", "u_0", "u_٣_0", "u_0_0\n", "é_0_0", 'u"_0_0', "u\\_0_0", 7, None, ["u_0_0"]]
)
def test_uids_of_any_kind(tmp_path: Path, uid: Any) -> None:
    assert_reduced(write(tmp_path, row("u_0_0"), {**row(), "uid": uid}, row("u_1_0")))


BY_UID = [
    row(uid, step=step, score=float(row_index % 2), input=f"{uid}?")
    for step in (1, 2)
    for uid in ("5f-a", "6_e")
    for row_index in (0, 1)
]


def test_a_uid_that_rollouts_share_is_the_id_of_their_group(tmp_path: Path) -> None:
    run = assert_reduced(write(tmp_path, *BY_UID, row("7", score=None), {**row(), "uid": 7}))
    assert [group.group_id for group in run.groups] == ["1:5f-a", "1:6_e", "1:7", "2:5f-a", "2:6_e"]
    assert [group.rewards for group in run.groups][:3] == [(0.0, 1.0), (0.0, 1.0), (None,)]
    assert [entry.reason for entry in run.source.quarantined.reasons] == ["the reward is null", "the uid is no text"]
    assert "Rollouts of one uid at one step are a group." in run.source.inferred


@pytest.mark.slow
def test_uids_that_no_two_rows_share_name_no_groups(tmp_path: Path) -> None:
    write(tmp_path, *(row(f"u{index}") for index in range(4)))
    assert assert_same(tmp_path) is None
    refusal(tmp_path, "the uid is not <group>_<session>_<index>", rewards_only=True)


@pytest.mark.parametrize("key", ["", "\ud800", 'a"', "a\n"])
def test_keys_of_any_kind(tmp_path: Path, key: str) -> None:
    run = assert_same(write(tmp_path, *({**cells, key: 0.5} for cells in V1)))
    assert run is not None
    assert run.groups[0].rollouts[0].rewards[key] == 0.5


def test_the_uid_names_the_group_even_where_prompts_are_equal(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, *(row(f"{group}_{k}_0", score=k) for group in "ab" for k in (0, 1))))
    assert [group.group_id for group in run.groups] == ["1:a", "1:b"]
    assert len({group.prompt_id for group in run.groups}) == 1
    assert run.source.inferred == ()


def test_several_outputs_of_a_session_are_one_rollout(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, row("a_0_0", output="first"), row("a_0_1", output="last"), row("a_1_0")))
    assert [rollout.completion for rollout in run.groups[0].rollouts] == ["last", "4"]


def test_the_tokens_of_all_outputs_of_a_session_count() -> None:
    run = read_run(LOGS / "verl_v1_tokens")
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (0.0, 0.0)]
    several, single = run.groups[0].rollouts
    (first,) = several.earlier
    assert (first.prompt_ids, first.completion_ids, first.mask) == ((5, 9), (11, 12, 13), (True, False, True))
    assert (first.logprobs, first.trainer_logprobs) == ((-0.5, 0.0, -0.25), (-0.5, 0.0, -0.5))
    assert (several.prompt_ids, several.completion_ids, several.completion) == ((5, 9, 14), (2,), "4")
    assert (several.advantage, several.num_tokens, single.num_tokens) == (0.7, 4, 2)
    assert {step: reason.cause for step, reason in run.notes.items()} == {1: "several_sequences"}
    assert "several sequences" in run.source.inferred[0]


@pytest.mark.parametrize(("cells", "aside"), [({}, 0), ({"prompts": [5], "responses": "x"}, 1)], ids=["text", "odd"])
def test_a_part_of_the_outputs_never_passes_for_all(tmp_path: Path, cells: dict[str, Any], aside: int) -> None:
    run = read_run(write(tmp_path, row("a_0_0", **cells), row("a_0_1", prompts=[5], responses=[7])))
    (rollout,) = run.groups[0].rollouts
    assert (rollout.reward, rollout.completion_ids, rollout.earlier) == (1.0, None, ())
    assert run.source.quarantined.num_rows == aside


def test_legacy_rows_are_grouped_by_input_and_truth_and_it_is_said() -> None:
    run = read_run(LOGS / "verl_legacy")
    assert [group.rewards for group in run.groups] == [(1.0, 0.0), (0.0, 0.0)]
    assert run.groups[0].rollouts[0].rewards == {"score": 1.0, "acc": 1.0}
    assert "grouped by input and ground truth within the step" in run.source.inferred[0]
    assert "Rollouts were read from rollout/" in run.source.inferred[1]
    assert run.steps == (1,)


def test_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    rows = [row("a_0_0"), row("a_1_0", score=None), row("a"), row("a_2_0", step={}), row(None)]
    run = read_run(write(tmp_path, *rows, row("a_3_0", step=10**400)))
    assert [group.rewards for group in run.groups] == [(1.0, None)]
    assert set_aside(run) == {
        "the reward is null": 1,
        "the uid is not <group>_<session>_<index>": 2,
        "the step is not a whole number": 2,
    }


def test_a_folder_without_dumps_says_how_to_get_them(tmp_path: Path) -> None:
    (tmp_path / "other.txt").touch()
    assert "trainer.rollout_data_dir" in refusal(tmp_path, "holds no rollouts", ReadOptions(reader="verl"))


def test_padding_is_cut_where_the_attention_mask_says_so() -> None:
    tokens = row_tokens(TOKENS)
    assert tokens is not None
    assert (tokens.prompt_ids, tokens.completion_ids, tokens.mask) == ((5, 6), (7, 8, 9), (True, False, True))
    assert (tokens.logprobs, tokens.advantage) == ((-0.5, 0.0, -1.25e-05), 1.0)


def test_ids_under_their_other_names_with_one_advantage() -> None:
    tokens = row_tokens({"prompt_ids": [5], "response_ids": [7, 8], "advantages": 0.5})
    assert tokens is not None
    assert (tokens.mask, tokens.logprobs, tokens.token_advantages) == ((True, True), None, (0.5, 0.5))


def test_a_response_outside_the_loss_stays() -> None:
    tokens = row_tokens({**TOKENS, "response_mask": [0, 0, 0, 0]})
    assert tokens is not None
    assert tokens.mask == (False, False, False)


@pytest.mark.parametrize(
    "cells", [{"prompts": "5 6"}, {"attention_mask": [1]}, {"response_mask": [1, 1]}, {"rollout_log_probs": [None] * 4}]
)
def test_lists_that_do_not_fit_are_no_row(cells: dict[str, Any]) -> None:
    with pytest.raises(UnusableRowError):
        row_tokens({**TOKENS, **cells})


ODD = (None, [], [None], "x", 0.5, True, -1, [[1]], [1.0], [True, False], {})
ODD_ENDS = (None, True, 2, 0.5, -3, "a", 1e400, 10**400, [1])


def changed(rng: random.Random, cell: Any) -> Any:
    """A cell as it is, mostly; else another one, or a list with another end."""
    if rng.random() < 0.7 or not isinstance(cell, list):
        return cell
    return rng.choice([rng.choice(ODD), cell[:-1], [*cell, 0], [*cell[:-1], rng.choice(ODD_ENDS)]])


@pytest.mark.slow
def test_columns_count_tokens_as_rows_do() -> None:
    rng = random.Random(1)
    decoder = (lines := dump_columns([], None, has_tokens=True)).decoder
    num_compared = 0
    for _ in range(1000):
        num_prompt, size = rng.randrange(4), rng.randrange(5)
        cells = {
            rng.choice(["prompts", "prompt_ids"]): [5] * num_prompt,
            rng.choice(["responses", "response_ids"]): [7] * size,
            "attention_mask": rng.choices([0, 1, 1], k=num_prompt + size),
            "response_mask": rng.choices([0, 1, 1], k=size),
            "rollout_log_probs": rng.choices([-0.5, -1e-05, 0], k=size),
            "advantages": rng.choice([[0.5] * size, rng.choices([0.5, 0.0], k=size), 0.25, -1]),
        }
        cells = {name: changed(rng, cell) for name, cell in cells.items() if rng.random() < 0.9}
        text = json.dumps(
            {"input": "2+2", "output": "4", "score": 1.0, "step": 1, **cells},
            separators=rng.choice([(", ", ": "), (",", ":")]),
        )
        with suppress(msgspec.MsgspecError):  # the row reader reads what the decoder refuses
            columns = lines.to_columns([decoder.decode(text.encode())], Path("1.jsonl"))
            num_compared += 1
            try:
                tokens = row_tokens(json.loads(text))
            except UnusableRowError:
                assert columns.is_irregular is not None
                assert columns.is_irregular.all()
            else:
                expected = (-1, None) if tokens is None else (len(tokens.completion_ids), tokens.advantage)
                length, advantage = columns.numbers["num_tokens"][0], columns.numbers["advantage"][0]
                assert (length, None if math.isnan(advantage) else advantage) == expected
    assert num_compared > 700


def test_text_has_no_tokens() -> None:
    assert row_tokens({"input": "a", "output": "b"}) is None


def test_the_trainers_numbers_are_cut_alike_and_their_gaps_kept() -> None:
    tokens = row_tokens({**TOKENS, "old_log_probs": [-0.6, None, -0.3, 9.0], "entropys": [0.5, 0.25, "high", 0.0]})
    assert tokens is not None
    assert tokens.trainer_logprobs == pytest.approx((-0.6, math.nan, -0.3), nan_ok=True)
    assert tokens.entropies == pytest.approx((0.5, 0.25, math.nan), nan_ok=True)


def test_other_files_beside_numbered_ones_are_no_rollouts(tmp_path: Path) -> None:
    """As AgentEvolver writes its tasks."""
    write_lines(tmp_path / "task_3.jsonl", {"task_id": "a", "query": "2+2?"})
    write_lines(tmp_path / "3.jsonl", *({"input": "2+2?", "output": "4", "score": i, "step": 3} for i in (0, 1)))
    run = read_run(tmp_path)
    assert (len(run.groups), run.source.quarantined.num_rows) == (1, 0)


def test_cells_that_are_all_text_are_rows_as_any(tmp_path: Path) -> None:
    """As some forks of verl write them."""
    row = {"input": "2+2?", "output": "4", "step": "3"}
    run = read_run(write_lines(tmp_path / "3.jsonl", *(row | {"score": score} for score in ("1.0", "0.0"))))
    assert [(group.step, group.rewards) for group in run.groups] == [(3, (1.0, 0.0))]
