"""Golden documents as the records that they were made of."""

import json
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from msgspec import Struct
from msgspec.structs import fields

from gradscope.results.envelope import LazyRows
from tests.conftest import REPOSITORY

Result = TypeVar("Result")
GOLDEN = REPOSITORY / "fixtures" / "golden"


@cache
def read_golden(kind: type[Result], name: str) -> Result:
    """The result that the golden document of a command holds; what it has no field for is an error."""
    document = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    result: Result = _record(kind, document["result"])
    return result


_hints = cache(get_type_hints)  # a second of a session's start without


def _record(kind: Any, plain: dict[str, Any]) -> Any:
    hints, left, made = _hints(kind), dict(plain), {}
    for field in fields(kind):
        if field.name in getattr(kind, "flattened", ()):
            own = {name: left.pop(name) for name in hints[field.name].__struct_fields__ if name in left}
            made[field.name] = _record(hints[field.name], own)
        elif field.name in left:
            made[field.name] = _value(hints[field.name], left.pop(field.name))
        else:
            assert not (field.required), f"no {kind.__name__}.{field.name}"
    assert not left, f"{kind.__name__} has no {sorted(left)}"
    return kind(**made)


def _value(kind: Any, plain: Any) -> Any:
    origin, inside = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        rest = [first for first in inside if first is not NoneType]
        (first, *_) = [first for first in rest if _may_be(get_origin(first) or first, plain)] or rest
        return None if plain is None else _value(first, plain)
    if origin is LazyRows:
        return LazyRows({name: column_of([row[name] for row in plain]) for name in plain[0]})
    if isinstance(origin, type) and issubclass(origin, Struct):
        return _record(origin, plain)
    if origin is tuple:
        kinds = [inside[0]] * len(plain) if inside[1:] == (...,) else inside
        return tuple(_value(first, value) for first, value in zip(kinds, plain, strict=True))
    if origin is Mapping:
        return {_value(inside[0], key): _value(inside[1], value) for key, value in plain.items()}
    return origin(plain) if origin in (int, float) else plain


def _may_be(kind: Any, plain: Any) -> bool:
    """Whether a value of a document is of one of several types."""
    return kind is type(plain) or (isinstance(plain, dict) and isinstance(kind, type) and issubclass(kind, Struct))


def column_of(values: list[Any]) -> np.ndarray:
    return np.array(values, dtype=object if any(isinstance(value, str | None) for value in values) else None)
