# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which driver a host shall have: what boards, sources and policy make of it, and what stands in the way, before anything is installed."""

from __future__ import annotations

import copy
import typing as t
from functools import lru_cache

import pytest
from ansible_collections.gpuops.fleet.plugins.action.driver_plan import tables as read_tables
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat import judge
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_case import CompatHost, CompatImage
from ansible_collections.gpuops.fleet.plugins.plugin_utils.driver_names import Policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.driver_plan import plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.driver_wish import Tables
from hypothesis import given, settings
from hypothesis import strategies as st

TODAY = "2026-11-21"
KERNEL = "6.12.107+deb13-amd64"
# PCI device ids: pci.ids of Debian 13.
V100, B200, A100, L40S, P100, UNKNOWN = "1db5", "2901", "20b2", "26b9", "15f8", "3fff"
DEBIAN_13 = {
    "nvidia-kernel-dkms": ["550.163.01-2"],
    "nvidia-open-kernel-dkms": ["550.163.01-2"],
    "nvidia-smi": ["550.163.01-2"],
    "libcuda1": ["550.163.01-2"],
    "libnvidia-cfg1": ["550.163.01-2"],
    "nvidia-persistenced": ["550.163.01-1"],
    "dkms": ["3.2.2-1~deb13u1"],
    "gcc": ["4:14.2.0-1"],
    f"linux-headers-{KERNEL}": ["6.12.107-1"],
    "linux-headers-amd64": ["6.12.107-1"],
}
DRIVER = dict.fromkeys(("nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "libnvidia-cfg1"), "550.163.01-2")
INSTALLED = {**DRIVER, "nvidia-persistenced": "550.163.01-1", "dkms": "3.2.2-1", "gcc": "4:14.2.0-1"}
KEY = {"key_checksum": "sha256:00"}


@lru_cache(maxsize=1)
def tables() -> Tables:
    return read_tables()


def bare(*devices: str, system: tuple[str, str] = ("debian", "13"), **changed: t.Any) -> dict[str, t.Any]:
    """A host with these boards and no driver. ``changed``: ``kernel__running="..."`` changes a field of a field."""
    facts: dict[str, t.Any] = {
        "os": {"id": system[0], "version": system[1], "codename": None},
        "architecture": "x86_64",
        "kernel": {"running": KERNEL, "next": KERNEL, "headers": {KERNEL: False}},
        "boards": [{"pci": f"0000:0{index}:00.0", "device": each} for index, each in enumerate(devices, 1)],
        "switches": 0,
        "loaded": {"version": None, "flavour": None, "nouveau": False},
        "installed": {"driver": None, "flavour": None, "runfile": False, "packages": {}},
        "held": [],
        "recorded": {},
        "candidates": None,
        "sources": [
            {
                "uris": ["http://mirror.example.com/debian"],
                "suites": ["trixie", "trixie-updates"],
                "components": ["main"],
                "signed_by": "/k.gpg",
            }
        ],
        "repository": None,
        "dkms": [],
        "secure_boot": None,
        "key_enrolled": None,
        "space": [{"path": path, "device": 1, "free_mib": 90000} for path in ("/usr", "/var", "/boot")],
    }
    for name, value in changed.items():
        outer, separator, inner = name.partition("__")
        if separator:
            facts[outer] = {**facts[outer], inner: value}
        else:
            facts[outer] = value
    return facts


def decide(facts: dict[str, t.Any], gpus: dict[str, t.Any] | None = None, **policy: t.Any) -> dict[str, t.Any]:
    before = copy.deepcopy(facts)
    found = plan(tables(), "gpu-07", facts, Policy(**policy), TODAY, gpus)
    assert facts == before
    return found


def refused(facts: dict[str, t.Any], gpus: dict[str, t.Any] | None = None, **policy: t.Any) -> str:
    with pytest.raises(FleetError) as caught:
        plan(tables(), "gpu-07", facts, Policy(**policy), TODAY, gpus)
    line = str(caught.value)
    assert "\n" not in line
    return line


def has_driver(*devices: str, **changed: t.Any) -> dict[str, t.Any]:
    there = {"installed__driver": "550.163.01", "installed__flavour": "proprietary", "installed__packages": dict(INSTALLED)}
    loaded = {"loaded__version": "550.163.01", "kernel__headers": {KERNEL: True}, "candidates": dict(DEBIAN_13)}
    return bare(*devices, **{**there, **loaded, **changed})


@pytest.mark.parametrize(
    ("devices", "system", "policy", "branch", "flavour"),
    [
        pytest.param([A100], ("debian", "13"), {}, 550, "proprietary", id="what Debian 13 has"),
        pytest.param([A100], ("debian", "12"), {}, 535, "proprietary", id="what Debian 12 has"),
        pytest.param([A100], ("debian", "13"), {"branch": 535}, 535, "proprietary", id="Debian's second branch"),
        pytest.param([A100], ("debian", "13"), {"flavour": "open"}, 550, "open", id="open modules by wish"),
        pytest.param([A100], ("debian", "13"), {"source": "repository", **KEY}, 580, "open", id="the long-term branch first"),
        pytest.param(
            [V100], ("debian", "13"), {"source": "repository", **KEY}, 580, "proprietary", id="Volta's last branch, and its modules"
        ),
        pytest.param([V100, A100], ("debian", "13"), {"source": "repository", **KEY}, 580, "proprietary", id="the older board rules"),
        pytest.param([B200], ("ubuntu", "24.04"), {"source": "repository", **KEY}, 580, "open", id="Blackwell"),
        pytest.param([B200], ("ubuntu", "24.04"), {"source": "repository", "branch": 595, **KEY}, 595, "open", id="a branch by wish"),
        pytest.param([B200], ("ubuntu", "24.04"), {}, 580, "open", id="Ubuntu's own packages"),
        pytest.param([L40S], ("rocky", "9.6"), {"source": "repository", **KEY}, 580, "open", id="a minor version is its major one"),
        pytest.param(
            [L40S], ("debian", "13"), {"source": "mirror", "mirror": "https://m", **KEY}, 580, "open", id="a mirror is as the repository"
        ),
        pytest.param(
            [], ("debian", "13"), {"boards": ["v100-sxm2-32gb"], "source": "repository", **KEY}, 580, "proprietary", id="boards to come"
        ),
        pytest.param(
            [A100],
            ("debian", "13"),
            {"source": "runfile", "version": "580.95.05", "runfile": "https://x/y.run", "runfile_checksum": "sha256:1"},
            580,
            "open",
            id="a runfile",
        ),
    ],
)
def test_boards_source_and_policy_choose_branch_and_modules(
    devices: list[str], system: tuple[str, str], policy: dict[str, t.Any], branch: int, flavour: str
) -> None:
    found = decide(bare(*devices, system=system), **policy)
    assert (found["branch"], found["flavour"]) == (branch, flavour), found["why"]


@pytest.mark.parametrize(
    ("devices", "policy", "words"),
    [
        pytest.param([V100, B200], {}, ["v100-sxm2-32gb and b200-sxm-180gb together", "different hosts"], id="V100 beside B200"),
        pytest.param(
            [V100], {"source": "repository", "branch": 595, **KEY}, ["R595 does not drive v100", "nvidia_driver_branch: 580"], id="dropped"
        ),
        pytest.param([B200], {"branch": 550}, ["R550 does not drive b200", "R570 is its first", "R580 drives all"], id="too old a branch"),
        pytest.param([B200], {}, ["has no driver for b200", "R550", "source: repository"], id="Debian has none for Blackwell"),
        pytest.param([A100], {"branch": 580}, ["debian 13 has R550, R535", "not R580", "source: repository"], id="not in Debian"),
        pytest.param([V100], {"flavour": "open"}, ["v100-sxm2-32gb needs proprietary", "flavour: auto"], id="open modules below Turing"),
        pytest.param([A100], {"branch": 535, "flavour": "open"}, ["R535 has no open kernel modules"], id="Debian's second branch has none"),
        pytest.param([A100], {"branch": 550, "version": "535.1"}, ["535.1 is not of branch 550"], id="version and branch disagree"),
        pytest.param([], {}, ["no NVIDIA GPU on the PCI bus", "nvidia_driver_boards"], id="no board"),
        pytest.param([], {"boards": ["b2000"]}, ["'b2000' is not in the catalogue"], id="a board that nobody knows"),
        pytest.param([A100], {"source": "repository"}, ["nvidia_driver_key_checksum", "8793F200.pub"], id="a key without checksum"),
        pytest.param([A100], {"source": "mirror", **KEY}, ["nvidia_driver_mirror"], id="a mirror without address"),
        pytest.param([A100], {"source": "runfile"}, ["nvidia_driver_version"], id="a runfile without version"),
        pytest.param(
            [A100], {"source": "runfile", "version": "580.1"}, ["nvidia_driver_runfile: missing", "checksum"], id="without address"
        ),
    ],
)
def test_a_wish_that_no_driver_meets_is_one_line_with_what_would_be_right(
    devices: list[str], policy: dict[str, t.Any], words: list[str]
) -> None:
    line = refused(bare(*devices), **policy)
    for word in words:
        assert word in line, line


def test_an_operating_system_that_the_role_does_not_know_is_refused_with_those_that_it_knows() -> None:
    line = refused(bare(A100, system=("fedora", "42")))
    assert "does not know fedora 42" in line
    assert "debian 13" in line


def test_a_board_that_nobody_knows_is_warned_of_and_blocks_nothing() -> None:
    found = decide(bare(A100, UNKNOWN))
    assert found["branch"] == 550
    assert any("10de:3fff is not known here" in each for each in found["warnings"])


def test_an_unproven_system_and_an_old_branch_warn() -> None:
    found = decide(bare(A100, system=("debian", "12")))
    assert any("unproven" in each for each in found["warnings"])
    assert any("R535 gets no fixes any more; R580 drives all" in each for each in found["warnings"])
    assert not any("unproven" in each for each in decide(bare(A100))["warnings"])


def test_debians_components_come_from_where_the_host_has_its_main() -> None:
    asked = bare(A100, candidates={name: DEBIAN_13[name] for name in ("dkms", "gcc", f"linux-headers-{KERNEL}")})
    found = decide(asked)["repository"]
    assert found["path"] == "/etc/apt/sources.list.d/gpuops-fleet-nvidia.sources"
    assert found["text"].splitlines()[1:] == [
        "Types: deb",
        "URIs: http://mirror.example.com/debian",
        "Suites: trixie trixie-updates",
        "Components: contrib non-free non-free-firmware",
        "Signed-By: /k.gpg",
    ]
    assert not found["there"]
    asked["repository"], asked["candidates"] = found["text"], DEBIAN_13
    again = decide(asked)
    assert again["repository"]["there"]
    assert again["complete"]


def test_a_site_whose_sources_have_it_all_gets_no_further_one() -> None:
    found = decide(bare(A100, candidates=DEBIAN_13))
    assert (found["repository"], found["complete"]) == (None, True)
    assert found["install"][f"linux-headers-{KERNEL}"] == "6.12.107-1"
    assert next(iter(found["install"])) == f"linux-headers-{KERNEL}", "what a module is built with comes before its source"
    assert found["install"]["nvidia-smi"] == "550.163.01-2"


def test_nvidias_repository_is_pinned_to_the_branch_and_names_the_key() -> None:
    found = decide(bare(A100), source="repository", branch=580, **KEY)
    assert "nvidia-driver-pinning-580" in found["names"]
    assert found["repository"]["key"]["url"].endswith("/debian13/x86_64/8793F200.pub")
    assert "URIs: https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64" in found["repository"]["text"]
    mirrored = decide(bare(A100), source="mirror", mirror="https://mirror.example.com/nvidia/", key="https://k", **KEY)
    assert "URIs: https://mirror.example.com/nvidia\n" in mirrored["repository"]["text"]
    assert mirrored["repository"]["key"]["url"] == "https://k"


def test_red_hat_gets_the_stream_of_branch_and_modules() -> None:
    assert decide(bare(A100, system=("rhel", "9.6")), source="repository", **KEY)["stream"] == "nvidia-driver:580-open"
    assert decide(bare(V100, system=("rhel", "9.6")), source="repository", **KEY)["stream"] == "nvidia-driver:580-dkms"
    assert decide(bare(A100, system=("rhel", "10.0")), source="repository", **KEY)["stream"] is None


def test_packages_are_named_in_their_version_as_apt_and_dnf_take_them() -> None:
    specs = decide(bare(A100, candidates=DEBIAN_13))["specs"]
    assert specs["first"] == [f"linux-headers-{KERNEL}=6.12.107-1", "dkms=3.2.2-1~deb13u1", "gcc=4:14.2.0-1"]
    assert specs["then"][0] == "nvidia-kernel-dkms=550.163.01-2"
    kernel = "5.14.0-570.12.1.el9_6.x86_64"
    candidates = {name: ["3:580.95.05-1.el9"] for name in ("kmod-nvidia-open-dkms", "nvidia-driver-cuda", "nvidia-persistenced")}
    candidates.update({f"kernel-devel-{kernel}": ["0:5.14.0-570.12.1.el9_6"], "dkms": ["0:3.2-1.el9"], "gcc": ["0:11.5-1.el9"]})
    facts = bare(A100, system=("rocky", "9.6"), kernel={"running": kernel, "next": kernel, "headers": {}}, candidates=candidates)
    facts["repository"] = decide(facts, source="repository", **KEY)["repository"]["text"]
    specs = decide(facts, source="repository", **KEY)["specs"]
    assert specs["first"] == [f"kernel-devel-{kernel}", "dkms-0:3.2-1.el9", "gcc-0:11.5-1.el9"]
    assert specs["then"][0] == "kmod-nvidia-open-dkms-3:580.95.05-1.el9"


def test_what_is_as_wished_needs_nothing() -> None:
    found = decide(has_driver(A100))
    assert (found["install"], found["remove"], found["steps"], found["upgrade"]) == ({}, [], [], False)


def test_the_branch_that_is_there_stays_until_another_one_is_asked_for() -> None:
    there = {"installed__driver": "595.71.05", "installed__flavour": "open", "installed__packages": {"nvidia-open": "595.71.05-1"}}
    found = decide(bare(A100, system=("ubuntu", "24.04"), **there), source="repository", **KEY)
    assert (found["branch"], found["flavour"]) == (595, "open")


@pytest.mark.parametrize("policy", [{"branch": 535}, {"version": "550.90.07"}])
def test_a_downgrade_is_refused_unless_it_is_meant(policy: dict[str, t.Any]) -> None:
    candidates = {**DEBIAN_13, **{name: ["550.163.01-2", "550.90.07-1"] for name in DRIVER}}
    candidates.update({name: ["535.274.02-1"] for name in ("nvidia-tesla-535-kernel-dkms", "nvidia-tesla-535-smi")})
    candidates.update({name: ["535.274.02-1"] for name in ("libnvidia-tesla-535-cuda1", "libnvidia-tesla-535-cfg1")})
    facts = has_driver(A100, candidates=candidates, loaded__version=None)
    line = refused(facts, **policy)
    assert "older than the driver that is there, 550.163.01" in line
    assert "nvidia_driver_allow_downgrade" in line
    assert decide(facts, allow_downgrade=True, **policy)["install"]


def test_the_other_kind_of_modules_goes_when_the_wished_kind_comes() -> None:
    found = decide(has_driver(A100, loaded__version=None), flavour="open")
    assert found["install"] == {"nvidia-open-kernel-dkms": "550.163.01-2"}
    assert found["remove"] == ["nvidia-kernel-dkms"]
    assert found["upgrade"]


def test_a_package_that_somebody_holds_is_named_with_the_way_to_let_it_go() -> None:
    newer = {**DEBIAN_13, **{name: ["550.170.01-1", "550.163.01-2"] for name in DRIVER}}
    facts = has_driver(A100, held=["nvidia-kernel-dkms"], candidates=newer, loaded__version=None)
    line = refused(facts, version="550.170.01")
    assert "gpu-07: held, and would have to change: nvidia-kernel-dkms at 550.163.01-2; `apt-mark unhold nvidia-kernel-dkms`" in line
    assert decide(facts)["install"] == {}, "what does not change may be held"
    facts["recorded"] = {"held": ["nvidia-kernel-dkms"]}
    found = decide(facts, version="550.170.01")
    assert found["unhold"] == ["nvidia-kernel-dkms"], "our own hold is ours to let go"


@pytest.mark.parametrize("which", ["running", "next"])
def test_a_kernel_without_headers_is_refused_before_any_source_is_added(which: str) -> None:
    old, new = "6.12.30+deb13-amd64", KERNEL
    lost = old if which == "running" else "6.12.200+deb13-amd64"
    kernel = {"running": lost, "next": new} if which == "running" else {"running": new, "next": lost}
    candidates = {name: DEBIAN_13[name] for name in ("dkms", "gcc", f"linux-headers-{KERNEL}")}
    line = refused(bare(A100, kernel={**kernel, "headers": {}}, candidates=candidates))
    assert f"no headers for kernel {lost}, which {'runs now' if which == 'running' else 'is the next to boot'}" in line
    assert (f"boot {new} first" in line) == (which == "running")


def test_headers_that_are_there_or_can_be_had_are_enough() -> None:
    there = bare(A100, kernel__headers={KERNEL: True}, candidates=DEBIAN_13)
    assert f"linux-headers-{KERNEL}" not in decide(there)["install"]
    later = bare(A100, candidates=DEBIAN_13, installed__packages={"linux-image-amd64": "6.12.107-1"})
    assert "linux-headers-amd64" in decide(later)["install"], "and those of each later kernel"


@pytest.mark.parametrize(
    ("free", "devices", "words"),
    [
        ({"/usr": 900}, {"/usr": 1, "/var": 2, "/boot": 3}, "/usr: 900 MiB free, the driver needs 1500 MiB"),
        ({"/usr": 3000, "/var": 3000, "/boot": 3000}, {"/usr": 1, "/var": 1, "/boot": 1}, "/usr and /var and /boot: 3000 MiB free"),
        ({"/boot": 10}, {"/usr": 1, "/var": 1, "/boot": 2}, "/boot: 10 MiB free, the driver needs 150 MiB"),
    ],
)
def test_a_disk_that_is_too_full_is_refused_by_file_system(free: dict[str, int], devices: dict[str, int], words: str) -> None:
    space = [{"path": path, "device": devices[path], "free_mib": free.get(path, 90000)} for path in devices]
    line = refused(bare(A100, candidates=DEBIAN_13, space=space))
    assert words in line
    assert decide(has_driver(A100, space=space))["steps"] == [], "nothing to install needs no space"


def test_secure_boot_without_a_key_is_refused_and_with_one_is_not() -> None:
    assert "no key is enrolled" in refused(bare(A100, candidates=DEBIAN_13, secure_boot=True))
    assert "mokutil --import" in refused(bare(A100, candidates=DEBIAN_13, secure_boot=True, key_enrolled=False))
    assert decide(bare(A100, candidates=DEBIAN_13, secure_boot=True, key_enrolled=True))["install"]
    assert decide(bare(A100, candidates=DEBIAN_13, secure_boot=True), secure_boot="enrolled")["install"]
    assert decide(has_driver(A100, secure_boot=True))["steps"] == [], "a driver that is loaded has shown that it may be"


def test_a_package_that_no_source_has_or_only_in_another_branch_is_named() -> None:
    without = {name: versions for name, versions in DEBIAN_13.items() if name != "libcuda1"}
    line = refused(bare(A100, candidates=without, repository="as it is", sources=[]))
    assert "package libcuda1 is in none of the host's sources" in line
    other = {**DEBIAN_13, "nvidia-smi": ["535.1-1"]}
    assert "package nvidia-smi is there only as 535.1-1; 550.163.01-2 is wished" in refused(bare(A100, candidates=other))
    third = {**DEBIAN_13, "nvidia-kernel-dkms": ["560.1-1"]}
    assert "package nvidia-kernel-dkms is there only as 560.1-1; R550 is wished" in refused(bare(A100, candidates=third))
    exact = refused(bare(A100, candidates=DEBIAN_13), version="550.54.14")
    assert "is there only as 550.163.01-2; 550.54.14 is wished" in exact


def test_packages_and_nvidias_installer_do_not_mix() -> None:
    by_runfile = bare(A100, installed__driver="580.95.05", installed__runfile=True, candidates=DEBIAN_13)
    assert "nvidia-uninstall" in refused(by_runfile)
    wish = {"source": "runfile", "version": "580.95.05", "runfile": "https://x/y.run", "runfile_checksum": "sha256:1"}
    assert "packages have installed driver 550.163.01" in refused(has_driver(A100), **wish)
    there = bare(A100, installed__driver="580.95.05", installed__runfile=True, candidates=DEBIAN_13)
    assert decide(there, **wish)["runfile"] is None
    assert decide(bare(A100, candidates=DEBIAN_13), **wish)["runfile"]["url"] == "https://x/y.run"


def test_switches_bring_the_fabric_manager_of_the_same_version_or_a_refusal() -> None:
    found = decide(bare(A100, switches=6), source="repository", **KEY)
    assert found["fabric"]
    assert "nvidia-fabricmanager" in found["names"]
    assert "nvidia-fabricmanager-580" in decide(bare(A100, system=("ubuntu", "24.04"), switches=6))["names"]
    assert "fabric manager, which debian 13 does not have" in refused(bare(A100, switches=6))
    assert not decide(bare(A100, switches=6), fabric_manager="never")["fabric"]


def test_a_driver_is_not_changed_below_what_runs_on_it() -> None:
    facts = has_driver(A100)
    container = {"name": "receipt-ocr-1-app-1", "state": "running"}
    holder = {"process": "python3", "pid": 7, "kind": "compute", "container": None}
    daemon = {"process": "nvidia-persistenced", "pid": 8, "kind": "open_file", "container": None}
    quiet = {"containers": [{"name": "old", "state": "exited"}], "gpus": [{"pci": "a", "holders": [daemon]}]}
    line = refused(facts, {"containers": [container], "gpus": [{"pci": "a", "holders": [holder]}]}, flavour="open")
    assert "would be changed below receipt-ocr-1-app-1, python3 (7); drain it and apply first" in line
    assert "somebody unseen on a" in refused(facts, {"containers": [], "gpus": [{"pci": "a", "holders": None}]}, flavour="open")
    assert "not known" in refused(facts, None, flavour="open")
    assert decide(facts, quiet, flavour="open")["install"]
    assert decide(facts, {"containers": [container], "gpus": []})["steps"] == [], "nothing to change hurts nobody"


def test_nouveau_is_said_to_wait_for_a_reboot() -> None:
    assert any("nouveau" in step for step in decide(bare(A100, candidates=DEBIAN_13, loaded__nouveau=True))["steps"])


def test_the_same_again_gives_the_same_bytes() -> None:
    facts = bare(V100, A100, UNKNOWN, candidates=DEBIAN_13)
    assert repr(decide(facts)) == repr(decide(copy.deepcopy(facts)))


# Kepler, Maxwell, Pascal, Volta, Turing, Ampere, Ada, Hopper, Grace Hopper, Blackwell (three), and one that nobody knows.
EVERY = ["102d", "13f2", P100, V100, "1eb8", A100, "2235", L40S, "2330", "2342", B200, "2bb5", "31c0", UNKNOWN]


@settings(max_examples=200, derandomize=True, database=None, deadline=None)
@given(
    devices=st.lists(st.sampled_from(EVERY), min_size=1, max_size=4),
    system=st.sampled_from([("debian", "13"), ("debian", "12"), ("ubuntu", "24.04"), ("rocky", "9.6"), ("rhel", "10.0")]),
    source=st.sampled_from(["distribution", "repository"]),
    branch=st.sampled_from([None, 470, 535, 550, 580, 595, 615]),
    flavour=st.sampled_from(["auto", "open", "proprietary"]),
)
def test_what_is_chosen_the_gate_lets_pass_and_what_is_refused_is_one_line(
    devices: list[str], system: tuple[str, str], source: str, branch: int | None, flavour: str
) -> None:
    policy = Policy.model_validate({"source": source, "branch": branch, "flavour": flavour, **KEY})
    facts = bare(*devices, system=system)
    facts["sources"][0]["suites"] = ["trixie", "bookworm"]
    refusal, found = None, {}
    try:
        found = plan(tables(), "gpu-07", facts, policy, TODAY)
    except FleetError as error:
        refusal = error
    if refusal is not None:
        assert "\n" not in str(refusal)
        assert refusal.hint, refusal
        return
    gpus = tuple(tables().boards.gpu(each) for each in devices)
    host = CompatHost("gpu-07", gpus, present=True, driver=f"{found['branch']}.999.99", flavour=found["flavour"])
    for gpu in gpus:
        verdict = judge(tables().compat, host, gpu, CompatImage(""))
        assert [each for each in verdict.findings if each.effect == "no"] == [], (found["why"], verdict.lines())


FILE = {"source": "runfile", "version": "580.95.02", "runfile": "https://mirror.example.com/NVIDIA-Linux-x86_64-580.95.02-vgpu-kvm.run"}
VGPU_HOST = {**FILE, "kind": "vgpu-host", "runfile_checksum": "sha256:00"}
DEB = "https://mirror.example.com/nvidia-vgpu-ubuntu-580_580.95.02_amd64.deb?x=1"
READY = {"kernel__headers": {KERNEL: True}, "candidates": dict(DEBIAN_13)}


@pytest.mark.parametrize(
    ("address", "form"),
    [(VGPU_HOST["runfile"], "run"), (DEB, "deb"), ("https://mirror.example.com/driver", "run")],
    ids=["run", "deb", "no end"],
)
def test_a_file_of_nvidias_is_taken_as_what_it_is(address: str, form: str) -> None:
    found = decide(bare(A100, **READY), **{**VGPU_HOST, "runfile": address})
    assert found["runfile"] == {"url": address, "checksum": "sha256:00", "version": "580.95.02", "form": form}
    assert f"install {address}" in found["steps"]


def test_an_rpm_is_for_another_family() -> None:
    line = refused(bare(A100, **READY), **{**VGPU_HOST, "runfile": "https://mirror.example.com/NVIDIA-vGPU-rhel.rpm"})
    assert line == "nvidia_driver_runfile: gpu-07: debian 13 takes no .rpm; give another file"


def test_the_vgpu_host_driver_and_the_ordinary_one_exclude_each_other() -> None:
    ordinary = has_driver(A100, installed__kind="ordinary")
    assert refused(ordinary, **VGPU_HOST) == (
        "gpu-07: the ordinary driver 550.163.01 is installed, and the vGPU host driver goes in its place, not beside it; "
        "move its services away, and remove it there with its packages' own program"
    )
    # The same version proves nothing: what it is counts.
    by_installer = bare(A100, **READY, installed__driver="580.95.02", installed__kind="ordinary", installed__runfile=True)
    assert "`nvidia-uninstall`" in refused(by_installer, **VGPU_HOST)
    host = bare(A100, **READY, installed__driver="580.95.02", installed__kind="vgpu-host", installed__runfile=True)
    assert refused(host).startswith("gpu-07: the vGPU host driver 580.95.02 is installed, and the ordinary driver goes in its place")
    assert decide(host, **VGPU_HOST)["runfile"] is None, "it is there"


def test_no_source_of_packages_has_the_vgpu_host_driver() -> None:
    line = refused(bare(A100, **READY), kind="vgpu-host")
    assert line == "gpu-07: no source of packages has the vGPU host driver; set nvidia_driver_source: runfile"


def test_a_driver_that_is_one_package_is_followed_by_its_like_only() -> None:
    there = {
        "installed__driver": "580.95.02",
        "installed__kind": "vgpu-host",
        "installed__packages": {"nvidia-vgpu-ubuntu-580": "580.95.02"},
    }
    host = bare(A100, **READY, **there)
    newer = {**VGPU_HOST, "version": "580.105.06"}
    assert decide(host, **{**newer, "runfile": DEB})["runfile"]["form"] == "deb"
    assert refused(host, **newer).startswith("gpu-07: package nvidia-vgpu-ubuntu-580 has installed driver 580.95.02; remove it there")
