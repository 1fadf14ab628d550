"""The rollouts of a step as rows, their groups and parts of groups, and their advantages."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file

from gradscope.advantages.registry import LOGGED
from gradscope.diagnostics.rank import rows as rank_rows
from gradscope.diagnostics.rank.options import RankOptions
from gradscope.diagnostics.rank.rollout_spectra import step_spectra
from gradscope.errors import InputError, UsageError
from gradscope.rollouts.function_rewards import FunctionRewards
from gradscope.rollouts.groups import RolloutGroup, Tokens
from tests.diagnostics.made_up_runs import group_of as rewarded
from tests.diagnostics.rank.test_rollout_spectra import make_rows
from tests.gradients.models import DAPO, measured_step, tiny_groups, tiny_policy


def test_rows_are_those_of_the_step_and_live_where_their_gradient_is_not_zero() -> None:
    groups = tiny_groups(2, 2)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    gram = measured_step(tiny_policy("llama_untied_biases"), groups, DAPO)
    rows = rank_rows.step_rows(gram)
    advantages = np.array([rollout.advantage for rollout in rollouts])
    np.testing.assert_array_equal(rows.gram, gram.score_gram)
    np.testing.assert_allclose(rows.policy_gram, advantages[:, None] * rows.gram * advantages, rtol=1e-9)
    np.testing.assert_allclose(rows.full_gram, rows.policy_gram)  # no KL term
    assert rows.group_ids == ("g0", "g0", "g1", "g1")
    assert rows.samples == (0, 1, 0, 1)
    assert rows.rewards.tolist() == [rollout.reward for rollout in rollouts]
    assert rows.lengths.tolist() == [len(rollout.completion_ids) for rollout in rollouts]
    assert (rows.step, rows.num_parameters) == (1, gram.num_parameters)
    groups = tiny_groups(1, 3)
    first, *rest = groups[0].rollouts
    dead = [replace(groups[0], rollouts=(replace(first, advantage=0.0), *rest))]
    rows = rank_rows.step_rows(measured_step(tiny_policy("llama_untied_biases"), dead, DAPO))
    assert rows.is_live.tolist() == [False, True, True]
    assert replace(rows, policy_gram=None).is_live is None


def test_a_group_of_four_splits_into_disjoint_pairs() -> None:
    rows, _ = make_rows([0, 1, 0, 1, 1, 1, 0], ["a"] * 4 + ["b"] * 3)
    parts = rank_rows.sub_groups(rows, 2)
    assert [(part.group_id, part.samples) for part in parts] == [("a", (0, 1)), ("a", (2, 3)), ("b", (0, 1))]
    assert [part.index.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
    interleaved, _ = make_rows([0, 1, 0, 1], ["a", "b", "a", "b"])
    assert [part.index.tolist() for part in rank_rows.sub_groups(interleaved, None)] == [[0, 2], [1, 3]]


def test_lengths_weigh_the_baseline_of_opo_and_functions_are_scaled_one_by_one() -> None:
    rows = replace(
        make_rows([1, 0, 1, 0, 0], ["a", "a", "b", "b", "b"])[0], lengths=np.array([1.0, 3.0, 2.0, 2.0, 2.0])
    )
    first, second = rank_rows.advantages_of(rows, rank_rows.sub_groups(rows, None), "opo")
    assert first.tolist() == [0.75, -0.25]  # (1 x 1 + 3 x 0) / 4
    np.testing.assert_allclose(second, [2 / 3, -1 / 3, -1 / 3])
    assert rank_rows.baseline_weights_of(rows, "opo").tolist() == [1.0, 3.0, 2.0, 2.0, 2.0]
    assert rank_rows.baseline_weights_of(rows, "grpo").tolist() == [1.0] * 5
    functions = FunctionRewards(table=np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 7.0], [0.0, 0.0]]), weights=np.ones(2))
    rows = replace(make_rows([1, 0, 7, 0], ["a", "a", "b", "b"])[0], functions=functions)
    first, second = rank_rows.advantages_of(rows, rank_rows.sub_groups(rows, None), "gdpo")
    np.testing.assert_allclose(first, second, rtol=1e-3)


@pytest.mark.parametrize(
    ("advantage", "message"),
    [
        ("opo", "opo depends on the lengths of completions, which are not known here"),
        ("gdpo", "gdpo needs the rewards of each function at step 3"),
        (LOGGED, "No advantages were logged at step 3"),
    ],
)
def test_what_a_formulation_lacks_is_named(advantage: str, message: str) -> None:
    rows, _ = make_rows([1, 0], ["a", "a"])
    with pytest.raises(InputError, match=message):
        rank_rows.advantages_of(rows, rank_rows.sub_groups(rows, None), advantage)


def group_of(*rollouts: dict[str, object]) -> list[RolloutGroup]:
    made = rewarded([float(index % 2) for index in range(len(rollouts))], step=1)
    changed = [replace(rollout, group_id="g", **row) for rollout, row in zip(made.rollouts, rollouts, strict=True)]
    return [replace(made, group_id="g", rollouts=tuple(changed))]


def rank_of(groups: list[RolloutGroup], advantage: str = "logged") -> float | None:
    (point,) = step_spectra(rank_rows.advantage_rows(1, groups), advantage, None, by_group=False)[1]
    return point.effective_rank.value


def test_advantages_have_rank_one_where_lengths_are_equal_and_more_where_they_are_not() -> None:
    equal = group_of(*({"completion_ids": (1, 2, 3), "advantage": a} for a in (1.0, -1.0, 0.5)))
    assert rank_of(equal) == rank_of(equal, "sign") == pytest.approx(1.0)
    ragged = group_of({"completion_ids": (1, 2, 3), "advantage": 1.0}, {"completion_ids": (1,), "advantage": -1.0})
    values = np.linalg.svd([[1.0, 1.0, 1.0], [-1.0, 0.0, 0.0]], compute_uv=False)
    share = values / values.sum()
    assert rank_of(ragged) == pytest.approx(np.exp(-np.sum(share * np.log(share))))
    masked = group_of(
        {"completion_ids": (1, 2), "mask": (True, False), "advantage": 1.0},
        {"completion_ids": (1, 2), "mask": (False, True), "advantage": 1.0},
    )
    assert rank_of(masked) == pytest.approx(2.0)


def test_what_has_no_matrix_of_advantages_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rank_rows.advantage_rows(1, group_of({"completion_ids": (1, 2)}, {"logprobs": (-0.1, -0.2)}))
    assert rows.policy_gram is rows.advantages is None
    with pytest.raises(InputError, match="optimal_baseline depends on the norms of gradients"):
        step_spectra(rows, "optimal_baseline", None, by_group=False)
    with pytest.raises(InputError, match="Rollout 1 of group g has no token ids"):
        rank_rows.advantage_rows(1, group_of({"completion_ids": (1,), "advantage": 1.0}, {"advantage": 1.0}))
    before = Tokens(prompt_ids=(5,), completion_ids=(7,), mask=(True,))
    with pytest.raises(InputError, match="Rollout 0 of group g is several sequences") as raised:
        rank_rows.advantage_rows(1, group_of({"completion_ids": (1,), "advantage": 1.0, "earlier": (before,)}))
    assert raised.value.cause == "several_sequences"
    monkeypatch.setattr(rank_rows, "_MAX_ROWS", 1)
    with pytest.raises(InputError, match="It has 2 rollouts, and the inner products of more than 1 take gigabytes"):
        rank_rows.advantage_rows(1, group_of({"completion_ids": (1,)}, {"completion_ids": (1,)}))


def test_advantages_of_tokens_have_their_own_rank() -> None:
    groups = group_of({"token_advantages": (1.0, 0.0)}, {"token_advantages": (0.0, 1.0)})
    assert rank_rows.advantage_rows(1, groups).advantages is None
    assert rank_of(groups) == pytest.approx(2.0)
    assert rank_of(groups, "sign") == pytest.approx(1.0)  # one advantage a rollout again


def test_everything_that_is_known_is_written(tmp_path: Path) -> None:
    rows, scores = make_rows([0.0, 1.0, 1.0], ["b", "a", "b"], advantages=[-1.0, 2.0, 0.5])
    assert rank_rows.write_gram(tmp_path / "out", rows) == "gram_step_00003.safetensors"
    arrays = load_file(tmp_path / "out" / "gram_step_00003.safetensors")
    np.testing.assert_allclose(arrays["score_gram"], scores @ scores.T)
    np.testing.assert_array_equal(arrays["gradient_gram"], rows.full_gram)
    assert arrays["rewards"].tolist() == [0.0, 1.0, 1.0]
    assert arrays["advantages"].tolist() == [-1.0, 2.0, 0.5]
    assert arrays["group_index"].tolist() == [1, 0, 1]  # groups by name
    unlogged, _ = make_rows([0.0, 1.0], ["a", "a"])
    name = rank_rows.write_gram(tmp_path, replace(unlogged, step=12))
    assert set(load_file(tmp_path / name)) == {"score_gram", "rewards", "group_index"}


def request(**fields: object) -> rank_rows.RankRequest:
    defaults = {"rows": "rollout", "advantages": ("logged", "dr_grpo", "rloo"), "group_sizes": (2, 4)}
    return rank_rows.RankRequest(**{**defaults, **fields})


def test_logged_advantages_belong_to_the_logged_groups() -> None:
    rows, _ = make_rows([0, 1, 1, 0], ["a"] * 4)
    ranked = request()
    assert [(advantage, size) for advantage in ranked.advantages for size in ranked.sizes(rows, advantage)] == [
        ("logged", None),
        ("dr_grpo", None),
        ("dr_grpo", 2),
        ("rloo", None),
        ("rloo", 2),
    ]


def test_paired_groups_live_at_every_size() -> None:
    rows, _ = make_rows([0, 1, 0, 1, 0, 0, 1, 1], ["a"] * 4 + ["b"] * 4)
    assert request().groups(rows, "dr_grpo") is None
    assert request(options=RankOptions(pair_groups=True), group_sizes=(2,)).groups(rows, "dr_grpo") == {
        "a"
    }  # pairs of b are alike
    assert request(options=RankOptions(pair_groups=True), group_sizes=(2,)).groups(rows, "sign") == {"a", "b"}


def test_names_and_sizes_are_checked_against_registry_and_log() -> None:
    assert rank_rows.checked_advantages(["logged", "sign", "sign"]) == ("logged", "sign")
    assert rank_rows.checked_advantages(["all"]) == rank_rows.checked_advantages(None)
    with pytest.raises(UsageError, match="no advantage formulation"):
        rank_rows.checked_advantages(["signs"])
    run = SimpleNamespace(groups=[SimpleNamespace(size=4), SimpleNamespace(size=8)])
    assert rank_rows.possible_sizes(run, ()) == (2, 4)
    assert rank_rows.possible_sizes(run, (8, 3, 3)) == (8, 3)
    with pytest.raises(UsageError, match="Groups of 9 cannot be taken"):
        rank_rows.possible_sizes(run, (9,))


@pytest.mark.parametrize("by_group", [False, True])
@pytest.mark.parametrize("centered", [False, True])
def test_few_columns_give_the_spectrum_of_their_gram_matrix(by_group: bool, centered: bool) -> None:
    rng = np.random.default_rng(0)
    groups = [
        replace(group, group_id=str(n), rollouts=tuple(replace(rollout, group_id=str(n)) for rollout in group.rollouts))
        for n in range(8)
        for group in group_of(
            *({"completion_ids": (1,) * rng.integers(1, 4), "advantage": value} for value in (1.0, -0.5, 0.0))
        )
    ]
    narrow = rank_rows.advantage_rows(1, groups)
    assert narrow.score_rows is not None
    assert narrow.score_rows.shape == (24, 3)
    np.testing.assert_allclose(narrow.score_rows @ narrow.score_rows.T, narrow.gram, atol=1e-12)
    spectra = [
        step_spectra(rows, LOGGED, None, by_group=by_group, centered=centered)[0][0]
        for rows in (narrow, replace(narrow, score_rows=None))
    ]
    squares = [np.array(spectrum.singular_values) ** 2 for spectrum in spectra]
    np.testing.assert_allclose(*squares, atol=1e-12 * squares[1].max())
    for name, null in spectra[1].nulls.items():
        assert spectra[0].nulls[name].value == pytest.approx(null.value, rel=1e-5)
