# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module mig with mig-parted files, by real ansible-playbook processes: the file is read on the controller, bad ones change nothing."""

from __future__ import annotations

import json
import typing as t

import pytest
from own_play import Answer, run_task

if t.TYPE_CHECKING:
    from pathlib import Path

    from fleet_site import MakeSite, Site

HOST = "host-a"
LAYOUTS = """\
version: v1
mig-configs:
  off:
    - devices: all
      mig-enabled: false
  mixed:
    - devices: [0]
      device-filter: ["0x233010DE"]
      mig-enabled: true
      mig-devices:
        "1g.10gb": 2
        "3g.39gb": 1
    - devices: ['0000:0F:00.0']
      mig-enabled: true
      mig-devices: {}
    - devices: all
      device-filter: "0x20B210DE"
      mig-enabled: true
      mig-devices: {"1g.10gb": 7}
  impossible:
    - devices: [1]
      mig-enabled: false
    - devices: [0]
      mig-enabled: true
      mig-devices: {"4g.40gb": 2}
  unknown-profile:
    - {devices: [0], mig-enabled: true, mig-devices: {"5g.50gb": 1}}
  unknown-gpu:
    - {devices: [7], mig-enabled: true, mig-devices: {}}
"""


@pytest.fixture(scope="module")
def base(make_site: MakeSite) -> Site:
    return make_site(host_a="h100-80gb:2")


@pytest.fixture
def site(base: Site, tmp_path: Path) -> Site:
    return base.copy(tmp_path / "site")


def mig(site: Site, folder: Path, *options: str, **arguments: t.Any) -> Answer:
    paths = {"state_dir": str(site.work / HOST / "state"), "proc_root": str(site.work / HOST / "proc")}
    return run_task(site, folder, {"gpuops.fleet.mig": {**paths, **arguments}}, *options)


def slices(site: Site) -> list[list[str]]:
    gpus = json.loads(site.simctl(HOST, "show", "--json"))["gpus"]
    return [sorted(one["profile"] for one in gpu["mig"]["instances"]) if gpu["mig"]["current"] else ["off"] for gpu in gpus]


def places(answer: Answer) -> list[tuple[str, bool, list[tuple[str, int]]]]:
    """The layout that a run reports, without the MIG UUIDs, which nobody can predict."""
    return [(gpu["gpu"], gpu["mig"], [(one["profile"], one["start"]) for one in gpu["instances"]]) for gpu in answer.result["layout"]]


def mutations(site: Site) -> list[t.Any]:
    return site.mutations()[HOST]


def test_a_label_is_predicted_applied_once_and_taken_back(site: Site, tmp_path: Path) -> None:
    book = tmp_path / "book"
    book.mkdir()
    (book / "layouts.yml").write_text(LAYOUTS, encoding="utf-8")
    predicted = mig(site, book, "--check", "--diff", config="layouts.yml", label="mixed")
    assert predicted.status == 0, predicted.output
    assert (predicted.result["changed"], mutations(site)) == (True, [])
    applied = mig(site, book, config="layouts.yml", label="mixed")
    assert applied.status == 0, applied.output
    assert applied.result["steps"] == predicted.result["steps"]
    assert places(applied) == places(predicted)
    assert slices(site) == [["1g.10gb", "1g.10gb", "3g.40gb"], []]
    done = mutations(site)
    again = mig(site, book, config="layouts.yml", label="mixed")
    assert (again.result["changed"], again.result["steps"], mutations(site)) == (False, [], done)
    assert mig(site, book, config="layouts.yml", label="off").status == 0
    assert slices(site) == [["off"], ["off"]]


def test_a_file_is_found_in_the_directory_files_beside_the_playbook(site: Site, tmp_path: Path) -> None:
    (tmp_path / "book" / "files").mkdir(parents=True)
    (tmp_path / "book" / "files" / "layouts.yml").write_text(LAYOUTS, encoding="utf-8")
    answer = mig(site, tmp_path / "book", "--check", config="layouts.yml", label="off")
    assert (answer.status, answer.result["changed"]) == (0, False)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (
            "impossible",
            "{file}:23: mig-devices: GPU {gpu} (NVIDIA H100 80GB HBM3) cannot hold 2x4g.40gb: ",
        ),
        ("unknown-profile", "{file}:27: mig-devices: GPU {gpu} (NVIDIA H100 80GB HBM3): "),
        ("unknown-gpu", "{file}:29: devices: there is no GPU 7; GPUs of this host: 0 (0000:07:00.0, {gpu}), 1 (0000:0f:00.0, "),
        ("mixd", "{file}: mig-configs: there is no layout 'mixd'; did you mean 'mixed'? labels of this file: off, mixed, impossible"),
    ],
)
def test_a_label_that_cannot_be_is_refused_in_one_line_before_any_change(site: Site, tmp_path: Path, label: str, message: str) -> None:
    file = tmp_path / "layouts.yml"
    file.write_text(LAYOUTS, encoding="utf-8")
    gpu = json.loads(site.simctl(HOST, "show", "--json"))["gpus"][0]["uuid"]
    answer = mig(site, tmp_path / "book", config=str(file), label=label)
    assert answer.message.startswith(message.format(file=file, gpu=gpu))
    assert mutations(site) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"config": "no-such.yml", "label": "x"},
            "no-such.yml: config: no such layout file on the controller; write a path on the controller, ",
        ),
        ({"config": "l.yml"}, "label: config is given without label; write label: NAME, one of the labels in the file"),
        ({"label": "x"}, "config: label is given without config; write config: layouts.yml, the file that has this label"),
        (
            {"config": "l.yml", "label": "x", "layout": [{"gpu": "0"}]},
            "layout: a layout is given inline and by file; write either layout, or config and label",
        ),
        (
            {"selectors": [{"devices": "all"}]},
            "selectors: the entries of a layout file are read from it; write config and label instead",
        ),
        ({"config": "l.yml", "label": ["x"]}, "label: expected text, found ['x']; write it in quotes"),
        ({"layout": [{"gpu": "0", "sizes": ["1g.10gb"]}]}, "Unsupported parameters for (gpuops.fleet.mig) module: layout.sizes."),
    ],
)
def test_arguments_that_do_not_agree_are_refused_in_one_line(base: Site, tmp_path: Path, arguments: dict[str, t.Any], message: str) -> None:
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "l.yml").write_text(LAYOUTS, encoding="utf-8")
    assert mig(base, tmp_path / "book", **arguments).message.startswith(message)
    assert mutations(base) == []


def test_a_file_that_is_no_yaml_is_refused_with_its_line(base: Site, tmp_path: Path) -> None:
    file = tmp_path / "broken.yml"
    file.write_text("version: v1\nmig-configs: {x: [\n", encoding="utf-8")
    assert mig(base, tmp_path / "book", config=str(file), label="x").message.startswith(f"{file}:3: not YAML: ")
    assert mutations(base) == []
