# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices of a host in libvirt's domains: what is merged into a definition, and that libvirt itself takes it."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.domain_xml import MDEV, PCI, Domain, Hostdev, Wish
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.guest_sizing import parse_window, too_wide, window_mib
from kernel.tree import GIB
from libvirt_world import DOMAIN, Hypervisor, Libvirt, libvirt_here

if t.TYPE_CHECKING:
    from conftest import RunModule

CARD, OTHER = "0000:3b:00.0", "0000:5e:00.0"
VGPU = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
A100 = (16 << 20, 128 * GIB, 32 << 20)


@pytest.fixture
def host(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> Hypervisor:
    return Hypervisor(tmp_path, run_module, monkeypatch)


@pytest.fixture(scope="session")
def libvirt(tmp_path_factory: pytest.TempPathFactory) -> Libvirt:
    return libvirt_here(tmp_path_factory)


def mdev(host: Hypervisor, uuid: str = VGPU, card: str = CARD) -> None:
    place = host.tree.device(card).resolve() / uuid
    place.mkdir()
    (host.tree.sys / "bus/mdev/devices" / uuid).symlink_to(place)


def test_a_card_is_given_once_with_what_goes_along_and_taken_back_without_a_trace(host: Hypervisor) -> None:
    host.tree.gpu(CARD, numa=1)
    host.system("devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages", "64")
    first = Domain(host.text()).text()
    promised = host.run(CARD, hugepages="1G", check=True)
    assert Domain(host.text()).text() == first
    done = host.run(CARD, hugepages="1G")
    assert {**promised, "invocation": None} == {**done, "invocation": None}
    assert done["devices"] == [{"kind": "pci", "source": CARD, "managed": True}]
    assert (done["node"], done["mmio_mib"], done["pending"]) == (1, 262144, None)
    assert done["diff"]["after"].splitlines() == [
        "memory on node 1, strict",
        "pages of 1048576 KiB",
        f"pci {CARD}, managed=yes",
        "processors on 16-31",
        "window of 262144 MiB for 64-bit BARs",
    ]
    assert not host.run(CARD, hugepages="1G")["changed"]
    back = host.run()
    assert back["changed"]
    assert Domain(host.text()).text().split() == first.split()
    assert not host.run()["changed"]


def test_what_others_wrote_is_kept_a_password_too_and_none_is_shown(host: Hypervisor) -> None:
    host.tree.gpu(CARD)
    done = host.run(CARD)
    for words in ('passwd="secret"', '<qemu:arg value="-no-hpet" />', "libosinfo:os", 'type="usb"'):
        assert words in host.text()
    assert "secret" not in str(done)


def test_a_card_is_found_by_its_uuid_also_after_it_was_given_away(host: Hypervisor) -> None:
    uuid = host.tree.gpu(CARD)
    assert host.run(uuid)["devices"][0]["source"] == CARD
    host.tree.add(OTHER, ("10de", "20b5", "10de", "1533"), driver="vfio-pci")
    host.record(OTHER, "GPU-0000002a-0000-4000-8000-000000000000")
    assert host.run(uuid, "GPU-0000002a-0000-4000-8000-000000000000")["devices"][1]["source"] == OTHER


def test_the_vendors_virtual_function_is_left_to_its_driver_and_a_mediated_device_is_known_by_its_uuid(host: Hypervisor) -> None:
    host.tree.gpu(CARD, numa=1)
    host.tree.add("0000:3b:00.4", ("10de", "20b5", "10de", "1533"), driver="nvidia", numa=1)
    (host.tree.device("0000:3b:00.4") / "nvidia").mkdir()
    mdev(host)
    done = host.run("0000:3b:00.4", VGPU.upper())
    assert done["devices"] == [
        {"kind": "pci", "source": "0000:3b:00.4", "managed": False},
        {"kind": "mdev", "source": VGPU, "managed": False},
    ]
    assert (done["node"], done["mmio_mib"]) == (1, None)
    assert not any(VGPU in line for line in done.get("warnings", ()))  # those of other modules of this process may be there


def test_a_mediated_device_that_is_not_there_yet_is_said(host: Hypervisor) -> None:
    assert f"devices[0]: there is no mediated device {VGPU} now; vm-01 starts only when there is" in str(host.run(VGPU)["warnings"])


def test_one_of_three_goes_and_the_others_are_not_touched(host: Hypervisor) -> None:
    uuids = [f"83b8f4f2-509f-382f-3c1e-e6bfe0fa100{number}" for number in range(3)]
    host.tree.gpu(CARD)
    for uuid in uuids:
        mdev(host, uuid)
    host.run(*uuids)
    # as libvirt adds it by itself
    host.domains.joinpath("vm-01.xml").write_text(
        host.text().replace(
            "ua-gpuops-mdev-" + uuids[0] + '" />',
            "ua-gpuops-mdev-" + uuids[0] + "\" /><address type='pci' domain='0x0000' bus='0x04' slot='0x00' function='0x0'/>",
        )
    )
    host.run(uuids[0], uuids[2])
    devices = [str(device) for device, _ours in Domain(host.text()).devices()]
    assert devices == [f"mdev {uuids[0]}", f"mdev {uuids[2]}"]
    assert 'bus="0x04"' in host.text()


def test_a_device_that_somebody_else_put_there_is_taken_over_and_others_are_left(host: Hypervisor) -> None:
    host.tree.gpu(CARD)
    source = "<source><address domain='0x0000' bus='{}' slot='0x00' function='0x0'/></source>"
    foreign = "".join(f"<hostdev mode='subsystem' type='pci' managed='no'>{source.format(bus)}</hostdev>" for bus in ("0x3b", "0x41"))
    host.define("vm-01", "<graphics", f"{foreign}<graphics")
    host.run(CARD)
    devices = [(str(device), ours) for device, ours in Domain(host.text()).devices()]
    assert devices == [(f"pci {CARD}, managed=yes", True), ("pci 0000:41:00.0, managed=no", False)]
    host.run()
    assert [device.source for device, _ours in Domain(host.text()).devices()] == ["0000:41:00.0"]


def test_domains_that_are_not_kept_lose_what_they_were_given_and_no_more(host: Hypervisor) -> None:
    host.tree.gpu(CARD)
    host.tree.gpu(OTHER, minor=1)
    host.define("vm-02")
    plain = Domain(host.text("vm-02")).text()
    host.run(CARD)
    host.run(OTHER, domain="vm-02")
    kept = host.text()
    done = host.run(domain=None, keep=["vm-01"])
    assert not done["failed"], done["msg"]
    assert done["diff"]["before"] == f"vm-02: pci {OTHER}, managed=yes\nvm-02: window of 262144 MiB for 64-bit BARs\n"
    assert Domain(host.text("vm-02")).text().split() == plain.split()
    assert host.text() == kept
    assert not host.run(domain=None, keep=["vm-01"])["changed"]


def test_a_running_domain_is_not_disturbed_and_what_waits_is_said(host: Hypervisor) -> None:
    host.tree.gpu(CARD)
    host.starts()
    words = "domain vm-01 runs as it was; this is in force once it was shut down and started again"
    assert host.run(CARD)["pending"] == words
    assert host.run(CARD)["pending"] == words
    host.starts()
    assert host.run(CARD)["pending"] is None


@pytest.mark.parametrize(
    ("change", "more", "words"),
    [
        (("", ""), {"domain": "vm-02"}, "domain: there is no domain vm-02; this host has vm-01, vm-03"),
        (("", ""), {"devices": ["0000:99:00.0"]}, "devices[0]: there is no PCI device 0000:99:00.0"),
        (("", ""), {"devices": [CARD, "3b:00.0"]}, "devices[1]: 3b:00.0 is the same device as an earlier one"),
        (("", ""), {"devices": ["0000:00:01.0"]}, "devices[0]: 0000:00:01.0 is a bridge"),
        (("", ""), {"devices": [OTHER]}, f"devices: pci {OTHER} belongs to domain vm-03 already"),
        (("", ""), {"hugepages": "1G"}, "domain vm-01: hugepages: node 1 has 0 pages of 1G, and its memory needs 64"),
        (("<memory unit='GiB'>64", "<memory unit='MiB'>1500"), {"hugepages": "1G"}, "its memory of 1500 MiB is no multiple of 1G"),
        (("", ""), {"mmio": "lots"}, "mmio: 'lots' is no size of a window"),
        ((" firmware='efi'", ""), {"mmio": "262144"}, "domain vm-01: mmio: its firmware is not UEFI"),
        (("host-passthrough", "host-model"), {"mmio": "1048576"}, "more bits of physical addresses than its processor model has"),
        (
            ("<currentMemory", "<memoryBacking><hugepages/></memoryBacking><currentMemory"),
            {"hugepages": "2M"},
            "domain vm-01: somebody else has given it huge pages",
        ),
        (("'static'>16", "'static' cpuset='0-3'>16"), {}, "somebody else has given it processors 0-3 and memory anywhere"),
    ],
)
def test_what_cannot_be_is_said_in_one_line_and_nothing_is_defined(
    host: Hypervisor, change: tuple[str, str], more: dict[str, t.Any], words: str
) -> None:
    host.tree.gpu(CARD, numa=1)
    host.tree.gpu(OTHER, minor=1, numa=1)
    host.tree.bridge("0000:00:01.0")
    host.system("devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "40000")
    host.define("vm-01", *change)
    host.define("vm-03")
    host.run(OTHER, domain="vm-03")
    before = host.text()
    failed = host.run(**{"devices": [CARD], **more})
    assert failed["failed"]
    assert words in failed["msg"]
    assert "\n" not in failed["msg"]
    assert host.text() == before


def test_libvirts_own_refusal_is_handed_on(host: Hypervisor) -> None:
    host.tree.gpu(CARD)
    (host.domains / "refuses").write_text("XML document failed to validate against schema: Extra element devices in interleave")
    assert host.run(CARD)["msg"] == "libvirt: XML document failed to validate against schema: Extra element devices in interleave"


def test_what_an_old_libvirt_drops_without_a_word_is_found_by_reading_back(host: Hypervisor) -> None:
    host.tree.gpu(CARD)
    (host.domains / "drops").write_text('<entry name="opt/ovmf[^<]*</entry>')
    failed = host.run(CARD)
    assert "libvirt took the definition, and this is not in it: window of 262144 MiB for 64-bit BARs" in failed["msg"]


def test_cards_at_two_nodes_bind_the_guest_to_none(host: Hypervisor) -> None:
    host.tree.gpu(CARD, numa=0)
    host.tree.gpu(OTHER, minor=1, numa=1)
    done = host.run(CARD, OTHER)
    assert done["node"] is None
    assert "its devices are at several NUMA nodes, so it is bound to none" in str(done["warnings"])
    assert done["mmio_mib"] == 524288


@pytest.mark.parametrize(
    ("cards", "window"),
    [
        ([], None),
        ([(16 << 20,)], None),
        ([(16 << 20, 16 * GIB, 32 << 20)], None),
        ([(16 << 20, 32 * GIB, 32 << 20)], 65536),
        ([A100], 262144),
        ([A100] * 2, 524288),
        ([A100] * 4, 1048576),
        ([A100] * 8, 2097152),
        ([(16 << 20, 256 * GIB, 32 << 20)], 524288),
        ([(16 << 20, 64 * GIB, 32 << 20), A100], 524288),
        ([(16 << 20, 32 * GIB, 32 << 20), A100], 262144),
    ],
)
def test_the_window_holds_every_bar_at_a_multiple_of_its_size(cards: list[tuple[int, ...]], window: int | None) -> None:
    assert window_mib(cards) == window
    if window is not None:
        end = 0
        for bars in sorted(cards, key=max, reverse=True):
            for size in sorted(bars, reverse=True):
                end = -(-end // size) * size + size
        assert end <= window << 20


def test_a_window_beyond_forty_bits_needs_the_hosts_own_addresses() -> None:
    assert not too_wide(262144)
    assert not too_wide(524288)
    assert too_wide(1048576)
    assert parse_window("off") is None
    with pytest.raises(FleetError, match="power of two"):
        parse_window("3000")


WISHES = [
    Wish((Hostdev(PCI, CARD, True),), 1, "16-31", 1048576, 262144),
    Wish((Hostdev(PCI, CARD, False), Hostdev(MDEV, VGPU, False)), None, None, 2048, 2097152, True),
    Wish((Hostdev(PCI, "0001:ff:1f.7", True),)),
    Wish(),
]


@pytest.mark.parametrize("wish", WISHES)
def test_libvirt_takes_the_definition_and_what_it_writes_is_as_wished_again(libvirt: Libvirt, wish: Wish, tmp_path: Path) -> None:
    domain = Domain(DOMAIN.format(name="vm-01", uuid="00000000-0000-4000-8000-000000000001"))
    domain.merge(wish)
    known = libvirt.judge(domain.text(), tmp_path / "domain.xml")
    again = Domain(known)
    assert sorted(again.summary()) == sorted(domain.summary())
    before = again.text()
    again.merge(wish)
    assert again.text() == before
    # and every other wish can follow on this one
    for other in WISHES:
        again.merge(other)
        assert sorted(Domain(libvirt.judge(again.text().replace('type="test"', 'type="kvm"'), tmp_path / "next.xml")).summary()) == sorted(
            again.summary()
        )
