# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What changes between two planning runs, and the child pipeline, widget and page that come of it."""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import pipeline_page
from ansible_collections.gpuops.fleet.plugins.plugin_utils.gateway import read_settings
from ansible_collections.gpuops.fleet.plugins.plugin_utils.pipeline import (
    Changes,
    Pending,
    Service,
    compare,
    now_pending,
    pending_text,
    read_pending,
    still_pending,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.pipeline_jobs import TEMPLATES, Settings, child_pipeline, variables_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import Turns

ROOT = Path(__file__).resolve().parents[2]
CHILD = ROOT / "ci" / "child.yml"
PAGE = ROOT / "plugins" / "plugin_utils" / "data" / "preview.html.j2"


def line(service: str, replica: int = 1, gpu: str = "GPU-a", start: int = 0, version: str = "1", **more: t.Any) -> dict[str, t.Any]:
    return {
        "service": service,
        "replica": replica,
        "gpu": gpu,
        "profile": "1g.10gb",
        "start": start,
        "ports": {"http": 18000 + start},
        "manifest": "sha256:" + version * 64,
        **more,
    }


def plan(*lines: dict[str, t.Any], serial: int = 1) -> dict[str, t.Any]:
    layout: list[dict[str, t.Any]] = [{"gpu": gpu, "mode": "mig"} for gpu in sorted({each["gpu"] for each in lines})]
    layout += [{"gpu": each["gpu"], "profile": each["profile"], "start": each["start"]} for each in lines]
    digest = json.dumps([layout, lines])
    return {"serial": serial, "digest": digest, "layout": layout, "services": list(lines)}


def service(name: str, environment: str = "staging", **more: t.Any) -> Service:
    return Service(name, "claims", environment, ports=("http",), settings={"route": None}, **more)


def services(*names: str, environment: str = "staging") -> dict[str, Service]:
    return {name: service(name, environment) for name in names}


def compared(last: dict[str, t.Any], new: dict[str, t.Any], environment: str = "staging", **more: t.Any) -> Changes:
    def known(plans: dict[str, t.Any]) -> dict[str, Service]:
        return services(*{each["service"] for one in plans.values() for each in one["services"]}, environment=environment)

    return compare(last, new, known(last), known(new), **more)


def child(changes: Changes, plans: dict[str, t.Any], **settings: t.Any) -> dict[str, t.Any]:
    text = child_pipeline(changes, plans, (str(CHILD), CHILD.read_text(encoding="utf-8")), Settings(**settings))
    data: dict[str, t.Any] = yaml.safe_load(text)
    return data


def jobs(data: dict[str, t.Any]) -> list[str]:
    """Names of jobs that run, in the order of the file."""
    head = ("stages", "variables", "frozen")
    return [name for name in data if not name.startswith((".", "stop ", "rollback ")) and name not in head]


def needs(data: dict[str, t.Any], job: str) -> set[str]:
    return {each["job"] for each in data[job]["needs"] if "pipeline" not in each}


def test_nothing_changed_is_one_job_and_no_count() -> None:
    plans = {"h1": plan(line("a"))}
    changes = compared(plans, plans)
    assert changes.widget() == {"create": 0, "update": 0, "delete": 0}
    assert jobs(child(changes, plans)) == ["nothing to deploy"]


def test_a_new_a_changed_and_a_removed_replica_are_counted_and_have_jobs() -> None:
    last = {"h1": plan(line("old")), "h2": plan(line("kept"), line("up", start=1))}
    new = {"h1": plan(line("fresh")), "h2": plan(line("kept"), line("up", start=1, version="2"))}
    changes = compared(last, new)
    assert changes.widget() == {"create": 1, "update": 1, "delete": 1}
    data = child(changes, new)
    assert jobs(data) == ["carry out h1", "deploy fresh on h1", "remove old from h1", "deploy up on h2"]
    # Two services change on h1: its plan is carried out once, and their own jobs come after.
    assert needs(data, "deploy fresh on h1") == needs(data, "remove old from h1") == {"carry out h1"}
    assert data["remove old from h1"]["environment"] == {"name": "staging/old/h1", "action": "stop"}


def test_a_service_goes_from_host_to_host_one_at_a_time() -> None:
    last = {host: plan(line("a", number)) for number, host in enumerate(("h1", "h2", "h3"), start=1)}
    new = {host: plan(line("a", number, version="2")) for number, host in enumerate(("h1", "h2", "h3"), start=1)}
    data = child(compared(last, new), new)
    assert needs(data, "deploy a on h1") == set()
    assert needs(data, "deploy a on h2") == {"deploy a on h1"}
    assert needs(data, "deploy a on h3") == {"deploy a on h2"}


def test_a_replica_that_moves_leaves_when_it_is_there() -> None:
    last, new = {"h1": plan(line("a")), "h2": plan()}, {"h1": plan(), "h2": plan(line("a"))}
    changes = compared(last, new)
    assert changes.widget() == {"create": 0, "update": 1, "delete": 0}
    data = child(changes, new)
    assert needs(data, "remove a from h1") == {"deploy a on h2"}
    assert data["remove a from h1"]["stage"] == "after"


def test_a_replica_that_moves_is_there_first_also_where_others_of_the_service_stay() -> None:
    last, new = {"h1": plan(line("a"), line("a", 2, start=4))}, {"h1": plan(line("a")), "h2": plan(line("a", 2, start=4))}
    data = child(compared(last, new), new)
    assert needs(data, "deploy a on h2") == set()
    assert needs(data, "deploy a on h1") == {"deploy a on h2"}


def test_a_replica_that_moves_is_there_first_also_where_another_service_is_on_both_hosts() -> None:
    last = {"h1": plan(line("a"), line("b", start=4)), "h2": plan(line("b", 2))}
    new = {
        "h1": plan(line("b", start=4, version="2")),
        "h2": plan(line("a", start=4), line("b", 2, version="2")),
        "h3": plan(line("b", 3)),
    }
    data = child(compared(last, new), new)
    assert needs(data, "carry out h2") == set()
    assert needs(data, "deploy b on h3") == {"carry out h2"}
    # Still one host after the other, those that wait for others last.
    assert needs(data, "carry out h1") == {"carry out h2", "deploy b on h3"}


def test_requests_go_to_the_new_place_of_a_replica_before_it_leaves_the_old_one() -> None:
    last = {"h1": plan(line("a")), "h2": plan(), "h3": plan(line("gone"))}
    new = {"h1": plan(), "h2": plan(line("a")), "h3": plan()}
    data = child(compared(last, new), new, gateways=True)
    assert needs(data, "gateways") == {"deploy a on h2", "remove gone from h3"}
    assert needs(data, "remove a from h1") == {"deploy a on h2", "gateways"}
    assert needs(data, "remove gone from h3") & {"gateways"} == set()


def test_services_that_change_places_wait_in_no_circle() -> None:
    last, new = {"h1": plan(line("a")), "h2": plan(line("b"))}, {"h1": plan(line("b")), "h2": plan(line("a"))}
    data = child(compared(last, new), new)
    edges = {job: needs(data, job) for job in jobs(data)}
    reached: set[str] = set()
    while left := [job for job in edges if job not in reached and edges[job] <= reached]:
        reached.update(left)
    assert reached == set(edges)


def test_production_waits_for_a_person_and_so_does_what_nobody_knows_any_more() -> None:
    new = {"h1": plan(line("a"))}
    assert "approve a" in jobs(child(compared({}, new, "production"), new))
    assert "approve a" not in jobs(child(compared({}, new, "staging"), new))
    gone = compare(new, {"h1": plan()}, {}, {})
    assert needs(child(gone, {"h1": plan()}), "remove a from h1") == {"approve a"}
    assert "approve a" in jobs(child(compared({}, new, "staging"), new, gated=["staging"]))


def test_a_change_of_route_alone_is_seen_and_deployed() -> None:
    plans = {"h1": plan(line("a"))}
    other = Service("a", "claims", "staging", settings={"route": {"rate": 5}})
    changes = compare(plans, plans, services("a"), {"a": other})
    assert changes.widget()["update"] == 1
    assert changes.work[0].why == "other route: nothing is restarted"
    assert jobs(child(changes, plans)) == ["deploy a on h1"]


def test_who_moves_and_gets_another_route_is_not_said_to_go_on() -> None:
    other = Service("a", "claims", "staging", settings={"route": {"rate": 5}})
    changes = compare({"h1": plan(line("a"))}, {"h2": plan(line("a"))}, services("a"), {"a": other})
    assert {replica.why for replica in changes.replicas} == {"moves to h2, other route"}


def test_adopted_services_get_no_job() -> None:
    changes = compared({}, {"h1": plan(line("a", lifecycle="adopted"))})
    assert changes.work == ()
    assert list(changes.layouts) == ["h1"]


def test_slices_alone_are_a_job_of_their_host() -> None:
    last, new = {"h1": plan(line("a"))}, {"h1": plan(line("a"))}
    new["h1"]["layout"] = [*new["h1"]["layout"], {"gpu": "GPU-b", "mode": "mig"}]
    changes = compared(last, new)
    assert jobs(child(changes, new)) == ["partition h1"]
    assert changes.gpus == (("h1", "GPU-b", "", "mig"),)


def test_a_host_that_is_down_gets_no_job() -> None:
    new = {"h1": plan(line("a")), "h2": plan(line("b"))}
    assert jobs(child(compared({}, new, down=["h1"]), new)) == ["deploy b on h2"]


def test_every_service_has_a_job_where_everything_is_asked_for() -> None:
    plans = {"h1": plan(line("a"))}
    assert jobs(child(compared(plans, plans, everything=True), plans)) == ["deploy a on h1"]


def record(plan_: dict[str, t.Any], state: str = "done", **more: t.Any) -> dict[str, t.Any]:
    return {"plan": {"serial": plan_["serial"], "digest": plan_["digest"], "state": state, **more}}


def test_what_was_given_and_not_done_is_given_again_until_the_host_is_done() -> None:
    last = {"h1": plan(line("a"))}
    waits: Pending = {"h1": {"a": {"team": "claims", "environment": "production"}}}
    assert still_pending(waits, last, {"h1": record(last["h1"], "started")}, {}) == waits
    assert still_pending(waits, last, {"h1": record(last["h1"], serial=0, digest="older")}, {}) == waits
    assert still_pending(waits, last, {"h1": record(last["h1"])}, {}) == {}
    changes = compared(last, last, pending=waits)
    assert [(work.service, work.kind) for work in changes.work] == [("a", "deploy")]
    assert now_pending(waits, changes) == {"h1": {"a": {"team": "claims", "environment": "staging"}}}


@pytest.mark.parametrize(
    "found",
    [{"plan": None}, {"plan": {"serial": 9, "digest": "x", "state": "done"}}, {"plan": {"serial": 1, "digest": "x", "state": "done"}}],
)
def test_a_host_that_carries_no_plan_of_ours_gets_everything(found: dict[str, t.Any]) -> None:
    last = {"h1": plan(line("a"), line("b", start=1))}
    assert sorted(still_pending({}, last, {"h1": found}, services("a", "b"))["h1"]) == ["a", "b"]


def test_a_host_that_was_not_read_keeps_what_waits() -> None:
    last = {"h1": plan(line("a"))}
    assert still_pending({}, last, {"h1": None}, {}) == {}


def test_a_removal_that_was_not_done_is_given_again() -> None:
    empty = {"h1": plan()}
    changes = compare(empty, empty, {}, {}, {"h1": {"a": {"team": "claims", "environment": "staging"}}})
    assert jobs(child(changes, empty)) == ["remove a from h1"]


def test_pending_comes_back_as_it_was_written() -> None:
    waits: Pending = {"h1": {"b": {"team": "", "environment": ""}, "a": {"team": "claims", "environment": "staging"}}, "h2": {}}
    text = pending_text(waits)
    assert read_pending("pending.yml", text) == {"h1": waits["h1"]}
    assert read_pending("pending.yml", pending_text({})) == read_pending("pending.yml", None) == {}
    with pytest.raises(FleetError, match=r"pending.yml:1: pending: unknown value 2"):
        read_pending("pending.yml", "pending: 2\nhosts: {}\n")


def test_the_same_input_gives_the_same_bytes_in_whatever_order_it_comes() -> None:
    last = {"h1": plan(line("a")), "h2": plan(line("b"))}
    new = {"h2": plan(line("b", version="2"), line("c", start=1)), "h1": plan()}
    template = (str(CHILD), CHILD.read_text(encoding="utf-8"))
    one = child_pipeline(compared(last, new), new, template, Settings(parent="7"))
    other = dict(reversed(list(last.items()))), dict(reversed(list(new.items())))
    assert child_pipeline(compared(*other), other[1], template, Settings(parent="7")) == one


def test_jobs_say_plan_host_and_service_and_take_the_parents_artifacts() -> None:
    new = {"h1": plan(line("a"), serial=4)}
    data = child(compared({}, new), new, parent="77", variables={"FLEET_INVENTORY": "inventory/hosts.yml"})
    job = data["deploy a on h1"]
    assert job["variables"] == {"FLEET_SERVICE": "a", "FLEET_HOST": "h1", "FLEET_PLAN": "4", "FLEET_WHY": "new"}
    assert job["needs"] == [{"pipeline": "77", "job": "plan"}]
    assert job["resource_group"] == "fleet/h1"
    assert data["variables"] == {"FLEET_INVENTORY": "inventory/hosts.yml"}
    assert data["stop a on h1"]["environment"] == {"name": job["environment"]["name"], "action": "stop"}
    assert "gateways" not in data
    assert needs(child(compared({}, new), new, gateways=True), "gateways") == {"deploy a on h1"}


DOMAIN = {"domain": "models.example.com", "certificate": "/etc/ssl/models.pem"}


@pytest.mark.parametrize(
    ("route", "gateway", "name", "address"),
    [
        (None, {}, "", "http://h1:18000/"),
        ({"host": None, "path": None}, {}, "", "http://h1:18000/"),
        ({"host": None, "path": None}, DOMAIN, "", "https://a.models.example.com/"),
        ({"host": None, "path": None}, {**DOMAIN, "certificate": "", "http_port": 8080}, "", "http://a.models.example.com:8080/"),
        ({"host": "ocr.example.com", "path": None}, {}, "", "http://ocr.example.com/"),
        ({"host": None, "path": "/ocr"}, DOMAIN, "", "https://models.example.com/ocr"),
        ({"host": None, "path": "/ocr"}, {**DOMAIN, "name": "gw.example.com", "https_port": 8443}, "", "https://gw.example.com:8443/ocr"),
        ({"host": None, "path": None}, {}, "gateway-01", "http://gateway-01/a"),
    ],
)
def test_an_environment_leads_to_where_the_service_answers(
    route: dict[str, t.Any] | None, gateway: dict[str, t.Any], name: str, address: str
) -> None:
    new = {"h1": plan(line("a"))}
    changes = compare({}, new, {}, {"a": service("a", route=route)})
    found = child(changes, new, gateway=read_settings(gateway), own_name=name)["deploy a on h1"]["environment"]["url"]
    assert found == address


def test_a_template_that_lacks_a_job_or_has_one_of_ours_is_refused() -> None:
    new = {"h1": plan(line("a"))}
    with pytest.raises(FleetError, match=r"the hidden job '\.fleet-deploy' is missing"):
        child_pipeline(compared({}, new), new, ("jobs.yml", "stages: [deploy]\n"), Settings())
    text = CHILD.read_text(encoding="utf-8") + "deploy a on h1:\n  script: [x]\n"
    with pytest.raises(FleetError, match="a job of this name is generated"):
        child_pipeline(compared({}, new), new, ("jobs.yml", text), Settings())
    with pytest.raises(FleetError, match="not variables of a pipeline"):
        variables_of({"A": ["b"]})
    assert len(TEMPLATES) == 10


def test_the_page_escapes_what_people_wrote_and_fetches_nothing() -> None:
    evil = "<script>alert(1)</script>"
    last = {"h1": plan(line("a")), "h2": plan(line("k"))}
    changes = compare(last, {"h1": plan(line("a", version="2")), "h2": plan(line("k"))}, {}, {"a": Service("a", evil, '"><img src=x>')})
    data = pipeline_page.page_data(changes, [{"service": "b", "replica": 1, "reason": evil}], [evil])
    page = pipeline_page.render(PAGE.read_text(encoding="utf-8"), data, title=evil, generated=evil)
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    assert "src=" not in page.replace("&#34;&gt;&lt;img src=x&gt;", "")
    assert "a-1" in page
    assert "1 as they are" in page


def test_markdown_takes_what_people_wrote_as_text_and_keeps_one_line_a_replica() -> None:
    evil = "<img src=x> | **bold**\n[link](http://x) @all #1"
    last = {"h1": plan(line("a"))}
    changes = compare(last, {"h1": plan(line("a", version="2"), line("b", start=4))}, {}, {})
    data = pipeline_page.page_data(changes, [{"service": "c", "replica": 1, "reason": evil}], [evil], reasons={"b-1": evil})
    text = pipeline_page.markdown(data, title=evil)
    for sign in ("<img", "[link]", "**bold**", " @all", " #1"):
        assert sign not in text
    rows = [each for each in text.splitlines() if each.startswith("| ") and "-1 " in each]
    assert [each.split(" | ")[:2] for each in rows] == [["| b-1", "new"], ["| a-1", "changed"]]
    assert all(len(re.findall(r"(?<!\\)\|", each)) == 6 for each in rows)
    assert "1 replica new, 1 changed, 0 removed, 0 as they are, 1 without a place." in text


def test_the_reason_of_a_new_place_stands_beside_what_changes() -> None:
    changes = compared({}, {"h1": plan(line("a"), line("b", start=4))})
    rows = pipeline_page.page_data(changes, [], [], reasons={"a-1": "the only GPU with room for it"})["changed"]
    assert [row["why"] for row in rows] == ["new; the only GPU with room for it", "new"]


def test_who_goes_is_not_wanted_any_more_or_has_no_place() -> None:
    last = {"h1": plan(line("a"), line("b", start=4))}
    changes = compare(last, {"h1": plan()}, {}, {}, unplaced={("a", 1)})
    assert {replica.name: replica.why for replica in changes.replicas} == {"a-1": "has no place any more", "b-1": "not wanted any more"}


def test_who_loses_its_place_comes_before_the_changes_and_who_has_none_anyway_after_them_in_one_line() -> None:
    changes = compare({"h1": plan(line("a"))}, {"h1": plan(line("b"))}, {}, {}, unplaced={("a", 1)})
    waiting = [{"service": "c", "replica": number, "reason": "h1: no room"} for number in (1, 2, 3, 5)]
    data = pipeline_page.page_data(changes, [{"service": "a", "replica": 1, "reason": "it gave way to b-1"}, *waiting], ["a remark"])
    text = pipeline_page.markdown(data, title="Preview").splitlines()
    assert [each for each in text if each.startswith(("#", "- "))] == [
        "## Preview",
        "### Lose their place",
        "- **a** replica 1: it gave way to b-1",
        "### Changes",
        "### Without a place",
        "- **c** replicas 1 to 3, 5: h1: no room",
        "### Remarks",
        "- a remark",
    ]


def test_the_order_of_those_who_leave_places_and_who_stops_meanwhile_are_shown() -> None:
    step, reason = "move a-1 from h1 GPU-1 to h2 GPU-2", "it moves <within> h1"
    turns = Turns((step,), ({"service": "b", "replica": 2, "reason": reason},))
    for told in (turns, None):
        data = pipeline_page.page_data(compare({}, {}, {}, {}), [], [], turns=told)
        page = pipeline_page.render(PAGE.read_text(encoding="utf-8"), data, title="")
        text = pipeline_page.markdown(data, title="")
        for shown in (
            f"<li>{step}</li>" in page,
            "it moves &lt;within&gt; h1" in page,
            f"1. {step}" in text,
            "- **b** replica 2: it moves" in text,
        ):
            assert shown == (told is not None)


def test_who_stands_where_it_cannot_stay_is_not_counted_as_it_is() -> None:
    here = {"h1": plan(line("a"), line("b", start=4))}
    data = pipeline_page.page_data(compare(here, here, {}, {}), [{"service": "a", "replica": 1, "reason": "h1: down"}], [])
    assert data["summary"] == "0 replicas new, 0 changed, 0 removed, 1 as they are, 1 without a place"
    assert [count for _word, _action, count in data["counts"]] == [0, 0, 0, 1]


def test_the_log_says_the_same_in_lines() -> None:
    changes = compared({}, {"h1": plan(line("a"))})
    told = pipeline_page.lines(changes, [{"service": "b", "replica": 2, "reason": "no GPU"}])
    assert told[-2:] == ["no place for b replica 2: no GPU", "1 replica new, 0 changed, 0 removed, 0 as they are, 1 without a place"]
    assert told[1].split()[:2] == ["new", "a-1"]
    with pytest.raises(FleetError, match="cannot be rendered"):
        pipeline_page.render("{{ nothing }}", {}, title="")
