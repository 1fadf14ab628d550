"""What is damaged is still a zip, so that it is named and not passed over."""

import io
import struct
import zipfile

from gradscope.outside.zips import is_zip


def packed() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a", "b")
    return sink.getvalue()


def test_only_zips_are_zips() -> None:
    assert is_zip(io.BytesIO(packed()))
    assert not is_zip(io.BytesIO(b"nothing"))


def test_a_zip_over_several_disks_is_one() -> None:
    end = packed()[-22:]
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 1, 0, 2)
    assert is_zip(io.BytesIO(packed()[:-22] + locator + end))
