from gradscope.render.terminal.explain import catalog_markdown
from tests.cli.conftest import Cli


def test_the_catalogue_is_listed_and_one_metric_explained(cli: Cli) -> None:
    assert "effective_rank" in cli("explain").out
    page = cli("explain", "pass@4")
    assert page.code == 0
    assert "pass@k (pass@4)" in page.out


def test_a_formulation_is_explained_with_its_constant(cli: Cli) -> None:
    done = cli("explain", "sign:c=0.5")
    assert done.code == 0
    assert "2 r - 1, and -0.5 for every rollout of a group without a success" in done.out


def test_markdown_is_of_the_catalogue_and_never_of_one_metric(cli: Cli) -> None:
    assert cli("explain", "--markdown") == (0, catalog_markdown(), "")
    done = cli("explain", "stable_rank", "--markdown")
    assert (done.code, done.out) == (2, "")
    assert "--markdown prints the whole catalogue, not one metric." in done.err
