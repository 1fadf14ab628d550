"""`gradscope config`: which options are kept for a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradscope.cli.output.streams import say, show_line

EXAMPLES = ("gradscope config", "gradscope config outputs/my-run")
COMMON = ()

RunArgument = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="A run; without one, all that this folder keeps.", show_default=False),
]


def config(run: RunArgument = None) -> None:
    """Which options are kept for a run: reading options, such as --reader or --initial, are kept when given once.

    They stand in gradscope.toml beside the run or in its project's folder; delete a line there to forget it. Options on
    the command line win over them, and GRADSCOPE_REMEMBER=0 ignores them.
    """
    from gradscope.cli.remembered import FILE, from_here, kept_for, kept_in

    files = [Path(FILE), *sorted(Path().glob(f"*/{FILE}"))]
    found = kept_for(run) if run is not None else [kept for file in files for kept in kept_in(file)]
    for kept in found:
        owner = "" if kept.owner is None else f" (of user {kept.owner})"
        show_line(f"{from_here(kept.run)}: {kept.spelled()}  # {kept.file}{owner}")
    if not found:
        say(
            f"Nothing is kept for {run or 'runs here'}. --initial, --run-config, --reader, --reward-column and other "
            "reading options are kept once a command on a run is given them."
        )
