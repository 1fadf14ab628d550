from __future__ import annotations

import dataclasses
from typing import get_args, get_type_hints

import pytest

from gradscope.cli.output.delivery import DeliveryOptions
from gradscope.gradients.engine_options import EngineOptions
from gradscope.option import Option
from gradscope.rollouts.read_options import ColumnNames, ReadOptions

RECORDS = (ReadOptions, ColumnNames, EngineOptions, DeliveryOptions)


def options_of(record: type) -> dict[str, Option]:
    hints = get_type_hints(record, include_extras=True)
    return {name: one for name, hint in hints.items() for one in get_args(hint) if isinstance(one, Option)}


@pytest.mark.parametrize("record", RECORDS)
def test_an_option_has_a_flag_a_sentence_and_a_default(record: type) -> None:
    assert options_of(record)
    for name, option in options_of(record).items():
        assert all(flag.startswith("-") for flag in option.flags)
        assert option.help.endswith(".")
        assert option.panel in {"Input", "Model", "Output"}
        (field,) = [field for field in dataclasses.fields(record) if field.name == name]
        assert field.default is not dataclasses.MISSING


def test_no_two_options_share_a_flag() -> None:
    flags = [flag for record in RECORDS for option in options_of(record).values() for flag in option.flags]
    assert len(flags) == len(set(flags))


def test_a_switch_has_no_metavar() -> None:
    for record in RECORDS:
        hints = get_type_hints(record)
        for name, option in options_of(record).items():
            assert (option.metavar is None) == (hints[name] is bool), name
