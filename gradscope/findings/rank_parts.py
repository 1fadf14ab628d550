"""Sentences about parts of a gradient: rows that are tokens, a step by token, and the changes of weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradscope.advantages.registry import LOGGED
from gradscope.results import rank as results
from gradscope.results.rank import CorrectionEffect, EntropyChange, LogprobChange, TokenKind, TokenKl, TurnShare
from gradscope.results.source import RowKind
from gradscope.say import percent, with_interval

_SPACES: dict[RowKind, str] = {
    "hidden": "the gradient of a live group by the last hidden state",
    "logit": "the gradient of a live group by the logits",
    "advantage": "the advantage matrix of a live group, rollouts by tokens,",
}


def token_findings(points: Iterable[results.TokenRankPoint]) -> tuple[str, ...]:
    """The last step's ranks of token rows under the logged or the first advantage, in at most two sentences."""
    ranked = [point for point in points if point.effective_rank.value is not None and point.num_rows.value is not None]
    named = [point for point in ranked if point.advantage == LOGGED] or ranked
    if not named:
        return ("No token of these steps has a weight under these advantages: their matrices are zero.",)
    last = max(named, key=lambda point: (point.step, point.group_size))
    ratio = last.nulls["gaussian"].ratio if "gaussian" in last.nulls else None
    of_unrelated = "" if ratio is None or not ratio.is_defined else f", {with_interval(ratio, '.2f')} of unrelated rows"
    sentences = [
        f"At step {last.step} the {last.num_rows.value:.0f} tokens of a live group span "
        f"{with_interval(last.effective_rank, '.1f')} directions by effective rank (advantage {last.advantage}, mean "
        f"over {last.num_groups - last.num_dead} live groups){of_unrelated}."
    ]
    if last.method == "sampled":
        sentences.append(
            f"Only {percent(last.frac_seen)} of the tokens were measured, drawn at random; the effective rank of a "
            f"sample is at most its size, so the groups' own may be larger. --max-tokens N takes more, --sketch K all."
        )
    if last.method == "sketch" and last.energy_error is not None:
        sentences.append(
            f"Rows were sketched: each squared singular value is known to {percent(last.energy_error)} of their sum, "
            f"and the ranks count that error in. --sketch K with a K four times as large halves it."
        )
    return tuple(sentences)


def signal_findings(
    kind: RowKind, curve: Sequence[results.RankCurvePoint], tokens: Sequence[results.TokenRankPoint]
) -> tuple[str, ...]:
    """The last step's ranks of rollouts and of tokens in another space than that of the parameters, a sentence each."""
    by_rollout = [point for point in curve if point.effective_rank.is_defined and point.advantage == curve[0].advantage]
    sentences = []
    if by_rollout:
        last = max(by_rollout, key=lambda point: (point.step, point.group_size))
        gaussian, scores = last.nulls["gaussian"], last.nulls["unweighted"]
        without_advantages = "where every rollout has the advantage 1" if kind == "advantage" else "without advantages"
        sentences.append(
            f"At step {last.step} {_SPACES[kind]} has effective rank {with_interval(last.effective_rank, '.2f')} of at "
            f"most {last.group_size} rollouts (advantage {last.advantage}); {without_advantages} it has "
            f"{with_interval(scores.effective_rank, '.2f')}, and unrelated rows of the same norms "
            f"{with_interval(gaussian.effective_rank, '.2f')}."
        )
    return (*sentences, *(token_findings(tokens) if tokens else ()))


_SAME_DIRECTION = 0.99  # cosine from which on two gradients count as one: they differ by 8 degrees at most
_NEARLY_ALL = 0.99  # share of the tokens from which on a kind of them says nothing
_FEW = 0.5  # effective share of the sequences below which whole sequence ratios leave too little to be compared with


def correction_findings(effects: Sequence[CorrectionEffect], kind: str = "") -> tuple[str, ...]:
    """Whether corrections, say " by sequence", would turn the last step's gradient, in at most one sentence."""
    last = [effect for effect in effects if effect.step == effects[-1].step and effect.cosine.value is not None]
    corrected = [effect for effect in last if effect.correction != "none"]
    if not corrected:
        return ()
    worst = min(corrected, key=lambda effect: effect.cosine.value or 0.0)
    if (worst.cosine.value or 0.0) >= _SAME_DIRECTION:
        return (
            f"No correction for the sampler{kind} turns the gradient of step {worst.step}: its cosine with the "
            f"uncorrected one is at least {worst.cosine.value:.4f}.",
        )
    text = (
        f"Corrections for the sampler{kind} turn the gradient of step {worst.step}: {worst.correction} has cosine "
        f"{with_interval(worst.cosine, '.2f')} with the uncorrected one and {worst.norm_ratio.value:.2f} of its norm"
    )
    sequence_ratio = next((effect for effect in last if effect.correction == "sequence_ratio"), None)
    if sequence_ratio is not None and sequence_ratio.ess.value is not None and sequence_ratio.ess.value < _FEW:
        return (f"{text}; whole sequence ratios are worth {percent(sequence_ratio.ess.value)} of the sequences.",)
    return (f"{text}.",)


def kind_findings(kinds: Sequence[TokenKind]) -> tuple[str, ...]:
    """What the tokens of high entropy and the unlikely ones hold of the last step's gradient, in a sentence each."""
    sentences = []
    for kind in kinds:
        if kind.step != kinds[-1].step or kind.sign is not None:
            continue
        if kind.entropy == "top_fifth":
            name = "the tokens of the top fifth by entropy"
        elif kind.probability is not None and kind.probability[0] == 0.0:
            name = f"tokens of probability below {kind.probability[1]:g}"
        else:
            continue
        held, share = (kind.energy_share, kind.gradient_share), kind.frac_tokens.value or 0.0
        if share < _NEARLY_ALL and all(part.is_defined for part in held):
            energy, gradient = (with_interval(part, percent) for part in held)
            sentences.append(
                f"At step {kind.step} {name}, {percent(share)} of those with an advantage, hold {energy} of the energy "
                f"of token gradients and {gradient} of the gradient along its own direction."
            )
    return tuple(sentences)


def entropy_findings(changes: Sequence[EntropyChange]) -> tuple[str, ...]:
    """Which way the last step moves the entropy, where its interval leaves zero, in at most one sentence."""
    last = changes[-1] if changes else None
    if last is None or not last.cosine.side_of_zero:
        return ()
    logged = ""
    if last.logged is not None and last.logged_next is not None:
        logged = f"; the trainer logged {last.logged:.3g} there and {last.logged_next:.3g} at the next step"
    return (
        f"To first order the gradient of step {last.step} {'raises' if last.cosine.side_of_zero > 0 else 'lowers'} the "
        f"entropy of its own tokens (cosine {with_interval(last.cosine, '+.2f')}){logged}.",
    )


def turn_findings(turns: Sequence[TurnShare]) -> tuple[str, ...]:
    """Which turn has the largest part of the last step's gradient, in at most one sentence."""
    last = [turn for turn in turns if turn.step == turns[-1].step and turn.gradient_share.value is not None]
    if not last:
        return ()
    largest = max(last, key=lambda turn: turn.gradient_share.value or 0.0)
    return (
        f"{f'Turns from {largest.turn} on have' if largest.and_later else f'Turn {largest.turn} has'} "
        f"{with_interval(largest.gradient_share, percent)} of the gradient of step {largest.step} along its own "
        f"direction, with {percent(largest.frac_tokens.value or 0.0)} of the tokens.",
    )


def kl_findings(steps: Sequence[TokenKl]) -> tuple[str, ...]:
    """How far the last step's tokens are from the reference, and whether a few of them are, in at most one sentence."""
    last = steps[-1] if steps else None
    if last is None or last.k3.value is None or last.top_share.value is None:
        return ()
    return (
        f"At step {last.step} the policy is {with_interval(last.k3, '.3g')} nats a token from the reference by k3, "
        f"{with_interval(last.k1, '+.3g')} by k1; the furthest hundredth of the tokens holds "
        f"{percent(last.top_share.value)} of the former.",
    )


def logprob_change_findings(changes: Sequence[LogprobChange]) -> tuple[str, ...]:
    """Whether training moved the last step's tokens the way their advantages ask, in at most one sentence."""
    last = changes[-1] if changes else None
    if last is None or last.matched.interval is None:
        return ()
    verdict = {1: "as the advantages ask", -1: "against the advantages", 0: "this may be chance"}
    return (
        f"From {last.first} to {last.last} updates the log-probability of the tokens of step {last.step} changed by "
        f"{with_interval(last.positive, '+.3f')} a token where the advantage is positive and by "
        f"{with_interval(last.negative, '+.3f')} where it is negative; among tokens of like probability "
        f"the difference is {with_interval(last.matched, '+.3f')}: {verdict[last.matched.side_of_zero]}.",
    )


def weight_update_findings(
    updates: Sequence[results.WeightUpdate],
    trajectories: Sequence[results.UpdateTrajectory],
    *,
    is_adapter: bool = False,
) -> tuple[str, ...]:
    """What training did to the weights, each number with its null, in at most five sentences."""
    trajectory, since = trajectories[0], results.whole_changes(updates)
    sentences = []
    if trajectory.top_energy.value is not None and trajectory.linear_growth.value is not None:
        sentences.append(
            f"Over {len(trajectory.num_updates)} checkpoints one direction holds "
            f"{with_interval(trajectory.top_energy, percent)} of the updates' energy (a random walk: "
            f"{with_interval(trajectory.walk_top_energy, percent)}), and a straight line "
            f"{with_interval(trajectory.linear_growth, percent)} (a random walk: "
            f"{with_interval(trajectory.walk_linear_growth, percent)})."
        )
    number, means = _means(since, "effective_rank", "gaussian")
    if number:
        sentences.append(
            f"After {since[0].last} updates the change of a matrix has effective rank {means[0]:.1f} on average over "
            f"{number} matrices; unrelated {'factors' if is_adapter else 'entries'} would give {means[1]:.1f}."
        )
    number, means = _means(since, "principal_overlap", "principal_null")
    if number:
        sentences.append(
            f"On average {percent(means[0])} of a change lies in the principal directions of the initial weights; a "
            f"random change would have {percent(means[1])} there."
        )
    number, means = _means(since, "spectrum_drift", "spectrum_drift_null", "principal_angle", "principal_angle_null")
    if number:
        sentences.append(
            f"Of a change {percent(means[0])} is in the singular values on average (an unrelated one of its size: "
            f"{percent(means[1])}), and the principal directions turn by {means[2]:.1f} degrees ({means[3]:.1f})."
        )
    entries = [(u.shape[0] * u.shape[1], u.bfloat16_changed.value) for u in since if u.bfloat16_changed.is_defined]
    if entries:
        total = sum(number for number, _ in entries)
        share = sum(number * (changed or 0.0) for number, changed in entries) / total
        sentences.append(f"bfloat16 sees {percent(share)} of the {total:,} entries of these matrices change.")
    return tuple(sentences)


def _means(records: Iterable[object], *names: str) -> tuple[int, list[float]]:
    rows = [[getattr(record, name).value for name in names] for record in records]
    defined = [row for row in rows if None not in row]
    return len(defined), [sum(column) / len(defined) for column in zip(*defined, strict=True)]


def idle_adapter_findings(states: Sequence[results.AdapterState]) -> tuple[str, ...]:
    """Where an adapter does nothing at its last checkpoint, in at most one sentence."""
    last = [state for state in states if state.num_updates == states[-1].num_updates]
    zero = [state for state in last if state.b_norm.value == 0.0]
    if not zero:
        return ()
    return (
        f"After {last[0].num_updates} updates B is still zero in {len(zero)} of {len(last)} matrices: there the "
        "adapter adds nothing.",
    )


def adapter_findings(states: Sequence[results.AdapterState]) -> tuple[str, ...]:
    """How far an adapter at its last checkpoint is from unrelated factors, in at most one sentence."""
    last = [state for state in states if state.num_updates == states[-1].num_updates]
    number, means = _means(last, "effective_rank", "unrelated_rank", "alignment", "unrelated_alignment")
    if not number or number < len(last):
        return ()
    rank, null, aligned, unrelated = means
    return (
        f"After {last[0].num_updates} updates B is zero nowhere; B A has effective rank {rank:.1f} of at most "
        f"{max(state.rank for state in last)} and {aligned:.2f} of the norm of its factors on average (unrelated "
        f"factors: {null:.1f} and {unrelated:.2f}).",
    )


def optimizer_findings(steps: Sequence[results.OptimizerStep]) -> tuple[str, ...]:
    """How far the optimizers' steps from the last step's gradient differ, in at most one sentence."""
    last = {row.optimizer: row for row in steps if row.tensor is None and row.step == steps[-1].step}
    if not last:
        return ()
    adam = last["adam"]
    text = (
        f"From the gradient of step {adam.step} a fresh Adam steps at cosine {adam.cosines['sgd'].value:.2f} with SGD, "
        f"Muon at {last['muon'].cosines['sgd'].value:.2f}"
    )
    moved = [last[name].bfloat16_moved.value for name in ("adam", "sgd")]
    if None in moved:
        return (f"{text}.",)
    return (
        f"{text}; at the logged learning rate bfloat16 sees {percent(moved[0] or 0.0)} of the entries move under Adam, "
        f"and {percent(moved[1] or 0.0)} under an SGD step of the same size.",
    )


def weight_rank_findings(points: Sequence[results.WeightRankPoint]) -> tuple[str, ...]:
    """Whether the rank of one group's dL/dW depends on the group size, at the last step, and that of unrelated rows."""
    over_all = [point for point in points if point.tensor is None and point.effective_rank.is_defined]
    last = [point for point in over_all if point.step == over_all[-1].step]
    by_advantage = {name: [p for p in last if p.advantage == name] for name in dict.fromkeys(p.advantage for p in last)}
    compared = [points for points in by_advantage.values() if len(points) > 1]
    if not compared:
        return tuple(
            f"dL/dW of one group of {point.group_size} rollouts, mean over its weights, has effective rank "
            f"{with_interval(point.effective_rank, '.2f')} (advantage {point.advantage}, step {point.step}), "
            f"{_ratio(point)} of unrelated rows of the same norms."
            for point in last[:1]
        )
    sizes = sorted(compared[0], key=lambda point: point.group_size)
    ranks = ", ".join(f"{point.effective_rank.value:.2f} with {point.group_size} rollouts" for point in sizes)
    return (
        f"dL/dW of one group, mean over its weights, has effective rank {ranks} (advantage {sizes[0].advantage}, step "
        f"{sizes[0].step}); that is {_ratio(sizes[-1])} of unrelated rows of the same norms at the largest size.",
    )


def _ratio(point: results.WeightRankPoint) -> str:
    return with_interval(point.nulls["gaussian"].ratio, ".2f")


def gradient_update_findings(pairs: Sequence[results.GradientAndUpdate]) -> tuple[str, ...]:
    """The means of the last step, in at most one sentence."""
    last = [pair for pair in pairs if pair.step == pairs[-1].step]
    number, means = _means(last, "gradient_rank", "update_rank", "gaussian")
    if not number:
        return ()
    gradient, update, null = means
    return (
        f"The gradient of step {last[0].step} has effective rank {gradient:.1f} on average over {number} "
        f"weights, their change from {last[0].first} to {last[0].last} updates {update:.1f}, and unrelated entries "
        f"{null:.1f}: a rank of one says nothing of the other.",
    )
