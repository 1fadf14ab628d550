import io
from collections.abc import Sequence

from rich.console import Console


def printed(renderable: object, width: int = 80) -> str:
    """The text of an ordinary console, its markup and emoji on: the tables must not depend on ours."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(renderable)
    return stream.getvalue()


def contrast(*colors: str | Sequence[int]) -> float:
    """The contrast ratio of two colors by WCAG 2.1."""
    low, high = sorted(map(_luminance, colors))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str | Sequence[int]) -> float:
    parts = (part / 255 for part in (bytes.fromhex(color[1:]) if isinstance(color, str) else color))
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
