# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a host gets its driver's packages from: the one file that tells apt or dnf, as a text. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.driver_names import Policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.driver_wish import Choice, Data

NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos"
APT_FILE = "/etc/apt/sources.list.d/gpuops-fleet-nvidia.sources"
APT_KEY = "/etc/apt/keyrings/gpuops-fleet-nvidia.asc"
DNF_FILE = "/etc/yum.repos.d/gpuops-fleet-nvidia.repo"
DNF_KEY = "/etc/pki/rpm-gpg/RPM-GPG-KEY-gpuops-fleet-nvidia"
_HEAD = "# Written by gpuops.fleet, role nvidia_driver: changes here are lost.\n"


@dataclass(frozen=True)
class Repository:
    """``there``: the host has it as it shall be. ``key``: where its key is from and goes to; None where the host has it."""

    path: str
    text: str
    what: str
    there: bool
    key: dict[str, str] | None = None


def repository_of(choice: Choice, sensed: Data, policy: Policy, missing: bool) -> Repository | None:
    """The file that the host needs; None where it needs none. ``missing``: its sources lack something, or were not asked yet.

    :raises FleetError: a mirror without an address, a key without a checksum.
    """
    if policy.source == "runfile":
        return None
    if policy.source == "distribution":
        return _components(choice, sensed, policy, missing) if choice.system.id == "debian" else None
    return _vendor(choice, sensed, policy)


def _vendor(choice: Choice, sensed: Data, policy: Policy) -> Repository:
    if policy.source == "mirror" and not policy.mirror:
        hint = "write the address of a directory that is laid out as NVIDIA's, such as https://mirror.example.com/nvidia/debian13/x86_64"
        raise FleetError("missing", field="nvidia_driver_mirror", hint=hint)
    folder = "sbsa" if sensed["architecture"] == "aarch64" else "x86_64"
    address = (policy.mirror or f"{NVIDIA}/{choice.system.repository}/{folder}").rstrip("/")
    url = policy.key or f"{address}/{choice.system.key}"
    if not policy.key_checksum:
        hint = f"write the SHA-256 of {url} as 'sha256:...', compared with a second source"
        raise FleetError("missing", field="nvidia_driver_key_checksum", hint=hint)
    apt = choice.system.family == "debian"
    key = {"url": url, "checksum": policy.key_checksum, "path": APT_KEY if apt else DNF_KEY}
    if apt:
        text = f"{_HEAD}Types: deb\nURIs: {address}\nSuites: /\nSigned-By: {APT_KEY}\n"
        return Repository(APT_FILE, text, address, sensed["repository"] == text, key)
    text = f"{_HEAD}[gpuops-fleet-nvidia]\nname=NVIDIA driver\nbaseurl={address}\nenabled=1\ngpgcheck=1\ngpgkey=file://{DNF_KEY}\n"
    return Repository(DNF_FILE, text, address, sensed["repository"] == text, key)


def _components(choice: Choice, sensed: Data, policy: Policy, missing: bool) -> Repository | None:
    """Debian's contrib and non-free, from where the host has its main; what the site has already is left to it."""
    if sensed["repository"] is None and not missing:
        return None
    codename = choice.system.codename
    wanted = ["contrib", "non-free", *(["non-free-firmware"] if int(choice.system.version) >= 12 else [])]
    stanzas: dict[tuple[str, str], list[str]] = {}
    found = _main(sensed["sources"], str(codename))
    for uri, suite, signed in found:
        key = (policy.mirror or uri, signed)
        suites = stanzas.setdefault(key, [])
        if suite not in suites:
            suites.append(suite)
    if not stanzas:
        if sensed["repository"] is None and sensed["candidates"] is not None:
            hint = "add contrib, non-free and non-free-firmware to its sources by hand"
            raise FleetError(f"{choice.host}: no source with 'main' of {codename} is among apt's sources there", hint=hint)
        return None
    parts = [
        f"Types: deb\nURIs: {uri}\nSuites: {' '.join(suites)}\nComponents: {' '.join(wanted)}\n"
        + (f"Signed-By: {signed}\n" if signed else "")
        for (uri, signed), suites in stanzas.items()
    ]
    text = _HEAD + "\n".join(parts)
    what = f"{' '.join(wanted)} of {', '.join(dict.fromkeys(uri for uri, _signed in stanzas))}"
    return Repository(APT_FILE, text, what, sensed["repository"] == text)


def _main(sources: Iterable[Data], codename: str) -> list[tuple[str, str, str]]:
    """(address, suite, key) of each source of the release and its point updates."""
    suites = (codename, f"{codename}-updates")
    return [
        (uri, suite, each["signed_by"])
        for each in sources
        if "main" in each["components"]
        for uri in each["uris"]
        for suite in each["suites"]
        if suite in suites
    ]
