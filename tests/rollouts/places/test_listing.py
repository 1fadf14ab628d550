from __future__ import annotations

from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.places import listing
from gradscope.rollouts.places.listing import list_place


def names(url: str) -> list[str]:
    return [entry.name for entry in list_place(url).entries]


def test_a_folder_is_listed_with_all_below_it(memory: Any) -> None:
    memory.pipe({"/run/a.jsonl": b"{}\n", "/run/sub/deep/b.jsonl": b"{}\n", "/running/c.jsonl": b"{}\n"})
    found = list_place("memory://run/")
    assert [entry.name for entry in found.entries] == ["a.jsonl", "sub/deep/b.jsonl"]
    assert [entry.size for entry in found.entries] == [3, 3]
    assert all(entry.mark for entry in found.entries)
    assert (found.root, found.pattern, found.is_file) == ("memory://run", "", False)


def test_a_file_is_a_place_of_its_own(memory: Any) -> None:
    memory.pipe({"/run/a.jsonl": b"{}\n"})
    assert list_place("memory://run/a.jsonl").is_file


def test_a_glob_lists_what_fits(memory: Any) -> None:
    memory.pipe({"/run/a1.jsonl": b"{}\n", "/run/b1.jsonl": b"{}\n", "/run/sub/a2.jsonl": b"{}\n"})
    found = list_place("memory://run/a*.jsonl")
    assert [entry.name for entry in found.entries] == ["a1.jsonl"]
    assert (found.root, found.pattern) == ("memory://run", "a*.jsonl")


@pytest.mark.parametrize("url", ["memory://gone", "memory://gone/*.jsonl"])
def test_nothing_there_is_not_found(memory: Any, url: str) -> None:
    with pytest.raises(FileNotFoundError):
        list_place(url)


def test_a_name_that_would_leave_its_folder_is_refused(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe({"/run/a.jsonl": b"{}\n"})
    found = {"/run/../../x.jsonl": {"name": "/run/../../x.jsonl", "type": "file", "size": 1}}
    monkeypatch.setattr(type(memory), "find", lambda *_, **__: found)
    with pytest.raises(InputError, match="has a name that no folder can hold"):
        list_place("memory://run")


def test_links_are_followed_downwards_only(web: Any) -> None:
    (web.folder / "run" / "sub").mkdir(parents=True)
    (web.folder / "run" / "a.jsonl").write_text("{}\n")
    (web.folder / "run" / "sub" / "b c.jsonl").write_text("{}\n")
    (web.folder / "run" / "notes.txt").write_text("x")
    (web.folder / "page").mkdir()
    links = ("../run/a.jsonl", "?C=N;O=D", "https://elsewhere/x.jsonl", "/run/a.jsonl", "a.jsonl#top", "x/../../y")
    page = "".join(f'<a href="{link}">x</a>' for link in (*links, "own.jsonl"))
    (web.folder / "page" / "index.html").write_text(page)
    (web.folder / "page" / "own.jsonl").write_text("{}\n")
    found = list_place(f"{web.url}/run")
    assert [entry.name for entry in found.entries] == ["a.jsonl", "notes.txt", "sub/b%20c.jsonl"]
    assert [entry.size for entry in found.entries] == [3, None, 3]
    assert names(f"{web.url}/page/") == ["own.jsonl"]


def test_a_web_without_end_is_not_walked(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (web.folder / "run" / "sub").mkdir(parents=True)
    monkeypatch.setattr(listing, "_MOST_PAGES", 1)
    with pytest.raises(InputError, match="has more than 1 folders"):
        list_place(f"{web.url}/run")
