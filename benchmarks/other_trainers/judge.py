"""Judges the made-up runs: the norm by `gradscope replay`, the singular values by `gradscope rank`."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Struct

from benchmarks.oracle import spectrum_error
from benchmarks.other_trainers.toy import Truth
from gradscope.diagnostics.rank.measure import measure_rank
from gradscope.diagnostics.replay.measure import replay_run
from gradscope.errors import InputError
from gradscope.rollouts.read_options import ReadOptions

TOLERANCE = 1e-5


class Judged(Struct, kw_only=True):
    """One run."""

    trainer: str
    name: str
    expected: str | None  # the cause that it must be refused with; None: it must match
    partly: bool = False  # whether another step of it matches all the same
    within: float = TOLERANCE  # how far off it may be; in bfloat16 a percent
    norms: list[float] = []
    """Relative distance of the recomputed norm from the logged one, step by step."""
    sigmas: list[float] = []
    """Largest distance of a singular value from float64 autograd, relative to the group's largest."""
    verdicts: dict[str, str] = {}  # quantity -> its worst verdict, with the reason
    reasons: set[str] = set()
    ranked: bool = False

    @property
    def right(self) -> bool:
        """Whether it was met, or refused with the reason that it must be."""
        if self.expected is not None:
            return self.reasons == {self.expected} and self.ranked == self.partly
        exact = [*self.norms, *self.sigmas]
        is_match = self.verdicts.get("grad_norm", "").startswith("match") and "mismatch" not in str(self.verdicts)
        return bool(self.norms and self.sigmas) and max(exact) <= self.within and is_match


def judge(trainer: ModuleType, name: str, folder: Path, *, ranks: bool = True) -> Judged:
    """One case of a trainer; ``ranks=False`` looks at the norm alone of a run that must match."""
    case = trainer.CASES[name]
    truths = trainer.make(folder, case)
    read = ReadOptions(initial_weights=folder / "initial")
    path = folder / "run" / getattr(trainer, "LOG", "rollouts")
    judged = Judged(trainer=trainer.__name__.rpartition(".")[2], name=name, expected=case.get("refused"))
    judged.partly, judged.within = bool(case.get("partly")), 1e-2 if case.get("half") else TOLERANCE
    for step in replay_run(path, read=read).steps:
        for quantity in step.quantities:
            verdict = f"{quantity.verdict}{f' ({quantity.cause})' if quantity.cause else ''}"
            if quantity.verdict != "match" or quantity.name not in judged.verdicts:
                judged.verdicts[quantity.name] = verdict
            if quantity.name == "grad_norm" and quantity.verdict != "match" and quantity.reason:
                judged.reasons.add(quantity.reason)
        if "grad_norm" in step.recomputed:
            truth = truths[step.step]
            judged.norms.append(abs(step.recomputed["grad_norm"] - truth.exact) / truth.exact)
            judged.norms.append(abs(step.recomputed["grad_norm"] - truth.norm) / truth.norm)
    judged.sigmas = list(_sigmas(path, truths, judged, read=read)) if ranks or judged.expected else [0.0]
    return judged


def _sigmas(path: Path, truths: dict[int, Truth], judged: Judged, **options: Any) -> Iterator[float]:
    try:
        report = measure_rank(path, advantages=["logged"], **options)
    except InputError:
        return
    for step, truth in truths.items():
        of_groups = [each for each in report.spectra if each.label.step == step and each.label.group_id is not None]
        if not of_groups:
            continue
        judged.ranked = True
        size = max(spectrum.label.group_size for spectrum in of_groups)
        whole_groups = [spectrum for spectrum in of_groups if spectrum.label.group_size == size]
        yield max((max(each.singular_values, default=0.0) for each in whole_groups[len(truth.spectra) :]), default=0.0)
        for spectrum, values in zip(whole_groups, truth.spectra, strict=False):
            yield spectrum_error(spectrum.singular_values, values)
