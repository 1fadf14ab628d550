"""Metrics in what trainers print: lines, dictionaries, tables and blocks of lines, broken by a terminal or not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from gradscope.rollouts.readers.metrics_alone.published import number_or_text, plain_name
from gradscope.rollouts.readers.metrics_alone.runs import is_step

Text = tuple[str, str]  # location and text of a line
Values = dict[str, Any]  # numbers and texts of a line by name
NUMBER = r"[+-]?(?:nan|inf(?:inity)?|[0-9.][0-9.]*(?:e[+-]?[0-9]+)?)"
_PAIR = re.compile(
    rf"""['"](?P<key>[^'"]{{1,200}})['"]\s*:\s*(?:np\.\w+\()?['"]?(?P<value>{NUMBER})['"]?\)?(?=\s*[,}}])""",
    re.IGNORECASE,
)
_LIST = r"\[[0-9.,e+\s'-]{1,4096}\]"
_NAMED = re.compile(
    r"(?:^|(?<=[\s|,;•]))(?P<key>[a-z_][\w/@.-]{0,200}(?: [a-z(][\w/)]{0,40}){0,3}?)\s?[:=]\s{0,2}"
    rf"(?:(?:np\.\w+|array|tensor)\()?(?P<value>{NUMBER}|{_LIST})\)?(?=[\s,;|]|$)",
    re.IGNORECASE,
)
_STEP_FIRST = re.compile(
    r"(?<!\()\b(?:(?:global_|training_)?step|iter(?:ation)?|update)(?:\s?[:=]\s{0,9}|\s{1,9})(?P<step>[0-9]{1,15})\b"
    r"(?!\s?/|\.[0-9]*[1-9e])",
    re.IGNORECASE,
)
_PIPED = re.compile(
    r"\|\s{0,9}(?P<key>[a-z_][\w/@.-]{0,200}(?: [a-z][\w/]{0,40}){0,2})\s{1,9}"
    rf"(?P<value>{NUMBER})(?=\s{{0,9}}[|±(]|$)",
    re.IGNORECASE,
)
_SPACED = re.compile(rf"\b(?P<key>[a-z_][\w/@.-]{{0,200}})\s{{1,9}}(?P<value>{NUMBER})(?=[\s,;|]|$)", re.IGNORECASE)
_WORDED = re.compile(
    rf"(?:^|(?<=[,;|\]:]))\s{{0,9}}(?P<key>[a-z_][\w/@.-]{{0,80}}(?: [a-z][\w/]{{0,40}}){{0,3}})\s(?P<value>{NUMBER})"
    r"(?= ?[a-z%/]{0,9}\s{0,9}(?:[,;|]|$))",
    re.IGNORECASE,
)
_SEPARATORS = frozenset(" \t,;:|-.")  # what may stand between such names and numbers
_BOXED = re.compile(
    rf"│ (?P<key>[a-z_][\w/@.-]{{0,200}})\s{{1,200}}│\s{{1,99}}(?P<value>{NUMBER})\s{{1,99}}(?=│)", re.IGNORECASE
)
_STEP_ABOVE = re.compile(
    r"(?:^\W*\b|\btrain )step (?P<step>[0-9]{1,15})(?:/[0-9]{1,15})?\b(?:\W*| done\..*)$", re.IGNORECASE
)
_EVAL = r"\b(?:epoch|eval\w*|val\w*|test\w*)\b"
_STEP_OF_TOTAL = re.compile(
    rf"^(?!.*{_EVAL}(?![\w/@.-]{{0,200}}(?: [a-z(][\w/)]{{0,40}}){{0,3}}?(?:\s?[:=]\s{{0,2}}|\s){NUMBER}(?![0-9/])))"
    rf"(?P<before>(?:(?!{_EVAL})[^/]){{0,100}}?\b)(?P<step>[0-9]{{1,15}})/[0-9]{{1,15}}\b\]?(?P<gap>\s?[|:,-]?\s+)",
    re.IGNORECASE,
)
"""A step of so many, with numbers of an evaluation behind it at most; what is one, or an epoch, is apart."""
_STEP_WORD = re.compile(r"step|iter|update", re.IGNORECASE)
_STEP_OF_EPOCH = re.compile(
    r"\b(?:epoch|iter(?:ation)?(?=\W{0,3}[0-9]{1,9}/[0-9]{1,9}\W{1,4}step\b))"
    r"\W{0,3}(?P<epoch>[0-9]{1,9})(?:/[0-9]{1,9})?\W{1,4}"
    r"(?:(?:step|batch|iter(?:ation)?)\W{0,3}|(?<=\()(?=[0-9]{1,15}/))(?P<step>[0-9]{1,15})\b(?:/[0-9]{1,15})?",
    re.IGNORECASE,
)
_THOUSANDS = re.compile(
    r"\b(?:step|iter(?:ation)?|update|episode)[\s:=#\[]{1,4}(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\s?/\s?)?){1,2}(?![0-9,])",
    re.IGNORECASE,
)
"""A step with commas between its thousands, and the number of steps likewise."""
_SKIPPED = re.compile(r"\bskip(?:ped|ping)? (?=(?:\w{1,40}[ _])?(?:reward|score)s?[\s:=])", re.IGNORECASE)
"""What says that a step had no update, before its reward."""
_MEAN_REWARD = re.compile(
    rf"^\W*(?P<key>(?:mean|average|avg)[ _]rewards?)\s?[:=]\s{{0,2}}(?P<value>{NUMBER})\s*$", re.IGNORECASE
)
_EPISODE_FIRST = re.compile(
    r"^\W*(?P<name>episode|epoch|round)[\s:=#\[]{1,9}(?P<number>[0-9]{1,15})\b(?!\.)", re.IGNORECASE
)
_GROUP_COUNTS = re.compile(
    r"\b(?P<key>(?:[\w/-]{0,80}(?:dead|degenerate|zero)[\w/-]{0,80})(?: groups?)?)\s?[:=]?\s{0,2}"
    r"(?P<part>[0-9]{1,9})\s?/\s?(?P<number>[0-9]{1,9})\b(?![./])",
    re.IGNORECASE,
)
"""So many groups of a step's without a gradient."""
_DICTIONARY = re.compile(r"\b(?P<kind>rollout|step|perf|eval) (?P<step>[0-9]{1,15}): \{")
_HEADED = re.compile(r"\b(?:Step|Completed steps) (?P<step>[0-9]{1,15}): (?=\{)")
"""What stands before a dictionary of Trinity-RFT, whose explorer and trainer have one each, and of PipelineRL."""
_PROGRESS = re.compile(r"\b(?P<done>[0-9]{1,12})/[0-9]{1,12} \[")
_AFTER_BAR = re.compile(
    r"\b(?P<step>[0-9]{1,12})/(?P<total>[0-9]{1,12}) \[[^\[\]=]{1,60}(?:it/s|s/it), ?(?P<rest>[^\[\]]{1,2000})\]"
)
_EVAL_BAR = re.compile(r"\W*(?:eval(?:uat\w+)?|val(?:idation)?|test(?:ing)?)\s*:", re.IGNORECASE)
_DASHED = re.compile(r" - [^\s:]+:\S+ - ")
_DASH_CELL = r"(?:[-+0-9.einaf]|np\.float[0-9]*\(|\))*"
_DASHED_STEP = re.compile(r"\bstep:[0-9]{1,15}(?= -|\s*$)")
_DASHED_REST = re.compile(
    rf"(?=.*:|[0-9.])(?!.*\bstep:)(?:- ?)?(?:[^\s:]*:)?{_DASH_CELL}(?: - [^\s:]+:{_DASH_CELL})*(?: -(?: [^\s:]*:?)?)?"
)
_NARROWEST = 40  # columns of a terminal
COLOR, RAY = r"\x1b\[[0-9;]*m", r"\([^()]{1,80} pid=[^()]{1,80}\)"  # what Ray puts before a line
_RAY_PREFIX = re.compile(rf"^(?:\s|{COLOR}|{RAY})+")
_OPENING = re.compile(rf"^(?:\s|{COLOR}|{RAY})*\{{\s*(?:['\"][\w/@. -]{{1,200}}['\"]:|$)")
"""The begin of a dictionary, and nothing before it."""
_NUMBERS = msgspec.json.Decoder(dict[str, float], strict=False)
_COLUMN = re.compile(r"[a-z_][\w/@.()%-]*", re.IGNORECASE)
_EPISODE_END = re.compile(r"""\b(?:done|terminated)['"]?\s?[:=]\s?(?:true|false)\b""", re.IGNORECASE)
_MAY_BE_METRICS = re.compile(r"[0-9]|step", re.IGNORECASE)
_MARKDOWN = re.compile(r"(?<!\*)\*\*(?!\*)|^\s*(?:\*|[0-9]{1,3}\.)\s")
"""What a completion has that is printed, whose steps are those of a solution: bold text and items of lists."""
_HEADING_WITHIN = re.compile(r"\s*(?:\S+\s+){6,}#{2,6}\s")
"""The heading of such a step behind more words than a logger puts before a line: its total loss may be of dollars."""
_ENDED = "train_runtime"  # a key of what a trainer prints at its end
_MARKS = (
    *("'loss':", "'reward':", "'grad_norm':", "'train/", "'rollout/", f"'{_ENDED}':"),
    *('"loss":', '"reward":', f'"{_ENDED}":'),
)
_LONGEST_LINE, _LONGEST_ROW = 1 << 20, 1 << 12
_MAX_PARTS = 1000  # lines of one dictionary
_REWARD = re.compile(r"(^|[_/])(reward|score)s?$")
_REWARD_OR_LOSS = re.compile(r"(^|[_/])(reward|return|loss|kl)(_mean|s)?$")
CUT_DICTIONARY = "the dictionary of metrics is cut off"


def lines_joined(lines: Iterable[Text]) -> Iterator[Text]:
    """Lines of a console, with the parts of a dictionary as one: a terminal broke it, or it has a key a line."""
    held: list[Text] = []
    for location, line in lines:
        if held and "{" not in line and len(held) < _MAX_PARTS:
            held.append((location, line))
            if "}" not in line:
                continue
            location, line, held = held[0][0], "".join(part for _, part in held), []
        yield from held
        held = []
        if "{" in line and "}" not in line and (_OPENING.match(line) or any(mark in line for mark in _MARKS)):
            held = [(location, line)]
        else:
            yield location, line
    yield from held


def dashes_joined(lines: Iterable[Text]) -> Iterator[Text]:
    """Lines of a console, with verl's ``step:N - name:value - ...`` as one where a terminal broke it."""
    location, held, before = "", "", 0
    for line_location, line in lines:
        rest = _RAY_PREFIX.sub("", line).rstrip() if held else ""
        is_between = held.endswith("-") or rest.startswith("-")
        if _DASHED_REST.fullmatch(rest) and (is_between or " - " in rest or before >= max(_NARROWEST, len(rest))):
            held, before = held + " " * is_between + rest, len(rest)
            continue
        if held:
            yield location, held
        location, held = line_location, line.rstrip() if "step:" in line and _DASHED_STEP.search(line) else ""
        before = len(held)
        if not held:
            yield line_location, line
    if held:
        yield location, held


class PrintedLines:
    """Metrics in the output of trainers, a line at a time.

    verl writes ``step:N - name:value - name:value``, torchtune ``Step N | name:value``, prime-rl
    ``Step N | Name: value``, slime ``rollout N: {...}``, NeMo-RL a heading ``Step N/M`` with lines ``• Name: value``
    below it, AReaL ``Train step N/M done.`` and a box ``│ name │ value │`` below it, the Tinker cookbook such a box
    below ``Step N``, others ``step=N name=value``, ``N/M | name=value``, OpenRLHF's and other bars of progress
    ``N/M [..., name=value]``, ``Iter N | name value``, ``Epoch [E/F], Step [N/M], name: value``,
    ``Step N: mean reward 0.5, loss 0.1``, or columns below a line of names
    with ``step``, as pandas prints them; ``Episode N`` numbers an episode, which may count as a step. The dictionaries
    of TRL and its relatives do not name their step: it is that in the line before them, where most have one, else the
    count of the progress bar before, where each has one. A line of a mean reward alone is of the step in the line after
    it where the first such line comes before any step.
    """

    def __init__(self) -> None:
        self.unnumbered: list[tuple[str, dict[str, Any], int, int]] = []
        """Location, values, the count of the last progress bar, and position in its training, from 1, of dictionaries
        without a step."""
        self.ended: list[tuple[str, Values]] = []
        """Location and values of bars of progress of which only the end was printed, whose total is no step."""
        self._running: set[str] = set()  # the totals of other bars
        self._bar = 0
        self._position = 0
        self._num_below = 0  # dictionaries that took the step of the line before
        self._above: int | None = None
        self._next_update = 0  # of slime, which counts rollouts and, where each serves several, updates
        self._rollouts: dict[str, int] = {}  # the last one of each kind of its lines
        self._columns: list[str] = []  # of the table that is being read
        self._before: Values = {}  # the metrics of the line before, if it names its step
        self._ahead: Values = {}  # the mean reward that the line before has alone, if such a line came before any step
        self._is_ahead = self._has_step = False

    def read(self, location: str, line: str) -> Values | str | None:
        """The metrics of a line with its step; the reason where they are damaged; None for a line without metrics."""
        before, self._before = self._before, {}
        ahead, self._ahead = self._ahead, {}
        if "{" not in line and not _MAY_BE_METRICS.search(line):  # as most lines of a text
            self._columns = [] if any(map(str.isalnum, line)) else self._columns
            return None
        for bar in _PROGRESS.finditer(line[:_LONGEST_LINE]) if " [" in line else ():
            self._bar = int(bar["done"])
        text = line[-_LONGEST_LINE:]
        text = re.sub(COLOR, "", text) if "\x1b" in text else text
        lowered = text.lower() if "reward" in text else ""  # for a search that takes longer
        if ("done" in lowered or "terminated" in lowered) and _EPISODE_END.search(text):
            return None  # a step of an environment, and not of training
        dictionary = _DICTIONARY.search(text) if ": {" in text else None
        headed = _HEADED.search(text) if ": {" in text else None
        of_step = {} if headed is None else _in_dictionary(text[headed.end() :])
        if headed is not None and "/" in "".join(of_step):
            return {**of_step, "step": int(headed["step"])}
        if dictionary is None and "{" in text:
            is_marked = any(mark in text for mark in _MARKS)
            values = _in_dictionary(text[text.index("{") :]) if is_marked or "step" in text else {}
            steps = [values[key] for key in filter(is_step, values) if isinstance(values[key], float)]
            if "}" in text and steps and not all(key.endswith("step") for key in values):  # nothing but counts of steps
                return {**values, "step": steps[0]}
            if is_marked:
                return self._dictionary(location, text, values, before)
        if dictionary is not None:
            kind, step = dictionary["kind"], int(dictionary["step"])
            if kind == "step":
                self._next_update = step + 1
            elif kind != "eval":
                if step <= self._rollouts.get(kind, -1):  # a resumed run goes back
                    self._next_update = 0
                self._rollouts[kind] = step
                step = max(step, self._next_update)
            self._before = {**_in_dictionary(text[dictionary.start() :]), "step": step}
        else:
            self._before = self._line(location, text)
            if self._before and _MARKDOWN.search(text) and not any(map(_REWARD_OR_LOSS.search, self._before)):
                self._before = {}
            if self._before and "##" in text and _HEADING_WITHIN.match(text):
                self._before = {}
        if self._before:
            self._has_step = True
            self._before = {**ahead, **self._before} if self._is_ahead else self._before
        elif "eward" in text and (mean := _MEAN_REWARD.match(text)) is not None:
            self._is_ahead |= not self._has_step
            self._ahead = {plain_name(mean["key"]): number_or_text(mean["value"])}
        return self._before or None

    def _dictionary(self, location: str, text: str, values: Values, before: Values) -> Values | str | None:
        if "}" not in text or len(values) < 2:
            return CUT_DICTIONARY
        if _ENDED in values:
            self._position = self._num_below = 0
            return None
        if not before and all(map(_REWARD.search, values)):  # those of one response
            return None
        first = _STEP_FIRST.search(text, 0, text.index("{"))
        if first is not None:  # as in W&B's warning of an entry that it drops
            return {**values, "step": int(first["step"])}
        self._position += 1
        if before and self._position <= 2 + self._num_below:  # a line between them may be of every tenth step
            self._num_below += 1
            return {"step": before["step"], **{key: values[key] for key in values if key not in before}}
        self.unnumbered.append((location, values, self._bar, self._position))
        return None

    def _line(self, location: str, text: str) -> Values:
        lowered = text.lower()  # searched for words first, as most lines have none, and patterns take longer
        text = _SKIPPED.sub("", text) if "skip" in lowered else text
        text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text) if "," in text else text
        epoch = _STEP_OF_EPOCH.search(text) if "epoch" in lowered or "iter" in lowered else None
        if epoch is not None and (values := _named(text[epoch.end() :])):
            return {**values, "epoch": int(epoch["epoch"]), "step": int(epoch["step"])}
        bar = _AFTER_BAR.search(text) if has_bar(text) else None
        if bar is not None and any(map(_REWARD_OR_LOSS.search, values := _named(bar["rest"]))):
            if _EVAL_BAR.match(text):
                return {}
            if bar["step"] == bar["total"] and bar["total"] not in self._running:
                last = self.ended[-1][1] if self.ended else {}
                if any(str(last.get(key)) != str(value) for key, value in values.items()):  # often drawn twice
                    self.ended += [] if self.ended and last.keys().isdisjoint(values) else [(location, {})]
                    self.ended[-1][1].update(values)  # of rollouts, and of the update with them
                return {}
            self._running.add(bar["total"])
            return {**values, "step": int(bar["step"])}
        first = _STEP_FIRST.search(text) if any(word in lowered for word in ("step", "iter", "update")) else None
        above = _STEP_ABOVE.search(text) if "step " in lowered else None
        if above is not None:
            self._above = int(above["step"])
        elif first is not None and (values := _named(text[first.end() :])):
            return {**values, "step": int(first["step"])}
        elif "/" in text and (total := _STEP_OF_TOTAL.match(text)) is not None and _are_named(total):
            return {**_named(text[total.start("gap") :]), "step": int(total["step"])}
        elif self._above is not None and ("•" in text or "│" in text) and (values := _named(text)):
            return {**values, "step": self._above}
        elif (episode := _EPISODE_FIRST.match(text)) is not None and (values := _named(text[episode.end() :])):
            name = episode["name"].lower()
            if name == "episode" or any(map(_REWARD.search, values)):  # epochs of any training have a loss
                return {**values, name: int(episode["number"])}
        return self._row(text.rstrip("\\ ").split()) if len(text) < _LONGEST_ROW else {}

    def _row(self, cells: list[str]) -> Values:
        """The row of a table, which may have an index before it; a line of names with the step begins one."""
        if {"step", "global_step"}.intersection(map(str.lower, cells)) and all(map(_COLUMN.fullmatch, cells)):
            names = list(dict.fromkeys(map(plain_name, cells)))
            if 1 < len(names) == len(cells):
                self._columns = names
                return {}
        num_before = len(cells) - len(self._columns)
        if self._columns and num_before in (0, 1):
            numbers = [number_or_text(cell.removesuffix("%")) for cell in cells[num_before:]]
            if all(isinstance(number, float) for number in numbers):
                return dict(zip(self._columns, numbers, strict=True))
        if self._columns and any(map(str.isalnum, "".join(cells))):  # neither blank nor a rule
            self._columns = []
        return {}


def _in_dictionary(text: str) -> Values:
    as_json = "" if "\\" in text else text.rstrip().replace("'", '"')
    return _decoded(as_json) or {pair["key"]: number_or_text(pair["value"]) for pair in _PAIR.finditer(text)}


def _decoded(as_json: str) -> Values:
    """The numbers in an object of nothing else, as which most lines can be read in a tenth of the time; else none."""
    with suppress(msgspec.MsgspecError, UnicodeError):
        return dict(_NUMBERS.decode(as_json))
    return {}


def _are_named(step: re.Match[str]) -> bool:
    """Whether names and numbers follow a step of so many; of a progress bar other numbers may."""
    if _NAMED.match(step.string, step.end()):
        return True
    return _STEP_WORD.search(step["before"]) is not None and bool(_named(step.string[step.start("gap") :]))


def _named(text: str) -> Values:
    """The numbers in a line by name, of lists their mean; none where all are counts of steps."""
    dashed = text.strip("- \n") if _DASHED.match(text) else ""
    usual = _decoded(f'{{"{dashed}}}'.replace(" - ", ',"').replace(":", '":')) if dashed else {}
    named = {plain_name(key): number for key, number in usual.items() if _COLUMN.fullmatch(key)}
    if not named or len(named) < len(usual):
        pattern = _BOXED if "│" in text else _PIPED if "|" in text and not _NAMED.search(text) else _NAMED
        matches = list(pattern.finditer(text))
        if not matches and _SEPARATORS.issuperset(_SPACED.sub("", text)):  # nothing but names and numbers
            matches = _training_pairs(_SPACED, text)
        elif not matches and "," in text:  # names of several words
            matches = _training_pairs(_WORDED, text)
        named = {}
        for key, cell in ((plain_name(pair["key"]), pair["value"]) for pair in matches):
            words = re.split(r"[\s,']+", cell[1:-1]) if cell[0] == "[" else ()
            listed = [number_or_text(word) for word in words if word]
            are_all = listed and all(isinstance(number, float) for number in listed)
            named[key] = sum(map(float, listed)) / len(listed) if are_all else number_or_text(cell)
        lowered = text.lower() if "/" in text else ""  # for a search that takes longer
        has_groups = any(word in lowered for word in ("dead", "degenerate", "zero"))
        for counts in _GROUP_COUNTS.finditer(text, 0, _LONGEST_ROW) if has_groups else ():
            key = "_".join(re.split(r"\W+", counts["key"].lower()))
            if number := int(counts["number"]):
                named[f"frac_{key}{'' if 'group' in key else '_groups'}"] = int(counts["part"]) / number
    return {} if all(key.endswith("step") for key in named) else named


def has_bar(text: str) -> bool:
    """Whether a line may have metrics behind a bar of progress: sought first, as it costs less than the pattern."""
    return "it, " in text or "it/s, " in text


def _training_pairs(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """The names and numbers in a text, if one of them is a reward or a loss."""
    matches = list(pattern.finditer(text))
    return matches if any(_REWARD_OR_LOSS.search(plain_name(pair["key"])) for pair in matches) else []


_LINE_PREFIX = re.compile(rf"^(?:{COLOR})*{RAY}(?:{COLOR})* ?|{COLOR}")
"""What Ray puts before a line, but for the indentation behind it, and colors."""
_HEADING = re.compile(r"(?:Step|.{0,1000} - METRICS STEP) (?P<step>[0-9]{1,15})(?: ===)?")
_OUTLINED = re.compile(
    rf"(?P<indent> {{0,40}})(?P<key>[\w@./-]{{1,200}}):(?: (?P<value>{NUMBER}|-?\.(?:inf|nan)))?", re.IGNORECASE
)
_BOX = re.compile(r"[╭├]─+ Metric(?:s| Table) ─+[╮┤]")
_SECTION = re.compile(r"├─+ (?P<title>[\w/ ]{1,80}) ─+┤")
_STEP_IN_BOX = re.compile(r"│ Global Step:\s{1,15}(?P<step>[0-9]{1,15})/")
_CELL = re.compile(rf"│(?P<key>[^\s│=]{{1,80}})=(?P<value>{NUMBER})\s{{0,80}}(?=│)", re.IGNORECASE)
_ROW = re.compile(r"│ {2}(?P<title>\S*)\s{1,80}(?P<cells>\S.*?)\s*│")
_BLOCK_HEADS = ("Step ", "METRICS STEP", " Metric")  # one of which is in the first line of each block
_LONGEST = 1000  # lines of a block


def blocks_joined(lines: Iterable[Text]) -> Iterator[Text]:
    """Lines of a console, with a block of metrics as one line ``step:N - name:value``, as verl writes it.

    EasyR1 prints ``Step N`` and an outline in YAML below it, torchforge ``METRICS STEP N`` with indented lines, RLinf a
    box with a section for each prefix of names, and open-instruct a box with a prefix before ``name: value | ...``.
    """
    held: list[Text] = []
    is_box = False
    for location, line in lines:
        stripped = _LINE_PREFIX.sub("", line).rstrip() if held or any(word in line for word in _BLOCK_HEADS) else ""
        if held:
            is_inside = stripped[:1] in ("│", "├") if is_box else _OUTLINED.fullmatch(stripped) is not None
            if is_inside and len(held) < _LONGEST:
                held.append((location, stripped))
                continue
            yield from _joined(held)
            held = []
        is_box = _BOX.fullmatch(stripped) is not None
        if is_box or _HEADING.fullmatch(stripped):
            held = [(location, stripped)]
        else:
            yield location, line
    yield from _joined(held)


def _joined(block: list[Text]) -> list[Text]:
    """The line of a block; the block itself, where it has no metrics."""
    first, *below = (line for _, line in block) if block else ("",)
    heading = _HEADING.fullmatch(first)
    step, metrics = (heading["step"], _in_outline(below)) if heading else _in_box(below)
    if not step or not metrics:
        return block
    return [(block[0][0], " - ".join([f"step:{step}", *(f"{name}:{value}" for name, value in metrics.items())]))]


def _in_outline(lines: Sequence[str]) -> dict[str, str]:
    metrics, parents = dict[str, str](), list[tuple[int, str]]()
    for match in filter(None, map(_OUTLINED.fullmatch, lines)):
        parents = [parent for parent in parents if parent[0] < len(match["indent"])]
        parents.append((len(match["indent"]), match["key"]))
        if match["value"] is not None:
            metrics["/".join(key for _, key in parents)] = re.sub(r"\.(?=inf|nan)", "", match["value"].lower())
    return metrics


def _in_box(lines: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The step of a box, and its metrics."""
    metrics, rows, step, title = dict[str, str](), dict[str, str](), "", ""
    for line in lines:
        if section := _SECTION.fullmatch(line):
            title = section["title"].lower().replace(" ", "_")
        elif match := _STEP_IN_BOX.match(line):
            step = match["step"]
        elif "=" in line:
            metrics |= {f"{title}/{cell['key']}": cell["value"] for cell in _CELL.finditer(line)}
        elif row := _ROW.fullmatch(line):
            title = row["title"] or title
            rows[title] = f"{rows.get(title, '')} {row['cells']}"
    for title, text in rows.items():
        cells = (cell.strip().partition(": ") for cell in text.split("|"))
        metrics |= {name if title == "other" else f"{title}/{name}": value for name, _, value in cells if value}
    return step or metrics.get("training_step", ""), metrics
