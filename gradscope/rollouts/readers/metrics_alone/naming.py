"""The common names of metrics, which every trainer logs under names of its own.

A name is looked up among those of known trainers first; then it is taken apart into words, all of which have to be
known, so that ``stats/mean_reward`` is the reward and ``reward/format`` is not.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import product
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradscope.errors import UsageError
from gradscope.rollouts.arrays import Floats
from gradscope.rollouts.readers.metrics_alone.published import plain_name
from gradscope.rollouts.run import Numbers, StepMetrics

MetricStyle = Literal["share", "norm", "count"]


class Derived(Struct, frozen=True, kw_only=True):
    """A metric that is computed from others in the log."""

    keys: tuple[str, ...]  # the keys that it is computed from, all of which a step must have
    formula: str  # the formula as text, with the keys
    make: Callable[..., Floats]  # computes it from the values of the keys in order; NaN where undefined
    is_guess: bool = False  # a share of counts that may be of something else, which a number beyond [0, 1] refutes
    is_unsaid: bool = False  # a number of groups that only its fractions within [0, 1] show to be a share of them


class CommonMetric(Struct, frozen=True, kw_only=True):
    """A metric that every trainer logs under a name of its own."""

    name: str  # the common name
    title: str  # a short title
    style: MetricStyle  # how it is formatted
    keys: tuple[str, ...]  # the trainers' names; the first that a log has counts
    derived: tuple[Derived, ...] = ()  # formulas for logs that do not have it itself


def _as_logged(key: str) -> Derived:
    return Derived(keys=(key,), formula=key, make=lambda value: value)


def _quotient(part: str, total: str) -> Derived:
    return Derived(keys=(part, total), formula=f"{part} / {total}", make=_ratio)


def _percent(key: str) -> Derived:
    """A percentage; a share under such a name, as a percentage of fewer than 100 groups is 0 or above 1, stays one."""
    formula = f"{key} (of 100, or of 1 where no number is above 1)"
    return Derived(keys=(key,), formula=formula, make=lambda value: value / (100 if np.any(value > 1) else 1))


def _share_of(part: str, *rest: str) -> Derived:
    """What a part is of itself and the rest together, counts or shares."""
    keys = (part, *rest)
    formula = f"{part} / ({' + '.join(keys)})"
    return Derived(keys=keys, formula=formula, make=lambda *values: _ratio(values[0], np.add.reduce(values)))


def _one_minus(other: Derived) -> Derived:
    return replace(other, formula=f"1 - {other.formula}", make=lambda *values: 1.0 - other.make(*values))


def _ratio(part: Floats, total: Floats) -> Floats:
    with np.errstate(all="ignore"):
        return np.where(total != 0, part / total, math.nan)


def _common(name: str, title: str, style: MetricStyle, aliases: str, *derived: Derived) -> CommonMetric:
    return CommonMetric(name=name, title=title, style=style, keys=(name, *aliases.split()), derived=derived)


COMMON: tuple[CommonMetric, ...] = (
    _common(
        "frac_reward_zero_std",
        "no gradient",
        "share",
        "bench/zero_variance_drop_rate frac_zero_std zvf groups/rate_dropped dynamic_filtering_ratio/train",
        *(_one_minus(_as_logged(key)) for key in ("env/all/by_group/frac_mixed", "by_group/frac_mixed")),
        _one_minus(_as_logged("non_degenerate_samples_frac")),
        # OpenRLHF 0.11 divides samples that passed by prompts, so that it may be several hundred per cent.
        _one_minus(replace(_percent("dynamic_filtering_pass_rate"), is_guess=True)),
        _one_minus(_share_of("batch/solve_partial", "batch/solve_all", "batch/solve_none")),
        _one_minus(_quotient("num_groups_trainable", "num_groups_submitted")),
        _one_minus(_quotient("data/step_num_groups_trainable", "data/step_num_groups_submitted")),
        _quotient("groups_skipped", "groups_total"),
        _share_of("batch/filtered_prompts", "batch/total_prompts"),
    ),
    _common(
        "frac_all_pass",
        "  all pass",
        "share",
        "env/all/by_group/frac_all_good by_group/frac_all_good solve_all/all train/agg/all/solved_all",
        _share_of("batch/solve_all", "batch/solve_none", "batch/solve_partial"),
        *map(_as_logged, ("batch/solve_all", "solve_all")),
    ),
    _common(
        "frac_all_fail",
        "  all fail",
        "share",
        "env/all/by_group/frac_all_bad by_group/frac_all_bad solve_none/all train/agg/all/solved_none",
        _share_of("batch/solve_none", "batch/solve_all", "batch/solve_partial"),
        *map(_as_logged, ("batch/solve_none", "solve_none")),
    ),
    _common(
        "reward",
        "mean reward",
        "norm",
        "critic/score/mean critic/rewards/mean env/all/reward/total env/all/reward/mean reward/all/mean "
        "reward/mean rewards/train/score/mean rewards/score/mean ppo_actor/task_reward/avg rollout/raw_reward "
        "rollout/reward scores mean_reward reward_mean avg_reward objective/scores "
        "reward/evaluate_response/avg_total_reward objective/verifiable_reward loss/avg_final_rewards rm "
        "train/agg/effective/reward/mean rollout/rewards response/rewards/mean",
    ),
    _common(
        "reward_std", "reward spread", "norm", "reward/std critic/score/std reward_std_dev rollout/in_group_reward_std"
    ),
    _common(
        "completions/clipped_ratio",
        "cut off",
        "share",
        "response_length/clip_ratio rollout/truncated_ratio rollout/truncated is_truncated/all/mean is_truncated/mean "
        "truncation_rate train/agg/effective/is_truncated/mean",
        _one_minus(_as_logged("val/stop_rate")),
    ),
    _common(
        "completions/mean_length",
        "mean length",
        "count",
        "completion_length completions/train/mean_length response_length/mean rollout/response_len/mean "
        "rollout/response_lengths "
        "val/sequence_lengths seq_len/all/mean seq_len/mean env/all/ac_tokens_per_turn response_length "
        "mean_gen_tokens_per_sample completion_len/all/mean mean_generation_length seq_length generate/avg_num_tokens "
        "ppo_actor/seq_len/avg tokens/response_length/mean glen train/agg/effective/num_output_tokens/mean",
    ),
    _common("grad_norm", "gradient norm", "norm", "actor/grad_norm optim/grad_norm policy/grad_norm gnorm total_norm"),
    _common(
        "entropy",
        "entropy",
        "norm",
        "actor/entropy actor/entropy_loss optim/entropy entropy/all/mean entropy/mean entropy_loss rollout/entropy "
        "policy/entropy_avg objective/entropy approx_entropy critic/entropy/mean",
    ),
    _common(
        "kl",
        "KL",
        "norm",
        "actor/kl_loss actor/ppo_kl kl_loss ppo_kl optim/kl_sample_train_v1 kl_policy_base objective/kl_avg "
        "objective/kl kl_ref actor/approxkl mismatch_kl/all/mean mismatch_kl/mean",
    ),
    _common(
        "clip_ratio/region_mean",
        "ratio clipped",
        "share",
        "clip_ratio actor/pg_clipfrac pg_clipfrac policy/clipfrac_avg actor/ppo_ratio_clipfrac",
    ),
    _common("loss", "loss", "norm", "actor/pg_loss pg_loss loss/mean policy_loss loss/policy_avg training_loss pg"),
    _common("learning_rate", "learning rate", "norm", "lr actor/lr optim/lr"),
)
"""In the order in which they are shown."""

_DEAD = "frac_reward_zero_std"
_GROUPS = {
    _DEAD: (
        *({"zero", "std"}, {"zero", "variance"}, {"zero", "var"}, {"degenerate"}, {"dead"}, {"pure"}, {"uniform"}),
        *({"all", "same"}, {"flat"}, {"uninformative"}),
    ),
    "frac_all_pass": ({"all", "pass"}, {"all", "correct"}, {"all", "right"}),
    "frac_all_fail": ({"all", "fail"}, {"all", "incorrect"}, {"all", "wrong"}),
}
_NO_GRADIENT = tuple({"zero", word} for word in ("adv", "advantage", "advantages", "grad", "gradient"))
"""The words of shares that count as those of equal rewards where a log has none of these."""
_ALIVE = (
    *({"mixed"}, {"informative"}, {"with", "signal"}, {"with", "spread"}),
    *({"with", "variance"}, {"nonzero", "std"}, {"nonzero", "variance"}, {"nonzero", "adv"}, {"nonzero", "advantage"}),
)
"""The words of shares of the groups that did give a gradient."""
_KINDS = {
    "reward": ({"reward"}, {"rewards"}, {"mean", "r"}, {"avg", "r"}),
    "reward_std": ({"reward", "std"}, {"rewards", "std"}),
    "completions/mean_length": tuple({kind, size} for kind in ("completion", "response") for size in ("length", "len")),
    "grad_norm": ({"grad", "norm"}, {"gradient", "norm"}, {"grad"}, {"gradnorm"}),
    "entropy": ({"entropy"}, {"entropy", "per", "token"}),
    "kl": ({"kl"}, {"kl", "loss"}, {"kl", "div"}, {"kl", "divergence"}, {"approx", "kl"}, {"kl", "penalty"}),
    "clip_ratio/region_mean": ({"clip", "ratio"}, {"clip", "frac"}, {"clip", "fraction"}, {"clipfrac"}),
    "loss": ({"loss"}, {"losses"}),
    "learning_rate": ({"lr"}, {"learning", "rate"}),
}
"""Common name -> the words of its kind, of which one set is in the trainer's name; above, those of shares of groups."""
_FILLERS = {
    *("", "mean", "avg", "average", "raw", "total", "train", "training", "trainer", "rollout", "batch", "update"),
    *("policy", "actor", "learner", "ppo", "grpo", "rl", "pg", "optim", "optimizer", "stats", "episode", "env"),
    *("generate", "history", "curve", "trace"),
}
"""Words that leave a metric what it is."""
_UNIT = re.compile(r"(group|prompt)s?(?![a-z])")
_GROUP_KEY = re.compile(rf"{_UNIT.pattern}|zero_(reward_)?(std|var)")  # the spread of one reward is always zero
_WORD_BREAK = re.compile(r"[\W_]+")
_SHARES = ({"frac"}, {"fraction"}, {"rate"}, {"ratio"}, {"share"})
_PERCENTAGES = ({"pct"}, {"percent"}, {"percentage"})
_COUNT = {"count", "n", "num", "number", "of", "total"}
_PREFIXES = {"", "train", "training", "rollout", "batch", "grpo", "reward", "rewards"}
_EVALUATIONS = {"eval", "evaluation", "val", "validation", "test", "heldout"}
_CORRECT = {"acc", "accuracy", "correct", "correctness", "solved", "success"}
_SCORES = _CORRECT | {"avg", "maj", "pass", "reward", "rewards", "score"}
_NO_SCORES = {
    *("std", "min", "max", "len", "length", "lengths", "loss", "kl", "time", "token", "tokens", "truncated", "zero"),
    *("weight", "weights", "coef", "coefficient", "scale", "threshold", "schedule"),
}

_AGENT = re.compile(r"(train/agg/(?:all|effective)/)(?P<agent>[^/]+)/(?=reward/|solved_|is_truncated/)")
"""What prime-rl writes before the metrics of an agent, in all environments together; of several none is the run's."""
_PREFIX = "train/"
MEAN_REWARDS = {"mean_reward", "reward_mean", "avg_reward"}  # names that no reward of one rollout has
_ROUNDING = 1e-6  # tolerance for a sum of shares above 1


class Naming(Struct, frozen=True):
    """How the metrics of a log get their common names."""

    parts: Mapping[str, Derived]  # common name -> its formula, which is the key where the log has the metric itself

    def apply(self, metrics: StepMetrics) -> StepMetrics:
        """A log's metrics under their common names, and all of them under the trainer's own."""
        named = {name: _computed(part, metrics) for name, part in self.parts.items()}
        columns = {name: _filled_from(part, metrics.columns.get(name), len(metrics)) for name, part in named.items()}
        return StepMetrics(metrics.steps, {**columns, **{k: v for k, v in metrics.columns.items() if k not in columns}})

    def checked_against(self, metrics: StepMetrics) -> tuple[Naming, tuple[str, ...]]:
        """Without the guesses that a log's numbers refute, and a sentence on each of these."""
        guesses = {name: _computed(part, metrics).values for name, part in self.parts.items() if part.is_guess}
        outside = {name: values[np.abs(values - 0.5) > 0.5 + _ROUNDING] for name, values in guesses.items()}
        refuted = {name: values[np.abs(values).argmax()] for name, values in outside.items() if len(values)}
        unsaid = {name: _computed(part, metrics).values for name, part in self.parts.items() if part.is_unsaid}
        counts = {name for name, values in unsaid.items() if not _are_fractions(values)}
        sentences = (
            f"{self.parts[name].formula} is {value:.3g} at a step, as no share of groups is: it is not {name}."
            for name, value in refuted.items()
        )
        wrong = counts | refuted.keys()
        return Naming({name: part for name, part in self.parts.items() if name not in wrong}), tuple(sentences)

    @property
    def sentences(self) -> tuple[str, ...]:
        """A sentence on the common names that differ from the trainer's own."""
        formulas = {name: part.formula for name, part in self.parts.items()}
        parts = [f"{name} is {text}" for name, text in formulas.items() if without_prefix(text) != name]
        return (f"By the trainer's names: {'; '.join(parts)}.",) if parts else ()


def naming_of(keys: Iterable[str], named_columns: Mapping[str, str]) -> Naming:
    """The common names of the keys of a log; those of ``named_columns``, common name -> key, take precedence.

    Raises:
        UsageError: The log lacks a key that the user named.

    Example:
        >>> naming_of(["actor/grad_norm", "loss"], {}).sentences
        ("By the trainer's names: grad_norm is actor/grad_norm.",)
    """
    logged = dict.fromkeys(keys)
    for name, key in named_columns.items():
        if key not in logged:
            similar = difflib.get_close_matches(key, logged, n=3, cutoff=0.4) or list(logged)[:3]
            raise UsageError(
                f"The log has no metric {key!r}.",
                hint=f"Write --metric-column {name}=NAME with one of {', '.join(similar)}.",
            )
    parts = {name: _as_logged(key) for name, key in named_columns.items()}
    words = {key: bag for key in logged if _EVALUATIONS.isdisjoint(bag := set(_WORD_BREAK.split(key.lower())))}
    in_thirds = _in_thirds(words)
    on_groups = {  # each key of groups or prompts in training, with the words of its last part but for those
        key: set(_WORD_BREAK.split(_UNIT.sub("", key.rpartition("/")[2].lower()))) - _PREFIXES
        for key, bag in words.items()
        if _GROUP_KEY.search(key)
        or key in in_thirds
        or any(kind < bag - _PREFIXES <= kind | _COUNT for kind in _GROUPS[_DEAD])
    }
    agents = {match["agent"] for match in map(_AGENT.match, logged) if match}
    written = {_AGENT.sub(r"\1", key): key for key in logged} if len(agents) == 1 else {}
    written |= {plain_name(key): key for key in logged} | {key: key for key in logged}
    names = set(map(without_prefix, written))
    if "reward_std" not in names and not names.isdisjoint(MEAN_REWARDS):  # `reward` may be that of one response
        written = {name: key for name, key in written.items() if without_prefix(name) != "reward"}
    written = {_flat(name): key for name, key in written.items()} | written
    for metric in COMMON:
        part = next(_candidates(metric, written), None)
        if part is None and metric.name in _GROUPS:
            part = _group_share(metric.name, on_groups)
        elif part is None and metric.name in _KINDS:
            part = _by_words(metric.name, words)
        if part is not None:
            parts.setdefault(metric.name, part)
    if parts.keys() >= {"frac_all_fail", "frac_all_pass"}:
        parts = {"frac_reward_zero_std": _sum(parts["frac_all_fail"], parts["frac_all_pass"])} | parts
    return Naming(parts)


def is_verdict(key: str) -> bool:
    """Whether a metric says how good answers are: a share of correct ones, or any score of an evaluation.

    >>> [is_verdict(key) for key in ("val-core/gsm8k/acc/mean@1", "rewards/accuracy/mean", "reward", "weights/correct")]
    [True, True, False, False]
    """
    words = set(_WORD_BREAK.split(key.lower()))
    return not words & _NO_SCORES and bool(words & (_CORRECT if words.isdisjoint(_EVALUATIONS) else _SCORES))


_MEANS = ({"reward", "rewards"}, {"r", "return", "returns", "score", "scores"}, _CORRECT | {"em"})


def likely_rewards(keys: Iterable[str]) -> list[str]:
    """The keys that may be the mean reward of training by a word of theirs, the likeliest first.

    >>> likely_rewards(["em", "avg_r_format", "avg_r_total", "eval/reward", "loss"])
    ['avg_r_total', 'avg_r_format', 'em']
    """
    no_means = _NO_SCORES | _EVALUATIONS | {"chosen", "rejected", "margins", "accuracies"}  # the last are DPO's
    words = {key: parts for key in keys if not (parts := set(_WORD_BREAK.split(key.lower()))) & no_means}
    ranks = {key: [index for index, kind in enumerate(_MEANS) if parts & kind] for key, parts in words.items()}
    means = {"mean", "avg", "average", "total"}
    return sorted(filter(ranks.get, ranks), key=lambda key: (ranks[key][0], -len(words[key] & means)))


def _by_words(name: str, words: Mapping[str, set[str]]) -> Derived | None:
    """A metric under a name of somebody's own, all words of which are known; None where several are as plain."""
    kinds = [(len(bag), key) for kind in _KINDS[name] for key, bag in words.items() if kind <= bag <= kind | _FILLERS]
    simplest = [key for size, key in kinds if size == min(kinds)[0]]
    return _as_logged(simplest[0]) if len(simplest) == 1 else None


def _in_thirds(words: Mapping[str, set[str]]) -> set[str]:
    """The keys of shares that all pass, all fail and are mixed, which groups alone do, whatever else they say alike."""
    thirds = [
        {key: frozenset(bag - kind) for kind in kinds for key, bag in words.items() if kind <= bag}
        for kinds in (_GROUPS["frac_all_pass"], _GROUPS["frac_all_fail"], ({"mixed"},))
    ]
    shared = frozenset.intersection(*(frozenset(rests.values()) for rests in thirds))
    return {key for rests in thirds for key, rest in rests.items() if rest in shared}


def _group_share(name: str, words: Mapping[str, set[str]]) -> Derived | None:
    """A share of groups by known words, as in ``degenerate_group_rate``, or a count next to that of all."""
    shares, counts, unsaid = _readings(_GROUPS[name], words)
    ranked = [shares, counts]
    if name == _DEAD:
        *by_gradient, without = _readings(_NO_GRADIENT, words)
        alive = [[_one_minus(part) for part in parts] for parts in _readings(_ALIVE, words)]
        ranked += [*by_gradient, *alive[:2], unsaid, without, alive[2]]
    fits = next(filter(None, ranked), [])
    return fits[0] if len(fits) == 1 else None


def _readings(
    kinds: Iterable[set[str]], words: Mapping[str, set[str]]
) -> tuple[list[Derived], list[Derived], list[Derived]]:
    """What is named a share of groups of some kinds, what counts them next to all, and what may be either."""
    named = [(key, bag - kind) for kind in kinds for key, bag in words.items() if bag >= kind]
    shares = [share for key, rest in named for share in _share(key, rest)]
    counts = [
        replace(_quotient(key, total), is_guess=True)
        for key, rest in named
        if rest <= _COUNT
        for total, bag in words.items()
        if bag <= _COUNT and (unit := _UNIT.findall(total)[-1:]) and _UNIT.findall(key)[-1:] in ([], unit)
    ]
    unsaid = [key for key, rest in named if not rest and _UNIT.search(key)]
    return shares, counts, [replace(_as_logged(key), is_unsaid=True) for key in unsaid]


def _share(key: str, rest: set[str]) -> Iterator[Derived]:
    """A key as a share, where no words but those of one are left of it."""
    if rest in _SHARES:
        yield _as_logged(key)
    elif rest in _PERCENTAGES:
        yield _percent(key)


def _sum(first: Derived, second: Derived) -> Derived:
    size = len(first.keys)
    return Derived(
        keys=(*first.keys, *second.keys),
        formula=f"{first.formula} + {second.formula}",
        make=lambda *values: first.make(*values[:size]) + second.make(*values[size:]),
        is_guess=first.is_guess or second.is_guess,
    )


def _are_fractions(values: Floats) -> bool:
    """Whether numbers are shares, one of them neither 0 nor 1: a count of groups is whole."""
    return bool(np.any((values > 0) & (values < 1))) and not np.any(np.abs(values - 0.5) > 0.5 + _ROUNDING)


def _computed(derived: Derived, metrics: StepMetrics) -> Numbers:
    """A derived metric at the steps that have all its parts."""
    parts = [metrics.columns[key] for key in derived.keys]
    indices = [part.rows for part in parts if part.rows is not None]
    rows = reduce(np.intersect1d, indices) if indices else None
    return Numbers(rows, derived.make(*(part.values if rows is None else part.take(rows).values for part in parts)))


def _filled_from(first: Numbers, second: Numbers | None, size: int) -> Numbers:
    """The first metric, filled from the second at steps where it is missing."""
    if first.rows is None or second is None:
        return first
    all_rows = np.arange(size)
    is_left = np.ones(size, dtype=np.bool_)
    is_left[first.rows] = False
    left = np.intersect1d(all_rows[is_left], all_rows if second.rows is None else second.rows)
    rows = np.concatenate([first.rows, left])
    order = np.argsort(rows)
    return Numbers(rows[order], np.concatenate([first.values, second.take(left).values])[order])


def without_impossible_shares(metrics: StepMetrics) -> tuple[StepMetrics, tuple[str, ...]]:
    """Metrics with NaN for shares outside [0, 1], so that no mean uses them and no gate passes.

    Returns:
        The metrics, and a sentence for each that was changed, with the number of steps and the first.
    """
    columns, sentences, changed = dict(metrics.columns), list[str](), set[str]()
    for name in (metric.name for metric in COMMON if metric.style == "share" and metric.name in columns):
        column = columns[name]
        share = np.clip(column.values, 0.0, 1.0)
        is_wrong = np.abs(column.values - share) > _ROUNDING
        columns[name] = Numbers(column.rows, np.where(is_wrong, math.nan, share))
        if is_wrong.any():
            steps, values = metrics.series(name)
            first = f"{values[is_wrong][0]:g} at step {steps[is_wrong][0]}"
            steps_text = f"{np.count_nonzero(is_wrong):,} of {len(metrics):,} steps ({first})"
            are_percent = 1 < column.values.max() <= 100
            advice = " Percentages are read under a name that says so, as dead_groups_pct." if are_percent else ""
            sentences.append(f"{name} is no share at {steps_text}: that counts as NaN.{advice}")
            changed.add(name)
    return StepMetrics(metrics.steps, columns, frozenset(changed)), tuple(sentences)


def without_prefix(key: str) -> str:
    """A trainer's key without the prefix that W&B's callback of transformers writes before it."""
    return key.removeprefix(_PREFIX)


def parse_metric_columns(words: Sequence[str] | None) -> dict[str, str]:
    """Name -> column of each ``--metric-column NAME=COLUMN,...``; a UsageError where a part is not of that form."""
    parts = [part.strip() for text in words or () for part in text.split(",")]
    pairs = [part.partition("=") for part in parts]
    if not all(name.strip() and key.strip() for name, _, key in pairs):
        raise UsageError(
            f"--metric-column takes a name and a column, got {', '.join(parts)!r}.",
            hint="Write --metric-column frac_reward_zero_std=groups/dead",
        )
    return {name.strip(): key.strip() for name, _, key in pairs}


def _candidates(metric: CommonMetric, written: Mapping[str, str]) -> Iterator[Derived]:
    """Its formulas in a log's keys, which ``written`` has by the names that trainers give them and by their own."""
    formulas = (*map(_as_logged, metric.keys), *metric.derived)
    for is_flat, derived, prefix in product((False, True), formulas, ("", _PREFIX)):
        names = {key: _flat(prefix + key) if is_flat else prefix + key for key in derived.keys}
        if written.keys() >= set(names.values()):
            keys = {key: written[name] for key, name in names.items()}
            formula = reduce(lambda text, key: text.replace(key, keys[key]), keys, derived.formula)
            yield replace(derived, keys=tuple(keys.values()), formula=formula)


def _flat(name: str) -> str:
    """A name as tables and databases spell it that have no other separators."""
    return name.replace("/", "_").replace(".", "_")
