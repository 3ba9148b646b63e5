# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vgpu-device-manager v1 files: what is read, what is refused and with which words, and what observed vGPUs read like; known types."""

from __future__ import annotations

import typing as t

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.filter.layouts import FilterModule
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.selectors import Board, named_entries
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.vgpu_files import export, parse, selectors
from ansible_collections.gpuops.fleet.plugins.plugin_utils.vgpu_table import VgpuTable

# In the shape of NVIDIA's own example.
FILE = """\
version: v1
vgpu-configs:
  default:
    - device-filter: ["0x20B510DE", "0x20B210DE:0x14A210DE"]
      devices: all
      vgpu-devices:
        "A100D-10C": 8
    - device-filter: 0x233110DE
      devices: all
      vgpu-devices:
        H100-1-10C: 3
        "H100-1-10CME": 1
        H100-3-40C: 0
  A100D-40C:
    - devices: [0, 1]
      vgpu-devices: {A100D-40C: 2}
    - devices: [GPU-5c1f0001-aaaa-bbbb-cccc-000000000001]
      vgpu-devices: {}
"""


def label(entry: str) -> str:
    """A file with one label, ``x``, whose only entry begins on line 4."""
    return f"version: v1\nvgpu-configs:\n  x:\n    - {entry}\n"


def refusal(text: str, name: str = "x") -> str:
    with pytest.raises(FleetError) as caught:
        selectors(text, "vgpu.yaml", name)
    return str(caught.value)


def test_a_label_becomes_plain_data_for_the_host() -> None:
    first, second = selectors(FILE, "vgpu.yaml", "default")
    assert first == {
        "devices": "all",
        "device_filter": ["0x20B510DE", "0x20B210DE:0x14A210DE"],
        "types": [{"type": "A100D-10C", "count": 8}],
        "source": "vgpu.yaml:4",
    }
    assert second["types"] == [{"type": "H100-1-10C", "count": 3}, {"type": "H100-1-10CME", "count": 1}]
    assert [one["types"] for one in selectors(FILE, "vgpu.yaml", "A100D-40C")] == [[{"type": "A100D-40C", "count": 2}], []]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{devices: all, vgpu-devices: {A100D-10X: 1}}", "vgpu.yaml:4: vgpu-configs.x[0].vgpu-devices.A100D-10X: 'A100D-10X' is no"),
        ("{devices: all, vgpu-devices: {NVIDIA A100D-10C: 1}}", "'NVIDIA A100D-10C' is no vGPU type; write its short name"),
        ("{devices: all, vgpu-devices: {A100D-10C: -1}}", "expected a count, found"),
        ("{devices: all, vgpu-devices: {A100D-10C: true}}", "expected a count, found"),
        ("{devices: all, vgpu-devices: {A100D-10C: 1, A100D-1-10C: 1}}", "A100D-10C is time-sliced and A100D-1-10C is backed by"),
        ("{devices: all, vgpu-devices: []}", "expected types with their counts, found an empty list"),
        ("{devices: all}", "field 'vgpu-devices' is missing; write vgpu-devices: {A100D-10C: 8}, or {} for none"),
        ("{devices: all, mig-devices: {}}", "did you mean 'vgpu-devices'? fields here: device-filter, devices, vgpu-devices"),
        ("{devices: [-1], vgpu-devices: {}}", "names no GPU; write all, or a list of GPUs by index, UUID or PCI address"),
        ("{devices: all, device-filter: '0x20B5', vgpu-devices: {}}", "'0x20B5' is no PCI identity"),
    ],
    ids=lambda value: value[-40:].strip() if isinstance(value, str) else "",
)
def test_an_entry_that_the_format_does_not_allow_is_refused_with_its_line(entry: str, words: str) -> None:
    assert words in refusal(label(entry))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: v2\nvgpu-configs: {x: []}\n", "vgpu.yaml:1: version: 'v2' is no known version; write version: v1"),
        ("version: v1\nmig-configs: {x: []}\n", "unknown field; did you mean 'vgpu-configs'?"),
        ("version: v1\nvgpu-configs: {x: []}\n", "found an empty list; write at least one entry: - {devices: all, vgpu-devices"),
    ],
)
def test_what_the_format_does_not_allow_is_refused_with_its_line(text: str, words: str) -> None:
    assert words in refusal(text)


def test_a_label_that_is_not_there_is_refused_with_those_that_are() -> None:
    words = "there is no layout 'A100D-4OC'; did you mean 'A100D-40C'? labels of this file: default, A100D-40C"
    assert words in refusal(FILE, "A100D-4OC")


def boards() -> list[Board]:
    return [
        Board(0, "GPU-0", "0000:3b:00.0", 0x20B510DE, 0x153310DE, True),
        Board(1, "GPU-1", "0000:5e:00.0", 0x20B510DE, 0x153310DE, True),
        Board(2, "GPU-2", "0000:86:00.0", 0x233110DE, 0x162610DE, True),
    ]


def test_a_host_takes_of_a_file_what_is_for_its_boards() -> None:
    found = named_entries(boards(), selectors(FILE, "vgpu.yaml", "default"))
    assert [(board.index, [one["type"] for one in entry["vgpus"]], entry["source"]) for board, entry in found] == [
        (0, ["A100D-10C"], "vgpu.yaml:4"),
        (1, ["A100D-10C"], "vgpu.yaml:4"),
        (2, ["H100-1-10C", "H100-1-10CME"], "vgpu.yaml:8"),
    ]


def test_two_entries_that_differ_about_a_gpu_are_refused() -> None:
    both = [
        {"devices": "all", "types": [], "source": "a:4"},
        {"devices": [1], "types": [{"type": "A100D-10C", "count": 1}], "source": "a:6"},
    ]
    with pytest.raises(FleetError) as caught:
        named_entries(boards(), both)
    assert str(caught.value) == "a:6: devices: GPU 1 (0000:5e:00.0) is given other vGPUs at a:4; name each GPU in one entry"


def seen(index: int | None, *types: str) -> dict[str, t.Any]:
    return {"index": index, "vgpus": [{"type": name} for name in types]}


def test_observed_vgpus_read_back_as_they_are() -> None:
    text = FilterModule().filters()["vgpu_configs"]([seen(0, "A100D-20C", "A100D-20C"), seen(1), seen(None, "mtty-1")], "before")
    assert text == (
        'version: v1\nvgpu-configs:\n  "before":\n    - devices: [0]\n      vgpu-devices:\n        "A100D-20C": 2\n'
        "    - devices: [1]\n      vgpu-devices: {}\n"
    )
    assert [one["types"] for one in parse(text, "x")["before"]] == [[{"type": "A100D-20C", "count": 2}], []]


def test_a_host_whose_gpus_are_alike_is_one_entry() -> None:
    assert yaml.safe_load(export([seen(0, "L4-4C"), seen(1, "L4-4C")]))["vgpu-configs"]["current"] == [
        {"devices": "all", "vgpu-devices": {"L4-4C": 1}}
    ]
    assert yaml.safe_load(export([seen(1, "L4-4C")]))["vgpu-configs"]["current"][0]["devices"] == [1]
    assert yaml.safe_load(export([]))["vgpu-configs"]["current"] == [{"devices": "all", "vgpu-devices": {}}]


# What is known of types


def test_known_types_have_their_most_from_nvidias_list() -> None:
    table = door.vgpu_table()
    assert len(table.names()) == len(set(table.names())) > 400
    assert table.limits(["NVIDIA A100D-10C", "A100D-8C", "A100D-1-10C", "DC-1-2QGFX", "X9-1C", "mtty-1"]) == {
        "A100D-10C": {"most": 8, "mixed": 8, "source": "NVIDIA's list of vGPU types"},
        "A100D-8C": {"most": 10, "mixed": 8, "source": "NVIDIA's list of vGPU types"},
        "A100D-1-10C": {"most": 7, "mixed": None, "source": "NVIDIA's list of vGPU types"},
        "DC-1-2Q": {"most": 48, "mixed": None, "source": "NVIDIA's list of vGPU types"},
    }
    assert table.card("A100DX-40C") == "A100 HGX/SXM 80GB"
    assert table.card("L4-4C") is None


def test_a_line_of_the_data_that_is_wrong_is_refused_with_its_place() -> None:
    text = (door.DATA / "vgpu_types.yml").read_text(encoding="utf-8")
    with pytest.raises(FleetError, match="'A30-6X' is no vGPU type"):
        VgpuTable(read_yaml(text.replace("A30: {1-6C: 4", "A30: {6X: 4", 1), "data/vgpu_types.yml"))
    with pytest.raises(FleetError, match="'nobody' is not among the sources"):
        VgpuTable(read_yaml(text.replace("sources: [aie5]", "sources: [nobody]", 1), "data/vgpu_types.yml"))
