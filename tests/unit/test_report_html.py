# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report's page: what it says, that it is whole, safe, still and readable."""

from __future__ import annotations

import dataclasses
import itertools
import re
import typing as t
from html.parser import HTMLParser
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report import Inputs, Policy, build
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_gpu import Block, Tenant
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_html import (
    TEMPLATE,
    compute_parts,
    details,
    fleet_parts,
    gib,
    holder,
    percent,
    plural,
    render,
    span,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_plan import Service
from ansible_collections.gpuops.fleet.tests.tools import report_fleet as world

SOURCE = (Path(__file__).parents[2] / "plugins/plugin_utils/data" / TEMPLATE).read_text(encoding="utf-8")
VOID = {"meta", "br", "hr", "img", "input", "link", "col"}


class Page(HTMLParser):
    """A page as a flat list of elements with their attributes, ancestors and text; complains about what does not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[dict[str, t.Any]] = []
        self.elements: list[dict[str, t.Any]] = []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = {"tag": tag, "attrs": dict(attrs), "text": "", "parents": list(self.stack)}
        self.elements.append(element)
        if tag not in VOID:
            self.stack.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack[-1]["tag"] == tag, f"</{tag}> closes <{self.stack[-1]['tag']}>"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        for element in self.stack:
            element["text"] += data

    def all(self, tag: str, **attrs: str) -> list[dict[str, t.Any]]:
        wanted = {name.rstrip("_"): value for name, value in attrs.items()}
        return [
            one
            for one in self.elements
            if one["tag"] == tag and all(value in (one["attrs"].get(name) or "").split() for name, value in wanted.items())
        ]

    def tables(self) -> dict[str, list[list[str]]]:
        """Caption -> rows of cells, the head first."""
        found = {}
        for table in self.all("table"):
            inside = [one for one in self.elements if table in one["parents"]]
            caption = next(one for one in inside if one["tag"] == "caption")
            rows = [row for row in inside if row["tag"] == "tr"]
            cells = [[" ".join(c["text"].split()) for c in inside if c["tag"] in ("th", "td") and row in c["parents"]] for row in rows]
            found[" ".join(caption["text"].split())] = cells
        return found


def page(inputs: Inputs, **options: str) -> Page:
    return Page(render(SOURCE, build(inputs), **options))


def text_of(page_: Page) -> str:
    return " ".join(page_.elements[0]["text"].split())


def test_the_page_asks_for_nothing_outside_itself_and_forbids_it() -> None:
    text = render(SOURCE, build(world.small()))
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<script|<link|<img|<iframe|\bsrc=", text)
    policy = Page(text).all("meta", **{"http-equiv": "Content-Security-Policy"})[0]["attrs"]["content"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert all(one["attrs"]["href"].startswith("#") for one in Page(text).all("a"))


@pytest.mark.parametrize("inputs", [world.small(), world.large(3), Inputs({})], ids=["small", "large", "empty"])
def test_the_page_is_well_formed_and_can_be_heard(inputs: Inputs) -> None:
    it = page(inputs, title="Fleet", generated="Made by hand.")
    ids = [one["attrs"]["id"] for one in it.elements if "id" in one["attrs"]]
    assert len(ids) == len(set(ids))
    for one in it.elements:
        assert (one["attrs"].get("aria-labelledby") or ids[0]) in ids
        assert (one["attrs"].get("href") or f"#{ids[0]}")[1:] in ids
    assert [one["text"] for one in it.all("h1")] == ["Fleet"]
    assert it.all("html")[0]["attrs"]["lang"] == "en"
    assert all(one["attrs"].get("scope") in ("col", "row") for one in it.all("th"))
    for table in it.all("table"):
        box = table["parents"][-1]
        assert "scroll" in box["attrs"]["class"]
        assert box["attrs"]["tabindex"] == "0"
        assert sum(one["tag"] == "caption" and one["parents"][-1] is table for one in it.elements) == 1
    for cells in it.tables().values():
        assert len({len(row) for row in cells if len(row) > 1}) == 1
    levels = [int(one["tag"][1]) for one in it.elements if re.fullmatch("h[1-6]", one["tag"])]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_the_same_fleet_gives_the_same_bytes_and_readings_do_not_change_them() -> None:
    inputs = world.small()
    warmer = {
        name: {**facts, "gpus": [{**gpu, "temperature_c": 71, "power_w": 391, "memory_used_mib": 70000} for gpu in facts["gpus"]]}
        for name, facts in inputs.facts.items()
        if facts
    }
    assert render(SOURCE, build(inputs)) == render(SOURCE, build(dataclasses.replace(inputs, facts=warmer)))
    live = render(SOURCE, build(dataclasses.replace(inputs, facts=warmer, live=True)))
    assert "71 °C · 391 W · 70,000 MiB in use now" in live
    assert "Readings that change by themselves" not in live


def test_headline_figures() -> None:
    it = page(world.small())
    figures = {
        " ".join(label["text"].split()): " ".join(value["text"].split()) for label, value in zip(it.all("dt"), it.all("dd"), strict=True)
    }
    assert figures == {
        "GPUs": "93 MIG, 2 whole, 1 shared, 2 not assigned, 1 out of service",
        "Memory allocated": "317.9 GiB54.9% of 578.9 GiB",
        "Memory free": "135.1 GiB23.3%, can be given away now",
        "In unused slices": "9.6 GiB1.7%, cut and held by no service",
        "Stranded": "21.2 GiB3.7%, out of reach of the present layouts",
        "Services placed": "10 of 1116 replicas placed, 2 not placed",
    }
    assert len(it.all("div", class_="alarm")) == 1
    assert "9 GPUs on 3 hosts, 11 services of 5 teams." in text_of(it)


def test_tables_say_who_asked_for_what_and_got_what() -> None:
    tables = page(world.small()).tables()
    services = tables["Every placed replica: what it asked for and what it holds, for each of its GPUs"]
    assert services[0] == ["Replica", "Team", "Environment", "Host", "GPU", "Part", "Asked", "Given", "Port", "Place"]
    rows = {row[0]: row[1:] for row in services[1:]}
    assert len(rows) == 16
    assert rows["receipt-ocr-2"] == ["CLclaims", "production", "gpu-prod-01", "0", "1g.10gb@1", "8 GiB", "9.6 GiB", "http 18001", "ready"]
    assert rows["embeddings-1"][5:7] == ["1g.10gb", "9.8 GiB"]
    assert rows["fine-tuning-1"] == ["REresearch", "training", "gpu-train-01", "1", "whole GPU", "40 GiB", "45 GiB", "–", "ready"]
    assert rows["face-match-1"][7] == "http 18011, metrics 18012"
    teams = {row[0]: row[1:] for row in tables["What each team holds"][1:]}
    assert teams["CLclaims"] == ["2", "7", "67.4 GiB", "7", "0", "0", "11.6%"]
    assert teams["All teams"] == ["11", "16", "317.9 GiB", "12", "2", "2", "54.9%"]
    assert tables["Replicas that found no place, and what would help"][1][:4] == ["video-search", "REresearch", "production", "1, 2"]
    assert tables["Layouts that strand memory, and the layouts that reach it, nearest first"][1][:5] == [
        "A100-SXM4-80GB",
        "7x1g.10gb",
        "1",
        "1",
        "11,392",
    ]
    hosts = tables["Software and plan of each host"]
    assert hosts[1] == ["gpu-prod-01", "production", "2", "126.1 GiB", "160 GiB", "debian 13", "580.105.08 (open)", "13.0", "4", "4 done"]
    assert tables["Parts of GPU 1 of gpu-prod-01"][1:] == [
        ["3g.40gb@0", "allocated", "medical-imaging-1", "health", "40,192", "3"],
        ["2g.20gb@4", "allocated", "face-match-1", "identity", "19,968", "2"],
        ["1g.10gb@6", "unused slice", "–", "–", "9,856", "1"],
        ["stranded", "stranded", "–", "–", "10,368", "–"],
    ]


def test_every_gpu_is_drawn_in_proportion_with_stranded_memory_named() -> None:
    it = page(world.small())
    cards = it.all("article", class_="gpu")
    assert len(cards) == 9
    first = [one for one in it.elements if cards[0] in one["parents"]]
    strip = next(one for one in first if one["attrs"].get("class") == "bar")
    parts = [one for one in first if one["tag"] == "li" and strip in one["parents"]]
    assert [one["attrs"]["style"] for one in parts] == [f"left:{12.5 * n:.4f}%;width:12.5000%" for n in range(8)]
    assert parts[0]["attrs"]["title"] == "receipt-ocr-1, team claims, 1g.10gb@0, 9,856 MiB, 1 compute slice, 14 SMs"
    assert "stranded" in parts[7]["attrs"]["class"].split()
    words = " ".join(cards[0]["text"].split())
    sentence = "7 × 1g.10gb uses 7 of 8 memory slices: 11.1 GiB out of reach; 6 × 1g.10gb + 1 × 1g.20gb reaches it."
    assert f"{sentence} Why: all 7 compute slices are in slices" in words
    assert "7x1g.10gb · 7 of 7 compute slices, 98 of 98 SMs used" in words
    assert "no memory is left for the rest" not in words
    assert "6 of 7 compute slices, 84 of 98 SMs used; no memory is left for the rest" in " ".join(cards[1]["text"].split())
    assert "no memory is left" not in " ".join(cards[3]["text"].split())
    strips = [one["attrs"]["aria-label"] for one in it.all("div", role="img")]
    assert strips[:2] == ["7 of 7 compute slices are in slices", "6 of 7 compute slices are in slices"]
    assert "bad" in next(card for card in cards if "lost" in card["text"])["attrs"]["class"].split()
    assert any("Shared without isolation" in card["text"] for card in cards)


def test_a_team_looks_the_same_everywhere_and_has_its_tag_beside_its_colour() -> None:
    it = page(world.small())
    looks: dict[str, set[str]] = {}
    for tag in it.all("span", class_="tag"):
        looks.setdefault(tag["text"], set()).add(tag["attrs"]["class"])
    assert sorted(looks) == ["AS", "CL", "HE", "ID", "RE"]
    assert all(len(classes) == 1 for classes in looks.values())
    assert len({next(iter(classes)) for classes in looks.values()}) == 5


def test_what_people_write_in_files_is_text_and_never_markup() -> None:
    evil = '<script>alert("1")</script>\'"&'
    gpu, shared = world.gpu(0, "a100", ["1g.10gb@0"]), world.gpu(1, "l40s", name=evil, state="lost", error=evil)
    facts = world.host(gpu, shared, errors=[evil], driver={"present": True, "version": evil, "cuda": evil, "flavour": evil})
    services = [Service(evil, evil, evil, 1, 1024)]
    plan = world.plan(1, world.cut(gpu, "1g.10gb@0"), [{**world.on_slice(evil, 1, gpu, "1g.10gb@0"), "ports": {evil: 1}}])
    unplaced = [{"service": evil, "replica": 2, "reason": evil}]
    report = build(Inputs({evil: facts}, {evil: plan}, unplaced, services, {evil: Policy(evil)}))
    text = render(SOURCE, report, title=evil, generated=evil)
    assert "<script" not in text
    assert "alert(&#34;1&#34;)" in text
    it = Page(text)
    allowed = {
        "class",
        "style",
        "title",
        "id",
        "role",
        "scope",
        "tabindex",
        "href",
        "lang",
        "charset",
        "name",
        "content",
        "http-equiv",
        "colspan",
    }
    assert all(name in allowed or name.startswith("aria-") for one in it.elements for name in one["attrs"])
    assert it.all("h1")[0]["text"] == evil


def test_long_names_are_kept_whole_in_the_text() -> None:
    name = "x" * 63
    gpu = world.gpu(0, "a100", ["1g.10gb@0"])
    plan = world.plan(1, world.cut(gpu, "1g.10gb@0"), [world.on_slice(name, 1, gpu, "1g.10gb@0")])
    it = page(Inputs({name: world.host(gpu, serial=1)}, {name: plan}, (), (Service(name, name, name, 1, 1024),)))
    assert any(name in one["text"] for one in it.all("h3"))
    assert any(one["text"] == f"{name}-1" for one in it.all("th"))


def test_an_empty_fleet_has_a_page_too() -> None:
    it = page(Inputs({}))
    words = text_of(it)
    assert "0 GPUs on 0 hosts, 0 services of 0 teams." in words
    assert "No host is known: there are neither facts nor plans." in words
    assert "No service is placed." in words
    assert "No team has a service." in words
    assert [one["attrs"]["href"] for one in it.all("a")] == ["#main", "#gpus", "#services", "#teams", "#hosts"]


def test_what_needs_attention_comes_before_the_gpus() -> None:
    it = page(dataclasses.replace(world.small(), services=(*world.SERVICES, Service("idle", "health", "production"))))
    headings = [one["text"] for one in it.all("h2")]
    assert headings == ["Figures", "Needs attention", "Not placed", "GPUs", "Stranded memory", "Services", "Teams", "Hosts"]
    alerts = [
        " ".join(one["text"].split()) for one in it.elements if one["parents"] and one["parents"][-1]["attrs"].get("class") == "alerts"
    ]
    assert alerts == [
        "gpu-train-01, GPU 2: This GPU is lost (NVML: GPU is lost).",
        "gpu-staging-01, GPU 2: MIG mode on is pending: it needs no reset, only that nothing uses the GPU.",
        "gpu-train-01, GPU 3: Cordoned: nothing new is placed here.",
        "In no plan yet: idle. The plan playbook decides where they run.",
    ]


def test_places_that_are_not_there_yet_and_adopted_services_are_marked() -> None:
    gpu = world.gpu(0, "a100")
    plan = world.plan(1, world.cut(gpu, "1g.10gb@0"), [world.on_slice("ocr", 1, gpu, "1g.10gb@0")])
    it = page(Inputs({"h": world.host(gpu)}, {"h": plan}, (), (Service("ocr", "claims", "e", 1, 1024, adopted=True),)))
    row = it.tables()["Every placed replica: what it asked for and what it holds, for each of its GPUs"][1]
    assert row[-1] == "not there yet, adopted"
    assert len(it.all("span", class_="late")) == 1
    assert any("Planned" in one["text"] and "not there yet" in one["text"] for one in it.all("li"))
    assert "Slices with a dashed border are planned and not there yet." in text_of(it)
    assert it.tables()["What each team holds"][:2] == [
        ["Team", "Services", "Replicas placed", "GPU memory", "Planned", "Slices", "Whole GPUs", "Shares", "Share of the fleet's memory"],
        ["CLclaims", "1", "1", "0 GiB", "9.6 GiB", "1", "0", "0", "0%"],
    ]
    assert len(it.all("li", class_="planned")) == 2


def test_a_host_that_was_not_reached_is_shown_as_such() -> None:
    gpu = world.gpu(0, "l40s")
    it = page(Inputs({}, {"h": world.plan(3, [], [world.on_gpu("chat", 1, [gpu])])}))
    assert "not reached" in text_of(it)
    assert it.tables()["Software and plan of each host"][1] == ["h", "–", "0", "0 GiB", "0 GiB", "–", "–", "–", "3", "–"]


def test_replicas_on_several_gpus_say_how_many() -> None:
    gpus = [world.gpu(n, "l40s") for n in range(2)]
    plan = world.plan(1, [world.mode(one, "whole") for one in gpus], [world.on_gpu("train", 1, gpus)])
    it = page(Inputs({"h": world.host(*gpus, serial=1)}, {"h": plan}))
    row = it.tables()["Every placed replica: what it asked for and what it holds, for each of its GPUs"][1]
    assert row == ["train-1", "–", "–", "h", "0, 1", "whole GPU", "–", "2 × 45 GiB", "–", "ready"]


def test_the_overview_holds_everything_once() -> None:
    report = build(world.small())
    parts = fleet_parts(report)
    assert sum(mib for _kind, _team, mib in parts) == report.memory_mib
    assert [(kind, team) for kind, team, _mib in parts] == [
        *(("held", name) for name in ("assistant", "claims", "health", "identity", "research")),
        *((kind, "") for kind in ("unused", "free", "stranded", "aside", "overhead")),
    ]
    gpu = world.gpu(0, "l40s")
    ghost = build(Inputs({"h": world.host(gpu)}, {"h": world.plan(1, [world.mode(gpu, "whole")], [world.on_gpu("x", 1, [gpu])])}))
    assert fleet_parts(ghost) == [("held", "", 46068)]


def test_compute_is_drawn_side_by_side_and_what_is_left_comes_last() -> None:
    gpu = build(world.small()).gpus[1]
    parts = [(start, size, block.label if block else None) for start, size, block in compute_parts(gpu)]
    assert all(block for _start, _size, block in compute_parts(build(world.small()).gpus[0]))
    assert parts == [(0, 3, "3g.40gb@0"), (3, 2, "2g.20gb@4"), (5, 1, "1g.10gb@6"), (6, 1, None)]


@pytest.mark.parametrize(
    ("mib", "text"),
    [(0, "0 GiB"), (1, "1 MiB"), (1023, "1023 MiB"), (1024, "1 GiB"), (1536, "1.5 GiB"), (9856, "9.6 GiB"), (1048576, "1,024 GiB")],
)
def test_sizes_as_people_read_them(mib: int, text: str) -> None:
    assert gib(mib) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "0%"),
        (0, 5, "0%"),
        (1, 8, "12.5%"),
        (1, 2, "50%"),
        (8, 8, "100%"),
        (1, 100000, "0.1%"),
        (99999, 100000, "99.9%"),
        (5, 0, "0%"),
    ],
)
def test_shares_never_hide_a_little_nor_pretend_all(part: int, whole: int, text: str) -> None:
    assert percent(part, whole) == text


def test_words() -> None:
    assert [plural(0, "GPU"), plural(1, "GPU"), plural(2500, "GPU"), plural(2, "share", "shares of it")] == [
        "0 GPUs",
        "1 GPU",
        "2,500 GPUs",
        "2 shares of it",
    ]
    assert span(3, 1, 12) == "left:25.0000%;width:8.3333%"
    assert holder(Block("aside", 0, 1, 9, "lost", why="lost (NVML: x)")) == "lost"
    assert holder(Block("aside", 0, 1, 9, "1g.10gb@0", why="used outside the plan by x")) == "in use"
    assert details(Block("aside", 0, 1, 9, "1g.10gb@0", 1, 14, why="used outside the plan by x")) == (
        "in use, 1g.10gb@0, 9 MiB, 1 compute slice, 14 SMs, used outside the plan by x"
    )
    assert details(Block("aside", 0, 1, 9, "lost", why="lost")) == "lost, 9 MiB"
    assert details(Block("held", 0, 1, 2048, "whole GPU", tenant=Tenant("a", 2, None))) == "a-2, no manifest, whole GPU, 2,048 MiB"
    assert details(Block("unused", 0, 2, 19968, "2g.20gb@0", 2, 28)) == "unused slice, 2g.20gb@0, 19,968 MiB, 2 compute slices, 28 SMs"


@pytest.mark.parametrize("broken", ["{% for %}", "{{ nothing_of_this_name }}", "{{ report.memory_mib|no_such_filter }}"])
def test_a_broken_template_of_a_site_is_one_clear_line(broken: str) -> None:
    with pytest.raises(FleetError, match=r"^the report's template cannot be rendered: .+") as caught:
        render("line one\n" + broken, build(Inputs({})))
    assert "\n" not in str(caught.value)


# --- colours -----------------------------------------------------------------------------------------------------------------


def _luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG 2 defines it."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))


def _themes() -> dict[str, dict[str, str]]:
    light, dark = re.findall(r":root \{(.*?)\}", SOURCE, re.DOTALL)[:2]
    return {"light": _colours(light), "dark": {**_colours(light), **_colours(dark)}}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("ink", "ground"),
    [
        *itertools.product(("ink", "soft", "link", "bad"), ("page", "card")),
        *(("warn", "warn-bg"), ("warn", "card"), ("bad", "bad-bg"), ("ink", "unused")),
    ],
)
def test_text_stands_out_from_its_ground(theme: str, ink: str, ground: str) -> None:
    colours = _themes()[theme]
    assert _contrast(colours[ink], colours[ground]) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_black_text_stands_out_from_every_team_colour_and_stranded_hatching_from_the_card(theme: str) -> None:
    fills = re.findall(r"\.c[0-9x] \{ --fill: (#[0-9a-f]{6})", SOURCE)
    assert len(fills) == 9
    # dark mode mixes 12 % of the ground into a colour: see --strength
    mix = 0.88 if theme == "dark" else 1.0
    for fill in fills:
        seen = "#" + "".join(
            f"{round(int(fill[at : at + 2], 16) * mix + int('#19212b'[at : at + 2], 16) * (1 - mix)):02x}" for at in (1, 3, 5)
        )
        assert _contrast("#14181f", seen) >= 4.5, fill
    assert _contrast(_themes()[theme]["hatch"], _themes()[theme]["card"]) >= 3
