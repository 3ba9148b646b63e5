# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which settings the running engine says are in force, out of what ``/info`` tells of itself (Engine API reference, SystemInfo).

Only what it tells can be looked at; of the other keys nobody knows but who set them.
"""

from __future__ import annotations

import typing as t
from collections.abc import Callable, Mapping

_Json = Mapping[str, t.Any]

_DRIVER = "native.cgroupdriver="


def not_in_force(info: _Json, settings: _Json) -> list[str]:
    """Keys of ``settings`` that the engine contradicts, sorted; those of ``features`` one by one."""
    found = [key for key, look in _LOOKS.items() if key in settings and not _holds(look, info, settings[key])]
    features = settings.get("features")
    if isinstance(features, dict) and "cdi" in features and bool(info.get("CDISpecDirs")) is not bool(features["cdi"]):
        found.append("features/cdi")
    return sorted(found)


def _holds(look: Callable[[_Json, t.Any], bool], info: _Json, wished: t.Any) -> bool:
    try:
        return look(info, wished)
    except (AttributeError, TypeError):  # a wish of another shape than the engine's is never in force
        return False


def _runtimes(info: _Json, wished: t.Any) -> bool:
    here = info.get("Runtimes") or {}
    return all(name in here and here[name].get("path") in (None, each.get("path")) for name, each in wished.items() if "path" in each)


def _address(text: str) -> str:
    return text.rstrip("/")


def _mirrors(info: _Json, wished: t.Any) -> bool:
    here = {_address(each) for each in (info.get("RegistryConfig") or {}).get("Mirrors") or []}
    return {_address(each) for each in wished} <= here


def _insecure(info: _Json, wished: t.Any) -> bool:
    registry = info.get("RegistryConfig") or {}
    open_ones = {name for name, each in (registry.get("IndexConfigs") or {}).items() if not each.get("Secure")}
    return set(wished) <= open_ones | set(registry.get("InsecureRegistryCIDRs") or [])


def _cgroup_driver(info: _Json, wished: t.Any) -> bool:
    asked = [each[len(_DRIVER) :] for each in wished if each.startswith(_DRIVER)]
    return not asked or info.get("CgroupDriver") == asked[-1]


def _field(name: str) -> Callable[[_Json, t.Any], bool]:
    return lambda info, wished: name not in info or info[name] == wished


_LOOKS: dict[str, Callable[[_Json, t.Any], bool]] = {
    "live-restore": lambda info, wished: bool(info.get("LiveRestoreEnabled")) is bool(wished),
    "debug": lambda info, wished: bool(info.get("Debug")) is bool(wished),
    "labels": lambda info, wished: set(wished) <= set(info.get("Labels") or []),
    "runtimes": _runtimes,
    "registry-mirrors": _mirrors,
    "insecure-registries": _insecure,
    "exec-opts": _cgroup_driver,
    "default-runtime": _field("DefaultRuntime"),
    "log-driver": _field("LoggingDriver"),
    "data-root": _field("DockerRootDir"),
    "storage-driver": _field("Driver"),
}
