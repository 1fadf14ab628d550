"""The tables of `gradscope rank` below the rollout: tokens, weights, and changes of weights in training.

Letters: w = p_policy / p_sampler; W_t weights after t updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args, get_type_hints

from gradscope.estimate import Estimate
from gradscope.render.views import rank
from gradscope.render.views.view import (
    MAX_ROWS,
    Column,
    Selection,
    Sparkline,
    View,
    digits,
    entry,
    evenly_spaced,
    first_of,
    last_of,
)
from gradscope.render.words import FACTS, no_interval, plain
from gradscope.results.rank import (
    EntropyChange,
    GradientSparsity,
    ModuleShare,
    OptimizerStep,
    TokenRankPoint,
    TurnShare,
    UpdateTrajectory,
    WeightRankPoint,
    whole_changes,
)
from gradscope.say import evenly, percent

_MAX_MATRICES = 30  # of a table with a row a matrix
_NO_INTERVAL = "too few groups have such tokens, or it is at the end of its range"
_ENTROPIES = {"top_fifth": "top fifth", "rest": "rest", None: "any"}
_SIGNS = {"positive": "above 0", "negative": "below 0", None: "any"}
_MODULES = get_args(get_type_hints(ModuleShare)["module"])


def _tensor(title: str, limit: int) -> Column:
    return Column(title, lambda record: rank.short_tensor(record.tensor), limit=limit)


def turn_words(turn: TurnShare) -> str:
    """The number of a turn; the last includes all later ones."""
    return f"{turn.turn}{' and later' * turn.and_later}"


def _parts_of_last(parts: Sequence[Any]) -> Selection:
    last = last_of(parts)
    num_other = len({part.step for part in parts}) - 1
    if not num_other:
        return last
    more = f"{num_other} other step{'s are' if num_other > 1 else ' is'} in the JSON and the CSV"
    return Selection(last.rows, last.facts, (f"Parts of a step are those of step {last.facts['step']}; {more}",))


def _token_rows(points: Sequence[TokenRankPoint]) -> Selection:
    shown = points if len(points) <= rank.MAX_SPECTRA else last_of(points).rows
    left = len(points) - len(shown)
    return Selection(shown, remarks=(f"{left} lines of other steps are in the JSON and the CSV",) if left else ())


def _sparsity_rows(sparsities: Sequence[GradientSparsity]) -> Selection:
    """Of tokens the last steps, of weights the last step's matrices, each with its Gini coefficient by step."""
    step = sparsities[-1].step
    of_tokens = sparsities[0].parts == "tokens"
    shown = list(sparsities) if of_tokens else [sparsity for sparsity in sparsities if sparsity.step == step]
    series: dict[str | None, list[float | None]] = {}
    for sparsity in sparsities:
        series.setdefault(sparsity.tensor, []).append(sparsity.gini.value)
    rows = [(sparsity, series[sparsity.tensor]) for sparsity in (shown[-rank.MAX_SPECTRA :] if of_tokens else shown)]
    return first_of(rows, shown, rank.MAX_SPECTRA, "lines of sparsity", step=step)


def _sparsity_columns(sparsities: Sequence[GradientSparsity]) -> list[Column]:
    number = Column("number", lambda row: f"{row[0].num_parts:,}", "count")
    measures = [
        Column("zero", lambda row: row[0].zero, "share"),
        Column("small", lambda row: row[0].small, "share"),
        Column("Hoyer", lambda row: row[0].hoyer, "share"),
        Column("Gini", lambda row: row[0].gini, "share"),
    ]
    if sparsities[0].parts == "tokens":
        step = Column("step", lambda row: str(row[0].step), "count")
        tokens = Column("tokens", number.source, "count")
        return [step, tokens, Column("measured", lambda row: percent(row[0].frac_seen), "count"), *measures]
    entries = Column("step {step}: entries of", lambda row: rank.short_tensor(row[0].tensor), limit=24)
    return [entries, number, *measures, Column("Gini by step", lambda row: Sparkline(row[1], width=6))]


def _logged_change(change: EntropyChange) -> float | None:
    if change.logged is None or change.logged_next is None:
        return None
    return change.logged_next - change.logged


def _sizes_of(points: Sequence[WeightRankPoint]) -> tuple[str, list[int]]:
    """The advantage with most group sizes at the last step, and these."""
    last = [point for point in last_of(points).rows if point.tensor is not None]
    sizes = {
        name: sorted({p.group_size for p in last if p.advantage == name})
        for name in dict.fromkeys(point.advantage for point in last)
    }
    name = max(sizes, key=lambda name: len(sizes[name]))
    return name, sizes[name]


def _size_rows(points: Sequence[WeightRankPoint]) -> Selection:
    advantage, _ = _sizes_of(points)
    by_tensor: dict[str, dict[int, Estimate]] = {}
    for point in last_of(points).rows:
        if point.advantage == advantage and point.tensor is not None:
            by_tensor.setdefault(point.tensor, {})[point.group_size] = point.effective_rank
    rows = list(by_tensor.items())
    return first_of(rows, rows, rank.MAX_SPECTRA, "weights")


def _size_columns(points: Sequence[WeightRankPoint]) -> list[Column]:
    """A column a size: does the rank grow?"""
    advantage, sizes = _sizes_of(points)
    return [
        Column(f"weight ({plain(advantage)})", lambda row: rank.short_tensor(row[0]), limit=24),
        *(Column(f"groups\nof {size}", entry(lambda row: row[1], size), "rank") for size in sizes),
    ]


def _paired_rows(pairs: Sequence[Any]) -> Selection:
    end = pairs[-1]
    of_step = [pair for pair in pairs if pair.step == end.step]
    label = "pairs of a gradient and a change"
    return first_of(of_step, pairs, _MAX_MATRICES, label, step=end.step, first=end.first, last=end.last)


def _first_to_last(label: str) -> Callable[[Sequence[Any]], Selection]:
    """The changes from the first checkpoint to the last."""

    def rows(updates: Sequence[Any]) -> Selection:
        chosen = whole_changes(updates)
        return first_of(chosen, updates, _MAX_MATRICES, label, first=chosen[0].first, last=chosen[0].last)

    return rows


def _adapter_rows(states: Sequence[Any]) -> Selection:
    last = max(state.num_updates for state in states)
    chosen = [state for state in states if state.num_updates == last]
    return first_of(chosen, states, _MAX_MATRICES, "products", last=last)


def _optimizer_rows(steps: Sequence[OptimizerStep]) -> Selection:
    chosen = [step for step in last_of(steps).rows if step.tensor is None]
    label = "steps, of single matrices and of other gradients,"
    return first_of(chosen, steps, len(chosen), label, **last_of(steps).facts)


def _optimizer_columns(steps: Sequence[OptimizerStep]) -> list[Column]:
    return [
        Column("from step {step}", "optimizer"),
        *(
            Column(f"cosine,\n{row.optimizer}", entry("cosines", row.optimizer), "rank")
            for row in _optimizer_rows(steps).rows
        ),
        Column("rank, mean\nof matrices", "effective_rank", "rank"),
        Column("moved\nin bf16", "bfloat16_moved", "share"),
    ]


def _module_rows(shares: Sequence[ModuleShare]) -> Selection:
    """A row a step, and the share of the parameters below them."""
    steps = evenly(list(dict.fromkeys(share.step for share in shares)), MAX_ROWS)
    rows = [(str(step), {share.module: share.energy_share for share in shares if share.step == step}) for step in steps]
    sizes = {share.module: share.frac_parameters for share in shares if share.step == shares[-1].step}
    return Selection([*rows, ("parameters", sizes)])


def _module_columns(shares: Sequence[ModuleShare]) -> list[Column]:
    kinds = [kind for kind in _MODULES if any(share.module == kind for share in shares)]
    return [
        Column("step", lambda row: row[0], "count"),
        *(Column(kind.replace(" ", "\n"), entry(lambda row: row[1], kind), "share") for kind in kinds),
    ]


def _trajectory_rows(trajectories: Sequence[UpdateTrajectory]) -> Selection:
    """All matrices together and a random walk, a row a measure."""
    all_weights = trajectories[0]
    return Selection(
        [
            ("effective rank of the checkpoints", all_weights.effective_rank, all_weights.walk_effective_rank, "rank"),
            ("energy in one direction", all_weights.top_energy, all_weights.walk_top_energy, "share"),
            ("energy on a straight line", all_weights.linear_growth, all_weights.walk_linear_growth, "share"),
        ]
    )


TRAJECTORY = View(
    "trajectories",
    (
        Column("all matrices together", lambda row: row[0]),
        Column("measured", lambda row: row[1], lambda row: row[3]),
        Column("random walk", lambda row: row[2], lambda row: row[3]),
    ),
    _trajectory_rows,
    (FACTS,),
)

PART_VIEWS: Mapping[str, View | tuple[View, ...]] = {
    "weights": (
        View(
            "weight_curve",
            (
                Column("advantage", "label", limit=13),
                Column("size", digits("point.group_size"), "count"),
                Column("live", lambda row: rank.live_of_all(row.point), "count"),
                Column(
                    "rank of dL/dW", "point.effective_rank", "rank", lambda row: no_interval(rank.num_live(row.point))
                ),
                Column("scores", lambda row: rank.null_rank("unweighted")(row.point), "rank"),
                Column("shuffled", lambda row: rank.null_rank("shuffled")(row.point), "rank"),
                Column("unre-\nlated", lambda row: rank.null_rank("gaussian")(row.point), "rank"),
                Column(
                    "ratio",
                    lambda row: row.point.nulls["gaussian"].ratio if "gaussian" in row.point.nulls else None,
                    "share",
                ),
            ),
            lambda points: Selection(
                rank.curve_rows([point for point in last_of(points).rows if point.tensor is None])
            ),
        ),
        View("weight_curve", _size_columns, _size_rows),
        rank.MATRIX_SPECTRA,
    ),
    "tokens": View(
        "token_curve",
        (
            Column("step", digits("step"), "count"),
            Column("advantage", "advantage", limit=14),
            Column("size", digits("group_size"), "count"),
            Column("live", rank.live_of_all, "count"),
            Column("tokens", "num_rows.value", "count"),
            Column(
                "effective rank",
                "effective_rank",
                "rank",
                interval_note=lambda point: no_interval(rank.num_live(point)),
            ),
            Column("scores", rank.null_rank("unweighted"), "rank"),
            Column("unre-\nlated", rank.null_rank("gaussian"), "rank"),
        ),
        _token_rows,
    ),
    "energy": View(
        "token_kinds",
        (
            Column("step {step}\nadvantage", lambda kind: _SIGNS[kind.sign]),
            Column("probability", lambda kind: "{:g} to {:g}".format(*kind.probability) if kind.probability else "any"),
            Column("entropy", lambda kind: _ENTROPIES[kind.entropy]),
            Column("tokens", "frac_tokens", "share"),
            Column("energy", "energy_share", "share"),
            Column("along the\ngradient", "gradient_share", "rank", _NO_INTERVAL),
            Column("cosine", "cosine", "rank"),
        ),
        _parts_of_last,
    ),
    "corrections": View(
        "corrections",
        (
            Column("step {step}\ncorrection", "correction"),
            Column("kept", "kept", "share"),
            Column("effec-\ntive", "ess", "share"),
            Column("f^2 - 1", "chi2", "share"),
            Column("norm", "norm_ratio", "rank"),
            Column("cosine,\nuncorrected", "cosine", "share", _NO_INTERVAL),
            Column("cosine,\nunbiased", "unbiased_cosine", "share"),
        ),
        _parts_of_last,
        ("f is what a correction multiplies the gradient of a token, or of a whole sequence, by",),
    ),
    "entropy": View(
        "entropy_changes",
        (
            Column("step", digits("step"), "count"),
            Column("entropy", "entropy", "share"),
            Column("for a unit\nof lr", "rate", "norm"),
            Column("cosine with\nthe update", "cosine", "rank", _NO_INTERVAL),
            Column("covariance", "covariance", "gap"),
            Column("by the next\ncheckpoint", "measured", "gap"),
            Column("logged\nchange", _logged_change, "gap"),
        ),
        evenly_spaced,
        ("Logged change: from the step to the next one, on other prompts", FACTS),
    ),
    "kl": (
        View(
            "token_kl",
            (
                Column("step", digits("step"), "count"),
                Column("k1", "k1", "norm"),
                Column("k3", "k3", "norm", _NO_INTERVAL),
                Column("in the top\nhundredth", "top_share", "share"),
            ),
            evenly_spaced,
        ),
        View(
            "token_kl",
            (
                Column("step {step}\nrollout", lambda token: f"{plain(token.group_id, limit=12)} #{token.sample}"),
                Column("token", lambda token: str(token.position + 1), "count"),
                Column("text", lambda token: repr(token.text), limit=16),
                Column("log p", "logprob", "norm"),
                Column("reference", "reference", "norm"),
                Column("k1", "k1", "norm"),
                Column("k3", "k3", "norm"),
            ),
            lambda kls: Selection(kls[-1].top, {"step": kls[-1].step}),
            (FACTS,),
        ),
    ),
    "turns": View(
        "turns",
        (
            Column("step {step}\nturn", turn_words),
            Column("rollouts", digits("num_rollouts"), "count"),
            Column("tokens", "frac_tokens", "share"),
            Column("along the\ngradient", "gradient_share", "rank", _NO_INTERVAL),
            Column("cosine", "cosine", "rank", _NO_INTERVAL),
        ),
        _parts_of_last,
        (FACTS,),
    ),
    "logprobs": View(
        "logprob_changes",
        (
            Column("step", digits("step"), "count"),
            Column("updates", lambda change: f"{change.first} to {change.last}"),
            Column("advan-\ntage > 0", "positive", "share"),
            Column("advan-\ntage < 0", "negative", "share"),
            Column("advan-\ntage 0", "neither", "share"),
            Column("> 0 less\n< 0", "difference", "share"),
            Column("of like\nprobability", "matched", "share", _NO_INTERVAL),
        ),
        evenly_spaced,
        ("Mean change of log p of the step's own tokens, in nats; on average a policy's own tokens fall",),
    ),
    "updates": (
        View(
            "gradient_updates",
            (
                _tensor("step {step}", 18),
                Column("rank of\ndL/dW", "gradient_rank", "rank"),
                Column("in one\ndirection", "gradient_top_energy", "share"),
                Column("rank of\nW_{last} - W_{first}", "update_rank", "rank"),
                Column("in one\ndirection", "update_top_energy", "share"),
                Column("unrelated\nrows", "gaussian", "rank"),
            ),
            _paired_rows,
            (FACTS,),
        ),
        View(
            "updates",
            (
                _tensor("W_{last} - W_{first}", 18),
                Column("size", "update_size", "share"),
                Column("rank", "effective_rank", "rank"),
                Column("unre-\nlated", "gaussian", "rank"),
                Column("in one\ndirection", "top_energy", "share"),
                Column("princi-\npal", "principal_overlap", "share"),
                Column("by\nchance", "principal_null", "share"),
                Column("changed\nin bf16", "bfloat16_changed", "share"),
            ),
            _first_to_last("changes, between neighboring checkpoints among them,"),
            (FACTS,),
        ),
    ),
    "frames": View(
        "updates",
        (
            _tensor("W_{last} against W_{first}", 24),
            Column("size", "update_size", "share"),
            Column("in singular\nvalues", "spectrum_drift", "share"),
            Column("unre-\nlated", "spectrum_drift_null", "share"),
            Column("degrees\nturned", "principal_angle", "rank"),
            Column("unre-\nlated", "principal_angle_null", "rank"),
        ),
        _first_to_last("changes"),
        (FACTS,),
    ),
    "adapters": View(
        "adapters",
        (
            _tensor("after {last} updates", 20),
            Column("|A|", "a_norm", "norm"),
            Column("|B|", "b_norm", "norm"),
            Column("size", "product_size", "share"),
            Column("at\nmost", digits("rank"), "count"),
            Column("rank", "effective_rank", "rank"),
            Column("unre-\nlated", "unrelated_rank", "rank"),
            Column("|BA| over\n|B||A|", "alignment", "share"),
            Column("unre-\nlated", "unrelated_alignment", "share"),
        ),
        _adapter_rows,
        (FACTS,),
    ),
    "optimizers": View("optimizers", _optimizer_columns, _optimizer_rows, (FACTS,)),
    "modules": View("modules", _module_columns, _module_rows, (FACTS,)),
    "sparsity": View("sparsity", _sparsity_columns, _sparsity_rows, (FACTS,)),
}
"""Name of ``--show`` -> its tables, each drawn where the result has such records."""
