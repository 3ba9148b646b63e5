# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's command line, behind ``make lab``, ``make lab-all`` and ``make lab-shell``; molecule calls ``up``, ``verify`` and ``down``."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the folder that holds the package lab

from lab import process, stories_bare, stories_devices, stories_rollout, stories_upgrade
from lab.commands import full_disk
from lab.errors import LabError
from lab.places import LAB, LOGS, REPOSITORY
from lab.site import Site, last_failure, log_of, prepare, scenarios
from lab.stories import STORIES
from lab.turn import turn

# What CI runs.
# What CI has the time for; the others need a person, or a night.
SMOKE = ("main_job",)
# Scenarios that cannot pass yet, and why. One that passes all the same is an error: it has to be taken from here.
EXPECTED_FAILURES: dict[str, str] = {}
# Three reboots under emulation take half of it; a lab.yml may say another number of `seconds`.
SCENARIO_SECONDS = 3600.0
STARTED = time.monotonic()
# Whose stories have acts of their own; without an entry, those of a rollout.
BOOKS: dict[str, t.Any] = {"bare": stories_bare, "devices": stories_devices, "upgrade": stories_upgrade}
# A step's beginning in molecule's log, with a terminal and without.
STEP = re.compile(r"(?:➜ |> )(\w+)(?:: |\] )Executing$", re.MULTILINE)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def say(message: str) -> None:
    """A line with the minutes since the start."""
    passed = int(time.monotonic() - STARTED)
    print(f"lab {passed // 60:3d}:{passed % 60:02d}  {message}", flush=True)


def duration(seconds: float) -> str:
    """For people: ``3 min 07 s``."""
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


class Failure(t.NamedTuple):
    """Why a scenario failed. ``told``: its story said so; else the lab itself, or a step before, went wrong."""

    reason: str
    told: bool


def told_by(name: str) -> Path:
    """Where a scenario's story keeps what is not so, for it runs below Ansible, which wraps what it prints."""
    return LOGS / f"{name}.problems"


def wrong_in(name: str) -> Path:
    """The same for what went wrong in the lab itself."""
    return LOGS / f"{name}.error"


@contextlib.contextmanager
def followed(name: str, log: Path) -> t.Iterator[None]:
    """Inside, says which of molecule's steps a scenario is in, as its log tells."""
    over = threading.Event()

    def follow() -> None:
        told = 0
        while not over.wait(1):
            with contextlib.suppress(OSError):
                steps = STEP.findall(COLOUR.sub("", log.read_text(encoding="utf-8", errors="replace")))
                for step in steps[told:]:
                    say(f"{name}: {step}")
                told = len(steps)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def run_scenario(name: str) -> Failure | None:
    """Runs molecule's whole test sequence. None when it passed."""
    site, log = Site(name), log_of(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    for path in (told_by(name), wrong_in(name)):
        path.unlink(missing_ok=True)
    seconds = float(site.lab.get("seconds", SCENARIO_SECONDS))
    argv = [str(Path(sys.executable).parent / "molecule"), "--no-debug", "test", "--scenario-name", name, "--destroy", "always"]
    try:
        with log.open("w", encoding="utf-8") as file, followed(name, log):
            done = process.attend(argv, seconds=seconds, cwd=REPOSITORY, stdout=file, stderr=subprocess.STDOUT)
    except FileNotFoundError as error:
        raise LabError(f"there is no {argv[0]} here: `make lab` installs it") from error
    except subprocess.TimeoutExpired:
        return Failure(f"it did not end within {duration(seconds)}", told=False)
    finally:
        site.down()
        process.end_tests()  # Ansible's workers lead sessions of their own
    if done.returncode == 0:
        return None
    for path, told in ((wrong_in(name), False), (told_by(name), True)):
        if path.exists():
            return Failure(path.read_text(encoding="utf-8").splitlines()[0], told)
    return Failure(full_disk() or last_failure(log), told=False)


def run_all(names: list[str]) -> int:
    """Runs scenarios one after the other and says how each went; the exit status."""
    say("preparing")
    for recipe in dict.fromkeys(Site(name).recipe for name in names):
        prepare(say, recipe)
    say("prepared")
    results: list[tuple[str, str, float]] = []
    for name in names:
        say(f"{name}: running (log: {log_of(name).relative_to(REPOSITORY)})")
        started = time.monotonic()
        failure = run_scenario(name)
        expected = EXPECTED_FAILURES.get(name)
        if expected and failure is None:
            outcome = "FAILED: it passes, although it is listed as an expected failure: take it from the list in tests/lab/run.py"
        elif expected and failure and failure.told:
            outcome = f"failed, as expected: {expected}"
        else:
            outcome = f"FAILED: {failure.reason}" if failure else "passed"
        results.append((name, outcome, time.monotonic() - started))
        say(f"{name}: {outcome} in {duration(results[-1][2])}")
    failed = [name for name, outcome, _seconds in results if outcome.startswith("FAILED")]
    print()
    for name, outcome, seconds in results:
        print(f"  {name:<14} {duration(seconds):>12}  {outcome}")
    print(f"lab: {len(results) - len(failed)} of {len(results)} as they should be, in {duration(time.monotonic() - STARTED)}", flush=True)
    return 1 if failed else 0


def shell(name: str) -> None:
    """Leaves a scenario's guests running and prints how to enter them."""
    site = Site(name)
    site.up(say)
    script = (LAB / "run.py").relative_to(REPOSITORY)
    for guest in site.guests():
        print(f"{guest.name}:  {shlex.join(['ssh', *guest.ssh_options(), '-p', str(guest.ports[22]), 'root@127.0.0.1'])}")
    print(f"inventory:  {site.inventory.relative_to(REPOSITORY)}")
    print(f"when done:  .venv/bin/python {script} down {name}")


def verify(name: str, acts: t.Sequence[str] = ()) -> int:
    """Tells the story of a scenario that is up, or only these acts of one that has them; the exit status."""
    site = Site(name)
    if name not in STORIES:
        raise LabError(f"there is no story of '{name}' in tests/lab/stories.py")
    book = BOOKS.get(name, stories_rollout)
    if unknown := sorted(set(acts) - set(book.ACTS)):
        raise LabError(f"there is no act {', '.join(unknown)}; there are: {', '.join(book.ACTS)}")
    found = list(book.tell_acts(site, acts) if acts else STORIES[name](site))
    for problem in found:
        print(f"lab: {problem}", file=sys.stderr)
    if found:
        LOGS.mkdir(parents=True, exist_ok=True)
        told_by(name).write_text("".join(f"{' '.join(problem.split())}\n" for problem in found), encoding="utf-8")
    return 1 if found else 0


def act(arguments: argparse.Namespace) -> int:
    """Does what the command line asks; the exit status."""
    if arguments.verb == "test":
        chosen = scenarios() if arguments.all else arguments.scenarios or list(SMOKE)
        for name in chosen:
            Site(name)  # a wrong name is told before anything is built
        with turn(process.TEST, f"test {' '.join(chosen)}", say):
            return run_all(chosen)
    if arguments.verb == "verify":
        return verify(arguments.scenario, arguments.acts)
    if arguments.verb == "down":
        for name in [arguments.scenario] if arguments.scenario else scenarios():
            Site(name).down()
        if not arguments.scenario:
            process.end_all()
        return 0
    Site(arguments.scenario)
    with turn(process.HAND, f"{arguments.verb} {arguments.scenario}", say):
        if arguments.verb == "shell":
            shell(arguments.scenario)
        else:
            Site(arguments.scenario).up(say)
    return 0


def wrong(arguments: argparse.Namespace, reason: str) -> int:
    """One line on stderr, kept for whoever waits above Ansible; the exit status."""
    line = " ".join(reason.split())
    print(f"lab: {line}", file=sys.stderr)
    if arguments.verb in ("up", "verify"):
        with contextlib.suppress(OSError):  # the disk may be full
            wrong_in(arguments.scenario).write_text(f"{line}\n", encoding="utf-8")
    return 1


def main() -> int:
    """Entry point: 0, or another status with one line on stderr."""
    parser = argparse.ArgumentParser(prog="lab", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    test = verbs.add_parser("test", help="run scenarios")
    test.add_argument("scenarios", nargs="*", help=f"which ones; without any: {' '.join(SMOKE)}")
    test.add_argument("--all", action="store_true", help="every scenario")
    tell = verbs.add_parser("verify", help="tell its story, or some acts of a rollout's, of bare's or of devices'")
    tell.add_argument("scenario")
    tell.add_argument("acts", nargs="*", help="without any: the whole story")
    for verb, text, default in (
        ("up", "boot a scenario's guests", None),
        ("down", "end them; without a name, end everything that the lab of this checkout runs", ""),
        ("shell", "boot them and say how to enter", SMOKE[0]),
    ):
        verbs.add_parser(verb, help=text).add_argument("scenario", nargs=None if default is None else "?", default=default)
    arguments = parser.parse_args()
    process.stop_on_signals()
    try:
        return act(arguments)
    except LabError as error:
        return wrong(arguments, str(error))
    except OSError as error:
        return wrong(arguments, full_disk(str(error)) or str(error))
    except process.Stopped as stopped:
        print(f"lab: stopped by {signal.Signals(stopped.number).name}; nothing of this run is left", file=sys.stderr)
        return 128 + stopped.number


if __name__ == "__main__":
    sys.exit(main())
