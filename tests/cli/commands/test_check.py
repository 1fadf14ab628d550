import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.rollouts.readers.lines import write_lines


def test_what_does_not_hold_exits_1_with_the_next_step(cli: Cli, log: Path) -> None:
    done = cli("check", log, "--require", "frac_reward_zero_std <= 0.5", "--json")
    assert done.code == 1
    document = json.loads(done.out)
    assert document["schema"] == "gradscope/check"
    (verdict,) = document["result"]["verdicts"]
    assert verdict["outcome"] == "fail"
    assert verdict["next_step"]
    assert list(document["definitions"]) == ["frac_reward_zero_std"]


def test_the_next_command_looks_at_the_first_open_requirement(cli: Cli, log: Path) -> None:
    held, failed = ("--require", "pass_rate >= 0"), ("--require", "frac_reward_zero_std <= 0.5")
    assert cli("check", log, *held).out.splitlines()[-1] == f"$ gradscope report {log}"
    done = cli("check", log, *held, *failed)
    assert done.out.splitlines()[-1] == f"$ gradscope degeneracy {log}"
    assert "Look closer" not in done.out


def test_what_cannot_be_decided_exits_1_unless_that_is_allowed(cli: Cli, log: Path) -> None:
    arguments = ("check", log, "--require", "frac_reward_zero_std <= 1", "--require", "effective_rank >= 2")
    done = cli(*arguments)
    assert (done.code, done.out.startswith("Check: unknown")) == (1, True)
    assert "UNKNOWN effective_rank >= 2 —" in " ".join(done.out.split())
    allowed = cli(*arguments, "--allow-unknown", "effective_rank")
    assert (allowed.code, "UNKNOWN (allowed)  effective_rank >= 2" in allowed.out) == (0, True)


def test_requirements_come_from_a_file(cli: Cli, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(log.parent)
    Path("ci.toml").write_text('[check]\nrequire = ["frac_all_pass >= 0.9"]\n')
    assert "FAIL  frac_all_pass >= 0.9" in cli("check", log, "--config", "ci.toml").out
    Path("pyproject.toml").write_text("[project]\nname = 'x'\n")
    Path("gradscope.toml").write_text('[check]\nrequire = ["frac_all_pass <= 0.9"]\n')
    assert cli("check", log).code == 0
    Path("gradscope.toml").unlink()
    Path("pyproject.toml").write_text('[tool.gradscope.check]\nrequire = ["frac_all_pass >= 0.9"]\n')
    assert cli("check", log).code == 1


def test_files_of_a_failed_check_are_kept(cli: Cli, log: Path, tmp_path: Path) -> None:
    assert cli("check", log, "--require", "pass_rate > 0.9", "--output", tmp_path / "out").code == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["check.json", "check_verdicts.csv"]


def test_a_baseline_is_written_and_held_against(cli: Cli, log: Path, tmp_path: Path) -> None:
    base = tmp_path / "ci" / "baseline.json"
    arguments = ("check", log, "--track", "frac_reward_zero_std", "--baseline", base)
    written = cli(*arguments, "--update-baseline")
    assert (written.code, base.is_file()) == (0, True)
    assert written.out.splitlines()[:2] == ["Check: pass. Nothing was required.", ""]
    assert f"wrote {base}" in written.err
    done = cli(*arguments)
    assert done.code == 0
    assert re.search(r"PASS  change of frac_reward_zero_std  \+0 \[-", done.out)


def test_below_a_baseline_that_failed_stands_the_command_alone(cli: Cli, log: Path, tmp_path: Path) -> None:
    base, rows = tmp_path / "baseline.json", ({"prompt_id": "p", "group_id": "p", "reward": n % 2} for n in range(4))
    better = write_lines(tmp_path / "better.jsonl", *rows)
    assert cli("check", better, "--track", "frac_reward_zero_std", "--baseline", base, "--update-baseline").code == 0
    done = cli("check", log, "--track", "frac_reward_zero_std", "--baseline", base, "--decide-by", "value")
    assert (done.code, done.out.splitlines()[-1]) == (1, f"$ gradscope degeneracy {log}")


def test_a_baseline_is_replaced_by_force_alone_and_nothing_else_ever(cli: Cli, log: Path, tmp_path: Path) -> None:
    base, before = tmp_path / "baseline.json", log.read_bytes()
    arguments = ("check", log, "--track", "pass_rate", "--update-baseline", "--quiet", "--baseline")
    assert cli(*arguments, base).code == 0
    written = base.read_bytes()
    done = cli(*arguments, base)
    assert (done.code, done.out, base.read_bytes()) == (2, "", written)
    assert "baseline.json already exists" in done.err
    assert cli(*arguments, base, "--force").code == 0
    (tmp_path / "link").symlink_to(log)
    (tmp_path / "settings.toml").write_text("[check]\n")
    for other in (log, tmp_path / "link", tmp_path / "settings.toml"):
        for force in ((), ("--force",)):
            done = cli(*arguments, other, *force)
            assert (done.code, done.out) == (2, "")
        assert "is no baseline, and --force replaces baselines only" in done.err
    assert log.read_bytes() == before
    assert cli(*arguments, tmp_path, "--force").code == 2
    base.write_bytes(written[: len(written) // 2])
    assert cli("check", log, "--track", "pass_rate", "--baseline", base).code == 2
    assert cli(*arguments, base, "--force").code == 0
    assert base.read_bytes() == written


def test_github_gets_notes_and_a_summary(cli: Cli, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    done = cli("check", log, "--require", "pass_rate > 0.1", "--format", "github")
    assert done.code == 0
    assert done.out.startswith("::notice title=PASS pass_rate > 0.1::")
    assert summary.read_text().startswith("before\n### gradscope check: pass\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "absent" / "summary.md"))
    done = cli("check", log, "--require", "pass_rate > 0.1", "--format", "github")
    assert done.code == 0
    assert "no summary was written to " in done.err
    document = cli("check", log, "--require", "pass_rate > 0.1", "--format", "json")
    assert json.loads(document.out)["result"]["outcome"] == "pass"


def test_a_file_sets_the_whole_gate(cli: Cli, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(log.parent)
    Path("gradscope.toml").write_text(
        '[check]\nrequire = ["pass_rate > 0.1", "pass@8 > 0"]\nallow_unknown = ["pass@8"]\nbaseline = "base.json"\n'
    )
    assert cli("check", log, "--update-baseline").code == 0
    done = cli("check", log)
    assert done.code == 0
    assert "pass@8 against the baseline " in done.out
    assert " change of pass_rate  " in done.out
    Path("gradscope.toml").write_text('[check]\ntrack = ["pass_rate"]\nbaseline = "track.json"\n')
    assert cli("check", log, "--update-baseline").code == 0
    assert "pass_rate" in Path("track.json").read_text()


def test_metrics_without_an_interval_are_named_in_a_new_baseline(cli: Cli, tiny_run: Path, tmp_path: Path) -> None:
    names = ("--track", "grad_norm", "--track", "frac_reward_zero_std")
    written = cli("check", tiny_run, *names, "--baseline", tmp_path / "b.json", "--update-baseline")
    assert written.code == 0
    assert "note: grad_norm has no interval, so a change of it will be undecided" in written.err
    assert "frac_reward_zero_std has no interval" not in written.err
    again = cli("check", tiny_run, *names, "--baseline", tmp_path / "b.json")
    assert (again.code, again.out.splitlines()[0]) == (0, "Check: pass. Of 2 requirements: 2 held.")


def test_requirements_may_need_gradients(cli: Cli, tiny_run: Path) -> None:
    requirements = ("replay_grad_norm_error <= 1e-5", "effective_rank >= 1", "pass@4 >= 0")
    done = cli("check", tiny_run, *(word for text in requirements for word in ("--require", text)))
    assert (done.code, done.out.splitlines()[0]) == (0, "Check: pass. Of 3 requirements: 3 held.")
