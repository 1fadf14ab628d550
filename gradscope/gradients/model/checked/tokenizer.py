"""A tokenizer from disk: its own files alone, and no code of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from gradscope.errors import InputError
from gradscope.gradients.model.checked.loading import quiet, refusing
from gradscope.gradients.model.checked.model_folder import require_readable
from gradscope.outside.plain_json import read_json
from gradscope.rollouts.places.fetch import bring_weights

_TOKENIZER_CONFIG = "tokenizer_config.json"
_ANY_TOKENIZER = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Names that transformers saves a tokenizer under that is of no model's own class."""


def load_tokenizer(folders: Sequence[Path]) -> Any:
    """The tokenizer in the first folder that has a whole one; it may know tokens that the model has no row for.

    Returns:
        The tokenizer, or None where no folder has one.

    Raises:
        InputError: There are tokenizers, and none loads.
    """
    failed: InputError | None = None
    bring_weights(*folders)
    for folder in dict.fromkeys(folders):
        if not any((folder / name).is_file() for name in ("tokenizer.json", _TOKENIZER_CONFIG)):
            continue
        try:
            require_readable(folder)
            with refusing(f"{folder} does not load as a tokenizer"), quiet():
                return _tokenizer_class(folder).from_pretrained(str(folder), trust_remote_code=False)
        except InputError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return None


def _tokenizer_class(folder: Path) -> Any:
    """The class that a tokenizer was saved by; transformers would go by the model's kind.

    Returns:
        The class for any tokenizer.json where the folder names that, else transformers' own pick.
    """
    try:
        named = read_json(folder / _TOKENIZER_CONFIG).get("tokenizer_class")
    except (OSError, ValueError, AttributeError):
        named = None
    return PreTrainedTokenizerFast if named in _ANY_TOKENIZER else AutoTokenizer
