# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Do the parts of a manifest agree with each other? What one of them says alone is checked where it is defined (``manifest.py``)."""

from __future__ import annotations

import posixpath
import typing as t
from collections.abc import Sequence

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import name_parts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import AfterValidator, Wrong, describe
from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import format_size

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Health, PlacementRules, Port, Volume, Weight

# Of a model. The largest that are published have some 10^13 parameters, hundreds of layers and heads, contexts of 10^7 tokens: the
# bounds lie a hundred times above. What is beyond is a slip of the pen (parameters times a billion), and no number to compute with.
FEWEST_PARAMETERS = 100_000
MOST_PARAMETERS = 1e15
MOST_LAYERS = MOST_HEADS = 100_000
MOST_WIDTH = 1_000_000
MOST_TOKENS = 10**10
MOST_REQUESTS = 10**6
# Numbers of 16 bytes are the widest that any hardware computes with.
MOST_BYTES = 16
# Seconds that anything of a start or a rollout may take: a day. What takes longer is a unit taken for another.
MOST_SECONDS = 86400
# What a replica may ask of its host: as much as the largest servers have of CPUs, many times that of memory and disk.
MOST_CPUS = 4096
MOST_MEMORY = 64 * 2**20
MOST_DISK = 2**30


def at_most(most: int) -> AfterValidator:
    """A size of no more than so many MiB. :raises Wrong: when it is used: more than any host has."""

    def checked(value: int) -> int:
        if value > most:
            raise Wrong(f"{format_size(value)} is more than any host has", f"write at most '{format_size(most)}'")
        return value

    return AfterValidator(checked)


def profile_name(value: str) -> str:
    """The name of a MIG profile. :raises Wrong: it is none."""
    try:
        name_parts(value)
    except FleetError as error:
        raise Wrong(error.message, error.hint or "write one like 1g.10gb") from error
    except ValueError as error:  # more digits than Python reads
        raise Wrong(f"{describe(value)} is not a profile", "write one like 1g.10gb") from error
    return value


def ports_agree(ports: Sequence[Port], health: Health | None) -> None:
    """Each port has a name and numbers of its own, and the health check one of them. :raises Wrong: not so."""
    for field in ("name", "container", "host"):
        seen: dict[object, int] = {}
        for index, port in enumerate(ports):
            value = getattr(port, field)
            if value is not None and value in seen:
                raise Wrong(f"'{value}' is already that of ports[{seen[value]}]", "give each port its own", "ports", index, field)
            seen[value] = index
    names = [port.name for port in ports]
    if health is not None and health.port not in names:
        raise Wrong(f"there is no port named '{health.port}'", known_ports(ports), "health", "port")


def known_ports(ports: Sequence[Port]) -> str:
    """What to write where the name of a port is asked for."""
    return f"write one of: {', '.join(port.name for port in ports)}" if ports else "add a port"


def some_board_is_left(models: Sequence[str], not_models: Sequence[str]) -> None:
    """Words are parts of names: whatever has 'a100-sxm4' in its name has 'a100' too. :raises Wrong: no board is left."""
    never = [word.lower() for word in not_models]
    if models and all(any(no in word.lower() for no in never) for word in models):
        at = next(index for index, no in enumerate(never) if no in models[0].lower())
        wrong = f"'{not_models[at]}' takes away what 'models' allows, and no board is left"
        raise Wrong(wrong, "take it out of one of 'models' and 'not_models'", "not_models", at)


def not_in_billions(value: float) -> float:
    """The count itself: the smallest language models that are published have some millions. :raises Wrong: far fewer."""
    if value < FEWEST_PARAMETERS:
        raise Wrong(f"{value:g} are too few to be true", "write the count itself, such as 8e9")
    return value


def not_itself(service: str, rules: PlacementRules) -> None:
    """No service is to be beside itself, or away from itself. :raises Wrong: it is."""
    for field in ("apart", "together"):
        if service in getattr(rules, field):
            hint = "write 'max_per_host: 1'" if field == "apart" else "write 'spread: pack', or name another service"
            raise Wrong(f"'{service}' is this service itself", hint, "placement", field, getattr(rules, field).index(service))


def targets_differ(volumes: Sequence[Volume]) -> None:
    """Compose mounts one thing at one place; it would say so only on the host. :raises Wrong: several are at one, or over everything."""
    seen: dict[str, int] = {}
    for index, volume in enumerate(volumes):
        target = posixpath.normpath("/" + volume.target.lstrip("/"))
        if target == "/":
            raise Wrong("nothing can be mounted over the whole container", "name a directory in it", "volumes", index, "target")
        if target in seen:
            wrong = f"'{volume.target}' is already that of volumes[{seen[target]}]"
            raise Wrong(wrong, "give each volume its own", "volumes", index, "target")
        seen[target] = index


def files_differ(weights: Sequence[Weight]) -> None:
    """One path of the model store has one file. :raises Wrong: two checksums of it."""
    seen: dict[str, int] = {}
    for index, weight in enumerate(weights):
        first = seen.setdefault(posixpath.normpath(weight.path), index)
        if weights[first].sha256 != weight.sha256:
            raise Wrong(f"'{weight.path}' has another checksum in weights[{first}]", "keep the right one", "weights", index, "sha256")
