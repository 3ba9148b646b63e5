# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which plans a host takes, which it refuses and why, and what it then stops and forgets (docs/plan.md, "Rules")."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record as records
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

BY_HAND = "take it back from Git, or remove it and run playbook adopt; plans are not edited by hand"
A, B = "GPU-aaaa", "GPU-bbbb"
OFF = {"gpu": A, "mig": False, "instances": []}
CUT = {"gpu": A, "mig": True, "instances": ["1g.10gb@4", "3g.40gb@0"]}
LAYOUT: list[dict[str, t.Any]] = [
    {"gpu": A, "pci": "0000:07:00.0", "model": "a100-sxm4-80gb", "mode": "mig"},
    {"gpu": A, "profile": "3g.40gb", "start": 0},
    {"gpu": A, "profile": "1g.10gb", "start": 4},
]
OCR: dict[str, t.Any] = {
    "service": "ocr",
    "replica": 1,
    "gpu": A,
    "profile": "1g.10gb",
    "start": 4,
    "ports": {"http": 18000},
    "manifest": "sha256:1",
}
CHAT: dict[str, t.Any] = {
    "service": "chat",
    "replica": 1,
    "gpu": A,
    "profile": "3g.40gb",
    "start": 0,
    "ports": {"http": 18001},
    "manifest": "sha256:2",
}


def plan(serial: int = 3, layout: t.Any = None, services: t.Any = (OCR,), base: t.Any = (OFF,)) -> dict[str, t.Any]:
    layout = LAYOUT if layout is None else layout
    return {
        "plan": 1,
        "host": "gpu-1",
        "serial": serial,
        "digest": records.digest_of_plan(layout, services),
        "base": {"digest": records.digest_of_base(base), "gpus": list(base)},
        "layout": list(layout),
        "services": list(services),
    }


def carried(of: dict[str, t.Any], state: str = "done", standing: t.Any = ()) -> dict[str, t.Any]:
    return {"serial": of["serial"], "digest": of["digest"], "state": state, "services": of["services"], "standing": list(standing)}


def seen(*lines: dict[str, t.Any]) -> dict[str, dict[str, t.Any]]:
    return {line["gpu"]: line for line in lines}


def refused(call: t.Callable[[], object]) -> str:
    with pytest.raises(FleetError) as error:
        call()
    return str(error.value)


# Digests, the same on controller and host


FACTS: dict[str, t.Any] = {
    "uuid": A,
    "index": 0,
    "memory_used_mib": 5,
    "mig": {
        "current": True,
        "pending": True,
        "instances": [
            {"gi": 1, "profile": "1g.10gb", "start": 10, "ci": []},
            {"gi": 9, "profile": "3g.40gb", "start": 0, "ci": [{"id": 0, "uuid": "MIG-1"}]},
            {"gi": 2, "profile": "1g.10gb", "start": 9, "ci": []},
        ],
    },
}


def test_a_gpu_of_the_facts_becomes_a_line_of_the_base() -> None:
    assert records.state_of(FACTS) == {"gpu": A, "mig": True, "instances": ["3g.40gb@0", "1g.10gb@9", "1g.10gb@10"]}
    assert records.state_of({"uuid": B, "mig": None}) == {"gpu": B, "mig": False, "instances": []}
    assert records.state_of({"uuid": B, "mig": {"current": False, "instances": None}}) == {"gpu": B, "mig": False, "instances": []}


def test_the_digest_of_a_state_is_of_uuid_mode_and_slices_only() -> None:
    other = {"uuid": B, "mig": None}
    digest = records.digest_of_state([FACTS, other])
    assert digest == records.digest_of_state([other, {**FACTS, "memory_used_mib": 999, "index": 7}])
    assert digest == records.digest_of_base(
        [records.state_of(other), {**records.state_of(FACTS), "instances": ["1g.10gb@10", "1g.10gb@9", "3g.40gb@0"]}]
    )
    moved = {**FACTS, "mig": {**FACTS["mig"], "instances": FACTS["mig"]["instances"][:2]}}
    off = {**FACTS, "mig": {**FACTS["mig"], "current": False}}
    others = {records.digest_of_state([moved, other]), records.digest_of_state([off, other]), records.digest_of_state([FACTS])}
    assert len({digest, *others}) == 4
    assert digest.startswith("sha256:")
    assert len(digest) == 71


def test_the_digest_of_nothing_is_known_to_others() -> None:
    # printf '[]' | sha256sum: a canonical JSON list and nothing around it
    assert records.digest_of_state([]) == "sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"


def test_the_digest_of_a_plan_is_of_layout_and_services_and_their_order() -> None:
    assert records.digest_of_plan(LAYOUT, [OCR, CHAT]) != records.digest_of_plan(LAYOUT, [CHAT, OCR])
    assert records.digest_of_plan(LAYOUT, [OCR]) != records.digest_of_plan(LAYOUT[:2], [OCR])
    assert records.digest_of_plan(LAYOUT, [dict(reversed(OCR.items()))]) == records.digest_of_plan(tuple(LAYOUT), (OCR,))


# What a plan asks for


def test_a_plan_becomes_a_wish_for_each_gpu() -> None:
    whole = {"gpu": B, "pci": "0000:47:00.0", "model": "l40s", "mode": "whole"}
    empty = {"gpu": "GPU-c", "pci": "0000:48:00.0", "model": "h100", "mode": "mig"}
    assert records.wish_of(plan(layout=[whole, *LAYOUT, empty])) == [
        {"gpu": B, "mig": False, "instances": []},
        {"gpu": A, "mig": True, "instances": [{"profile": "3g.40gb", "start": 0}, {"profile": "1g.10gb", "start": 4}]},
        {"gpu": "GPU-c", "mig": True, "instances": []},
    ]


def test_the_gpus_that_a_host_must_look_at_are_those_of_base_and_layout() -> None:
    assert records.gpus_of(plan(base=[{"gpu": B, "mig": False, "instances": []}])) == [A, B]


@pytest.mark.parametrize(
    ("line", "device"),
    [
        (OCR, ((A,), "1g.10gb", 4)),
        ({"service": "x", "replica": 1, "gpu": B, "mode": "shared"}, ((B,), "shared", -1)),
        ({"service": "x", "replica": 1, "gpus": [B, A], "mode": "whole"}, ((A, B), "whole", -1)),
    ],
)
def test_the_device_of_a_service_is_its_slice_or_its_gpus(line: dict[str, t.Any], device: object) -> None:
    assert records.device_of(line) == device


def test_a_replica_is_named_and_known_as_managed_or_not() -> None:
    assert records.name_of(OCR) == "ocr-1"
    assert records.managed(OCR)
    assert records.managed({**OCR, "lifecycle": "managed"})
    assert not records.managed({**OCR, "lifecycle": "adopted"})


# Refusals


@pytest.mark.parametrize("key", ["plan", "host", "serial", "digest", "base", "layout", "services"])
def test_what_is_no_plan_is_refused(key: str) -> None:
    broken = plan()
    del broken[key]
    assert refused(lambda: records.check_plan(broken)) == f"this is not a host plan; it lacks {key}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"serial": "3"}, "serial: expected a whole number, found 3"),
        ({"serial": True}, "serial: expected a whole number, found True"),
        ({"base": None}, "base: expected digest and gpus"),
        ({"base": {"digest": "sha256:1"}}, "base: expected digest and gpus"),
        ({"base": {"digest": "sha256:1", "gpus": "all"}}, "base.gpus: expected a list of lines with gpu, instances, mig"),
        (
            {"base": {"digest": "sha256:1", "gpus": [{"gpu": A, "mig": True}]}},
            "base.gpus: expected a list of lines with gpu, instances, mig",
        ),
        ({"layout": None}, "layout: expected a list of lines with gpu"),
        ({"layout": [*LAYOUT, {"profile": "1g.10gb"}]}, "layout: expected a list of lines with gpu"),
        ({"services": ["ocr"]}, "services: expected a list of lines with replica, service"),
        ({"services": [{"service": "ocr", "replica": 1}]}, "services: expected gpu or gpus in every line"),
    ],
)
def test_what_cannot_be_read_as_a_plan_is_refused_by_field(change: dict[str, t.Any], message: str) -> None:
    assert refused(lambda: records.check_plan({**plan(), **change})) == f"{message}; {BY_HAND}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan": 2}, "plan: the plan has format 2 and this collection knows format 1"),
        (
            {"services": []},
            "digest: the plan's layout or services are not those that its digest was made from; " + BY_HAND,
        ),
        (
            {"base": {"digest": "sha256:0", "gpus": [OFF]}},
            "base.digest: the plan's base is not the one that its digest was made from; " + BY_HAND,
        ),
    ],
)
def test_a_plan_edited_by_hand_is_refused(change: dict[str, t.Any], message: str) -> None:
    assert refused(lambda: records.begin({**plan(), **change}, None, seen(OFF))) == message


def test_an_older_plan_is_refused_with_both_serials() -> None:
    assert refused(lambda: records.begin(plan(3), carried(plan(5)), seen(OFF))) == (
        "serial: this host carries plan serial 5, and the given plan is older: serial 3; plan again, or take the latest plan file"
    )


def test_another_plan_of_the_same_serial_is_refused() -> None:
    first, second = plan(3), plan(3, services=[OCR, CHAT])
    assert refused(lambda: records.begin(second, carried(first), seen(OFF))) == (
        f"serial: this host carries another plan of serial 3 ({first['digest'][:19]}, given: {second['digest'][:19]}); "
        "two plans were made from one; plan again"
    )


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (seen(CUT), f"{A} has MIG on with 3g.40gb@0, 1g.10gb@4, and the plan was made from MIG off with no slice"),
        (seen({**OFF, "mig": True}), f"{A} has MIG on with no slice, and the plan was made from MIG off"),
        ({}, f"{A} is not on this host"),
    ],
)
def test_a_host_that_drifted_says_what_differs(now: dict[str, t.Any], message: str) -> None:
    message = message.replace("MIG off with no slice", "MIG off")
    assert refused(lambda: records.begin(plan(), None, now)) == (
        f"base: this host is not as it was when the plan was made: {message}; plan again"
    )


def test_every_gpu_that_drifted_is_named() -> None:
    other = {"gpu": B, "mig": True, "instances": ["7g.80gb@0"]}
    given = plan(base=[OFF, other])
    words = refused(lambda: records.begin(given, None, seen({**CUT}, {**other, "instances": []})))
    assert words == (
        f"base: this host is not as it was when the plan was made: {A} has MIG on with 3g.40gb@0, 1g.10gb@4, "
        f"and the plan was made from MIG off; {B} has MIG on with no slice, and the plan was made from MIG on with 7g.80gb@0; plan again"
    )


def test_the_order_of_slices_is_no_drift() -> None:
    assert records.drift([CUT], seen({**CUT, "instances": ["3g.40gb@0", "1g.10gb@4"]})) == []


# Beginning and finishing


def test_a_first_plan_is_begun() -> None:
    given = plan()
    outcome = records.begin(given, None, seen(OFF))
    assert outcome == records.Outcome(True, carried(given, "started"), [], [], [], ["ocr-1"])


def test_replicas_that_stay_and_get_another_manifest_are_rolled_until_the_plan_is_done() -> None:
    before = plan(3, services=[OCR, CHAT])
    after = plan(4, services=[{**OCR, "manifest": "sha256:" + "f" * 64}, CHAT, {**OCR, "replica": 2, "start": 5}], base=[CUT])
    outcome = records.begin(after, carried(before), seen(CUT))
    assert (outcome.stop, outcome.rolled, outcome.new) == ([], ["ocr-1"], ["ocr-2"])
    again = records.begin(after, outcome.record, seen(CUT))
    assert (again.rolled, again.new) == (["ocr-1"], ["ocr-2"])
    assert records.begin(after, carried(after), seen(CUT)).rolled == []


def test_a_replica_that_moves_is_stopped_and_not_rolled() -> None:
    after = plan(4, services=[{**OCR, "start": 6, "manifest": "sha256:" + "f" * 64}], base=[CUT])
    outcome = records.begin(after, carried(plan(3, services=[OCR])), seen(CUT))
    assert (outcome.stop, outcome.rolled, outcome.new) == (["ocr-1"], [], [])


def test_the_plan_that_was_begun_repairs_whatever_the_host_looks_like_now() -> None:
    given, old = plan(3), {**OCR, "start": 5}
    record = carried(given, "started", [old, CHAT])
    assert records.begin(given, record, seen(CUT)) == records.Outcome(True, record, ["chat-1", "ocr-1"], ["chat-1"], [], [])
    assert records.begin(given, record, {}).needed


def test_the_plan_that_was_carried_out_needs_nothing() -> None:
    given = plan(3)
    assert records.begin(given, carried(given), {}) == records.Outcome(False)
    assert records.finish(given, carried(given), {}) == records.Outcome(False)


def test_a_newer_plan_stops_what_moves_and_what_left() -> None:
    before = plan(3, services=[OCR, CHAT, {**OCR, "replica": 2, "start": 5}])
    after = plan(4, services=[{**OCR, "start": 6}, {**OCR, "replica": 2, "start": 5, "ports": {"http": 1}}], base=[CUT])
    outcome = records.begin(after, carried(before), seen(CUT))
    assert (outcome.stop, outcome.gone) == (["chat-1", "ocr-1"], ["chat-1"])
    assert outcome.record == carried(after, "started", before["services"])


def test_a_newer_plan_than_one_that_was_never_finished_remembers_both() -> None:
    first, second = plan(3, services=[OCR]), plan(4, services=[CHAT], base=[CUT])
    outcome = records.begin(second, carried(first, "started", [{**OCR, "replica": 9}]), seen(CUT))
    assert outcome.gone == ["ocr-1", "ocr-9"]
    assert outcome.record is not None
    assert outcome.record["standing"] == [{**OCR, "replica": 9}, OCR]


def test_adopting_a_host_as_it_is_records_nothing() -> None:
    adopted = plan(1, services=[{**OCR, "lifecycle": "adopted"}], base=[CUT])
    assert records.begin(adopted, None, seen(CUT)) == records.Outcome(False)
    assert records.finish(adopted, None, seen(CUT)) == records.Outcome(False)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(plan(1, services=[OCR], base=[CUT]), id="a service is to be started"),
        pytest.param(plan(1, services=[], layout=LAYOUT[:2], base=[CUT]), id="a slice is to go"),
        pytest.param(plan(1, services=[], layout=[{"gpu": A, "mode": "whole"}], base=[CUT]), id="MIG is to go off"),
        pytest.param(plan(1, services=[], layout=[*LAYOUT, {"gpu": B, "mode": "whole"}], base=[CUT]), id="a GPU is not there"),
    ],
)
def test_a_plan_that_changes_something_is_recorded(given: dict[str, t.Any]) -> None:
    assert records.begin(given, None, seen(CUT)).needed


def test_a_host_that_carries_a_plan_records_the_next_one_even_if_it_changes_nothing() -> None:
    adopted = plan(4, services=[], base=[CUT])
    outcome = records.begin(adopted, carried(plan(3)), seen(CUT))
    assert outcome.record == carried(adopted, "started", [OCR])
    assert (outcome.stop, outcome.gone) == (["ocr-1"], ["ocr-1"])


def test_a_service_that_was_managed_and_is_now_adopted_is_not_stopped() -> None:
    given = plan(4, services=[{**OCR, "lifecycle": "adopted"}], base=[CUT])
    outcome = records.begin(given, carried(plan(3)), seen(CUT))
    assert (outcome.stop, outcome.gone) == ([], [])
    assert outcome.record is not None
    assert outcome.record["services"] == []


def test_a_plan_that_was_begun_is_finished() -> None:
    given = plan(3)
    outcome = records.finish(given, carried(given, "started", [CHAT]), seen(CUT))
    assert outcome == records.Outcome(True, carried(given), [], [])


def test_a_plan_that_was_not_begun_cannot_be_finished() -> None:
    words = "serial: plan serial 4 was not begun on this host; record it with state: begun first"
    assert refused(lambda: records.finish(plan(4), carried(plan(3)), seen(OFF))) == words
    assert refused(lambda: records.finish(plan(4), None, seen(OFF))) == words
    assert "older" in refused(lambda: records.finish(plan(2), carried(plan(3)), seen(OFF)))


# On disk


def test_a_record_is_kept_on_the_host(tmp_path: Path) -> None:
    assert records.read(tmp_path) is None
    assert records.summary(None) is None
    record = carried(plan(3), "started", [CHAT])
    records.write(tmp_path, record)
    assert records.read(tmp_path) == record
    assert records.path_in(tmp_path) == tmp_path / "plan.json"
    assert records.summary(record) == {"serial": 3, "digest": record["digest"], "state": "started"}


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"serial": 3, "digest": "x"}')
    assert refused(lambda: records.read(tmp_path)) == (
        f"{tmp_path / 'plan.json'}: this file is not the record of a plan; it lacks state, services, standing"
    )
