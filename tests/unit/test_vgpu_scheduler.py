# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scheduler of vGPUs that the driver starts with: values, the file, who else says it, and what waits for a reboot."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_scheduler import HEAD, Options, apply, value, wished

if t.TYPE_CHECKING:
    from conftest import RunModule

EQUAL = {"policy": "equal-share"}
PARAMS = 'DmaRemapPeerMmio: 1\nRegistryDwords: "{}"\nRegistryDwordsPerDevice: "{}"\nRmMsg: ""\n'


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ({"policy": "best-effort"}, "0x00"),
        (EQUAL, "0x01"),
        ({"policy": "fixed-share"}, "0x11"),
        ({**EQUAL, "slice_ms": 3}, "0x00030001"),
        ({"policy": "fixed-share", "slice_ms": 24}, "0x00180011"),
        ({**EQUAL, "slice_ms": 30}, "0x001e0001"),
        ({**EQUAL, "frequency_hz": 960, "averaging": 60}, "0x3c3c0001"),
        ({**EQUAL, "frequency_hz": 63}, "0x2103f001"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_each_policy_has_nvidias_value(wish: dict[str, t.Any], expected: str) -> None:
    assert value(wish) == expected


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({**EQUAL, "slice_ms": 31}, "slice_ms is 31; it is from 1 to 30"),
        ({**EQUAL, "slice_ms": 0}, "slice_ms is 0"),
        ({**EQUAL, "frequency_hz": 62}, "frequency_hz is 62; it is from 63 to 960"),
        ({**EQUAL, "frequency_hz": 480, "averaging": 61}, "averaging is 61"),
        ({**EQUAL, "frequency_hz": 480, "slice_ms": 2}, "exclude each other"),
        ({**EQUAL, "averaging": 3}, "averaging belongs to frequency_hz"),
        ({"policy": "best-effort", "slice_ms": 2}, "best-effort has neither slices nor rounds"),
        ({"policy": "fixed-share", "frequency_hz": 480}, "no value is known for fixed-share with frequency_hz"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_has_no_value_is_refused(wish: dict[str, t.Any], words: str) -> None:
    with pytest.raises(FleetError, match=words):
        value(wish)


def test_single_gpus_go_by_their_address() -> None:
    found = wished([{**EQUAL, "gpu": "5E:00.0"}, {"policy": "best-effort"}, {**EQUAL, "gpu": "0000:3b:00.0", "slice_ms": 2}])
    assert found == {
        "NVreg_RegistryDwords": "RmPVMRL=0x00",
        "NVreg_RegistryDwordsPerDevice": "pci=0000:3b:00.0;RmPVMRL=0x00020001;pci=0000:5e:00.0;RmPVMRL=0x01",
    }
    same = [{**EQUAL, "gpu": "3b:00.0"}, {**EQUAL, "gpu": "0000:3B:00.0"}]
    for twice, words in (([EQUAL, EQUAL], "for all GPUs"), (same, "for 0000:3b")):
        with pytest.raises(FleetError, match=f"two entries are {words}"):
            wished(twice)
    with pytest.raises(FleetError, match="'GPU-1' is no address of a GPU"):
        wished([{**EQUAL, "gpu": "GPU-1"}])


class Host:
    """A host whose /proc and modprobe.d are below ``root``."""

    def __init__(self, root: Path) -> None:
        self.path = root / "modprobe.d" / "gpuops-fleet-vgpu.conf"
        self.proc, self.state = root / "proc", root / "state"
        self.path.parent.mkdir()

    def loaded(self, everywhere: str = "", each: str = "") -> None:
        place = self.proc / "driver" / "nvidia"
        place.mkdir(parents=True, exist_ok=True)
        (place / "params").write_text(PARAMS.format(everywhere, each), encoding="utf-8")

    def apply(self, *schedulers: dict[str, t.Any], check: bool = False) -> dict[str, t.Any]:
        directories = [str(self.path.parent), str(self.path.parent / "none")]
        return apply(Options(schedulers, self.path, self.proc, self.state, "dmesg-that-is-not-there", None, directories), check)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_file_comes_once_and_goes_with_the_wish(host: Host) -> None:
    predicted = host.apply(EQUAL, check=True)
    assert (predicted["changed"], host.path.exists()) == (True, False)
    made = host.apply(EQUAL)
    assert made["diff"] == predicted["diff"]
    assert host.path.read_text() == HEAD + 'options nvidia NVreg_RegistryDwords="RmPVMRL=0x01"\n'
    assert host.path.stat().st_mode & 0o777 == 0o644
    assert host.apply(EQUAL)["changed"] is False
    gone = host.apply()
    assert (gone["changed"], gone["diff"]["after"], host.path.exists()) == (True, "", False)
    assert host.apply()["changed"] is False


def test_it_waits_for_a_driver_that_was_given_it(host: Host) -> None:
    assert host.apply(EQUAL)["pending"] is None, "no driver is loaded: it counts when one is"
    host.loaded()
    assert host.apply(EQUAL)["pending"] == 'the driver that is loaded was not given NVreg_RegistryDwords="RmPVMRL=0x01"'
    host.loaded("RmPVMRL=0x01")
    assert (host.apply(EQUAL)["pending"], host.apply(EQUAL)["leftover"]) == (None, None)
    assert host.apply()["leftover"] == 'NVreg_RegistryDwords="RmPVMRL=0x01"'
    host.loaded("ForceP2P=0x11")
    assert host.apply()["leftover"] is None, "that is somebody else's"


def test_another_file_that_says_it_is_named_and_nothing_is_written(host: Host) -> None:
    other = host.path.parent / "nvidia.conf"
    other.write_text('# options nvidia NVreg_RegistryDwords="a=1"\noptions nvidia NVreg_A=1 NVreg_RegistryDwords="ForceP2P=0x11"\n')
    with pytest.raises(FleetError, match=r"nvidia\.conf:2: NVreg_RegistryDwords is given here; take that line away"):
        host.apply(EQUAL)
    assert not host.path.exists()
    assert host.apply({**EQUAL, "gpu": "3b:00.0"})["changed"], "another parameter"


def test_a_file_of_somebody_elses_stays(host: Host) -> None:
    host.path.write_text("options nvidia NVreg_A=1\n")
    for wish in ([EQUAL], []):
        with pytest.raises(FleetError, match="somebody else wrote this file"):
            host.apply(*wish)
    assert host.path.read_text() == "options nvidia NVreg_A=1\n"


def test_the_module_tells_it_as_data(host: Host, run_module: RunModule) -> None:
    where = {"path": str(host.path), "proc_root": str(host.proc), "state_dir": str(host.state)}
    result = run_module("vgpu_scheduler", {"schedulers": [{"policy": "fixed-share", "slice_ms": 2}], **where})
    assert (result["failed"], result["changed"]) == (False, True), result
    assert result["parameters"] == {"NVreg_RegistryDwords": "RmPVMRL=0x00020011"}
    refused = run_module("vgpu_scheduler", {"schedulers": [{"policy": "fixed-share", "slice_ms": 99}], **where})
    assert refused["msg"] == "schedulers[0]: slice_ms is 99; it is from 1 to 30"
