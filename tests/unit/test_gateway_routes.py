# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Routes, keys and pages as plain data: what is refused and how it is said, and that the calls on a page are whole programs."""

from __future__ import annotations

import ast
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.action import gateway_routes
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import gateway, gateway_config, service_page
from gateway_world import TEMPLATE, manifest_text, manifests_of, plan_of

ROOT = Path(__file__).resolve().parents[2]
NONE = gateway.read_settings({})
HOSTILE = "A \"quote\", a 'tick', a `back`, 100 %, ${x}, <b>, \\n and 中文"


def routes_of(*texts: str, settings: gateway.Settings = NONE, **plans: object) -> list[gateway.Route]:
    known = {name.replace("_", "-"): plan for name, plan in plans.items()}
    return gateway.make_routes(manifests_of(*texts), known, dict.fromkeys(known, "10.0.0.7"), settings)[0]  # type: ignore[arg-type]


def test_keys_are_hashed_and_a_refusal_names_their_place_and_never_their_text() -> None:
    key = "a-long-enough-key-of-claims"
    digest = hashlib.sha256(key.encode()).hexdigest()
    assert gateway.hash_keys({"claims": [key], "fraud": [f"sha256:{'a' * 64}"]}) == {digest: "claims", "a" * 64: "fraud"}
    with pytest.raises(FleetError, match="not a SHA-256"):
        gateway.hash_keys({"claims": [f"sha256:{'a' * 64}\n"]})
    with pytest.raises(FleetError, match="characters that no header carries"):
        gateway.hash_keys({"claims": [f"{key}\n"]})
    with pytest.raises(FleetError, match="the name of a team"):
        gateway.hash_keys({"claims\n": [key]})
    wrong = {"claims": ["short-secret"], "fraud": [key, "sha256:12", "with a blank in it, long"], "other": [key], "Bad": [key], "text": key}
    with pytest.raises(FleetError) as refused:
        gateway.hash_keys(wrong)
    told = str(refused.value).splitlines()
    assert sorted(told) == sorted(
        [
            "fleet_gateway_keys: the name of a team is 2 to 63 of a-z, 0-9 and '-'; name the team as manifests do",
            "fleet_gateway_keys.claims[0]: a key of 12 characters can be guessed; write at least 16, as 'openssl rand -hex 24' prints them",
            "fleet_gateway_keys.fraud[1]: not a SHA-256; write sha256: and 64 digits of 0-9 and a-f",
            "fleet_gateway_keys.fraud[2]: a key has characters that no header carries; use letters, digits and '-_.'",
            "fleet_gateway_keys.other[0]: team fraud has the same key; give each team its own",
            "fleet_gateway_keys.text: expected a list of keys; write [sha256:<64 hex digits>]",
        ]
    )
    assert key not in "".join(told)
    assert "short-secret" not in "".join(told)


def test_keys_that_were_forgotten_shut_nobody_out() -> None:
    routes = routes_of(manifest_text("ocr", route="{teams: [fraud]}"), manifest_text("free", route="{keys: false}"))
    with pytest.raises(FleetError, match=r"^fleet_gateway_keys: no team has a key, and ocr asks for one: nobody could call it; give the"):
        gateway.without_keys(routes, {}, {})
    told = "ocr: nobody can call it, for none of these teams has a key: claims, fraud"
    assert gateway.without_keys(routes, {"claims": []}, {}) == [told]
    assert gateway.without_keys(routes, {"other": ["x"]}, {"a" * 64: "other"}) == [told]
    assert gateway.without_keys(routes, {"fraud": ["x"]}, {"a" * 64: "fraud"}) == []
    assert gateway.without_keys([route for route in routes if not route.keys], {}, {}) == []


def test_an_address_is_given_once_and_never_the_gateways_own() -> None:
    with pytest.raises(FleetError) as refused:
        routes_of(
            manifest_text("one", route="{path: /x}"),
            manifest_text("two", route="{path: /x}"),
            manifest_text("own", route="{path: /_fleet/a}"),
        )
    told = str(refused.value)
    assert "1.yml:11: route: service 'one' has the same address /x; give each service its own host or path" in told
    assert "2.yml:11: route.path: '/_fleet' is the gateway's own; choose another path" in told


@pytest.mark.parametrize(
    ("mine", "theirs", "shown"),
    [
        ("{}", "{host: ocr.models.example.com, path: /v1, keys: false}", "ocr.models.example.com/v1"),
        ("{}", "{host: ocr.models.example.com}", "ocr.models.example.com"),
        ("{path: /ocr}", "{path: /ocr/v1}", "/ocr/v1"),
        ("{path: /ocr}", "{path: /ocr//v1}", "/ocr//v1"),
        ("{path: /ocr}", "{host: models.example.com, path: /ocr/v1}", "models.example.com/ocr/v1"),
        ("{host: models.example.com, path: /ocr}", "{path: /ocr/v1/x}", "/ocr/v1/x"),
        ("{host: api.example.com}", "{host: api.example.com, path: /v1}", "api.example.com/v1"),
        ("{host: a.example.com}", "{host: ocr.models.example.com}", "ocr.models.example.com"),
    ],
)
def test_no_team_gets_requests_that_are_sent_to_a_service_of_another(mine: str, theirs: str, shown: str) -> None:
    settings = gateway.read_settings({"domain": "models.example.com"})
    with pytest.raises(FleetError, match=r"^1\.yml:11: route: ") as refused:
        routes_of(manifest_text("ocr", route=mine), manifest_text("other", team="fraud", route=theirs), settings=settings)
    told = str(refused.value)
    same = f"service 'ocr' has the same address {shown}; give each service its own host or path"
    part = f"{shown} is part of the address of 'ocr', a service of team 'claims'; choose another host or path"
    assert told.removeprefix("1.yml:11: route: ") in (same, part)
    if "v1" in theirs:
        assert routes_of(manifest_text("ocr", route=mine), manifest_text("other", route=theirs), settings=settings)


def test_teams_share_a_host_name_by_paths_beside_each_other() -> None:
    settings = gateway.read_settings({"domain": "models.example.com"})
    texts = [
        manifest_text("one", route="{host: api.example.com, path: /one}"),
        manifest_text("two", team="fraud", route="{host: api.example.com, path: /ones}"),
        manifest_text("one-more", team="other", route="{path: /one}"),
    ]
    assert [(route.host, route.path) for route in routes_of(*texts, settings=settings)] == [
        ("api.example.com", "/one"),
        (None, "/one"),
        ("api.example.com", "/ones"),
    ]


def test_a_service_without_host_and_path_gets_one_from_the_domain_or_its_name() -> None:
    (route,) = routes_of(manifest_text("ocr"))
    assert (route.host, route.path) == (None, "/ocr")
    with_domain = gateway.read_settings({"domain": "models.example.com", "certificate": "/x.pem", "https_port": 8443})
    (route,) = routes_of(manifest_text("ocr"), settings=with_domain)
    assert gateway.base_url(route, with_domain, "gw") == "https://ocr.models.example.com:8443"
    (route,) = routes_of(manifest_text("ocr", route="{path: /a/b}"))
    assert gateway.base_url(route, NONE, "fd00::7") == "http://[fd00::7]/a/b"


def test_replicas_of_all_hosts_are_behind_a_route_and_each_host_has_a_server_that_stands_by() -> None:
    text = manifest_text("ocr", replicas=3)
    (route,) = routes_of(text, gpu_02=plan_of(("ocr", 3, 18000)), gpu_01=plan_of(("ocr", 1, 18000), ("ocr", 2, 18001)))
    assert [(server.name, server.place) for server in route.servers] == [
        ("ocr-1", "10.0.0.7:18000"),
        ("ocr-2", "10.0.0.7:18001"),
        ("ocr-3", "10.0.0.7:18000"),
    ]
    assert route.surges == ("ocr-surge-gpu-01", "ocr-surge-gpu-02")


def test_a_host_without_a_usable_address_is_named() -> None:
    for address in ("a b", "10.0.0.1\n"):
        with pytest.raises(FleetError, match=rf"host gpu-01: fleet_address: '{address.strip()}.?' is no address that a gateway can use"):
            gateway.make_routes(manifests_of(manifest_text("ocr")), {"gpu-01": plan_of(("ocr", 1, 18000))}, {"gpu-01": address}, NONE)


def test_settings_cannot_write_lines_into_the_configuration() -> None:
    for values in (
        {"certificate": "/x\n    bind :99"},
        {"log": "stdout\nglobal"},
        {"address": "0.0.0.0 ssl"},
        {"domain": "a b"},
        {"user": "x #"},
        {"user": "x\n"},
        {"metrics": "127.0.0.1:8405\n"},
        {"name": "models.example.com\n"},
    ):
        with pytest.raises(FleetError):
            gateway.read_settings(values)


def test_the_same_routes_give_the_same_bytes_and_every_change_another_digest() -> None:
    routes = routes_of(manifest_text("ocr"), gpu_01=plan_of(("ocr", 1, 18000)))
    one = gateway_config.config(routes, {"a" * 64: "claims"}, {}, NONE)
    assert one == gateway_config.config(routes, {"a" * 64: "claims"}, {}, NONE)
    others = [
        gateway_config.config(routes, {"b" * 64: "claims"}, {}, NONE),
        gateway_config.config(routes, {"a" * 64: "claims"}, {"": "x"}, NONE),
    ]
    assert len({text.split("sha256:")[1][:64] for text in (one, *others)}) == 3


RUNTIMES = {
    "http": "rollout: {warm_up: {method: POST, path: /v1/read, body: '{\"text\": \"a''b\"}'}}\n",
    "vllm": "model: {parameters: 8.03e9, bytes_per_parameter: 2, layers: 32, kv_heads: 8, head_dim: 128, context: 8192, "
    f"name: '{HOSTILE.replace(chr(39), chr(39) * 2)}'}}\n",
    "triton": "triton: {path: x, max_batch_size: 8, inputs: [{name: x, type: STRING, dims: [-1, 2]}], "
    "outputs: [{name: y, type: FP32, dims: [1]}]}\n",
    "speech": "speech: {model: large-v3}\n",
}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_calls_on_a_page_are_whole_programs_with_the_address_and_without_a_key(runtime: str, tmp_path: Path) -> None:
    text = manifest_text("ocr", more=RUNTIMES[runtime]).replace("runtime: http", f"runtime: {runtime}")
    (manifest,) = manifests_of(text)
    settings = gateway.read_settings({"domain": "models.example.com"})
    (route,) = routes_of(text, settings=settings)
    page = service_page.make_page(manifest, route, {}, settings, "gw")
    programs = dict(page.examples)
    ways = {"http": "/v1/read", "vllm": "/v1/chat/completions", "triton": "/v2/models/ocr/infer", "speech": "/v1/audio/transcriptions"}
    for language, program in programs.items():
        assert f"http://ocr.models.example.com{ways[runtime]}" in program, language
        assert "GPUOPS_KEY" in program
    ast.parse(programs["Python"])
    assert subprocess.run(["sh", "-n"], input=programs["curl"], text=True, check=False).returncode == 0
    if node := shutil.which("node"):
        (tmp_path / "a.mjs").write_text(programs["Node"], encoding="utf-8")
        done = subprocess.run([node, "--check", str(tmp_path / "a.mjs")], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    if gofmt := shutil.which("gofmt"):
        assert subprocess.run([gofmt], input=programs["Go"], text=True, check=False, capture_output=True).returncode == 0


def test_a_page_escapes_what_owners_write_and_fetches_nothing() -> None:
    text = manifest_text("ocr", more='description: "<script>alert(1)</script> \ue000nbsrv(x)\ue001"\nowner: "<img src=x>"\n')
    (manifest,) = manifests_of(text)
    (route,) = routes_of(text)
    page = service_page.make_page(manifest, route, {}, NONE, "gw")
    for live in (False, True):
        drawn = service_page.draw_all(service_page.Pages(TEMPLATE), [page], live)
        assert set(drawn) == {"", "ocr"}
        for html in drawn.values():
            assert "<script" not in html
            assert "<img" not in html
            assert "src=" not in html.replace("&lt;img src=x&gt;", "")
            assert "default-src 'none'" in html
        assert drawn["ocr"].count("%[nbsrv(") == int(live)


def test_the_call_to_speech_names_the_model_as_its_server_does() -> None:
    for model, name in {
        "whisper/models--Systran--faster-whisper-small": "Systran/faster-whisper-small",
        "large-v3": "local/large-v3",
    }.items():
        text = manifest_text("stt", more=f"speech: {{model: {model}}}\n").replace("runtime: http", "runtime: speech")
        (manifest,) = manifests_of(text)
        (route,) = routes_of(text)
        programs = dict(service_page.make_page(manifest, route, {}, NONE, "gw").examples)
        assert f"-F model={name}" in programs["curl"]
        assert name in programs["Python"]


MARKED = "\ue000env(HOME)\ue001\ue000req.hdr(cookie)\ue001"


@pytest.mark.parametrize("field", ["description", "owner", "body", "type", "model", "triton", "tensor", "key_help"])
def test_no_word_of_an_owner_is_an_expression_of_haproxy(field: str) -> None:
    runtime, more = (
        "http",
        {
            "description": f"description: '{MARKED}'\n",
            "owner": f"owner: '{MARKED}'\n",
            "body": f"rollout: {{warm_up: {{method: POST, path: /, body: '{MARKED}'}}}}\n",
            "type": f"rollout: {{warm_up: {{method: POST, path: /, body: x, content_type: '{MARKED}'}}}}\n",
        }.get(field, ""),
    )
    if field == "model":
        runtime, more = "vllm", RUNTIMES["vllm"].replace("8192, ", f"8192, path: x, name: '{MARKED}'}}\n#")
    elif field in ("triton", "tensor"):
        block = RUNTIMES["triton"]
        more = (
            block.replace("path: x", f"path: x, model: '{MARKED}'") if field == "triton" else block.replace("name: x", f"name: '{MARKED}'")
        )
        runtime = "triton"
    text = manifest_text("ocr", more=more).replace("runtime: http", f"runtime: {runtime}")
    (manifest,) = manifests_of(text)
    (route,) = routes_of(text)
    page = service_page.make_page(manifest, route, {}, NONE, "gw")
    drawer = service_page.Pages(TEMPLATE, MARKED if field == "key_help" else "")
    for drawn in service_page.draw_all(drawer, [page], live=True).values():
        assert "%[env" not in drawn
        assert "%[req" not in drawn
        assert drawn.count("%[") == drawn.count("%[nbsrv(svc_ocr)]") == 1


def test_a_page_has_no_control_character() -> None:
    text = manifest_text("ocr", more='description: "a\\0b\\e[31m\\tc"\n')
    (manifest,) = manifests_of(text)
    (route,) = routes_of(text)
    page = service_page.make_page(manifest, route, {}, NONE, "gw")
    drawn = service_page.draw_all(service_page.Pages(TEMPLATE), [page], live=True)["ocr"]
    assert "ab[31m\tc" in drawn
    assert "\0" not in drawn


def test_a_page_says_when_what_runs_is_older_than_the_manifest() -> None:
    text = manifest_text("ocr")
    (manifest,) = manifests_of(text)
    for digest, changing in ((manifest.digest(), False), ("sha256:" + "0" * 64, True)):
        plan = plan_of(("ocr", 1, 18000), manifest=digest)
        (route,) = routes_of(text, gpu_01=plan)
        page = service_page.make_page(manifest, route, {"gpu-01": plan}, NONE, "gw")
        assert page.changing is changing
        assert [(each.host, each.gpu, each.part, each.port) for each in page.replicas] == [
            ("gpu-01", "a100-sxm4-80gb at 0000:07:00.0", "slice 1g.10gb@0", "18000")
        ]


def test_a_number_that_a_template_made_text_of_is_a_number() -> None:
    settings = gateway.read_settings({"http_port": "8080", "rate": "0", "maxconn": "50"})
    assert (settings.http_port, settings.rate, settings.maxconn) == (8080, 0, 50)
    with pytest.raises(FleetError, match="http_port: expected a whole number"):
        gateway.read_settings({"http_port": "http"})


def test_the_hashes_of_keys_do_not_go_to_the_log_of_the_gateway() -> None:
    tasks = yaml.safe_load((ROOT / "roles/gateway/tasks/present.yml").read_text(encoding="utf-8"))
    (install,) = [task for task in tasks if "gpuops.fleet.gateway_config" in task]
    assert install["vars"]["ansible_no_target_syslog"] is True


def test_in_place_of_the_plans_on_disk_those_count_that_a_deploy_would_write(tmp_path: Path) -> None:
    for directory in ("manifests", "plans"):
        (tmp_path / directory).mkdir()
    (tmp_path / "manifests" / "ocr.yml").write_text(manifest_text("ocr"))
    addresses = {"gpu-01": "10.0.0.7"}
    given = {
        "plans": str(tmp_path / "plans"),
        "manifests": str(tmp_path / "manifests"),
        "addresses": addresses,
        "own_name": "gw",
        "settings": {},
        "show_pages": True,
        "keys": {"claims": []},
    }
    empty = gateway_routes.run(given, check_mode=True, diff=False)
    promised = gateway_routes.run({**given, "planned": {"gpu-01": plan_of(("ocr", 1, 18001))}}, check_mode=True, diff=False)
    assert "10.0.0.7:18001" not in empty["config"]
    assert "10.0.0.7:18001" in promised["config"]
