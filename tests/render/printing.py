import io

from rich.console import Console


def printed(renderable: object, width: int = 80) -> str:
    """What an ordinary console shows, its markup and emoji on: the tables must not depend on ours."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(renderable)
    return stream.getvalue()
