# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which version a rollback goes to, and what took how long."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.deploying import rollout_times
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.rolling_back import back_to
from ansible_collections.gpuops.fleet.tests.unit.decide_world import manifest_text

Data = dict[str, t.Any]


def text(letter: str) -> str:
    return manifest_text("ocr", image=f"registry.example.com/ocr@sha256:{letter * 64}")


def version(number: int, letter: str, outcome: str, file: str | None = "team/ocr.yml", known: bool = True) -> Data:
    body = text(letter)
    digest = read_manifest("x", body).digest()
    manifest = {"file": file, "text": body if known else None}
    since = f"2026-11-21T0{number}:00:00Z"
    return {
        "number": number,
        "digest": digest,
        "image": "i",
        "by": "alice",
        "since": since,
        "outcome": outcome,
        "reason": "",
        "manifest": manifest,
    }


def kept(*versions: Data, host: str = "h1", replica: str = "ocr-1") -> dict[str, dict[str, Data]]:
    return {host: {replica: {"versions": list(versions), "serving": None}}}


def now(letter: str) -> list[tuple[str, str]]:
    return [("/fleet/manifests/ocr.yml", text(letter)), ("/fleet/manifests/face.yml", manifest_text("face"))]


def letter_of(found: str) -> str:
    return found.partition("@sha256:")[2][0]


@pytest.mark.parametrize(
    ("letter", "versions", "expected"),
    [
        ("b", [version(1, "a", "replaced"), version(2, "b", "serving")], "a"),
        ("c", [version(1, "a", "replaced"), version(2, "b", "serving"), version(3, "c", "failed")], "b"),
        ("b", [version(1, "a", "replaced"), version(2, "b", "serving"), version(3, "c", "rolled-back")], "a"),
        ("d", [version(1, "a", "replaced"), version(2, "b", "serving")], "b"),
    ],
    ids=[
        "the one before",
        "what serves, when the manifest's failed",
        "never forward to what was left",
        "what serves, when the manifest's is new",
    ],
)
def test_it_goes_to_the_newest_that_served_and_is_not_asked_for_now(letter: str, versions: list[Data], expected: str) -> None:
    back = back_to("ocr", None, kept(*versions), now(letter), "/fleet/manifests")
    assert (letter_of(back.text), back.file) == (expected, "/fleet/manifests/ocr.yml")


def test_a_version_is_named_by_its_number_or_its_digest() -> None:
    three = [version(1, "a", "replaced"), version(2, "b", "failed"), version(3, "c", "serving")]
    assert letter_of(back_to("ocr", "2", kept(*three), now("c"), "/m").text) == "b"
    digest = three[0]["digest"][:19]
    assert letter_of(back_to("ocr", digest, kept(*three), now("c"), "/m").text) == "a"
    with pytest.raises(FleetError, match=r"there is no version 9 of ocr: kept are 3 \(sha256:"):
        back_to("ocr", "9", kept(*three), now("c"), "/m")


def test_a_number_that_is_not_the_same_version_everywhere_is_refused() -> None:
    both = {**kept(version(1, "a", "replaced")), **kept(version(1, "b", "serving"), host="h2")}
    with pytest.raises(
        FleetError, match=r"version 1 of ocr is not the same everywhere: .*ocr-1 on h1.*ocr-1 on h2.*; name it by its digest: -e to=sha256:"
    ):
        back_to("ocr", "1", both, now("b"), "/m")


def test_a_service_whose_manifest_was_removed_gets_its_file_back_below_the_manifests() -> None:
    back = back_to("ocr", None, kept(version(1, "a", "serving")), [], "/fleet/manifests")
    assert back.file == "/fleet/manifests/team/ocr.yml"
    with pytest.raises(FleetError, match="take it out of Git"):
        back_to("ocr", None, kept(version(1, "a", "serving", file="../../etc/cron.d/x")), [], "/fleet/manifests")


A, B = (f"registry.example.com/ocr@sha256:{letter * 64}" for letter in "ab")


def of(number: int, body: str, outcome: str = "replaced") -> Data:
    return {**version(number, "a", outcome), "digest": read_manifest("x", body).digest(), "manifest": {"file": "ocr.yml", "text": body}}


def after(old: str, new: str | None) -> tuple[t.Any, str]:
    """Manifest and line of a rollback from ``new``, or from nothing, to ``old``."""
    texts = [] if new is None else [("/m/ocr.yml", new)]
    back = back_to("ocr", "1", kept(of(1, old)), texts, "/m")
    return read_manifest("x", back.text).model, back.line


def test_a_rollback_does_not_open_what_was_closed_since() -> None:
    then = manifest_text("ocr", image=A, route="{keys: false}", replicas="3", lease="{days: 300}")
    model, line = after(then, manifest_text("ocr", image=B, route="{rate: 5}", lease="{days: 2}"))
    assert (model.image, model.route.keys, model.route.teams, model.route.rate) == (A, True, [], 5)
    assert (model.replicas, model.lease.days) == (1, 2)
    assert line.endswith("; these stay as they are now: lease, replicas, route")
    model, line = after(then, manifest_text("ocr", image=B))
    assert (model.route, model.lease) == (None, None)


def test_the_bytes_of_an_owner_stay_where_nothing_else_changed() -> None:
    then = "# ours\n" + manifest_text("ocr", image=A, replicas="1 # one").replace("ports:", "\n# one port\nports:")
    now = then.replace(A, B)
    assert back_to("ocr", "1", kept(of(1, then)), [("/m/ocr.yml", now)], "/m").text == then
    more = now.replace("replicas: 1 # one", "# two since May\nreplicas: 2")
    assert back_to("ocr", "1", kept(of(1, then)), [("/m/ocr.yml", more)], "/m").text == more.replace(B, A)


def test_a_manifest_that_is_not_one_field_a_line_goes_back_as_well() -> None:
    whole = (
        f"{{schema: 1, service: ocr, team: claims, environment: production, image: '{A}', "
        "gpu: {memory: 8 GiB}, ports: [{name: http, container: 8080}], priority: 7}"
    )
    model, _line = after(whole, manifest_text("ocr", image=B, description="'8.03e9'"))
    assert (model.image, model.priority, model.description) == (A, 50, "8.03e9")


def test_how_a_version_proves_itself_goes_back_with_it_and_how_it_gives_way_does_not() -> None:
    then = manifest_text("ocr", image=A, health="{port: http}", rollout="{timeout: 1800, drain: 5, warm_up: {path: /old}}")
    now = manifest_text("ocr", image=B, health="{port: http}", rollout="{settle: 60, way: stop-first, warm_up: {path: /new}}")
    model, line = after(then, now)
    rollout = model.rollout
    assert (rollout.timeout, rollout.settle, rollout.warm_up.path, rollout.drain, rollout.way) == (1800, 10, "/old", 30, "stop-first")
    assert line.endswith("; these stay as they are now: rollout; these go back with it: rollout.timeout, rollout.settle, rollout.warm_up")


def test_a_route_to_a_port_that_the_version_did_not_have_leads_to_the_one_that_it_had() -> None:
    then = manifest_text("ocr", image=A, ports="[{name: api, container: 1}]", route="{port: api, keys: false}")
    model, line = after(then, manifest_text("ocr", image=B, route="{rate: 5}"))
    assert (model.route.port, model.route.keys, model.route.rate) == ("api", True, 5)
    assert "its route leads to the port 'api' again" in line
    with pytest.raises(FleetError, match="version 1 has no port 'http', which the route of now needs"):
        after(manifest_text("ocr", image=A, ports="[{name: api, container: 1}]"), manifest_text("ocr", image=B, route="{}"))


def test_without_a_manifest_what_was_said_last_of_the_route_counts() -> None:
    then = manifest_text("ocr", image=A, route="{keys: false}")
    last, failed = manifest_text("ocr", image=B, route="{}"), manifest_text("ocr", image=B, gpu="{memory: 9 GiB}", route="{keys: false}")
    versions = kept(of(1, then), of(2, last, "serving"), of(3, failed, "failed"))
    route = read_manifest("x", back_to("ocr", "1", versions, [], "/m").text).model.route
    assert route is not None
    assert route.keys


def test_what_nobody_kept_cannot_be_gone_back_to() -> None:
    with pytest.raises(FleetError, match="there is no earlier version of ocr: kept are 1"):
        back_to("ocr", None, kept(version(1, "a", "serving")), now("a"), "/m")
    with pytest.raises(FleetError, match="nobody kept the manifest of version 1 of ocr"):
        back_to("ocr", None, kept(version(1, "a", "serving", known=False)), now("b"), "/m")
    with pytest.raises(FleetError, match="no host keeps a version of face"):
        back_to("face", None, kept(version(1, "a", "serving")), now("b"), "/m")


def test_the_first_answer_counts_from_the_begin_of_the_play() -> None:
    steps = [
        ("surge", 4.0),
        ("running", 0.5),
        ("healthy", 2.0),
        ("probe", 0.1),
        ("warm_up", 1.4),
        ("settle", 10.0),
        ("drain", 3.0),
        ("start", 6.0),
    ]
    row = {
        "service": "ocr",
        "replica": 1,
        "way": "side-by-side",
        "outcome": "serving",
        "began": "2026-11-21T12:00:10Z",
        "ended": "2026-11-21T12:00:40Z",
        "steps": [{"step": name, "seconds": seconds} for name, seconds in steps],
    }
    (line,) = rollout_times({"h1": [row]}, "2026-11-21T12:00:00Z")
    assert line.startswith("ocr-1 on h1: side-by-side, serving after 30 s (surge 4.0, running 0.5, ")
    assert line.endswith("; first answer 18 s after the play began")
    (line,) = rollout_times({"h1": [{**row, "outcome": "kept"}]}, "2026-11-21T12:00:00Z")
    assert "first answer" not in line
