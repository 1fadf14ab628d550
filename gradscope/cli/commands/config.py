"""`gradscope config`: which options are kept for a run."""

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
    """Which options are kept for a run: those of reading, given once, as --reader or --initial.

    They stand in gradscope.toml beside the run or in its project's folder, and go when their line is deleted there.
    Options of the command line go before them. GRADSCOPE_REMEMBER=0 leaves them alone.
    """
    from gradscope.cli.remembered import FILE, from_here, kept_for, kept_in

    files = [Path(FILE), *sorted(Path().glob(f"*/{FILE}"))]
    found = kept_for(run) if run is not None else [kept for file in files for kept in kept_in(file)]
    for kept in found:
        owner = "" if kept.owner is None else f" (of user {kept.owner})"
        show_line(f"{from_here(kept.run)}: {kept.spelled()}  # {kept.file}{owner}")
    if not found:
        show_line(f"Nothing is kept for {run or 'runs here'}. --initial, --reader and the like will be.")
