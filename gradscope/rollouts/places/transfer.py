"""How far a server is trusted: where it may send us, how long it may be silent, and how much it may send."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from gradscope.errors import InputError
from gradscope.outside.limits import VARIABLE, in_mib
from gradscope.rollouts.places.urls import shown_url

_SILENCE = 60
"""Seconds without a byte after which a server is given up; a whole file may take as long as it does."""


class AtMost:
    """Counts the bytes of one answer.

    Args:
        limit: How many it may have.
        place: What is read, as it may be shown.
    """

    def __init__(self, limit: int, place: str) -> None:
        self._limit, self._left, self._place = limit, limit, place

    def add(self, number: int) -> None:
        """So many bytes more; an InputError where they are too many."""
        self._left -= number
        if self._left < 0:
            raise InputError(
                f"{self._place} sends more than {in_mib(self._limit)}, and more than it said.",
                hint=f"Where that is meant, set {VARIABLE}=4 to allow four times as much.",
            )


def told_of(add: Callable[[int], None]) -> Any:
    """What fsspec tells about one file, as calls with a number of bytes."""
    from fsspec.callbacks import Callback

    class Told(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            add(inc)

    return Told()


def web_options() -> dict[str, Any]:
    """What fsspec is to do with a web server: see what it redirects to, and end with it where it falls silent."""
    try:
        from aiohttp import ClientTimeout, TraceConfig
    except ImportError:  # what lacks is told where the file system is made
        return {}
    trace = TraceConfig()

    async def redirected(session: Any, context: Any, told: Any) -> None:
        location = told.response.headers.get("Location") or told.response.headers.get("URI") or ""
        refuse_inwards(str(told.url), str(told.url.join(type(told.url)(location))))

    trace.on_request_redirect.append(redirected)
    return {
        "client_kwargs": {
            "timeout": ClientTimeout(total=None, sock_connect=_SILENCE, sock_read=_SILENCE),
            "trace_configs": [trace],
        }
    }


def refuse_inwards(url: str, target: str) -> None:
    """Follow no redirect from outside to inside: to this machine, to its network, to what clouds answer machines alone.

    Args:
        url: What was asked.
        target: Where its server sends us.

    Raises:
        InputError: The host of ``target`` is nearer to this machine than that of ``url``, or is this machine under
            another port.
    """
    before, after = _origin(url), _origin(target)
    if after is None or (after != before and _nearness(after[0]) > min(_nearness(before[0]) if before else 0, 1)):
        raise InputError(
            f"{shown_url(url)} sends its readers to {shown_url(target)}, which is no place for a log from there.",
            hint="If that is where the log is, name it.",
        )


def _origin(url: str) -> tuple[str, int] | None:
    """Host and port; None where it is no URL of the web."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (parts.hostname, port) if parts.hostname else None


def _nearness(host: str) -> int:
    """0 for a host of the internet, 1 for one of a private network, 2 for this machine and what only it may ask."""
    try:
        found = {ip_address(str(address[4][0]).partition("%")[0]) for address in socket.getaddrinfo(host, None)}
    except OSError:
        return 0  # no such host: asking it fails by itself
    return max(map(_nearness_of, found))


def _nearness_of(address: IPv4Address | IPv6Address) -> int:
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast:
        return 2
    return int(not address.is_global)
