"""Parts of a step's gradient, and its corrections, against the sums of the tokens' own rows."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.rank import collected
from gradscope.diagnostics.rank.tokens import parts as token_parts
from gradscope.diagnostics.rank.tokens.weighed import TokenChange
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.plan.rows import Row
from gradscope.reason import Reason
from gradscope.results.tokens import TokenKind
from gradscope.rollouts.run import Run, TrainerSettings
from tests.diagnostics.claims.made_up_evidence import collected_of
from tests.diagnostics.made_up_runs import group_of, run_of, with_fields
from tests.diagnostics.rank.tokens.made_up_parts import MadeUp, made_up
from tests.diagnostics.report.sections.made_up_inputs import gram_of


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def replaced(gram: Any, **parts: Any) -> Any:
    return type(gram)(**{**vars(gram), **parts})


def tokens_in(kind: TokenKind, made: MadeUp) -> np.ndarray:
    """Which tokens a kind holds, by its own words."""
    tokens = made.weighed.tokens
    probability, top = np.exp(tokens.logprobs), tokens.entropies >= np.quantile(tokens.entropies, 0.8)
    mask = tokens.advantages != 0
    if kind.sign:
        mask = mask & ((tokens.advantages > 0) == (kind.sign == "positive"))
    if kind.probability:
        mask = mask & (probability >= kind.probability[0]) & (probability < kind.probability[1])
    return mask & (top == (kind.entropy == "top_fifth")) if kind.entropy else mask


def test_each_kind_has_the_parts_of_its_tokens() -> None:
    made = made_up()
    kinds, tokens = token_parts.token_kinds(7, made.weighed, made.grams), made.weighed.tokens
    rows = tokens.weights[:, None] * made.rows
    full, energy = rows.sum(axis=0), np.square(rows).sum(axis=1)
    for kind in kinds:
        mask = tokens_in(kind, made)
        part = rows[mask].sum(axis=0)
        assert kind.num_tokens == mask.sum()
        assert kind.frac_tokens.value == pytest.approx(mask.sum() / np.count_nonzero(tokens.advantages))
        assert kind.energy_share.value == pytest.approx(energy[mask].sum() / energy.sum())
        assert kind.gradient_share.value == pytest.approx(part @ full / (full @ full))
        assert kind.cosine.value == pytest.approx(cosine(part, full))
    drawn = made_up(most=9)  # of each group the first nine stand for the others
    seen = np.concatenate([np.flatnonzero(tokens.groups == group)[:9] for group in range(4)])
    (first, *_) = token_parts.token_kinds(7, drawn.weighed, drawn.grams)
    in_both = np.intersect1d(np.flatnonzero(tokens_in(first, drawn)), seen)
    assert first.energy_share.value == pytest.approx(energy[in_both].sum() / energy[seen].sum())
    alone = [kind for kind in kinds if kind.entropy and not kind.sign]
    assert sum(kind.gradient_share.value for kind in alone) == pytest.approx(1.0)
    assert len([kind for kind in kinds if kind.sign and kind.probability and kind.entropy]) == len(made.weighed.cells)


def test_turns_add_up_and_late_ones_are_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_up(num_turns=3)
    turns, rows = token_parts.turn_shares(7, made.weighed), made.weighed.tokens.weights[:, None] * made.rows
    assert [(turn.turn, turn.and_later, turn.num_rollouts) for turn in turns] == [(n, False, 12) for n in (1, 2, 3)]
    full = rows.sum(axis=0)
    for turn in turns:
        part = rows[made.weighed.tokens.turns == turn.turn - 1].sum(axis=0)
        assert turn.gradient_share.value == pytest.approx(part @ full / (full @ full))
        assert turn.cosine.value == pytest.approx(cosine(part, full))
    assert [turn.frac_tokens.value for turn in turns] == pytest.approx([1 / 6, 1 / 6, 4 / 6])
    assert token_parts.turn_shares(7, made_up().weighed) == []
    for name in ("parts", "weighed"):
        monkeypatch.setattr(f"gradscope.diagnostics.rank.tokens.{name}.MAX_TURNS", 2)
    turns = token_parts.turn_shares(7, made_up(num_turns=4).weighed)
    assert [(turn.turn, turn.and_later) for turn in turns] == [(1, False), (2, True)]
    assert sum(turn.frac_tokens.value for turn in turns) == pytest.approx(1.0)


def test_the_entropy_moves_with_the_inner_product_of_its_gradient_and_the_update() -> None:
    made = made_up()
    tokens = made.weighed.tokens
    update = -(tokens.weights @ made.rows)
    climb = made.climbs.mean(axis=0)
    change = token_parts.entropy_change(7, made.weighed, {7: 0.5, 8: 0.25})
    assert change.rate.value == pytest.approx(climb @ update)
    assert change.cosine.value == pytest.approx(cosine(climb, update))
    assert change.entropy.value == pytest.approx(tokens.entropies.mean())
    assert change.covariance.value == pytest.approx(np.cov(tokens.logprobs, tokens.advantages, bias=True)[0, 1])
    assert (change.logged, change.logged_next) == (0.5, 0.25)
    assert token_parts.entropy_change(9, made.weighed, {}).logged is None


def test_tokens_of_several_steps_vary_about_the_means_of_their_own_step() -> None:
    made = [made_up(seed, num_groups=4 + seed) for seed in range(2)]
    tokens = [one.weighed.tokens for one in made]
    about = [(one.logprobs - one.logprobs.mean()) * (one.advantages - one.advantages.mean()) for one in tokens]
    covariance = token_parts.advantage_covariance(tokens)
    assert covariance.value == pytest.approx(np.concatenate(about).mean())
    moved = [replace(one, advantages=one.advantages + shift) for one, shift in zip(tokens, (3, -5), strict=True)]
    assert token_parts.advantage_covariance(moved).ends == pytest.approx(covariance.ends)


def test_the_tokens_furthest_from_the_reference_come_first() -> None:
    made = made_up()
    tokens = made.weighed.tokens
    groups = [group_of([0.0] * 3, prompt=f"p{number}") for number in range(4)]
    distance = token_parts.token_kl(7, made.weighed, groups)
    ratio = np.exp(tokens.reference - tokens.logprobs)
    k3 = ratio - 1 - np.log(ratio)
    assert distance.k1.value == pytest.approx(-np.log(ratio).mean())
    assert distance.k3.value == pytest.approx(k3.mean())
    order = np.argsort(-k3)
    assert distance.top_share.value == pytest.approx(k3[order[0]] / k3.sum())
    assert [token.k3 for token in distance.top] == pytest.approx(k3[order[:10]].tolist())
    assert distance.top[0].text == f"t{order[0]}"
    first = int(tokens.rollouts[order[0]])
    assert (distance.top[0].group_id, distance.top[0].sample) == (groups[first // 3].group_id, first % 3)
    same = replace(tokens, reference=tokens.logprobs + 1e-7)
    kl = token_parts.token_kl(7, replace(made.weighed, tokens=same, texts=dict.fromkeys(range(72), "t")), groups)
    assert kl.top_share.undefined == "the policy is the reference but for rounding"


GROUPS = tuple(group_of([0.0] * 3, step=7, prompt=f"p{number}") for number in range(4))
STEP = MeasuredStep(step=7, groups=GROUPS, weights=None, gram=None, reason=None)


def test_a_step_adds_its_parts_and_hands_on_its_rows() -> None:
    made, gathered = made_up(num_turns=2), collected_of()
    run = replace(run_of(*GROUPS), metrics={7: {"entropy": 0.5}, 8: {"entropy": 0.4}})
    handed = gathered.take_parts(run, replace(STEP, answer=(tuple(made.grams), made.weighed)), "token")
    assert handed.answer == tuple(made.grams)
    report = gathered.report
    assert {row.step for table in (report.corrections, report.token_kinds, report.turns) for row in table} == {7}
    (change,) = report.entropy_changes
    assert (change.logged, change.logged_next) == (0.5, None)  # step 8 has no rollouts here
    assert len(report.token_kl) == 1
    assert report.missing_parts == {}


def test_what_a_step_lacks_is_missing_with_its_reason() -> None:
    made, gathered = made_up(sampler=False), collected_of()
    alone = replace(made.weighed, tokens=replace(made.weighed.tokens, reference=None))
    gathered.take_parts(run_of(*GROUPS), replace(STEP, answer=((), alone)), "token")
    assert set(gathered.missing_parts) == {"corrections", "turns", "kl"}
    assert "step 7: the log does not have the sampler's log-probability" in gathered.missing_parts["corrections"]
    assert gathered.report.entropy_changes[0].logged is None
    assert token_parts.correction_effects(7, made.weighed) == []
    gathered = collected_of()
    assert gathered.take_parts(run_of(*GROUPS), replace(STEP, answer=(("rows",), None)), "token").answer == ("rows",)
    assert set(gathered.missing_parts) == {"corrections", "turns", "kl", "energy", "entropy", "logprobs"}
    refused = replace(STEP, reason=Reason("unusable", "no weights"))
    assert collected_of().take_parts(run_of(*GROUPS), refused, "token") is refused


def test_later_weights_add_what_became_of_the_tokens_to_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    made, gathered = made_up(num_turns=2), collected_of()
    gathered.take_parts(run_of(*GROUPS), replace(STEP, answer=(tuple(made.grams), made.weighed)), "token")
    gathered.look_later(run_of(*GROUPS), EngineOptions(device="cpu"))
    assert gathered.report.logprob_changes == ()
    assert gathered.missing_parts == {"logprobs": "step 7: no weights after its update are on disk"}
    assert gathered.tokens == {}
    made, gathered = made_up(), collected_of()
    gathered.take_parts(run_of(*GROUPS), replace(STEP, answer=(tuple(made.grams), made.weighed)), "token")
    ones = np.ones(len(made.weighed.tokens.groups))
    later = TokenChange(first=6, last=9, logprobs=0.5 * ones, entropies=-0.25 * ones)
    monkeypatch.setattr(collected, "token_changes", lambda run, tokens, options: ({7: later}, {}))
    gathered.look_later(run_of(*GROUPS), EngineOptions())
    assert [(one.step, one.last) for one in gathered.report.logprob_changes] == [(7, 9)]
    assert [(one.last, one.measured.value) for one in gathered.report.entropy_changes] == [(9, -0.25)]


def test_each_correction_is_the_sum_of_its_rows() -> None:
    made = made_up(scale=0.8)
    tokens = made.weighed.tokens
    ratio = np.exp(tokens.logprobs - tokens.sampler)
    full = np.repeat(ratio.reshape(-1, 6).prod(axis=1), 6)
    factors = {
        "none": np.ones(len(ratio)),
        "token_ratio": ratio,
        "tis": np.minimum(ratio, 2),
        "icepop": ratio * (ratio >= 0.5) * (ratio <= 5),
        "mis": ratio * (ratio >= 0.5) * (ratio <= 2),
        "token_mask": ratio * (ratio <= 3),
        "sequence_truncate": np.minimum(full, 3),
        "sequence_mask": full * (full <= 3),
        "geometric_mask": full ** (1 / 6) * (abs(np.log(full)) / 6 <= np.log(1.001)),
        "sequence_ratio": full,
    }
    plain, unbiased = tokens.plain @ made.rows, (full * tokens.plain) @ made.rows
    effects = token_parts.correction_effects(7, made.weighed)
    assert [effect.correction for effect in effects] == list(factors)
    for effect in effects:
        own = (factors[effect.correction] * tokens.plain) @ made.rows
        lengths = {name: np.linalg.norm(of) for name, of in (("own", own), ("plain", plain), ("unbiased", unbiased))}
        assert effect.norm_ratio.value == pytest.approx(lengths["own"] / lengths["plain"])
        if not own.any():  # no geometric mean is within one in a thousand
            assert (effect.correction, effect.kept.value) == ("geometric_mask", 0.0)
            assert effect.cosine.undefined
            continue
        assert effect.cosine.value == pytest.approx(own @ plain / lengths["own"] / lengths["plain"])
        assert effect.unbiased_cosine.value == pytest.approx(own @ unbiased / lengths["own"] / lengths["unbiased"])
        f = factors[effect.correction][:: 6 if effect.units == "sequences" else 1]
        assert effect.kept.value == pytest.approx((f > 0).mean())
        assert effect.ess.value == pytest.approx(f.sum() ** 2 / len(f) / (f**2).sum())
        assert effect.chi2.value == pytest.approx((f**2).mean() - 1)
    by_sequence = ["sequence_truncate", "sequence_mask", "geometric_mask", "sequence_ratio"]
    assert [effect.correction for effect in effects if effect.units == "sequences"] == by_sequence


def test_a_ratio_that_is_too_large_is_a_reason() -> None:
    result = made_up().weighed
    left = [at for at, label in enumerate(result.labels) if label != ("correction", "sequence_ratio")]
    cut = replace(result, labels=tuple(result.labels[at] for at in left), products=result.products[:, left][:, :, left])
    effects = {effect.correction: effect for effect in token_parts.correction_effects(7, cut)}
    assert effects["sequence_ratio"].cosine.undefined == "a ratio of this step is beyond 1e30"
    assert effects["tis"].unbiased_cosine.undefined == "a ratio of this step is beyond 1e30"
    assert effects["tis"].cosine.is_defined
    run, gram = made()
    far = (np.full(2, 98.0), *gram.logprobs[1:])
    effects = {
        effect.correction: effect for effect in token_parts.sequence_corrections(run, replaced(gram, logprobs=far))
    }
    assert effects["sequence_ratio"].cosine.undefined == "a ratio of this step is beyond 1e30"
    assert effects["sequence_truncate"].cosine.is_defined


GAPS = np.array([[0.1, 0.2], [-0.4, 0.0], [0.9, 0.5], [0.0, 0.3], [-0.2, -0.1], [0.6, 0.1], [0.0, 0.0], [-1.0, 0.4]])
"""Of two tokens of eight rollouts: log-probability by the weights minus the sampler's."""
ROWS = np.random.default_rng(3).normal(size=(8, 5))


def made(**fields: Any) -> tuple[Run, Any]:
    groups = []
    for at, prompt in enumerate("abcd"):
        logprobs = [tuple((-2.0 - gaps).tolist()) for gaps in GAPS[2 * at : 2 * at + 2]]
        groups.append(with_fields(group_of([0.0, 1.0], prompt=prompt), logprobs=logprobs, **fields))
    gram = gram_of(
        ROWS.tolist(), [group.group_id for group in groups for _ in group.rollouts], logprobs=(np.full(2, -2.0),) * 8
    )
    return run_of(*groups), gram


def test_each_sequence_correction_is_the_sum_of_its_rows() -> None:
    full = np.exp(GAPS.sum(axis=1))
    factors = {
        "none": np.ones(8),
        "sequence_truncate": np.minimum(full, 3),
        "sequence_mask": full * (full <= 3),
        "geometric_mask": full**0.5 * (abs(np.log(full)) / 2 <= np.log(1.001)),
        "sequence_ratio": full,
    }
    effects = token_parts.sequence_corrections(*made())
    assert [effect.correction for effect in effects] == list(factors)
    plain, unbiased = ROWS.sum(axis=0), full @ ROWS
    for effect in effects:
        f = factors[effect.correction]
        own = f @ ROWS
        assert effect.units == "sequences"
        assert effect.norm_ratio.value == pytest.approx(np.linalg.norm(own) / np.linalg.norm(plain))
        for cosine, other in ((effect.cosine, plain), (effect.unbiased_cosine, unbiased)):
            assert cosine.value == pytest.approx(own @ other / np.linalg.norm(own) / np.linalg.norm(other))
        assert effect.kept.value == pytest.approx((f > 0).mean())
        assert effect.ess.value == pytest.approx(f.sum() ** 2 / 8 / (f**2).sum())
    assert effects[-1].cosine.low is not None
    assert effects[-1].cosine.num_units == 4


def test_tokens_that_do_not_count_and_numbers_that_are_none_are_on_policy() -> None:
    run, gram = made(mask=(True, False))
    ratio = token_parts.sequence_corrections(run, gram)[-1]
    first = np.exp(GAPS[:, 0])
    assert ratio.ess.value == pytest.approx(first.sum() ** 2 / 8 / (first**2).sum())
    run, gram = made()
    broken = with_fields(run.groups[0], logprobs=(float("nan"),) * 2)
    full = np.exp(np.where(np.arange(8) < 2, 0.0, GAPS.sum(axis=1)))
    ratio = token_parts.sequence_corrections(run_of(broken, *run.groups[1:]), gram)[-1]
    assert ratio.ess.value == pytest.approx(full.sum() ** 2 / 8 / (full**2).sum())


def test_without_what_it_takes_there_is_none() -> None:
    run, gram = made()
    first, *rest = run.groups
    assert token_parts.sequence_corrections(run_of(with_fields(first, logprobs=None), *rest), gram) == ()
    assert token_parts.sequence_corrections(run, replaced(gram, policy_gram=None)) == ()
    assert token_parts.sequence_corrections(run, replaced(gram, policy_gram=np.zeros((8, 8)))) == ()
    vllm = TrainerSettings(values={"use_vllm": True}, origin="args.json")
    assert token_parts.sequence_corrections(replace(run, settings=vllm), gram) == ()
    script = replace(run, source=replace(run.source, format="generic"))
    for channel, number in (("score", 5), ("logged", 0)):
        weighed = replaced(gram, rows=(Row(sequence=0, channel=channel),))
        assert len(token_parts.sequence_corrections(script, weighed)) == number
