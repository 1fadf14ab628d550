import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.rollouts.readers.lines import write_lines


def test_a_log_becomes_a_page_and_a_list_of_findings(cli: Cli, log: Path, tmp_path: Path) -> None:
    page = tmp_path / "pages" / "log.html"
    done = cli("report", log, "--no-gradients", "--output", page)
    assert done.code == 0
    summary = r"\. Of 1\d questions this log answers 5 \(2 to look at: [a-z]+, [a-z]+; 1 fine; 2 undecided\)\."
    assert re.search(summary, " ".join(done.out.split()))
    assert "4 of 6 groups (66.7 %" in " ".join(done.out.split())
    assert max(len(line) for line in done.out.splitlines() if not line.startswith("$ ")) <= 80
    assert f"wrote {page}" in done.err
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [path.name for path in page.parent.iterdir()] == ["log.html"]


def test_the_command_that_is_named_looks_at_the_most_pressing_answer(cli: Cli, tmp_path: Path) -> None:
    rows = ({"step": step, "prompt_id": f"p{step}", "reward": step % 2 ^ n} for step in range(1, 21) for n in (0, 1))
    write_lines(tmp_path / "rollouts.jsonl", *rows)
    norms = ({"step": step, "grad_norm": 9.0 if step == 7 else 1 + 0.1 * (step % 4)} for step in range(1, 21))
    write_lines(tmp_path / "metrics.jsonl", *norms)
    done = cli("report", tmp_path, "--no-gradients", "--output", tmp_path / "page.html")
    assert "Step 7 stands out" in " ".join(done.out.split())
    assert "$ gradscope spike " in done.out


def test_a_page_is_not_laid_over_another(cli: Cli, log: Path, tmp_path: Path) -> None:
    page = tmp_path / "mine.html"
    page.write_text("mine")
    done = cli("report", log, "--output", page)
    assert (done.code, done.out, page.read_text()) == (2, "", "mine")
    assert "already exists" in done.err
    done = cli("report", log, "--output", page, "--force")
    assert (done.code, done.out, page.read_text()) == (2, "", "mine")
    assert "is no page, and --force replaces pages only" in done.err
    assert "is a folder" in cli("report", log, "--output", tmp_path).err
    no_page = cli("report", log, "--output", tmp_path / "page.json").err
    assert (
        f"page.json is not the name of a page.\nhint: Name an HTML file: --output {tmp_path / 'page.html'}" in no_page
    )
    for old in ("", "<!DOCTYPE html>\n<p>old"):
        page.write_text(old)
        assert cli("report", log, "--no-gradients", "--output", page, "--force", "--quiet").code == 0
        assert page.read_text() != old


def test_a_run_of_ours_answers_all_but_versions(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    """The page shows every token of the largest rollouts; without them the section says how to get them."""
    page = tmp_path / "run.html"
    done = cli("report", tiny_run, "--output", page, "--step", "all", "--max-tokens", "40", "--json")
    document = json.loads(done.out)
    result = document["result"]
    assert document["schema"] == "gradscope/report"
    assert len(result["sections"]) == 17
    assert "projection_share" in document["definitions"]
    assert result["recomputed"] == [1, 2]
    assert [section["name"] for section in result["sections"] if section["missing"]] == ["reward", "staleness"]
    tokens = next(section for section in result["sections"] if section["name"] == "tokens")
    strengths = [token["strength"] for text in tokens["texts"] for token in text["tokens"]]
    assert max(strengths) == 1.0
    assert f'<span class="{"up" if tokens["texts"][0]["tokens"][0]["is_raised"] else "down"} h' in page.read_text(
        "utf-8"
    )
    without = ("--step", "1", "--max-tokens", "0", "--json")
    left_out = json.loads(cli("report", tiny_run, "--output", tmp_path / "b.html", *without).out)
    missing = next(section["missing"] for section in left_out["result"]["sections"] if section["name"] == "tokens")
    assert "as asked (--max-tokens 0)" in missing


def test_two_runs_of_any_reader_are_set_side_by_side(cli: Cli, log: Path, tmp_path: Path) -> None:
    rows, page = [json.loads(line) for line in log.read_text().splitlines()], tmp_path / "beside.html"
    other = write_lines(tmp_path / "other.jsonl", *(row | {"reward": 1 - row["reward"]} for row in rows))
    done = cli("report", log, other, "--output", page)
    assert done.code == 0
    assert "other.jsonl against log.jsonl: " in " ".join(done.out.split())
    text = page.read_text(encoding="utf-8")
    assert "What differs from the first run?" in text
    assert text.count("data-over=") == 2


@pytest.mark.parametrize("option", [("--step", "1"), ("--max-tokens", "0"), ("--samples", "a.jsonl")])
def test_options_of_a_single_run_are_refused(cli: Cli, log: Path, tmp_path: Path, option: tuple[str, str]) -> None:
    done = cli("report", log, log, *option, "--output", tmp_path / "a.html")
    assert done.code == 2
    assert f"{option[0]} does not apply to several runs" in done.err
    assert not (tmp_path / "a.html").exists()


@pytest.mark.slow
def test_charts_are_written_for_slides(cli: Cli, log: Path, tmp_path: Path) -> None:
    slides = tmp_path / "slides"
    done = cli("report", log, "--no-gradients", "--output", tmp_path / "a.html", "--figures", slides)
    assert done.code == 0
    assert {"signal.png", "signal.svg", "dilution.png"} <= {path.name for path in slides.iterdir()}
    assert (slides / "signal.png").read_bytes().startswith(b"\x89PNG")
    assert f"wrote {tmp_path / 'a.html'} and the charts in {slides}" in done.err
    again = cli("report", log, "--no-gradients", "--output", tmp_path / "b.html", "--figures", slides)
    assert (again.code, (tmp_path / "b.html").exists()) == (2, False)


def test_the_page_opens_only_when_asked(cli: Cli, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    assert cli("report", log, "--no-gradients", "--output", tmp_path / "a.html").code == len(shown) == 0
    cli("report", log, "--no-gradients", "--output", tmp_path / "b.html", "--open")
    assert shown == [(tmp_path / "b.html").resolve().as_uri()]
