# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo inside a guest, on the newest ansible-core that the guest's Python runs.

``make`` unpacks what the guest's Python needs below build/lab/newest (requirements/newest.txt and collections-newest.txt);
one tar brings it into the guest with this checkout, for a guest fetches nothing. The demo's own simulated hosts are all in the guest.
"""

from __future__ import annotations

import re
import subprocess
import time
import typing as t
from collections.abc import Iterator
from pathlib import Path

from lab.commands import last_line, run
from lab.errors import LabError
from lab.guest import Guest
from lab.places import BUILD, LOGS, REPOSITORY

if t.TYPE_CHECKING:
    from lab.site import Site

HOME = BUILD / "newest"
PACKAGES = HOME / "site-packages"
COLLECTIONS = HOME / "collections"
SIMULATOR = HOME / "simulator"
# In the guest, the checkout and, in it, what belongs in no commit where it is here as well.
CHECKOUT = "/opt/fleet"
PYTHON = f"{CHECKOUT}/.venv/bin/python"
WORK = f"{CHECKOUT}/build/demo"
# Dead weight in a guest: tests of Ansible's own, byte code of another Python, object files.
UNWANTED = ("ansible_test", "__pycache__", "obj")
# pip would write the commands' first line for the Python of this machine.
COMMANDS = {"ansible": "adhoc", "ansible-playbook": "playbook"}
# Half a minute of a real processor; emulated, a quarter of an hour, and more on a machine that does other work besides.
DEMO_SECONDS = 3000
UNPACK = f"""
mkdir -p {CHECKOUT} && tar -C {CHECKOUT} -xf - --no-same-owner
cd {CHECKOUT}
python3 -m venv --without-pip .venv
echo {CHECKOUT}/{PACKAGES.relative_to(REPOSITORY)} > "$({PYTHON} -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/newest.pth"
mv {SIMULATOR.relative_to(REPOSITORY)} build/simulator
""" + "".join(
    f"printf '%s\\n' '#!{PYTHON}' 'from ansible.cli.{module} import main' 'main()' > .venv/bin/{name} && chmod 755 .venv/bin/{name}\n"
    for name, module in COMMANDS.items()
)


def newest_core(site: Site) -> Iterator[str]:
    """The newest ansible-core that a guest's Python runs drives the demo in the guest: green, and the second run changes nothing."""
    (guest,) = site.guests()
    ship(guest)
    for which in ("first", "second"):
        started = time.monotonic()
        said = demo(guest, which, LOGS / f"{site.scenario}-{which}.log")
        spent = f"{time.monotonic() - started:.0f} s"
        print(f"{which} run on {said.splitlines()[0]}: {spent}, {_line(said, 'changed: ')}; {_line(said, 'seconds: ')}", flush=True)
        yield from deprecated(guest.ssh(f"cat {WORK}/log/*.log", "reading the demo's logs"))
    if "changed: nothing" not in _line(said, "changed: "):
        yield f"the second run changed something: {_line(said, 'changed: ')} (log: {LOGS / f'{site.scenario}-second.log'})"


def ship(guest: Guest) -> None:
    """Brings all that the demo takes into the guest. LabError in one line."""
    missing = [path for path in (PACKAGES, COLLECTIONS) if not path.exists()]
    if missing:
        raise LabError(f"there is no {missing[0]}: make lab SCENARIO=newest_core makes it")
    make: list[str | Path] = ["make", "--no-print-directory", "--silent", "-C", REPOSITORY / "tests" / "simulator"]
    run([*make, f"OUT={SIMULATOR}", f"PYTHON={PYTHON}"], "building the simulated driver")
    (HOME / "files").write_text("\0".join(checkout()), encoding="utf-8")
    excluded = [f"--exclude={name}" for name in UNWANTED]
    trees = [str(path.relative_to(REPOSITORY)) for path in (PACKAGES, COLLECTIONS, SIMULATOR)]
    argv = ["tar", "-C", str(REPOSITORY), "-cf", "-", *excluded, *trees, "--null", f"--files-from={HOME / 'files'}"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as pack:
        guest.ssh(f"set -e\n{UNPACK}", "unpacking the checkout and ansible-core", stdin=pack.stdout)
    if pack.returncode != 0:
        raise LabError(f"packing the checkout for {guest.name}: tar ended with {pack.returncode}")


def checkout() -> list[str]:
    """The project's files below the checkout: what git has or would take."""
    # safe.directory: HOME is our own in a recipe of make, so that a user's own setting for this checkout is not seen.
    argv = ["git", "-c", f"safe.directory={REPOSITORY}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = run(argv, "listing the checkout's files", cwd=REPOSITORY).split("\0")
    return sorted({name for name in names if name and (REPOSITORY / name).exists()})


def demo(guest: Guest, which: str, log: Path) -> str:
    """What one run of the demo in the guest says, ansible-core's version first, written to ``log`` as it comes.

    LabError with the task that failed, and why.
    """
    version = f"{CHECKOUT}/.venv/bin/ansible --version | sed -n 1p"
    command = f"cd {CHECKOUT} && {version} && {PYTHON} tests/demo/run.py --collections {COLLECTIONS.relative_to(REPOSITORY)}"
    try:
        return guest.ssh(command, f"the demo's {which} run", log=log, deadline=DEMO_SECONDS)
    except LabError as error:
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        failed = re.search(r"^demo: playbook (\w+) failed", text, re.MULTILINE)
        if failed is None:
            raise
        ansible = log.with_suffix(".ansible.log")
        ansible.write_text(guest.ssh(f"cat {WORK}/log/{failed[1]}.log", "reading the demo's log"), encoding="utf-8")
        task = failing_task(ansible.read_text(encoding="utf-8"))
        raise LabError(f"{guest.name}: the demo's {which} run failed in {failed[1]}, {task}: {last_line(text)} (log: {ansible})") from error


def failing_task(text: str) -> str:
    """The task of an ansible-playbook's output that failed last, in words."""
    task = last = ""
    for line in text.splitlines():
        if found := re.match(r"(?:TASK|RUNNING HANDLER) \[(.*?)\] \**$", line):
            task = found[1]
        elif line.startswith(("fatal: ", "failed: ", "ERROR", "[ERROR]")):
            last = task
    return f"task '{last}'" if last else "before its first task"


def deprecated(text: str) -> Iterator[str]:
    """What an ansible-playbook's output warns of, each once: a later core will refuse it."""
    for warning in dict.fromkeys(re.findall(r"^\[DEPRECATION WARNING\]: (.*)$", text, re.MULTILINE)):
        yield f"deprecated: {warning[:300]}"


def _line(text: str, start: str) -> str:
    """The line that begins so, for people; what is not there is said."""
    return next((line for line in text.splitlines() if line.startswith(start)), f"no line '{start.strip()}'")
