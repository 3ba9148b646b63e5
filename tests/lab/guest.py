# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One virtual machine: boots from a copy-on-write layer, answers on SSH, and never outlives the lab.

Facts that cost time to find: /dev/kvm may exist and not run a guest, so it is tried; under emulation QEMU before 10 has a fault in
cmpxchg16b, and ``-cpu max,-cx16`` avoids it; intel-iommu gives IOMMU groups only with ``kernel-irqchip=split``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import stat
import threading
import time
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

from lab import process
from lab.commands import full_disk, last_line, need, run
from lab.errors import LabError
from lab.packages import GOOD_QEMU, PATHS, major
from lab.places import BUILD

QEMU = "qemu-system-x86_64"
# Emulation answers late, not never.
BOOT_SECONDS = float(os.environ.get("LAB_BOOT_SECONDS", "420"))
CONNECT_SECONDS = 90.0
# How often to see meanwhile whether it still boots.
LOOK_SECONDS = 2.0
# QEMU's own network: what a guest calls this machine, and where the registry of the lab answers it.
REGISTRY_IN_GUEST = ("10.0.2.100", 5000)
SSH_PORT = 22
KVM = "/dev/kvm"
KVM_SECONDS = 30.0
# What a scenario writes into one guest: images, containers, logs.
GUEST_GIB = 2.0
# Between the moment that a port is found free and the moment that QEMU takes it, somebody else may.
TRIES = 4
# After one of these lines a boot gets no further: the firmware's, GRUB's, the initramfs's, the kernel's, systemd's.
GAVE_UP = re.compile(r"No bootable device.*|grub rescue>|\(initramfs\)|Kernel panic - not syncing.*|You are in emergency mode.*")
# Seen under emulation on a busy machine: a processor's timer fires no more, and the boot waits for it for ever.
TIMER_LOST = re.compile(r"rcu_preempt (?:detected stalls|kthread timer wakeup didn't happen)")
# The same without a word: a boot under emulation writes a line every few seconds, and on a busy machine at least every minute.
SILENT_SECONDS = 150.0


class TimerLost(LabError):
    """A processor of the guest waits for an interrupt that emulation lost: it boots no further, and the next boot is a new chance."""


@dataclass(frozen=True)
class Hardware:
    """What a guest is made of. ``ports``: TCP ports of the guest that this machine can call. ``devices``: further QEMU arguments.

    ``calls``: what else the guest can call, an address and a port of QEMU's own network, and the port of this machine that answers there.
    """

    cpus: int = 2
    memory_mib: int = 2048
    ports: tuple[int, ...] = ()
    registry: int | None = None
    calls: tuple[tuple[str, int, int], ...] = ()
    devices: tuple[str, ...] = ()


@dataclass
class Guest:
    """A guest whose files are in ``home``; ``image``: the directory with the disk, the key and the kernel that it starts from."""

    name: str
    home: Path
    image: Path
    ports: dict[int, int] = field(default_factory=dict)

    @classmethod
    def load(cls, home: Path) -> Guest:
        """The guest that was booted in ``home`` by another process. LabError when there is none."""
        try:
            kept = json.loads((home / "guest.json").read_text(encoding="utf-8"))
            return cls(kept["name"], home, Path(kept["image"]), {int(inner): outer for inner, outer in kept["ports"].items()})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LabError(f"there is no guest in {home}: boot it first (make lab-shell SCENARIO=...)") from error

    @classmethod
    def end(cls, home: Path) -> None:
        """Ends the guest whose files are in ``home``, also one that was never booted completely. LabError when it cannot be ended."""
        try:
            guest = cls.load(home)
        except LabError:
            guest = cls(home.name, home, home)
        guest.kill()

    @property
    def key(self) -> Path:
        """The private key of its root."""
        return self.image / "key"

    @property
    def serial(self) -> Path:
        """What its kernel and systemd say."""
        return self.home / "serial.log"

    def boot(self, hardware: Hardware, backing: Path | None, kernel: bool = False) -> None:
        """Starts it; returns as soon as QEMU runs.

        ``backing`` None: on the image's disk itself. ``kernel``: without the disk's boot loader.
        """
        need(GUEST_GIB, f"{self.name}: its disk")
        self.home.mkdir(parents=True, exist_ok=True)
        disk, form = self.image / "disk.raw", "raw"
        if backing is not None:
            disk, form = self.home / "disk.qcow2", "qcow2"
            disk.unlink(missing_ok=True)
            argv: list[str | Path] = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", backing, disk]
            run(argv, f"{self.name}: making its disk", deadline=60, env={**os.environ, "PATH": PATHS})
        for left in reversed(range(TRIES)):
            self.ports = dict(zip((SSH_PORT, *hardware.ports), free_ports(1 + len(hardware.ports)), strict=True))
            write(self.home / "guest.json", json.dumps({"name": self.name, "image": str(self.image), "ports": self.ports}))
            try:
                self._start(hardware, disk, form, kernel)
            except LabError as error:
                if left and "host forwarding rule" in str(error):
                    continue
                raise
            return

    def _start(self, hardware: Hardware, disk: Path, form: str, kernel: bool) -> None:
        self.serial.unlink(missing_ok=True)
        # A full disk is an error in the guest: the default would stop the guest, without a word. A comma ends a value unless doubled.
        drive = f"file={str(disk).replace(',', ',,')},if=virtio,format={form},cache=unsafe,discard=unmap,werror=report,rerror=report"
        argv = [
            QEMU, "-name", self.name, *accelerator(self.image), "-smp", str(hardware.cpus), "-m", str(hardware.memory_mib),
            # Without graphics the firmware and the boot loader speak on the serial line as well.
            "-machine", "q35,kernel-irqchip=split,graphics=off", "-device", "intel-iommu,intremap=on,caching-mode=on",
            "-drive", drive, "-netdev", self._network(hardware),
            "-device", "virtio-net-pci,netdev=net0,romfile=", "-device", "virtio-rng-pci", *hardware.devices,
            "-display", "none", "-monitor", "none", "-serial", f"file:{self.serial}", "-daemonize", "-pidfile", str(self.home / "qemu.pid"),
        ]  # fmt: skip
        if kernel:
            line = "root=/dev/vda2 console=ttyS0 mitigations=off nohz=off highres=off"
            argv += ["-kernel", str(self.image / "vmlinuz"), "-initrd", str(self.image / "initrd"), "-append", line]
        run(argv, f"{self.name}: starting the virtual machine", deadline=60, log=self.home / "qemu.log", env={**os.environ, "PATH": PATHS})

    def _network(self, hardware: Hardware) -> str:
        forwards = "".join(f",hostfwd=tcp:127.0.0.1:{outer}-:{inner}" for inner, outer in self.ports.items())
        registry = [(*REGISTRY_IN_GUEST, hardware.registry)] if hardware.registry is not None else []
        for address, port, outer in (*registry, *hardware.calls):
            forwards += f",guestfwd=tcp:{address}:{port}-cmd:socat - TCP:127.0.0.1:{outer}"
        # Nothing but these: a guest reaches no other machine.
        return f"user,id=net0,restrict=on{forwards}"

    def pid(self) -> int | None:
        """The process of this virtual machine while it runs."""
        return process.running(self.home / "qemu.pid", self.home)

    def start(self, hardware: Hardware, backing: Path | None, kernel: bool = False) -> float:
        """Boots it and waits for the first answer on SSH; returns the seconds that took. One whose timer emulation lost is booted again."""
        started = time.monotonic()
        for left in reversed(range(TRIES)):
            self.boot(hardware, backing, kernel)
            try:
                self.wait(silent=SILENT_SECONDS)
            except TimerLost:
                if not left:
                    raise
                self.kill()
            else:
                break
        return time.monotonic() - started

    def wait(self, seconds: float = BOOT_SECONDS, silent: float = math.inf) -> float:
        """Waits for the first answer on SSH; returns the seconds it took. LabError names the last line that the guest wrote.

        TimerLost when it will never answer, and when it wrote nothing for longer than ``silent`` seconds.
        """
        started = time.monotonic()
        while (left := started + seconds - time.monotonic()) > 0:
            if self.pid() is None:
                raise LabError(f"{self.name}: the virtual machine ended while it booted: {self._last_words()}")
            if self._answers(min(CONNECT_SECONDS, left)):
                return time.monotonic() - started
            if stuck := GAVE_UP.search(self._said()):
                raise LabError(f"{self.name} cannot boot: {self._blame() or last_line(stuck.group(0))} (all: {self.serial})")
            if TIMER_LOST.search(self._said()):
                raise TimerLost(f"{self.name}: emulation lost its timer while it booted (all: {self.serial})")
            if self._silent() > silent:
                reason = f"its last line: {self._last_words()} (all: {self.serial})"
                raise TimerLost(f"{self.name}: wrote nothing for {silent:.0f} s while it booted; {reason}")
            time.sleep(min(1.0, left))
        reason = f"its last line: {self._last_words()} (all: {self.serial})"
        raise LabError(f"{self.name} did not answer on SSH within {seconds:.0f} s; {reason}")

    def _answers(self, seconds: float) -> bool:
        """Whether sshd greets. QEMU itself takes the connection before the guest does, so the greeting is waited for."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[SSH_PORT]), timeout=seconds) as link:
            while (left := deadline - time.monotonic()) > 0:
                link.settimeout(min(LOOK_SECONDS, left))
                try:
                    return link.recv(4) == b"SSH-"
                except TimeoutError:
                    if GAVE_UP.search(self._said()) or TIMER_LOST.search(self._said()):
                        return False
        return False

    def _said(self) -> str:
        try:
            return self.serial.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _silent(self) -> float:
        """Seconds since it wrote something."""
        try:
            return time.time() - self.serial.stat().st_mtime
        except OSError:
            return 0.0

    def _last_words(self) -> str:
        said = self._said()
        return self._blame() or (last_line(said) if said.strip() else "it wrote nothing")

    def _blame(self) -> str | None:
        """The full disk of this machine, when that is why the guest's own failed: it sees errors of its disk, and not their reason."""
        return full_disk(path=self.home)

    def ssh_options(self) -> list[str]:
        """Options with which ssh reaches its root; connections are kept open, for each new one costs seconds under emulation."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": f"{CONNECT_SECONDS:.0f}",
            "ControlMaster": "auto",
            "ControlPath": control_path(self.ports[SSH_PORT]),
            "ControlPersist": "900",
            "IdentitiesOnly": "yes",
            "LogLevel": "ERROR",
            "ServerAliveInterval": "30",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
        }
        return ["-i", str(self.key), *(word for pair in options.items() for word in ("-o", "=".join(pair)))]

    def ssh(self, command: str, what: str, *, log: Path | None = None, deadline: float = 600, **options: t.Any) -> str:
        """What ``command`` prints in the guest, as root. LabError with ``what`` and its last line when it fails."""
        argv = ["ssh", *self.ssh_options(), "-p", str(self.ports[SSH_PORT]), "root@127.0.0.1", command]
        if not os.access(self.key, os.R_OK):
            raise LabError(f"{self.name}: {self.key} cannot be read: it belongs to the user who built the image")
        return run(argv, f"{self.name}: {what}", log=log, deadline=deadline, **options)

    def power_off(self, seconds: float = 120) -> None:
        """Ends it as a person would, so that everything is on its disk."""
        with contextlib.suppress(LabError):  # the connection may end before the answer
            self.ssh("systemctl poweroff", "powering off", deadline=30)
        deadline = time.monotonic() + seconds
        while self.pid() is not None:
            if time.monotonic() > deadline:
                raise LabError(f"{self.name} did not power off within {seconds:.0f} s; its last line: {self._last_words()}")
            time.sleep(0.5)

    def reboot(self, seconds: float = BOOT_SECONDS) -> None:
        """Reboots it as a person would, and waits until the kernel of another boot answers."""
        boot_id = self.boot_id()
        with contextlib.suppress(LabError):  # the connection may end before the answer
            self.ssh("systemctl reboot", "rebooting", deadline=30)
        self.back(boot_id, seconds)

    def boot_id(self) -> str:
        """Which boot of its kernel answers."""
        return self.ssh("cat /proc/sys/kernel/random/boot_id", "reading the boot id", deadline=CONNECT_SECONDS)

    def back(self, boot_id: str, seconds: float = BOOT_SECONDS) -> None:
        """Waits until the kernel of another boot than ``boot_id`` answers."""
        self._forget_connection()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.wait(max(1.0, deadline - time.monotonic()))
            with contextlib.suppress(LabError):
                if self.boot_id() != boot_id:
                    return
            self._forget_connection()
            time.sleep(2)
        raise LabError(f"{self.name} did not come back within {seconds:.0f} s; its last line: {self._last_words()} (all: {self.serial})")

    def kill(self) -> None:
        """Ends it at once, as a power cut does; nothing happens when it does not run."""
        process.kill(self.home / "qemu.pid", self.home)
        self._forget_connection()

    def _forget_connection(self) -> None:
        if SSH_PORT not in self.ports:
            return
        with contextlib.suppress(LabError):  # there may be none
            argv = ["ssh", *self.ssh_options(), "-p", str(self.ports[SSH_PORT]), "-O", "exit", "root@127.0.0.1"]
            run(argv, "closing the connection", deadline=10)


def control_path(port: int) -> str:
    """Where ssh keeps the connection to this port open: short, because a socket's path may have 107 characters only.

    LabError when another user could have made the directory: whoever owns the socket could answer as the guest.
    """
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")
    short = runtime if runtime.is_dir() and os.access(runtime, os.W_OK) and len(str(runtime)) < 60 else Path("/tmp")
    directory = short / f"gpuops-lab-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        raise LabError(f"{directory} is not ours alone: remove it")
    return str(directory / f"{port}")


def free_ports(count: int) -> list[int]:
    """TCP ports of this machine that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _number in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def write(path: Path, text: str) -> None:
    """Writes a file so that nobody reads half of it."""
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


_PROBE = threading.Lock()


def accelerator(image: Path) -> list[str]:
    """QEMU's arguments for the fastest processor that really runs a guest here; found once a boot of this machine, for each user."""
    note = BUILD / "accelerator.json"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    with _PROBE:
        now = {"boot": boot, "qemu": _qemu_version(), "user": os.getuid()}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(note.read_text(encoding="utf-8"))
            if kept["of"] == now:
                return [str(word) for word in kept["arguments"]]
        if _kvm_works(image):
            arguments = ["-accel", "kvm", "-cpu", "host"]
        else:
            cpu = "max" if major(str(now["qemu"])) >= GOOD_QEMU else "max,-cx16"
            arguments = ["-accel", "tcg,thread=multi,tb-size=512", "-cpu", cpu]
        note.parent.mkdir(parents=True, exist_ok=True)
        write(note, json.dumps({"of": now, "arguments": arguments}))
    return arguments


def _qemu_version() -> str:
    said = run([QEMU, "--version"], "asking QEMU for its version", deadline=60, env={**os.environ, "PATH": PATHS})
    found = re.search(r"version (\d[\w.]*)", said)
    if not found:
        raise LabError(f"{QEMU} --version says no version: {last_line(said)}")
    return found[1]


def _kvm_works(image: Path) -> bool:
    """Whether /dev/kvm runs a kernel: it may exist and fail at a register, or in the first instructions."""
    if not os.access(KVM, os.R_OK | os.W_OK):
        return False
    argv = [
        QEMU, "-accel", "kvm", "-cpu", "host", "-machine", "q35", "-m", "512", "-display", "none", "-monitor", "none",
        "-serial", "stdio", "-no-reboot", "-kernel", str(image / "vmlinuz"), "-append", "console=ttyS0 panic=-1",
    ]  # fmt: skip
    try:
        return "Linux version" in run(argv, "trying KVM", deadline=KVM_SECONDS, env={**os.environ, "PATH": PATHS})
    except LabError:
        return False
