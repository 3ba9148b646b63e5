# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mutation test of the parts where a small mistake hurts most: MIG, geometry, the planner and its packing.

mutmut works on a copy below build/mutation that is laid out as Python imports the collection, with the unit tests named
after the mutated modules; it runs for each mutant only those that reach it. The survivors and their diffs are written down there.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import tree
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code

WORK = tree.ROOT / "build" / "mutation"
COPY = pathlib.Path("ansible_collections/gpuops/fleet")
MUTATED = (
    "plugins/module_utils/geometry*.py",
    "plugins/module_utils/mig*.py",
    "plugins/plugin_utils/packing*.py",
    "plugins/plugin_utils/planner*.py",
    "plugins/plugin_utils/problem.py",
    "plugins/plugin_utils/state.py",
)
SETTINGS = """
[tool.mutmut]
source_paths = ["ansible_collections"]
only_mutate = [{mutated}]
pytest_add_cli_args = [
    "-c", "pyproject.toml", "-m", "not slow",
    "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov",
]
pytest_add_cli_args_test_selection = [{tests}]
use_git_change_detection = false

[tool.pytest.ini_options]
# mutmut leaves files open and forks; those warnings are not the product's.
filterwarnings = ["default"]
markers = ["slow"]
"""


def mutated_files() -> list[pathlib.Path]:
    """The files to mutate, relative to the root; each pattern must find some, or the list above has gone stale."""
    found = []
    for pattern in MUTATED:
        files = [path.relative_to(tree.ROOT) for path in sorted(tree.ROOT.glob(pattern))]
        if not files:
            raise SystemExit(f"no file matches {pattern}: mend MUTATED in {pathlib.Path(__file__).name}")
        found += files
    return found


def relevant_tests(mutated: list[pathlib.Path]) -> list[pathlib.Path]:
    """Unit tests named after a mutated module: ``test_mig_module.py`` belongs to ``mig.py``."""
    stems = {name.stem for name in mutated}
    named = re.compile(rf"test_({'|'.join(sorted(stems))})(_.*)?\.py")
    return [name for name in tree.project_files("tests/unit") if named.fullmatch(name.name)]


def prepare(mutated: list[pathlib.Path], tests: list[pathlib.Path]) -> None:
    """Lay out the copy and mutmut's settings, from nothing: yesterday's verdicts are not today's."""
    shutil.rmtree(WORK, ignore_errors=True)
    tree.mirror(WORK / COPY)

    def quoted(names: list[pathlib.Path]) -> str:
        return ", ".join(f'"{COPY / name}"' for name in names)

    (WORK / "pyproject.toml").write_text(SETTINGS.format(mutated=quoted(mutated), tests=quoted(tests)), encoding="utf-8")
    built = WORK / "mutants" / COPY / "build"
    built.mkdir(parents=True)
    (built / "simulator").symlink_to(tree.ROOT / "build" / "simulator")


def run_mutmut(jobs: int) -> None:
    """Run mutmut; its own display goes to a log, a line now and then to us."""
    log = WORK / "mutmut.log"
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(jobs)]
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(command, cwd=WORK, stdout=stream, stderr=subprocess.STDOUT)
        shown = time.monotonic()
        while process.poll() is None:
            time.sleep(0.5)
            if time.monotonic() - shown > 20:
                shown = time.monotonic()
                print(f"  {progress(log)}", flush=True)
    if process.returncode != 0:
        print(log.read_text(encoding="utf-8").replace("\r", "\n")[-6000:], file=sys.stderr)
        raise SystemExit(f"mutmut ended with {process.returncode}; all it said is in {log.relative_to(tree.ROOT)}")


def progress(log: pathlib.Path) -> str:
    """The last count that mutmut showed (its faces are survivors), or what it was doing."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 2000))
        shown = re.split(r"[\r\n]+", stream.read().decode("utf-8", "replace").strip())[-1]
    counts = re.search(r"(\d+)/(\d+)\D.*\U0001f641 (\d+)", shown)
    return f"{counts[1]} of {counts[2]} mutants tried, {counts[3]} survive" if counts else shown


def verdicts(mutated: list[pathlib.Path]) -> dict[pathlib.Path, dict[str, str]]:
    """``{file: {mutant: "killed" | "survived" | "no tests" | "timeout" | ...}}``."""
    result: dict[pathlib.Path, dict[str, str]] = {}
    for name in mutated:
        data = SourceFileMutationData(path=COPY / name)
        data.load()
        result[name] = {mutant: str(status_by_exit_code[code]) for mutant, code in data.exit_code_by_key.items()}
    return result


def report(result: dict[pathlib.Path, dict[str, str]]) -> float:
    """Print a table, write the survivors with their diffs; returns the percentage killed."""
    # A mutant that loops for ever or crashes the interpreter was noticed as well.
    noticed = ("killed", "timeout", "segfault")
    survivors = []
    killed = total = 0
    for name, mutants in result.items():
        dead = sum(status in noticed for status in mutants.values())
        killed, total = killed + dead, total + len(mutants)
        print(f"  {name}: {dead}/{len(mutants)} ({100 * dead / max(1, len(mutants)):.1f} %)")
        for mutant, status in sorted(mutants.items()):
            if status not in noticed:
                survivors.append(f"# {mutant}: {status}\n{get_diff_for_mutant(mutant, path=COPY / name)}\n")
    listed = WORK / "survivors.diff"
    listed.write_text("\n".join(survivors), encoding="utf-8")
    percent = 100 * killed / max(1, total)
    print(f"{killed} of {total} mutants killed ({percent:.1f} %); {len(survivors)} survivors in {listed.relative_to(tree.ROOT)}")
    return percent


def main() -> int:
    """Command line: see --help."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--at-least", type=float, default=80.0, help="percentage of the mutants that must be killed")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutate only the files that have this in their name")
    args = parser.parse_args()
    every = mutated_files()
    tests = relevant_tests(every)
    mutated = [name for name in every if args.only in name.name]
    print(f"{len(mutated)} files, tests: {', '.join(test.name for test in tests)}", flush=True)
    prepare(mutated, tests)
    run_mutmut(args.jobs)
    os.chdir(WORK)
    percent = report(verdicts(mutated))
    if percent < args.at_least:
        print(f"fewer than {args.at_least:g} % killed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
