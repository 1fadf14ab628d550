import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gradscope.cli.output.delivery import DeliveryOptions, delivery, staged_folder, unfinished_folder
from gradscope.errors import OutputExistsError
from tests.cli.conftest import Cli
from tests.render.examples import HOSTILE, degeneracy_report, source


def test_a_folder_with_something_in_it_is_refused_before_any_work(cli: Cli, log: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    done = cli("degeneracy", log, "--output", tmp_path / "out")
    assert (done.code, done.out) == (2, "")
    assert "is not empty" in done.err
    assert "--force" in done.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_force_replaces_its_own_files_and_leaves_all_else(cli: Cli, log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    (folder / "degeneracy.json").write_text("old")
    assert cli("degeneracy", log, "--output", folder, "--force").code == 0
    assert (folder / "mine.txt").read_text() == "mine"
    assert (folder / "degeneracy.json").read_text() != "old"


def test_a_file_in_the_way_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(OutputExistsError, match="is a file"), staged_folder(tmp_path / "out", force=True):
        pass
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.json", "page.html"])
def test_a_folder_called_as_a_file_is_refused_unless_it_is_there(
    name: str, cli: Cli, log: Path, tmp_path: Path
) -> None:
    refused = cli("degeneracy", log, "--output", tmp_path / name)
    assert (refused.code, (tmp_path / name).exists()) == (2, False)
    assert f"{name} is the name of a file, where a folder is needed." in refused.err
    (tmp_path / name).mkdir()
    assert cli("degeneracy", log, "--output", tmp_path / name).code == 0


def test_what_a_command_reads_is_never_replaced(cli: Cli, log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "degeneracy.json").symlink_to(log)
    (folder / "degeneracy_by_step.csv").write_text("old")
    before = log.read_bytes()
    done = cli("degeneracy", log, "--output", folder, "--force")
    assert done.code == 2
    assert "degeneracy.json is what this command reads; nothing replaces that." in done.err
    assert (log.read_bytes(), (folder / "degeneracy_by_step.csv").read_text()) == (before, "old")
    assert cli("degeneracy", log, "--output", "/", "--force").code == 2


@pytest.mark.slow
def test_what_a_killed_command_left_goes_at_the_next_start(cli: Cli, log: Path, tmp_path: Path) -> None:
    (tmp_path / ".out.99999-0a1b2c.partial").mkdir()
    (tmp_path / ".out.99999-0a1b2c.partial" / "degeneracy.json").touch()
    (tmp_path / ".out.lock").write_text('{"process": 1, "host": "a", "since": ""}')
    assert cli("degeneracy", log, "--output", tmp_path / "out").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [log.name, "out"]


def move_by(monkeypatch: pytest.MonkeyPatch, move: Callable[[Path, Path], Path]) -> None:
    monkeypatch.setattr(Path, "replace", move)
    monkeypatch.setattr(os, "link", lambda file, target, **_: move(file, target))


@pytest.mark.slow
def test_a_folder_on_a_disk_of_its_own(cli: Cli, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def across(file: Path, target: Path) -> Path:
        if file.parent != target.parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return replace(file, target)

    move_by(monkeypatch, across)
    assert cli("degeneracy", log, "--output", tmp_path / "out").code == 0
    assert (tmp_path / "out" / "degeneracy.json").is_file()


def test_an_unwritable_disk_is_named(cli: Cli, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(file: Path, target: Path) -> Path:
        raise OSError(errno.EROFS, "Read-only file system", str(file))

    move_by(monkeypatch, read_only)
    done = cli("degeneracy", log, "--output", tmp_path / "out", "--quiet")
    assert done.code == 2
    assert f"error: Read-only file system ({tmp_path / 'out'}/" in done.err
    assert "hint: Ask for permission" in done.err


def test_an_exception_removes_what_was_staged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), staged_folder(tmp_path / "out", force=False) as folder:
        (folder / "in" / "no folder").touch()
    assert list(tmp_path.iterdir()) == []


def deliver(**options: object) -> None:
    with delivery(DeliveryOptions(**options)) as result:
        for sentence in ("halved the batch", "halved the batch", *source().missing):
            result.notice(sentence)
        result.deliver(degeneracy_report(num_steps=2))


def interrupted_after(num_steps: int, output: Path) -> None:
    """Ctrl-C when so many steps have been kept."""
    with delivery(DeliveryOptions(output=output)) as result:
        assert result.unfinished is not None
        for step in range(num_steps):
            result.unfinished.mkdir(exist_ok=True)
            (result.unfinished / f"step_{step:05d}.safetensors").write_bytes(b'[length]{"__metadata__":{"key":"kept"}}')
        raise KeyboardInterrupt


def test_a_table_goes_to_stdout_and_what_was_read_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    deliver()
    out, err = capsys.readouterr()
    assert out.startswith("66 of 160 groups")
    assert err.splitlines()[0] == "note: halved the batch"
    assert err.count("halved the batch") == err.count(source().missing[0]) == 1
    assert f"note: {source().inferred[0]}" in err  # with what was reported before it would be one of two, and folded
    assert f"read {source().path}: " in err


def test_json_is_all_that_stdout_shows_and_quiet_leaves_stderr_empty(capsys: pytest.CaptureFixture[str]) -> None:
    deliver(quiet=True, as_json=True)
    out, err = capsys.readouterr()
    assert (json.loads(out)["schema"], err) == ("gradscope/degeneracy", "")


@pytest.mark.slow
def test_of_many_files_only_the_document_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    deliver(output=tmp_path / "out")
    kinds = [path.suffix for path in (tmp_path / "out").iterdir()]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("wrote ")]
    counts = ", ".join(f"{kinds.count(f'.{kind}')} {kind}" for kind in ("csv", "png", "svg"))
    assert line == f"wrote {tmp_path / 'out'}: degeneracy.json, {counts}"


def test_few_files_are_named_as_they_stand_in_their_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with delivery(DeliveryOptions(output=tmp_path / "out")) as result:
        assert result.staging is not None
        (result.staging / "deep").mkdir()
        for name in ("b.csv", "deep/a.csv"):
            (result.staging / name).touch()
    assert capsys.readouterr().err == f"wrote {tmp_path / 'out'}: b.csv, deep/a.csv\n"


@pytest.mark.parametrize(
    ("num_steps", "words"), [(0, ""), (1, "the 1 finished step in "), (2, "the 2 finished steps in ")]
)
def test_ctrl_c_says_how_to_resume(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, num_steps: int, words: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_after(num_steps, tmp_path / "out")
    err = capsys.readouterr().err
    assert words in err
    assert bool(err) == any(tmp_path.iterdir()) == (num_steps > 0)
    assert not (tmp_path / "out").exists()


def test_a_notice_of_a_hostile_log_is_one_escaped_line(capsys: pytest.CaptureFixture[str]) -> None:
    with delivery(DeliveryOptions()) as result:
        result.notice(HOSTILE)
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert len(err.splitlines()) == 1


def test_beside_two_inputs_even_one_note_is_folded(cli: Cli, samples: tuple[Path, Path]) -> None:
    first, two = cli("passk", samples[0]), cli("passk", *samples)
    assert "note: Prompts are told apart by task_id." in first.err
    assert two.err.splitlines()[1].endswith("; 1 note: --show notes")
    assert "note: Prompts are told apart" in cli("passk", *samples, "--show", "notes").err


def test_an_evaluation_that_did_not_succeed_is_a_warning_and_no_folded_note(capsys: pytest.CaptureFixture[str]) -> None:
    cut = replace(source(), unfinished="was cancelled: 12 of 32 samples")
    cut = replace(cut, missing=(*cut.missing, f"The evaluation {cut.unfinished}."))
    with delivery(DeliveryOptions()) as result:
        result.deliver(replace(degeneracy_report(), source=cut))
    captured = capsys.readouterr()
    assert captured.err.count("The evaluation was cancelled: 12 of 32 samples.") == 1
    assert "warning: The evaluation was cancelled" in captured.err
    assert "the evaluation was cancelled: 12 of 32 samples" in " ".join(captured.out.split())


@pytest.mark.parametrize("kind", ["link", "file", "notes.txt", "step_00001.safetensors", "another user's"])
def test_steps_of_somebody_else_are_neither_used_nor_removed(tmp_path: Path, kind: str) -> None:
    hidden, theirs = tmp_path / ".out.unfinished", tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "step_00001.safetensors").write_text("theirs")
    if kind == "link":
        hidden.symlink_to(theirs)
    elif kind == "file":
        hidden.write_text("theirs")
    else:
        hidden.mkdir()
        if kind == "another user's":
            if os.getuid():
                pytest.skip("only root gives files away")
            os.chown(hidden, 65534, 65534)
        else:
            (hidden / kind).write_text("of theirs, not ours")

    def state() -> list[tuple[object, ...]]:
        return sorted((path, path.lstat()[:7], path.lstat().st_mtime_ns) for path in tmp_path.rglob("*"))

    before = state()
    reason = "is another user's" if kind == "another user's" else "holds something else"
    with (
        pytest.raises(OutputExistsError, match=f"is where finished steps are kept, and {reason}"),
        unfinished_folder(tmp_path / "out", force=True),
    ):
        pass
    assert state() == before
