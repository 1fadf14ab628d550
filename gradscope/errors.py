"""The errors gradscope raises on purpose: each with the problem, its location, and a hint.

A failed rollout is data and never an error; an input that cannot be used is. Errors become exit codes in one
module, ``gradscope.__main__``. A wrong array handed to a function is a caller's bug and stays a ``ValueError``.
"""

from __future__ import annotations

from gradscope.copies import as_named


class GradscopeError(Exception):
    """An expected failure, with a message for people and a next step.

    Args:
        message: The problem and its location, in one or two sentences without a final newline; copies are named by
            their URL.
        hint: The next step; where it is a command, it works when pasted.
        cause: Its row of :data:`gradscope.reason.CAUSES`, where it may be about one step of several.
    """

    def __init__(self, message: str, *, hint: str | None = None, cause: str | None = None) -> None:
        self.message = as_named(message)
        super().__init__(self.message)
        self.hint = None if hint is None else as_named(hint)
        self.cause = cause


class InputError(GradscopeError):
    """The input cannot be used: missing, unreadable, inconsistent, or without data that the command needs."""


class UsageError(GradscopeError):
    """The command line or configuration asks for something that does not exist or does not go together."""


class OutputExistsError(GradscopeError):
    """A file or folder is in the way; nothing is overwritten without ``--force``."""


class OutputBusyError(GradscopeError):
    """Another process writes there; of two writers of one output the second is refused."""


class MissingDependencyError(GradscopeError):
    """An optional package that this command needs is not installed."""


class LaunchError(Exception):
    """One of several processes met an error that the others did not, so none can go on; never the fault of one step."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class VerificationError(GradscopeError):
    """The gradient engine disagrees with an ordinary backward pass: its numbers must not be used."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="Please report this with the model's config.json; its numbers must not be used.")
