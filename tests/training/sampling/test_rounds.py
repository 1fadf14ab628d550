"""The rounds of a step with a made-up sampler: what is asked for, what is kept, what it is said to cost."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradscope.training.sampling.rounds import DynamicSampling, FixedSampling, ReallocatedSampling, Row, make_sampling
from gradscope.training.sampling.sampled_batch import Scored
from gradscope.training.setup.config import TrainConfig


class FakeSampler:
    """Completions of as many tokens as rows were sampled before, and the rewards that each prompt has in store.

    Args:
        rewards: Prompt -> rewards, in the order in which its rollouts are sampled; those of other prompts are 0.
    """

    def __init__(self, rewards: dict[str, list[float]]) -> None:
        self._rewards = {prompt: list(values) for prompt, values in rewards.items()}
        self.asked: list[list[str]] = []
        """Prompts of the rows of each round."""

    def __call__(self, rows: Sequence[Row]) -> Scored:
        prompts = [row["prompt_id"] for row in rows]
        lengths = torch.arange(1, len(rows) + 1) + sum(map(len, self.asked))
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
        self.asked.append(prompts)
        return Scored(
            rows=rows,
            output={"prompt_mask": torch.ones(len(rows), 1).long(), "completion_mask": mask},
            rewards={"answer": [self._rewards[p].pop(0) if self._rewards.get(p) else 0.0 for p in prompts]},
            trained=("answer",),
        )


def rows_of(*prompts: str, size: int) -> list[Row]:
    return [{"prompt_id": prompt} for prompt in prompts for _ in range(size)]


def dynamic(pool: str, max_rounds: int = 4) -> DynamicSampling:
    return DynamicSampling(2, pool=rows_of(*pool, size=1), seed=0, max_rounds=max_rounds, padding=0)


def test_fixed_is_one_round() -> None:
    sample = FakeSampler({})
    batch = FixedSampling(2).batch(rows_of("a", "b", size=2), 1, sample)
    assert (sample.asked, batch.sizes, batch.cost) == ([["a", "a", "b", "b"]], (2, 2), {})


def test_dead_groups_are_replaced_until_none_is_left() -> None:
    live = {prompt: [1.0, 0.0] for prompt in "acdefgh"}
    sample = FakeSampler(live)
    batch = dynamic("abcdefgh").batch(rows_of("a", "b", size=2), 1, sample)
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
    batch = dynamic("abcdefgh", max_rounds=2).batch(rows_of("a", "b", "c", size=2), 3, sample)
    assert [len(set(prompts)) for prompts in sample.asked] == [3, 2, 2]
    asked = [prompt for prompts in sample.asked for prompt in prompts]
    assert len(set(asked)) == len(asked) / 2
    # what nothing live was found for stays as it was
    assert [row["prompt_id"] for row in batch.scored.rows] == ["a", "a", "b", "b", "c", "c"]
    assert batch.cost["num_sampled_degenerate_groups"] == 6
    assert batch.cost["num_discarded_tokens"] == 7 + 8 + 9 + 10 + 11 + 12 + 13 + 14


def test_fewer_live_ones_than_missing_fill_the_first_places() -> None:
    rows = rows_of("a", "b", "c", size=2)
    first = FakeSampler({})
    dynamic("abcdefgh", max_rounds=1).batch(rows, 1, first)
    second = first.asked[1][2]  # the second of the prompts that will be tried
    batch = dynamic("abcdefgh", max_rounds=1).batch(rows, 1, FakeSampler({second: [1.0, 0.0]}))
    assert [row["prompt_id"] for row in batch.scored.rows] == [second, second, "b", "b", "c", "c"]


def test_it_ends_when_no_prompt_is_left_to_try() -> None:
    sample = FakeSampler({})
    batch = dynamic("abcde", max_rounds=9).batch(rows_of("a", "b", size=2), 1, sample)
    assert [len(prompts) for prompts in sample.asked] == [4, 4, 2]
    assert batch.cost["num_resampled_groups"] == 3


def test_the_rest_of_a_solved_prompt_goes_to_an_unsolved_one() -> None:
    sample = FakeSampler({"a": [1.0, 1.0], "c": [1.0, 0.0, 1.0, 1.0], "b": [0.0, 0.0, 0.0, 1.0]})
    batch = ReallocatedSampling(4, padding=0).batch(rows_of("a", "b", "c", size=4), 1, sample)
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
        name: type(make_sampling(TrainConfig.from_json({"sampling": name}), rows_of("a", size=1), padding=0))
        for name in ("fixed", "dynamic", "reallocated")
    }
    assert kinds == {"fixed": FixedSampling, "dynamic": DynamicSampling, "reallocated": ReallocatedSampling}
