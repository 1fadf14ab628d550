"""A result object in its JSON envelope: which schema, which inputs, which definitions."""

from __future__ import annotations

from typing import Any

from gradscope.catalog.lookup import definitions
from gradscope.render.registry import metrics_of, spec_of
from gradscope.results.envelope import build_document


def notes_of(result: object) -> tuple[str, ...]:
    """What a reader of a result should know of its gradients; nothing where no gradient was computed."""
    notes = getattr(result, "engine", {}).get("notes")
    return tuple(map(str, notes)) if isinstance(notes, list) else ()


def document_of(result: object) -> dict[str, Any]:
    """A result in its envelope: what ``--json`` prints and ``--output`` writes."""
    spec = spec_of(result)
    sources = spec.sources(result)
    files = [file for source in sources for file in source.files]
    digests = {file: digest for source in sources for file, digest in zip(source.files, source.digests, strict=False)}
    names = metrics_of(spec.name) if spec.definitions is None else spec.definitions(result)
    return build_document(
        spec.name,
        result,
        files=dict.fromkeys(files),
        definitions=definitions(*dict.fromkeys(names)),
        digests=digests,
    )
