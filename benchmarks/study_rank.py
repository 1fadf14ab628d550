"""How many directions a group's gradient has by its size and by its labels (docs/research/study_rank.md).

One prompt set with 64 rollouts a prompt, cut into sub-groups of R = 2 to 64. Four kinds of labels: the outcome's, those
of single steps, and both dealt anew, so that they say nothing of what was written. Every matrix that "the gradient of a
group" could mean, beside unrelated rows of the same norms and beside the scores alone.

Run ``python benchmarks/study_rank.py --output DIR --page docs/research/study_rank.md --images docs/images``, first with
``--pilot``, whose prompts are others; ``--quick`` is the smoke test. No number on the page is typed.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from study import fill_page

from gradscope.advantages.registry import LOGGED
from gradscope.advantages.token import return_to_go
from gradscope.diagnostics.rank.collected import Collected, collect_kinds
from gradscope.diagnostics.rank.rows import RankRequest
from gradscope.estimate import Estimate
from gradscope.gradients.engine_options import EngineOptions
from gradscope.metrics.uncertainty.paired import least_detectable_mean, sign_flip_p_value, student_mean
from gradscope.progress import no_progress
from gradscope.results.rank import RankCurvePoint, RowKind, TokenRankPoint, WeightRankPoint
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run import Run
from gradscope.training.config import TrainConfig
from gradscope.training.grid import train_grid

SIZES = (2, 4, 8, 16, 32, 64)
LEVEL, POWER = 0.05, 0.8
_KINDS: tuple[RowKind, ...] = ("rollout", "weight", "hidden", "logit", "token")
_STEP = 11
"""The step whose rollouts are measured: a policy in training, with most prompts between none and all right."""
_MOST_TOKENS = 4096
"""More than a prompt's 64 rollouts have: every token is a row."""
OUTCOME, PER_STEP = "outcome", "per step"
PER_STEP_DEALT = "per step, dealt anew"
_NULLS = {"outcome, dealt anew": "shuffled", "scores alone": "unweighted", "unrelated rows": "gaussian"}
"""What stands beside the outcome's rank, by the names of the package's null models."""
LABELS = (OUTCOME, PER_STEP, "outcome, dealt anew", PER_STEP_DEALT)
TOKEN_SIZES = (2, 8, 64)
"""Sizes at which rows of tokens by all parameters are measured under labels of single steps."""
_SHOWN = (2, 4, 8, 64)
"""Sizes on the page: the source's, and the largest."""
_FILE = "study_rank_by_prompt.csv"
_HEAD, _ALL = "dL/dW, output head", "dL/dW, mean over weights"

Label = Callable[[RolloutGroup, np.random.Generator], RolloutGroup]
Point = RankCurvePoint | TokenRankPoint | WeightRankPoint


def by_step(group: RolloutGroup, _: np.random.Generator) -> RolloutGroup:
    """What each token's and all later steps' rewards add up to, minus the sub-group's mean of that."""
    return _with_credit(group, return_to_go([np.array(rollout.token_rewards) for rollout in group.rollouts]))


def by_step_dealt(group: RolloutGroup, rng: np.random.Generator) -> RolloutGroup:
    """The same credits, dealt anew among the tokens of the sub-group."""
    credits = return_to_go([np.array(rollout.token_rewards) for rollout in group.rollouts])
    dealt = rng.permutation(np.concatenate(credits))
    return _with_credit(group, np.split(dealt, np.cumsum([len(own) for own in credits])[:-1]))


BY_TOKEN: Mapping[str, Label] = {PER_STEP: by_step, PER_STEP_DEALT: by_step_dealt}


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


Cell = tuple[str, str, int]
"""A matrix, a kind of labels or a null, and R."""


@dataclass(frozen=True)
class Table:
    """Everything that was measured."""

    by_cell: Mapping[Cell, Mapping[str, float]]
    """Matrix, labels or null, and R -> prompt -> mean rank over its live sub-groups; the same prompts everywhere."""

    @property
    def matrices(self) -> tuple[str, ...]:
        """Rows of rollouts, rows of tokens, dL/dW."""
        names = dict.fromkeys(matrix for matrix, _, _ in self.by_cell)
        return tuple(sorted(names, key=lambda name: (name.startswith("dL"), name.startswith("tokens"))))

    def values(self, *cell: str | int) -> NDArray[np.float64]:
        """Ranks by prompt, [n]; empty where a matrix is not measured there."""
        matrix, label, size = cell
        return np.array([*self.by_cell.get((str(matrix), str(label), int(size)), {}).values()])

    def changes(self, size: int) -> NDArray[np.float64]:
        """Rank of dL/dW of a prompt's whole group by labels of single steps minus by the outcome's; [n]."""
        return self.values(_ALL, PER_STEP, size) - self.values(_ALL, OUTCOME, size)


def measure(run: Run, step: int, sizes: Sequence[int], kept: Path, *, only_weights: bool) -> Table:
    """Every matrix under every kind of labels at every size, prompt by prompt.

    Args:
        sizes: Sizes of sub-groups, the whole group's last.
        kept: The folder of a file for each prompt; what is there is not measured again.
        only_weights: Leave out all but dL/dW, and labels that are dealt anew.

    Returns:
        The ranks of the prompts that have one in every cell.
    """
    kept.mkdir(parents=True, exist_ok=True)
    by_prompt: dict[str, dict[Cell, float]] = {}
    for group in run.groups_at(step):
        if len(set(group.rewards)) > 1:
            file = kept / f"{crc32(group.prompt_id.encode()):08x}.json"
            if not file.is_file():
                found = [[*cell, rank] for cell, rank in _of_prompt(run, step, group, sizes, only_weights)]
                file.write_text(json.dumps(found), encoding="utf-8")
                print(f"measured {group.prompt_id}", flush=True)
            rows = json.loads(file.read_text(encoding="utf-8"))
            by_prompt[group.prompt_id] = {(matrix, label, size): rank for matrix, label, size, rank in rows}
    cells = dict.fromkeys(cell for of in by_prompt.values() for cell in of)
    whole = [prompt for prompt, of in by_prompt.items() if cells.keys() == of.keys()]
    return Table({cell: {prompt: by_prompt[prompt][cell] for prompt in whole} for cell in cells})


def _of_prompt(
    run: Run, step: int, group: RolloutGroup, sizes: Sequence[int], only_weights: bool
) -> Iterator[tuple[Cell, float]]:
    """The ranks of one prompt, as a step of its own: its matrices need no other's."""
    values = {**run.settings.values, "generation_batch_size": group.size}
    alone = replace(run, settings=replace(run.settings, values=values), metrics={}, groups=(group,))
    kinds: tuple[RowKind, ...] = ("weight",) if only_weights else _KINDS
    for matrix, point in _measured(alone, step, "dr_grpo", sizes[:-1], kinds):
        nulls = {name: point.nulls[null].effective_rank.value for name, null in _NULLS.items() if null in point.nulls}
        for label, rank in {OUTCOME: point.effective_rank.value, **nulls}.items():
            if rank is not None and (point.group_size in sizes):
                yield (matrix, label, point.group_size), rank
    for label in (PER_STEP,) if only_weights else BY_TOKEN:
        for size in sizes:
            # rows of tokens by all parameters cost N^2 P, and whom labels reward does not bear on their rank
            asked = [kind for kind in kinds if kind != "token" or (label == PER_STEP and size in TOKEN_SIZES)]
            cut = replace(alone, groups=labeled(group, size, BY_TOKEN[label]))
            for matrix, point in _measured(cut, step, LOGGED, (), asked):
                if point.effective_rank.value is not None:
                    yield (matrix, label, size), point.effective_rank.value


def _measured(
    run: Run, step: int, advantage: str, sizes: Sequence[int], kinds: Sequence[RowKind]
) -> Iterator[tuple[str, Point]]:
    """The mean ranks of every kind of matrix under one formulation, at the logged size and others."""
    requests = [
        RankRequest(
            rows=kind,
            advantages=(advantage,),
            group_sizes=tuple(sizes),
            paired=False,
            centered=False,
            seed=0,
            output=None,
        )
        for kind in kinds
    ]
    collected = collect_kinds(run, [step], requests, EngineOptions(device="cpu"), no_progress, most=_MOST_TOKENS)
    for kind in kinds:
        if collected[kind].skipped or collected[kind].refused:
            raise SystemExit(f"{run.path}: {collected[kind].skipped or collected[kind].refused}")
        yield from _points(kind, collected[kind])


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
    columns = (*LABELS, "scores alone", "unrelated rows")
    lines = [f"| matrix | R | {' | '.join(columns)} |", "|---|--:|" + "--:|" * len(columns)]
    for matrix in table.matrices:
        for size in sizes:
            means = [_mean(table.values(matrix, name, size)) for name in columns]
            lines.append(f"| {matrix} | {size} | {' | '.join(_spelled(mean, '.2f') for mean in means)} |")
    return "\n".join(lines)


def by_prompt(table: Table) -> str:
    """A row a prompt, matrix and R, as CSV."""
    columns = (*LABELS, "scores alone", "unrelated rows")
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["prompt", "matrix", "R", *columns])
    for prompt in next(iter(table.by_cell.values())):
        for matrix in table.matrices:
            for size in SIZES:
                ranks = [table.by_cell.get((matrix, label, size), {}).get(prompt, "") for label in columns]
                writer.writerows([[prompt, matrix, size, *ranks]] * any(rank != "" for rank in ranks))
    return stream.getvalue()


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

    from gradscope.render.figures.style import MUTED, SERIES, figure_style, new_figure, save_figure

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
            looks = [("unrelated rows", MUTED, ":", ""), ("scores alone", MUTED, "--", "")]
            looks += [(label, *look) for label, look in zip(LABELS, SERIES, strict=True)]
            for name, color, line, marker in looks:
                shown = [size for size in sizes if len(table.values(matrix, name, size))]
                ranks = [_mean(table.values(matrix, name, size)) for size in shown]
                label = name if color != MUTED else None
                axes.plot(shown, [r.value for r in ranks], color=color, linestyle=line, marker=marker, label=label)
                if label is not None and ranks:
                    low, high = zip(*((r.low or r.value, r.high or r.value) for r in ranks), strict=True)
                    axes.fill_between(shown, low, high, color=color, alpha=0.12, linewidth=0)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            for axis, ticks in ((axes.xaxis, sizes), (axes.yaxis, [2**power for power in range(9)])):
                axis.set_major_locator(FixedLocator(list(ticks)))
                axis.set_minor_locator(NullLocator())
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        highest = max(axes.get_ylim()[1] for axes in panels)
        for place, axes in enumerate(panels):
            axes.set_ylim(0.95, highest)
            axes.tick_params(labelleft=place % 4 == 0)
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
    asked = sizes[-1:] if options.pilot else sizes
    table = measure(read_run(folder), step, asked, folder / "ranks", only_weights=options.pilot)
    part = "pilot" if options.pilot else "tables"
    text = f"{power(table.changes(sizes[-1])).capitalize()}."
    if not options.pilot:
        text = "\n\n".join(
            [
                f"### What is decided\n\n{decided(table, sizes[-1])}",
                "Shown beside it, and not tested: means over prompts. The source's sizes are 2, 4 and 8.",
                ranks_table(table, [size for size in _SHOWN if size in sizes]),
                f"[The ranks of every prompt]({_FILE}), from which all of this follows.",
            ]
        )
    print(text)
    if options.images is not None and not options.pilot:
        options.images.mkdir(parents=True, exist_ok=True)
        draw(table, sizes, options.images / "study_rank_sizes")
        (options.images / "study_rank_sizes.png").unlink(missing_ok=True)  # the page shows the drawing
    if options.page is not None:
        fill_page(options.page, f"<!-- {part} of benchmarks/study_rank.py -->", f"<!-- end of {part} -->", text)
        if not options.pilot:
            (options.page.parent / _FILE).write_text(by_prompt(table), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
