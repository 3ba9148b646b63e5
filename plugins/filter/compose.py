# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters for compose templates: safe values, what a runtime needs, and the Compose specification's judgement."""

from __future__ import annotations

import functools
import importlib.util
import json
import typing as t
from pathlib import Path

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.late import Late

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils import compose, door, runtimes
else:
    compose = Late("compose")
    door = Late("door")
    runtimes = Late("runtimes")

# The specification's own schema, as the PyPI package check-jsonschema carries it.
PACKAGE = "check_jsonschema"
SCHEMA_FILE = "builtin_schemas/vendor/compose-spec.json"


@functools.cache
def compose_schema() -> dict[str, t.Any]:
    """The Compose specification's JSON Schema. Raises FleetError when the package that carries it is not installed."""
    package = importlib.util.find_spec(PACKAGE)  # found, not imported: only a file of it is of use here
    if package is None or package.origin is None:
        raise FleetError(
            f"cannot check a compose file: the Python package {PACKAGE} is not installed",
            hint="install it into the Python that runs ansible-playbook: pip install check-jsonschema",
        )
    schema: dict[str, t.Any] = json.loads(door.read_text(Path(package.origin).parent / SCHEMA_FILE))
    return schema


@functools.cache
def runtime_data() -> dict[str, t.Any]:
    """What is known of the serving runtimes. Raises FleetError when the file cannot be read."""
    return dict(door.read_data("runtimes.yml").data)


def runtime_container(
    manifest: compose.Data, placement: compose.Data, memory_mib: int = 0, secrets: t.Collection[str] = (), name: str = ""
) -> dict[str, t.Any]:
    """What a compose template writes of one replica: see ``runtimes.container``."""
    return runtimes.container(runtime_data(), manifest, placement, memory_mib, list(secrets), name)


def is_job(manifest: compose.Data) -> bool:
    """Whether a replica runs to its end once, as its runtime does; False where no manifest is known."""
    return bool(runtimes.entry(runtime_data(), str(manifest.get("runtime")))["job"])


def warm_up(manifest: compose.Data) -> dict[str, t.Any]:
    """The request that a new version has to answer before it gets others': see ``runtimes.warm_up``."""
    return runtimes.warm_up(runtime_data(), manifest)


def compose_problems(text: str) -> list[str]:
    """What the Compose specification's schema says against a compose file, one line each; [] when it is valid."""
    try:
        return compose.compose_problems(str(text), compose_schema())
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from None  # ansible-core would print the cause a second time


class FilterModule:
    """What ansible-core looks for in this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filters by name."""
        return {
            "compose_problems": compose_problems,
            "compose_value": compose.compose_value,
            "device_memory_mib": runtimes.device_memory_mib,
            "health_command": compose.health_command,
            "is_job": is_job,
            "model_volumes": runtimes.model_volumes,
            "mps_environment": compose.mps_environment,
            "mps_volumes": compose.mps_volumes,
            "runtime_container": runtime_container,
            "store_paths": runtimes.store_paths,
            "vllm_arguments": runtimes.vllm_arguments,
            "volume_source": compose.volume_source,
            "warm_up": warm_up,
        }
