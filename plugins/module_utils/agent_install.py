# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs the host agent and takes it away again: what is there, the steps to what shall be, and the steps done."""

from __future__ import annotations

import contextlib
import json
import typing as t
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import agent_config, agent_package
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_units import Systemd, Unit, hurt_by_reload
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, read_text, write_json, write_text

_FORMAT = 1
_CONFIG_MODE = 0o640


@dataclass(frozen=True)
class Options:
    """What shall be. ``root``: of all packages. ``package``: the archive on this host, None when it did not travel (yet).

    ``config``: the agent's configuration as plain data. ``units`` in the order in which they are set up.
    """

    root: Path
    state_dir: Path
    config_path: Path
    unit_dir: Path
    units: Sequence[Unit]
    version: str = ""
    digest: str = ""
    config: Mapping[str, t.Any] = field(default_factory=dict)
    package: Path | None = None
    brings_pynvml: bool = False
    python: str = ""
    pip: bool = False
    downgrade: bool = False
    docker_socket: Path = Path("/var/run/docker.sock")
    systemctl: str = "systemctl"
    token: str | None = None
    check: bool = False


@dataclass
class Result:
    """What was done, or with ``check`` would be. ``package_needed``: nothing was done, the package has to travel first."""

    steps: list[str] = field(default_factory=list)
    before: list[tuple[str, str]] = field(default_factory=list)
    after: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    package_needed: bool = False


@dataclass(frozen=True)
class _Step:
    words: str
    do: Callable[[], None]


def present(options: Options) -> Result:
    """Have the agent of this release installed, configured, enabled and, where a unit says so, running.

    FleetError when that cannot be: then the agent before, if any, is still in use. Nothing is done while the package is missing.
    """
    if any(character.isspace() for character in str(options.root)):
        raise FleetError(
            f"'{options.root}' has a space in it", field="root", hint="choose a path without: it stands in scripts' first lines"
        )
    agent_config.parse(options.config)
    work = _Present(options, Result())
    work.plan()
    return work.carry_out()


def absent(options: Options) -> Result:
    """Take units, packages and configuration away. What the agent kept about plan and layout stays; nobody acts on it at a boot then."""
    work = _Absent(options, Result())
    work.plan()
    return work.carry_out()


@dataclass
class _Work:
    options: Options
    result: Result
    steps: list[_Step] = field(default_factory=list)

    def carry_out(self) -> Result:
        """Do the steps, or with ``check`` only tell them."""
        if not self.result.package_needed:
            self.result.steps = [step.words for step in self.steps]
            if not self.options.check:
                for step in self.steps:
                    leases.check(self.options.state_dir, self.options.token, any_agent=True)
                    step.do()
        return self.result

    def _add(self, words: str, do: Callable[[], None]) -> None:
        self.steps.append(_Step(words, do))

    def _file(self, path: Path, before: str | None, after: str) -> None:
        self.result.before.append((str(path), before or ""))
        self.result.after.append((str(path), after))


@dataclass
class _Present(_Work):
    def plan(self) -> None:
        options = self.options
        name = agent_package.name_of(options.version, options.digest)
        self._refuse_older()
        broken = agent_package.works(options.root / name) if (options.root / name).exists() else "it is not there"
        if broken is not None:
            self._plan_package(name)
        if self.result.package_needed:
            return
        fresh = broken is not None or agent_package.current(options.root) != name
        changed = self._plan_config() or fresh
        if agent_package.current(options.root) != name:
            self._add(f"use agent {name}", lambda: agent_package.use(options.root, name))
        self._plan_record(name)
        self._plan_units(changed)
        for old in agent_package.superfluous(options.root, name):
            self._add(f"remove agent {old}", partial(agent_package.remove, options.root, old))

    def _refuse_older(self) -> None:
        installed = read_json(self.options.state_dir / leases.AGENT_FILE) or {}
        there, mine = str(installed.get("version", "")), self.options.version
        if agent_package.release_of(there) > agent_package.release_of(mine) and not self.options.downgrade:
            wrong = f"this host's agent is gpuops.fleet {there}, newer than this collection ({mine}); nothing was changed"
            raise FleetError(wrong, hint="bring the collection on the controller up to date, or set host_agent_downgrade: true")

    def _plan_package(self, name: str) -> None:
        options = self.options
        python = options.python or agent_package.base_python()
        agent_package.check_python(python, options.brings_pynvml or options.pip)
        if options.package is None and not options.check:
            self.result.package_needed = True
            return

        def install() -> None:
            files = agent_package.unpack(t.cast(Path, options.package), options.digest)
            agent_package.install(options.root, name, files, python, options.pip)

        self._add(f"install agent {name} below {options.root}", install)

    def _plan_config(self) -> bool:
        path = self.options.config_path
        text = json.dumps({"format": agent_config.FORMAT, **self.options.config}, indent=1, sort_keys=True) + "\n"
        before = read_text(path)
        if before == text:
            return False
        self._file(path, before, text)
        self._add(f"write {path}", lambda: write_text(path, text, _CONFIG_MODE))
        return True

    def _plan_record(self, name: str) -> None:
        """Which agent is here, for whoever is about to change this host."""
        path = self.options.state_dir / leases.AGENT_FILE
        wanted = {"format": _FORMAT, "version": self.options.version, "path": str(self.options.root / name)}
        if read_json(path) != wanted:
            self._add(f"record the agent in {path}", lambda: write_json(path, wanted))

    def _plan_units(self, changed: bool) -> None:
        systemd = Systemd(self.options.unit_dir, self.options.systemctl)
        units = self.options.units
        states = systemd.states([unit.name for unit in units])
        for unit in units:
            state = states[unit.name]
            if state.text != unit.text:
                self._file(systemd.directory / unit.name, state.text, unit.text)
                self._add(f"write unit {unit.name}", partial(systemd.write, unit))
            if unit.enabled and (state.text != unit.text or not state.enabled):
                self._add(f"enable {unit.name}", partial(systemd.enable, unit.name))
        stale = [
            unit.name for unit in units if states[unit.name].stale or (states[unit.name].loaded and states[unit.name].text != unit.text)
        ]
        if stale:
            self._plan_reload(systemd, stale)
        for unit in units:
            state = states[unit.name]
            if unit.running and (changed or state.text != unit.text or not state.active):
                self._add(f"{'restart' if state.active else 'start'} {unit.name}", partial(systemd.start, unit.name))

    def _plan_reload(self, systemd: Systemd, stale: Sequence[str]) -> None:
        names = " and ".join(stale)
        try:
            hurt = hurt_by_reload(self.options.docker_socket)
            why = f"would take the GPU from {', '.join(hurt)}, which did not get it by CDI" if hurt else ""
        except FleetError as error:
            why = f"might take GPUs from containers, and which ones is not known: {error}"
        if why:
            self.result.notes.append(f"{names} changed, and takes effect at the next boot: systemctl daemon-reload {why}")
        else:
            self._add(f"have systemd read {names} again", systemd.reload)


@dataclass
class _Absent(_Work):
    def plan(self) -> None:
        options = self.options
        systemd = Systemd(options.unit_dir, options.systemctl)
        files = {unit.name: read_text(options.unit_dir / unit.name) for unit in options.units}
        present_units = [name for name, text in reversed(list(files.items())) if text is not None]
        for name in present_units:
            self._file(options.unit_dir / name, files[name], "")
            self._add(f"stop, disable and remove {name}", partial(systemd.remove, name))
        for path in (options.state_dir / leases.AGENT_FILE, options.config_path):
            if path.exists():
                self._add(f"remove {path}", partial(_unlink, path))
        if agent_package.current(options.root) is not None:
            self._add(f"remove {options.root / agent_package.CURRENT}", lambda: _unlink(options.root / agent_package.CURRENT))
        for name in agent_package.packages(options.root):
            self._add(f"remove agent {name}", partial(agent_package.remove, options.root, name))
        if self.steps:
            self.result.notes.append("nobody restores this host's layout or starts its services after a boot now")

    def carry_out(self) -> Result:
        """As the others; and the agent's own directories when nothing of anybody else is in them."""
        result = super().carry_out()
        if result.steps and not self.options.check:
            for directory in (self.options.root, self.options.config_path.parent):
                with contextlib.suppress(OSError):
                    directory.rmdir()
        return result


def _unlink(path: Path) -> None:
    try:
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise FleetError(f"cannot remove {path}: {error.strerror}") from error
