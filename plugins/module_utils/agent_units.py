# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host agent's systemd units: written, enabled, started and removed without harm to what runs.

``systemctl daemon-reload`` makes systemd write the device rules of every cgroup again. A container that got its GPU from NVIDIA's hook, and
not by CDI, then loses it (https://github.com/NVIDIA/nvidia-container-toolkit/issues/48). So nothing here reloads without need: a unit that
was not in memory is read from its file when it is first started, and ``systemctl --root=/ enable`` sets links only: with
``--no-reload`` systemd would say of every unit of the host, until a reload, that its file changed (seen with 257). A unit that is in
memory and whose file changed needs a reload; while such a container runs there is none, and the change waits for the next boot.
"""

from __future__ import annotations

import os
import shutil
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import commands
from ansible_collections.gpuops.fleet.plugins.module_utils.engine import Engine, wanted_devices
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_text, write_text

_SECONDS = 60.0
_STOP_SECONDS = 300.0  # a unit that is at work is given time to end
_MODE = 0o644
_ENABLED = ("enabled", "enabled-runtime", "static", "alias", "indirect")


@dataclass(frozen=True)
class Unit:
    """A unit that shall be there. ``running``: it is kept running, and started anew when what it runs from changed.

    ``enabled``: it is started at a boot; one that a timer starts is not.
    """

    name: str
    text: str
    running: bool = False
    enabled: bool = True


@dataclass(frozen=True)
class State:
    """A unit as it is: its file's text, whether it is enabled, in systemd's memory, active, and read before its file changed."""

    text: str | None
    enabled: bool
    loaded: bool
    active: bool
    stale: bool


@t.final
class Systemd:
    """Asks and tells systemd by ``systemctl``; unit files are in ``directory``."""

    def __init__(self, directory: Path, systemctl: str = "systemctl") -> None:
        self.directory = directory
        self._systemctl = systemctl

    def _run(self, *words: str, deadline: float = _SECONDS) -> commands.Done:
        program = shutil.which(self._systemctl)
        if program is None:
            raise FleetError(
                f"there is no {self._systemctl} on this host", hint="the host agent needs systemd; set fleet_host_agent: false"
            )
        return commands.run([program, *words], deadline)

    def _must(self, *words: str, deadline: float = _SECONDS) -> str:
        done = self._run(*words, deadline=deadline)
        if done.status:
            raise FleetError(f"systemctl {' '.join(words)} failed: {done.words}")
        return done.output

    def states(self, names: Sequence[str]) -> dict[str, State]:
        """These units as they are, none of them loaded for the question."""
        listed = self._must("list-units", "--all", "--full", "--plain", "--no-legend", *names)
        memory = {line.split()[0]: line.split()[1:3] for line in listed.splitlines() if len(line.split()) >= 3}
        found = {}
        for name in names:
            text = read_text(self.directory / name)
            load, active = memory.get(name, ["", ""])
            loaded = load == "loaded"
            enabled = text is not None and self._run("is-enabled", name).output.strip() in _ENABLED
            stale = loaded and self._must("show", "--property=NeedDaemonReload", "--value", name).strip() == "yes"
            found[name] = State(text, enabled, loaded, active in ("active", "activating", "reloading"), stale)
        return found

    def write(self, unit: Unit) -> None:
        """Put the unit's file in place."""
        write_text(self.directory / unit.name, unit.text, _MODE)

    def enable(self, name: str) -> None:
        """Set the links that its [Install] asks for, also when they changed."""
        self._must("--root=/", "reenable", str(name))

    def reload(self) -> None:
        """Have systemd read all units again."""
        self._must("daemon-reload")

    def start(self, name: str) -> None:
        """Start it, or start it anew; not waited for longer than it takes to begin."""
        self._must("restart", name, deadline=_STOP_SECONDS)

    def remove(self, name: str) -> None:
        """Stop and disable it, and remove its file."""
        self._must("stop", name, deadline=_STOP_SECONDS)
        self._must("--root=/", "disable", name)
        try:
            (self.directory / name).unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise FleetError(f"cannot remove {self.directory / name}: {error.strerror}") from error


def hurt_by_reload(socket: Path) -> list[str]:
    """Names of running containers that would lose their GPU when systemd reloads: they have one, and not by CDI.

    FleetError when the engine does not answer: then nobody knows. A host without an engine has none.
    """
    if not os.path.exists(socket):
        return []
    with Engine(str(socket)) as engine:
        running = [detail for detail in engine.details() if (detail.get("State") or {}).get("Status") == "running"]
    return sorted(str(detail.get("Name") or detail["Id"]).lstrip("/") for detail in running if _by_hook(detail))


def _by_hook(detail: Mapping[str, t.Any]) -> bool:
    """Whether NVIDIA's hook gave a container its GPU: it has one, and the engine knows of no CDI name or device file for it.

    What makes a container privileged is left out: it may open every device in any case.
    """
    host = {key: value for key, value in (detail.get("HostConfig") or {}).items() if key not in ("Privileged", "Devices")}
    requests = host.get("DeviceRequests") or []
    if requests and all(request.get("Driver") == "cdi" for request in requests):
        return False
    return bool(wanted_devices(detail.get("Config") or {}, host))
