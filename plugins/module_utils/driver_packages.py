# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host's package manager knows: what is installed and held, which versions can be had, and where from."""

from __future__ import annotations

import os
import re
import typing as t
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.commands import run
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

_OPTION = re.compile(r"^\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*(.*)$")
# What role nvidia_driver writes itself: no source that the site has.
_OWN = "gpuops-fleet-nvidia.sources"
# States of dpkg's in which nothing is half done.
_WHOLE = ("installed", "config-files", "not-installed")


def dpkg_packages(root: Path) -> tuple[dict[str, str], list[str]]:
    """(name -> version of what is installed, names that are held), from dpkg's own status file."""
    installed, held = {}, []
    for paragraph in (root / "var/lib/dpkg/status").read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.*)$", paragraph, re.MULTILINE))
        wish, _separator, state = fields.get("Status", "").partition(" ")
        if "Package" not in fields:
            continue
        if wish == "hold":
            held.append(fields["Package"])
        if state == "ok installed":
            installed[fields["Package"]] = fields.get("Version", "")
    return installed, sorted(set(held))


def dpkg_unfinished(root: Path) -> dict[str, t.Any]:
    """What an earlier installation left: ``interrupted``: dpkg was ended in the middle, and apt refuses all until it has taken up its
    journal; ``packages``: those that are unpacked and not configured, or less.

    Source: dpkg's own form (lib/dpkg/dbmodify.c): one file each in ``updates`` since the status file was written last, by number.
    """
    folder = root / "var/lib/dpkg/updates"
    journal = sorted((name for name in (os.listdir(folder) if folder.is_dir() else []) if name.isdigit()), key=int)
    states: dict[str, str] = {}
    status = root / "var/lib/dpkg/status"
    for path in [*([status] if status.exists() else []), *(folder / name for name in journal)]:
        for paragraph in path.read_text(encoding="utf-8", errors="replace").split("\n\n"):
            fields = dict(re.findall(r"^(Package|Status): (.*)$", paragraph, re.MULTILINE))
            if "Package" in fields:
                states[fields["Package"]] = fields.get("Status", "").rpartition(" ")[2]
    return {"interrupted": bool(journal), "packages": sorted(name for name, state in states.items() if state not in _WHOLE)}


def rpm_packages(program: str, timeout: int) -> dict[str, str]:
    """Name -> version of what is installed. FleetError when rpm does not tell."""
    done = run([program, "-qa", "--queryformat", r"%{NAME} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\n"], timeout, variables={"LC_ALL": "C"})
    if done.status != 0:
        raise FleetError(f"{program} -qa: {done.words}")
    return dict(line.split(" ", 1) for line in done.output.splitlines() if " " in line)


def versionlocks(root: Path) -> list[str]:
    """Names that ``dnf versionlock`` holds: lines such as ``nvidia-open-3:580.95.05-1.el9.*``."""
    path = root / "etc/dnf/plugins/versionlock.list"
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    found = (
        re.match(r"^(?!!)(\S+?)-(?:[0-9]+:)?[0-9][^-]*-[^-]+$", line.strip()) for line in text.splitlines() if not line.startswith("#")
    )
    return sorted({each.group(1) for each in found if each})


def madison(program: str, names: t.Sequence[str], timeout: int) -> dict[str, list[str]]:
    """Name -> versions that apt's sources have, the newest first. A name that they do not have is not among the keys.

    FleetError when apt-cache cannot be run, or fails.
    """
    done = run([program, "madison", *names], timeout, variables={"LC_ALL": "C"})
    if done.status not in (0, 100):
        raise FleetError(f"{program} madison: {done.words}")
    result: dict[str, list[str]] = {}
    for line in done.output.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) == 3 and not parts[2].endswith("Sources") and parts[1] not in result.setdefault(parts[0], []):
            result[parts[0]].append(parts[1])
    return result


def dnf_versions(program: str, names: t.Sequence[str], timeout: int) -> dict[str, list[str]]:
    """As :func:`madison`, asked of dnf; ``kernel-devel-5.14.0-570.el9.x86_64`` is a package in one version. FleetError when it fails."""
    form = "%{name} %{epoch}:%{version}-%{release} %{arch}\n"
    done = run([program, "-q", "repoquery", "--available", "--queryformat", form, *names], timeout, variables={"LC_ALL": "C"})
    if done.status != 0:
        raise FleetError(f"{program} repoquery: {done.words}")
    result: dict[str, list[str]] = {}
    for line in done.output.splitlines():
        name, version, architecture = (*line.split(), "", "", "")[:3]
        exact = f"{name}-{version.partition(':')[2]}.{architecture}"
        for asked in (name, exact):
            if architecture and asked in names and version not in result.setdefault(asked, []):
                result[asked].append(version)
    for versions in result.values():
        versions.sort(key=_numbers, reverse=True)
    return result


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"[0-9]+", version)]


def sources(root: Path) -> list[dict[str, t.Any]]:
    """Apt's sources of packages but our own: ``uris``, ``suites``, ``components``, ``signed_by`` ('' where they say none)."""
    folder = root / "etc/apt/sources.list.d"
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    lines = [root / "etc/apt/sources.list", *(path for path in files if path.suffix == ".list")]
    found = [each for path in lines if path.exists() for each in one_line(path.read_text(encoding="utf-8", errors="replace"))]
    for path in files:
        if path.suffix == ".sources" and path.name != _OWN:
            found += deb822(path.read_text(encoding="utf-8", errors="replace"))
    return found


def one_line(text: str) -> list[dict[str, t.Any]]:
    """Sources in the form of one line: ``deb [signed-by=FILE] URI SUITE COMPONENT...``."""
    found = []
    for line in text.splitlines():
        match = _OPTION.match(line.partition("#")[0])
        if match:
            options = dict(part.split("=", 1) for part in (match.group(1) or "").split() if "=" in part)
            found.append(_source([match.group(2)], [match.group(3)], match.group(4).split(), options.get("signed-by", "")))
    return found


def deb822(text: str) -> list[dict[str, t.Any]]:
    """Sources in the form of paragraphs (sources.list(5), DEB822-STYLE FORMAT). A key that is written out is kept as it stands."""
    found = []
    for paragraph in re.split(r"\n[ \t]*\n", text):
        fields: dict[str, str] = {}
        last = ""
        for line in paragraph.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t") and last:
                fields[last] += f"\n{line}"
            elif ":" in line:
                last, _separator, value = line.partition(":")
                last = last.strip().lower()
                fields[last] = value.strip()
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").lower() not in ("no", "false", "0", "off"):
            uris, suites, components = (fields.get(name, "").split() for name in ("uris", "suites", "components"))
            found.append(_source(uris, suites, components, fields.get("signed-by", "")))
    return found


def _source(uris: list[str], suites: list[str], components: list[str], signed_by: str) -> dict[str, t.Any]:
    return {"uris": uris, "suites": suites, "components": components, "signed_by": signed_by}
