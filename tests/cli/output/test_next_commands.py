import pytest

from gradscope.cli.output.next_commands import show_next, typed_again


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("my-run --output out --force", "my-run"),
        ("-oout my-run --output=out -q", "my-run -q"),
        ("--json my-run --show a --show=b --step 1", "my-run --step 1"),
        ("my-run --follow --every 2 --idle=5 --by window", "my-run --by window"),
        ("my-run --baseline b.json --update-baseline", "my-run --baseline b.json"),
        ("my-run --initial W0 --run-config args.json -o", "my-run --initial W0 --run-config args.json"),
    ],
)
def test_files_and_forms_of_output_are_left_out(typed: str, kept: str) -> None:
    assert typed_again(typed.split()) == kept.split()


def test_a_command_is_one_line_that_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    show_next(["rank", "a run", "--step", "1" * 100], ["explain", "effective_rank"])
    assert capsys.readouterr().out == (
        f"\n$ gradscope rank 'a run' --step {'1' * 100}\n$ gradscope explain effective_rank\n"
    )


def test_of_several_processes_none_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradscope.cli.output.next_commands.num_processes", lambda: 2)
    show_next(["explain"])
    assert capsys.readouterr().out == ""
