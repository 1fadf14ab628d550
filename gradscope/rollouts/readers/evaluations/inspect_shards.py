"""Which files of a folder are inspect_ai's logs: a run that was sharded has a log a worker in ``<name>.shards/<k>/``.

They are merged into ``<name>.eval`` at the end. Until that has succeeded the shards count and it does not; of a shard
that was tried again, the last attempt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gradscope.rollouts.readers.evaluations.inspect_archive import SUFFIX, has_succeeded
from gradscope.rollouts.readers.parsing.tables import files_like, natural

_SHARDS = ".shards"
_RECOVERED = "-recovered"
_CREATED = re.compile(r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]-[0-9][0-9]-[0-9][0-9]")


def find_logs(path: Path) -> dict[Path, str]:
    """The logs that a path means, by their names: whether each is one is for ``is_log`` to say.

    Args:
        path: A log, a folder of logs, the shards of one, one of these, or a glob.

    Returns:
        File -> the evaluation that it is of, in order; the shards of one run are of one evaluation.
    """
    here = path.resolve()
    if path.is_dir() and here.name.endswith(_SHARDS):
        return _current(path)
    if path.is_dir() and here.parent.name.endswith(_SHARDS):
        return dict.fromkeys(_last_attempt(files_like(path, f"*{SUFFIX}")), _evaluation(here.parent))
    files = files_like(path, f"*{SUFFIX}", "*.json")
    found = {file: file.stem for file in files}
    for shards in sorted(path.glob(f"*{_SHARDS}")) if path.is_dir() else ():
        merged = [path / f"{_evaluation(shards)}{ending}{SUFFIX}" for ending in ("", _RECOVERED)]
        if not any(map(has_succeeded, merged)):
            found = {file: name for file, name in found.items() if file not in merged} | _current(shards)
    return found


def _current(shards: Path) -> dict[Path, str]:
    folders = sorted((folder for folder in shards.glob("[!.]*") if folder.is_dir()), key=natural)
    logs = (log for folder in folders for log in _last_attempt(files_like(folder, f"*{SUFFIX}")))
    return dict.fromkeys(logs, _evaluation(shards))


def _evaluation(shards: Path) -> str:
    return shards.name.removesuffix(_SHARDS)


def _last_attempt(logs: Iterable[Path]) -> list[Path]:
    return sorted(logs, key=_when)[-1:]


def _when(log: Path) -> tuple[str, bool, float]:
    """When an attempt began, by its name; one without a time comes first."""
    created = _CREATED.match(log.name)
    return (created[0] if created else "", log.stem.endswith(_RECOVERED), log.stat().st_mtime)
