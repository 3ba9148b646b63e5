# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of service projects, and what a project may not say about services that are not its own."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest, read_manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.sources import candidate_of, gather, read_sources, strange
from decide_world import DIGEST

LIST = """sources: 1
projects:
  - {project: claims/services, team: claims, services: [receipt-ocr, claims-*], environments: [staging], priority: 60}
  - {project: claims/services, ref: preview, team: claims, services: [preview-*], lease_days: 3, host_paths: [/srv/data]}
"""


def manifest(service: str = "receipt-ocr", team: str = "claims", environment: str = "staging", **more: str) -> str:
    extra = "".join(f"{key}: {value}\n" for key, value in more.items())
    return (
        f"schema: 1\nservice: {service}\nteam: {team}\nenvironment: {environment}\nimage: r/x@sha256:{DIGEST}\n"
        f"gpu: {{memory: 8 GiB}}\n{extra}"
    )


def gathered(main: list[str], preview: t.Sequence[str] = (), own: t.Sequence[str] = ()) -> dict[str, str]:
    sources = read_sources("sources.yml", LIST)
    texts = {
        sources[0].name: [(f"main/{number}.yml", text) for number, text in enumerate(main)],
        sources[1].name: [(f"preview/{number}.yml", text) for number, text in enumerate(preview)],
    }
    return gather(sources, texts, [(f"own/{number}.yml", text) for number, text in enumerate(own)], ["http"])


def problems(*main: str, preview: t.Sequence[str] = ()) -> list[str]:
    with pytest.raises(FleetError) as caught:
        gathered(list(main), preview)
    return str(caught.value).splitlines()


def test_manifests_come_as_their_owners_wrote_them() -> None:
    text = "# a comment of theirs\n" + manifest()
    assert gathered([text], own=[manifest("llm", "platform", "production")]) == {
        "llm.yml": manifest("llm", "platform", "production"),
        "receipt-ocr.yml": text,
    }


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (manifest(team="underwriting"), "main/0.yml:3: team: 'claims/services' belongs to team 'claims'; write 'team: claims'"),
        (manifest("llm-chat"), "main/0.yml:2: service: 'claims/services' does not own 'llm-chat'"),
        (manifest(environment="production"), "main/0.yml:4: environment: 'claims/services' may not use 'production'"),
        (manifest(priority="61"), "main/0.yml:7: priority: 'claims/services' may have at most 60; write 60 or less"),
        (
            manifest(volumes="[{source: /var/run/docker.sock, target: /x}]"),
            "main/0.yml:7: volumes[0].source: 'claims/services' may not mount '/var/run/docker.sock' of a host",
        ),
    ],
)
def test_a_project_may_not_reach_beyond_its_own(text: str, wrong: str) -> None:
    (told,) = problems(text)
    assert told.startswith(wrong)


def test_everything_wrong_is_said_at_once_mistakes_and_reaches() -> None:
    told = problems(manifest().replace("schema: 1", "schema: 1\nreplicsa: 2"), manifest("llm-chat", "other"))
    assert [each.split(":")[0] for each in told] == ["main/0.yml", "main/1.yml", "main/1.yml"]
    assert "did you mean 'replicas'" in told[0]


def test_two_projects_cannot_describe_one_service() -> None:
    (told,) = problems(manifest(), manifest())
    assert "'receipt-ocr' is already described in main/0.yml:2" in told


def test_previews_must_end_and_may_mount_what_the_platform_allows() -> None:
    (told,) = problems(preview=[manifest("preview-a")])
    assert "ends after at most 3 days; write 'lease: {days: 3}'" in told
    assert problems(preview=[manifest("preview-a", lease="{days: 4}")])
    mounted = manifest("preview-a", lease="{days: 2}", volumes="[{source: /srv/data/a, target: /x}]")
    assert list(gathered([], [mounted])) == ["preview-a.yml"]
    assert problems(preview=[manifest("preview-a", lease="{days: 2}", volumes="[{source: /srv/database, target: /x}]")])


def test_a_project_has_the_host_names_that_the_platform_gave_it() -> None:
    routed = "ports: [{name: http, container: 80}]\nroute: {host: %s}\n"
    (told,) = problems(manifest() + routed % "llm-chat.models.example.com")
    assert told.startswith(
        "main/0.yml:8: route.host: 'claims/services' may not have the host name 'llm-chat.models.example.com'; leave it out"
    )
    given = LIST.replace("priority: 60", "route_hosts: [ocr.example.com, '*.claims.example.com']")
    (source, *_more) = read_sources("sources.yml", given)
    for host, right in {
        "ocr.example.com": True,
        "a.claims.example.com": True,
        "claims.example.com": False,
        "xclaims.example.com": False,
        "a.ocr.example.com": False,
    }.items():
        assert (not list(strange(read_manifest("m.yml", manifest() + routed % host), source))) is right, host


def test_an_address_in_another_teams_is_told_before_it_is_merged() -> None:
    ports = "ports: [{name: http, container: 80}]\n"
    mine = manifest() + ports + "route: {path: /llm/v1}\n"
    with pytest.raises(FleetError, match=r"main/0.yml:8: route: /llm/v1 is part of the address of 'llm', a service of team 'platform'"):
        gathered([mine], own=[manifest("llm", "platform") + ports + "route: {}\n"])


def test_what_a_runtime_would_mount_of_a_host_is_asked_for_as_well() -> None:
    source = read_sources("sources.yml", LIST)[0]
    speaks = read_manifest("m.yml", manifest(runtime="speech", speech="{model: whisper}"))
    assert list(strange(speaks, source)) == []
    # The format refuses these already; who may mount what is not left to it alone.
    for path in ("/var/run/docker.sock", "../../etc", "a/../.."):
        block = speaks.model.speech.model_copy(update={"model": path})
        (told,) = strange(Manifest(speaks.model.model_copy(update={"speech": block}), speaks.located), source)
        assert str(told).startswith(f"m.yml:7: runtime: 'claims/services' may not mount '{path}' of a host")


@pytest.mark.parametrize("source", [".", "whisper", "other/claims-x", "a/b/claims"])
def test_no_project_writes_into_the_models_of_others(source: str) -> None:
    listed = read_sources("sources.yml", LIST)[0]
    found = read_manifest("m.yml", manifest(volumes=f"[{{source: {source}, target: /x, read_only: false}}]"))
    (told,) = strange(found, listed)
    assert str(told).startswith(f"m.yml:7: volumes[0].read_only: 'claims/services' may not write into '{source}' of the model store")


@pytest.mark.parametrize("source", ["claims", "claims/out", "./notebooks/claims/alice"])
def test_a_project_writes_into_a_directory_of_its_team(source: str) -> None:
    listed = read_sources("sources.yml", LIST)[0]
    assert list(strange(read_manifest("m.yml", manifest(volumes=f"[{{source: {source}, target: /x, read_only: false}}]")), listed)) == []


def test_a_service_that_others_started_mounts_nothing_here() -> None:
    source = read_sources("sources.yml", LIST)[0]
    text = manifest(runtime="triton", lifecycle="adopted")
    assert list(strange(read_manifest("m.yml", text), source)) == []


def test_a_change_stands_for_what_its_project_has_at_that_branch() -> None:
    sources = read_sources("sources.yml", LIST)
    assert candidate_of(sources, "claims/services", "preview") is sources[1]
    assert sources[1].name == "claims.services@preview"
    with pytest.raises(FleetError, match=r"branch 'dev' of 'claims/services' is not followed; followed are: main, preview"):
        candidate_of(sources, "claims/services", "dev")
    with pytest.raises(FleetError, match="'other/thing' is not in the list of service projects"):
        candidate_of(sources, "other/thing", "main")


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ("{project: ../etc, team: a1, services: [x1]}", "is not the path of a project"),
        ("{project: a/b, ref: a..b, team: a1, services: [x1]}", "is not a branch, a tag or a commit"),
        (r'{project: "a/b\n", team: a1, services: [x1]}', "is not the path of a project"),
        (r'{project: a/b, ref: "main\n", team: a1, services: [x1]}', "is not a branch, a tag or a commit"),
        (r'{project: a/b, team: a1, services: ["x1\n"]}', "is neither a service nor a beginning of names"),
        ("{project: a/b, ref: --upload-pack=x, team: a1, services: [x1]}", "is not a branch, a tag or a commit"),
        ("{project: a/b, team: a1, services: ['*']}", "is neither a service nor a beginning of names"),
        ("{project: a/b, team: a1, services: []}", "the list is empty; write at least 1"),
        ("{project: a/b, team: a1, services: [x1], directory: ../x}", "leads out of the project"),
        ("{project: a/b, team: a1, services: [x1], host_paths: [data]}", "is not a directory of a host"),
        ("{project: a/b, team: a1, services: [x1], route_hosts: ['*']}", "is not a host name"),
        ("{project: a/b, team: a1}", "the field 'services' is missing"),
    ],
)
def test_a_list_that_is_not_right_says_where(entry: str, wrong: str) -> None:
    with pytest.raises(FleetError) as caught:
        read_sources("sources.yml", f"sources: 1\nprojects:\n  - {entry}\n")
    assert "sources.yml:3" in str(caught.value)
    assert wrong in str(caught.value)


def test_one_project_at_one_ref_is_listed_once() -> None:
    with pytest.raises(FleetError, match=r"'claims/services' at 'main' is already projects\[0\]"):
        read_sources("sources.yml", LIST.replace("ref: preview, ", ""))
