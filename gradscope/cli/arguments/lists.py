"""Several values in one option: `grpo,sign`, `1e-4,2e-4`, seeds `0-4`."""

from __future__ import annotations

from gradscope.errors import UsageError


def parse_names(text: str | None) -> tuple[str, ...]:
    """Names between commas; none for None.

    Returns:
        The names.

    Raises:
        UsageError: A name is empty.

    Example:
        >>> parse_names("grpo, sign")
        ('grpo', 'sign')
    """
    names = () if text is None else tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise UsageError(f"{text!r} names nothing between two commas.", hint="Write --advantage grpo,sign")
    return names


def parse_numbers(name: str, text: str | None) -> tuple[float, ...]:
    """Numbers between commas; none for None. Messages call them by ``name``.

    Returns:
        The numbers.

    Raises:
        UsageError: One is no number.

    Example:
        >>> parse_numbers("learning_rate", "1e-4,0.002")
        (0.0001, 0.002)
    """
    try:
        return () if text is None else tuple(float(part) for part in text.split(","))
    except ValueError as error:
        hint = f"Write --{name.replace('_', '-')} 1e-4,2e-4"
        raise UsageError(f"{name} is {text!r}, which is no number or list of numbers.", hint=hint) from error


def parse_seeds(text: str | None) -> tuple[int, ...]:
    """Seeds between commas, or from one to another; none for None.

    Returns:
        The seeds.

    Raises:
        UsageError: It is neither.

    Example:
        >>> parse_seeds("0-2,7")
        (0, 1, 2, 7)
    """
    seeds: list[int] = []
    for part in () if text is None else text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UsageError(f"{text!r} are no seeds.", hint="Write --seeds 0-4, or --seeds 0,1,2")
        seeds += range(int(first), int(last if dash else first) + 1)
    return tuple(seeds)
