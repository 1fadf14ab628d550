"""A whole `gradscope rank` on a model with 494 M parameters and 152k words, beside one plain forward and backward pass.

`python benchmarks/large_vocabulary.py` makes a Qwen2.5-0.5B-shaped model with random weights, float32, tied embeddings,
and a log of one group (R = 8, T = 256: a prompt of 32 tokens, completions of 224), and prints a table: CPU seconds and
peak memory of the pass over all rows at once and of the command, self-check, start and loading included, each in a
process of its own, one thread, in interleaved pairs. It takes 2 GB of disk, 12 GB of memory and some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NUM_PROMPT, NUM_COMPLETION, NUM_ROLLOUTS, VOCAB = 32, 224, 8, 151936
COMMAND = ("rank", "--step", "1", "--advantage", "logged", "--json", "--engine")


def main() -> None:
    """Print the table, or one cell of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", nargs=2, metavar=("FOLDER", "METHOD"))
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--engines", nargs="+", default=["stream"])
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(measure_cell(Path(arguments.cell[0]), arguments.cell[1])))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_run(Path(folder))
        print("| method | CPU seconds | / plain pass | peak memory, GB |\n|---|---|---|---|")
        for _ in range(arguments.pairs):
            plain = run_cell(folder, "plain")
            for method, cell in (("plain", plain), *((e, run_cell(folder, e)) for e in arguments.engines)):
                ratio = cell["seconds"] / plain["seconds"]
                print(f"| {method} | {cell['seconds']:.0f} | {ratio:.2f} | {cell['peak'] / 1e9:.1f} |", flush=True)


def make_run(folder: Path) -> None:
    """The model with a tokenizer of one word an id, a log of one group, and its trainer's arguments."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model: Any = Qwen2ForCausalLM(config)
    model.save_pretrained(folder / "model")
    ids = {"<pad>": 0, "<end>": 1} | {f"t{i}": i for i in range(2, VOCAB)}
    words = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<pad>")
    tokenizer.save_pretrained(folder / "model")

    def text(number: int) -> str:
        return " ".join(f"t{i}" for i in torch.randint(2, VOCAB, (number,)).tolist())

    prompt = text(NUM_PROMPT)
    rows = [
        {
            "step": 1,
            "prompt": prompt,
            "completion": text(NUM_COMPLETION),
            "reward": float(sample % 2),
            "advantage": 2.0 * (sample % 2) - 1.0,
        }
        for sample in range(NUM_ROLLOUTS)
    ]
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    settings = {"loss_type": "dapo", "beta": 0.0, "num_generations": NUM_ROLLOUTS, "max_completion_length": 256}
    (folder / "args.json").write_text(json.dumps(settings))


def run_cell(folder: str, method: str) -> dict[str, float]:
    """Measure a cell in a process of its own."""
    command = [sys.executable, __file__, "--cell", folder, method]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    cell: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return cell


def measure_cell(folder: Path, method: str) -> dict[str, float]:
    """CPU seconds and the most memory: of the pass alone, of the whole command."""
    if method == "plain":
        seconds = plain_seconds(folder)
        return {"seconds": seconds, "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
    files = [str(folder / "log.jsonl"), "--initial", str(folder / "model"), "--run-config", str(folder / "args.json")]
    command = [sys.executable, "-m", "gradscope", *COMMAND, method, *files]
    done = subprocess.run(command, check=True, capture_output=True)
    assert json.loads(done.stdout)["result"], "the command has a result"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": used.ru_utime + used.ru_stime, "peak": 1024 * used.ru_maxrss}


def plain_seconds(folder: Path) -> float:
    """One forward and backward pass over all rows as one batch, logits formed whole where a completion is predicted."""
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder / "model")
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    ids = torch.tensor([tokenizer(f"{row['prompt']} {row['completion']}")["input_ids"] for row in rows])
    start = time.process_time()
    logits = model.eval()(input_ids=ids, use_cache=False, logits_to_keep=NUM_COMPLETION + 1).logits[:, :-1]
    chosen = logits.gather(2, ids[:, NUM_PROMPT:, None]).squeeze(2)
    (chosen - torch.logsumexp(logits, 2)).sum().backward()
    return time.process_time() - start


if __name__ == "__main__":
    main()
