import json
from pathlib import Path

import pytest

from gradscope.rollouts.readers.parsing.documents import undecoded_rows
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.tables import read_json_rows


@pytest.mark.parametrize(
    ("document", "rows"),
    [
        (b'[{"a": 1}, 2]', [b'{"a": 1}', b"2"]),
        (b'{"a": 1}\n', [b'{"a": 1}']),
        (b'{"rollouts": [{"a": 1}], "lr": 0.1}', [b'{"a": 1}']),
        (b'{"step": 3, "data": [{"a": 1}, {"step": 4}]}', [b'{"step":3,"a": 1}', b'{"step":3,"step": 4}']),
        (b'{"iteration": "step_3", "rows": [{"a": 1}]}', [b'{"iteration":"step_3","a": 1}']),
        (b'{"step": null, "global_step": [3], "rows": [{"a": 1}]}', [b'{"a": 1}']),
        (b'{"data": [], "rows": [1]}', [b'{"data": [], "rows": [1]}']),
        (b'{"data": {"a": 1}}', [b'{"data": {"a": 1}}']),
    ],
)
def test_rows_of_a_document_are_those_of_its_one_list(document: bytes, rows: list[bytes], tmp_path: Path) -> None:
    undecoded = [bytes(row) for row in undecoded_rows(document)]
    assert undecoded == rows
    (tmp_path / "log.json").write_bytes(document)
    decoded = [row for _, row in read_json_rows(tmp_path / "log.json", QuarantineLog())]
    assert decoded == [row for row in map(json.loads, undecoded) if isinstance(row, dict)]
