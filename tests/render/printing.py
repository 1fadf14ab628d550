from __future__ import annotations

import io

from rich.console import Console


def printed(renderable: object) -> str:
    """What an ordinary console of 80 columns shows, its markup and emoji on: the tables must not depend on ours."""
    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(renderable)
    return stream.getvalue()
