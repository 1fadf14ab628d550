from pathlib import Path

import pytest

from gradscope import copies, errors
from gradscope.errors import GradscopeError, InputError, VerificationError

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, GradscopeError) and kind is not VerificationError
]


def test_an_error_about_a_copy_names_what_was_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_NAMES", {})
    copies.note_copy(tmp_path / "run", "s3://bucket/run")
    error = InputError(f"{tmp_path}/run/1.jsonl is empty.", hint=f"Name {tmp_path}/run.")
    assert (str(error), error.message, error.hint) == (
        *["s3://bucket/run/1.jsonl is empty."] * 2,
        "Name s3://bucket/run.",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_carries_message_and_hint(kind: type[GradscopeError]) -> None:
    with pytest.raises(GradscopeError, match=r"It is broken\.") as caught:
        raise kind("It is broken.", hint="Mend it.")
    assert (caught.value.message, caught.value.hint, str(caught.value)) == (
        "It is broken.",
        "Mend it.",
        "It is broken.",
    )
    assert kind("It is broken.").hint is None


def test_what_disagrees_is_to_be_reported() -> None:
    assert "report this with the model's config.json" in str(VerificationError("The norms differ by 3 %.").hint)
