# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""mig-parted v1 files: what is read, what is refused and with which words, and what an observed layout reads like."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.layouts import export, parse, selectors

# In the shape of NVIDIA's own example: labels, devices: all and by index, empty mig-devices.
FILE = """\
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-enabled:
    - devices: all
      mig-enabled: true
      mig-devices: {}
  mixed:
    - devices: [0, 1]
      device-filter: ["0x20B210DE", "0x20F310DE:0x14A210DE"]
      mig-enabled: true
      mig-devices:
        "1g.10gb": 2
        3g.40gb: 1
        1g.10gb+me: 1
        2g.20gb: 0
    - devices: [GPU-5c1f0001-aaaa-bbbb-cccc-000000000001, '0000:0B:00.0', '00000000:41:00.0', '42:00.0']
      device-filter: 0x233010DE
      mig-enabled: false
      mig-devices: {}
"""


def layout(entry: str) -> str:
    """A file with one label, ``x``, whose only entry begins on line 4."""
    return f"version: v1\nmig-configs:\n  x:\n    - {entry}\n"


def refusal(text: str, label: str = "x") -> str:
    with pytest.raises(FleetError) as caught:
        selectors(text, "layouts.yml", label)
    return str(caught.value)


def test_a_label_becomes_plain_data_for_the_host() -> None:
    assert selectors(FILE, "layouts.yml", "mixed") == [
        {
            "devices": [0, 1],
            "device_filter": ["0x20B210DE", "0x20F310DE:0x14A210DE"],
            "mig": True,
            "instances": [{"profile": "1g.10gb", "count": 2}, {"profile": "3g.40gb", "count": 1}, {"profile": "1g.10gb+me", "count": 1}],
            "source": "layouts.yml:11",
        },
        {
            "devices": ["GPU-5c1f0001-aaaa-bbbb-cccc-000000000001", "0000:0B:00.0", "00000000:41:00.0", "42:00.0"],
            "device_filter": ["0x233010DE"],
            "mig": False,
            "instances": [],
            "source": "layouts.yml:19",
        },
    ]


@pytest.mark.parametrize(("label", "mig"), [("all-disabled", False), ("all-enabled", True)])
def test_all_devices_stay_for_the_host_to_resolve(label: str, mig: bool) -> None:
    (selector,) = selectors(FILE, "layouts.yml", label)
    assert (selector["devices"], selector["device_filter"], selector["mig"], selector["instances"]) == ("all", [], mig, [])


@pytest.mark.parametrize("label", ["off", "y", "on", "1", "No", "1e3", "null"])
def test_labels_that_yaml_parsers_turn_into_other_things_stay_text(label: str) -> None:
    text = f"version: v1\nmig-configs:\n  {label}:\n    - {{devices: all, mig-enabled: false}}\n"
    assert list(parse(text, "f").labels) == [label]
    assert selectors(text, "f", label)[0]["mig"] is False


def test_json_is_read_as_well() -> None:
    text = '{"version": "v1", "mig-configs": {"x": [{"devices": [3], "mig-enabled": true, "mig-devices": {"7g.80gb": 1}}]}}'
    (selector,) = selectors(text, "f", "x")
    assert (selector["devices"], selector["instances"]) == ([3], [{"profile": "7g.80gb", "count": 1}])


def test_an_empty_filter_is_no_filter() -> None:
    for written in ("''", "[]"):
        (selector,) = selectors(layout(f"{{devices: all, device-filter: {written}, mig-enabled: false}}"), "f", "x")
        assert selector["device_filter"] == []


def test_a_missing_label_names_the_labels_that_exist() -> None:
    assert refusal(FILE, "nothing-like-it") == (
        "layouts.yml: mig-configs: there is no layout 'nothing-like-it'; labels of this file: all-disabled, all-enabled, mixed"
    )
    assert "did you mean 'all-enabled'? labels of this file: all-disabled" in refusal(FILE, "all-enable")


FIELDS = "device-filter, devices, mig-enabled, mig-devices"
LINE4 = "layouts.yml:4: mig-configs.x[0]"
AN_ENTRY = "write at least one entry: - {devices: all, mig-enabled: false}"

WRONG: list[tuple[str, str]] = [
    ("version: v2\nmig-configs: {x: []}\n", "layouts.yml:1: version: 'v2' is no known version; write version: v1"),
    ("version: 1\nmig-configs: {x: []}\n", "layouts.yml:1: version: 1 is no known version; write version: v1"),
    ("mig-configs: {x: []}\n", "layouts.yml:1: field 'version' is missing; write version: v1"),
    ("version: v1\n", "layouts.yml:1: field 'mig-configs' is missing; write mig-configs: {LABEL: [...]}"),
    (
        "version: v1\nmig-config: {}\n",
        "layouts.yml:2: mig-config: unknown field; did you mean 'mig-configs'? fields here: version, mig-configs",
    ),
    (
        "version: v1\nmig-configs: {}\n",
        "layouts.yml:2: mig-configs: expected labels with their layouts, found an empty mapping; write at least one label",
    ),
    (
        "version: v1\nmig-configs: [x]\n",
        "layouts.yml:2: mig-configs: expected labels with their layouts, found a list; write at least one label",
    ),
    (
        "version: v1\nmig-configs:\n  x: []\n",
        "layouts.yml:3: mig-configs.x: expected a list of entries, found an empty list; " + AN_ENTRY,
    ),
    (
        "version: v1\nmig-configs:\n  x:\n    devices: all\n",
        "layouts.yml:3: mig-configs.x: expected a list of entries, found a mapping; " + AN_ENTRY,
    ),
    (
        layout("devices"),
        f"{LINE4}: expected fields, found 'devices'; fields: {FIELDS}",
    ),
    (
        layout("{device: all, mig-enabled: false}"),
        f"{LINE4}.device: unknown field; did you mean 'devices'? fields here: {FIELDS}",
    ),
    (
        layout("{devices: all, mig-enabled: false, zzz: 1}"),
        f"{LINE4}.zzz: unknown field; fields here: {FIELDS}",
    ),
    (
        layout("{mig-enabled: false}"),
        f"{LINE4}: field 'devices' is missing; write devices: all, or a list such as [0, 1]",
    ),
    (layout("{devices: all}"), f"{LINE4}: field 'mig-enabled' is missing; write mig-enabled: true or false"),
    (
        layout("{devices: all, mig-enabled: yes}"),
        f"{LINE4}.mig-enabled: expected true or false, found 'yes'; write true or false without quotes",
    ),
    (
        layout("{devices: all, mig-enabled: true}"),
        f"{LINE4}: field 'mig-devices' is missing; with mig-enabled: true write mig-devices: {{1g.10gb: 7}}, or {{}} for none",
    ),
    (
        layout("{devices: all, mig-enabled: false, mig-devices: {1g.10gb: 1}}"),
        f"{LINE4}.mig-devices: slices on GPUs whose MIG mode is off; write mig-enabled: true, or leave mig-devices out",
    ),
    (
        layout("{devices: all, mig-enabled: true, mig-devices: [1g.10gb]}"),
        f"{LINE4}.mig-devices: expected profiles with their counts, found a list; write mig-devices: {{1g.10gb: 7}}",
    ),
    (
        layout("{devices: all, mig-enabled: true, mig-devices: }"),
        f"{LINE4}.mig-devices: expected profiles with their counts, found nothing; write mig-devices: {{1g.10gb: 7}}",
    ),
    (
        layout("{devices: all, mig-enabled: true, mig-devices: {small: 1}}"),
        f"{LINE4}.mig-devices.small: 'small' is no MIG profile; "
        "write its name as nvidia-smi mig -lgip or -lcip shows it, such as 1g.10gb, 1g.10gb+me or 1c.3g.40gb",
    ),
    (
        layout("{devices: all, mig-enabled: true, mig-devices: {4c.3g.40gb: 3}}"),
        f"{LINE4}.mig-devices.4c.3g.40gb: '4c.3g.40gb' names a compute instance larger than its GPU instance; write 1c to 3c",
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_what_the_format_does_not_allow_is_refused_in_one_line(text: str, message: str) -> None:
    assert refusal(text) == message


@pytest.mark.parametrize("count", ["-1", "true", "'2'", "1.5", "null", "[1]"])
def test_a_count_is_a_whole_number_of_slices(count: str) -> None:
    message = refusal(layout(f"{{devices: all, mig-enabled: true, mig-devices: {{1g.10gb: {count}}}}}"))
    assert message.startswith("layouts.yml:4: mig-configs.x[0].mig-devices.1g.10gb: expected a count, found ")
    assert message.endswith("; write a whole number of slices: 1g.10gb: 1")


def test_a_count_that_no_gpu_can_hold_is_refused_at_once() -> None:
    assert selectors(layout("{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 64}}"), "layouts.yml", "x")
    message = refusal(layout("{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 9999999}}"))
    assert message == f"{LINE4}.mig-devices.1g.10gb: no GPU has 9999999 instances; write at most 64"


@pytest.mark.parametrize(
    ("devices", "where", "found"),
    [
        ("[]", "devices", "expected all or a list of GPUs, found a list"),
        ("every", "devices", "expected all or a list of GPUs, found 'every'"),
        ("0", "devices", "expected all or a list of GPUs, found 0"),
        ("{0: 1}", "devices", "expected all or a list of GPUs, found a mapping"),
        ("[0, -1]", "devices[1]", "-1 names no GPU"),
        ("[true]", "devices[0]", "true names no GPU"),
        ("[0, 'all']", "devices[1]", "'all' names no GPU"),
        ("['0']", "devices[0]", "'0' names no GPU"),
        ("['0000:07:00']", "devices[0]", "'0000:07:00' names no GPU"),
        ("[xGPU-1]", "devices[0]", "'xGPU-1' names no GPU"),
        ("[MIG-5c1f]", "devices[0]", "'MIG-5c1f' names no GPU"),
    ],
)
def test_devices_are_all_or_gpus_by_index_uuid_or_address(devices: str, where: str, found: str) -> None:
    message = refusal(layout(f"{{devices: {devices}, mig-enabled: false}}"))
    assert (
        message == f"layouts.yml:4: mig-configs.x[0].{where}: {found}; write all, or a list of GPUs by index, UUID or PCI address: [0, 1]"
    )


@pytest.mark.parametrize(
    ("written", "where", "found"),
    [
        ("20B210DE", "device-filter", "'20B210DE' is no PCI identity"),
        ("['0x20B210DE', a100]", "device-filter[1]", "'a100' is no PCI identity"),
        ("[7]", "device-filter[0]", "7 is no PCI identity"),
        ("'0x20B210DE:0x1:0x2'", "device-filter", "'0x20B210DE:0x1:0x2' is no PCI identity"),
        ("'0x20B2'", "device-filter", "'0x20B2' is no PCI identity"),
        ("7", "device-filter", "expected a text or a list of texts, found 7"),
        ("{a: b}", "device-filter", "expected a text or a list of texts, found a mapping"),
    ],
)
def test_a_device_filter_is_one_or_more_pci_identities(written: str, where: str, found: str) -> None:
    message = refusal(layout(f"{{devices: all, device-filter: {written}, mig-enabled: false}}"))
    hint = "write '0x<device><vendor>' or '0x<device><vendor>:0x<subdevice><subvendor>' in quotes, such as '0x20B210DE'"
    assert message == f"layouts.yml:4: mig-configs.x[0].{where}: {found}; {hint}"


def test_every_label_is_checked_and_not_only_the_one_that_is_asked_for() -> None:
    text = FILE + "  other:\n    - {devices: all}\n"
    assert refusal(text, "mixed").startswith("layouts.yml:24: mig-configs.other[0]: field 'mig-enabled' is missing")


# Export


def gpu(index: int, *profiles: str, current: bool = True, **more: t.Any) -> dict[str, t.Any]:
    instances = [{"gi": number, "profile": profile, "start": number, "ci": []} for number, profile in enumerate(profiles)]
    return {"index": index, "state": "ok", "mig": {"current": current, "pending": current, "instances": instances}, **more}


def test_gpus_of_equal_layout_share_an_entry_whatever_the_order_of_their_slices() -> None:
    gpus = [gpu(0, "1g.10gb", "3g.40gb", "1g.10gb"), gpu(1, current=False), gpu(2, "3g.40gb", "1g.10gb", "1g.10gb")]
    assert export(gpus) == (
        "version: v1\n"
        "mig-configs:\n"
        "  current:\n"
        "    - devices: [0, 2]\n"
        "      mig-enabled: true\n"
        "      mig-devices:\n"
        '        "1g.10gb": 2\n'
        '        "3g.40gb": 1\n'
        "    - devices: [1]\n"
        "      mig-enabled: false\n"
    )


def test_a_host_whose_gpus_are_all_alike_is_exported_as_all() -> None:
    text = export([gpu(0), gpu(1)])
    assert text == "version: v1\nmig-configs:\n  current:\n    - devices: all\n      mig-enabled: true\n      mig-devices: {}\n"


@pytest.mark.parametrize(
    "other", [{"index": 1, "state": "ok", "mig": None}, gpu(1, state="lost"), {**gpu(1), "mig": None, "state": "lost"}]
)
def test_boards_without_mig_and_ill_ones_are_left_out(other: dict[str, t.Any]) -> None:
    text = export([gpu(0), other])
    assert "devices: [0]" in text
    assert text.count("devices:") == 2


def test_a_host_without_mig_has_nothing_to_switch_on() -> None:
    assert (
        export([{"index": 0, "state": "ok", "mig": None}])
        == "version: v1\nmig-configs:\n  current:\n    - devices: all\n      mig-enabled: false\n"
    )


@pytest.mark.parametrize("label", ["current", "off", "y", "1", "gpu-prod-01", "a b", 'a"b', "a\\b", "a: b", "all-1g.10gb", "1e3", "yes-"])
def test_what_is_exported_is_read_back_under_the_same_label(label: str) -> None:
    gpus = [gpu(0, "1g.10gb+me", "2g.20gb"), gpu(3, "7g.80gb"), gpu(1, current=False)]
    read = selectors(export(gpus, label), "f", label)
    assert [(each["devices"], each["mig"], each["instances"]) for each in read] == [
        ([0], True, [{"profile": "1g.10gb+me", "count": 1}, {"profile": "2g.20gb", "count": 1}]),
        ([3], True, [{"profile": "7g.80gb", "count": 1}]),
        ([1], False, []),
    ]
