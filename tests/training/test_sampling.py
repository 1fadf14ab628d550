from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gradscope.training import sampling
from gradscope.training.config import TrainConfig


class FakeSampler:
    """Completions of as many tokens as rows were sampled before, and the rewards that each prompt has in store.

    Args:
        rewards: Prompt -> rewards, in the order in which its rollouts are sampled; those of other prompts are 0.
    """

    def __init__(self, rewards: dict[str, list[float]]) -> None:
        self._rewards = {prompt: list(values) for prompt, values in rewards.items()}
        self.asked: list[list[str]] = []  # prompts of the rows of each round

    def __call__(self, rows: Sequence[sampling.Row]) -> sampling.Scored:
        prompts = [row["prompt_id"] for row in rows]
        lengths = torch.arange(1, len(rows) + 1) + sum(map(len, self.asked))
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
        self.asked.append(prompts)
        return sampling.Scored(
            rows=rows,
            output={"prompt_mask": torch.ones(len(rows), 1).long(), "completion_mask": mask},
            rewards={"answer": [self._rewards[p].pop(0) if self._rewards.get(p) else 0.0 for p in prompts]},
            trained=("answer",),
        )


def rows_of(*prompts: str, size: int) -> list[sampling.Row]:
    return [{"prompt_id": prompt} for prompt in prompts for _ in range(size)]


def dynamic(pool: str, max_rounds: int = 4) -> sampling.Sampling:
    rows = {prompt: {"prompt_id": prompt} for prompt in pool}
    return partial(sampling._replace_dead, size=2, pool=rows, seed=0, max_rounds=max_rounds, padding=0)


def test_fixed_is_one_round() -> None:
    sample = FakeSampler({})
    batch = sampling._sample_once(rows_of("a", "b", size=2), 1, sample, size=2)
    assert (sample.asked, batch.sizes, batch.cost) == ([["a", "a", "b", "b"]], (2, 2), {})


def test_dead_groups_are_replaced_until_none_is_left() -> None:
    live = {prompt: [1.0, 0.0] for prompt in "acdefgh"}
    sample = FakeSampler(live)
    batch = dynamic("abcdefgh")(rows_of("a", "b", size=2), 1, sample)
    (other,) = set(sample.asked[1])
    assert [row["prompt_id"] for row in batch.scored.rows] == ["a", "a", other, other]
    assert len(sample.asked) == 2
    assert batch.scored.totals.tolist() == [1.0, 0.0, 1.0, 0.0]
    # rows have 1 2, 3 4, 5 6 tokens, and 3 4 were thrown away
    assert batch.cost == {
        "num_sampled_groups": 3,
        "num_sampled_degenerate_groups": 1,
        "num_resampled_groups": 1,
        "num_sampled_rollouts": 6,
        "num_sampled_tokens": 21,
        "num_discarded_tokens": 7,
    }


def test_a_round_samples_as_many_as_are_missing_and_no_prompt_twice() -> None:
    sample = FakeSampler({"a": [0.0, 1.0]})
    batch = dynamic("abcdefgh", max_rounds=2)(rows_of("a", "b", "c", size=2), 3, sample)
    assert [len(set(prompts)) for prompts in sample.asked] == [3, 2, 2]
    prompts_asked = [prompt for prompts in sample.asked for prompt in prompts]
    assert len(set(prompts_asked)) == len(prompts_asked) / 2
    # what nothing live was found for stays as it was
    assert [row["prompt_id"] for row in batch.scored.rows] == ["a", "a", "b", "b", "c", "c"]
    assert batch.cost["num_sampled_degenerate_groups"] == 6
    assert batch.cost["num_discarded_tokens"] == 7 + 8 + 9 + 10 + 11 + 12 + 13 + 14


def test_fewer_live_ones_than_missing_fill_the_first_places() -> None:
    rows = rows_of("a", "b", "c", size=2)
    first = FakeSampler({})
    dynamic("abcdefgh", max_rounds=1)(rows, 1, first)
    second = first.asked[1][2]  # the second of the prompts that will be tried
    batch = dynamic("abcdefgh", max_rounds=1)(rows, 1, FakeSampler({second: [1.0, 0.0]}))
    assert [row["prompt_id"] for row in batch.scored.rows] == [second, second, "b", "b", "c", "c"]


def test_it_ends_when_no_prompt_is_left_to_try() -> None:
    sample = FakeSampler({})
    batch = dynamic("abcde", max_rounds=9)(rows_of("a", "b", size=2), 1, sample)
    assert [len(prompts) for prompts in sample.asked] == [4, 4, 2]
    assert batch.cost["num_resampled_groups"] == 3


def test_the_rest_of_a_solved_prompt_goes_to_an_unsolved_one() -> None:
    sample = FakeSampler({"a": [1.0, 1.0], "c": [1.0, 0.0, 1.0, 1.0], "b": [0.0, 0.0, 0.0, 1.0]})
    batch = sampling._reallocate(rows_of("a", "b", "c", size=4), 1, sample, size=4, padding=0)
    assert sample.asked == [["a", "a", "b", "b", "c", "c"], ["b", "b", "b", "b", "c", "c"]]
    assert [row["prompt_id"] for row in batch.scored.rows] == [*"aa", *"bbbbbb", *"cccc"]
    assert batch.scored.totals.tolist() == [1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 1, 1]
    assert batch.scored.num_tokens.tolist() == [1, 2, 3, 4, 7, 8, 9, 10, 5, 6, 11, 12]
    assert batch.sizes == (2, 6, 4)
    assert batch.cost == {
        "num_sampled_groups": 3,
        "num_moved_rollouts": 2,
        "num_sampled_rollouts": 12,
        "num_sampled_tokens": 78,
        "num_discarded_tokens": 0,
    }


def test_the_configuration_chooses() -> None:
    kinds = {
        name: sampling.make_sampling(TrainConfig.from_json({"sampling": name}), rows_of("a", size=1), padding=0).func
        for name in ("fixed", "dynamic", "reallocated")
    }
    assert kinds == {
        "fixed": sampling._sample_once,
        "dynamic": sampling._replace_dead,
        "reallocated": sampling._reallocate,
    }


RIGHT, WRONG, MIXED = np.ones(3), np.zeros(3), np.array([1.0, 0.0, 0.0])


def test_live_groups_may_differ_in_size() -> None:
    groups = [np.array([0.3, 0.3 + 1e-9]), np.array([0.3, 0.4, 0.4]), np.array([1.0])]
    assert sampling._live_groups(groups) == [False, True, False]


def test_replacements_are_the_other_prompts_each_once() -> None:
    prompts = [f"p{number}" for number in range(20)]
    order = sampling._replacements(prompts, {"p3", "p7"}, seed=5, step=9)
    assert sorted(order) == sorted(set(prompts) - {"p3", "p7"})
    assert order == sampling._replacements(prompts, ["p7", "p3"], seed=5, step=9)
    assert order != sampling._replacements(prompts, {"p3", "p7"}, seed=5, step=10)
    assert order != sampling._replacements(prompts, {"p3", "p7"}, seed=6, step=9)
    assert sampling._replacements(["a"], {"a"}, seed=0, step=1) == []


@pytest.mark.parametrize(
    ("probe", "budget"),
    [
        ([RIGHT, WRONG], [0, 6]),
        ([WRONG, RIGHT, MIXED], [6, 0, 3]),
        # six to share among four: two each, one more to the first two
        ([WRONG, RIGHT, WRONG, WRONG, RIGHT, WRONG], [5, 0, 5, 4, 0, 4]),
        ([RIGHT, RIGHT, WRONG], [0, 0, 9]),
        # nobody takes, nobody gives, nobody does either
        ([RIGHT, RIGHT, MIXED], [3, 3, 3]),
        ([WRONG, MIXED, WRONG], [3, 3, 3]),
        ([MIXED, MIXED], [3, 3]),
    ],
)
def test_who_gives_and_who_takes(probe: list[np.ndarray], budget: list[int]) -> None:
    result = sampling._remaining_budget(probe, size=3, highest=1.0)
    assert result == budget
    assert sum(result) == 3 * len(probe)


def test_right_is_the_most_and_wrong_is_nothing() -> None:
    """With two reward functions a rollout can earn 2: half of that is neither right nor wrong."""
    half, full, zero = np.array([1.0, 1.0]), np.array([2.0, 2.0]), np.array([0.0, -1.0])
    assert sampling._remaining_budget([half, full, zero], size=2, highest=2.0) == [2, 0, 4]
    assert sampling._remaining_budget([np.array([0.9, 0.8]), zero], size=2, highest=1.0) == [2, 2]


PAD = 9


def scored(prompts: list[list[int]], completions: list[list[int]], **extra: Any) -> sampling.Scored:
    """A call of TRL's method, with the padding that it has."""

    def padded(rows: list[list[int]], filler: int, *, left: bool) -> torch.Tensor:
        width = max(map(len, rows))
        fill = [[filler] * (width - len(row)) for row in rows]
        return torch.tensor([(gap + row) if left else (row + gap) for row, gap in zip(rows, fill, strict=True)])

    masks = [[1] * len(row) for row in prompts], [[1] * len(row) for row in completions]
    mask = padded(masks[1], 0, left=False)
    return sampling.Scored(
        rows=[{"prompt_id": str(prompt)} for prompt in prompts],
        output={
            "prompt_ids": padded(prompts, PAD, left=True),
            "prompt_mask": padded(masks[0], 0, left=True),
            "completion_ids": padded(completions, PAD, left=False),
            "completion_mask": mask,
            "advantages": torch.arange(len(prompts), dtype=torch.float32),
            "num_items_in_batch": mask.sum(),
            "ref_per_token_logps": -mask.float(),
            **extra,
        },
        rewards={"answer": [float(len(row)) for row in completions], "style": [0.5] * len(completions)},
        trained=("answer", "style"),
    )


FIRST = ([[1], [1, 2]], [[3, 4, 5, 6], [3]])
SECOND = ([[1, 2, 3], [7]], [[5, 6], [8, 8, 8]])


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1]], ids=["all rows", "rows left out"])
def test_rounds_are_what_one_call_would_have_been(order: list[int]) -> None:
    merged = sampling.merge([scored(*FIRST), scored(*SECOND)], order, padding=PAD)
    full = scored(*([(first + second)[row] for row in order] for first, second in zip(FIRST, SECOND, strict=True)))
    assert merged.rows == full.rows
    assert merged.rewards == full.rewards
    assert merged.totals.tolist() == [[4.5, 1.5, 2.5, 3.5][row] for row in order]
    assert merged.num_tokens.tolist() == [[4, 1, 2, 3][row] for row in order]
    assert merged.output.keys() == full.output.keys()
    for name in full.output.keys() - {"advantages"}:
        assert merged.output[name].dtype == full.output[name].dtype
        assert torch.equal(merged.output[name], full.output[name]), name
    assert merged.output["advantages"].tolist() == [[0.0, 1.0, 0.0, 1.0][row] for row in order]


@pytest.mark.parametrize("unknown", [torch.tensor(1.0), [1, 2], torch.zeros(2, 1, 1)])
def test_what_is_not_one_row_a_rollout_is_no_batch(unknown: Any) -> None:
    rounds = [scored(*FIRST, pixels=unknown), scored(*SECOND, pixels=unknown)]
    with pytest.raises(ValueError, match="pixels of TRL's batch is not one row a rollout"):
        sampling.merge(rounds, [0], padding=PAD)
