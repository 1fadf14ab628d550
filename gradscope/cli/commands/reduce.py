"""`gradscope reduce`: a part of a log as the table of its rewards."""

from __future__ import annotations

from typing import Annotated

from gradscope.cli.arguments import options
from gradscope.cli.output.streams import progress_bar, show_line
from gradscope.option import Option
from gradscope.rollouts.read_options import ReadOptions

EXAMPLES = (
    "gradscope reduce outputs/my-run -o parts",
    "gradscope reduce outputs/my-run/rollouts/17.jsonl -o parts",
    "gradscope degeneracy parts",
)
COMMON = ("--output", "--reader", "--reward-column", "--strict")

OutputOption = Annotated[str, Option("The folder of the parts.", "DIR", panel="Output", flags=("--output", "-o"))]


@options.with_records(leave_out=("model", "initial_weights", "completion_ids", "metric_columns", "metric_run"))
def reduce(run: options.RunArgument, output: OutputOption, *, read: ReadOptions) -> None:
    """The rewards of a log, or of some of its files, as one small file: a part.

    A folder of parts is a log to degeneracy, passk, check and report, which give the same numbers as for the full log.
    Each part can be written by another machine. Texts, token ids and weights stay with the log.
    """
    from gradscope.diagnostics.reduce import reduce_run

    with progress_bar(quiet=False) as progress:
        part = reduce_run(run, output, read=read, progress=progress)
    show_line(str(part))
