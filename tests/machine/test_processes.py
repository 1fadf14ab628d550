import pytest

from gradscope.machine import processes


@pytest.fixture(autouse=True)
def nothing_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_told", [])
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_launcher_there_is_one_process_and_it_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")  # left over from another program
    assert (processes.num_processes(), processes.process_index(), processes.speaks()) == (1, 0, True)


def test_of_several_the_main_one_speaks_until_something_else_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    assert (processes.num_processes(), processes.process_index(), processes.speaks()) == (4, 2, False)
    processes.settle_speaker(speaks=True)
    assert processes.speaks()
    processes.settle_speaker(speaks=False)
    processes.tell_own_error()
    assert not processes.speaks()


def test_who_meets_an_error_alone_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    processes.tell_own_error()
    assert processes.speaks()
