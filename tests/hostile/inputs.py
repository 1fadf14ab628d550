"""Models and logs that are too much: sizes that none has, expressions and templates without end, files that lie.

Each case is a fork of a process that has imported what the command needs, with its processor time and the memory that
it took beyond that. A command may read a model or refuse it with a hint, in ``SECONDS`` and ``BYTES``; a large honest
log may take ``LONG``, and more, as more memory, where it says how far it is.
"""

import json
import os
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from tests.conftest import REPOSITORY
from tests.hostile.cases import options_of, summarize, wrong_end
from tests.hostile.writes import forked, preload

SECONDS, BYTES, LONG = 10.0, 1 << 30, 60.0
RANK = ("rank", "chat.jsonl", "--model", "model", "--initial", "model", "--step", "1", "--quiet")


def _json(name: str, **changes: Any) -> Callable[[Path], None]:
    """Change fields of a document; a name with dots leads inwards."""

    def change(model: Path) -> None:
        document = json.loads((model / name).read_text())
        for path, value in changes.items():
            *outer, last = path.split(".")
            inner = document
            for part in outer:
                inner = inner[part]
            inner[last] = value
        (model / name).write_text(json.dumps(document))

    return change


def _config(**changes: Any) -> Callable[[Path], None]:
    return _json("config.json", **changes)


def _template(text: str) -> Callable[[Path], None]:
    return _json("tokenizer_config.json", chat_template=text)


def _text(name: str, text: str | bytes) -> Callable[[Path], None]:
    return lambda model: (model / name).write_bytes(text.encode() if isinstance(text, str) else text) and None


def _header(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change the header of the weights, their numbers left as they are."""

    def rewrite(model: Path) -> None:
        data = (model / "model.safetensors").read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])

    return rewrite


def _every(**fields: Any) -> Callable[[Path], None]:
    return _header(lambda header: [entry.update(fields) for name, entry in header.items() if name != "__metadata__"])


def _index(shard: str, number: int = 1) -> Callable[[Path], None]:
    def write(model: Path) -> None:
        document = {"metadata": {"total_size": 10**18}, "weight_map": {f"x{index}": shard for index in range(number)}}
        (model / "model.safetensors.index.json").write_text(json.dumps(document))
        (model / "model.safetensors").unlink()

    return write


def _code(model: Path) -> None:
    """Code that a hub's model may bring along, under every name by which it is asked for."""
    (model / "evil.py").write_text("open('ran', 'w').close()\nclass Evil: pass\n")
    auto = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"), "evil.Evil")
    _config(auto_map=auto, model_type="evil", architectures=["Evil"], trust_remote_code=True)(model)
    _json("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", None]}, tokenizer_class="Evil")(model)


_SIZES = ("num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_ENDLESS = "((a|a?)+)+$"
_LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
MODELS: dict[str, Callable[[Path], None]] = {
    "sound": lambda model: None,
    **{
        f"{name} {size}": _config(**{name: size})
        for name in _SIZES
        for size in (0, -1, 10**6, 10**12, 10**400, "x", True)
    },
    **{f"max_position_embeddings {size}": _config(max_position_embeddings=size) for size in (0, 10**12, -5, None)},
    **{
        f"{kind}": _config(model_type=kind)
        for kind in ("mixtral", "mamba", "gpt2", "deepseek_v3", "whisper", "../x", "")
    },
    "a million experts": _config(model_type="mixtral", num_local_experts=10**6),
    "a million labels": lambda model: _config(id2label={str(label): "x" for label in range(10**6)})(model),
    "kernels of the hub": _config(attn_implementation="kernels-community/flash-attn", _attn_implementation="a/b:c"),
    "kernels by a flag": _config(use_kernels=True, experts_implementation="a/b"),
    "code of the hub": _code,
    "a dtype": _config(dtype="os.system", torch_dtype="os.system"),
    **{f"rope {value}": _config(rope_parameters=value) for value in ({"rope_type": "x"}, {"rope_theta": -1}, 7, [])},
    **{
        f"quantized: {kind}": _config(quantization_config={"quant_method": kind})
        for kind in ("gptq", "awq", "bitsandbytes", "fp8", "mxfp4", "x")
    },
    "quantized: no object": _config(quantization_config=[1]),
    "quantized in the tensors alone": _every(dtype="I8"),
    **{f"dtype {kind}": _every(dtype=kind) for kind in ("F8_E4M3", "F4", "BOOL", "U64", "C64", "x", 7, None)},
    **{f"shape {shape}": _every(shape=shape) for shape in ([2**40, 0], [2**62, 2**62], [-1], [], "x", [1.5])},
    **{f"offsets {ends}": _every(data_offsets=ends) for ends in ([0, 0], [0, 2**63], [8, 0], [-8, 8], [0, 4], "x")},
    "a header of 2^63": lambda model: _text("model.safetensors", struct.pack("<Q", 2**63) + b"{}")(model),
    "a header of 100 MB": lambda model: _text("model.safetensors", struct.pack("<Q", 10**8) + b" " * 10**8)(model),
    "deep metadata": _header(lambda header: header.update(__metadata__={"a": "[" * 10**6})),
    "a million tensors of nothing": _header(
        lambda header: header.update(
            {f"x{index}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for index in range(10**5)}
        )
    ),
    **{
        f"shard {shard}": _index(shard)
        for shard in ("/etc/passwd", "../../log.jsonl", "absent.safetensors", "model.safetensors.index.json", ".", "")
    },
    "an index of a million": _index("x.safetensors", 10**6),
    "a pickle alone": lambda model: (model / "model.safetensors").rename(model / "pytorch_model.bin") and None,
    **{
        f"splits by {text}": _json("tokenizer.json", **{"pre_tokenizer.pattern": {"Regex": text}})
        for text in (_ENDLESS, "(?:a+)+b", "(", "a" * 10**6, "(a{1000}){1000}", r"(?<!a{0,99999})")
    },
    "replaces by an endless one": _json(
        "tokenizer.json", normalizer={"type": "Replace", "pattern": {"Regex": _ENDLESS}, "content": ""}
    ),
    "replaces one letter by ten thousand": _json(
        "tokenizer.json", normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10**4}
    ),
    "charsmap": _json("tokenizer.json", normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA////"}),
    **{
        f"an id of {number}": _json("tokenizer.json", **{"model.vocab": {"<pad>": 0, "<eos>": 1, "a": number}})
        for number in (2**31, 2**40, -1)
    },
    "a million tokens added": lambda model: _json(
        "tokenizer.json",
        added_tokens=[{"id": 22 + n, "content": f"<{n}>"} | dict.fromkeys(_FLAGS, False) for n in range(10**5)],
    )(model),
    **{f"tokenizer.json {text[:9]}": _text("tokenizer.json", text) for text in ("", "[]", "{}", '{"model":' * 10**5)},
    "template: endless loops": _template(_LOOP),
    "template: a large range": _template("{% for a in range(10**12) %}{% endfor %}"),
    "template: much text": _template("{{ 'a' * 10**11 }}"),
    "template: doubled text": _template(
        "{% set ns = namespace(x='a') %}{% for a in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
    ),
    "template: a large power": _template("{{ 9 ** 9 ** 9 }}"),
    "template: calls itself": _template("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
    "template: wide": _template("{{ '%1000000000d' | format(1) }}{{ 'a' | center(10**10) }}"),
    "template: the machine": _template(
        "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ cycler.__init__.__globals__.os.system('touch ran') }}"
    ),
    "template: a file": _template("{% include '/etc/passwd' %}"),
    "template: none": _template("{% for"),
    "template: raises": _template("{{ raise_exception('\x1b[31mno') }}"),
}
"""What a folder of a model is made to be."""


def _lines(number: int, line: Callable[[int], str]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        with (folder / "log").open("w") as file:
            file.writelines(f"{{{line(n)}}}\n" for n in range(number))

    return write


def write_texts(folder: Path, number: int = 20_000) -> None:
    """A folder of files that hold no rollouts."""
    (folder / "log").mkdir()
    for index in range(number):
        (folder / "log" / f"{index}.txt").write_text(f"words of {index}\n")


_DEGENERACY, _PAGE = ("degeneracy", "log"), ("report", "log", "--no-gradients", "--output", "page.html")
_PROMPTS = _lines(
    2_000_000,
    lambda n: f'"step": {n // 2000}, "prompt_id": "p{n // 2}", "reward": {n % 3 % 2}, "length": {n % 99}',
)
_STEPS = _lines(4_000_000, lambda n: f'"step": {n // 2}, "prompt_id": "p", "reward": {n % 3 % 2}')
_METRICS = _lines(
    2_000_000, lambda n: f'"step": {n}, "reward": {n % 9 / 9}, "frac_reward_zero_std": {n % 5 / 5}, "loss": {n}'
)
WORST: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "2 million rollouts of a million prompts": (_PROMPTS, _DEGENERACY),
    "4 million rollouts of 2 million steps": (_STEPS, _DEGENERACY),
    "2 million rows of metrics": (_METRICS, _DEGENERACY),
    "a page of 2 million rows of metrics": (_METRICS, _PAGE),
    "a page of 2 million rollouts of a million prompts": (_PROMPTS, _PAGE),
    "a folder of 20,000 texts": (write_texts, _DEGENERACY),
}
"""Large logs as somebody may have them, and what is asked."""


class Taken(NamedTuple):
    """What a case came to."""

    name: str
    code: int
    seconds: float  # of processor time
    bytes: int  # beyond what the imports take
    why: str  # it did not hold; empty where it did

    def __str__(self) -> str:
        return f"{self.name[:60]}: exit {self.code}, {self.seconds:.1f} s, {self.bytes >> 20} MiB"


def make_base(folder: Path) -> None:
    """A small model that a log of chats was sampled from."""
    shutil.copytree(REPOSITORY / "gradscope" / "training" / "embedded", folder / "base")
    _template("{% for m in messages %}{{ m.content }}{% endfor %}=")(folder / "base")
    row = {"step": 1, "prompt_id": "p", "prompt": [{"role": "user", "content": "a" * 40 + "b"}], "completion": "12"}
    (folder / "chat.jsonl").write_text("".join(json.dumps(row | {"reward": sample % 2}) + "\n" for sample in range(4)))


def taken(folder: Path, name: str, arguments: tuple[str, ...], *, seconds: float = SECONDS, most: int = BYTES) -> Taken:
    """Run a command in a fork and measure it."""
    measurement = folder / ".told"

    def measured() -> None:
        signal.alarm(int(60 * seconds))  # the machine may be busy
        resource.setrlimit(resource.RLIMIT_CPU, (int(3 * seconds), int(3 * seconds)))
        before, exit_now = resource.getrusage(resource.RUSAGE_SELF), os._exit

        def tell(code: int) -> None:
            after = resource.getrusage(resource.RUSAGE_SELF)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            measurement.write_text(json.dumps([used, (after.ru_maxrss - before.ru_maxrss) << 10]))
            exit_now(code)

        os._exit = tell  # type: ignore[assignment]

    measurement.unlink(missing_ok=True)
    code, err = forked(folder, arguments, measured)
    used, num_bytes = json.loads(measurement.read_text()) if measurement.exists() else (3 * seconds, 0)
    measurement.unlink(missing_ok=True)
    says_progress = seconds == LONG and re.search(r"^[0-9]+ of [0-9]+ ", err, re.M)
    why = ""
    if (used > seconds or num_bytes > most) and not says_progress:
        why = f"{used:.0f} s, {num_bytes >> 20} MiB"
    elif any(ord(letter) < 32 and letter != "\n" for letter in err):
        why = "an escape reached the terminal"
    elif (folder / "ran").exists() or (folder / "model" / "ran").exists():
        why = "it ran code"
    return Taken(name, code, used, num_bytes, wrong_end(code, err) or why)


def models(folder: Path, names: list[str]) -> Iterator[Taken]:
    """Each of some models, asked for the rank of a step."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    preload(["rank"])
    make_base(folder)
    for name in names:
        shutil.rmtree(folder / "model", ignore_errors=True)
        shutil.copytree(folder / "base", folder / "model")
        MODELS[name](folder / "model")
        yield taken(folder, name, RANK)


def logs(folder: Path, names: list[str]) -> Iterator[Taken]:
    """Each of some large logs."""
    preload(["report"])
    for name in names:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            make, arguments = WORST[name]
            make(Path(place))
            yield taken(Path(place), name, arguments, seconds=LONG)


if __name__ == "__main__":
    options = options_of("inputs", __doc__, only="")
    with tempfile.TemporaryDirectory() as folder:
        of_models, of_logs = ([name for name in kind if options.only in name] for kind in (MODELS, WORST))
        every = chain(logs(Path(folder), of_logs), models(Path(folder), of_models))
        sys.exit(summarize((str(outcome), outcome.why) for outcome in every))
