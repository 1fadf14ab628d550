"""gradscope: which parts of a GRPO run carry signal.

Each command of the app is one function here that takes paths and returns a result object; nothing prints inside it.
How to read, compute and resample are records: ``measure_rank(run, read=ReadOptions(...), engine=EngineOptions(...))``.
They are imported when first used, so ``import gradscope`` stays instant and loads no third-party package.

    report = gradscope.measure_degeneracy("my-run", progress=True)  # a notebook shows the answer with its charts
    report.to_pandas()  # or to_arrow(); report.table_names has the others
    report.plot().savefig("dead.png")  # report.figure_names has the others
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from gradscope.shown import show_by
from gradscope.version import __version__

if TYPE_CHECKING:
    from gradscope.advantages.formulation import advantage_formulation as advantage_formulation
    from gradscope.diagnostics.check.measure import check_run as check_run
    from gradscope.diagnostics.check.requirements import CheckSettings as CheckSettings
    from gradscope.diagnostics.claims.evidence import ClaimOptions as ClaimOptions
    from gradscope.diagnostics.claims.measure import measure_claims as measure_claims
    from gradscope.diagnostics.compare.measure import compare_runs as compare_runs
    from gradscope.diagnostics.degeneracy.group_rewards import DegeneracyOptions as DegeneracyOptions
    from gradscope.diagnostics.degeneracy.measure import measure_degeneracy as measure_degeneracy
    from gradscope.diagnostics.passk.measure import measure_pass_at_k as measure_pass_at_k
    from gradscope.diagnostics.rank.measure import measure_rank as measure_rank
    from gradscope.diagnostics.rank.options import RankOptions as RankOptions
    from gradscope.diagnostics.reduce import reduce_run as reduce_run
    from gradscope.diagnostics.replay.measure import replay_run as replay_run
    from gradscope.diagnostics.report.index import report_runs as report_runs
    from gradscope.diagnostics.report.measure import ReportOptions as ReportOptions
    from gradscope.diagnostics.report.measure import report_run as report_run
    from gradscope.diagnostics.spike.measure import measure_spike as measure_spike
    from gradscope.gradients.engine_options import EngineOptions as EngineOptions
    from gradscope.metrics.uncertainty.intervals import Resampling as Resampling
    from gradscope.rollouts.read_options import ColumnNames as ColumnNames
    from gradscope.rollouts.read_options import ReadOptions as ReadOptions
    from gradscope.rollouts.readers.detect import read_run as read_run
    from gradscope.shown import Views
    from gradscope.training.config import TrainConfig as TrainConfig
    from gradscope.training.train import train as train

_HOMES = {
    "ColumnNames": "gradscope.rollouts.read_options",
    "CheckSettings": "gradscope.diagnostics.check.requirements",
    "ClaimOptions": "gradscope.diagnostics.claims.evidence",
    "DegeneracyOptions": "gradscope.diagnostics.degeneracy.group_rewards",
    "EngineOptions": "gradscope.gradients.engine_options",
    "RankOptions": "gradscope.diagnostics.rank.options",
    "ReadOptions": "gradscope.rollouts.read_options",
    "ReportOptions": "gradscope.diagnostics.report.measure",
    "Resampling": "gradscope.metrics.uncertainty.intervals",
    "TrainConfig": "gradscope.training.config",
    "advantage_formulation": "gradscope.advantages.formulation",
    "check_run": "gradscope.diagnostics.check.measure",
    "compare_runs": "gradscope.diagnostics.compare.measure",
    "measure_claims": "gradscope.diagnostics.claims.measure",
    "measure_degeneracy": "gradscope.diagnostics.degeneracy.measure",
    "measure_pass_at_k": "gradscope.diagnostics.passk.measure",
    "measure_rank": "gradscope.diagnostics.rank.measure",
    "measure_spike": "gradscope.diagnostics.spike.measure",
    "read_run": "gradscope.rollouts.readers.detect",
    "reduce_run": "gradscope.diagnostics.reduce",
    "replay_run": "gradscope.diagnostics.replay.measure",
    "report_run": "gradscope.diagnostics.report.measure",
    "report_runs": "gradscope.diagnostics.report.index",
    "train": "gradscope.training.train",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """A public function or record of options, imported on first use (PEP 562).

    Raises:
        AttributeError: There is no such name.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'gradscope' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The names that TAB and ``help(gradscope)`` list: the public ones, imported or not yet."""
    return sorted(__all__)


show_by(lambda: cast("Views", import_module("gradscope.notebook")))
