"""Models of the Hugging Face hub where there is no network: said at once, before the loaders try for a minute."""

from __future__ import annotations

import os
import re
import socket
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from gradscope.errors import InputError

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_SECONDS = 5
_NO = {"", "0", "false", "no", "off"}


def require_hub(name: str, *, may_ask: bool = True) -> None:
    """Refuse a hub id whose model is neither in the cache nor to be had.

    Args:
        name: A folder, which is not looked at, or a hub id.
        may_ask: Whether the hub may be asked: not where only a file names the id.

    Raises:
        InputError: The hub may not be asked, cannot be reached, or HF_HUB_OFFLINE is set, and the cache does not hold
            the model.
    """
    if Path(name).exists() or not _HUB_ID.fullmatch(name):
        return
    if not may_ask:
        if _is_cached(name):
            return
        raise InputError(
            f"The base model is named {name}, which is no folder here, and the hub's cache does not hold it.",
            hint=f"Name its folder, or let it be downloaded: --model {name}",
        )
    is_offline = os.environ.get("HF_HUB_OFFLINE", "").lower() not in _NO
    if (not is_offline and _is_reachable(_endpoint())) or _is_cached(name):
        return
    host = urllib.parse.urlsplit(_endpoint()).hostname
    raise InputError(
        f"There is no folder {name}, the hub's cache does not hold that model, and "
        f"{'HF_HUB_OFFLINE is set' if is_offline else f'{host} cannot be reached'}.",
        hint="Unset HF_HUB_OFFLINE to download it, or name a folder."
        if is_offline
        else "Name a folder, or download it where there is network; HF_HUB_OFFLINE=1 then reads the cache alone.",
    )


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def _is_reachable(address: str) -> bool:
    """Whether something answers; where only the loaders could tell, such as behind a SOCKS proxy, they shall try."""
    if "all" in urllib.request.getproxies():
        return True
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=_SECONDS).close()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        return not isinstance(error.reason, socket.gaierror | ConnectionError)
    except (OSError, ValueError):
        return True
    return True


def _is_cached(name: str) -> bool:
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError):
        return False
    return True
