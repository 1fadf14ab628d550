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
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gradscope.advantages.group import dr_grpo
from gradscope.advantages.registry import LOGGED
from gradscope.advantages.token import return_to_go
from gradscope.diagnostics.rank.collected import Collected
from gradscope.diagnostics.rank.request import RankRequest
from gradscope.diagnostics.rank.several import collect_kinds
from gradscope.estimate import Estimate
from gradscope.gradients.engine_options import EngineOptions
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


def labeled(group: RolloutGroup, size: int, label: Label) -> tuple[RolloutGroup, ...]:
    """A prompt's rollouts cut into sub-groups, in the order in which they were sampled, each with its own labels."""
    rng = np.random.default_rng([crc32(group.prompt_id.encode()), size])
    parts = []
    for start in range(0, group.size, size):
        name = f"{group.prompt_id}/{start // size}"
        rollouts = tuple(replace(one, group_id=name) for one in group.rollouts[start : start + size])
        parts.append(label(replace(group, group_id=name, rollouts=rollouts), rng))
    return tuple(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Effective ranks of one matrix of one prompt, means over its live sub-groups of one size."""

    own: float
    """Under the labels."""
    scores: float
    """Of the scores alone."""
    unrelated: float
    """Of unrelated rows of the same norms."""


Cell = tuple[str, str, int]
"""A matrix, a kind of labels and R."""


@dataclass(frozen=True)
class Table:
    """Everything that was measured."""

    by_cell: Mapping[Cell, Mapping[str, Ranks]]
    """Matrix, labels and R -> prompt -> ranks; the same prompts everywhere."""

    @property
    def matrices(self) -> tuple[str, ...]:
        """Rows of rollouts, rows of tokens, dL/dW."""
        names = dict.fromkeys(matrix for matrix, _, _ in self.by_cell)
        return tuple(sorted(names, key=lambda name: (name.startswith("dL"), name.startswith("tokens"))))

    def values(self, cell: Cell, of: str = "own") -> NDArray[np.float64]:
        """Ranks, or those of a null, by prompt; [n]."""
        return np.array([getattr(ranks, of) for ranks in self.by_cell[cell].values()])

    def changes(self, size: int) -> NDArray[np.float64]:
        """Rank of dL/dW of a prompt's whole group by labels of single steps minus by the outcome's; [n]."""
        return self.values((_ALL, PER_STEP, size)) - self.values((_ALL, OUTCOME, size))


def measure(run: Run, step: int, sizes: Sequence[int], labels: Sequence[str], kinds: Sequence[RowKind]) -> Table:
    """Kinds of matrices under kinds of labels at every size, prompt by prompt.

    Returns:
        The ranks of the prompts that have one in every cell.
    """
    found: dict[Cell, dict[str, Ranks]] = {}
    for group in run.groups_at(step):
        if len(set(group.rewards)) > 1:
            # a prompt by itself is a step of one prompt: its matrices need no other's
            values = {**run.settings.values, "generation_batch_size": group.size}
            alone = replace(run, settings=replace(run.settings, values=values), metrics={})
            for label in labels:
                for size in sizes:
                    cut = replace(alone, groups=labeled(group, size, LABELS[label]))
                    # rows of tokens by all parameters cost N^2 P, and whom labels reward does not bear on their rank
                    asked = [kind for kind in kinds if kind != "token" or label in (OUTCOME, PER_STEP)]
                    for matrix, ranks in _ranks(cut, step, asked):
                        found.setdefault((matrix, label, size), {})[group.prompt_id] = ranks
            print(f"measured {group.prompt_id}", flush=True)
    everywhere = set.intersection(*(set(of) for of in found.values()))
    return Table(
        {cell: {prompt: ranks for prompt, ranks in of.items() if prompt in everywhere} for cell, of in found.items()}
    )


def _ranks(run: Run, step: int, kinds: Sequence[RowKind]) -> Iterator[tuple[str, Ranks]]:
    """The matrices of one prompt under one kind of labels at one size, as far as some sub-group has a gradient."""
    requests = [
        RankRequest(rows=kind, advantages=(LOGGED,), group_sizes=(), paired=False, centered=False, seed=0, output=None)
        for kind in kinds
    ]
    collected = collect_kinds(run, [step], requests, EngineOptions(device="cpu"), no_progress, most=_MOST_TOKENS)
    for kind in kinds:
        if collected[kind].skipped:
            raise SystemExit(f"{run.path}: {collected[kind].skipped}")
        for matrix, point in _points(kind, collected[kind]):
            nulls = [point.nulls[name].effective_rank.value for name in ("unweighted", "gaussian") if point.nulls]
            if point.effective_rank.value is not None and None not in nulls:
                yield matrix, Ranks(own=point.effective_rank.value, scores=nulls[0] or 0.0, unrelated=nulls[1] or 0.0)


def _points(kind: RowKind, collected: Collected) -> Iterator[tuple[str, Point]]:
    """The matrices of one kind, by name."""
    space = {"rollout": "parameters", "token": "parameters", "hidden": "hidden state", "logit": "logits"}.get(kind, "")
    for point in collected.curve if kind != "token" else ():
        yield f"rollouts, {space}", point
    for token_point in collected.token_curve:
        yield f"tokens, {space}", token_point
    for weight_point in collected.weight_curve:
        if weight_point.tensor is None:
            yield _ALL, weight_point
        elif "lm_head" in weight_point.tensor:
            yield _HEAD, weight_point


def power(changes: NDArray[np.float64]) -> str:
    """What so many prompts decide, at the spread seen."""
    spread, seen = float(changes.std(ddof=1)), f"{len(changes)} prompts"
    if 2 / 2 ** len(changes) > LEVEL:
        return f"{seen}, SD of a difference {spread:.3f}; so few decide nothing"
    least = spread * least_detectable_mean(len(changes), LEVEL, POWER)
    return f"{seen}, SD of a difference {spread:.3f}, least detectable difference {least:.3f}"


def decided(table: Table, size: int) -> str:
    """The one test."""
    changes = table.changes(size)
    p_value, mean = sign_flip_p_value(changes), student_mean(changes)
    assert p_value is not None, "there are prompts with unequal rewards"
    verdict = "not decided" if p_value > LEVEL else "higher" if (mean.value or 0.0) > 0 else "lower"
    return (
        f"Effective rank of {_ALL}, R = {size}, {PER_STEP} minus {OUTCOME}: {_spelled(mean, '+.3f')}, "
        f"p = {p_value:.4f} by sign flips: **{verdict}** ({power(changes)})."
    )


def ranks_table(table: Table, sizes: Sequence[int]) -> str:
    """Ranks by matrix, R and labels."""
    lines = [
        f"| matrix | R | {' | '.join(LABELS)} | scores alone | unrelated rows |",
        "|---|--:|" + "--:|" * (len(LABELS) + 2),
    ]
    for matrix in table.matrices:
        for size in sizes:
            cells = [(matrix, label, size) for label in LABELS]
            own = [_spelled(_mean(table.values(cell)), ".2f") if cell in table.by_cell else "—" for cell in cells]
            nulls = [f"{table.values(cells[0], of).mean():.2f}" for of in ("scores", "unrelated")]
            lines.append(f"| {matrix} | {size} | {' | '.join((*own, *nulls))} |")
    return "\n".join(lines)


def _mean(ranks: NDArray[np.float64]) -> Estimate:
    return student_mean(ranks, within=(1.0 - 1e-5, np.inf))


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
        num_prompts = len(table.changes(sizes[-1]))
        figure, panels = new_figure(
            "Effective rank of a group's gradient by its size R",
            f"The same rollouts of the same {num_prompts} prompts at every R; means with Student's 95 % interval over "
            "prompts. Gray: unrelated rows of the same norms (dotted), scores alone (dashed), and 2",
            width=8.4,
            height=5.6,
            rows=2,
            columns=4,
            right=0.2,
            hspace=0.42,
            panel_titles=True,
        )
        for axes, matrix in zip(panels, table.matrices, strict=True):
            axes.set_title(matrix, loc="left", fontsize=8.5)
            axes.axhline(2, color=MUTED, linewidth=0.6)
            for null, line in (("unrelated", ":"), ("scores", "--")):
                means = [table.values((matrix, OUTCOME, size), null).mean() for size in sizes]
                axes.plot(sizes, means, line, color=MUTED, linewidth=1.2)
            for label, (color, line, marker) in zip(LABELS, SERIES, strict=True):
                if (matrix, label, sizes[0]) in table.by_cell:
                    ranks = [_mean(table.values((matrix, label, size))) for size in sizes]
                    axes.plot(sizes, [r.value for r in ranks], color=color, linestyle=line, marker=marker, label=label)
                    low, high = zip(*((r.low or r.value, r.high or r.value) for r in ranks), strict=True)
                    axes.fill_between(sizes, low, high, color=color, alpha=0.12, linewidth=0)
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
    text = f"{power(table.changes(sizes[-1])).capitalize()}."
    if not options.pilot:
        text = "\n\n".join(
            [
                f"### What is decided\n\n{decided(table, sizes[-1])}",
                "Shown beside it, and not tested: ranks at the smallest and the largest R, means over prompts.",
                ranks_table(table, (sizes[0], sizes[-1])),
                f"### Effective rank at every R\n\n{ranks_table(table, sizes)}",
            ]
        )
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
