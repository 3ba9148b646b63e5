# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A GPU gets another mode: which one, what modules are told from any mode to any other, what the inventory says, who leaves and returns."""

from __future__ import annotations

import itertools
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.action.mode_plan import run as decide
from ansible_collections.gpuops.fleet.plugins.action.mode_wish import run as wish
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import mode
from ansible_collections.gpuops.fleet.plugins.plugin_utils.mode_inventory import rewritten
from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu_facts, manifest_text

PCI = "0000:01:00.0"
ENTRIES: dict[str, dict[str, t.Any]] = {
    "whole": {"mode": "whole"},
    "mig": {"mode": "mig"},
    "shared": {"mode": "shared"},
    "passthrough": {"mode": "passthrough"},
    "vgpu": {"mode": "vgpu", "vgpus": [{"type": "A100D-10C", "count": 2}]},
    "backed": {"mode": "vgpu", "slices": ["3g.40gb@0"], "vgpus": [{"type": "A100D-3-40C"}]},
}
VGPUS = {"vfs": 12, "vgpus": [{"type": "A100D-10C", "place": f"0000:01:00.{number}", "uuid": None} for number in (4, 5)]}
IOMMU = {"groups": 9, "active": True}


def held(**more: t.Any) -> dict[str, t.Any]:
    return {"pci": PCI, "uuid": "GPU-h1-0", "identity": {"vendor": "0x10de"}, "users": [], **more}


def seen(now: str, **more: t.Any) -> dict[str, t.Any]:
    """Facts of a host whose one GPU has this mode."""
    if now == "passthrough":
        return facts([], passthrough=[held()], iommu=IOMMU, **more)
    gpu = gpu_facts(0, slices="1g.10gb@0" if now in ("mig", "backed") else "", drain=None)
    gpu["vgpu"] = VGPUS if now in ("vgpu", "backed") else None
    return facts([gpu], passthrough=[], iommu=IOMMU, **more)


def host(now: str, **policy: t.Any) -> dict[str, t.Any]:
    known = seen(now)
    known["host"]["drain"] = None
    return {"facts": known, "policy": {"fleet_environment": "production", **policy}, "plan": None}


def pinned(name: str) -> list[dict[str, t.Any]]:
    return [{"gpu": PCI, **ENTRIES[name]}]


def wished(known: dict[str, t.Any], tmp_path: Path, gpu: t.Any = PCI, **more: t.Any) -> dict[str, t.Any]:
    arguments = {"hosts": {"h1": known}, "gpu": gpu, "mode": None, "with": {}, "inventory": str(tmp_path), "write_inventory": False}
    return wish({**arguments, **more}, check_mode=False, diff=False)


def told(now: str, then: str, tmp_path: Path) -> list[str]:
    """What modules are told, in their order: the module's part and what it is told of the GPU."""
    work = wished(host(now, fleet_gpu_layouts=pinned(then)), tmp_path)["wishes"]["h1"]["work"]
    found = []
    for part in ("vgpus_off", "back", "mig", "away", "vgpus"):
        for line in work[part]:
            assert line.get("gpu", line.get("device")) == PCI
            on = "" if part != "mig" else " cut" if "instances" in line else f" {'on' if line['mig'] else 'off'}"
            found.append(part + on)
    return found


LEAVE = {"vgpu": ["vgpus_off"], "backed": ["vgpus_off"], "passthrough": ["back"]}
CUT = {"mig", "backed"}


@pytest.mark.parametrize(("now", "then"), list(itertools.product(["whole", "mig", "passthrough", "vgpu", "backed"], ENTRIES)))
def test_from_any_mode_to_any_other_nothing_is_asked_for_that_is_there(now: str, then: str, tmp_path: Path) -> None:
    steps = told(now, then, tmp_path)
    same_kind = {now, then} <= {"vgpu", "backed"} or now == then
    expected = [] if same_kind else list(LEAVE.get(now, []))
    if then == "backed":
        expected.append("mig cut")
    elif now == "passthrough" and then != "passthrough":
        expected.append("mig on" if then == "mig" else "mig off")  # its guest may have left it in any mode
    elif now != "passthrough" and (now in CUT) is not (then in CUT):
        expected.append("mig on" if then in CUT else "mig off")
    expected += {"passthrough": ["away"], "vgpu": ["vgpus"], "backed": ["vgpus"]}.get(then, [])
    assert steps == expected


def test_vgpus_that_instances_back_keep_mig_mode_and_get_their_instances_first(tmp_path: Path) -> None:
    work = wished(host("mig", fleet_gpu_layouts=pinned("backed")), tmp_path)["wishes"]["h1"]["work"]
    assert work["mig"] == work["mig_known"] == [{"gpu": PCI, "instances": [{"profile": "3g.40gb", "start": 0, "compute": "keep"}]}]
    assert work["vgpus"] == [{"gpu": PCI, "vgpus": [{"type": "A100D-3-40C", "count": 1}], "instances": ["3g.40gb@0"]}]


def test_a_mode_that_waits_for_a_reset_is_asked_for_again(tmp_path: Path) -> None:
    known = host("whole", fleet_gpu_layouts=pinned("whole"))
    known["facts"]["gpus"][0]["mig"].update(current=False, pending=True)
    assert wished(known, tmp_path)["wishes"]["h1"]["work"]["mig"] == [{"gpu": PCI, "mig": False}]


@pytest.mark.parametrize(
    ("now", "options", "words"),
    [
        ("whole", {"gpu": ""}, "gpu: no GPU is named; -e gpu=GPU-5c1f8f7e-... or -e gpu=0000:3b:00.0, several with commas"),
        ("whole", {"gpu": "0000:09:00.0"}, "gpu: there is no GPU '0000:09:00.0' on h1; name its UUID or its PCI address"),
        ("whole", {"gpu": "0"}, "gpu: there is no GPU '0' on h1; name its UUID or its PCI address"),
        ("whole", {"gpu": [PCI, "GPU-h1-0"]}, "gpu: GPU 'GPU-h1-0' is named twice; name each GPU once"),
        ("whole", {"mode": "half"}, "mode: there is no mode 'half'; one of whole, mig, shared, vgpu, passthrough"),
        (
            "whole",
            {"mode": "mig", "with": {"slices": []}},
            "mode_with: further fields are for an entry that is written; name a mode, and let",
        ),
        (
            "whole",
            {},
            f"host h1: fleet_gpu_layouts says nothing of GPU {PCI}, and fleet_gpu_modes allows mig, whole; name the mode: -e mode=...",
        ),
        (
            "whole",
            {"mode": "mig"},
            f"host h1: fleet_gpu_layouts says nothing of GPU {PCI}, and mode mig is asked for; "
            "write there - {gpu: GPU-h1-0, mode: mig} and commit it, or let it be written: -e mode_inventory=true",
        ),
        (
            "whole",
            {"mode": "vgpu", "write_inventory": True},
            f"h1: GPU {PCI} shall give vGPUs, and no type is named; such as -e ",
        ),
        (
            "whole",
            {"mode": "vgpu", "write_inventory": True, "with": {"vgpu": []}},
            "host h1: fleet_gpu_layouts[0].vgpu: unknown field 'vgpu'",
        ),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line_and_nothing_is_written(
    now: str, options: dict[str, t.Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(FleetError) as caught:
        wished(host(now), tmp_path, **options)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("now", "then", "change", "words"),
    [
        ("whole", "mig", {"mig": None}, f"h1: GPU {PCI} (NVIDIA A100-SXM4-80GB) has no MIG"),
        ("whole", "backed", {"mig": None}, f"h1: GPU {PCI} (NVIDIA A100-SXM4-80GB) has no MIG"),
        ("whole", "mig", {"state": "lost", "error": "gone"}, f"h1: GPU {PCI} is lost: gone"),
        ("whole", "passthrough", {"iommu": {"groups": 0, "active": False}}, f"h1: GPU {PCI}: the IOMMU of this host does not work"),
        ("whole", "passthrough", {"virtualization": "vgpu"}, f"h1: GPU {PCI} is itself a virtual machine's"),
        (
            "whole",
            "mig",
            {"drain": {"by": "lin", "reason": "fan", "until": None}},
            f"h1: GPU {PCI} is drained by lin (fan); release it first",
        ),
        ("passthrough", "whole", {"users": ["process 7 (qemu, virtual machine web)"]}, f"h1: GPU {PCI} is in use by process 7 (qemu"),
    ],
)
def test_a_gpu_that_cannot_have_the_mode_is_refused_before_anything(
    now: str, then: str, change: dict[str, t.Any], words: str, tmp_path: Path
) -> None:
    known = host(now, fleet_gpu_layouts=pinned(then))
    where = known["facts"]["passthrough"][0] if now == "passthrough" else known["facts"]["gpus"][0]
    (known["facts"] if "iommu" in change else where).update(change)
    if change == {"mig": None} and then == "mig":
        # A board without MIG has no such entry in any case.
        words = f"h1: GPU {PCI} (NVIDIA A100-SXM4-80GB) has no MIG"
    with pytest.raises(FleetError) as caught:
        wished(known, tmp_path)
    assert str(caught.value).startswith(words)


def test_one_mode_that_policy_allows_needs_no_entry(tmp_path: Path) -> None:
    found = wished(host("whole", fleet_gpu_modes=["mig"]), tmp_path, mode="mig")
    assert (found["wishes"]["h1"]["work"]["mig"], found["wishes"]["h1"]["layouts"], found["changed"]) == (
        [{"gpu": PCI, "mig": True}],
        [],
        False,
    )


def test_the_inventory_is_written_where_the_host_has_its_variables(tmp_path: Path) -> None:
    path = tmp_path / "host_vars" / "h1.yml"
    path.parent.mkdir()
    path.write_text("---\nfleet_environment: production # ours\n")
    found = wished(host("whole"), tmp_path, mode="mig", write_inventory=True)
    text = "---\nfleet_environment: production # ours\nfleet_gpu_layouts:\n  - {gpu: GPU-h1-0, mode: mig}\n"
    assert (found["changed"], found["files"], path.read_text()) == (True, [str(path)], text)
    layouts = yaml.safe_load(text)["fleet_gpu_layouts"]
    assert found["wishes"]["h1"]["layouts"] == layouts
    again = wished(host("whole", fleet_gpu_layouts=layouts), tmp_path, mode="mig", write_inventory=True)
    assert (again["changed"], path.read_text()) == (False, text)


A, B = {"gpu": "GPU-a", "mode": "whole"}, {"gpu": "0000:07:00.0", "mode": "mig", "slices": ["3g.40gb@0"]}
NEW = {"gpu": "GPU-a", "mode": "vgpu", "vgpus": [{"type": "A100D-10C", "count": 2}]}
FLOW = "{gpu: GPU-a, mode: vgpu, vgpus: [{type: A100D-10C, count: 2}]}"


@pytest.mark.parametrize(
    ("text", "before", "after", "expected"),
    [
        ("", [], [A], "fleet_gpu_layouts:\n  - {gpu: GPU-a, mode: whole}\n"),
        ("a: 1", [], [A], "a: 1\nfleet_gpu_layouts:\n  - {gpu: GPU-a, mode: whole}\n"),
        ("fleet_gpu_layouts: []\nb: 2\n", [], [A], "fleet_gpu_layouts:\n  - {gpu: GPU-a, mode: whole}\nb: 2\n"),
        (
            "fleet_gpu_layouts: # which\n  - gpu: GPU-a # the old one\n    mode: whole\n\n  # the other\n"
            "  - {gpu: '0000:07:00.0', mode: mig, slices: [3g.40gb@0]}\nb: 2 # two\n",
            [A, B],
            [NEW, B],
            f"fleet_gpu_layouts: # which\n  - {FLOW}\n\n  # the other\n"
            "  - {gpu: '0000:07:00.0', mode: mig, slices: [3g.40gb@0]}\nb: 2 # two\n",
        ),
        (
            "fleet_gpu_layouts:\n- gpu: '0000:07:00.0'\n  mode: mig\n  slices:\n  - 3g.40gb@0 # first\n# end\nb: 2\n",
            [B],
            [B, NEW],
            f"fleet_gpu_layouts:\n- gpu: '0000:07:00.0'\n  mode: mig\n  slices:\n  - 3g.40gb@0\n- {FLOW} # first\n# end\nb: 2\n",
        ),
        (
            "fleet_gpu_layouts: [{gpu: GPU-a, mode: whole}]\n",
            [A],
            [NEW, B],
            f"fleet_gpu_layouts: [{FLOW}, {{gpu: '0000:07:00.0', mode: mig, slices: [3g.40gb@0]}}]\n",
        ),
    ],
)
def test_nothing_else_of_the_inventory_changes(
    text: str, before: list[dict[str, t.Any]], after: list[dict[str, t.Any]], expected: str
) -> None:
    assert rewritten("h1.yml", text, before, after) == expected


@pytest.mark.parametrize(
    ("text", "before", "words"),
    [
        ("b: 2\n", [A], "h1.yml: fleet_gpu_layouts of this host is not written here; write it by hand: fleet_gpu_layouts: [{gpu: GPU-a"),
        ("fleet_gpu_layouts: '{{ mine }}'\n", [A], "h1.yml: this cannot be changed to the letter; write it by hand"),
        ("x: *y\n", [], "h1.yml: this is no YAML that can be changed; write it by hand"),
        ("- 1\n", [], "h1.yml: expected variables; write it by hand"),
    ],
)
def test_what_cannot_be_changed_to_the_letter_is_left_alone(text: str, before: list[dict[str, t.Any]], words: str) -> None:
    with pytest.raises(FleetError) as caught:
        rewritten("h1.yml", text, before, [NEW])
    assert str(caught.value).startswith(words)


def targets(now: str, then: str, tmp_path: Path) -> list[mode.Target]:
    found = wished(host(now, fleet_gpu_layouts=pinned(then)), tmp_path)["wishes"]["h1"]["targets"]
    return [mode.target(one) for one in found]


@pytest.mark.parametrize(
    ("then", "now", "change", "words"),
    [
        ("mig", "mig", {}, None),
        ("passthrough", "passthrough", {}, None),
        ("vgpu", "vgpu", {}, None),
        ("shared", "whole", {}, None),
        ("mig", "whole", {}, "is in mode whole and not mig"),
        ("whole", "passthrough", {}, "is in mode passthrough and not whole"),
        ("vgpu", "vgpu", {"vgpu": {"vfs": 12, "vgpus": VGPUS["vgpus"][:1]}}, "gives 1 A100D-10C and not 2 A100D-10C"),
        ("whole", "whole", {"uuid": "GPU-other"}, "is another one now, GPU-other"),
        ("whole", "mig", {"mig": {"current": True, "pending": False}}, "waits for a reset until its MIG mode is off"),
    ],
)
def test_facts_say_whether_a_gpu_has_its_mode(then: str, now: str, change: dict[str, t.Any], words: str | None, tmp_path: Path) -> None:
    after = seen(now)
    if after["gpus"]:
        after["gpus"][0].update(change)
    assert mode.problems(after, targets("whole", then, tmp_path)) == ([] if words is None else [f"h1: GPU {PCI} {words}"])


def test_a_gpu_that_nobody_has_any_more_is_named(tmp_path: Path) -> None:
    assert mode.problems(facts([]), targets("whole", "mig", tmp_path)) == [
        f"h1: GPU {PCI} is not there any more: neither its driver nor vfio has it"
    ]


# Who goes where


class Fleet:
    """Hosts with two GPUs each and papers; ``decide`` is what playbook mode asks."""

    def __init__(self, tmp_path: Path, *names: str, **services: str) -> None:
        self.root, self.hosts = tmp_path, {}
        for folder in ("m", "p", "inventory"):
            (tmp_path / folder).mkdir()
        for service, gpu in services.items():
            (tmp_path / "m" / f"{service}.yml").write_text(manifest_text(service, gpu=gpu))
        for name in names:
            known = facts([gpu_facts(0, name, drain=None), gpu_facts(1, name, drain=None)], passthrough=[], iommu=IOMMU, drains_idle=[])
            known["host"]["drain"] = None
            self.hosts[name] = {"facts": known, "policy": {"fleet_environment": "production"}, "plan": None}

    def plan(self) -> None:
        from ansible_collections.gpuops.fleet.plugins.action.plan import run

        done = run({**self.papers(), "hosts": self.hosts, "fail_unplaced": True}, check_mode=False, diff=False)
        for name, plan in done["plans"].items():
            self.hosts[name] = {**self.hosts[name], "plan": plan}
            self.hosts[name]["facts"]["plan"] = {"serial": plan["serial"], "digest": plan["digest"], "state": "done"}

    def papers(self) -> dict[str, t.Any]:
        return {"manifests": str(self.root / "m"), "plans": str(self.root / "p"), "templates": [], "images_file": None}

    def decide(self, gpu: str, then: str, steps: t.Sequence[str] = ("a step",), **more: t.Any) -> dict[str, t.Any]:
        entry = {key: value for key, value in ENTRIES[then].items() if key != "mode"}
        arguments = {
            "hosts": self.hosts,
            "gpu": gpu,
            "mode": ENTRIES[then]["mode"],
            "with": entry,
            "inventory": str(self.root / "inventory"),
        }
        wishes = wish({**arguments, "write_inventory": True}, check_mode=True, diff=False)["wishes"]
        found = decide({**self.papers(), "hosts": self.hosts, "wishes": wishes, "steps": {"h1": list(steps)}, "outage": False, **more})
        (turn,) = found["turns"]
        return t.cast("dict[str, t.Any]", turn)


def test_whoever_is_on_the_gpu_moves_where_there_is_a_place_and_stays_there(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "h1", llm="{isolation: exclusive, memory: 60 GiB}")
    fleet.plan()
    turn = fleet.decide("GPU-h1-0", "passthrough")
    assert (turn["due"], turn["emptied"], turn["stops"], turn["out"]) == (True, ["GPU-h1-0"], [], [])
    assert turn["lines"] == [
        f"h1: {PCI} from whole to passthrough",
        "h1: drain GPU-h1-0",
        "h1: a step",
        "h1: see that it is so, deploy",
    ], "it moves to the other GPU of the same host"
    assert fleet.decide("GPU-h1-1", "vgpu")["emptied"] == [], "nobody is there"


def test_whoever_fits_nowhere_is_named_and_stops_only_where_that_is_allowed(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "h1", llm="{isolation: exclusive, memory: 60 GiB, count: 2}")
    fleet.plan()
    with pytest.raises(FleetError) as caught:
        fleet.decide("GPU-h1-0", "mig")
    assert str(caught.value).startswith("llm-1 has no place any more: ")
    assert str(caught.value).endswith("make room, or let it stop: -e mode_outage=true")
    with pytest.raises(FleetError, match="llm-1 cannot leave h1: its place, whole on h1 GPU-h1-0,GPU-h1-1, is drained by this run"):
        fleet.decide("GPU-h1-0", "passthrough")
    turn = fleet.decide("GPU-h1-0", "mig", outage=True)
    assert (turn["stops"], turn["out"]) == (["llm-1"], ["llm-1"])
    assert turn["lines"][-2:] == ["h1: see that it is so, deploy", "h1: llm-1 has no place any more"]


def test_a_move_to_a_host_that_the_run_leaves_out_is_refused(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "h1", "h2", llm="{isolation: exclusive, memory: 60 GiB, count: 2}")
    fleet.plan()
    here = "h1" if fleet.hosts["h1"]["plan"]["services"] else "h2"
    assert here == "h1"
    assert fleet.decide("GPU-h1-0", "mig")["moves"] == ["llm-1 from h1 to h2"]
    with pytest.raises(FleetError, match="replicas would move from or to h2, and --limit leaves that out; leave out --limit"):
        fleet.decide("GPU-h1-0", "mig", reached=["h1"])


def test_nothing_is_due_when_the_gpu_has_its_mode_and_the_host_its_plan(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "h1", ocr="{memory: 8 GiB}")
    fleet.hosts["h1"]["policy"]["fleet_gpu_layouts"] = [{"gpu": "GPU-h1-0", "mode": "whole"}]
    fleet.plan()
    fleet.hosts["h1"]["facts"]["gpus"][1] = gpu_facts(1, slices="1g.10gb@6", drain=None)
    assert fleet.decide("GPU-h1-0", "whole", steps=())["due"] is False
    fleet.hosts["h1"]["facts"]["plan"]["state"] = "started"
    assert fleet.decide("GPU-h1-0", "whole", steps=())["due"] is True, "a run that was killed is finished"


def test_a_drain_that_a_killed_run_left_is_ended_though_nothing_else_is_to_do(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "h1")
    fleet.hosts["h1"]["policy"]["fleet_gpu_layouts"] = [{"gpu": "GPU-h1-0", "mode": "whole"}]
    fleet.plan()
    drain = {"by": "ann", "reason": mode.drain_reason("it was killed"), "since": "x", "until": None, "force": False}
    fleet.hosts["h1"]["facts"]["gpus"][0]["drain"] = drain
    assert fleet.decide("GPU-h1-0", "whole", steps=())["due"] is True
    assert mode.left_drained(fleet.hosts["h1"]["facts"], ["GPU-h1-0"]) == "ann"
    gone = {"gpus": [], "drains_idle": [{**drain, "gpu": "GPU-h1-0", "why": "gone"}]}
    assert mode.left_drained(gone, ["GPU-h1-0"]) == "ann", "also of a GPU that virtual machines have by now"
    assert mode.left_drained({"gpus": [{"uuid": "GPU-h1-0", "drain": {**drain, "reason": "fan"}}]}, ["GPU-h1-0"]) is None
