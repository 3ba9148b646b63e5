# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host agent is told: a JSON file that role ``host_agent`` writes, because at a boot no inventory is near."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json

FORMAT = 1
DEFAULT_PATH = Path("/etc/gpuops-fleet/agent.json")
_HINT = "playbook apply or agent writes this file; change the inventory and run one of them"


@dataclass(frozen=True)
class Config:
    """Paths and settings of a host, as the inventory's ``fleet_*`` variables have them. All waits in seconds.

    ``gpu_access``: how new compose files name devices, ``cdi`` or ``nvidia``. ``driver_services``: systemd units that hold the driver.
    ``driver_wait``: for the driver after a boot. ``health_wait``: for a started service. ``command_wait``: for one command of Docker.
    ``lease_wait``: for a play that holds the host. ``lease_seconds``: how long the agent's own lease lasts after its last step.
    """

    state_dir: Path = Path("/var/lib/gpuops-fleet")
    services_dir: Path = Path("/srv/gpuops/services")
    proc_root: Path = Path("/proc")
    sys_root: Path = Path("/sys")
    docker_socket: Path = Path("/var/run/docker.sock")
    docker: str = "docker"
    cdi_spec: Path = Path("/var/run/cdi/nvidia.yaml")
    nvidia_ctk: str = "nvidia-ctk"
    nvidia_smi: str = "nvidia-smi"
    sriov_manage: str = "/usr/lib/nvidia/sriov-manage"
    gpu_access: str = "nvidia"
    driver_services: tuple[str, ...] = ()
    allow_reset: bool = True
    driver_wait: int = 120
    health_wait: int = 600
    command_wait: int = 300
    lease_wait: int = 1800
    lease_seconds: int = 300
    parallel: int = 4
    secrets_dir: Path = Path("/run/gpuops-fleet/secrets")

    def plain(self) -> dict[str, t.Any]:
        """The same as plain data, as the file has it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        texts = {name: str(value) for name, value in values.items() if isinstance(value, Path)}
        lists = {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
        return {**values, **texts, **lists}


def read(path: Path) -> Config:
    """The configuration in ``path``. FleetError when it is missing, damaged, or names what this release does not know."""
    data = read_json(path)
    if data is None:
        raise FleetError("no such file", file=str(path), hint=_HINT)
    if data.get("format") != FORMAT:
        raise FleetError(f"it has format {data.get('format')} and this release knows format {FORMAT}", file=str(path), hint=_HINT)
    return parse({key: value for key, value in data.items() if key != "format"}, str(path))


def parse(data: Mapping[str, t.Any], file: str | None = None) -> Config:
    """A configuration out of plain data; what is left out has its default. FleetError names file and field."""
    known = {field.name: field for field in fields(Config)}
    values: dict[str, t.Any] = {}
    for name, value in data.items():
        if name not in known:
            raise FleetError("there is no such setting", file=file, field=name, hint=_HINT)
        default = known[name].default
        values[name] = _converted(name, value, default if default is not MISSING else "", file)
    return Config(**values)


def parse_known(data: Mapping[str, t.Any]) -> Config:
    """As :func:`parse`, for data that holds more than this configuration."""
    known = {field.name for field in fields(Config)}
    return parse({name: value for name, value in data.items() if name in known})


def _converted(name: str, value: t.Any, default: t.Any, file: str | None) -> t.Any:
    """``value`` as the type that the field's default has."""
    if isinstance(default, bool):
        fits, wanted = isinstance(value, bool), "true or false"
    elif isinstance(default, int):
        fits, wanted = isinstance(value, int) and not isinstance(value, bool) and value >= 1, "a whole number of at least 1"
    elif isinstance(default, tuple):
        fits, wanted = isinstance(value, list) and all(isinstance(one, str) for one in value), "a list of names"
    elif isinstance(default, Path):
        fits, wanted = isinstance(value, str) and value.startswith("/"), "an absolute path"
    else:
        fits, wanted = isinstance(value, str) and bool(value), "a text"
    if not fits:
        raise FleetError(f"expected {wanted}, found {value!r}", file=file, field=name, hint=_HINT)
    return type(default)(value)
