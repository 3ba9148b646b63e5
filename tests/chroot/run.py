# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Roles in a Debian 13 root of their own, behind ``make chroot``: apt, dpkg and every file are real, no service runs.

Each play of ``tests/chroot/plays`` has a fresh copy of one root that mmdebstrap makes once, and runs three times: as it would be in check
mode, then twice. The second run must change nothing. Processes and mounts live in namespaces of their own, so that nothing stays behind.

A play is for the one host ``host`` and gathers what facts it needs. It is for its own tasks to put into the root what stands in for
hardware, and to look at what came out. One of them has Debian's engine at work; what none can show is a kernel and systemd.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the folder that holds the package lab

from lab.commands import last_line, plain, run
from lab.errors import LabError
from lab.packages import PATHS, Mirror, mirror

HERE = Path(__file__).resolve().parent
PLAYS = HERE / "plays"
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "chroot"
SUITE = "trixie"
# What any Debian server has, and Python with its apt, which Ansible needs.
PACKAGES = ("systemd", "systemd-sysv", "udev", "kmod", "dbus", "procps", "ca-certificates", "python3", "python3-apt")
# Installing a package starts its service, and there is nothing here that could.
NO_SERVICES = "#!/bin/sh\nexit 101\n"
# Plays whose engine runs containers: they get the kernel's control groups, below one of their own.
WITH_ENGINE = ("engine_act",)
CGROUPS, CGROUP = Path("/sys/fs/cgroup"), "gpuops-chroot"
BUILD_SECONDS = 1800.0
RECAP = re.compile(
    r"^host +: ok=(?P<ok>\d+) +changed=(?P<changed>\d+) +unreachable=(?P<unreachable>\d+) +failed=(?P<failed>\d+)", re.MULTILINE
)
CHANGED = re.compile(r"^changed: \[host\].*$", re.MULTILINE)
TASK = re.compile(r"^(?:TASK|RUNNING HANDLER) \[(.*)\] \**$")


def say(message: str) -> None:
    """A line, at once."""
    print(f"chroot  {message}", flush=True)


def names() -> list[str]:
    """Plays that are here, by name."""
    return sorted(path.stem for path in PLAYS.glob("*.yml"))


def ensure(cache: Path, source: Mirror) -> Path:
    """The root that every play starts from, made when this recipe was never made before."""
    recipe = hashlib.sha256(repr((SUITE, PACKAGES, NO_SERVICES, source)).encode()).hexdigest()[:16]
    home = cache / recipe
    if home.is_dir():
        return home
    part = cache / f".{recipe}.{os.getpid()}"
    cache.mkdir(parents=True, exist_ok=True)
    say(f"making the root of {SUITE} with {len(PACKAGES)} packages and what they need (1 min)")
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("man", "doc", "locale")]
    argv = [
        "mmdebstrap", "--variant=minbase", "--quiet", "--skip=cleanup/reproducible,cleanup/apt/lists", "--mode=root", *left_out,
        f"--include={','.join(PACKAGES)}", SUITE, str(part), f"deb [signed-by={source.keyring}] {source.uri} {SUITE} main",
    ]  # fmt: skip
    try:
        run(argv, "making the root", deadline=BUILD_SECONDS, log=BUILD / "logs" / "mmdebstrap.log", env={**os.environ, "PATH": PATHS})
        policy = part / "usr/sbin/policy-rc.d"
        policy.write_text(NO_SERVICES, encoding="utf-8")
        policy.chmod(0o755)
        part.rename(home)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return home


def copy(base: Path, target: Path) -> None:
    """A fresh copy of the root at ``target``."""
    if any(line.split()[1].startswith(f"{target}/") for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()):
        raise LabError(f"{target} has file systems mounted below it: unmount them first")
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    run(["cp", "--archive", "--reflink=auto", str(base), str(target)], "copying the root", deadline=BUILD_SECONDS)
    shutil.copy("/etc/resolv.conf", target / "etc/resolv.conf")


def inside(name: str, target: Path) -> int:
    """In namespaces of its own: mounts what a running system has, and runs the play. Returns the status of the process."""
    # A root that is no mount point is one that a container engine cannot unpack images in.
    subprocess.run(["mount", "--bind", target, target], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", target / "proc"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", target / "run"], check=True)
    (target / "run/lock").mkdir(mode=0o1777)
    if name in WITH_ENGINE:
        subprocess.run(["mount", "-t", "sysfs", "sysfs", target / "sys"], check=True)
        subprocess.run(["mount", "--rbind", CGROUPS, target / CGROUPS.relative_to("/")], check=True)
    inventory = target.parent / f"{name}.inventory.yml"
    variables = {
        "ansible_connection": "community.general.chroot",
        "ansible_host": str(target),
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_remote_tmp": "/tmp",
    }
    inventory.write_text(json.dumps({"all": {"hosts": {"host": variables}}}), encoding="utf-8")
    before = play(name, inventory, "check", "--check", "--diff")
    first = play(name, inventory, "first")
    second = play(name, inventory, "second", "--diff")
    if changed := second["changed"]:
        for line in tasks_that_changed(BUILD / "logs" / f"{name}-second.log"):
            say(f"{name}: second run changed: {line}")
        raise LabError(f"{name}: the second run changed {changed} tasks; the first {first['changed']}, check mode said {before['changed']}")
    return 0


def play(name: str, inventory: Path, which: str, *options: str) -> dict[str, int]:
    """One run of a play; LabError with the task that failed. Returns the numbers of Ansible's recap, and the seconds."""
    log = BUILD / "logs" / f"{name}-{which}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PATH": PATHS, "ANSIBLE_COLLECTIONS_PATH": str(BUILD / "collections"), "ANSIBLE_NOCOLOR": "1"}
    # The play's own programs are this machine's; inside the root, Debian's own words are wanted.
    environment.update({"LC_ALL": "C.UTF-8", "ANSIBLE_FORCE_COLOR": "0"})
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            ["ansible-playbook", "-i", str(inventory), str(PLAYS / f"{name}.yml"), *options],
            cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    text = plain(log.read_text(encoding="utf-8"))
    found = RECAP.search(text)
    if done.returncode != 0 or found is None:
        # The first error is why; what comes after it may be its consequence.
        fatal = re.findall(r"^ERROR!.*|^\[ERROR\]: .*", text, re.MULTILINE)
        raise LabError(f"{name}, {which} run: {' '.join((fatal or [last_line(text)])[0].split())[:1500]} (log: {log})")
    numbers = {key: int(value) for key, value in found.groupdict().items()}
    numbers["seconds"] = round(time.monotonic() - began)
    say(f"{name}: {which} run: ok={numbers['ok']} changed={numbers['changed']} in {numbers['seconds']} s")
    for warning in sorted(set(re.findall(r"^\[WARNING\]: .*$", text, re.MULTILINE))):
        say(f"{name}: {which} run: {warning}")
    return numbers


def tasks_that_changed(log: Path) -> list[str]:
    """Names of tasks in a log that said changed."""
    task, found = "", []
    for line in log.read_text(encoding="utf-8").splitlines():
        if match := TASK.match(line):
            task = match[1]
        elif CHANGED.match(line):
            found.append(task)
    return found


def main() -> int:
    """Command line: see --help."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plays", nargs="*", metavar="PLAY", help=f"of: {', '.join(names())} (all of them when none is named)")
    parser.add_argument("--keep", action="store_true", help="leave the root of each play below build/chroot/roots, to look into it")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        if args.inside:
            return inside(args.plays[0], args.inside)
        if unknown := sorted(set(args.plays) - set(names())):
            raise LabError(f"no such play: {', '.join(unknown)}; there are {', '.join(names())}")
        if os.geteuid() != 0:
            raise LabError("a root of its own needs root: sudo make chroot")
        if not shutil.which("mmdebstrap", path=PATHS):
            raise LabError("the package mmdebstrap is missing: sudo apt-get install --no-install-recommends mmdebstrap")
        # The variable lets several checkouts share one root.
        base = ensure(Path(os.environ.get("CHROOT_CACHE", BUILD / "images")), mirror())
        return max([alone(name, base, args.keep) for name in args.plays or names()])
    except LabError as error:
        print(f"chroot  FAILED: {error}", file=sys.stderr, flush=True)
        return 1


def alone(name: str, base: Path, keep: bool) -> int:
    """One play with a fresh root, in namespaces that end with it. Returns 0 when it was as it should be."""
    target = BUILD / "roots" / name
    copy(base, target)
    unshare = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]
    try:
        return subprocess.run([*unshare, sys.executable, __file__, "--inside", str(target), name], check=False).returncode
    finally:
        for group in sorted(CGROUPS.glob(f"**/{CGROUP}/**/"), reverse=True):
            with contextlib.suppress(OSError):
                group.rmdir()
        if not keep:
            shutil.rmtree(target, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
