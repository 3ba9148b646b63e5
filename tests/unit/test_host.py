# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is read of the operating system: real files in the shape of /proc and /sys below a directory of the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import host
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from hypothesis import example, given, settings
from hypothesis import strategies as st

MEMINFO = "MemTotal:       527433728 kB\nMemFree:        12345678 kB\n"
OS_RELEASE = 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nNAME="Debian GNU/Linux"\nVERSION_ID="13"\n# ID=not-this\nID=debian\n'
TCP_HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
TCP = (
    TCP_HEAD
    + "   0: 00000000:2388 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0\n"
    + "   1: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1 0\n"
    + "   2: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 3 1 0\n"
)
TCP6 = TCP_HEAD + "   0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 4 1 0\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A host's /proc, /sys and /etc."""
    write(tmp_path / "proc/sys/kernel/hostname", "gpu-prod-01\n")
    write(tmp_path / "proc/sys/kernel/osrelease", "6.12.107\n")
    write(tmp_path / "proc/sys/kernel/random/boot_id", "4f1c3a52-98a1-4e0f-a6a5-2d3f0c1b7e11\n")
    write(tmp_path / "proc/1/comm", "systemd\n")
    write(tmp_path / "proc/meminfo", MEMINFO)
    write(tmp_path / "proc/net/tcp", TCP)
    write(tmp_path / "proc/net/tcp6", TCP6)
    write(tmp_path / "sys/devices/system/cpu/online", "0-31,64\n")
    write(tmp_path / "etc/os-release", OS_RELEASE)
    return tmp_path


def read(machine: Path, notes: host.Notes, services: str = "/") -> dict[str, object]:
    return host.read_host(str(machine / "proc"), str(machine / "sys"), str(machine / "etc/os-release"), str(machine), services, notes)


def test_a_host_is_described_from_its_roots(machine: Path) -> None:
    notes = host.Notes()
    facts = read(machine, notes)
    status = os.statvfs(machine)
    assert facts.pop("disk") is not None
    assert facts == {
        "hostname": "gpu-prod-01",
        "os": {"id": "debian", "version": "13"},
        "kernel": "6.12.107",
        "gcc": {"installed": None, "kernel": None, "matching": None},
        "boot_id": "4f1c3a52-98a1-4e0f-a6a5-2d3f0c1b7e11",
        "service_manager": "systemd",
        "cpus": 33,
        "memory_mib": 515072,
        "shm_mib": status.f_blocks * status.f_frsize // 2**20,
        "ports_listening": [22, 9096],
    }
    assert notes.lines == []


@pytest.mark.parametrize(
    ("missing", "key"),
    [
        ("proc/sys/kernel/hostname", "hostname"),
        ("etc/os-release", "os"),
        ("proc/sys/kernel/osrelease", "kernel"),
        ("proc/sys/kernel/random/boot_id", "boot_id"),
        ("proc/meminfo", "memory_mib"),
        ("proc/net/tcp", "ports_listening"),
        ("sys/devices/system/cpu/online", "cpus"),
    ],
)
def test_a_file_that_is_missing_costs_one_fact_and_is_named(machine: Path, missing: str, key: str) -> None:
    (machine / missing).unlink()
    notes = host.Notes()
    facts = read(machine, notes)
    assert [name for name, value in facts.items() if value is None] == [key]
    assert notes.lines == [f"host.{key}: {machine / missing}: No such file or directory"]


def test_shared_memory_that_is_not_mounted_is_named(machine: Path) -> None:
    notes = host.Notes()
    facts = host.read_host(str(machine / "proc"), str(machine / "sys"), str(machine / "etc/os-release"), str(machine / "shm"), "/", notes)
    assert facts["shm_mib"] is None
    assert notes.lines == [f"host.shm_mib: {machine / 'shm'}: No such file or directory"]


def test_a_kernel_without_ipv6_has_its_ipv4_ports(machine: Path) -> None:
    (machine / "proc/net/tcp6").unlink()
    assert host.listening_ports(machine / "proc") == [22, 9096]


def test_a_line_that_is_cut_short_is_passed_over(machine: Path) -> None:
    write(machine / "proc/net/tcp", TCP + "   3: 00000000\n\n")
    assert host.listening_ports(machine / "proc") == [22, 9096]


def test_a_port_open_on_ipv6_only_counts(machine: Path) -> None:
    write(machine / "proc/net/tcp", TCP_HEAD)
    assert host.listening_ports(machine / "proc") == [22]


@pytest.mark.parametrize(("text", "cpus"), [("0", 1), ("0-63", 64), ("0-3,8-11", 8), ("1,3,5", 3)])
def test_cpus_are_counted_in_the_kernels_list(text: str, cpus: int) -> None:
    assert host.count_cpus(text) == cpus


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ID=arch\n", {"id": "arch", "version": None}),
        ("ID='rhel'\nVERSION_ID='9.4'\n", {"id": "rhel", "version": "9.4"}),
        ("NAME\nID=ubuntu\nVERSION_ID=24.04\n", {"id": "ubuntu", "version": "24.04"}),
    ],
)
def test_os_release_is_read_in_its_spellings(text: str, expected: dict[str, str]) -> None:
    assert host.parse_os_release(text) == expected


def test_an_os_release_without_a_name_is_said_to_have_none(machine: Path) -> None:
    write(machine / "etc/os-release", "VERSION_ID=13\n")
    notes = host.Notes()
    assert read(machine, notes)["os"] is None
    assert notes.lines == ["host.os: no ID in the os-release file"]


def test_a_meminfo_without_a_total_is_refused() -> None:
    with pytest.raises(ValueError, match="no MemTotal in meminfo"):
        host.parse_memory("MemFree: 12 kB\n")


def test_disk_is_measured_at_the_directory_that_exists(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    facts = host.read_disk(str(tmp_path))
    assert facts["path"] == str(tmp_path)
    assert facts["total_mib"] == status.f_blocks * status.f_frsize // 2**20
    assert facts["free_mib"] == pytest.approx(status.f_bavail * status.f_frsize // 2**20, rel=0.05)


def test_disk_of_a_directory_to_come_is_that_of_its_nearest_parent(tmp_path: Path) -> None:
    assert host.read_disk(str(tmp_path / "srv" / "gpuops" / "services"))["path"] == str(tmp_path)


@pytest.mark.parametrize(
    ("groups", "units", "expected"),
    [
        (["0", "1", "2"], ["dmar0"], {"groups": 3, "active": True}),
        (["0"], [], {"groups": 1, "active": False}),
        ([], ["dmar0"], {"groups": 0, "active": False}),
        (None, None, {"groups": 0, "active": False}),
    ],
)
def test_an_iommu_is_active_with_groups_and_a_unit_behind_them(
    tmp_path: Path, groups: list[str] | None, units: list[str] | None, expected: dict[str, object]
) -> None:
    for directory, names in (("kernel/iommu_groups", groups), ("class/iommu", units)):
        if names is not None:
            (tmp_path / directory).mkdir(parents=True)
            for name in names:
                (tmp_path / directory / name).mkdir()
    assert host.read_iommu(str(tmp_path)) == expected


@pytest.mark.parametrize(
    ("text", "flavour"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build\n", "open"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n", "proprietary"),
    ],
)
def test_the_loaded_module_tells_its_flavour(tmp_path: Path, text: str, flavour: str) -> None:
    write(tmp_path / "driver/nvidia/version", text)
    assert host.driver_flavour(str(tmp_path)) == flavour


def test_no_module_no_flavour(tmp_path: Path) -> None:
    assert host.driver_flavour(str(tmp_path)) is None


def test_the_kernel_names_its_gpus_also_one_whose_uuid_it_cannot_read(tmp_path: Path) -> None:
    write(tmp_path / "driver/nvidia/gpus/0000:07:00.0/information", "Model: \t A100\nGPU UUID: \t GPU-5c1f8b0a-7a0e\nIRQ: 12\n")
    write(tmp_path / "driver/nvidia/gpus/0000:8A:00.0/information", "GPU UUID: \t GPU-????????-????\n")
    assert host.kernel_gpus(str(tmp_path)) == {"0000:07:00.0": "GPU-5c1f8b0a-7a0e", "0000:8a:00.0": None}


def test_a_virtual_function_belongs_to_the_card_that_sysfs_names(tmp_path: Path) -> None:
    devices = tmp_path / "bus/pci/devices"
    (devices / "0000:07:00.4").mkdir(parents=True)
    (devices / "0000:07:00.4" / "physfn").symlink_to("../0000:07:00.0")
    assert host.physical_card(str(tmp_path), "0000:07:00.4") == "0000:07:00.0"
    assert host.physical_card(str(tmp_path), "0000:07:00.0") == "0000:07:00.0"


def test_cdi_specifications_are_found_in_the_order_of_their_directories(tmp_path: Path) -> None:
    write(tmp_path / "run/nvidia.yaml", "")
    write(tmp_path / "run/extra.json", "")
    write(tmp_path / "run/README", "")
    write(tmp_path / "etc/other.yaml", "")
    directories = [str(tmp_path / name) for name in ("etc", "missing", "run")]
    expected = [tmp_path / "etc/other.yaml", tmp_path / "run/extra.json", tmp_path / "run/nvidia.yaml"]
    assert host.cdi_specs(directories) == [str(path) for path in expected]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(13, "Permission denied", "/proc/net/tcp"), "x: /proc/net/tcp: Permission denied"),
        (OSError(5, "Input/output error"), "x: Input/output error"),
        (ValueError("two\n lines"), "x: two lines"),
        (FleetError("bad", file="plan.json"), "x: plan.json: bad"),
    ],
)
def test_what_failed_is_one_line(error: Exception, line: str) -> None:
    def fail() -> None:
        raise error

    notes = host.Notes()
    assert notes.attempt("x", fail) is None
    assert notes.lines == [line]


def test_a_fault_of_the_code_is_not_taken_for_a_missing_fact() -> None:
    empty: dict[str, str] = {}
    with pytest.raises(KeyError):
        host.Notes().attempt("x", lambda: empty["y"])


def test_a_root_that_shows_no_process_1_names_no_service_manager(machine: Path) -> None:
    (machine / "proc/1/comm").unlink()
    notes = host.Notes()
    assert read(machine, notes)["service_manager"] is None
    assert notes.lines == []


# ---- the compiler of the kernel


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "Linux version 6.12.43+deb13-amd64 (debian-kernel@lists.debian.org) (x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0, "
            "GNU ld (GNU Binutils for Debian) 2.44) #1 SMP PREEMPT_DYNAMIC Debian 6.12.43-1 (2025-08-27)",
            "14.2.0",
        ),
        (
            "Linux version 6.8.0-40-generic (buildd@lcy02-amd64-078) (x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0, "
            "GNU ld (GNU Binutils for Ubuntu) 2.38) #40~22.04.3-Ubuntu SMP PREEMPT_DYNAMIC",
            "12.3.0",
        ),
        (
            "Linux version 5.14.0-570.12.1.el9_6.x86_64 (mockbuild@x86-64-01.build.eng.rdu2.redhat.com) "
            "(gcc (GCC) 11.5.0 20240719 (Red Hat 11.5.0-5), GNU ld version 2.35.2-63.el9) #1 SMP PREEMPT_DYNAMIC",
            "11.5.0",
        ),
        ("Linux version 4.19.0-26-amd64 (debian-kernel@lists.debian.org) (gcc version 8.3.0 (Debian 8.3.0-6)) #1 SMP", "8.3.0"),
        ("Linux version 6.6.9 (nobody@home) (clang version 17.0.6, LLD 17.0.6) #1 SMP PREEMPT_DYNAMIC", None),
        ("", None),
    ],
    ids=["debian-13", "ubuntu-22.04-hwe", "rhel-9", "debian-10", "clang", "empty"],
)
def test_the_kernel_says_which_gcc_built_it(tmp_path: Path, text: str, version: str | None) -> None:
    write(tmp_path / "version", f"{text}\n")
    assert host.kernel_gcc(tmp_path) == version
    assert host.kernel_gcc(tmp_path / "nowhere") is None


# ---- the host below a vGPU


VERSION_RECORD = b"\x00\x16" + b"580.105.06" + b"r580_95\0\0\0"


def pci_config(*records: bytes, mark: bytes = b"VF", capabilities: bool = True) -> bytes:
    """256 bytes of a device whose second capability is its vendor's."""
    body = mark + b"".join(records)
    own = bytes([0x09, 0x00, 3 + len(body)]) + body
    config = bytearray(256)
    config[0:4] = b"\xde\x10\xb5\x20"
    config[0x06] = 0x10 if capabilities else 0x00
    config[0x34] = 0x68
    config[0x68:0x6B] = bytes([0x05, 0xD0, 0x00])  # MSI, and then
    config[0xD0 : 0xD0 + len(own)] = own
    return bytes(config)


def test_a_guest_reads_the_driver_of_the_host_below_from_its_vgpu(tmp_path: Path) -> None:
    place = tmp_path / "bus/pci/devices/0000:06:00.0"
    place.mkdir(parents=True)
    config = place / "config"
    config.write_bytes(pci_config(VERSION_RECORD) + bytes(3840))
    assert host.vgpu_host_driver(str(tmp_path), "0000:06:00.0") == "580.105.06"
    config.write_bytes(pci_config(b"\x07\x04ab", VERSION_RECORD))
    assert host.vgpu_host_driver(str(tmp_path), "0000:06:00.0") == "580.105.06"
    config.write_bytes(pci_config(VERSION_RECORD)[:64])
    with pytest.raises(ValueError, match="only 64 bytes of its PCI configuration can be read"):
        host.vgpu_host_driver(str(tmp_path), "0000:06:00.0")


@pytest.mark.parametrize(
    "config",
    [
        pci_config(VERSION_RECORD, capabilities=False),
        pci_config(VERSION_RECORD, mark=b"\0\0"),
        pci_config(),
        pci_config(b"\x00\x02"),
        pci_config(b"\x00\x16" + bytes(20)),
        pci_config(b"\x00\x16" + b"none at al" + bytes(10)),
        pci_config(b"\x07\x00", VERSION_RECORD),
        pci_config(b"\x07\x01", VERSION_RECORD),
        pci_config(b"\x07\xff", VERSION_RECORD),
    ],
    ids=["no list", "of another", "no record", "short", "empty", "no version", "no end", "too short to be one", "beyond the end"],
)
def test_a_device_that_says_nothing_of_a_host_below_has_none(config: bytes) -> None:
    assert host.parse_vgpu_host_driver(config) is None


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(st.binary(min_size=256, max_size=256))
@example(bytes([0xFF]) * 256)
@example(bytes(0x34) + bytes([0x34]) + bytes(203))
def test_no_pci_configuration_breaks_the_reader(config: bytes) -> None:
    found = host.parse_vgpu_host_driver(config[:6] + b"\x10" + config[7:])
    assert found is None or found.replace(".", "").isdigit()
