# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages from where are an engine, or NVIDIA's container toolkit, on this operating system; and what the engine shall be told.

Pure: what Ansible knows of a host and ``data/engine_packages.yml`` come in, names and the text of a source of packages come out.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_facts import CompatFacts, version

DISTRIBUTION, REPOSITORY, MIRROR, PRESENT = "distribution", "repository", "mirror", "present"
_FAMILIES = {"debian": "debian", "redhat": "redhat"}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# Where the engine's version is found among a host's packages.
_ENGINES = ("docker-ce", "docker.io", "moby-engine")

Data = Mapping[str, t.Any]


@dataclass(frozen=True)
class Wish:
    """``version``: of the thing, with or without the packager's own number, ``*`` for any end. ``packages``: others than those known.

    ``mirror``: the address that stands for the vendor's. ``key``, ``key_checksum``: others than the vendor's.
    """

    source: str
    version: str = ""
    packages: tuple[str, ...] = ()
    mirror: str = ""
    key: str = ""
    key_checksum: str = ""


@dataclass(frozen=True)
class _System:
    id: str
    major: str
    family: str
    codename: str
    machine: str

    def words(self) -> dict[str, str]:
        return {
            "id": self.id,
            "major": self.major,
            "codename": self.codename,
            "arch": _ARCHITECTURES.get(self.machine, self.machine),
            "rpm_arch": self.machine,
        }


@dataclass(frozen=True)
class Plan:
    """``names`` to install, ``specs`` with the version that is asked for, ``repository``: None where the host's own sources have them.

    ``warning``: empty where the role has run for real.
    """

    family: str
    names: list[str] = field(default_factory=list)
    specs: list[str] = field(default_factory=list)
    repository: dict[str, t.Any] | None = None
    warning: str = ""

    def data(self) -> dict[str, t.Any]:
        """Plain data for a play."""
        return {
            "family": self.family,
            "names": self.names,
            "specs": self.specs,
            "repository": self.repository,
            "warning": self.warning,
        }


def plan(data: Data, what: str, facts: Data, wish: Wish) -> Plan:
    """What has to be installed. FleetError when there is nothing for this system from this source, and what there is instead."""
    system = _system(facts)
    known = data[what]
    if wish.source == MIRROR and not wish.mirror:
        raise FleetError("a mirror is wished, and none is named", field="mirror", hint=f"the address that stands for {known['base']}")
    if wish.source == PRESENT:
        return Plan(system.family)
    found = _row(known, system, wish)
    names = list(wish.packages) or [*found.get("versioned", []), *found.get("packages", [])]
    bear = set(wish.packages or found.get("versioned", []))
    specs = [_spec(name, wish.version, system.family) if wish.version and name in bear else name for name in names]
    repository = None if wish.source == DISTRIBUTION else _repository(known, system, wish)
    proven = system.major in found.get("proven", []) and wish.source == found["source"]
    warning = "" if proven else f"{wish.source} packages of {what} have not run for real on {system.id} {system.major}: look at the result"
    return Plan(system.family, names, specs, repository, warning)


def _system(facts: Data) -> _System:
    family = _FAMILIES.get(str(facts.get("os_family", "")).lower(), "")
    name, major = str(facts.get("distribution", "")), str(facts.get("distribution_major_version", ""))
    if not family:
        hint = "Debian's and Red Hat's families are prepared; elsewhere install by hand and set the source to present"
        raise FleetError(f"{name or 'an unknown system'} {major} is not prepared".replace("  ", " "), hint=hint)
    return _System(name.lower(), major, family, str(facts.get("distribution_release", "")), str(facts.get("architecture", "")))


def _row(known: Data, system: _System, wish: Wish) -> Data:
    source = REPOSITORY if wish.source == MIRROR else wish.source
    for row in known["rows"]:
        fits = system.id in row.get("ids", []) or system.family in row.get("families", [])
        if row["source"] == source and fits and system.major in row.get("majors", [system.major]):
            if "refused" in row and not wish.packages:
                raise FleetError(row["refused"], field="source", hint="set it to repository or mirror")
            return t.cast(Data, row)
    raise FleetError(f"{system.id} {system.major} has no such packages", field="source", hint="set it to repository or mirror")


def _spec(name: str, asked: str, family: str) -> str:
    """A package in a version; one without the packager's number takes any."""
    full = asked if "-" in asked or "*" in asked else f"{asked}-*"
    return f"{name}={full}" if family == "debian" else f"{name}-{full}"


def _repository(known: Data, system: _System, wish: Wish) -> dict[str, t.Any]:
    """A source of packages as its file's path and text, and the key that signs it."""
    shape = known[system.family]
    words = {**system.words(), "base": (wish.mirror or known["base"]).rstrip("/")}
    uri, name = shape["uri"].format(**words), known["name"]
    checksum = wish.key_checksum or ("" if wish.key else known["key_checksums"].get(system.family, ""))
    key = {"url": wish.key or shape["key"].format(**words), "checksum": checksum}
    if system.family == "redhat":
        key["path"] = f"/etc/pki/rpm-gpg/{name}.asc"
        lines = [f"[{name}]", f"name={name}", f"baseurl={uri}", "enabled=1", "gpgcheck=1", f"gpgkey=file://{key['path']}"]
        return {"path": f"/etc/yum.repos.d/{name}.repo", "text": "".join(f"{line}\n" for line in lines), "key": key}
    key["path"] = f"/etc/apt/keyrings/{name}.asc"
    fields = {"Types": "deb", "URIs": uri, "Suites": shape["suite"].format(**words), "Components": shape["component"]}
    fields["Signed-By"] = key["path"]
    text = "".join(f"{field}: {value}\n" for field, value in fields.items() if value)
    return {"path": f"/etc/apt/sources.list.d/{name}.sources", "text": text, "key": key}


# --- what the engine shall be told


def engine_version(packages: Mapping[str, t.Any]) -> str:
    """The engine's version by the host's packages (as module package_facts has them); empty where none of those known is installed."""
    for name in _ENGINES:
        for found in packages.get(name) or []:
            # Debian: 5:28.3.0-1~debian.13~trixie, 26.1.5+dfsg1-9
            return str(found["version"]).rpartition(":")[2].partition("-")[0].partition("+")[0]
    return ""


def settings(facts: CompatFacts, engine: str, asked: Data, cdi: bool) -> dict[str, t.Any]:
    """``asked``, and CDI where this engine knows it and does not have it on by itself.

    FleetError when CDI is wished of an engine that has none.
    """
    found = dict(asked)
    first, default = facts.docker().value
    if not cdi or not engine or version(engine) >= version(default):
        return found
    if version(engine) < version(first):
        hint = f"upgrade to Docker {first} or newer, or give services their GPUs by NVIDIA's runtime (fleet_gpu_access: nvidia)"
        raise FleetError(f"Docker {engine} knows no CDI", hint=hint)
    found["features"] = {**found.get("features", {}), "cdi": True}
    return found


def toolkit_refusal(facts: CompatFacts, toolkit: str | None, mode: str) -> str:
    """Why this container toolkit does not serve this mode, in one line; empty when it does, or when its version is not known."""
    known = facts.container_toolkit()
    first = known.value[0]
    if mode != "cdi" or not toolkit or version(toolkit.rstrip("*").rstrip("-")) >= version(first):
        return ""
    return f"container toolkit {toolkit} makes no CDI specification: install {first} or newer, or set the mode to runtime ({known.source})"


# What apt, dpkg, DKMS and dnf say when they cannot go on, the most telling first, and what then helps.
_TELLING: tuple[tuple[str, str], ...] = (
    (
        r"No space left on device|You don't have enough free space|At least \d+\S* more space needed|Disk Requirements",
        "free some, for instance with `apt-get clean`",
    ),
    (r"kernel headers for (?:target )?kernel \S+ (?:at \S+ )?cannot be found", "install that kernel's headers, or boot one that has them"),
    (
        r"Bad return status for module build|Building module.*failed|Error! The .* module .* build",
        "its make.log below /var/lib/dkms has the compiler's words",
    ),
    (r"Held packages were changed", "let go of those that are meant: `apt-mark showhold`, `apt-mark unhold`"),
    (r"dpkg was interrupted", "run `dpkg --configure -a` there"),
    (r"Could not get lock|is another process using it|lock-frontend", "wait for what installs there now"),
    (
        r"Failed to fetch|Unable to fetch|Could not resolve|Hash Sum mismatch|Cannot download|Failed to download|Curl error",
        "look at the source of packages",
    ),
    (
        r"have unmet dependencies|held broken packages|nothing provides|conflicting requests",
        "look at what holds them: `apt-mark showhold`",
    ),
    (r"error processing (?:package|archive)|subprocess returned error", ""),
)
# In which the reason of the line before it stands.
_HEAD = re.compile(r"^dpkg: error processing .*:$")
_LONGEST_LINE = 360


def install_problem(host: str, result: Data) -> str:
    """Why a task that installs packages failed, in one line with what helps. ``result``: of module apt, dnf or command."""
    lines = list(_said(result))
    for pattern, hint in _TELLING:
        found = next((line for line in lines if re.search(pattern, line)), None)
        if found is not None:
            return _problem(host, found, hint)
    return _problem(host, next((line for line in lines if line.startswith("E: ")), lines[-1] if lines else "no reason given"), "")


def _problem(host: str, words: str, hint: str) -> str:
    # dpkg names the file first and the reason last.
    short = words if len(words) <= _LONGEST_LINE else f"{words[: _LONGEST_LINE // 3]} ... {words[-_LONGEST_LINE // 3 * 2 :]}"
    return f"{host}: packages were not installed: {short}; {f'{hint}, and ' if hint else ''}run this again: it finishes what is half done"


def _said(result: Data) -> Iterator[str]:
    """The lines of all that it said, those with the reason first; what dpkg says in two lines is one."""
    msg = str(result.get("msg") or "")
    # Module apt puts its whole command before apt's words.
    texts = [str(result.get("stderr") or ""), msg.partition("' failed: ")[2] or msg, str(result.get("stdout") or "")]
    texts += [str(each) for each in result.get("failures") or ()]
    head = ""
    for line in (" ".join(line.split()) for text in texts for line in text.splitlines()):
        if _HEAD.match(line):
            head = f"{line} "
        elif line:
            yield head + line
            head = ""
    if head:
        yield head.strip()
