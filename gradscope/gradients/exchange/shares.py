"""Which process runs which of a step's rows.

Shapes: N rows, P processes.
"""

from __future__ import annotations

from collections.abc import Sequence


def deal_rows(lengths: Sequence[int], num_processes: int) -> list[tuple[int, ...]]:
    """Rows dealt out so that every process has about as many tokens: the longest first, each to who has least.

    The exchange makes inner products of rows wherever these were run, so groups need not stay together.

    Args:
        lengths: Tokens of each row, [N].
        num_processes: P.

    Returns:
        The rows of each process, in ascending order, [P]; none where there are fewer rows than processes.

    Example:
        >>> deal_rows([3, 9, 4, 8], 2)
        [(0, 1), (2, 3)]
    """
    shares: list[list[int]] = [[] for _ in range(num_processes)]
    tokens = [0] * num_processes
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        least = tokens.index(min(tokens))
        shares[least].append(row)
        tokens[least] += lengths[row]
    return [tuple(sorted(share)) for share in shares]
