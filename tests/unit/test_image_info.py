# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module image_info: what images say of themselves, by an engine's socket and by a registry's HTTP, and what both may do wrong."""

from __future__ import annotations

import json
import shutil
import ssl
import threading
import time
import typing as t
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from urllib.parse import unquote

import pytest
import registry_world as world
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.image_variables import kept, parse_reference
from ansible_collections.gpuops.fleet.plugins.module_utils.registry import MOST_BYTES, Login, Registries
from registry_world import Registry

RunModule = t.Callable[..., t.Any]
MakeRegistry = t.Callable[..., Registry]
DIGEST = "sha256:" + "a" * 64
KNOWN = ["CUDA_VERSION=12.4.1", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"]
LOGIN = ("claims", "correct horse battery")


@pytest.fixture
def make_registry(monkeypatch: pytest.MonkeyPatch) -> t.Iterator[MakeRegistry]:
    monkeypatch.setenv("no_proxy", "*")
    made: list[Registry] = []

    def make(context: ssl.SSLContext | None = None) -> Registry:
        made.append(Registry(context))
        return made[-1]

    yield make
    for registry in made:
        registry.end()


@pytest.fixture
def registry(make_registry: MakeRegistry) -> Registry:
    return make_registry()


def name_of(registry: Registry, digest: str, repository: str = "claims/ocr") -> str:
    return f"{registry.host}/{repository}@{digest}"


def asking(registry: Registry, **more: t.Any) -> Registries:
    """Without TLS, as its address as a mirror says."""
    return Registries(**{"timeout": 3.0, "mirrors": {registry.host: registry.url}, **more})


def refused(registry: Registry, digest: str, **more: t.Any) -> str:
    with pytest.raises(FleetError) as caught:
        asking(registry, **more).read(name_of(registry, digest))
    text = str(caught.value)
    assert "\n" not in text
    assert world.TOKEN not in text
    assert LOGIN[1] not in text
    return text.replace(registry.host, "HOST")


# ---- names


@pytest.mark.parametrize(
    ("image", "registry", "repository", "name"),
    [
        ("ubuntu", "docker.io", "library/ubuntu", "ubuntu"),
        ("vllm/vllm-openai:v0.6", "docker.io", "vllm/vllm-openai", "vllm/vllm-openai"),
        ("docker.io/ubuntu", "docker.io", "library/ubuntu", "docker.io/ubuntu"),
        ("nvcr.io/nvidia/tritonserver:24.05-py3", "nvcr.io", "nvidia/tritonserver", "nvcr.io/nvidia/tritonserver"),
        ("localhost/a/b", "localhost", "a/b", "localhost/a/b"),
        ("registry.lan:5000/a__b/c-d.e", "registry.lan:5000", "a__b/c-d.e", "registry.lan:5000/a__b/c-d.e"),
        ("[::1]:5000/ocr", "[::1]:5000", "ocr", "[::1]:5000/ocr"),
    ],
)
def test_an_images_name_says_which_registry_has_it(image: str, registry: str, repository: str, name: str) -> None:
    found = parse_reference(f"{image}@{DIGEST}")
    assert (found.registry, found.repository, found.name, found.digest) == (registry, repository, name, DIGEST)


@pytest.mark.parametrize(
    "image",
    [
        "ocr:1.4",
        f"ocr@{DIGEST[:-1]}",
        f"registry.lan:99999/ocr@{DIGEST}",
        f"registry.lan/../etc/passwd@{DIGEST}",
        f"registry.lan/OCR@{DIGEST}",
        f"Team/ocr@{DIGEST}",
        f"user:pw@registry.lan/ocr@{DIGEST}",
        f"registry.lan/ocr@{DIGEST}\n",
        f"registry.lan/ocr?x=@{DIGEST}",
        "",
    ],
)
def test_what_is_no_pinned_image_is_named_before_anybody_is_asked(image: str, registry: Registry, run_module: RunModule) -> None:
    result = run_module("image_info", {"images": [image], "from": "registry"})
    assert "is not an image that is pinned by its digest" in result["missing"][image]
    assert registry.asked == []


# ---- what is kept


def test_no_variable_is_kept_that_the_gate_does_not_read() -> None:
    assert kept(
        ["A=1", "CUDA_VERSION=12.0", "CUDA_VERSION=12.1", "NVIDIA_REQUIRE_JETPACK=x", "NVIDIA_DISABLE_REQUIRE=true", "CUDA_VERSION"]
    ) == [
        "CUDA_VERSION=12.1",
        "NVIDIA_DISABLE_REQUIRE=true",
    ]
    assert kept(None) == []


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ("CUDA_VERSION=12.4", "its variables (Env) are not a list of text"),
        ({"CUDA_VERSION": "12.4"}, "its variables (Env) are not a list of text"),
        (["CUDA_VERSION=12.4", 7], "its variables (Env) are not a list of text"),
        (["CUDA_VERSION=12.4\nTASK [x]"], "its variable CUDA_VERSION has a line break or a character that cannot be shown"),
        (["NVIDIA_REQUIRE_CUDA=" + "x" * 20000], "its variable NVIDIA_REQUIRE_CUDA has 20000 characters, more than 16384"),
    ],
)
def test_variables_that_nobody_can_judge_or_show_are_refused(registry: Registry, environment: t.Any, reason: str) -> None:
    assert refused(registry, registry.image({"Env": environment})) == reason


@pytest.mark.parametrize("config", [None, {}, {"Env": None}, {"Env": []}])
def test_an_image_without_variables_has_none_and_is_read_all_the_same(registry: Registry, config: t.Any) -> None:
    assert asking(registry).read(name_of(registry, registry.image(config))) == {"variables": [], "architecture": "amd64"}


def test_an_image_whose_configuration_is_no_mapping_is_refused(registry: Registry) -> None:
    assert refused(registry, registry.image([])) == "its configuration (Config) is not a mapping"


# ---- a registry


def test_an_index_leads_to_the_image_for_amd64_and_to_its_configuration(registry: Registry, run_module: RunModule) -> None:
    index = registry.index(arm64=registry.image({"Env": ["CUDA_VERSION=1.1"]}, "arm64"), amd64=registry.image({"Env": world.OCR}))
    image = f"{registry.host}/claims/ocr:1.4@{index}"
    result = run_module("image_info", {"images": [image, image], "from": "registry", "mirrors": {registry.host: registry.url}}, check=True)
    assert result["found"] == {image: {"variables": KNOWN, "architecture": "amd64"}}
    assert (result["missing"], result["changed"]) == ({}, False)
    assert len(registry.asked) == 3
    assert all(each.path.startswith("/v2/claims/ocr/") and each.authorization is None for each in registry.asked)
    assert world.INDEX in str(registry.asked[0].accept)


def test_an_index_without_amd64_leads_to_arm64_and_one_without_both_is_refused(registry: Registry) -> None:
    for_arm = registry.image({"Env": world.OCR}, "arm64")
    assert asking(registry).read(name_of(registry, registry.index(riscv64=DIGEST, arm64=for_arm)))["architecture"] == "arm64"
    assert refused(registry, registry.index(s390x=DIGEST)) == "it has no image for linux/amd64 or linux/arm64, only linux/s390x"
    assert refused(registry, registry.index()) == "it has no image for linux/amd64 or linux/arm64, only none at all"


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (
            {"schemaVersion": 1, "history": []},
            "its manifest is of schema 1, which names no configuration; push it again with a Docker of today",
        ),
        ({"schemaVersion": 2}, "its manifest names no configuration"),
        (
            {"schemaVersion": 2, "config": {"mediaType": "application/vnd.cncf.helm.config.v1+json", "digest": DIGEST}},
            "it is no container image: its configuration is 'application/vnd.cncf.helm.config.v1+json'",
        ),
        ({"config": {"mediaType": world.CONFIG, "digest": "sha256:../../x"}}, "a digest in its manifest is none"),
        ({"config": {"mediaType": world.CONFIG, "digest": "md5:" + "0" * 32}}, "a digest in its manifest is none"),
        ({"manifests": [7, {"platform": 1}, {"platform": {"os": "linux", "architecture": "amd64"}}]}, "a digest in its manifest is none"),
        ([], "is not a JSON object"),
        (b"<html>", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
    ],
)
def test_a_manifest_that_is_none_is_refused_in_one_line(registry: Registry, document: t.Any, reason: str) -> None:
    assert refused(registry, registry.put(document)).endswith(reason)


@pytest.mark.parametrize("part", ["manifest", "configuration"])
def test_what_has_another_digest_than_the_one_that_was_asked_for_is_not_believed(registry: Registry, part: str) -> None:
    image = registry.image({"Env": ["CUDA_VERSION=9.0"]})
    other = json.loads(registry.blobs[image])["config"]["digest"] if part == "configuration" else image
    registry.blobs[other] = world.written({"config": {"Env": ["CUDA_VERSION=13.0"]}})
    assert refused(registry, image) == f"HOST: what it gave for {other[:19]} is something else: its digest is another one"


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (
            world.refuse(403, "denied\nby policy"),
            "it does not let this image be read (403): denied by policy; give a login that may read it",
        ),
        (world.refuse(404, "unknown"), "it has no such image, or shows it to others only (404): unknown"),
        (world.refuse(500, "x" * 500), "it answered 500: " + "x" * 160),
        (lambda handler: handler.answer(503, b"<html>"), "it answered 503"),
        (world.refuse(429, "slow down", Retry_After="120"), "too many questions (429): slow down; run it again in 120 s"),
        (lambda handler: handler.answer(429), "too many questions (429); run it again later, or give a login"),
        (world.cut_off, "its answer was cut off"),
        (world.cut_off_chunks, "its answer was cut off"),
        (world.endless, f"its answer is larger than {MOST_BYTES // 1024} KiB"),
        (world.huge, f"its answer is larger than {MOST_BYTES // 1024} KiB"),
        (world.no_http, "its answer is no HTTP that can be read (BadStatusLine)"),
        (world.to("ftp://elsewhere/x"), "it redirects to what is no address"),
        (world.to("file:///etc/passwd"), "it redirects to what is no address"),
        (world.to("http://user:pw@127.0.0.1/"), "it redirects to what is no address"),
        (world.to("http://127.0.0.1:99999/"), "it redirects to what is no address"),
        (world.to("http://["), "it redirects to what is no address"),
        (world.to(""), "it redirects more than 5 times"),
    ],
)
def test_a_registry_that_does_not_give_an_image_is_one_clear_line(registry: Registry, way: world.Handle, reason: str) -> None:
    image = registry.image({"Env": world.OCR})
    registry.rules.ways[image] = way
    assert refused(registry, image) == f"HOST: {reason}"


@pytest.mark.parametrize("way", [world.hang, world.drip])
def test_a_registry_that_is_too_slow_is_left_after_its_time_and_not_asked_again(registry: Registry, way: world.Handle) -> None:
    image, other = registry.image({"Env": world.OCR}), registry.image({"Env": []})
    registry.rules.ways[image] = way
    client = asking(registry, timeout=0.4)
    began = time.monotonic()
    for each in (image, other):
        with pytest.raises(FleetError) as caught:
            client.read(name_of(registry, each))
        assert str(caught.value) == f"{registry.host}: no whole answer in 0.4 s"
    assert time.monotonic() - began < 2
    assert len(registry.asked) == 1


def test_a_registry_that_nobody_answers_for_costs_one_question_and_the_others_are_read(
    make_registry: MakeRegistry, run_module: RunModule
) -> None:
    gone, there = make_registry(), make_registry()
    image = name_of(there, there.image({"Env": world.OCR}))
    lost = [name_of(gone, "sha256:" + digit * 64) for digit in "ab"]
    gone.end()
    mirrors = {each.host: each.url for each in (gone, there)}
    result = run_module("image_info", {"images": [lost[0], image, lost[1]], "from": "registry", "mirrors": mirrors})
    assert list(result["found"]) == [image]
    assert result["missing"] == dict.fromkeys(lost, f"{gone.host}: Connection refused")


@pytest.mark.parametrize(("status", "questions"), [(500, 4), (503, 1), (429, 1)])
def test_an_error_of_one_image_leaves_the_others_to_be_read_and_one_of_the_registry_does_not(
    registry: Registry, status: int, questions: int
) -> None:
    bad, good = registry.image({"Env": []}), registry.image({"Env": world.OCR})
    registry.rules.ways[bad] = world.refuse(status, "no")
    client = asking(registry)
    told = []
    for image in (bad, good, bad):
        try:
            told.append(client.read(name_of(registry, image))["variables"])
        except FleetError:
            told.append(None)
    assert told == ([None, KNOWN, None] if questions > 1 else [None] * 3)
    assert len(registry.asked) == questions


def test_a_name_that_leads_nowhere_is_one_clear_line(make_registry: MakeRegistry) -> None:
    del make_registry
    with pytest.raises(FleetError) as caught:
        Registries(3).read(f"registry.invalid/ocr@{DIGEST}")
    assert str(caught.value).startswith("registry.invalid: ")


# ---- tokens and logins


def test_a_token_is_fetched_once_for_a_repository(registry: Registry) -> None:
    registry.rules.realm = f"{registry.url}/token"
    images = [registry.image({"Env": world.OCR}), registry.image({"Env": []})]
    client = asking(registry)
    assert [client.read(name_of(registry, image))["variables"] for image in images] == [KNOWN, []]
    tokens = [each for each in registry.asked if each.path.startswith("/token")]
    assert len(tokens) == 1
    assert "scope=repository%3Aclaims%2Focr%3Apull" in tokens[0].path
    assert tokens[0].authorization is None
    assert {each.authorization for each in registry.asked[2:]} == {f"Bearer {world.TOKEN}"}


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "basic"])
def test_a_login_opens_what_is_not_shown_to_everybody(registry: Registry, run_module: RunModule, tokens: bool) -> None:
    registry.rules.login = LOGIN
    registry.rules.realm = f"{registry.url}/token" if tokens else None
    image = name_of(registry, registry.image({"Env": world.OCR}))
    options = {"images": [image], "from": "registry", "mirrors": {registry.host: registry.url}}
    without = run_module("image_info", options)
    wish = "it asks for a login; give one for it, or name an image that everybody may read"
    assert without["missing"] == {image: f"{registry.host}: {wish}"}
    login = {"registry": registry.host, "username": LOGIN[0], "password": LOGIN[1]}
    result = run_module("image_info", {**options, "logins": [login]})
    assert result["found"][image]["variables"] == KNOWN
    # The user's name is part of the image's: it must not be cut out of the result with the password.
    assert list(result["found"]) == [image]
    assert LOGIN[1] not in json.dumps(result)


def test_a_login_without_a_password_is_none_so_that_what_everybody_may_read_is_read(registry: Registry, run_module: RunModule) -> None:
    image = name_of(registry, registry.image({"Env": world.OCR}))
    asked = {"images": [image], "from": "registry", "mirrors": {registry.host: registry.url}}
    login = {"registry": registry.host, "username": "", "password": ""}
    registry.rules.login = ("claims", "pw")
    result = run_module("image_info", {**asked, "logins": [login]})
    assert result["missing"] == {image: f"{registry.host}: it asks for a login; give one for it, or name an image that everybody may read"}
    registry.rules.login = None
    assert list(run_module("image_info", {**asked, "logins": [login]})["found"]) == [image]
    assert {each.authorization for each in registry.asked} == {None}


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "basic"])
def test_a_login_that_is_not_taken_is_not_shown_twice(registry: Registry, tokens: bool) -> None:
    registry.rules.login = LOGIN
    registry.rules.realm = f"{registry.url}/token" if tokens else None
    client = asking(registry, logins={registry.host: Login(LOGIN[0], "wrong")})
    for image in (registry.image({"Env": world.OCR}), registry.image({"Env": []})):
        with pytest.raises(FleetError) as caught:
            client.read(name_of(registry, image))
        assert str(caught.value) == f"{registry.host}: it does not take the login of claims (401)"
    assert len([each for each in registry.asked if (each.authorization or "").startswith("Basic")]) == 1


def test_an_image_that_a_good_login_may_not_read_leaves_the_others_readable(registry: Registry) -> None:
    registry.rules.login, registry.rules.realm = LOGIN, f"{registry.url}/token"
    hidden, shown = registry.image({"Env": []}), registry.image({"Env": world.OCR})
    registry.rules.ways[hidden] = world.refuse(401, "no", WWW_Authenticate=f'Bearer realm="{registry.url}/token",service="the, registry"')
    client = asking(registry, logins={registry.host: Login(*LOGIN)})
    with pytest.raises(FleetError, match=r"it does not show this image to claims \(401\)"):
        client.read(name_of(registry, hidden))
    assert client.read(name_of(registry, shown))["variables"] == KNOWN


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        ('Bearer service="x"', "it names no address that gives tokens"),
        ('Bearer realm="file:///etc/passwd"', "it names no address that gives tokens"),
        ('Bearer realm="http://["', "it names no address that gives tokens"),
        ("Negotiate", "it asks for a login; give one for it, or name an image that everybody may read"),
        ("", "it asks for a login; give one for it, or name an image that everybody may read"),
    ],
)
def test_a_challenge_that_nobody_can_meet_is_one_clear_line(registry: Registry, challenge: str, reason: str) -> None:
    image = registry.image({"Env": world.OCR})
    registry.rules.ways[image] = world.refuse(401, "no", **({"WWW_Authenticate": challenge} if challenge else {}))
    assert refused(registry, image) == f"HOST: {reason}"


@pytest.mark.parametrize("answer", [b"{}", b"[]", b'{"token": 7}', b'{"token": "a\\r\\nX-Evil: 1"}', b"<html>"])
def test_a_server_of_tokens_that_gives_none_is_one_clear_line(registry: Registry, answer: bytes) -> None:
    registry.rules.realm = f"{registry.url}/token"
    registry.rules.ways["/token"] = lambda handler: handler.answer(200, answer)
    assert refused(registry, registry.image({"Env": world.OCR})) == "HOST: HOST gave no token"


# ---- other hosts


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "basic"])
def test_a_host_that_a_registry_redirects_to_gets_neither_token_nor_login(make_registry: MakeRegistry, tokens: bool) -> None:
    registry, store = make_registry(), make_registry()
    registry.rules.login = LOGIN
    registry.rules.realm = f"{registry.url}/token" if tokens else None
    image = registry.image({"Env": world.OCR})
    blob = json.loads(registry.blobs[image])["config"]["digest"]
    store.blobs[blob] = registry.blobs.pop(blob)
    registry.rules.ways[blob] = world.to(f"{store.url}/store/{blob}?signature=x")
    client = asking(registry, logins={registry.host: Login(*LOGIN)})
    assert client.read(name_of(registry, image))["variables"] == KNOWN
    assert [each.authorization for each in store.asked] == [None]
    # And it cannot ask for one in the registry's name.
    store.rules.realm = f"{store.url}/token"
    with pytest.raises(FleetError, match=f"it redirects to {store.host}, which answered 401"):
        client.read(name_of(registry, image))
    assert [each.authorization for each in store.asked] == [None, None]


def test_a_mirror_stands_in_the_place_of_a_registry_and_gets_only_its_own_login(make_registry: MakeRegistry) -> None:
    mirror = make_registry()
    digest = mirror.image({"Env": world.OCR})
    client = Registries(3, {"nvcr.io": f"{mirror.url}/nvcr/", "docker.io": mirror.url}, {"nvcr.io": Login("ngc", "secret")})
    assert client.read(f"nvcr.io/nvidia/tritonserver:24.05@{digest}")["variables"] == KNOWN
    assert client.read(f"ubuntu@{digest}")["variables"] == KNOWN
    assert mirror.asked[0].path == f"/v2/nvcr/nvidia/tritonserver/manifests/{digest}"
    assert mirror.asked[2].path == f"/v2/library/ubuntu/manifests/{digest}"
    mirror.rules.login = LOGIN
    with pytest.raises(FleetError, match="it asks for a login"):
        client.read(f"nvcr.io/nvidia/other@{digest}")
    assert all(each.authorization is None for each in mirror.asked)
    own = Registries(3, {"nvcr.io": mirror.url}, {mirror.host: Login(*LOGIN)})
    assert own.read(f"nvcr.io/nvidia/other@{digest}")["variables"] == KNOWN


@pytest.mark.parametrize(
    "address",
    [
        "mirror.lan",
        "ftp://mirror.lan",
        "https://",
        "https://me:pw@mirror.lan",
        "https://mirror.lan/?a=b",
        "https://mirror.lan:x",
        "https://[",
    ],
)
def test_a_mirror_that_is_no_address_is_named_without_its_password(run_module: RunModule, address: str) -> None:
    result = run_module("image_info", {"images": [], "from": "registry", "mirrors": {"nvcr.io": address}})
    assert result["failed"]
    assert result["msg"].startswith("mirrors.nvcr.io: '")
    assert "is not the address of a registry; write https://HOST[:PORT][/PREFIX]" in result["msg"]
    assert "pw" not in result["msg"]


def test_with_tls_a_registry_is_trusted_by_its_certificate_and_never_leads_to_a_place_without(
    make_registry: MakeRegistry, tmp_path: Path
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    path = world.certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    registry, plain = make_registry(context), make_registry()
    image = registry.image({"Env": world.OCR})
    with pytest.raises(FleetError) as caught:
        Registries(3).read(name_of(registry, image))
    assert str(caught.value).startswith(f"{registry.host}: its certificate is not trusted: self")
    client = Registries(3, ca_file=str(path), logins={registry.host: Login(*LOGIN)})
    assert client.read(name_of(registry, image))["variables"] == KNOWN
    registry.rules.ways[image] = world.to(f"{plain.url}/{image}")
    with pytest.raises(FleetError, match=f"it redirects to {plain.host}, which has no TLS"):
        client.read(name_of(registry, image))
    registry.rules.ways.clear()
    registry.rules.realm = f"{plain.url}/token"
    with pytest.raises(FleetError, match=f"its tokens are from {plain.host}, which has no TLS"):
        client.read(name_of(registry, image))
    assert plain.asked == []


def test_a_registry_without_tls_is_not_asked_unless_a_mirror_says_so(registry: Registry) -> None:
    image = registry.image({"Env": world.OCR})
    with pytest.raises(FleetError) as caught:
        Registries(3, logins={registry.host: Login(*LOGIN)}).read(name_of(registry, image))
    words = str(caught.value)
    assert words.startswith(f"{registry.host}: no TLS with it (")
    assert words.endswith("; one that has none is named with http:// among the mirrors")
    assert registry.asked == []


def test_a_file_of_certificates_that_is_none_is_named(tmp_path: Path, run_module: RunModule) -> None:
    path = tmp_path / "ca.pem"
    for text, words in ((None, "No such file or directory"), ("nothing\n", "it has no certificates")):
        if text is not None:
            path.write_text(text)
        result = run_module("image_info", {"images": [], "from": "registry", "ca_file": str(path)})
        assert result["failed"]
        assert result["msg"] == f"{path}: cannot be read: {words}; name a file of certificates in PEM form"


# ---- an engine


class Engine(ThreadingUnixStreamServer):
    """A Docker engine that has images by name; a text in their place is how it refuses."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, path: Path, images: dict[str, t.Any]) -> None:
        self.images, self.asked = images, 0
        super().__init__(str(path), _EngineHandler)


class _EngineHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Engine

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_: t.Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked += 1
        found = self.server.images.get(unquote(self.path).removeprefix("/images/").removesuffix("/json"))
        status, body = (
            (404, {"message": "No such image"}) if found is None else (500, {"message": found}) if isinstance(found, str) else (200, found)
        )
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def engine(tmp_path: Path) -> t.Iterator[t.Callable[..., Engine]]:
    made: list[Engine] = []

    def make(images: dict[str, t.Any]) -> Engine:
        made.append(Engine(tmp_path / "docker.sock", images))
        threading.Thread(target=made[-1].serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return made[-1]

    yield make
    for each in made:
        each.shutdown()
        each.server_close()


def test_an_engine_tells_of_the_images_that_it_has(engine: t.Callable[..., Engine], run_module: RunModule) -> None:
    names = [f"registry.lan:5000/claims/{name}@{DIGEST}" for name in ("ocr", "chat", "form", "odd")]
    images = [world.engine_image(world.OCR), "no space left on device", None, world.engine_image(["CUDA_VERSION=1", 2], "x!")]
    server = engine(dict(zip(names, images, strict=True)))
    tagged = names[0].replace("@", ":1.4@")
    result = run_module("image_info", {"images": [tagged, *names[1:]], "docker_socket": str(server.server_address)}, check=True)
    assert result["found"] == {tagged: {"variables": KNOWN, "architecture": "amd64"}}
    assert result["missing"] == {
        names[1]: "the Docker engine answered 500: no space left on device",
        names[2]: "the engine does not have it",
        names[3]: "its variables (Env) are not a list of text",
    }
    assert not result["changed"]


@pytest.mark.parametrize("detail", [[], {"Config": None}, {"Config": []}])
def test_an_engines_image_without_a_configuration_is_known_to_say_nothing_or_refused(
    engine: t.Callable[..., Engine], run_module: RunModule, detail: t.Any
) -> None:
    image = f"ocr@{DIGEST}"
    result = run_module("image_info", {"images": [image], "docker_socket": str(engine({image: detail}).server_address)})
    if detail == {"Config": None}:
        assert result["found"] == {image: {"variables": [], "architecture": None}}
    else:
        assert list(result["missing"]) == [image]


def test_an_engine_that_does_not_answer_is_a_reason_for_each_image_and_no_failure(tmp_path: Path, run_module: RunModule) -> None:
    images = [f"ocr@{DIGEST}", f"chat@{DIGEST}"]
    result = run_module("image_info", {"images": images, "docker_socket": str(tmp_path / "none.sock")})
    assert not result["failed"]
    assert result["missing"] == dict.fromkeys(images, f"Docker engine at {tmp_path}/none.sock: No such file or directory")


def test_a_time_that_is_none_is_refused(run_module: RunModule) -> None:
    assert run_module("image_info", {"images": [], "timeout": 0})["msg"] == "timeout: 0 is no time; write seconds, such as 20"
