from pathlib import Path
from typing import Any

from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines

LOGS = REPOSITORY / "fixtures" / "logs"


def trace_row(**cells: Any) -> dict[str, Any]:
    row = {"step": 1, "prompt_idx": 0, "prompt_tokens": [1], "response_tokens": [2], "reward": 1.0, "logprobs": None}
    return {**row, **cells}


def test_open_instruct_keeps_tokens_and_says_that_dead_groups_are_hidden() -> None:
    run = read_run(LOGS / "open_instruct")
    assert rewards_of(run) == {"3:0": (10.0, 0.0), "3:1": (0.0, 10.0), "4:0": (10.0, 0.0)}
    first, second = run.groups[0].rollouts
    assert (first.prompt_ids, first.completion_ids, first.logprobs) == ((1, 5), (9, 2), (-0.2, -0.01))
    assert (first.advantage, first.status, second.status) == (1.0, "completed", "truncated")
    assert "lower bound" in run.source.missing[0]
    assert "filter_zero_std_samples" in run.source.missing[0]


def test_open_instruct_prompts_of_one_text_stay_apart_by_prompt_idx(tmp_path: Path) -> None:
    rows = [trace_row(prompt_idx=index) for index in (0, 0, 1, 1)]
    run = read_run(write_lines(tmp_path / "a_rollouts_000000.jsonl", *rows))
    assert [group.size for group in run.groups] == [2, 2]
    assert len({group.prompt_id for group in run.groups}) == 1


def test_open_instruct_is_regrouped_by_tokens_where_prompt_idx_mixes_prompts(tmp_path: Path) -> None:
    rows = [trace_row(prompt_idx=at // 2, prompt_tokens=[prompt]) for at, prompt in enumerate((1, 2, 2))]
    run = read_run(write_lines(tmp_path / "a_rollouts_000000.jsonl", *rows, trace_row(step=2)))
    assert [group.size for group in run.groups] == [1, 2, 1]
    assert "At 1 step prompt_idx mixes prompts" in run.source.inferred[0]


def test_open_instruct_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    bad = [{"step": 1.5}, {"prompt_idx": None}, {"prompt_tokens": "1"}, {"logprobs": [-1.0, -1.0]}, {"reward": "1"}]
    run = read_run(write_lines(tmp_path / "a_rollouts_0.jsonl", trace_row(), *(trace_row(**cells) for cells in bad)))
    assert rewards_of(run) == {"1:0": (1.0, None)}
    assert set_aside(run) == {
        "the step is not a whole number": 1,
        "prompt_idx is not a whole number": 1,
        "the token ids are not a list of whole numbers": 1,
        "the lists of tokens differ in length": 1,
        "the reward is text": 1,
    }
