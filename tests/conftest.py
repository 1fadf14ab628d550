"""Shared fixtures. Oracles live in files that nobody here wrote: ``shared/data`` beside the checkout, where present."""

import atexit
import functools
import gc
import importlib.metadata
import os
import random
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.sources import cache, memory, web
from tests.trained import short_run, tiny_run

__all__ = ["cache", "memory", "short_run", "tiny_run", "web"]

REPOSITORY = Path(__file__).resolve().parent.parent
LOGS = REPOSITORY / "fixtures" / "logs"
TRAINED = {"short_run", "tiny_run"}  # fixtures that train; a test that asks for one is slow

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["GRADSCOPE_REMEMBER"] = "0"  # or options of one test would be those of the next
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the workers share the cores, and tiny models need one
gc.set_threshold(10_000, 10, 10)  # as the console script does
# accelerate looks for PEFT ten times an update, by what its package says of itself: a twentieth of each training
importlib.metadata.metadata = functools.cache(importlib.metadata.metadata)
_SLOW_MODULE = re.compile(r"^pytestmark = .*\bmark\.slow\b", re.M)
_num_frozen = 0  # modules that garbage collection leaves out


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers or as many as asked for; none for named files: each takes seconds to import what it needs."""
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return 0
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS", 2))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """All modules that fork processes go to one worker: the server that forks takes eight seconds to import."""

    class OneServer(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return "forks" if _forks(REPOSITORY / scope) else scope

    return OneServer(config, log) if config.getvalue("dist") == "loadscope" else None


@functools.cache
def _forks(file: Path) -> bool:
    """Whether a module of tests starts processes by ``tests/forked.py``, or those of a grid."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    names = r"^from .* import .*\b(ForkedPython|by_two|start_processes|train_grid)\b|\bforkserver\b"
    return re.search(names, text, re.M) is not None


def _in_fast_lane(config: pytest.Config) -> bool:
    return "not slow" in config.option.markexpr


def pytest_configure(config: pytest.Config) -> None:
    """Properties wait for no clock, and have fewer examples in the fast lane."""
    settings.register_profile("ours", max_examples=15 if _in_fast_lane(config) else 30, deadline=None)
    settings.load_profile("ours")
    config.pluginmanager.register(_Doctests())
    if hasattr(config, "workerinput"):  # whose exit code nobody asks for
        atexit.register(os._exit, 0)  # to take down all that tests imported takes three seconds
    else:
        # libraries in C++ report leaks of what is not taken down; last of all, for pytest collects twice
        config.add_cleanup(gc.unfreeze)


class _Doctests:
    """Leaves out what has no doctest: to look through all objects of the package takes a second a worker."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        is_package = collection_path.suffix == ".py" and REPOSITORY / "gradscope" in collection_path.parents
        return True if is_package and ">>>" not in collection_path.read_text("utf-8") else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave modules and tests, which stay to the end, out of garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Import no module in vain: the tests have no doctests, and the fast lane has nothing of modules that are slow."""
    collectors = yield
    is_named = any(".py" in argument for argument in parent.config.args)
    if _in_fast_lane(parent.config) and not is_named and _SLOW_MODULE.search(file_path.read_text("utf-8")):
        return []
    return [collector for collector in collectors if type(collector) is pytest.Module]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with slow tests first, so that no worker is left with one of them at the end."""
    for item in items:
        if TRAINED & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
    _keep_first_cases_fast(items)
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)


def _keep_first_cases_fast(items: list[pytest.Item]) -> None:
    """Of a test that many models or logs go through, the fast lane has the first; all others are slow."""
    seen = set[str]()
    for item in items:
        test, _, case = item.nodeid.partition("[")
        if case and test.startswith(("tests/gradients/", "tests/rollouts/")):
            if test in seen:
                item.add_marker("slow")
            seen.add(test)


def _freeze_late_imports() -> None:
    """Leave what tests imported out of garbage collection too: TRL asks for a full one after each training."""
    global _num_frozen
    if len(sys.modules) > _num_frozen + 100:
        gc.freeze()
        _num_frozen = len(sys.modules)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """The same random numbers on every run: PyTorch starts each process with a seed of its own."""
    _freeze_late_imports()
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        # torch.manual_seed takes two milliseconds to note its whole stack for each kind of device
        torch.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A folder below two that hold nothing else: readers look above a log, where folders of all other tests lie."""
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data with known answers; the test is skipped where it is absent."""
    folder = Path(os.environ.get("GRADSCOPE_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("needs the real data folder (shared/data beside the checkout, or GRADSCOPE_SHARED_DATA)")
    return folder
