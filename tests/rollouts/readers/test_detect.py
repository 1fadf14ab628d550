import gzip
import json
import shutil
from pathlib import Path

import pytest

from gradscope.errors import UsageError
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import FORMATS, read_run, runs_below
from tests.conftest import LOGS
from tests.rollouts.build import group
from tests.rollouts.readers.lines import naming, refusal, rewards_of, set_aside, write_lines
from tests.rollouts.test_run_folder import MANIFEST


def test_an_unknown_format_gets_a_suggestion() -> None:
    hint = refusal(LOGS / "trl", "There is no format 'trk'", ReadOptions(reader="trk"), error=UsageError)
    assert "Did you mean 'trl'?" in hint
    assert refusal(LOGS / "trl", "There is no format 'json'", ReadOptions(reader="json"), error=UsageError).startswith(
        "--json prints the result as JSON"
    )
    refusal(LOGS / "trl", "There is no format 'x'", ReadOptions(reader="x"), error=UsageError)


@pytest.mark.parametrize(
    "name",
    [
        *("areal", "miles", "ms_swift", "nemo_rl", "open_instruct", "prime_rl", "prime_rl_tokens", "ragen", "relax"),
        *("roll", "skyrl_eval", "tinker", "verl_legacy", "verl_v1"),
    ],
)
def test_the_lines_of_a_trainer_may_be_compressed(name: str, tmp_path: Path) -> None:
    run, copy = read_run(LOGS / name), tmp_path / name
    shutil.copytree(LOGS / name, copy)
    for index, file in enumerate(sorted(copy.rglob("*.jsonl"))):
        if file.name != "metrics.jsonl":
            file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            if index:  # the first one lies there twice
                file.unlink()
    packed = read_run(copy)
    assert packed.source.format == run.source.format
    assert rewards_of(packed) == rewards_of(run)


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ("gradscope", r"has no readable manifest\.json"),
        ("trl", r"holds no completions/completions_"),
        ("verl", r"has no usable rows; set aside"),
        ("samples", r"has no column that is known to be a reward"),
        ("generic", r"has no column that is known to be a reward"),
    ],
)
def test_a_forced_format_that_does_not_fit_says_what_is_missing(format: str, message: str) -> None:
    assert format in {reader.name for reader in FORMATS}
    refusal(LOGS / "README.md", message, ReadOptions(reader=format))


@pytest.mark.parametrize(
    ("name", "format", "expected"),
    [
        ("trl", "trl", [(1.5, 0.5), (0.0, 0.5), (1.5, 1.5), (0.5, 1.0)]),
        ("verl_v1", "verl", [(1.0, 0.0), (0.0, 0.0)]),
        ("verl_legacy", "verl", [(1.0, 0.0), (0.0, 0.0)]),
        ("samples_rows.jsonl", "samples", [(1.0, 0.0), (0.0, 0.0)]),
        ("samples_lists.jsonl", "samples", [(1.0, 0.0, 1.0), (0.0, 0.0, 0.0)]),
        ("samples_counts.csv", "samples", [(1.0, 1.0, 1.0, 0.0), (0.0,) * 4]),
        ("samples_nested.json", "samples", [(1.0, 0.1), (0.0, 0.0)]),
        ("samples_policies.jsonl", "samples", [(0.0, 1.0), (1.0, 1.0)]),
        ("trials.json", "samples", [(1.0, 0.0), (0.0, 0.0)]),
        ("generic.csv", "generic", [(1.0, 0.0), (1.0, 0.0)]),
    ],
)
def test_every_fixture_is_recognized(name: str, format: str, expected: list[tuple[float, ...]]) -> None:
    run = read_run(LOGS / name)
    assert run.source.format == format
    assert list(rewards_of(run).values()) == expected
    assert run.source.quarantined.num_rows == 0
    assert all(Path(file).is_file() for file in run.source.files)
    assert {group.group_id for group in run.groups} == {r.group_id for g in run.groups for r in g.rollouts}


@pytest.mark.parametrize(
    ("name", "group_id", "prompt", "completion"),
    [
        ("areal", "10:2", "<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n", "1<|im_end|>"),
        ("evalplus", "HumanEval/1", "", "def f(): ..."),
        ("lighteval", "math|0/1", "1?", "4"),
        ("lm_eval", "1", '{"question": "1?"}', "4"),
        ("nemo_rl", "1:1927e6f4576edf9e", "3+3?", "6!"),
        ("roll", "1:math_rule/d/f82343d9c33437b3", "d?", "r3"),
        (
            "skyrl_eval",
            "10:gsm8k/cff21fd6db141dae",
            "<|im_start|>user\nb?<|im_end|>\n<|im_start|>assistant\n",
            "4<|im_end|>",
        ),
    ],
)
def test_the_last_rollout_of_a_log_has_its_texts(name: str, group_id: str, prompt: str, completion: str) -> None:
    last = read_run(LOGS / name).groups[-1].rollouts[-1]
    assert (last.group_id, last.prompt, last.completion) == (group_id, prompt, completion)


def test_a_messy_log_is_read_and_every_row_accounted_for() -> None:
    path = LOGS / "messy.jsonl"
    run = read_run(path)
    assert rewards_of(run) == {"1:a": (1.0, None, None, None), "1:b": (None, None, 1.0, None)}
    assert run.source.num_rows == 2
    assert set_aside(run) == {
        "the reward is not finite": 2,
        "the reward is null": 1,
        "the reward is text": 1,
        "the reward is missing": 1,
        "the reward is a list, not a number": 1,
        "the step is not a whole number": 1,
        "group_id is missing": 1,
        "the line is blank": 1,
        "the line is not UTF-8": 1,
        "the line is not a JSON object": 1,
        "the line is not JSON": 1,
        "the last line is cut off": 1,
    }
    first_rows = {reason.reason: reason.first for reason in run.source.quarantined.reasons}
    assert first_rows["the reward is not finite"] == f"{path}:4"
    assert first_rows["the last line is cut off"] == f"{path}:15"
    message = r"Rows that cannot be used: 13; first .*messy\.jsonl:4: the reward is not finite"
    refusal(path, message, ReadOptions(strict=True))


def test_a_folder_a_glob_and_gzip_hold_the_same(tmp_path: Path) -> None:
    for step in (10, 9):
        row = {"step": step, "group_id": "g", "reward": 1.0}
        with gzip.open(tmp_path / f"{step}.jsonl.gz", "wt") as stream:
            stream.write(json.dumps(row) + "\n")
    by_folder, by_glob = read_run(tmp_path), read_run(str(tmp_path / "*.gz"))
    assert rewards_of(by_folder) == rewards_of(by_glob) == {"9:g": (1.0,), "10:g": (1.0,)}
    assert [Path(file).name for file in by_folder.source.files] == ["9.jsonl.gz", "10.jsonl.gz"]


def test_a_run_folder_of_ours(tmp_path: Path) -> None:
    from gradscope.rollouts.run_folder import append_metrics, write_manifest
    from gradscope.rollouts.store import write_step_rollouts

    write_manifest(tmp_path, MANIFEST)
    refusal(tmp_path, r"holds no rollouts/step", ReadOptions(reader="gradscope"))
    write_step_rollouts(tmp_path, 1, [group(1, rewards=(1.0, None))])
    append_metrics(tmp_path, 1, {"grad_norm": 2.0})
    run = read_run(tmp_path)
    assert run.source.format == "gradscope"
    assert run.groups == (group(1, rewards=(1.0, None)),)
    assert run.metrics == {1: {"grad_norm": 2.0}}
    assert run.settings.get("num_generations") == 4


def test_a_glob_without_matches(tmp_path: Path) -> None:
    refusal(tmp_path / "*.jsonl", r"No file matches .*\*\.jsonl")


@pytest.mark.parametrize(("name", "order"), [("train.log", "le"), ("log.csv", "be")])
def test_a_file_in_utf_16_gets_a_hint_to_convert_it(tmp_path: Path, name: str, order: str) -> None:
    (tmp_path / name).write_text("\ufeffstep,prompt,reward\n1,a,1\n", encoding=f"utf-16-{order}")
    assert "iconv -f UTF-16 -t UTF-8 " in refusal(tmp_path / name, "is UTF-16, and text is read as UTF-8")


def test_a_url_made_a_path_gets_a_hint_to_give_text() -> None:
    hint = refusal(Path("s3://bucket/run"), "There is no file or folder s3:/bucket/run")
    assert hint == "Give a URL as text: a Path drops one of its slashes."


def test_a_forced_format_is_used() -> None:
    assert read_run(LOGS / "verl_v1" / "1.jsonl", ReadOptions(reader="generic")).source.format == "generic"


def test_rollouts_beside_the_metrics_of_a_script_are_read_with_them(tmp_path: Path) -> None:
    rows = [{"step": index // 4, "prompt": f"q{index // 2}", "reward": index % 2} for index in range(8)]
    write_lines(tmp_path / "metrics.jsonl", *({"step": step, "loss": 0.5, "grad_norm": 1.0} for step in range(2)))
    write_lines(tmp_path / "validation.jsonl", *({"prompt": row["prompt"], "reward": row["reward"]} for row in rows))
    assert read_run(tmp_path, metrics_alone=True).source.kind == "metrics"
    write_lines(tmp_path / "rollouts.jsonl", *rows)
    run = read_run(tmp_path)
    assert (run.source.path, len(run.groups)) == (str(tmp_path / "rollouts.jsonl"), 4)
    assert run.metrics[1]["grad_norm"] == 1.0
    for named in ({"metric_columns": ("frac_reward_zero_std=loss",)}, {"columns": ColumnNames(step="step")}):
        assert read_run(tmp_path, ReadOptions(**named), metrics_alone=True).source.kind == "metrics"
    (tmp_path / "rollouts.jsonl").rename(tmp_path / "rollouts[a]_1.jsonl")
    write_lines(tmp_path / "rollouts[a]_2.jsonl", *(row | {"step": row["step"] + 2} for row in rows))
    multiple = read_run(tmp_path)
    assert (len(multiple.groups), multiple.metrics[1]["grad_norm"]) == (8, 1.0)
    assert [Path(file).name for file in multiple.source.files] == [
        "rollouts[a]_1.jsonl",
        "rollouts[a]_2.jsonl",
        "metrics.jsonl",
    ]
    write_lines(tmp_path / "others.jsonl", *rows)
    assert "Name the file of rollouts" in refusal(tmp_path, "holds metrics and no rollouts")
    names = "'others.jsonl', 'rollouts[a]_1.jsonl'"
    sentence = f"Rollouts by step lie in files of several names, {names}, which are not pooled: name one of them."
    assert read_run(tmp_path, metrics_alone=True).source.missing[-1] == sentence


@pytest.mark.parametrize("name", ["args.json", "config.json"])
def test_rollouts_beside_the_arguments_of_a_script_are_read(name: str, tmp_path: Path) -> None:
    write_lines(tmp_path / "rollouts.jsonl", *({"step": i, "prompt": "q", "reward": i % 2} for i in range(4)))
    write_lines(tmp_path / name, {"loss_type": "grpo", "seeds": [1, 2], "optimizer": {"lr": 1e-3}})
    assert read_run(tmp_path).source.path == str(tmp_path / "rollouts.jsonl")
    (tmp_path / "rollouts.jsonl").unlink()
    assert "Name the columns" in refusal(tmp_path, "is not a log that gradscope knows")


@pytest.mark.parametrize(
    ("first", "second", "prompts", "are_pooled"),
    [
        ("code.jsonl", "math.jsonl", "q", False),
        ("code_1.jsonl", "math_1.jsonl", "q", False),
        ("train.jsonl", "validation.jsonl", "p", False),
        ("seed_0.jsonl", "seed_1.jsonl", "q", False),
        ("a_lr1e-5.jsonl", "a_lr1e-6.jsonl", "q", False),
        ("a.jsonl", "b.jsonl", "q", False),
        ("seed_0.jsonl", "seed_1.jsonl", "p", True),
        ("rank_0.jsonl", "rank_1.jsonl", "q", True),
        ("code.jsonl", "math.jsonl", "p", True),
        ("first.jsonl", "latest.jsonl", "p", True),
    ],
)
def test_rollouts_of_the_same_groups_in_files_of_other_names_are_not_pooled(
    first: str, second: str, prompts: str, are_pooled: bool, tmp_path: Path
) -> None:
    for name, letter in ((first, "q"), (second, prompts)):
        rows = ({"step": i // 4, "prompt": f"{letter}{i // 2}", "reward": i % 2, "in": name} for i in range(8))
        write_lines(tmp_path / name, *rows)
    if are_pooled:
        assert sum(group.size for group in read_run(tmp_path).groups) == 16
        write_lines(tmp_path / "z.jsonl", {"step": 0, "loss": 0.5})
        assert sum(group.size for group in read_run(tmp_path).groups) == 16
    else:
        hint = refusal(tmp_path, "in files of several names")
        assert hint == f"If all are of one run, name them so: '{tmp_path}/*.jsonl'"
        assert sum(group.size for group in read_run(f"{tmp_path}/*.jsonl").groups) == 16


def test_a_sample_of_each_prompt_in_the_file_of_each_seed(tmp_path: Path) -> None:
    for seed in range(3):
        rows = ({"step": 100, "prompt": f"q{index}", "reward": index % 2} for index in range(4))
        write_lines(tmp_path / f"seed_{seed}.jsonl", *rows)
    assert [group.size for group in read_run(tmp_path).groups] == [3] * 4


@pytest.mark.parametrize(
    ("card", "text", "hint"),
    [
        ("", "holds no completions/completions_", "log_completions=True"),
        (
            "This model was trained with RLOO, a method.\n",
            "was trained with RLOO, as its README.md says",
            "Log rollouts",
        ),
    ],
)
def test_a_folder_of_trls_without_completions_says_what_to_log(tmp_path: Path, card: str, text: str, hint: str) -> None:
    shutil.copy(LOGS / "metrics" / "trainer_state.json", tmp_path)
    (tmp_path / "README.md").write_text(card)
    given = refusal(tmp_path, f"holds metrics and no rollouts.*{text}")
    assert hint in given
    assert "answer from metrics alone" in given


def test_rollouts_in_a_folder_below_the_metrics_of_a_script_are_read_with_them(tmp_path: Path) -> None:
    rows = [{"step": index // 4, "prompt": f"q{index // 2}", "reward": index % 2} for index in range(8)]
    (tmp_path / "log.csv").write_text("step,loss,grad_norm\n0,0.5,1.0\n1,0.5,2.0\n")
    for folder in ("rollouts", "eval", "checkpoint-1"):
        for step in range(2):
            write_lines(tmp_path / folder / f"step_{step}.jsonl", *rows[4 * step : 4 * step + 4])
    (tmp_path / "checkpoint-1" / "config.json").write_text("{}")
    run = read_run(tmp_path)
    assert (len(run.groups), run.metrics[1]["grad_norm"]) == (4, 2.0)
    assert [Path(file).parent.name for file in run.source.files[:2]] == ["rollouts", "rollouts"]
    (tmp_path / "eval").rename(tmp_path / "samples")
    refusal(tmp_path, "holds metrics and no rollouts")


def test_what_a_reader_has_no_use_for_is_refused() -> None:
    neat, side = naming(reward="neat"), ReadOptions(completion_ids=LOGS / "generic.csv")
    refusal(LOGS / "trl", "is read as trl, whose columns are known", neat, error=UsageError)
    refusal(LOGS / "generic.csv", "a side file of completion ids goes with a TRL run only", side, error=UsageError)
    file = LOGS / "trl" / "completions" / "completions_00001.parquet"
    columns = ColumnNames(reward="neat", group="prompt")
    assert read_run(file, ReadOptions(reader="generic", columns=columns)).groups[0].rewards == (1.0, 1.0)


@pytest.mark.parametrize("cells", [{"reward": 1e61}, {"reward": -1e308}])
def test_rewards_that_cannot_be_added_up_are_refused(tmp_path: Path, cells: dict[str, object]) -> None:
    log = tmp_path / "log.jsonl"
    rows = [{"step": 1, "prompt_id": "p", "reward": reward} for reward in (0.0, None, 1e60)]
    assert len(read_run(write_lines(log, *rows)).groups) == 1
    write_lines(log, *rows, {"step": 1, "prompt_id": "p"} | cells)
    refusal(log, r"has a reward of 1e\+(61|308) in size, and such beyond 1e\+60")


@pytest.mark.parametrize(
    ("logs", "read", "other"),
    [
        (("trl", "verl_legacy"), "trl", "verl"),
        (("slime", "roll"), "slime", "roll"),
        (("nemo_rl", "art"), "nemo-rl", "art"),
    ],
)
def test_files_of_another_trainer_are_named(tmp_path: Path, logs: tuple[str, str], read: str, other: str) -> None:
    for log in logs:
        shutil.copytree(LOGS / log, tmp_path, dirs_exist_ok=True)
    sentence = f"Files of {other} are in the folder, too, and are left out: read them with --reader."
    source = read_run(tmp_path).source
    assert (source.format, sentence in source.missing) == (read, True)
    assert sentence not in read_run(tmp_path, ReadOptions(reader=read)).source.missing
    assert read_run(tmp_path, ReadOptions(reader=other)).source.format == other


def test_runs_below_a_file_of_rollouts_are_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "best.jsonl", *({"step": 1, "prompt_id": "p", "reward": index % 2} for index in range(4)))
    for name in ("a", "b"):
        shutil.copytree(LOGS / "verl_legacy", tmp_path / name)
    source = read_run(tmp_path).source
    assert source.format == "generic"
    assert f"2 runs in the folder, too, left out; name one to read it: {tmp_path / 'a'}" in source.missing
    assert "left out" not in " ".join(read_run(tmp_path / "best.jsonl").source.missing)
    for number in range(50):  # each of which every format would look into
        (tmp_path / f"step_{number}").mkdir()
    assert "left out" not in " ".join(read_run(tmp_path).source.missing)


@pytest.mark.parametrize("below", ["rollouts", "a/run"])
def test_the_only_run_below_a_folder_is_read(below: str, tmp_path: Path) -> None:
    for name in (below, "validation", "val_generations"):  # which verl writes as its rollouts
        shutil.copytree(LOGS / "verl_legacy", tmp_path / name)
    write_lines(tmp_path / "metrics.jsonl", {"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.5})
    source = read_run(tmp_path).source
    assert (source.format, source.path) == ("verl", str(tmp_path / below))


TRL = LOGS / "trl"


@pytest.mark.parametrize(
    ("names", "num_runs"),
    [(("a", "b", "notes"), 2), (("a", "notes"), 0), (("step_1", "step_2"), 0), (("a", "eval"), 0)],
)
def test_folders_of_a_scripts_rollouts_are_runs(names: tuple[str, ...], num_runs: int, tmp_path: Path) -> None:
    for name in names:
        rows = ({"step": index // 4, "prompt": f"q{index // 2}", "reward": index % 2} for index in range(8))
        write_lines(tmp_path / name / "rows.jsonl", *(rows if name != "notes" else [{"step": 1, "note": "a"}]))
    runs = runs_below(tmp_path)
    assert [run.name for run in runs] == list(names[:num_runs])
