"""What an installation is made of: hashes for a locked one, a bill of materials, and what each command loads.

    pip install --dry-run --ignore-installed --report report.json -c constraints.txt '.[test]'
    python -m benchmarks.supply lock report.json > constraints.hashes.txt
    python -m benchmarks.supply sbom > gradscope.cdx.json
    python -m benchmarks.supply imports [RUN]

The lock is of the platform that pip ran on: one wheel a package. The bill is CycloneDX 1.5 of what is installed here.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

LOG, RUN = "fixtures/logs/generic.csv", "fixtures/logs/trl"
COMMANDS = {
    "`--help`": "--help",
    "`explain`": "explain effective_rank",
    "`degeneracy`": f"degeneracy {LOG}",
    "`degeneracy` at a URL": "degeneracy http://127.0.0.1:9/a.jsonl",
    "`passk`": "passk fixtures/logs/samples_rows.jsonl",
    "`compare`": f"compare {LOG} {LOG}",
    "`check`": f"check {LOG} --require frac_reward_zero_std<=1",
    "`claims --no-gradients`": f"claims {RUN} --no-gradients",
    "`spike`": f"spike {RUN}",
    "`report --no-gradients`": f"report {RUN} --no-gradients --output OUT/page.html",
    "`replay`, `rank`, without a model": f"replay {RUN} --step 1",
}
_LOADED = """
import contextlib, io, sys
bare = set(sys.modules)
from gradscope.__main__ import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    for arguments in sys.argv[1:]:
        main(arguments.split())
sys.__stdout__.write(" ".join({name.partition(".")[0] for name in sys.modules.keys() - bare}))
"""


def locked(report: dict[str, Any]) -> Iterator[str]:
    """The lines of a file for ``pip install --require-hashes -r``, by name."""
    for package in sorted(report["install"], key=lambda package: str(package["metadata"]["name"]).lower()):
        about, info = package["metadata"], package["download_info"]
        if "archive_info" in info:
            yield f"{about['name']}=={about['version']} --hash=sha256:{info['archive_info']['hashes']['sha256']}"


def bill() -> dict[str, Any]:
    """The distributions that are installed here, with licenses, requirements and the hash of each one's own record."""
    found = {_name(one.metadata["Name"]): one for one in metadata.distributions()}
    references = {name: f"pkg:pypi/{name}@{one.version}" for name, one in found.items()}
    parts, needs = [], []
    for name, one in sorted(found.items()):
        license_of = one.metadata.get("License-Expression") or (one.metadata.get("License") or "").partition("\n")[0]
        part = {"type": "library", "bom-ref": references[name], "purl": references[name], "name": name}
        licenses = [{"license": {"name": license_of}}] if license_of else []
        parts.append(part | {"version": one.version, "licenses": licenses})
        wanted = {_name(re.split(r"[^\w.-]", need)[0]) for need in one.requires or () if "extra ==" not in need}
        needs.append({"ref": references[name], "dependsOn": sorted(references[at] for at in wanted & found.keys())})
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": parts, "dependencies": needs}


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def loaded(*commands: str) -> list[str]:
    """The distributions of others that some commands load, one after the other in a process of their own."""
    with TemporaryDirectory() as out:
        run = [sys.executable, "-c", _LOADED, *(command.replace("OUT", out) for command in commands)]
        names = set(subprocess.run(run, capture_output=True, text=True, check=True).stdout.split())
    homes = metadata.packages_distributions()
    return sorted({_name(homes[name][0]) for name in names & homes.keys()} - {"gradscope"})


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("lock", "sbom", "imports"))
    parser.add_argument(
        "path", type=Path, nargs="?", help="for lock, what pip reported; for imports, a run with checkpoints"
    )
    asked = parser.parse_args()
    if asked.what == "lock":
        print("\n".join(locked(json.loads(asked.path.read_bytes()))))
    elif asked.what == "sbom":
        print(json.dumps(bill(), indent=1))
    else:
        print("| command | loads |\n|---|---|")
        several = ("rank", "replay", "claims", "spike", "report --output OUT/page.html") if asked.path else ()
        of_model = {f"`{command.split()[0]}`, of a model": f"{command} {asked.path} --step 1" for command in several}
        for name, arguments in (COMMANDS | of_model).items():
            print(f"| {name} | {', '.join(loaded(arguments))} |", flush=True)


if __name__ == "__main__":
    main()
