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
    found = set(loaded(*(COMMANDS[name] for name in names)))
    assert "typer" in found
    assert not unloaded & found
