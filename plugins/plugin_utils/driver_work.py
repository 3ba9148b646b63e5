# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to be done on a host so that it has the chosen driver: packages, their source, holds; or what stands in the way. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_facts import Version, trimmed, version
from ansible_collections.gpuops.fleet.plugins.plugin_utils.driver_names import Policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.driver_sources import Repository, repository_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.driver_wish import Choice, Data, Tables

# Packages that NVIDIA's licence portal has one by one: no source of packages brings them, and each is a whole driver.
_SINGLE = re.compile(r"^(?:nvidia-vgpu-|nvidia-linux-grid-|NVIDIA-vGPU)")
_FORMS = {".run": "run", ".deb": "deb", ".rpm": "rpm"}
_FAMILIES = {"deb": "debian", "rpm": "redhat"}
_REVISION = re.compile(r"^(?:[0-9]+:)?([0-9]+(?:\.[0-9]+)*)")


def upstream(text: str | None) -> Version:
    """NVIDIA's own version in a package's: ``3:550.163.01-2~deb13u1`` -> (550, 163, 1)."""
    found = _REVISION.match(text or "")
    return version(found.group(1)) if found else ()


@dataclass(frozen=True)
class Package:
    """A package that is wanted. ``driver``: it bears the driver's version; ``kernel``: whose headers it brings.

    ``build``: it comes before the driver, because DKMS builds with it, or because it says which driver may come.
    """

    name: str
    driver: bool = False
    build: bool = False
    kernel: str | None = None


@dataclass
class Work:
    """What is to be done, in the order of ``lines``. ``complete``: the sources were asked for all of it.

    ``install``: name -> version, empty where any would do; ``build``: those of them that come first; ``upgrade``: an installed driver is
    replaced; ``hold`` and ``unhold``: names.
    """

    names: list[str]
    repository: Repository | None = None
    complete: bool = False
    install: dict[str, str] = field(default_factory=dict)
    build: list[str] = field(default_factory=list)
    remove: list[str] = field(default_factory=list)
    unhold: list[str] = field(default_factory=list)
    hold: list[str] = field(default_factory=list)
    runfile: dict[str, str] | None = None
    stream: str | None = None
    upgrade: bool = False
    lines: list[str] = field(default_factory=list)


def work(tables: Tables, choice: Choice, sensed: Data, policy: Policy) -> Work:
    """The steps. ``sensed["candidates"]`` (name -> versions, the newest first) is None until the host's sources were asked.

    :raises FleetError: something stands in the way; nothing was touched then.
    """
    _refuse_other_kind(choice, sensed, policy)
    _refuse_other_way(choice, sensed, policy)
    wanted = _wanted(tables, choice, sensed, policy)
    result = Work([each.name for each in wanted])
    known: Mapping[str, list[str]] | None = sensed.get("candidates")
    missing = known is None or any(not known.get(each.name) for each in wanted if each.name not in sensed["installed"]["packages"])
    result.repository = repository_of(choice, sensed, policy, missing)
    result.complete = known is not None and (result.repository is None or result.repository.there)
    _refuse_headers(choice, sensed, known, wanted)
    if policy.source == "runfile":
        result.runfile = _runfile(choice, policy)
    result.install = _install(choice, sensed, policy, wanted, known if result.complete else None)
    _refuse_downgrade(choice, policy, result)
    result.remove = _others(tables, choice, sensed, wanted)
    _holds(choice, sensed, wanted, result)
    if choice.row is not None and choice.row.stream is not None:
        result.stream = choice.row.stream[choice.flavour].format(branch=choice.branch)
    result.build = [each.name for each in wanted if each.build and each.name in result.install]
    driver = [each.name for each in wanted if each.driver and each.name in result.install]
    changes = bool(driver) or bool(result.remove) or result.runfile is not None
    result.upgrade = changes and choice.here is not None
    if result.install or changes:
        _refuse_space(tables, choice, sensed, policy)
    if changes or sensed["loaded"]["version"] is None:
        _refuse_secure_boot(choice, sensed, policy)
    result.lines = _lines(sensed, result)
    return result


def _refuse_other_kind(choice: Choice, sensed: Data, policy: Policy) -> None:
    """The vGPU host driver takes the ordinary one's place: both bring the same kernel module and library, and only one runs CUDA."""
    kind = sensed["installed"].get("kind")
    if policy.kind == "vgpu-host" and policy.source != "runfile":
        raise FleetError(f"{choice.host}: no source of packages has the vGPU host driver", hint="set nvidia_driver_source: runfile")
    if choice.here is None or kind in (None, policy.kind):
        return
    way = "`nvidia-uninstall`" if sensed["installed"]["runfile"] else "its packages' own program"
    if policy.kind == "vgpu-host":
        message = f"the ordinary driver {choice.here} is installed, and the vGPU host driver goes in its place, not beside it"
        raise FleetError(f"{choice.host}: {message}", hint=f"move its services away, and remove it there with {way}")
    message = f"the vGPU host driver {choice.here} is installed, and the ordinary driver goes in its place, not beside it"
    raise FleetError(
        f"{choice.host}: {message}", hint=f"take its vGPUs away and remove it there with {way}, or take the host out of this play"
    )


def _refuse_other_way(choice: Choice, sensed: Data, policy: Policy) -> None:
    """A driver by packages and one by NVIDIA's installer on the same host overwrite each other's files."""
    by_runfile = sensed["installed"]["runfile"]
    single = sorted(name for name in sensed["installed"]["packages"] if _SINGLE.match(name))
    form = _form(policy) if policy.source == "runfile" else None
    if by_runfile and form != "run":
        hint = "remove it there with `nvidia-uninstall`, or set nvidia_driver_source: runfile"
        hint = hint if form is None else "remove it there with `nvidia-uninstall`, or give the address of an installer (.run)"
        raise FleetError(f"{choice.host}: NVIDIA's installer has installed driver {choice.here}", hint=hint)
    if single and form in (None, "run"):
        hint = "remove it there, or give the address of its like as nvidia_driver_runfile"
        raise FleetError(f"{choice.host}: package {single[0]} has installed driver {choice.here}", hint=hint)
    if choice.here and not by_runfile and not single and policy.source == "runfile":
        hint = "remove those packages, or set nvidia_driver_source: distribution"
        raise FleetError(f"{choice.host}: packages have installed driver {choice.here}", hint=hint)


def _wanted(tables: Tables, choice: Choice, sensed: Data, policy: Policy) -> list[Package]:
    """Every package that shall be there, the headers first: what builds a module comes before its source."""
    rules = tables.packages.headers(choice.system)
    kernel = sensed["kernel"]
    releases = [release for release in dict.fromkeys((kernel["running"], kernel["next"])) if release]
    wanted = [
        Package(rules.one.format(kernel=release), build=True, kernel=release) for release in releases if not _has_headers(sensed, release)
    ]
    installed = sensed["installed"]["packages"]
    wanted += [Package(meta, build=True) for image, meta in rules.meta.items() if image in installed]
    if choice.row is None:
        return [*wanted, *(Package(name, build=True) for name in ("dkms", "gcc")), *map(Package, policy.packages)]
    row = choice.row
    pin = [row.pin] if row.pin else []
    driver = [*row.modules(choice.flavour), *row.user]
    daemon = [row.daemon] if row.daemon and policy.persistence else []
    fabric = [row.fabric] if row.fabric and wants_fabric(sensed, policy) else []
    if wants_fabric(sensed, policy) and not row.fabric:
        hint = "set nvidia_driver_source: repository, or nvidia_driver_fabric_manager: never"
        raise FleetError(f"{choice.host}: NVSwitches need the fabric manager, which {choice.system.name} does not have", hint=hint)
    branch = {"branch": choice.branch}
    return [
        *wanted,
        *(Package(name.format(**branch), build=True) for name in pin),
        *(Package(name, build=True) for name in row.tools),
        *(Package(name.format(**branch), driver=True) for name in (*driver, *fabric)),
        *(Package(name.format(**branch)) for name in daemon),
        *map(Package, policy.packages),
    ]


def wants_fabric(sensed: Data, policy: Policy) -> bool:
    """Does the fabric manager belong on this host? Without it no GPU behind an NVSwitch runs CUDA."""
    return policy.fabric_manager == "always" or (policy.fabric_manager == "auto" and sensed["switches"] > 0)


def _has_headers(sensed: Data, release: str) -> bool:
    return bool(sensed["kernel"]["headers"].get(release))


def _refuse_headers(choice: Choice, sensed: Data, known: Mapping[str, list[str]] | None, wanted: Iterable[Package]) -> None:
    """Without a kernel's headers DKMS builds nothing for it, and says so only after everything else is installed."""
    for each in wanted:
        if each.kernel is not None and known is not None and not known.get(each.name):
            which = "runs now" if each.kernel == sensed["kernel"]["running"] else "is the next to boot"
            better = sensed["kernel"]["next"]
            hint = "install a kernel whose headers are there"
            if each.kernel != better and (_has_headers(sensed, better) or known.get(each.name.replace(each.kernel, better))):
                hint = f"boot {better} first, whose headers can be had"
            raise FleetError(f"{choice.host}: no headers for kernel {each.kernel}, which {which}: no source has {each.name}", hint=hint)


def _form(policy: Policy) -> str:
    """What the address leads to, by the end of its path: ``run``, ``deb`` or ``rpm``. Without one, the installer."""
    path = policy.runfile.partition("?")[0].partition("#")[0]
    return _FORMS.get(path[-4:].lower(), "run")


def _runfile(choice: Choice, policy: Policy) -> dict[str, str] | None:
    """What is to be downloaded; None where that version is there."""
    for name, value in (("nvidia_driver_runfile", policy.runfile), ("nvidia_driver_runfile_checksum", policy.runfile_checksum)):
        if not value:
            raise FleetError("missing", field=name, hint="a runfile is taken by its address and its checksum ('sha256:...')")
    form = _form(policy)
    if _FAMILIES.get(form, choice.system.family) != choice.system.family:
        raise FleetError(f"{choice.host}: {choice.system.name} takes no .{form}", field="nvidia_driver_runfile", hint="give another file")
    if trimmed(version(choice.here)) == trimmed(version(policy.version)):
        return None
    return {"url": policy.runfile, "checksum": policy.runfile_checksum, "version": policy.version, "form": form}


def _install(
    choice: Choice, sensed: Data, policy: Policy, wanted: Iterable[Package], known: Mapping[str, list[str]] | None
) -> dict[str, str]:
    """Name -> version of what is not as it shall be, all of the driver in one version: kernel modules, library, fabric manager.

    Versions are empty while the sources were not asked.
    """
    have, result = sensed["installed"]["packages"], {}
    one = ""  # the version of the driver's first package, as it stands there
    for each in wanted:
        if each.name in have and not (each.driver and not _fits(choice, policy, have[each.name], one)):
            one = one or (have[each.name] if each.driver else "")
            continue
        versions = None if known is None else known.get(each.name, [])
        if versions is None:
            result[each.name] = ""
            continue
        fits = [text for text in versions if not each.driver or _fits(choice, policy, text, one)]
        if not fits:
            wish = policy.version or one or f"R{choice.branch}"
            has = f"only as {', '.join(versions[:3])}" if versions else "in none of the host's sources"
            message = f"{choice.host}: package {each.name} is there {has}" if versions else f"{choice.host}: package {each.name} is {has}"
            hint = (
                f"{wish} is wished: ask for a version that is there, or for another nvidia_driver_source" if each.driver else _where(each)
            )
            raise FleetError(message, hint=hint)
        result[each.name] = fits[0]
        one = one or (fits[0] if each.driver else "")
    return result


def _where(package: Package) -> str:
    if package.name == "dkms":
        return "on RHEL and its kin it comes from EPEL: enable that"
    return "enable the source that has it"


def _fits(choice: Choice, policy: Policy, text: str, one: str) -> bool:
    """Is it of the version or branch that is wished, and of the ``one`` that the driver's other packages have?"""
    numbers, wish = upstream(text), version(policy.version)
    return (numbers == wish if wish else numbers[:1] == (choice.branch,)) and (not one or numbers == upstream(one))


def _refuse_downgrade(choice: Choice, policy: Policy, result: Work) -> None:
    here = version(choice.here)
    if not here or policy.allow_downgrade:
        return
    new = max((upstream(text) for name, text in result.install.items() if upstream(text)[:1] == (choice.branch,)), default=())
    wish = version(policy.version) or new or (choice.branch,)
    if wish < here[: len(wish)]:
        text = policy.version or f"R{choice.branch}"
        hint = "set nvidia_driver_allow_downgrade: true if that is meant"
        raise FleetError(f"{choice.host}: {text} is older than the driver that is there, {choice.here}", hint=hint)


def _others(tables: Tables, choice: Choice, sensed: Data, wanted: Iterable[Package]) -> list[str]:
    """Installed modules and programs of another driver: what was there before, or the other kind of kernel modules."""
    if choice.row is None:
        return []
    keep = {each.name for each in wanted}
    rows = [*tables.packages.offers(choice.system, "distribution"), *tables.packages.offers(choice.system, "repository")]
    patterns = {
        "^" + re.escape(name).replace(re.escape("{branch}"), "[0-9]+") + "$"
        for row in rows
        for name in (*row.open, *row.proprietary, *row.user)
    }
    return sorted(name for name in sensed["installed"]["packages"] if name not in keep and any(re.match(each, name) for each in patterns))


def _holds(choice: Choice, sensed: Data, wanted: Iterable[Package], result: Work) -> None:
    """What we hold we may let go; what somebody else holds stays, and is named."""
    held, ours = set(sensed["held"]), set(sensed["recorded"].get("held", []))
    touched = [*result.install, *result.remove]
    theirs = sorted(name for name in touched if name in held - ours)
    if theirs:
        have = sensed["installed"]["packages"]
        names = ", ".join(f"{name} at {have[name]}" if name in have else name for name in theirs)
        way = "apt-mark unhold" if choice.system.family == "debian" else "dnf versionlock delete"
        raise FleetError(
            f"{choice.host}: held, and would have to change: {names}", hint=f"`{way} {' '.join(theirs)}` there, if that is meant"
        )
    result.unhold = sorted(name for name in touched if name in held & ours)
    result.hold = sorted(each.name for each in wanted if each.driver)


def _refuse_space(tables: Tables, choice: Choice, sensed: Data, policy: Policy) -> None:
    """Directories on one file system need their space together."""
    needs = {**tables.packages.space, **policy.space}
    by_device: dict[str, list[tuple[str, int]]] = {}
    for each in sensed["space"]:
        if each["path"] in needs:
            by_device.setdefault(str(each["device"]), []).append((each["path"], each["free_mib"]))
    for places in by_device.values():
        need = sum(needs[path] for path, _free in places)
        free = min(free for _path, free in places)
        if free < need:
            names = " and ".join(path for path, _free in places)
            hint = "free some, for instance with `apt-get clean`" if choice.system.family == "debian" else "free some"
            raise FleetError(f"{choice.host}: {names}: {free} MiB free, the driver needs {need} MiB", hint=hint)


def _refuse_secure_boot(choice: Choice, sensed: Data, policy: Policy) -> None:
    """The kernel refuses a module whose key nobody enrolled, after everything is installed."""
    if not sensed["secure_boot"] or sensed["key_enrolled"] or policy.secure_boot == "enrolled":
        return
    if sensed["key_enrolled"] is False:
        hint = "enrol its key there: `mokutil --import /var/lib/dkms/mok.pub`, boot, and confirm it at the console"
    else:
        hint = "install dkms and mokutil there and enrol /var/lib/dkms/mok.pub, or set nvidia_driver_secure_boot: enrolled if the key is"
    raise FleetError(f"{choice.host}: Secure Boot is on, and no key is enrolled that DKMS signs modules with", hint=hint)


def _lines(sensed: Data, result: Work) -> list[str]:
    """The steps in words."""
    lines = []
    unfinished = sensed.get("unfinished") or {}
    if unfinished.get("interrupted"):
        lines.append(f"finish what an earlier installation was ended in: {', '.join(unfinished['packages']) or 'its journal'}")
    if result.repository is not None and not result.repository.there:
        lines.append(f"add {result.repository.what}")
    if result.stream and result.install:
        lines.append(f"enable {result.stream}")
    if result.unhold:
        lines.append(f"let go of {', '.join(result.unhold)}")
    lines += [f"install {name} {text}".strip() for name, text in result.install.items()]
    if result.runfile:
        lines.append(f"install {result.runfile['url']}")
    lines += [f"remove {name}" for name in result.remove]
    if sensed["loaded"]["nouveau"]:
        lines.append("keep nouveau off: it drives a GPU until a reboot")
    return lines
