# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names and numbers of NVML: profile names as NVIDIA's tools print them, PCI addresses as sysfs writes them, errors in one line."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import nvml_data
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

MIB = 2**20


@pytest.mark.parametrize(
    ("enum", "slices", "memory_mib", "total_mib", "name"),
    [
        # H100 80GB HBM3, nvidia-smi mig -lgip
        (0, 1, 9984, 81559, "1g.10gb"),
        (7, 1, 9984, 81559, "1g.10gb+me"),
        (9, 1, 20096, 81559, "1g.20gb"),
        (1, 2, 20096, 81559, "2g.20gb"),
        (2, 3, 40448, 81559, "3g.40gb"),
        (3, 4, 40448, 81559, "4g.40gb"),
        (4, 7, 81152, 81559, "7g.80gb"),
        # H100 NVL: halves are rounded up (94 GiB / 8 = 11.75, 94 / 4 = 23.5)
        (0, 1, 11008, 95830, "1g.12gb"),
        (9, 1, 22144, 95830, "1g.24gb"),
        (2, 3, 47488, 95830, "3g.47gb"),
        (4, 7, 95360, 95830, "7g.94gb"),
        # RTX PRO 6000
        (0, 1, 24192, 97887, "1g.24gb"),
        (10, 1, 24192, 97887, "1g.24gb+gfx"),
        (13, 1, 24192, 97887, "1g.24gb-me"),
        (15, 1, 24192, 97887, "1g.24gb+me.all"),
        (11, 2, 48512, 97887, "2g.48gb+gfx"),
        (8, 2, 48512, 97887, "2g.48gb+me"),
        (14, 2, 48512, 97887, "2g.48gb-me"),
        (16, 2, 48512, 97887, "2g.48gb+me.all"),
        (12, 4, 97280, 97887, "4g.96gb+gfx"),
        (17, 3, 72704, 97887, "3g.72gb+gfx"),
        # exactly one eighth stays one eighth
        (0, 1, 10240, 81920, "1g.10gb"),
        (0, 1, 10241, 81920, "1g.20gb"),
    ],
)
def test_a_profile_without_a_name_gets_the_one_that_nvidias_tools_print(
    enum: int, slices: int, memory_mib: int, total_mib: int, name: str
) -> None:
    assert nvml_data.computed_profile_name(enum, slices, memory_mib, total_mib * MIB) == name


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("1g.10gb", "1g.10gb"),
        ("MIG 1g.10gb+me", "1g.10gb+me"),
        ("MIG 1g.24GB+me.all", "1g.24gb+me.all"),
        ("NVIDIA A100 MIG 3g.40gb extra", "3g.40gb"),
        ("", None),
        ("whole GPU", None),
    ],
)
def test_the_name_is_taken_out_of_what_the_driver_reports(reported: str, name: str | None) -> None:
    assert nvml_data.profile_name(reported) == name


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:07:00.0", "0000:07:00.0"),
        ("0000:07:00.0", "0000:07:00.0"),
        ("07:00.0", "0000:07:00.0"),
        (" 00000000:C1:1F.7 ", "0000:c1:1f.7"),
        ("00010000:C1:00.0", "10000:c1:00.0"),
        ("0001:c1:00.0", "0001:c1:00.0"),
        ("0000:07:00.8", None),
        ("0000:07:00", None),
        ("GPU-0000:07:00.0", None),
        ("7", None),
    ],
)
def test_pci_addresses_are_written_as_sysfs_does(text: str, address: str | None) -> None:
    assert nvml_data.pci_address(text) == address


def test_an_nvml_error_names_call_code_and_words() -> None:
    error = nvml_data.NvmlError("nvmlDeviceSetMigMode", 19, "NVML_ERROR_IN_USE", "In use by another client")
    assert isinstance(error, FleetError)
    assert (error.call, error.code, error.name, error.word) == (
        "nvmlDeviceSetMigMode",
        19,
        "NVML_ERROR_IN_USE",
        "In use by another client",
    )
    assert str(error) == "nvmlDeviceSetMigMode: NVML_ERROR_IN_USE (In use by another client)"


def test_a_missing_pynvml_names_the_interpreter_and_the_package() -> None:
    error = nvml_data.PynvmlMissing("/usr/bin/python3", "No module named 'pynvml'")
    assert str(error) == ("Python package nvidia-ml-py (module pynvml) cannot be imported by /usr/bin/python3: No module named 'pynvml'")
    assert error.name == "PYNVML_MISSING"
    assert error.args == (str(error),)


def _profile(slices: int, size: int, most: int, *starts: int) -> nvml_data.GpuInstanceProfile:
    return nvml_data.GpuInstanceProfile(0, 0, f"{slices}g.{size}gb", slices, size, 1024, 14, most, starts)


@pytest.mark.parametrize(
    ("profiles", "memory_slices", "compute_slices"),
    [
        # the profile of the whole board tells, whatever others count
        ([_profile(7, 8, 1, 0), _profile(1, 1, 7, *range(7))], 8, 7),
        ([_profile(4, 6, 1, 0), _profile(2, 2, 3, 0, 2, 4)], 6, 4),
        # without one: the most equal instances that fit, by count and by place
        ([_profile(1, 1, 5, *range(10)), _profile(2, 3, 2, 0, 7)], 10, 5),
        ([_profile(1, 1, 2, *range(10)), _profile(2, 3, 9, 0, 1, 2, 3, 6)], 10, 6),
        ([_profile(3, 4, 1, 0)], 5, 3),
    ],
)
def test_the_compute_slices_of_a_board_are_those_that_it_holds_at_once(
    profiles: list[nvml_data.GpuInstanceProfile], memory_slices: int, compute_slices: int
) -> None:
    assert nvml_data.compute_slices(tuple(profiles), memory_slices) == compute_slices
