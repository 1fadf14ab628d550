"""How many directions a group's gradient has by its size and by its labels, on the same rollouts: docs/study_rank.md.

One prompt set with 64 rollouts a prompt, cut into sub-groups of R = 2 to 64. Four kinds of labels: the outcome's, those
of single steps, and both dealt anew, so that they say nothing of what was written. Every matrix that "the gradient of a
group" could mean, beside unrelated rows of the same norms and beside the scores alone.

Run ``python benchmarks/study_rank.py --output DIR --page docs/study_rank.md --images docs/images``, first with
``--pilot``, whose prompts are others; ``--quick`` is the smoke test. No number on the page is typed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.group import dr_grpo
from gradscope.advantages.registry import LOGGED
from gradscope.advantages.token import return_to_go
from gradscope.diagnostics.rank.collected import Collected
from gradscope.diagnostics.rank.request import RankRequest
from gradscope.diagnostics.rank.several import collect_kinds
from gradscope.diagnostics.rank.weights.weight_curve import ALL_WEIGHTS
from gradscope.estimate import Estimate
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.uncertainty.bootstrap import bootstrap_mean
from gradscope.metrics.uncertainty.paired import least_detectable_mean, sign_flip_p_value, student_mean
from gradscope.progress import no_progress
from gradscope.results.rank import RowKind
from gradscope.results.ranks.curves import RankCurvePoint, TokenRankPoint, WeightRankPoint
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from gradscope.rollouts.types import RolloutGroup
from gradscope.training.grid import train_grid
from gradscope.training.setup.config import TrainConfig

SIZES = (2, 4, 8, 16, 32, 64)
LEVEL, POWER = 0.05, 0.8
_KINDS: tuple[RowKind, ...] = ("rollout", "weight", "hidden", "logit", "token")
_STEP = 11
"""The step whose rollouts are measured: a policy in training, with most prompts between none and all right."""
_MOST_TOKENS = 4096
"""More than a prompt's 64 rollouts have: every token is a row."""
OUTCOME, PER_STEP = "outcome", "per step"
_HEAD, _ALL = "dL/dW, output head", "dL/dW, mean over weights"

Label = Callable[[RolloutGroup, np.random.Generator], RolloutGroup]
Point = RankCurvePoint | TokenRankPoint | WeightRankPoint


def by_outcome(group: RolloutGroup, _: np.random.Generator) -> RolloutGroup:
    """Each rollout's reward minus the mean of the sub-group's."""
    advantages = dr_grpo(np.array(group.rewards, dtype=np.float64)).tolist()
    rollouts = zip(group.rollouts, advantages, strict=True)
    return replace(group, rollouts=tuple(replace(r, advantage=a, token_advantages=None) for r, a in rollouts))


def by_step(group: RolloutGroup, _: np.random.Generator) -> RolloutGroup:
    """What each token's and all later steps' rewards add up to, minus the sub-group's mean of that."""
    return _with_credit(group, return_to_go([np.array(rollout.token_rewards) for rollout in group.rollouts]))


def by_step_dealt(group: RolloutGroup, rng: np.random.Generator) -> RolloutGroup:
    """The same credits, dealt anew among the tokens of the sub-group."""
    credits = return_to_go([np.array(rollout.token_rewards) for rollout in group.rollouts])
    dealt = rng.permutation(np.concatenate(credits))
    return _with_credit(group, np.split(dealt, np.cumsum([len(own) for own in credits])[:-1]))


def by_outcome_dealt(group: RolloutGroup, rng: np.random.Generator) -> RolloutGroup:
    """The outcomes of the sub-group, dealt anew among its rollouts."""
    order = rng.permutation(group.size)
    labeled = by_outcome(group, rng)
    advantages = [labeled.rollouts[place].advantage for place in order]
    rollouts = zip(labeled.rollouts, advantages, strict=True)
    return replace(labeled, rollouts=tuple(replace(rollout, advantage=own) for rollout, own in rollouts))


LABELS: Mapping[str, Label] = {
    OUTCOME: by_outcome,
    PER_STEP: by_step,
    "outcome, dealt anew": by_outcome_dealt,
    "per step, dealt anew": by_step_dealt,
}


def _with_credit(group: RolloutGroup, credits: Sequence[NDArray[np.float64]]) -> RolloutGroup:
    rollouts = zip(group.rollouts, credits, strict=True)
    return replace(group, rollouts=tuple(replace(r, token_advantages=tuple(own.tolist())) for r, own in rollouts))


def labeled(groups: Sequence[RolloutGroup], size: int, label: Label, seed: int) -> tuple[RolloutGroup, ...]:
    """Groups cut into sub-groups, each with labels of its own; a sub-group is called by its prompt and its number.

    A prompt whose rewards are all equal has no gradient by the outcome, and gets none by any label: the prompts are the
    same throughout.

    Returns:
        The sub-groups, those of a prompt in a row.
    """
    rng = np.random.default_rng([seed, size])
    parts = []
    for group in groups:
        own = label if len(set(group.rewards)) > 1 else by_outcome
        for start in range(0, group.size, size):
            name = f"{group.prompt_id}/{start // size}"
            rollouts = tuple(replace(one, group_id=name) for one in group.rollouts[start : start + size])
            parts.append(own(replace(group, group_id=name, rollouts=rollouts), rng))
    return tuple(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One matrix of every sub-group of one size under one kind of labels."""

    ranks: Mapping[str, Sequence[float]]
    """Prompt -> effective ranks of its live sub-groups."""
    point: Point
    """Means over all live sub-groups, with their nulls."""

    @property
    def rank(self) -> Estimate:
        """Mean over live sub-groups; the interval resamples prompts."""
        values = [(rank, prompt) for prompt, ranks in self.ranks.items() for rank in ranks]
        return bootstrap_mean([rank for rank, _ in values], [prompt for _, prompt in values], share=False)

    def null(self, name: str) -> float | None:
        """The mean rank under a null."""
        return self.point.nulls[name].effective_rank.value if name in self.point.nulls else None


@dataclass(frozen=True)
class Table:
    """Everything that was measured."""

    by_matrix: Mapping[str, Mapping[tuple[str, int], Measured]]
    """Matrix -> labels and R -> ranks."""

    @property
    def largest(self) -> int:
        """The rollouts of a whole group."""
        return max(size for _, size in self.by_matrix[_ALL])

    @cached_property
    def changes(self) -> NDArray[np.float64]:
        """Rank of dL/dW of a prompt's whole group by labels of single steps minus by the outcome's, [n]."""
        of = self.by_matrix[_ALL]
        one, other = of[PER_STEP, self.largest].ranks, of[OUTCOME, self.largest].ranks
        return np.array([one[prompt][0] - other[prompt][0] for prompt in one if prompt in other])


def measure(run: Run, step: int, sizes: Sequence[int], labels: Sequence[str], kinds: Sequence[RowKind]) -> Table:
    """Kinds of matrices under kinds of labels at every size."""
    groups, engine = run.groups_at(step), EngineOptions(device="cpu")
    found: dict[str, dict[tuple[str, int], Measured]] = {}
    for label in labels:
        for size in sizes:
            cut = replace(run, groups=labeled(groups, size, LABELS[label], seed=0))
            # a matrix of rows of tokens by all parameters costs N^2 P, and signs and owners do not bear on its rank
            asked = [kind for kind in kinds if kind != "token" or label in (OUTCOME, PER_STEP)]
            requests = [_request(kind) for kind in asked]
            collected = collect_kinds(cut, [step], requests, engine, no_progress, most=_MOST_TOKENS)
            for kind in asked:
                for matrix, one in _matrices(kind, collected[kind]):
                    found.setdefault(matrix, {})[label, size] = one
            print(f"measured {label}, R = {size}", flush=True)
    return Table(found)


def _request(kind: RowKind) -> RankRequest:
    return RankRequest(
        rows=kind, advantages=(LOGGED,), group_sizes=(), paired=False, centered=False, seed=0, output=None
    )


def _matrices(kind: RowKind, collected: Collected) -> Iterator[tuple[str, Measured]]:
    """The matrices of one kind, by name."""
    space = {"rollout": "parameters", "token": "parameters", "hidden": "hidden state", "logit": "logits"}.get(kind, "")
    for point in collected.curve if kind != "token" else ():
        yield f"rollouts, {space}", _measured(collected, "rollout", point)
    for token_point in collected.token_curve:
        yield f"tokens, {space}", _measured(collected, "token", token_point)
    for weight_point in collected.weight_curve:
        if weight_point.tensor is None:
            yield _ALL, _measured(collected, ALL_WEIGHTS, weight_point)
        elif "lm_head" in weight_point.tensor:
            yield _HEAD, _measured(collected, weight_point.tensor, weight_point)


def _measured(collected: Collected, matrix: str, point: Point) -> Measured:
    ranks: dict[str, list[float]] = {}
    for one in collected.group_ranks:
        if one.matrix == matrix:
            ranks.setdefault(one.group_id.rpartition("/")[0], []).append(one.rank)
    return Measured(ranks=ranks, point=point)


def power(table: Table, num_prompts: int) -> str:
    """What so many prompts decide, at the spread seen."""
    spread, seen = float(table.changes.std(ddof=1)), f"{len(table.changes)} prompts"
    if 2 / 2**num_prompts > LEVEL:
        return f"{seen}, SD of a difference {spread:.3f}; so few decide nothing"
    least = spread * least_detectable_mean(num_prompts, LEVEL, POWER)
    return f"{seen}, SD of a difference {spread:.3f}, least detectable difference {least:.3f}"


def decided(table: Table) -> str:
    """The one test."""
    p_value, mean = sign_flip_p_value(table.changes), student_mean(table.changes)
    assert p_value is not None, "there are prompts with unequal rewards"
    verdict = "not decided" if p_value > LEVEL else "higher" if (mean.value or 0.0) > 0 else "lower"
    return (
        f"Effective rank of {_ALL}, R = {table.largest}, {PER_STEP} minus {OUTCOME}: {_spelled(mean, '+.3f')}, "
        f"p = {p_value:.4f} by sign flips over {len(table.changes)} prompts: **{verdict}**. "
        f"({power(table, len(table.changes))}.)"
    )


def ranks_table(table: Table, sizes: Sequence[int]) -> str:
    """Ranks by matrix, R and labels."""
    lines = [
        f"| matrix | R | {' | '.join(LABELS)} | scores alone | unrelated rows |",
        "|---|--:|" + "--:|" * (len(LABELS) + 2),
    ]
    for matrix, of in table.by_matrix.items():
        for size in sizes:
            cells = [_spelled(of[label, size].rank, ".2f") if (label, size) in of else "—" for label in LABELS]
            nulls = [of[OUTCOME, size].null(name) for name in ("unweighted", "gaussian")]
            cells += ["—" if null is None else f"{null:.2f}" for null in nulls]
            lines.append(f"| {matrix} | {size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spelled(estimate: Estimate, form: str) -> str:
    if estimate.value is None:
        return "—"
    ends = f" [{estimate.low:{form}}, {estimate.high:{form}}]" if estimate.interval else ""
    return f"{estimate.value:{form}}{ends}"


def draw(table: Table, sizes: Sequence[int], stem: Path) -> None:
    """A panel for each matrix: rank by R under each kind of labels, beside unrelated rows and the scores alone."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    from gradscope.render.figures.save import save_figure
    from gradscope.render.figures.style import MUTED, SERIES, figure_style, new_figure

    with figure_style():
        num_prompts = len(table.changes)
        figure, panels = new_figure(
            "Effective rank of a group's gradient by its size R",
            f"The same rollouts of the same {num_prompts} prompts at every R; means over live sub-groups, 95 % "
            "intervals over prompts. Gray: unrelated rows of the same norms (dotted), scores alone (dashed), and 2",
            width=8.4,
            height=5.6,
            rows=2,
            columns=4,
            right=0.2,
            hspace=0.42,
            panel_titles=True,
        )
        order = sorted(table.by_matrix, key=lambda name: (name.startswith("dL"), name.startswith("tokens")))
        for axes, matrix in zip(panels, order, strict=False):
            of = table.by_matrix[matrix]
            axes.set_title(matrix, loc="left", fontsize=8.5)
            axes.axhline(2, color=MUTED, linewidth=0.6)
            for null, line in (("gaussian", ":"), ("unweighted", "--")):
                axes.plot(sizes, [of[OUTCOME, size].null(null) for size in sizes], line, color=MUTED, linewidth=1.2)
            for label, (color, line, marker) in zip(LABELS, SERIES, strict=True):
                if (label, sizes[0]) in of:
                    ranks = [of[label, size].rank for size in sizes]
                    axes.plot(sizes, [r.value for r in ranks], color=color, linestyle=line, marker=marker, label=label)
                    ends = [(r.low, r.high) if r.interval else (r.value, r.value) for r in ranks]
                    axes.fill_between(sizes, *zip(*ends, strict=True), color=color, alpha=0.12, linewidth=0)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            for axis, ticks in ((axes.xaxis, sizes), (axes.yaxis, [2**power for power in range(9)])):
                axis.set_major_locator(FixedLocator(list(ticks)))
                axis.set_minor_locator(NullLocator())
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        highest = max(axes.get_ylim()[1] for axes in panels)
        for axes in panels:
            axes.set_ylim(0.95, highest)
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="lower center", ncols=len(names), frameon=False, fontsize=8.5)
        save_figure(figure, stem)


def main(arguments: Sequence[str] | None = None) -> int:
    """Sample the rollouts, measure them, and put what came out on the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True, help="the folder of the run; what is there goes on")
    parser.add_argument("--pilot", action="store_true", help="other prompts, which tell the spread")
    parser.add_argument("--quick", action="store_true", help="the smoke test")
    parser.add_argument("--page", type=Path, help="the page to put the tables into")
    parser.add_argument("--images", type=Path, help="the folder to put the figure into")
    options = parser.parse_args(arguments)
    sizes, step = (SIZES[:2], 2) if options.quick else (SIZES, _STEP)
    config = TrainConfig(
        output=str(options.output / ("pilot" if options.pilot else "run")),
        advantage="dr_grpo",
        group_size=sizes[-1],
        num_prompts=8 if options.quick else 24,
        steps=step,
        checkpoint_every=step - 1,
        heldout_prompts=0,
        seed=0 if options.pilot else 100,
        device="cpu",
    )
    (folder,) = train_grid([config], num_processes=1, resume=True)
    if options.pilot:
        table = measure(read_run(folder), step, sizes[-1:], (OUTCOME, PER_STEP), ("weight",))
    else:
        table = measure(read_run(folder), step, sizes, tuple(LABELS), _KINDS)
    part = "pilot" if options.pilot else "tables"
    text = f"{power(table, len(table.changes))}."
    if not options.pilot:
        shown = "### Every matrix, effective rank\n\nIntervals resample prompts.\n\n" + ranks_table(table, sizes)
        text = f"### What is decided\n\n{decided(table)}\n\n{ranks_table(table, (sizes[0], sizes[-1]))}\n\n{shown}"
    print(text)
    if options.images is not None and not options.pilot:
        options.images.mkdir(parents=True, exist_ok=True)
        draw(table, sizes, options.images / "study_rank_sizes")
        (options.images / "study_rank_sizes.png").unlink(missing_ok=True)  # the page shows the drawing
    if options.page is not None:
        from study_pages import fill_page  # the run's process imports this file

        begin, end = f"<!-- {part} of benchmarks/study_rank.py -->", f"<!-- end of {part} -->"
        fill_page(options.page, begin, end, "study_rank", text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
