"""One thing, or a few, done to the files of a log or of a model, by a seed: every case can be made again."""

import gzip
import io
import json
import math
import os
import random
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

VALUES: tuple[str, ...] = (
    *("null", "true", "false", "0", "1", "-1", "2.0", "2.9", "1e400", "-1e400", "1e308", "5e-324", "NaN", "-Infinity"),
    *("9" * 400, "9223372036854775808", "4294967296", "-2147483649", "1_0", '"1_0"', '"nan"', '"1e400"', '"٣"', '"1"'),
    *('""', '"\\ud800"', '"\\u0000"', '"\\u001b[2J"', '"<script>"', '"' + "x" * 70_000 + '"', "[]", "{}", "[[]]"),
    *("[1]", "[null]", "[true]", '["a"]', "[0.5, NaN]", '{"a": 1, "a": 2}', '{"role": 1}', '[{"role": "user"}]'),
    *("[" * 150 + "]" * 150, '{"a":' * 3000 + "1" + "}" * 3000, "[" * 100_000),
)
"""JSON texts that no trainer writes where it writes another one."""
CELLS: tuple[Any, ...] = (None, "", "x", "1_0", "nan", True, 0, -1, 2.5, 1e308, math.nan, -math.inf, 1 << 62, [])
NAMES = ("²", "-x", "a b", "a\nb", "%2e", "step_1_2", "٣", "x" * 200, "\udcff", "1", "00000000000000000001", ".hidden")
Change = Callable[[Path, random.Random], str]


def damaged(root: Path, chance: random.Random) -> str:
    """Damage some of the files below a folder, or the one that it is; what was done, in a few words."""
    done = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        below = [] if root.is_symlink() else [root, *root.rglob("*")]
        files = sorted(path for path in below if path.is_file() and not path.is_symlink())
        if files:
            file = chance.choice(files)
            change = chance.choice(_changes_for(file))
            try:
                done.append(f"{file.name}: {change(file, chance)}")
            except OSError as error:  # a name that the last damage took, or a pipe that it left
                done.append(f"{file.name}: nothing ({error})")
    return "; ".join(done)


def _changes_for(file: Path) -> tuple[Change, ...]:
    own: dict[str, tuple[Change, ...]] = {
        ".jsonl": (lines, lines, json_value, json_value, json_value, json_value),
        ".json": (json_value, json_value, json_value, json_value),
        ".csv": (lines, csv_cell, csv_cell),
        ".parquet": (parquet, parquet, parquet, parquet),
        ".eval": (member, member),
        ".safetensors": (header, header),
    }
    return (raw, raw, whole, *((events, events) if ".tfevents." in file.name else own.get(file.suffix, (raw,))))


def raw(file: Path, chance: random.Random) -> str:
    """Bytes changed, taken away or put in, wherever they are."""
    data = bytearray(file.read_bytes())
    position = chance.randrange(len(data) + 1)
    span = chance.choice((1, 1, 4, 64, 1000))
    match chance.randrange(6):
        case 0:
            data[position : position + 1] = bytes([chance.randrange(256)])
        case 1:
            del data[position:]
        case 2:
            del data[position : position + span]
        case 3:
            data[position:position] = chance.randbytes(span)
        case 4:
            data[position:position] = data[position : position + span] * chance.choice((1, 2, 50))
        case _:
            data[position : position + span] = bytes(min(span, max(0, len(data) - position)))
    file.write_bytes(bytes(data))
    return "bytes"


def whole(file: Path, chance: random.Random) -> str:
    """Another kind of file, name, compression or encoding."""
    data = file.read_bytes()
    match chance.randrange(13):
        case 0:
            file.write_bytes(b"")
        case 1:
            file.unlink()
        case 2:
            file.unlink()
            file.mkdir()
        case 3:
            file.unlink()
            os.mkfifo(file)
        case 4:
            file.unlink()
            file.symlink_to(chance.choice((file.name, "..", ".", "/dev/zero", "/dev/full", "absent", "/proc/self/mem")))
        case 5:
            file.rename(file.with_name(chance.choice(NAMES) + chance.choice(("", file.suffix))))
        case 6:
            (file.parent / (chance.choice(NAMES) + file.suffix)).write_bytes(data)
        case 7:
            packed = gzip.compress(data, mtime=0)
            file.with_name(f"{file.name}.gz").write_bytes(packed[: chance.choice((len(packed), -1, 20))])
            file.unlink()
        case 8:
            file.with_name(f"{file.name}.gz").write_bytes(_bomb())
        case 9:
            file.write_bytes(b"\xef\xbb\xbf" + data)
        case 10:
            file.write_bytes(
                data.decode("utf-8", "replace").encode(chance.choice(("utf-16", "utf-32", "latin-1")), "replace")
            )
        case 11:
            file.write_bytes(data.replace(b"\n", chance.choice((b"\r\n", b"\r", b"\n\n", b"\0\n"))))
        case _:
            shutil.copytree(file.parent, file.parent / "again", symlinks=True)
    return "file"


@cache
def _bomb() -> bytes:
    """270 KB that unpack to 60 MB of nothing."""
    return gzip.compress(bytes(60 << 20), 1, mtime=0)


def lines(file: Path, chance: random.Random) -> str:
    """Lines taken away, repeated, put elsewhere, cut or joined."""
    lines = file.read_bytes().splitlines(keepends=True) or [b""]
    first, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(8):
        case 0:
            del lines[first]
        case 1:
            lines.insert(other, lines[first])
        case 2:
            lines[first], lines[other] = lines[other], lines[first]
        case 3:
            lines[first] = lines[first][: chance.randrange(len(lines[first]) + 1)]
        case 4:
            lines[first] = lines[first].rstrip(b"\r\n")
        case 5:
            lines.insert(
                first, chance.choice((b"\n", b"garbage\n", b"null\n", b"[]\n", b"{}\n", b"\0\n", b'"\n', b"1\n"))
            )
        case 6:
            lines = lines * chance.choice((2, 30))
        case _:
            lines[first] = lines[first].replace(b'"', b"'", 1)
    file.write_bytes(b"".join(lines))
    return "lines"


def json_value(file: Path, chance: random.Random) -> str:
    """A value of one document or line replaced, dropped, renamed or named twice."""
    text = file.read_bytes().decode("utf-8", "replace")
    rows = text.splitlines() if file.suffix == ".jsonl" else [text]
    row = chance.randrange(len(rows) or 1)
    try:
        document = json.loads(rows[row])
    except (IndexError, ValueError, RecursionError):
        return raw(file, chance)
    holder, key = _place(document, chance)
    if holder is None:
        rows[row] = chance.choice(VALUES)
    else:
        match chance.randrange(7):
            case 0:
                del holder[key]
                rows[row] = json.dumps(document)
            case 1 if isinstance(holder, dict):
                holder[f"{key}²"] = holder.pop(key)
                rows[row] = json.dumps(document)
            case 2 if isinstance(holder, dict):
                value = holder[key]
                holder[key], holder["@@"] = "@@", 0
                put = json.dumps(document).replace('"@@": 0', f"{json.dumps(key)}: {json.dumps(value)}", 1)
                rows[row] = put.replace('"@@"', json.dumps(value), 1)
            case _:
                holder[key] = "@@"
                rows[row] = json.dumps(document).replace('"@@"', chance.choice(VALUES), 1)
    file.write_bytes("\n".join([*rows, ""] if file.suffix == ".jsonl" else rows).encode("utf-8", "replace"))
    return "value"


def _place(document: Any, chance: random.Random) -> tuple[Any, Any]:
    holder, key, inner = None, None, document
    while isinstance(inner, dict | list) and inner and (holder is None or chance.random() < 0.75):
        holder, key = inner, chance.choice(sorted(inner)) if isinstance(inner, dict) else chance.randrange(len(inner))
        inner = inner[key]
    return holder, key


def csv_cell(file: Path, chance: random.Random) -> str:
    """A cell of a line replaced, or a quote that is not closed."""
    lines = file.read_bytes().decode("utf-8", "replace").split("\n")
    line = chance.randrange(len(lines))
    cells = lines[line].split(",")
    cells[chance.randrange(len(cells))] = chance.choice((*VALUES[:24], '"', '""', "a\0b", ",,,", "'", "\t", ";"))
    lines[line] = ",".join(cells)
    file.write_bytes("\n".join(lines).encode("utf-8", "replace"))
    return "cell"


def parquet(file: Path, chance: random.Random) -> str:
    """A column dropped, renamed, repeated, of another type or with other cells; rows taken away, turned or repeated."""
    try:
        table = pq.read_table(io.BytesIO(file.read_bytes()))
        names = table.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return raw(file, chance)
    column = chance.randrange(max(1, table.num_columns))
    name = names[column] if names else ""
    rows = list(range(table.num_rows))
    try:
        match chance.randrange(9):
            case 0:
                table = table.drop_columns([name])
            case 1:
                other = chance.choice(names)
                table = table.rename_columns([other if old == name else old for old in names])
            case 2:
                table = table.append_column(name, table[name])
            case 3:
                cells = table[name].to_pylist()
                for place in chance.sample(rows, chance.randint(1, len(rows))):
                    cells[place] = chance.choice(CELLS)
                table = table.set_column(
                    column, name, pa.array([None if cell is None else str(cell) for cell in cells])
                )
            case 4:
                table = table.set_column(column, name, pa.array([chance.choice((0.0, math.nan, 1e308)) for _ in rows]))
            case 5:
                table = table.set_column(column, name, pa.nulls(len(rows)))
            case 6:
                table = table.set_column(column, name, pa.array([[chance.choice((0, 1 << 40, -1))] for _ in rows]))
            case 7:
                table = table.take(chance.choices(rows, k=chance.choice((0, 1, len(rows), 3 * len(rows)))))
            case _:
                table = table.set_column(column, name, pa.array([1 << 62] * len(rows)))
    except (pa.ArrowException, ValueError, LookupError):  # an earlier change left no column, no row or two of one name
        return raw(file, chance)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    file.write_bytes(sink.getvalue())
    return "column"


def member(file: Path, chance: random.Random) -> str:
    """A member of an archive damaged, and the archive made again."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, OSError, EOFError):
        return raw(file, chance)
    if not members:
        return raw(file, chance)
    chosen = chance.choice(sorted(members))
    members[chosen] = _inner(file, members[chosen], json_value if chance.random() < 0.7 else raw, chance)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return "member"


def _inner(file: Path, data: bytes, change: Change, chance: random.Random) -> bytes:
    """A part of a file, changed as a JSON file of its own would be."""
    inner = file.with_name(".inner.json")
    inner.write_bytes(data)
    change(inner, chance)
    data = inner.read_bytes()
    inner.unlink()
    return data


def events(file: Path, chance: random.Random) -> str:
    """Bytes of a record of TensorBoard's changed, its checksums left out as by a writer that makes none."""
    data, records = file.read_bytes(), list[bytes]()
    while len(data) >= 16 and len(data) >= 16 + int.from_bytes(data[:8], "little"):
        size = int.from_bytes(data[:8], "little")
        records.append(data[12 : 12 + size])
        data = data[16 + size :]
    if not records:
        return raw(file, chance)
    index = chance.randrange(len(records))
    records[index] = _inner(file, records[index], raw, chance)
    file.write_bytes(b"".join(struct.pack("<QI", len(record), 0) + record + bytes(4) for record in records) + data)
    return "record"


def header(file: Path, chance: random.Random) -> str:
    """The header of a file of tensors: a shape, a type, an offset, a name."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    text = _inner(file, data[8 : 8 + length], json_value, chance)
    claimed = chance.choice((len(text), len(text), len(text), 0, 1 << 40, (1 << 64) - 1))
    file.write_bytes(claimed.to_bytes(8, "little") + text + data[8 + length :])
    return "header"
