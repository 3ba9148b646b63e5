# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the kernel's next command line comes from, and how one drop-in of ours adds to it. What others wrote is never changed.

* GRUB of Debian and Ubuntu: ``/etc/default/grub.d/99-gpuops-fleet-NAME.cfg``, then ``update-grub``; ``grub.cfg`` is the proof.
* systemd-boot with entries that ``kernel-install`` writes: it has no directory for drop-ins (``/etc/kernel/cmdline`` is one file, and
  belongs to the site), but runs programs of ``/etc/kernel/install.d``. Ours adds to the entry of each new kernel; entries that are there
  get the same at once.
* The family of Red Hat has no drop-in: ``grubby`` keeps the arguments, and what we gave it is in ``kernel-parameters.json``.

Sources: util/grub-mkconfig.in of Debian's grub2 (reads ``grub.d`` after ``grub``); kernel-install(8) and its 90-loaderentry.install; the
Boot Loader Specification (type 1 entries); grubby(8).
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.commands import run
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, read_text, sync_directory, write_json, write_text
from ansible_collections.gpuops.fleet.plugins.module_utils.kernel_parameters import (
    Unit,
    follows,
    is_given,
    is_written,
    tokens,
    without,
    words,
)

GRUB, GRUBBY, SYSTEMD_BOOT = "grub", "grubby", "systemd-boot"
_HEAD = "# Written by gpuops.fleet, module kernel_parameters: changes here are lost.\n"
_MARK = "# parameters: "
_STATE, _FORMAT = "kernel-parameters.json", 1
# Where the file system with the entries is mounted, in the order in which bootctl looks.
_BOOTS = ("efi", "boot", "boot/efi")
_LOADER_INFO = "firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
# Prints what grub-mkconfig would find: its configuration is a shell script, and only a shell reads it right.
_READ_GRUB = (
    'for each do [ ! -r "$each" ] || . "$each" >/dev/null; done; printf "%s %s" "${GRUB_CMDLINE_LINUX-}" "${GRUB_CMDLINE_LINUX_DEFAULT-}"'
)


@dataclass(frozen=True)
class Place:
    """``root``: of the file system; ``name``: of our drop-in; ``deadline``: seconds for one program."""

    root: Path
    name: str
    state_dir: Path
    sys_root: Path
    deadline: float = 300.0

    def at(self, path: str) -> Path:
        """A path below the root."""
        return self.root / path.lstrip("/")


class Loader(t.Protocol):
    """One way to a command line."""

    kind: str
    path: str

    def others(self) -> list[str]:
        """Parameters that the next boot has without us."""

    def ours(self) -> str | None:
        """What our drop-in says now: its text; None without one."""

    def text(self, wish: Sequence[Unit], leaving: Sequence[Unit] = ()) -> str | None:
        """What it shall say. While something leaves, it names that too: a crash is then seen by the next run."""

    def settled(self, wish: Sequence[Unit], gone: Sequence[Unit]) -> bool:
        """Whether what boots next has the wish, and nothing of what is ``gone``."""

    def apply(self, wish: Sequence[Unit], gone: Sequence[Unit]) -> None:
        """Make it so. FleetError when it cannot be; the drop-in is then as it was."""


def units_in(text: str | None) -> list[Unit]:
    """What a drop-in of ours gives, or has not taken away yet, by its own mark."""
    line = next((each for each in (text or "").splitlines() if each.startswith(_MARK)), "")
    return [tuple(each.split()) for each in line[len(_MARK) :].split("|") if each.strip()]


def _mark(units: Sequence[Unit]) -> str:
    return f"{_MARK}{' | '.join(' '.join(unit) for unit in units)}\n"


def find(place: Place, wanted: str = "auto") -> Loader:
    """The boot loader of this host. FleetError when it is none that is known."""
    if wanted != "auto":
        kinds: dict[str, t.Callable[[Place], Loader]] = {GRUB: Grub, GRUBBY: Grubby, SYSTEMD_BOOT: SystemdBoot}
        return kinds[wanted](place)
    if _booted_by_systemd(place.sys_root):
        return SystemdBoot(place)
    if place.at("usr/sbin/grubby").exists() and place.at("boot/loader/entries").is_dir():
        return Grubby(place)
    if place.at("boot/grub/grub.cfg").exists() or place.at("usr/sbin/update-grub").exists():
        return Grub(place)
    if any((place.at(boot) / "loader/entries").is_dir() for boot in _BOOTS):
        return SystemdBoot(place)
    hint = "give the kernel its parameters by hand, and leave this out"
    raise FleetError("neither GRUB nor systemd-boot is on this host, so nobody can be told the kernel's parameters", hint=hint)


def _booted_by_systemd(sys_root: Path) -> bool:
    try:
        raw = (sys_root / _LOADER_INFO).read_bytes()
    except OSError:
        return False
    return raw[4:].decode("utf-16-le", errors="replace").startswith("systemd-boot")


def _put(path: Path, text: str | None, mode: int = 0o644) -> None:
    """A file with this text, or none; directories as the system's own."""
    if text is None:
        if path.exists():
            path.unlink()
            sync_directory(path.parent)
        return
    if not path.parent.is_dir():
        path.parent.mkdir(mode=0o755, parents=True)
    write_text(path, text, mode)


class Grub:
    """Debian's and Ubuntu's."""

    kind = GRUB

    def __init__(self, place: Place) -> None:
        self.place = place
        self.path = f"/etc/default/grub.d/99-gpuops-fleet-{place.name}.cfg"
        self._menu = place.at("boot/grub/grub.cfg")

    def others(self) -> list[str]:
        """As grub-mkconfig reads it."""
        folder, mine = self.place.at("etc/default/grub.d"), self.place.at(self.path)
        files = [self.place.at("etc/default/grub"), *(each for each in sorted(folder.glob("*.cfg")) if each != mine)]
        done = run(["sh", "-c", _READ_GRUB, "sh", *map(str, files)], self.place.deadline)
        if done.status != 0:
            raise FleetError(f"a shell cannot read GRUB's settings: {done.words}", file=str(folder), hint="update-grub would fail as well")
        return tokens(done.output)

    def ours(self) -> str | None:
        """The drop-in."""
        return read_text(self.place.at(self.path))

    def text(self, wish: Sequence[Unit], leaving: Sequence[Unit] = ()) -> str | None:
        """A piece of shell, as the others."""
        if not wish and not leaving:
            return None
        line = f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {words(wish)}"\n' if wish else ""
        return f"{_HEAD}{_mark([*wish, *leaving])}{line}"

    def settled(self, wish: Sequence[Unit], gone: Sequence[Unit]) -> bool:
        """Each kernel of the menu has them; a host without a kernel (an image that is being made) has no line that lacks them."""
        return all(follows(line, wish, gone) for line in self._kernels())

    def _kernels(self) -> list[list[str]]:
        """The command lines of the menu that are made from the settings."""
        inside, own, every = False, [], []
        for line in (read_text(self._menu) or "").splitlines():
            if line.startswith("### "):
                inside = "BEGIN" in line and "_linux" in line
            found = re.match(r"\s*linux(?:efi)?\s+\S+(.*)", line)
            if found:
                every.append(tokens(found.group(1)))
                if inside:
                    own.append(every[-1])
        return own or every[:1]

    def apply(self, wish: Sequence[Unit], gone: Sequence[Unit]) -> None:
        """The drop-in, then the menu; the drop-in before, if that fails."""
        before = self.ours()
        _put(self.place.at(self.path), self.text(wish, gone))
        try:
            done = run(["update-grub"], self.place.deadline, variables={"LC_ALL": "C"})
            if done.status != 0:
                raise FleetError(f"update-grub failed: {done.words}", hint=f"{self.path} is as it was before")
        except BaseException:
            _put(self.place.at(self.path), before)
            raise
        if not self.settled(wish, gone):
            what = words(wish) or "what was taken away"
            hint = "a file in /etc/default/grub.d that comes later, or one in /etc/grub.d, sets a command line of its own"
            raise FleetError(f"update-grub ran, and the menu does not follow: {what}", file=str(self._menu), hint=hint)
        if gone:
            _put(self.place.at(self.path), self.text(wish))


class SystemdBoot:
    """Entries of the Boot Loader Specification, by kernel-install."""

    kind = SYSTEMD_BOOT

    def __init__(self, place: Place) -> None:
        self.place = place
        self.path = f"/etc/kernel/install.d/95-gpuops-fleet-{place.name}.install"
        if place.at("etc/kernel/proxmox-boot-uuids").exists():
            hint = "put them into /etc/kernel/cmdline by hand and run `proxmox-boot-tool refresh`"
            raise FleetError("Proxmox writes the entries of systemd-boot itself, from one file of the site", hint=hint)
        if not self._entries():
            if any((place.at(boot) / "EFI/Linux").is_dir() for boot in _BOOTS):
                hint = "put the parameters into /etc/kernel/cmdline by hand and build the images anew"
                raise FleetError("the kernels of this host are unified images, and their command line is inside", hint=hint)
            hint = "is the EFI system partition mounted?"
            raise FleetError("systemd-boot has no entry of this system below /efi, /boot or /boot/efi", hint=hint)

    def _entries(self) -> list[Path]:
        """Entries of this installation; another system on the same partition has its own."""
        marks = [read_text(self.place.at(path)) or "" for path in ("etc/machine-id", "etc/kernel/entry-token")]
        names = [mark.strip() for mark in marks if mark.strip()]
        found = [path for boot in _BOOTS for path in sorted((self.place.at(boot) / "loader/entries").glob("*.conf"))]
        return [path for path in found if any(path.name.startswith(f"{name}-") for name in names)]

    def _given(self) -> list[str]:
        """What the site's own file says, the first that there is."""
        texts = (read_text(self.place.at(path)) for path in ("etc/kernel/cmdline", "usr/lib/kernel/cmdline"))
        return tokens(next((text for text in texts if text is not None), ""))

    def others(self) -> list[str]:
        """What every entry has and we did not put there, and what the site's own file says."""
        given, lines = self._given(), [without(_options(read_text(path) or ""), units_in(self.ours())) for path in self._entries()]
        return [*given, *(each for each in lines[0] if each not in given and all(each in line for line in lines))]

    def ours(self) -> str | None:
        """The program of kernel-install."""
        return read_text(self.place.at(self.path))

    def text(self, wish: Sequence[Unit], leaving: Sequence[Unit] = ()) -> str | None:
        """A program that adds each unit to the entry that was just written, where it lacks it."""
        if not wish and not leaving:
            return None
        quoted = " ".join(f"'{' '.join(unit)}'" for unit in wish)
        return f"""#!/bin/sh
{_HEAD}{_mark([*wish, *leaving])}# kernel-install calls it after the entry of a kernel is written: add VERSION DIRECTORY IMAGE
[ "$1" = add ] || exit 0
start="$KERNEL_INSTALL_BOOT_ROOT/loader/entries/$KERNEL_INSTALL_ENTRY_TOKEN-$2"
for entry in "$start.conf" "$start"+*.conf; do
    [ -f "$entry" ] || continue
    for unit in {quoted}; do
        case " $(sed -n 's/^options[[:space:]]*//p' "$entry") " in
            *" $unit "*) ;;
            *) sed -i "s|^options[[:space:]].*|& $unit|" "$entry" || exit 1 ;;
        esac
    done
done
"""

    def settled(self, wish: Sequence[Unit], gone: Sequence[Unit]) -> bool:
        """Each entry is as it would be made."""
        return all(text == _entry(text, wish, self._leaving(gone)) for text in (read_text(path) or "" for path in self._entries()))

    def _leaving(self, gone: Sequence[Unit]) -> list[Unit]:
        given = self._given()
        return [unit for unit in gone if not is_written(unit, given)]

    def apply(self, wish: Sequence[Unit], gone: Sequence[Unit]) -> None:
        """The program, the entries, and then the program without what left."""
        leaving = self._leaving(gone)
        _put(self.place.at(self.path), self.text(wish, gone), 0o755)
        for path in self._entries():
            before = read_text(path) or ""
            after = _entry(before, wish, leaving)
            if after != before:
                write_text(path, after, 0o644)
        if gone:
            _put(self.place.at(self.path), self.text(wish), 0o755)


def _options(text: str) -> list[str]:
    """The command line of an entry; several lines are one."""
    return [each for line in text.splitlines() if re.match(r"options\s", line) for each in tokens(line[len("options") :])]


def _entry(text: str, wish: Sequence[Unit], leaving: Sequence[Unit]) -> str:
    """The entry with the wish and without what leaves. A line that needs no change stays as it is written."""
    lines: list[str] = []
    last = None
    for line in text.splitlines():
        found = re.match(r"(options\s+)(.*)", line)
        if found:
            last, before = len(lines), tokens(found.group(2))
            after = _cleared(before, wish, leaving)
            line = line if after == before else found.group(1) + " ".join(after)
        lines.append(line)
    more = words(unit for unit in wish if not is_given(unit, _options("\n".join(lines))))
    if more and last is None:
        lines.append(f"options    {more}")
    elif more and last is not None:
        lines[last] = f"{lines[last].rstrip()} {more}"
    return "".join(f"{line}\n" for line in lines)


def _cleared(line: Sequence[str], wish: Sequence[Unit], leaving: Sequence[Unit]) -> list[str]:
    """A command line without what leaves, unless that is part of what is wished."""
    if follows(without(line, wish), (), leaving):
        return list(line)
    return without(line, leaving)


class Grubby:
    """The family of Red Hat."""

    kind = GRUBBY

    def __init__(self, place: Place) -> None:
        self.place = place
        self.path = str(place.state_dir / _STATE)

    def _lines(self) -> list[list[str]]:
        done = run(["grubby", "--info=ALL"], self.place.deadline, variables={"LC_ALL": "C"})
        found = re.findall(r'^args="(.*)"$', done.output, re.MULTILINE)
        if done.status != 0 or not found:
            raise FleetError(f"grubby does not tell the kernels' arguments: {done.words}", hint="run `grubby --info=ALL` by hand")
        return [tokens(line) for line in found]

    def _record(self) -> dict[str, t.Any]:
        data = read_json(Path(self.path)) or {"format": _FORMAT, "given": {}}
        if data.get("format") != _FORMAT or not isinstance(data.get("given"), dict):
            raise FleetError("this file is of another version", file=self.path, hint="look at it, and remove it")
        return data

    def others(self) -> list[str]:
        """What every kernel has and we did not give."""
        mine = units_in(self.ours())
        lines = [without(line, mine) for line in self._lines()]
        return [each for each in lines[0] if all(each in line for line in lines)]

    def ours(self) -> str | None:
        """What we gave, in the form of a drop-in."""
        given: str | None = self._record()["given"].get(self.place.name)
        return given or None

    def text(self, wish: Sequence[Unit], leaving: Sequence[Unit] = ()) -> str | None:
        """The same of the wish."""
        return _mark([*wish, *leaving]) if wish or leaving else None

    def settled(self, wish: Sequence[Unit], gone: Sequence[Unit]) -> bool:
        """Each kernel has them."""
        return all(follows(line, wish, gone) for line in self._lines())

    def apply(self, wish: Sequence[Unit], gone: Sequence[Unit]) -> None:
        """What is given is written down before, and what is taken away is forgotten after."""
        self._write(self.text(wish, gone))
        for argument, what in (("--remove-args", words(gone)), ("--args", words(wish))):
            if what:
                done = run(["grubby", "--update-kernel=ALL", f"{argument}={what}"], self.place.deadline, variables={"LC_ALL": "C"})
                if done.status != 0:
                    raise FleetError(f"grubby {argument} failed: {done.words}")
        if not self.settled(wish, gone):
            raise FleetError(f"grubby ran, and the kernels' arguments do not follow: {words(wish)}", hint="run `grubby --info=ALL` by hand")
        self._write(self.text(wish))

    def _write(self, text: str | None) -> None:
        record = self._record()
        given = {name: each for name, each in record["given"].items() if name != self.place.name}
        if text is not None:
            given[self.place.name] = text
        if given != record["given"]:
            write_json(Path(self.path), {**record, "given": given})
