import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradscope.errors import InputError
from gradscope.results.source import BROKEN_ADVANTAGE
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing.cells import digest
from gradscope.rollouts.readers.trainers.trl import NO_REWARD, SHARED_NAME, trainer_of, with_card
from gradscope.rollouts.run import Run, TrainerSettings
from tests.conftest import LOGS
from tests.rollouts.build import adapter_folder, model_folder
from tests.rollouts.readers.lines import refusal, rewards_of, set_aside, write_lines
from tests.rollouts.readers.reduced import assert_reduced_alike
from tests.rollouts.trl_folder import entry, rows, write_file, write_state

AABB = ["a", "a", "b", "b"]


def shape(run: Run) -> list[tuple[str, str, int]]:
    return [(group.group_id, group.rollouts[0].prompt, group.size) for group in run.groups]


def test_rows_become_blocks_even_where_a_prompt_comes_twice(tmp_path: Path) -> None:
    write_file(tmp_path, 1, rows(["a", "a", "b", "b", "c", "c", "b", "b"], [1, 0, 0, 0, 1, 1, 1, 0]))
    write_state(tmp_path, entry(1))
    run = read_run(tmp_path)
    assert shape(run) == [("1:0", "a", 2), ("1:1", "b", 2), ("1:2", "c", 2), ("1:3", "b", 2)]
    assert run.groups[1].prompt_id == run.groups[3].prompt_id != run.groups[0].prompt_id
    assert [rollout.row for rollout in run.groups[3].rollouts] == [6, 7]
    assert run.groups[0].rollouts[1].advantage == pytest.approx(-0.70700679, abs=1e-7)
    assert run.source.format == "trl"
    assert run.source.num_rows == 8


def test_conversations_keep_their_messages_without_null_keys(tmp_path: Path) -> None:
    prompts = [
        [{"role": "system", "content": "s", "name": None}, {"role": "user", "content": p, "name": "n"}] for p in AABB
    ]
    content = rows(prompts, [1, 0, 0, 0])
    for row in content:
        row["completion"] = [{"role": "assistant", "content": "x"}, {"role": "tool", "content": "y"}]
    write_file(tmp_path, 1, content)
    first = read_run(tmp_path).groups[0].rollouts[0]
    assert first.messages == ({"role": "system", "content": "s"}, {"role": "user", "content": "a", "name": "n"})
    assert (first.prompt, first.completion) == ("s\na", "x\ny")


def test_ids_come_from_their_column_or_from_a_side_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_file(run, 1, rows(AABB, [1, 0, 0, 0], completion_ids=[[1], [2], [3], [4]]))
    assert [r.completion_ids for g in read_run(run).groups for r in g.rollouts] == [(1,), (2,), (3,), (4,)]
    side = tmp_path / "ids.jsonl"
    side.write_text('{"step": 1, "row": 2, "completion_ids": [7, 8]}\n')
    assert read_run(run, ReadOptions(completion_ids=side)).groups[1].rollouts[0].completion_ids == (7, 8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"There is no file .*ids\.jsonl"),
        ('{"step": 1, "row": 0}\n', r"ids\.jsonl:1 does not hold step, row and completion_ids"),
        ('{"step": 1, "row": 0, "completion_ids": ["a"]}\n', r"ids\.jsonl:1 does not hold"),
        ('{"step": null, "row": 0, "completion_ids": [1]}\n', r"ids\.jsonl:1 does not hold"),
        ("oops\n", r"Rows that cannot be used: 1; first .*ids\.jsonl:1: the line is not JSON"),
        ('{"step": 9, "row": 0, "completion_ids": [7]}\n', r"No row of .*ids\.jsonl belongs to"),
    ],
)
def test_a_side_file_that_is_none_of_the_run_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    run, side = tmp_path / "run", tmp_path / "ids.jsonl"
    write_file(run, 1, rows(AABB, [1, 0, 0, 0]))
    if content is not None:
        side.write_text(content)
    refusal(run, message, ReadOptions(completion_ids=side))


def test_a_row_without_reward_stays_in_its_group_and_is_counted(tmp_path: Path) -> None:
    path = write_file(tmp_path, 1, rows(AABB, [1, None, float("nan"), 0]))
    run = read_run(tmp_path)
    assert [group.rewards for group in run.groups] == [(1.0, None), (None, 0.0)]
    assert run.source.num_rows == 2
    assert set_aside(run) == {NO_REWARD: 2, BROKEN_ADVANTAGE: 1}
    reason, broken = run.source.quarantined.reasons
    assert (reason.first, broken) == (f"{path}:2", run.source.broken_advantages)
    assert_reduced_alike(tmp_path)
    assert run.source.frac_set_aside.value == 3 / 4
    refusal(tmp_path, "Rows that cannot be used: 3; first", ReadOptions(strict=True))


def test_weights_are_listed_by_updates_with_the_base_although_the_run_moved(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_file(run, 1, rows(AABB, [1, 0, 0, 0]))
    base = model_folder(tmp_path / "base")
    initial = adapter_folder(tmp_path / "init", base="../base")
    (base / "tokenizer.json").touch()
    adapter_folder(run / "checkpoint-10", base="/gone/base")
    adapter_folder(run / "checkpoint-5", base="../base")
    loaded = read_run(run, ReadOptions(initial_weights=initial))
    assert [(ref.num_updates, ref.base) for ref in loaded.weights] == [
        (0, str(base)),
        (5, str(base)),
        (10, "/gone/base"),
    ]
    assert loaded.tokenizer == base
    assert loaded.weights_before(1) == loaded.weights[0]
    assert loaded.weights_before(2) is None
    assert {ref.base for ref in read_run(run, ReadOptions(model=base)).weights} == {str(base)}


@pytest.mark.parametrize("cells", [{}, {"completion_ids": [[], [], [], []]}])
def test_what_the_folder_does_not_tell_is_said(tmp_path: Path, cells: dict[str, Any]) -> None:
    write_file(tmp_path, 1, rows(AABB, [1, 0, 0, 0], **cells))
    missing = " ".join(read_run(tmp_path).source.missing)
    for words in ("no trainer_state.json", "never opened", "re-tokenized", "weights before the first update"):
        assert words in missing


def test_a_run_under_unsloth_is_trls(tmp_path: Path) -> None:
    """Its patched trainer writes TRL's files; it logs a length and a KL of its own beside TRL's metrics."""
    write_file(tmp_path, 1, rows(AABB, [1, 0, 0, 0]))
    write_state(tmp_path, {**entry(1), "completion_length": 3.0, "kl": 0.01, "reward_std": 0.35})
    (tmp_path / "unsloth_compiled_cache").mkdir()
    run = read_run(tmp_path)
    assert run.source.format == "trl"
    assert shape(run) == [("1:0", "a", 2), ("1:1", "b", 2)]
    assert run.metrics[1]["completion_length"] == 3.0


def test_log_probabilities_of_both_sides_come_from_their_columns(tmp_path: Path) -> None:
    columns = {"sampling_logprobs": [[-0.5, None], [-1.0]], "old_per_token_logps": [[-0.6, -0.1], [-1.0]]}
    write_file(tmp_path, 1, rows(["a", "a"], [1.0, 0.0], **columns))
    first, second = read_run(tmp_path).groups[0].rollouts
    assert first.logprobs == pytest.approx((-0.5, math.nan), nan_ok=True)
    assert (first.trainer_logprobs, second.trainer_logprobs) == ((-0.6, -0.1), (-1.0,))


def test_log_probabilities_that_are_text_are_not_known(tmp_path: Path) -> None:
    write_file(tmp_path, 1, rows(["a", "a"], [1.0, 0.0], sampling_logprobs=[["x"], ["y"]], old_per_token_logps=[1, 2]))
    first, _ = read_run(tmp_path).groups[0].rollouts
    assert (first.logprobs, first.trainer_logprobs) == (None, None)


MESSAGES = [{"role": "user", "content": "2+2?"}]


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_arrays_equal_the_row_reader(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("run")
    rewards = st.sampled_from([0.0, 1.0, 0.5, None])
    for step in range(1, data.draw(st.integers(1, 3)) + 1):
        prompts = [
            prompt for prompt in data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=4)) for _ in "12"
        ]
        cells: dict[str, Any] = {"neat": [data.draw(rewards) for _ in prompts]} if data.draw(st.booleans()) else {}
        content = rows(prompts, [data.draw(rewards) for _ in prompts], **cells)
        for row in content:
            row["right"] = data.draw(st.sampled_from([row["right"]] * 4 + [math.nan, math.inf]))
            row["advantage"] = data.draw(st.sampled_from([row["advantage"]] * 4 + [math.nan]))
        write_file(folder, step, content[: data.draw(st.integers(1, len(content)))])
    if data.draw(st.booleans()):
        write_state(folder, entry(1), {"step": 2, "loss": 0.1})
    reduced = assert_reduced_alike(folder)
    if isinstance(reduced, str):
        return
    assert reward_table(reduced.groups).prompt_texts is not None
    for group in read_run(folder).groups:
        written = pq.read_table(folder / f"completions/completions_{group.step:05d}.parquet").to_pylist()
        for rollout in group.rollouts:
            row = written[rollout.row]
            numbers = {name: row.get(name) for name in rollout.rewards if math.isfinite(row.get(name) or 0.0)}
            logged = [number for number in numbers.values() if number is not None]
            assert "right" in rollout.rewards
            assert rollout.reward == (sum(logged) if logged else None)
            assert (rollout.prompt, rollout.completion) == (row["prompt"], row["completion"])
            assert group.prompt_id == digest(row["prompt"])


@pytest.mark.parametrize(
    "columns",
    [
        {"completion_ids": [[1, 2], [3], None, [4]]},
        {"completion_ids": ["text", "text", "text", "text"]},
        {"completion_ids": [[1.5], [2.0], [], [3.0]]},
        {"right": [1, 0, 1, 0]},
        {"right": [True, False, None, True]},
    ],
)
def test_columns_of_other_types(tmp_path: Path, columns: dict[str, list[Any]]) -> None:
    path = write_file(tmp_path, 1, rows(["a", "a", "b", "b"], [1, 0, 0, 0]))
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.drop_columns([name] if name in table.column_names else []).append_column(name, pa.array(values))
    pq.write_table(table, path)
    assert_reduced_alike(tmp_path)


def test_conversations_have_their_ids(tmp_path: Path) -> None:
    write_file(tmp_path, 1, rows([MESSAGES, MESSAGES, MESSAGES[:1], [*MESSAGES, *MESSAGES]], [1, 0, 0, 0]))
    assert_reduced_alike(tmp_path)


def test_the_sample_of_the_format() -> None:
    assert_reduced_alike(LOGS / "trl")


@pytest.mark.parametrize(
    ("judge", "mean", "reasons"),
    [({}, {}, [(SHARED_NAME, 4)]), ({"judge": math.nan}, {"rewards/judge/mean": None}, [])],
)
def test_functions_of_one_name_leave_no_reward_and_a_silent_one_is_one(judge, mean, reasons, tmp_path) -> None:
    write_file(tmp_path / "run", 1, [row | judge for row in rows(AABB, [1, 0, 0, 0])])
    write_state(tmp_path / "run", entry(1, **mean))
    (tmp_path / "RUN.json").write_text(json.dumps({"reward_weights": [1.0, 0.5]}))
    run = read_run(tmp_path / "run", ReadOptions(trainer_args=tmp_path / "RUN.json"))
    assert [(name.reason, name.num_rows) for name in run.source.quarantined.reasons] == reasons
    assert reasons or rewards_of(run) == {"1:0": (1.0, 0.0), "1:1": (0.0, 0.0)}


CARD = "# A model\n\n### Framework versions\n\n- TRL: {}\n- Transformers: 5.23.0\n"


def test_the_card_of_the_run_comes_before_those_of_its_checkpoints(tmp_path: Path) -> None:
    assert with_card(TrainerSettings(), tmp_path).get("trl_version") is None
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-2" / "README.md").write_text(CARD.format("1.9.0"))
    assert with_card(TrainerSettings(), tmp_path).get("trl_version") == "1.9.0"
    (tmp_path / "README.md").write_text("It was trained with TRL: see there.\n")
    assert with_card(TrainerSettings(), tmp_path).get("trl_version") == "1.9.0"
    (tmp_path / "README.md").write_text(CARD.format("1.16.0"))
    assert with_card(TrainerSettings(), tmp_path).get("trl_version") == "1.16.0"


def test_what_was_given_comes_before_the_card(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(CARD.format("1.16.0"))
    assert with_card(TrainerSettings(), tmp_path) == TrainerSettings(values={"trl_version": "1.16.0"})
    named = TrainerSettings(values={"trl_version": "1.8.0"}, origin="args.json")
    assert with_card(named, tmp_path) is named
    assert with_card(TrainerSettings(), tmp_path / "elsewhere") == TrainerSettings()


@pytest.mark.parametrize(
    ("sentence", "trainer"),
    [
        ("This model was trained with RLOO, a method introduced in [Back to Basics](https://x).", "RLOO"),
        ("This model was trained with Server Distillation.", "Server Distillation"),
        ("This model was trained with GRPO, a method", "GRPO"),
        ("It was trained with love.", None),
    ],
)
def test_the_card_names_the_trainer(tmp_path: Path, sentence: str, trainer: str | None) -> None:
    (tmp_path / "README.md").write_text(f"# A model\n\n{sentence}\n")
    assert trainer_of(tmp_path) == trainer
    assert with_card(TrainerSettings(), tmp_path).get("trl_trainer") == trainer


@pytest.mark.parametrize(
    ("tags", "trainer"), [(("trl", "grpo"), "GRPO"), (("gmpo", "trl"), "GMPO"), (("trl",), "GRPO"), ((), "GRPO")]
)
def test_a_subclass_is_known_by_its_tag(tmp_path: Path, tags: tuple[str, ...], trainer: str) -> None:
    head = "".join(f"- {tag}\n" for tag in ("generated_from_trainer", *tags))
    (tmp_path / "README.md").write_text(f"---\ntags:\n{head}---\n\nThis model was trained with GRPO, a method\n")
    assert trainer_of(tmp_path) == trainer


def test_a_run_of_another_trainer_is_named_and_not_asked_for_what_it_cannot_do(tmp_path: Path) -> None:
    write_state(tmp_path / "checkpoint-1", entry(1))
    for trainer, words in (("RLOO", "trained with RLOO, as its README.md says"), ("GRPO", "holds no completions/")):
        (tmp_path / "README.md").write_text(f"This model was trained with {trainer}, a method.\n")
        assert ("log_completions" in str(refusal(tmp_path, words, ReadOptions(reader="trl")))) == (trainer == "GRPO")


SWIFT_LOG = LOGS / "ms_swift"


def call(**cells: Any) -> dict[str, Any]:
    row = {"step": ["1"] * 2, "prompt": ["q"] * 2, "completion": ["a", "b"], "Right": [1.0, 0.0]}
    return {**row, "advantages": [0.7, -0.7], **cells}


def test_blocks_of_a_prompt_are_cut_by_the_advantages_where_prompts_repeat() -> None:
    run = read_run(SWIFT_LOG)
    assert rewards_of(run) == {"10:0": (2.0, 1.0), "10:1": (1.0, 1.0), "20:0": (2.0, 2.0), "20:1": (1.0, 2.0)}
    rollout = run.groups[0].rollouts[0]
    assert (rollout.rewards, rollout.advantage) == ({"MathAccuracy": 1.0, "Format": 1.0}, 0.7071)
    assert "weight 1 each" in run.source.inferred[0]
    assert "confirmed by the logged advantages" in run.source.inferred[1]
    assert "dynamic_sample" in run.source.missing[0]
    assert_reduced_alike(SWIFT_LOG)


def test_given_weights_make_the_reward(tmp_path: Path) -> None:
    settings = tmp_path / "args.json"
    settings.write_text(json.dumps({"reward_weights": [1.0, 0.5], "num_generations": 2}))
    assert rewards_of(read_run(SWIFT_LOG, ReadOptions(trainer_args=settings)))["10:0"] == (1.5, 0.5)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("1.0", r"gives reward_weights \[1\.0\]; the log has 2 reward functions"),
        *(
            (f"1.0, {value}", r"reward_weights is .\[1\.0, ")
            for value in ("NaN", "Infinity", "1" + "0" * 400, '"1"', "null")
        ),
    ],
)
def test_given_weights_that_cannot_be_are_refused(tmp_path: Path, weights: str, message: str) -> None:
    settings = tmp_path / "args.json"
    settings.write_text(f'{{"reward_weights": [{weights}]}}')
    refusal(SWIFT_LOG, message, ReadOptions(trainer_args=settings))


def test_a_batch_that_is_logged_again_counts_once(tmp_path: Path) -> None:
    run = read_run(write_lines(tmp_path / "completions.jsonl", call(), call(step=["2"] * 2)))
    assert rewards_of(run) == {"1:0": (1.0, 0.0)}
    assert "1 line that repeat" in run.source.inferred[-1]


def test_the_step_has_another_name_on_megatron(tmp_path: Path) -> None:
    rows = [{"gen_step": [step] * 2, **{key: cell for key, cell in call().items() if key != "step"}} for step in (4, 5)]
    rows[1]["Right"] = [0.0, 0.0]
    run = read_run(write_lines(tmp_path / "completions.jsonl", *rows))
    assert (run.source.format, rewards_of(run)) == ("ms-swift", {"4:0": (1.0, 0.0), "5:0": (0.0, 0.0)})
    assert run.groups[0].rollouts[0].rewards == {"Right": 1.0}


def test_lines_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    lines = [call(), call(step=["x", "1"]), call(advantages=[0.7]), call(Right=[None, 1.0], step=[3, 3])]
    run = read_run(write_lines(tmp_path / "completions.jsonl", *lines))
    assert rewards_of(run) == {"1:0": (1.0, 0.0), "3:0": (None, 1.0)}
    assert set_aside(run) == {
        "the step is not a whole number": 1,
        "step, prompt, completion and advantages are not lists of one length": 1,
        "the reward is missing": 1,
    }


def test_a_log_without_usable_lines_or_rewards_is_refused(tmp_path: Path) -> None:
    refusal(write_lines(tmp_path / "completions.jsonl", call(step=["x", "y"])), "has no line of completions")
    with pytest.raises(InputError, match="has no list of rewards before `advantages`"):
        read_run(write_lines(tmp_path / "completions.jsonl", call(Right=["a", "b"])))


def test_columns_behind_the_advantages_are_no_rewards_and_tell_no_batch_from_another(tmp_path: Path) -> None:
    extra = {"solution": ["4", None], "num_turns": [1, 2], "entropy": [0.5, 0.25], "images": [[1]], "note": "x"}
    repeated = {**extra, "entropy": [0.4, 0.2]}
    run = read_run(
        write_lines(tmp_path / "completions.jsonl", call(**extra), call(step=["2", "2"], **repeated), call(**repeated))
    )
    assert rewards_of(run) == {"1:0": (1.0, 0.0)}
    assert run.groups[0].rollouts[0].rewards == {"Right": 1.0}
    assert "2 lines that repeat" in run.source.inferred[-1]


def test_the_log_of_several_steps_in_one_line(tmp_path: Path) -> None:
    pair = {name: [*cells, *cells] for name, cells in call().items()}
    run = read_run(write_lines(tmp_path / "completions.jsonl", {**pair, "step": ["1", "1", "2.0", "2"]}))
    assert run.steps == (1,)
    other = {**pair, "step": ["1", "1", "2", "2"], "completion": ["a", "b", "c", "d"]}
    assert rewards_of(read_run(write_lines(tmp_path / "completions.jsonl", other))) == {
        "1:0": (1.0, 0.0),
        "2:0": (1.0, 0.0),
    }


ROWS = 4
CELLS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2.5, -0.0, 1e308, -1e308, float("nan"), float("inf"), 10**400, 1 << 60),
    *("", "1", "2.0", "x", "\ud800", "é", [], [1], ["q"], {}, {"a": 1}, [{"role": "user", "content": "q"}]),
)
KEYS = ("step", "prompt", "completion", "Right", "Format", "advantages", "entropy")


def batch(**cells: Any) -> dict[str, Any]:
    return {
        "step": ["1"] * ROWS,
        "prompt": ["p", "p", "q", "q"],
        "completion": ["a", "b", "c", "d"],
        "Right": [1.0, 0.0, 0.0, 1.0],
        "Format": [1.0, 1.0, 0.5, None],
        "advantages": [0.7, -0.7, -0.7, 0.7],
        **cells,
    }


@pytest.mark.parametrize(
    ("key", "cell"),
    [(key, cell) for index, key in enumerate(KEYS) for number, cell in enumerate(CELLS) if (index + number) % 3 == 0],
)  # each cell in two or three of the columns
def test_each_odd_cell_alone_has_the_answer_of_the_row_reader(tmp_path: Path, key: str, cell: Any) -> None:
    strange = batch(entropy=[0.1] * ROWS)
    strange[key] = [cell, *strange[key][1:]]
    assert_reduced_alike(write_lines(tmp_path / "completions.jsonl", batch(), strange, strange))
    assert_reduced_alike(write_lines(tmp_path / "completions.jsonl", strange))


def test_a_line_that_lacks_a_reward_function_has_the_others(tmp_path: Path) -> None:
    lacking = batch(step=["2"] * ROWS)
    del lacking["Format"]
    run = assert_reduced_alike(write_lines(tmp_path / "completions.jsonl", batch(), lacking))
    assert isinstance(run, Run)
    assert rewards_of(run)["2:0"] == (1.0, 0.0)
    assert run.groups[2].rollouts[0].rewards == {"Right": 1.0, "Format": None}


def test_rows_without_a_finite_reward_are_set_aside_by_reason(tmp_path: Path) -> None:
    strange = batch(Right=[None, 1e308, 1.0, 1.0], Format=[None, 1e308, 1.0, 1.0])
    run = assert_reduced_alike(write_lines(tmp_path / "completions.jsonl", strange))
    assert isinstance(run, Run)
    assert rewards_of(run)["1:0"] == (None, None)
    assert set_aside(run) == {"the reward is missing": 1, "the reward is not finite": 1}


def test_a_step_that_a_restart_logs_again_has_groups_of_its_own(tmp_path: Path) -> None:
    later = batch(Right=[0.0] * ROWS, prompt=["r", "r", "s", "s"])
    log = write_lines(tmp_path / "completions.jsonl", batch(), batch(step=["2"] * ROWS, completion=["e"] * ROWS), later)
    run = assert_reduced_alike(log)
    assert isinstance(run, Run)
    assert list(rewards_of(run)) == ["1:0", "1:1", "1:2", "1:3", "2:0", "2:1"]
    assert len({group.prompt_id for group in read_run(log).groups if group.step == 1}) == 4
