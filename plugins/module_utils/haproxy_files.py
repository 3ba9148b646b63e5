# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of a gateway: proven by HAProxy before anything is replaced, then loaded by what runs without losing a connection."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
import typing as t
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import journal
from ansible_collections.gpuops.fleet.plugins.module_utils.commands import run
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.haproxy import Runtime, alone, ask, state_text

# HAProxy 2.6 is the oldest that has all that the configuration says.
OLDEST = (2, 6)
_CHECK_SECONDS = 60.0
_PAUSE = 0.2
_VERSION = re.compile(r"HAProxy version (\d+)\.(\d+)")
_DESCRIPTION = re.compile(r'^ +description "([^"]+)"$', re.MULTILINE)
_SERVER = re.compile(r"^ +server (\S+) (\S+):(\d+)", re.MULTILINE)
_MODE = 0o640


@dataclass(frozen=True)
class Wish:
    """What a gateway shall have. ``files``: name below ``directory`` -> text; nothing else stays there."""

    program: str
    path: Path
    config: str
    directory: Path
    files: Mapping[str, str]
    socket: str
    master: str
    state_file: Path
    reload_seconds: float = 60.0

    def all(self) -> dict[Path, str]:
        """Path -> text of every file, the configuration last."""
        return {**{self.directory / name: text for name, text in sorted(self.files.items())}, self.path: self.config}


@dataclass
class Outcome:
    """What was done, or in check mode what would be."""

    steps: list[str] = field(default_factory=list)
    running: bool = False
    before: str = ""
    after: str = ""


def install(wish: Wish, check: bool = False) -> Outcome:
    """Write what differs, and have a gateway that runs load it. FleetError when HAProxy refuses the files: then nothing was changed.

    One that cannot load them (a port that another program has, say) serves on as before, and the files of before are put back.
    """
    for name in wish.files:
        if name.startswith("/") or ".." in name.split("/"):
            raise FleetError(f"'{name}' leads out of {wish.directory}", field="files")
    before = {path: journal.read_text(path) for path in wish.all()}
    strays = _strays(wish)
    outcome = Outcome(before=shown({path: text for path, text in before.items() if text is not None}), after=shown(wish.all()))
    changed = [path for path, text in wish.all().items() if before[path] != text]
    if changed:
        prove(wish, check)
    loaded = _loaded(wish)
    outcome.running = loaded is not None
    outcome.steps = [f"write {path}" for path in changed] + [f"remove {path}" for path in strays]
    must_load = outcome.running and loaded != _description(wish.config)
    if must_load:
        outcome.steps.append("load the new configuration")
    if check:
        return outcome
    with alone(wish.state_file):
        _write(wish, changed)
        if must_load:
            try:
                reload(wish)
            except FleetError:
                _put_back(before)
                Runtime(wish.socket).save(str(wish.state_file))
                raise
    for path in strays:
        path.unlink()
    return outcome


def _write(wish: Wish, changed: t.Sequence[Path]) -> None:
    """The state first: a HAProxy that starts with the new files would send requests to ports that other replicas have now."""
    state = journal.read_text(wish.state_file)
    true = "1\n" if state is None else state_text(state, _keeps(wish.config))
    if true != state:
        journal.write_text(wish.state_file, true, 0o600)
    for path in changed:
        journal.write_text(path, wish.all()[path], _MODE)


def shown(texts: Mapping[Path, str]) -> str:
    """The files as a diff shows them: of keys only the first digits of their hashes, of pages only their length."""
    parts = []
    for path, text in texts.items():
        if path.suffix == ".html":
            text = f"{len(text)} characters\n"
        elif path.name == "keys.map":
            text = "".join(f"{line[:8]}... {line.partition(' ')[2]}\n" for line in text.splitlines())
        parts.append(f"# {path}\n{text}")
    return "".join(parts)


def _strays(wish: Wish) -> list[Path]:
    wanted = set(wish.all())
    return sorted(path for path in wish.directory.rglob("*") if path.is_file() and path not in wanted) if wish.directory.is_dir() else []


def _description(config: str) -> str:
    found = _DESCRIPTION.search(config)
    if found is None:
        raise FleetError("the configuration has no description, by which a gateway that runs is known", field="config")
    return found.group(1)


def _loaded(wish: Wish) -> str | None:
    """The description of the files that HAProxy runs with; None when it does not run."""
    if not Path(wish.socket).exists():
        return None
    try:
        return Runtime(wish.socket).info("description") or ""
    except FleetError:  # a socket that a dead one left
        return None


def version(program: str) -> tuple[int, int]:
    """Major and minor number. FleetError when it cannot be started or says none."""
    done = run([program, "-v"], _CHECK_SECONDS)
    found = _VERSION.search(done.output)
    if found is None:
        raise FleetError(f"{program} does not say which version of HAProxy it is: {done.words}")
    return int(found.group(1)), int(found.group(2))


def prove(wish: Wish, check: bool) -> None:
    """Have HAProxy judge the files where nobody sees them. FleetError with its words.

    In check mode a program that is not there yet is let pass.
    """
    if shutil.which(wish.program) is None:
        if check:
            return
        raise FleetError(
            f"there is no program '{wish.program}' on this host", field="program", hint="install HAProxy, or set gateway_package"
        )
    found = version(wish.program)
    if found < OLDEST:
        raise FleetError(f"HAProxy {found[0]}.{found[1]} is too old", field="program", hint="install 2.6 or newer")
    with tempfile.TemporaryDirectory(prefix="gpuops-gateway-") as name:
        where = Path(name)
        for relative, text in wish.files.items():
            journal.write_text(where / "files" / relative, text, _MODE)
        config = where / "haproxy.cfg"
        journal.write_text(config, wish.config.replace(f"{wish.directory}/", f"{where}/files/"), _MODE)
        done = run([wish.program, "-c", "-f", str(config)], _CHECK_SECONDS)
    if done.status:
        alerts = [line.split(" : ", 1)[-1] for line in done.complaint.splitlines() if line.startswith("[ALERT]")]
        said = alerts[0] if alerts else done.words
        raise FleetError(f"HAProxy refuses the new configuration: {said.replace(str(config), str(wish.path))}; nothing was changed")


def reload(wish: Wish) -> None:
    """Have the master start a new worker with the files, and wait until that one serves.

    What drains and rollouts have set goes on. Source: management guide, "server-state-file" and "reload" of the master CLI.
    """
    runtime = Runtime(wish.socket, wish.master)
    kept = _keeps(wish.config)
    journal.write_text(wish.state_file, state_text(runtime.ask("show servers state"), kept), 0o600)
    ask(wish.master, "reload", quiet=True)
    deadline = time.monotonic() + wish.reload_seconds
    wanted = _description(wish.config)
    while _loaded(wish) != wanted:
        if time.monotonic() > deadline:
            raise FleetError(
                f"HAProxy did not load the new configuration in {wish.reload_seconds:g} s; it serves on with the one before",
                hint="its log says why; another program may have one of its ports",
            )
        time.sleep(_PAUSE)


def _keeps(config: str) -> t.Callable[[Mapping[str, str]], bool]:
    """Which rows of the state are true for the new configuration.

    HAProxy takes the port of the row although the configuration has another one; so a row of a replica that has moved must not be there.
    """
    places: dict[tuple[str, str], tuple[str, str]] = {}
    backend = ""
    for line in config.splitlines():
        if line.startswith("backend "):
            backend = line.split()[1]
        elif found := _SERVER.match(line):
            places[(backend, found.group(1))] = (found.group(2).strip("[]"), found.group(3))

    def keep(row: Mapping[str, str]) -> bool:
        place = places.get((row["be_name"], row["srv_name"]))
        if place is None:
            return False
        if place[0] == row["srv_fqdn"]:
            return place[0].endswith(".invalid") or place[1] == row["srv_port"]
        return place == (row["srv_addr"], row["srv_port"])

    return keep


def _put_back(before: Mapping[Path, str | None]) -> None:
    for path, text in before.items():
        if text is None:
            path.unlink()
        else:
            journal.write_text(path, text, _MODE)


def remove(path: Path, directory: Path, state_file: Path, check: bool = False) -> list[str]:
    """Take away all that :func:`install` wrote; the steps."""
    lock = state_file.parent / "gateway.lock"
    there = [each for each in (path, directory, state_file, lock) if each.exists()]
    for each in [] if check else there:
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()
    return [f"remove {each}" for each in there]
