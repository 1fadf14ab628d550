"""How a command delivers its result: a table or one JSON document on stdout, files where asked, messages on stderr.

An output folder appears completely or not at all, and nothing in it is overwritten unasked.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from gradscope.cli.output.streams import pause, progress_bar, say, show_next, write_data
from gradscope.cli.output.streams import show as print_result
from gradscope.errors import OutputExistsError, UsageError
from gradscope.machine import num_processes, process_index
from gradscope.option import Option
from gradscope.progress import ProgressCallback
from gradscope.render.files import document_of, notes_of
from gradscope.render.registry import render_table, spec_of
from gradscope.render.terminal.names import ALL, NOTES, VERDICT, choices_of
from gradscope.results.envelope import render_json
from gradscope.results.source import Source
from gradscope.say import counted
from gradscope.writing import atomic_write, is_own, move_into_place, naming, one_writer, partial_folder

_STEP_START = b'{"__metadata__":{"key":'  # of a file of `write_step`, after eight bytes of length
_STEP = re.compile(r"\.?step_[0-9]+\.safetensors(\.[0-9]+-[0-9a-f]{6}\.partial)?")


_FILE_SUFFIXES = (".html", ".json", ".jsonl", ".csv", ".png", ".svg", ".pdf", ".md", ".txt", ".parquet")


@contextmanager
def staged_folder(folder: Path, *, force: bool, inputs: Sequence[str] = ()) -> Iterator[Path]:
    """A folder to write into, whose files move to their destination once all of them are written.

    With ``force`` files of the same name are replaced and everything else in the folder stays: it may be a home. What
    the command read is never replaced.

    Yields:
        An empty folder next to it, on the same disk; an exception removes it and leaves ``folder`` as it was.

    Raises:
        OutputExistsError: There is a file at that path, a folder with something in it and ``force`` is off, or one of
            the inputs at the path of a file.
        OutputBusyError: Another process writes there.
        UsageError: It is called as a file, and there is no such folder yet.
        OSError: A file could not be moved there.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputExistsError(f"{folder} is a file.", hint="Name a folder with --output.")
    if not folder.exists() and folder.suffix in _FILE_SUFFIXES:
        hint = "Name a folder. A page is what gradscope report writes; --json prints the JSON document."
        raise UsageError(f"{folder.name} is the name of a file, where a folder is needed.", hint=hint)
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise OutputExistsError(
            f"The folder {folder} is not empty.",
            hint="Name another folder, or add --force to replace files of the same name in it.",
        )
    with one_writer(folder), naming(folder), partial_folder(folder.absolute()) as aside:
        yield aside
        paths = sorted(path.relative_to(aside) for path in aside.rglob("*") if path.is_file())
        for path in paths:
            refuse_input(folder.absolute() / path, inputs)
        for path in paths:
            target = folder.absolute() / path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                move_into_place(aside / path, target, force=force)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                atomic_write(target, (aside / path).read_bytes(), force=force)  # the folder is a disk of its own


@contextmanager
def unfinished_folder(folder: Path, *, force: bool) -> Iterator[Path]:
    """A folder for finished parts of work that may be interrupted; it is removed once the work is done, not before.

    Yields:
        A hidden folder next to it, which need not exist.

    Raises:
        OutputExistsError: The path exists and is no such folder: a link, one with other files, or another user's.
    """
    unfinished = unfinished_path(folder)
    if os.path.lexists(unfinished):
        is_one = unfinished.is_dir() and not unfinished.is_symlink() and all(map(_is_step, unfinished.iterdir()))
        if not is_one or not is_own(unfinished):
            reason = "is another user's" if is_one else "holds something else"
            raise OutputExistsError(
                f"{unfinished} is where finished steps are kept, and {reason}.",
                hint="Move it, or name another folder with --output.",
            )
    if force:
        shutil.rmtree(unfinished, ignore_errors=True)
    yield unfinished
    shutil.rmtree(unfinished, ignore_errors=True)


def unfinished_path(folder: Path) -> Path:
    """Where finished parts of a folder's work wait."""
    return folder.absolute().with_name(f".{folder.absolute().name}.unfinished")


def _is_step(path: Path) -> bool:
    if _STEP.fullmatch(path.name) is None or path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(8 + len(_STEP_START))[8:]
    return path.suffix == ".partial" or not start or start == _STEP_START


def refuse_input(path: Path, inputs: Sequence[str]) -> None:
    """Refuse, ``--force`` or not, to replace what the command reads, by whatever name."""
    if path.exists() and any(Path(file).exists() and path.samefile(file) for file in inputs):
        raise OutputExistsError(
            f"{path} is what this command reads; nothing replaces that.", hint="Write to another path."
        )


_option = partial(Option, panel="Output")
_MAX_NAMED = 3
_LINE = 80
"""Characters of a line about an input on a terminal, where they suffice; ``--show notes`` prints all."""


class DeliveryOptions(Struct, frozen=True, kw_only=True):
    """The wanted outputs of a result, and their destinations."""

    show: Annotated[
        list[str] | None,
        _option(
            "Further tables, which the answer names; all of them, or the verdict alone.",
            "NAME,...",
            names_of=choices_of,
        ),
    ] = None
    as_json: Annotated[bool, _option("Print one JSON document and nothing else.", flags=("--json",))] = False
    output: Annotated[
        Path | None, _option("Write JSON, CSV, arrays and figures there.", "DIR", flags=("--output", "-o"))
    ] = None
    """It is refused before any work where something is in the way."""
    force: Annotated[bool, _option("Replace files of the same name there.")] = False
    quiet: Annotated[bool, _option("Say nothing but errors on stderr.", flags=("--quiet", "-q"))] = False


class Delivery(Struct, frozen=True, kw_only=True):
    """Where one command's result goes."""

    as_json: bool  # print the JSON document instead of the table
    staging: Path | None  # the folder to write into until all files are there; None: no files
    unfinished: Path | None
    """The folder where finished steps wait for a second call, should this one be interrupted; None: no files."""
    quiet: bool  # say nothing but errors on stderr
    show: tuple[str, ...] = ()  # names of further tables
    lost: list[str] = []  # sentences on unreadable parts of the input of a delivered result
    inputs: list[str] = []  # the files that the result was read from, which nothing replaces
    reported: set[str] = set()
    """Sentences reported during the work, so that they are not repeated at its end."""

    def deliver(self, result: object, *, printed: str | None = None, then: Sequence[Sequence[str]] = ()) -> None:
        """Print and write a result, with further tables and commands to paste next; ``printed`` replaces the answer."""
        for source in spec_of(result).sources(result):
            self.lost.extend(source.quarantined.lost)
            self.inputs.extend(source.files)
        if not self.quiet:
            self._describe(spec_of(result).sources(result), notes_of(result))
        document = document_of(result) if self.as_json or self.staging else None
        if self.staging is not None and document is not None:
            from gradscope.render.files import write_files

            write_files(result, document, self.staging)
        if self.as_json and document is not None:
            write_data(render_json(document))
        elif printed is not None:
            write_data(printed)
        else:
            if not self.quiet:
                pause()
            table = render_table(result, self.show)
            print_result(table)
            if then and VERDICT not in self.show:
                from gradscope.render.terminal.answer import offers_more  # loaded by the table

                show_next(*then, blank_line=not offers_more(table))

    def notice(self, sentence: str) -> None:
        """Report an event during the work, once."""
        if not self.quiet and sentence not in self.reported:
            say(f"note: {sentence}")
        self.reported.add(sentence)

    def _describe(self, sources: Sequence[Source], notes: Sequence[str]) -> None:
        """The readers' notes on the inputs, in two lines: of more notes their number, unless all are asked for."""
        show_all = not {NOTES, ALL}.isdisjoint(self.show)
        unfinished = [f"The evaluation {source.unfinished}." for source in sources if source.unfinished]
        self.reported.update(unfinished)  # as a warning
        sentences = [sentence for source in sources for sentence in (*source.inferred, *source.missing)]
        sentences = [sentence for sentence in dict.fromkeys([*sentences, *notes]) if sentence not in self.reported]
        is_folded = (
            len(sentences) + len(sources) > 2
            and len(sentences) > 0
            and not show_all
            and all(source.kind != "metrics" for source in sources)
        )
        folded = f"; {counted(len(sentences), 'note')}: --show {NOTES}" if is_folded else ""
        for number, source in enumerate(sources, 1):
            last = folded if number == len(sources) else ""
            inside = [file.removeprefix(f"{source.path.rstrip('/')}/") for file in source.files]
            few = len(inside) <= _MAX_NAMED and inside != list(source.files)  # of a folder that was named
            chosen = f" ({', '.join(inside)})" if few else ""
            words = [f"{source.recognized}{chosen}", source.recognized, *([""] if len(sources) > 1 else [])]
            is_short = sys.stderr.isatty() and not show_all
            lines = [
                f"read {source.path}: {reader}{', ' if reader else ''}{counted(source.num_rows, 'row')}{last}"
                for reader in (words if is_short else words[:1])
            ]
            say(next((line for line in lines if len(line) <= _LINE), lines[-1]))
        for sentence in () if is_folded else sentences:
            self.notice(sentence)
        for sentence in unfinished:
            say(f"warning: {sentence}")
        for source in sources:
            for reason in source.quarantined.reasons:
                say(f"warning: set aside {reason.counted}: {reason.reason} ({reason.where})")

    def progress(self) -> AbstractContextManager[ProgressCallback]:
        """The bar around the work, gone before anything is printed."""
        return progress_bar(quiet=self.quiet)


@contextmanager
def delivery(options: DeliveryOptions, *, judges: bool = False) -> Iterator[Delivery]:
    """Opens the output folder around a command's work; of several processes the main one does, and all are connected.

    Yields:
        The delivery; at its end the files are at their destination and named on stderr.

    Raises:
        Exit: Parts of the input could not be read; the exit code is 2, and the result is that of the others.
    """
    connected: AbstractContextManager[None] = nullcontext()
    if num_processes() > 1:
        from gradscope.gradients.processes import connected_processes

        connected = connected_processes()
    with connected:
        if process_index() == 0:
            with _opened(options) as opened:
                yield opened
            for sentence in dict.fromkeys(opened.lost):
                say(f"error: {sentence}")
            if opened.lost:
                say("hint: What is shown is the result of the rest. Copy the files again, or leave them out.")
                if not judges:
                    raise typer.Exit(2)
        else:
            unfinished = unfinished_path(options.output) if options.output else None
            show = tuple(options.show or ())
            yield Delivery(as_json=False, staging=None, unfinished=unfinished, quiet=True, show=show)


@contextmanager
def _opened(options: DeliveryOptions) -> Iterator[Delivery]:
    output, force, quiet = options.output, options.force, options.quiet
    made = partial(Delivery, as_json=options.as_json, quiet=quiet, show=tuple(options.show or ()))
    if output is None:
        yield made(staging=None, unfinished=None)
        return
    inputs: list[str] = []
    with (
        one_writer(output),
        unfinished_folder(output, force=force) as unfinished,
        staged_folder(output, force=force, inputs=inputs) as staging,
    ):
        opened = made(staging=staging, unfinished=unfinished, inputs=inputs)
        try:
            yield opened
        except BaseException:
            num_steps = len(list(unfinished.glob("*.safetensors")))
            if num_steps and not quiet:
                finished = counted(num_steps, "finished step")
                say(f"stopped; the same command goes on from the {finished} in {unfinished}, --force starts anew")
            raise
        files = sorted(file.relative_to(staging) for file in staging.rglob("*") if file.is_file())
    if not quiet and files:
        # of many files the JSON documents by name, and how many there are of each other kind
        few = files if len(files) <= _MAX_NAMED else [file for file in files if file.suffix == ".json"]
        kinds = Counter(file.suffix.removeprefix(".") for file in files if file not in few)
        names = [*map(str, few), *(f"{number} {kind}" for kind, number in sorted(kinds.items()))]
        say(f"wrote {output}: {', '.join(names)}")
