"""What formulations and baselines make of one step, of rows with known norms and angles, or worked by hand."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.advantages.registry import LOGGED, compute_step_advantages
from gradscope.diagnostics.rank import formulations
from gradscope.results.rank import FormulationUpdate
from gradscope.rollouts.run import WeightsRef
from tests.diagnostics.rank.test_rollout_spectra import make_rows

WEIGHTS = WeightsRef(num_updates=2, path=Path("run/checkpoint-2"), kind="full")
GRAM = SimpleNamespace(num_inferred_ids=1, verification=SimpleNamespace(describe=lambda: {"passed": True}))


def rows_of(policy_gram, rewards=(0.0, 1.0), groups=("a", "a")):
    rows, _ = make_rows(list(rewards), list(groups))
    return replace(rows, policy_gram=policy_gram, full_gram=policy_gram)


def test_norm_and_cancellation_of_two_orthogonal_rows() -> None:
    geometry = formulations.measure_geometry(rows_of(np.diag([9.0, 16.0])), WEIGHTS, GRAM, {"grad_norm": 4.9})
    assert geometry.grad_norm.value == pytest.approx(5.0)
    assert geometry.logged_grad_norm == 4.9
    assert geometry.cancellation.value == pytest.approx(5 / 7)
    assert geometry.class_subspace_energy.value == pytest.approx(1.0)
    assert geometry.sparsity["zero_groups"].value == 0
    assert (geometry.weights, geometry.num_rollouts, geometry.num_inferred_ids) == ("checkpoint-2", 2, 1)
    assert geometry.verification == {"passed": True}
    rows, _ = make_rows([0.0, 1.0], ["a", "a"])
    geometry = formulations.measure_geometry(rows, WEIGHTS, GRAM, {})
    for estimate in (geometry.grad_norm, geometry.cancellation, geometry.class_subspace_energy):
        assert estimate.undefined == "no advantages were logged"
    assert geometry.sparsity == {}
    assert geometry.logged_grad_norm is None


def test_class_energy_looks_at_groups_whose_rewards_differ() -> None:
    # two orthogonal passing rows of one norm and a failing one: the passing mean holds half of their energy
    rows = rows_of(None, (1.0, 1.0, 0.0, 1.0, 1.0), ("a", "a", "a", "b", "b"))
    assert formulations._class_energy(rows, np.eye(5)).value == pytest.approx(2 / 3)
    equal = rows_of(None, (1.0, 1.0), ("a", "a"))
    assert "rewards that differ" in str(formulations._class_energy(equal, np.eye(2)).undefined)
    unknown = rows_of(None, (1.0, float("nan")), ("a", "a"))
    assert formulations._class_energy(unknown, np.eye(2)).value is None


REWARDS = [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
GROUPS = [f"g{group}" for group in range(4) for _ in range(4)]


def by_name(updates: list[FormulationUpdate]) -> dict[str, FormulationUpdate]:
    return {update.advantage: update for update in updates}


def test_updates_equal_sums_of_fresh_rows() -> None:
    rows, scores = make_rows(REWARDS, GROUPS)
    rewards = np.array(REWARDS)
    sums = {"reinforce": rewards @ scores, "sign": (2 * rewards - 1) @ scores}
    updates = by_name(formulations.measure_formulations(rows, ["reinforce", "sign"]))
    for name, expected in sums.items():
        assert updates[name].update_norm.value == pytest.approx(np.linalg.norm(expected))
    cosine = sums["reinforce"] @ sums["sign"] / np.linalg.norm(sums["reinforce"]) / np.linalg.norm(sums["sign"])
    assert updates["reinforce"].cosines["sign"].value == pytest.approx(cosine)
    assert set(updates["sign"].cosines) == {"reinforce"}


def test_zero_sum_advantages_on_identical_rows_cancel_within_groups() -> None:
    rows, _ = make_rows(REWARDS, GROUPS)
    same = replace(rows, gram=np.ones_like(rows.gram))
    update = by_name(formulations.measure_formulations(same, ["dr_grpo"]))["dr_grpo"]
    assert update.between_groups.value == pytest.approx(0.0, abs=1e-12)
    assert update.cancellation.value == pytest.approx(0.0, abs=1e-6)
    zero = by_name(formulations.measure_formulations(make_rows([1.0] * 4, list("aabb"))[0], ["dr_grpo", "reinforce"]))
    assert zero["reinforce"].cosines["dr_grpo"].undefined == "one of the two updates is zero"


def test_cosines_of_groups_and_noise_are_those_of_the_rows() -> None:
    rows, scores = make_rows(REWARDS, GROUPS)
    updates = by_name(formulations.measure_formulations(rows, ["dr_grpo", "sign", "batch_mean", "pass_at_4"]))
    rewards = np.array(REWARDS).reshape(4, 4)
    sums = np.stack([(2 * row - 1) @ part for row, part in zip(rewards, scores.reshape(4, 4, -1), strict=True)])
    units = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    assert updates["sign"].group_cosine.value == pytest.approx((np.sum(units @ units.T) - 4) / 12)
    # halves with means of their own
    halves = rewards.reshape(8, 2)
    vectors = np.einsum("hg,hgp->hp", halves - halves.mean(1, keepdims=True), scores.reshape(8, 2, -1))
    first, second = vectors[::2], vectors[1::2]
    means = (first + second) / 2
    other = (np.sum(means @ means.T) - np.sum(means**2)) / 12
    share = np.mean(np.sum((first - second) ** 2, 1)) / 2 / (np.mean(np.sum(first**2 + second**2, 1)) / 2 - other)
    assert updates["dr_grpo"].noise_within.value == pytest.approx(share)
    assert updates["batch_mean"].noise_within.undefined == "batch_mean is relative to more than a group"
    assert updates["pass_at_4"].noise_within.undefined == "half of a group has 2 rollouts, too few for pass_at_4"
    (logged,) = formulations.measure_formulations(make_rows(REWARDS, GROUPS, advantages=[1.0, -1.0] * 8)[0], [LOGGED])
    assert logged.noise_within.undefined == "logged advantages are relative to whole groups; name their formulation"
    ratio = updates["sign"].signal_to_noise
    assert ratio.low > 0 or "the signal may be zero" in updates["sign"].critical_batch_size.undefined


@pytest.mark.parametrize(
    ("rewards", "groups", "names", "reason"),
    [
        ([0.0, 0.5, 1.0, 0.0], "aabb", ["dr_grpo", "sign"], "there are others"),
        ([0.0, 1.0, 1.0], "abc", ["reinforce"], "one rollout"),
    ],
)
def test_rewards_without_pass_at_k_say_why(rewards: list[float], groups: str, names: list[str], reason: str) -> None:
    (update,) = formulations.measure_formulations(make_rows(rewards, list(groups))[0], names)
    assert update.advantage == names[0]
    assert reason in str(update.alignment["pass@1"].undefined)


@pytest.mark.parametrize(("rewards", "name"), [([0.5, 1.0, 0.0, 1.0], "dr_grpo"), ([0.0, 1.0, 0.0, 1.0], "spo")])
def test_other_rewards_and_formulations_have_neither_kinds_nor_interference(rewards: list[float], name: str) -> None:
    rows, _ = make_rows(rewards, ["a", "a", "b", "b"])
    assert formulations.measure_kinds(rows, [name]) == []
    assert formulations.measure_interference(rows, [name]) == ([], [])


def test_leave_one_out_climbs_pass_at_1_exactly() -> None:
    rng = np.random.default_rng(0)
    rewards = rng.integers(2, size=64).astype(float)
    rows, scores = make_rows(rewards.tolist(), [f"g{group}" for group in range(16) for _ in range(4)])
    scores[:, 0] += 3 * (rewards - 0.5)  # a direction that every group shares
    updates = formulations.measure_formulations(replace(rows, gram=scores @ scores.T), ["rloo"])
    assert updates[0].alignment["pass@1"].value == pytest.approx(1.0)
    assert updates[0].signal_to_noise.value > 1
    assert set(updates[0].alignment) == {"pass@1", "pass@4"}


def test_token_advantages_have_a_size_and_noise_of_their_own() -> None:
    """Rows that are weighed already, here by one number a rollout, of which the other way of counting knows."""
    weighed, _ = make_rows(REWARDS, GROUPS, advantages=[reward - 0.4 for reward in REWARDS])
    (defined, _), (updates, other) = (
        formulations.measure_formulations(rows, [LOGGED, "rloo"])
        for rows in (weighed, replace(weighed, advantages=None))
    )
    for name in ("update_norm", "cancellation", "signal_to_noise", "critical_batch_size", "group_cosine"):
        assert getattr(updates, name).value == pytest.approx(getattr(defined, name).value), name
    assert updates.advantage == LOGGED
    for update, name in ((updates, "rloo"), (other, LOGGED)):
        assert "each token has an advantage of its own" in str(update.cosines[name].undefined)
    assert list(updates.alignment) == list(other.alignment)
    (by_token,) = formulations.measure_formulations(replace(weighed, advantages=None), [LOGGED])
    assert by_token.update_norm == updates.update_norm
    assert formulations.measure_formulations(make_rows(REWARDS, GROUPS)[0], [LOGGED]) == []


def test_shares_add_up_to_one_by_rollout_and_by_group() -> None:
    rows, scores = make_rows(REWARDS, GROUPS, advantages=[reward - 0.5 for reward in REWARDS])
    shares = formulations.measure_shares(rows)
    gradient = (np.array(REWARDS) - 0.5)[:, None] * scores
    total = gradient.sum(axis=0)
    assert sum(share.projection_share.value for share in shares) == pytest.approx(1.0)
    assert shares[1].projection_share.value == pytest.approx(gradient[4:8].sum(axis=0) @ total / (total @ total))
    assert sum(shares[1].rollouts) == pytest.approx(shares[1].projection_share.value)
    assert [share.pass_rate for share in shares] == [0.5, 0.25, 0.75, 0.0]
    rows, _ = make_rows([1.0, 1.0], ["a", "a"], advantages=[0.0, 0.0])
    (share,) = formulations.measure_shares(rows)
    assert share.projection_share.undefined == "the step has no gradient"
    assert share.rollouts == ()
    assert formulations.measure_shares(make_rows([1.0], ["a"])[0]) == []


def test_the_optimal_baseline_is_a_formulation_of_the_gram_that_confident_passes_pull_down() -> None:
    rows, scores = make_rows(REWARDS, GROUPS)
    rewards, norms = np.array(REWARDS).reshape(4, 4), (scores**2).sum(axis=1).reshape(4, 4)
    (update,) = formulations.measure_formulations(rows, ["optimal_baseline"])
    weights = rewards - (norms * rewards).sum(axis=1, keepdims=True) / norms.sum(axis=1, keepdims=True)
    assert update.update_norm.value == pytest.approx(np.linalg.norm(weights.ravel() @ scores))
    scores[np.array(REWARDS) == 1.0] *= 0.1
    overall, *_ = formulations.measure_baselines(formulations.baseline_groups(replace(rows, gram=scores @ scores.T)))
    assert overall.optimal_baseline.value < 0.1
    assert overall.reward_norm_correlation.value < -0.8
    assert overall.relative_noise["zero"].value < 0.2


KINDS_REWARDS = [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]
KIND_OF_GROUP = ["mixed", "all_fail", "all_pass", "mixed"]


@pytest.mark.parametrize("name", ["grpo", "sign", "pass_at_2", "batch_mean", "opo"])
def test_parts_are_sums_of_fresh_rows(name: str) -> None:
    rows, scores = make_rows(KINDS_REWARDS, GROUPS)
    rows = replace(rows, lengths=np.ones(16))
    rewards = np.array(KINDS_REWARDS).reshape(4, 4)
    advantages = rewards - rewards.mean(1, keepdims=True) if name == "opo" else compute_step_advantages(name, rewards)
    gradient = np.concatenate(list(advantages))[:, None] * scores
    full = gradient.sum(0)
    kinds = {part.kind: part for part in formulations.measure_kinds(rows, [name])}
    assert list(kinds) == ["all_fail", "mixed", "all_pass"]
    for kind, part in kinds.items():
        total = gradient[np.repeat([group_kind == kind for group_kind in KIND_OF_GROUP], 4)].sum(0)
        assert part.num_groups == KIND_OF_GROUP.count(kind)
        assert part.norm.value == pytest.approx(np.linalg.norm(total), abs=1e-9)
        if np.any(total):
            cosine = total @ full / np.linalg.norm(total) / np.linalg.norm(full)
            assert part.cosine.value == pytest.approx(cosine)
        else:
            assert part.cosine.undefined is not None


def test_the_parts_of_one_kind_alone_are_the_update() -> None:
    rows, scores = make_rows([0.0, 1.0] * 8, GROUPS)
    scores[:, 0] += 3 * (rows.rewards - 0.5)
    rows = replace(rows, gram=scores @ scores.T)
    (part,) = formulations.measure_kinds(rows, ["rloo"])
    (update,) = formulations.measure_formulations(rows, ["rloo"])
    assert (part.kind, part.norm) == ("mixed", replace(update.update_norm, num_units=part.norm.num_units))
    assert part.cosine.value == pytest.approx(1.0)
    assert part.alignment == update.alignment


def test_the_all_fail_part_of_sign_climbs_pass_at_g() -> None:
    """Of many prompts with one direction that raises the pass rate: its all-fail groups point along it."""
    rng = np.random.default_rng(0)
    rewards = (rng.random(400) < 0.3).astype(float)
    rows, scores = make_rows(rewards.tolist(), [f"g{group}" for group in range(100) for _ in range(4)])
    scores[:, 0] += 4 * (rewards - 0.3)
    parts = {part.kind: part for part in formulations.measure_kinds(replace(rows, gram=scores @ scores.T), ["sign"])}
    cosine = parts["all_fail"].alignment["pass@4"]
    assert cosine.value > 0.9
    assert cosine.high == pytest.approx(1.0, abs=0.1)


def test_each_rollout_is_of_the_kind_of_its_group() -> None:
    rows, _ = make_rows([0.0, 1.0, 0.0, 1.0, 0.0, 1.0], ["b", "a", "b", "a", "c", "c"])
    assert formulations.group_index(rows).tolist() == [0, 1, 0, 1, 2, 2]  # in the order of the log
    masks = {kind: mask.tolist() for kind, mask in formulations.kinds_of(rows).items()}
    assert masks == {
        "all_fail": [True, False, True, False, False, False],
        "mixed": [False] * 4 + [True] * 2,
        "all_pass": [False, True, False, True, False, False],
    }


def test_a_formulation_that_moves_dead_groups_has_their_influence_too() -> None:
    rows, scores = make_rows(KINDS_REWARDS, GROUPS, advantages=[2 * reward - 1 for reward in KINDS_REWARDS])
    steps, prompts = formulations.measure_interference(rows, [LOGGED, "dr_grpo", "sign"])
    assert [(row.step, row.advantage) for row in steps] == [(rows.step, name) for name in (LOGGED, "dr_grpo", "sign")]
    assert [(row.group_id, row.pass_rate) for row in prompts] == [("g0", 0.5), ("g1", 0.0), ("g2", 1.0), ("g3", 0.25)]
    assert {row.advantage for row in prompts} == {LOGGED}
    logged, live, sign = steps
    assert (sign.frac_hurt, sign.transfer) == (logged.frac_hurt, logged.transfer)  # they are the same numbers
    rewards = np.array(KINDS_REWARDS)
    group = np.arange(16) // 4
    pulls = [(rewards - rewards[group == g].mean())[group == g] @ scores[group == g] for g in (0, 3)]
    right = {g: scores[(group == g) & (rewards == 1)].mean(axis=0) for g in (0, 2, 3)}
    hurt = [pull @ right[k] < 0 for j, pull in zip((0, 3), pulls, strict=True) for k in right if k != j]
    assert live.frac_hurt.value == pytest.approx(np.mean(hurt))
    _, of_live = formulations.measure_interference(rows, ["dr_grpo"])
    assert [row.group_id for row in of_live] == ["g0", "g3"]


def rows_of_baselines(rewards, squared_norms, groups):
    rows, _ = make_rows(list(rewards), list(groups))
    return replace(rows, gram=np.diag(squared_norms))


def test_second_moments_of_one_pair_by_hand() -> None:
    # rewards 1 and 0, |s|^2 3 and 1: leave-one-out is (3 + 1)/2, zero 3/2, the mean (3 + 1)/8, 3/4 is the best constant
    (group,) = formulations.baseline_groups(rows_of_baselines([1.0, 0.0], [3.0, 1.0], "aa"))
    assert group.moments["leave_one_out"] == pytest.approx(2.0)
    assert group.moments["zero"] == pytest.approx(1.5)
    assert group.moments["group_mean"] == pytest.approx(0.5)
    assert group.moments["optimal"] == pytest.approx(0.375)
    overall, step, group_noise = formulations.measure_baselines([group])
    assert (overall.step, step.step, group_noise.group_id) == (None, 3, "a")
    assert group_noise.optimal_baseline.value == pytest.approx(0.75)
    assert group_noise.relative_noise["zero"].value == pytest.approx(0.75)
    assert group_noise.relative_noise["optimal"].value == pytest.approx(0.1875)
    assert group_noise.relative_noise["zero"].low is None  # a single group has no interval
    assert group_noise.reward_norm_correlation.value == pytest.approx(1.0)
    pair = formulations.baseline_groups(rows_of_baselines([1.0, 0.0, 1.0, 0.0], [3.0, 1.0, 2.0, 2.0], "aabb"))
    overall = formulations.measure_baselines(pair)[0]  # groups add up before they are divided
    assert overall.relative_noise["zero"].value == pytest.approx((1.5 + 1.0) / (2.0 + 2.0))
    assert overall.optimal_baseline.value == pytest.approx((0.75 + 0.5) / 2)
    assert (overall.num_groups, overall.pass_rate) == (2, 0.5)


def test_groups_without_a_noise_to_compare_say_why() -> None:
    assert formulations.baseline_groups(rows_of_baselines([1.0, float("nan"), 1.0], [1.0, 1.0, 1.0], "aab")) == []
    assert formulations.measure_baselines([]) == ()
    overall, step = formulations.measure_baselines(
        formulations.baseline_groups(rows_of_baselines([1.0, 1.0], [3.0, 1.0], "aa"))
    )
    assert overall.relative_noise["zero"].undefined == (
        "leave_one_out has no gradient here, so there is nothing to compare with"
    )
    assert step.optimal_baseline.undefined == "no group has rewards that differ and a gradient"
    (noisy,) = formulations.baseline_groups(rows_of_baselines([1.0, 0.0], [3.0, 1.0], "aa"))
    silent = replace(noisy, moments=noisy.moments | {"optimal": 0.0})  # as where rewards alone explain every gradient
    assert formulations.measure_baselines([silent])[0].relative_noise["optimal"].value == 0.0
