# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Domains in files, told by a stand-in for ``virsh``; and libvirt itself, out of Debian's packages, as the judge of what is in them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import typing as t
from dataclasses import dataclass
from pathlib import Path

import pytest
from debian import KEPT, release
from kernel.tree import Tree

from lab import packages
from lab.commands import run
from lab.errors import LabError

if t.TYPE_CHECKING:
    from conftest import RunModule

# What virsh and xmllint need and a machine may not have; a release has some of them under another name.
_PACKAGES = ("libvirt0", "libvirt-common", "libvirt-clients", "libxml2-utils", "libxml2", "libnl-3-200", "libnl-route-3-200")
_LIBRARIES = ("libssh-4", "libssh2-1", "libssh2-1t64", "libyajl2", "libtirpc3", "libtirpc3t64", "libcurl3-gnutls", "libcurl3t64-gnutls")
_MORE = ("libnuma1", "libsasl2-2", "libcap-ng0", "libapparmor1", "libjson-c5")

VIRSH = """#!/usr/bin/env python3
import os, re, sys
from pathlib import Path
root = Path(os.environ["DOMAINS"])
words = [each for each in sys.argv[1:] if not each.startswith("-") and not each.startswith("qemu:")]
def fails(text):
    sys.stderr.write(f"error: {text}\\n")
    sys.exit(1)
verb, last = words[0], words[-1]
with open(root / "calls", "a") as calls: calls.write(" ".join(sys.argv[1:]) + "\\n")
if verb == "list":
    print("\\n".join(sorted(each.stem for each in root.glob("*.xml"))) + "\\n")
elif verb == "domstate":
    print("running\\n" if (root / f"{last}.live").exists() else "shut off\\n")
elif verb == "dumpxml":
    live = root / f"{last}.live"
    text = (live if live.exists() and "--inactive" not in sys.argv else root / f"{last}.xml").read_text()
    print(text if "--security-info" in sys.argv else text.replace(" passwd='secret'", "").replace(' passwd="secret"', ""))
elif verb == "define":
    if (root / "refuses").exists(): fails((root / "refuses").read_text())
    text = Path(last).read_text()
    if (root / "drops").exists(): text = re.sub((root / "drops").read_text(), "", text)
    name = text.split("<name>")[1].split("</name>")[0]
    (root / f"{name}.xml").write_text(text)
"""
DOMAIN = """<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <metadata>
    <libosinfo:libosinfo xmlns:libosinfo="http://libosinfo.org/xmlns/libvirt/domain/1.0">
      <libosinfo:os id="http://example.com/system/13"/>
    </libosinfo:libosinfo>
  </metadata>
  <memory unit='GiB'>64</memory>
  <currentMemory unit='GiB'>64</currentMemory>
  <vcpu placement='static'>16</vcpu>
  <os firmware='efi'>
    <type arch='x86_64' machine='pc-q35-10.0'>hvm</type>
    <boot dev='hd'/>
  </os>
  <features>
    <acpi/>
  </features>
  <cpu mode='host-passthrough' check='none' migratable='on'>
    <topology sockets='1' dies='1' cores='16' threads='1'/>
  </cpu>
  <clock offset='utc'/>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <hostdev mode='subsystem' type='usb' managed='yes'>
      <source>
        <vendor id='0x046d'/>
        <product id='0xc52b'/>
      </source>
    </hostdev>
    <graphics type='vnc' port='-1' autoport='yes' passwd='secret'/>
  </devices>
  <qemu:commandline>
    <qemu:arg value='-no-hpet'/>
  </qemu:commandline>
</domain>
"""


class Hypervisor:
    """A host with devices (``tree``), domains, and a stand-in for virsh. ``run(...)`` is the module ``guest_devices``."""

    def __init__(self, root: Path, module: RunModule, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._module = root, module
        self.tree = Tree(root / "kernel")
        self.domains = root / "domains"
        self.domains.mkdir()
        program = root / "virsh"
        program.write_text(VIRSH, encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setenv("DOMAINS", str(self.domains))
        for node, cpus in ((0, "0-15"), (1, "16-31")):
            self.system(f"devices/system/node/node{node}/cpulist", cpus)
        self.define("vm-01")

    def system(self, path: str, text: str) -> None:
        """A file of the kernel's, below its root."""
        place = self.tree.sys / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{text}\n", encoding="utf-8")

    def define(self, name: str, old: str = "", new: str = "") -> None:
        """A domain, with one part of its definition replaced."""
        uuid = f"00000000-0000-4000-8000-{len(list(self.domains.iterdir())):012d}"
        text = DOMAIN.format(name=name, uuid=uuid)
        assert old in text
        (self.domains / f"{name}.xml").write_text(text.replace(old, new) if old else text, encoding="utf-8")

    def text(self, name: str = "vm-01") -> str:
        """Its definition."""
        return (self.domains / f"{name}.xml").read_text(encoding="utf-8")

    def starts(self, name: str = "vm-01") -> None:
        """It runs as it is defined now."""
        (self.domains / f"{name}.live").write_text(self.text(name), encoding="utf-8")

    def record(self, address: str, uuid: str) -> None:
        """As module passthrough writes down what it gave away."""
        place = self.root / "state" / "passthrough.json"
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps({"format": 1, "devices": {address: {"identity": {"uuid": uuid}}}}), encoding="utf-8")

    def run(self, *devices: str, check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        """The module's result."""
        places = {"proc_root": str(self.tree.proc), "sys_root": str(self.tree.sys), "state_dir": str(self.root / "state")}
        arguments = {"domain": "vm-01", "devices": list(devices), "virsh": str(self.root / "virsh"), **places, **more}
        return self._module("guest_devices", {name: value for name, value in arguments.items() if value is not None}, check=check)


@dataclass(frozen=True)
class Libvirt:
    """The real one. Its test driver parses a definition with the same code as the others do."""

    home: Path

    def _run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        folders = ":".join(str(folder) for folder in sorted((self.home / "usr/lib").glob("*-linux-gnu*")))
        environment = {"LD_LIBRARY_PATH": folders, "PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": str(self.home)}
        return subprocess.run([self.home / "usr/bin" / program, *words], env=environment, capture_output=True, text=True, check=False)

    def works(self) -> bool:
        """Whether both of its programs run here."""
        return self._run("virsh", "-c", "test:///default", "list").returncode == 0 and self._run("xmllint", "--version").returncode == 0

    def judge(self, text: str, place: Path) -> str:
        """The definition as libvirt writes it after its schema and its parser took it. Of another type, because it drives nothing here."""
        place.write_text(text, encoding="utf-8")
        schema = self.home / "usr/share/libvirt/schemas/domain.rng"
        valid = self._run("xmllint", "--noout", "--relaxng", str(schema), str(place))
        assert valid.returncode == 0, valid.stderr
        place.write_text(text.replace('type="kvm"', 'type="test"', 1), encoding="utf-8")
        name = text.split("<name>")[1].split("</name>")[0]
        dumped = f"define {place}; dumpxml --inactive --security-info {name}"
        taken = self._run("virsh", "--quiet", "-c", "test:///default", dumped)
        assert taken.returncode == 0, taken.stderr
        return taken.stdout[taken.stdout.index("<domain") :]


def libvirt_here(temporary: pytest.TempPathFactory) -> Libvirt:
    """libvirt out of Debian's packages, kept below build/. The test is skipped where it is not to be had."""
    found = Libvirt(KEPT / "libvirt")
    problem = "its programs do not start"
    if not (found.home / "usr/bin/virsh").exists():
        try:
            _unpack(found.home, temporary.mktemp("libvirt"))
        except LabError as error:
            problem = str(error)
    if not (found.home / "usr/bin/virsh").exists() or not found.works():
        pytest.skip(f"libvirt does not run here: {problem}")
    return found


def _unpack(home: Path, fresh: Path) -> None:
    """Fetched with one reading of the archive's lists; the packages that this release does not have are left out."""
    sources = packages.own_sources(fresh, packages.mirror(), [f"{release()} main"])
    run(["apt-get", "-qq", *sources, "update"], "reading the package lists", deadline=packages.APT_SECONDS)
    for package in (*_PACKAGES, *_LIBRARIES, *_MORE):
        with contextlib.suppress(LabError):
            run(["apt-get", "-qq", *sources, "download", package], f"fetching {package}", cwd=fresh, deadline=packages.APT_SECONDS)
    home.mkdir(parents=True, exist_ok=True)
    for each in sorted(fresh.glob("*.deb")):
        run(["dpkg-deb", "-x", str(each), str(home)], f"unpacking {each.name}", deadline=60)
