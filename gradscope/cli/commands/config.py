"""`gradscope config`: the remembered options of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradscope.cli.output.streams import show_line

EXAMPLES = ("gradscope config", "gradscope config outputs/my-run")
COMMON = ()

RunArgument = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="A run; without one, all that this folder keeps.", show_default=False),
]


def config(run: RunArgument = None) -> None:
    """Which options are remembered for a run: reading options, such as --reader or --initial, once they are given.

    They are in gradscope.toml next to the run or in its project's folder; delete a line there to forget it. Options on
    the command line win over them, and GRADSCOPE_REMEMBER=0 ignores them.
    """
    from gradscope.cli.remembered import FILE, relative_to_cwd, remembered_for, remembered_in

    files = [Path(FILE), *sorted(Path().glob(f"*/{FILE}"))]
    remembered = remembered_for(run) if run is not None else [entry for file in files for entry in remembered_in(file)]
    for entry in remembered:
        owner = "" if entry.owner is None else f" (of user {entry.owner})"
        show_line(f"{relative_to_cwd(entry.run)}: {entry.spelled()}  # {entry.file}{owner}")
    if not remembered:
        show_line(f"Nothing is remembered for {run or 'runs here'}.")
        show_line("Reading options, such as --initial or --reader, are remembered once they are given.")
