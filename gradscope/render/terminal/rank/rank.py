"""What `gradscope rank` prints: the verdict, a line a step, what it means; every other table where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Group
from rich.text import Text

from gradscope.render.terminal.answer import Blocks, answer
from gradscope.render.terminal.layout import source_line
from gradscope.render.terminal.names import ALL
from gradscope.render.terminal.rank.channels import channels_table
from gradscope.render.terminal.rank.formulations import baselines_table, kinds_table, noise_table, updates_table
from gradscope.render.terminal.rank.prompt_effects import (
    heldout_influences_table,
    heldout_table,
    influences_table,
    interference_table,
)
from gradscope.render.terminal.rank.ranks import geometry_table, matrices_table, ranks_table, spectra_table
from gradscope.render.terminal.rank.sparsity import sparsity_table
from gradscope.render.terminal.rank.step_ranks import step_ranks
from gradscope.render.terminal.rank.token_parts import (
    corrections_table,
    entropy_table,
    kl_tables,
    logprobs_table,
    token_kinds_table,
    turns_table,
)
from gradscope.render.terminal.rank.tokens import token_rank_table
from gradscope.render.terminal.rank.weight_parts import (
    adapters_table,
    frames_table,
    modules_table,
    optimizers_table,
)
from gradscope.render.terminal.rank.weight_ranks import group_sizes_table, weight_ranks_table
from gradscope.render.terminal.rank.weight_updates import (
    gradients_and_updates_table,
    trajectory_table,
    weight_updates_table,
)
from gradscope.render.words.escape import cell
from gradscope.render.words.numbers import Footnotes
from gradscope.results.rank import RankReport
from gradscope.say import as_ranges

_ROW_WORDS = {
    "rollout": "a rollout's gradient",
    "group": "the sum of a group's gradients",
    "token": "the gradient of one token of a group",
    "weight": "an output of one weight matrix",
    "hidden": "the gradient of a rollout or a token by the last hidden state",
    "logit": "the gradient of a rollout or a token by the logits",
    "advantage": "the advantages of one rollout, token by token",
    "update": "an output of one weight matrix's change between checkpoints",
}


def rank_table(report: RankReport, show: Sequence[str] = ()) -> Group:
    """The verdict, ranks step by step, at most three findings and the names of further tables.

    Args:
        report: What was measured.
        show: Further tables, of :data:`~gradscope.render.terminal.names.TABLES`, ``all``, or ``verdict``.

    Returns:
        What rich prints, at most 40 lines where nothing is asked for.
    """
    return answer(
        "rank",
        report.headline or ("No rank could be found.",),
        _answer(report, whole="steps" in show or ALL in show),
        facts=[source_line(report.source)],
        findings=report.findings,
        views={name: partial(view, report) for name, view in _TABLES.items()},
        show=show,
        absent=report.missing_parts,
        tone="" if report.headline else "unknown",
    )


def _answer(report: RankReport, *, whole: bool) -> Blocks:
    """The table of the answer, what it leaves out, and what could not be computed."""
    if report.trajectories:
        notes = Footnotes()
        yield trajectory_table(report.trajectories, notes)
        yield from map(cell, notes.lines())
    yield from step_ranks(report, whole=whole)
    skipped = list(report.skipped.items())
    for step, reason in skipped if whole else skipped[:1]:
        yield cell(f"Step {step} was left out: {reason}")
    if len(skipped) > 1 and not whole:
        others = as_ranges([step for step, _ in skipped[1:]])
        yield cell(f"So were {others}; --show steps says why.")


def _formulations(report: RankReport, notes: Footnotes) -> Blocks:
    if report.curve:
        yield ranks_table(report.curve, notes)
    for refusal in _refusals(report.refused):
        yield cell(f"left out: {', '.join(refusal.names)}. {refusal.kind}")


def _channels(report: RankReport, notes: Footnotes) -> Blocks:
    if report.curve:
        yield channels_table(report.curve, notes)


def _spectra(report: RankReport, notes: Footnotes) -> Blocks:
    whole = [spectrum for spectrum in report.spectra if spectrum.label.group_id is None]
    if whole and report.rows != "weight":
        yield spectra_table(whole, notes)


def _weights(report: RankReport, notes: Footnotes) -> Blocks:
    if report.weight_curve:
        yield weight_ranks_table(report.weight_curve, notes)
        yield group_sizes_table(report.weight_curve, notes)
    whole = [spectrum for spectrum in report.spectra if spectrum.label.group_id is None]
    if whole and report.rows == "weight":
        yield matrices_table(whole, notes)


def _tokens(report: RankReport, notes: Footnotes) -> Blocks:
    if report.token_curve:
        yield token_rank_table(report.token_curve, notes)


def _energy(report: RankReport, notes: Footnotes) -> Blocks:
    if report.token_kinds:
        yield token_kinds_table(report.token_kinds, notes)


def _corrections(report: RankReport, notes: Footnotes) -> Blocks:
    if report.corrections:
        yield corrections_table(report.corrections, notes)


def _entropy(report: RankReport, notes: Footnotes) -> Blocks:
    if report.entropy_changes:
        yield entropy_table(report.entropy_changes, notes)


def _kl(report: RankReport, notes: Footnotes) -> Blocks:
    if report.token_kl:
        yield from kl_tables(report.token_kl, notes)


def _turns(report: RankReport, notes: Footnotes) -> Blocks:
    if report.turns:
        yield turns_table(report.turns, notes)


def _logprobs(report: RankReport, notes: Footnotes) -> Blocks:
    if report.logprob_changes:
        yield logprobs_table(report.logprob_changes, notes)


def _updates(report: RankReport, notes: Footnotes) -> Blocks:
    if report.gradient_updates:
        yield gradients_and_updates_table(report.gradient_updates, notes)
    if report.updates:
        yield weight_updates_table(report.updates, notes)


def _frames(report: RankReport, notes: Footnotes) -> Blocks:
    if report.updates:
        yield frames_table(report.updates, notes)


def _adapters(report: RankReport, notes: Footnotes) -> Blocks:
    if report.adapters:
        yield adapters_table(report.adapters, notes)


def _optimizers(report: RankReport, notes: Footnotes) -> Blocks:
    if report.optimizers:
        yield optimizers_table(report.optimizers, notes)


def _modules(report: RankReport, notes: Footnotes) -> Blocks:
    if report.modules:
        yield modules_table(report.modules, notes)


def _sparsity(report: RankReport, notes: Footnotes) -> Blocks:
    if report.sparsity:
        yield sparsity_table(report.sparsity, notes)


def _geometry(report: RankReport, notes: Footnotes) -> Blocks:
    if report.steps:
        yield geometry_table(report.steps, notes)


def _signal(report: RankReport, notes: Footnotes) -> Blocks:
    if report.formulations:
        yield updates_table(report.formulations, notes)
        yield noise_table(report.formulations, notes)


def _kinds(report: RankReport, notes: Footnotes) -> Blocks:
    if report.kinds:
        yield kinds_table(report.kinds, notes)


def _interference(report: RankReport, notes: Footnotes) -> Blocks:
    if report.interference:
        yield interference_table(report.interference, notes)
    if any(row.influence.is_defined for row in report.influences):
        yield influences_table(report.influences, notes)


def _heldout(report: RankReport, notes: Footnotes) -> Blocks:
    if report.heldout:
        yield heldout_table(report.heldout, notes)
    if any(row.influence.is_defined for row in report.heldout_influences):
        yield heldout_influences_table(report.heldout_influences, notes)
    if report.heldout:
        for sentence in report.heldout_notes:
            notes.remark(sentence)


def _baselines(report: RankReport, notes: Footnotes) -> Blocks:
    if report.baselines:
        yield baselines_table(report.baselines, notes)


def _engine(report: RankReport, notes: Footnotes) -> Blocks:
    lines = (_matrix(report), *_floor(report), _settings(report))
    yield Text("\n").join(cell(line) for line in lines if line)


_TABLES: Mapping[str, Callable[[RankReport, Footnotes], Blocks]] = {
    "formulations": _formulations,
    "channels": _channels,
    "spectra": _spectra,
    "weights": _weights,
    "tokens": _tokens,
    "energy": _energy,
    "corrections": _corrections,
    "entropy": _entropy,
    "kl": _kl,
    "turns": _turns,
    "logprobs": _logprobs,
    "updates": _updates,
    "frames": _frames,
    "adapters": _adapters,
    "optimizers": _optimizers,
    "modules": _modules,
    "sparsity": _sparsity,
    "geometry": _geometry,
    "signal": _signal,
    "kinds": _kinds,
    "interference": _interference,
    "heldout": _heldout,
    "baselines": _baselines,
    "engine": _engine,
}
"""Name -> its tables; none where the result has nothing of it. ``steps`` and ``findings`` make the answer longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """Formulations that were refused for one reason."""

    kind: str
    """The reason; of several formulations it names none."""
    names: tuple[str, ...]
    """The formulations."""


def _refusals(refused: Mapping[str, str]) -> Iterator[_Refusal]:
    """Formulations with their reasons, those together whose reasons differ in the formulation's own name only."""
    alike: dict[str, list[str]] = {}
    for name, reason in refused.items():
        alike.setdefault(reason.replace(f"'{name}'", "such").replace(name, "each"), []).append(name)
    for kind, names in alike.items():
        yield _Refusal(kind=kind if len(names) > 1 else refused[names[0]], names=tuple(names))


def _matrix(report: RankReport) -> str:
    words = f"A matrix row is {_ROW_WORDS[report.rows]}"
    if report.rows == "update":
        return words
    if not report.spectra:
        return f"{words}; no matrix could be formed"
    rows = sorted({spectrum.label.shape[0] for spectrum in report.spectra})
    columns = sorted({spectrum.label.shape[1] for spectrum in report.spectra})
    shape = " x ".join(f"{s[0]:,}" if len(s) == 1 else f"{s[0]:,} to {s[-1]:,}" for s in (rows, columns))
    centered = "rows centered" if report.spectra[0].label.centered else "rows not centered"
    return f"{words}; shape {shape}, {centered}"


def _floor(report: RankReport) -> Iterator[str]:
    """What of the spectra could be arithmetic: a rank says nothing about it."""
    below = [spectrum.ranks.frac_energy_below_floor.value for spectrum in report.spectra]
    shares = [share for share in below if share is not None]
    if shares:
        yield f"under the noise floor: at most {max(shares):.1g} of a spectrum's energy"


def _settings(report: RankReport) -> str:
    settings = [
        f"{key} {report.engine[key]}" for key in ("engine", "dtype", "precision", "device") if key in report.engine
    ]
    return ", ".join(settings)
