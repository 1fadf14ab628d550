from __future__ import annotations

import pytest

from gradscope.errors import InputError, UsageError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import FORMATS, read_run
from tests.conftest import REPOSITORY

LOGS = REPOSITORY / "fixtures" / "logs"


def test_an_unknown_format_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="There is no format 'trk'") as caught:
        read_run(LOGS / "trl", ReadOptions(reader="trk"))
    assert "Did you mean 'trl'?" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="There is no format 'x'"):
        read_run(LOGS / "trl", ReadOptions(reader="x"))


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ("gradscope", r"has no readable manifest\.json"),
        ("trl", r"holds no completions/completions_"),
        ("verl", r"has no usable rows; set aside"),
        ("samples", r"has no column that is known to be a reward"),
        ("generic", r"has no column that is known to be a reward"),
    ],
)
def test_a_forced_format_that_does_not_fit_says_what_is_missing(format: str, message: str) -> None:
    assert format in {reader.name for reader in FORMATS}
    with pytest.raises(InputError, match=message):
        read_run(LOGS / "README.md", ReadOptions(reader=format))
