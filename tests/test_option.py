from typing import Annotated, get_type_hints

import pytest
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from gradscope.cli.output.delivery import DeliveryOptions
from gradscope.gradients.engine_options import EngineOptions
from gradscope.option import Option, options_of
from gradscope.rollouts.read_options import ColumnNames, ReadOptions

RECORDS = (ReadOptions, ColumnNames, EngineOptions, DeliveryOptions)


@pytest.mark.parametrize("record", RECORDS)
def test_an_option_has_a_flag_a_sentence_and_a_default(record: type) -> None:
    assert options_of(record)
    for name, option in options_of(record).items():
        assert all(flag.startswith("-") for flag in option.flags)
        assert option.help.endswith(".")
        assert option.panel in {"Input", "Model", "Output"}
        (field,) = [field for field in fields(record) if field.name == name]
        assert field.default is not NODEFAULT


def test_no_two_options_share_a_flag() -> None:
    flags = [flag for record in RECORDS for option in options_of(record).values() for flag in option.flags]
    assert len(flags) == len(set(flags))


def test_a_switch_has_no_metavar() -> None:
    for record in RECORDS:
        hints = get_type_hints(record)
        for name, option in options_of(record).items():
            assert (option.metavar is None) == (hints[name] is bool), name


class Small(Struct):
    """One field of each kind."""

    asked: Annotated[int, "a note", Option("Asked.", flags=("--as-typed", "-a"))] = 0
    quiet: Annotated[int, "a note"] = 0
    bare: int = 0


def test_only_a_field_that_declares_an_option_is_one() -> None:
    (option,) = options_of(Small).values()
    assert list(options_of(Small)) == ["asked"]
    assert option.parameter == "as_typed"
