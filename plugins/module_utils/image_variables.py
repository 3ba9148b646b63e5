# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image says of itself: its name taken apart, and those of its variables that the compatibility gate reads.

No other variable is kept anywhere: an image's environment may hold secrets.
Source of the fields: OCI image specification, config.md (https://github.com/opencontainers/image-spec/blob/main/config.md), and Docker
Engine API reference, ``/images/{name}/json``.
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

DOCKER_HUB = "docker.io"
# NVIDIA's own have some 2,000 characters.
LONGEST = 16384

_REGISTRY = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(rf"((?:{_REGISTRY}/)?)({_PART}(?:/{_PART})*)(?::([A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}))?@(sha256:[0-9a-f]{{64}})")
# What plugin_utils/compat_case.py reads.
_KEPT = re.compile(r"CUDA_VERSION|NVIDIA_DISABLE_REQUIRE|NVIDIA_REQUIRE_(?!JETPACK)[A-Z0-9_]+")


@dataclass(frozen=True)
class Reference:
    """An image that is pinned: ``registry`` (``docker.io`` where none is written), ``repository``, ``tag`` (or None), ``digest``."""

    registry: str
    repository: str
    tag: str | None
    digest: str
    name: str
    """As it is written before the digest, without a tag: what engines know it by."""

    @property
    def short(self) -> str:
        """For messages: the name and the first digits."""
        return f"{self.name}@{self.digest[:19]}"


def parse_reference(image: str) -> Reference:
    """``[REGISTRY/]REPOSITORY[:TAG]@sha256:DIGEST`` taken apart. FleetError when it is not of that form."""
    found = _REFERENCE.fullmatch(image)
    port = "" if found is None else found.group(1).rstrip("/").rpartition("]")[2].partition(":")[2]
    if found is None or (port and not 0 < int(port) < 65536):
        hint = "write NAME@sha256:<64 hex digits>, in lower case but for the registry and the tag"
        raise FleetError(f"'{image[:200]}' is not an image that is pinned by its digest", hint=hint)
    registry, repository, tag, digest = found.group(1).rstrip("/"), found.group(2), found.group(3), found.group(4)
    name = f"{registry}/{repository}" if registry else repository
    if registry and "." not in registry and ":" not in registry and registry != "localhost":
        # The first part is a registry only if it looks like an address: that is how Docker tells it from a user of Docker Hub.
        if registry != registry.lower():
            raise FleetError(f"'{image[:200]}' is not an image that is pinned by its digest", hint="a repository is written in lower case")
        registry, repository = "", name
    if registry in ("", "index.docker.io", DOCKER_HUB):
        registry = DOCKER_HUB
        repository = repository if "/" in repository else f"library/{repository}"
    return Reference(registry, repository, tag, digest, name)


def kept(environment: t.Any) -> list[str]:
    """``NAME=VALUE`` of the variables that the gate reads, by name; ``environment`` is ``Env`` of an image, None where it has none.

    FleetError when it is no list of text, or a value is one that nobody can judge or show.
    """
    if environment is None:
        return []
    if not isinstance(environment, list) or not all(isinstance(text, str) for text in environment):
        raise FleetError("its variables (Env) are not a list of text")
    values: dict[str, str] = {}
    for text in environment:
        name, sign, value = text.partition("=")
        if sign and _KEPT.fullmatch(name):
            values[name] = value
    for name, value in values.items():
        if len(value) > LONGEST:
            raise FleetError(f"its variable {name} has {len(value)} characters, more than {LONGEST}")
        if not value.isprintable():
            raise FleetError(f"its variable {name} has a line break or a character that cannot be shown")
    return [f"{name}={values[name]}" for name in sorted(values)]


def read_config(config: t.Any, architecture: t.Any) -> dict[str, t.Any]:
    """``{variables, architecture}`` of an image. ``config``: ``Config`` or ``config``, which may be null; ``architecture``: as it is there.

    FleetError when the two are not what such a document has.
    """
    if config is not None and not isinstance(config, dict):
        raise FleetError("its configuration (Config) is not a mapping")
    known = isinstance(architecture, str) and re.fullmatch(r"[a-z0-9_]{1,32}", architecture)
    return {"variables": kept((config or {}).get("Env")), "architecture": architecture if known else None}
