from __future__ import annotations

from tests.cli.conftest import Cli


def test_explain_lists_and_explains(cli: Cli) -> None:
    assert "effective_rank" in cli("explain").out
    page = cli("explain", "pass@4")
    assert page.code == 0
    assert "pass@k (pass@4)" in page.out
