import subprocess
import sys

import pytest

from benchmarks.supply import COMMANDS, loaded

HEAVY = {"torch", "transformers", "duckdb", "pandas", "datasets", "trl", "peft", "accelerate", "matplotlib"}
FROM_LOGS = ("`degeneracy`", "`passk`", "`compare`", "`check`")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "unloaded"),
    [(("`--help`",), HEAVY | {"numpy", "scipy", "pyarrow", "pydantic"}), (FROM_LOGS, HEAVY | {"fsspec", "aiohttp"})],
)
def test_what_a_command_does_not_need_is_not_loaded(names: tuple[str, ...], unloaded: set[str]) -> None:
    result = set(loaded(*(COMMANDS[name] for name in names)))
    assert "typer" in result
    assert not unloaded & result


def test_little_is_loaded_before_ctrl_c_has_an_answer() -> None:
    code = "import sys; before = {*sys.modules}; import gradscope.__main__; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded_by_us = {name.partition(".")[0] for name in done.stdout.split()}
    assert "gradscope" in loaded_by_us
    assert not loaded_by_us & {"typer", "ctypes", "concurrent", "logging"}
