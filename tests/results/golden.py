"""The golden documents: what each command's JSON looks like, kept so that a script that reads it never breaks unseen.

`python -m tests.results.golden` in the repository's root writes them again after a change that is meant.
"""

import json
from typing import Any

from gradscope.render.files import document_of
from gradscope.results.envelope import render_json
from tests.conftest import REPOSITORY
from tests.render import examples, rank_examples

FOLDER = REPOSITORY / "fixtures" / "golden"


def reports() -> dict[str, object]:
    return {
        "check": examples.check_report(),
        "claims": examples.claims_report(),
        "compare": examples.comparison(),
        "degeneracy": examples.degeneracy_report(num_steps=3, files=("fixtures/golden/input.txt",)),
        "passk": examples.passk_report(),
        "rank": examples.weight_report(),
        "rank_parts": rank_examples.PARTS,
        "replay": examples.replay_report(),
        "report": examples.run_report(),
        "report_index": examples.run_index(),
        "spike": examples.spike_report(),
    }


def golden_document(report: object) -> dict[str, Any]:
    """The document without what may differ: time, version, and the wording of the formulas."""
    document: dict[str, Any] = json.loads(render_json(document_of(report)))
    document["created_at"] = document["gradscope"] = "..."
    document["definitions"] = sorted(document["definitions"])
    return document


def main() -> None:
    for name, report in reports().items():
        (FOLDER / f"{name}.json").write_text(render_json(golden_document(report)), encoding="utf-8")


if __name__ == "__main__":
    main()
