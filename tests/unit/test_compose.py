# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a compose file is made of: values that nobody can break out of, arguments, health checks, and the schema's judgement."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.fleet.plugins.filter import compose as compose_filter
from ansible_collections.gpuops.fleet.plugins.filter.compose import FilterModule, compose_schema
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import compose
from hypothesis import given
from hypothesis import strategies as st

VALID = "services:\n  model:\n    image: a\n"


def interpolated(data: t.Any) -> t.Any:
    """What Compose makes of data that was read from YAML: '$$' is a dollar sign, anything else after '$' would be a variable."""
    if isinstance(data, str):
        assert "$" not in data.replace("$$", ""), "Compose would look for a variable here"
        return data.replace("$$", "$")
    if isinstance(data, list):
        return [interpolated(each) for each in data]
    return data


@given(st.recursive(st.text() | st.integers(-(2**40), 2**40) | st.booleans(), st.lists, max_leaves=5))
def test_a_value_reads_back_as_it_was_whatever_an_owner_wrote(value: t.Any) -> None:
    text = compose.compose_value(value)
    assert "\n" not in text
    assert interpolated(yaml.safe_load(f"key: {text}\n")["key"]) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("price: $5 ${HOME}", '"price: $$5 $${HOME}"'),
        ("line\nbreak", '"line\\nbreak"'),
        ("\u0085\u2028\ufeff", '"\\u0085\\u2028\\ufeff"'),
        ("größe 收據", '"größe 收據"'),
        (["a", 1, True], '["a", 1, true]'),
    ],
)
def test_values_are_written_in_one_readable_line(value: t.Any, text: str) -> None:
    assert compose.compose_value(value) == text


@pytest.mark.parametrize(
    ("source", "path"),
    [("receipt-ocr", "/srv/models/receipt-ocr"), ("a/b", "/srv/models/a/b"), ("/data/shared", "/data/shared")],
)
@pytest.mark.parametrize("store", ["/srv/models", "/srv/models/"])
def test_a_relative_volume_lies_in_the_model_store_and_an_absolute_one_where_it_says(source: str, path: str, store: str) -> None:
    assert compose.volume_source(source, store) == path


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers 200 below /up, 503 elsewhere."""

    def do_GET(self) -> None:
        if self.path.endswith("late"):
            time.sleep(3)
        self.send_response(200 if self.path.startswith("/up") else 503)
        self.end_headers()

    def log_message(self, *args: t.Any) -> None:
        """Keep the test's output clean."""


@pytest.fixture(scope="module")
def server() -> t.Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def run_check(url: str, tools: Path, seconds: int = 10) -> int:
    """Exit status of the health check in an 'image' that has only what is in ``tools``."""
    command = compose.health_command(url, seconds)
    return subprocess.run(["/bin/sh", "-c", command], env={"PATH": str(tools)}, capture_output=True, timeout=20, check=False).returncode


def provide(tools: Path, name: str, script: str) -> None:
    tools.mkdir(exist_ok=True)
    (tools / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (tools / name).chmod(0o755)


@pytest.mark.parametrize(("path", "healthy"), [("/up", True), ("/up?a=b&c='d e'", True), ("/down", False)])
def test_an_image_with_python_alone_is_checked(server: str, path: str, healthy: bool, tmp_path: Path) -> None:
    provide(tmp_path / "bin", "python3", f'exec {sys.executable} "$@"')
    assert (run_check(server + path.replace(" ", "%20"), tmp_path / "bin") == 0) == healthy


@pytest.mark.parametrize(("seconds", "healthy"), [(1, False), (15, True)])
def test_an_answer_has_the_time_that_the_manifest_gives_it(server: str, seconds: int, healthy: bool, tmp_path: Path) -> None:
    provide(tmp_path / "bin", "python3", f'exec {sys.executable} "$@"')
    assert (run_check(f"{server}/up/late", tmp_path / "bin", seconds) == 0) == healthy


@pytest.mark.parametrize("tool", ["curl", "wget"])
def test_an_image_with_curl_or_wget_is_checked_with_it_and_its_answer_counts(tool: str, tmp_path: Path) -> None:
    provide(tmp_path / "bin", tool, 'for last; do :; done; [ "$last" = "http://127.0.0.1:1/up?a=b&c" ]')
    assert run_check("http://127.0.0.1:1/up?a=b&c", tmp_path / "bin") == 0
    assert run_check("http://127.0.0.1:1/down", tmp_path / "bin") != 0


def test_a_container_that_lost_its_gpu_is_ill_though_its_server_answers(tmp_path: Path) -> None:
    provide(tmp_path / "bin", "curl", "exit 0")
    provide(tmp_path / "bin", "grep", 'exec /bin/grep "$@"')
    assert run_check("http://127.0.0.1:1/", tmp_path / "bin") == 0
    provide(tmp_path / "bin", "nvidia-smi", "echo 'Failed to initialize NVML: Unknown Error'; exit 255")
    assert run_check("http://127.0.0.1:1/", tmp_path / "bin") == 1
    provide(tmp_path / "bin", "nvidia-smi", "echo 'GPU 0: NVIDIA A100 (UUID: GPU-1)'")
    assert run_check("http://127.0.0.1:1/", tmp_path / "bin") == 0


def test_a_valid_file_has_no_problem() -> None:
    assert compose.compose_problems(VALID, compose_schema()) == []


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (VALID + "    device_id: [GPU-1]\n", "services.model", "'device_id' was unexpected"),
        (VALID + "    ports: 8080\n", "services.model.ports", "is not of type 'array'"),
        (VALID + "    restart: {}\n", "services.model.restart", "is not of type 'string'"),
        (VALID + "service: {}\n", "top level", "'service' does not match"),
        (VALID + "    healthcheck: {retries: [1]}\n", "services.model.healthcheck.retries", "is not of type 'number', 'string'"),
    ],
)
def test_what_the_specification_does_not_know_is_named_with_its_place(text: str, place: str, words: str) -> None:
    (problem,) = compose.compose_problems(text, compose_schema())
    assert problem.startswith(f"{place}: ")
    assert words in problem
    assert "\n" not in problem


def test_device_requests_without_capabilities_are_refused() -> None:
    text = VALID + '    deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ["GPU-1"]}]}}}\n'
    (problem,) = compose.compose_problems(text, compose_schema())
    assert problem == "services.model.deploy.resources.reservations.devices.0: 'capabilities' is a required property"


def test_what_a_template_refuses_comes_alone_and_in_its_words() -> None:
    text = VALID + "    ports: 8080\nx-gpuops-refused: ['it cannot be']\n"
    assert compose.compose_problems(text, compose_schema()) == ["it cannot be"]
    assert compose.compose_problems(VALID + "x-gpuops-refused: []\n", compose_schema()) == []


def test_every_problem_is_told_once_in_order() -> None:
    problems = compose.compose_problems(VALID + "    ports: 8080\n    expose: 1\n", compose_schema())
    assert [problem.partition(":")[0] for problem in problems] == ["services.model.expose", "services.model.ports"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [\n", "line 2: not YAML: "),
        ("- a\n", "not a mapping of services"),
        ("", "not a mapping of services"),
        ("a: \x00", "not YAML: "),
    ],
)
def test_a_text_that_is_no_mapping_is_told_plainly(text: str, words: str) -> None:
    (problem,) = compose.compose_problems(text, compose_schema())
    assert problem.startswith(words)


def test_a_missing_validator_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(FleetError, match=r"^cannot check a compose file: .*jsonschema is not installed; pip install jsonschema$"):
        compose.compose_problems(VALID, {})


def test_the_filters_have_the_names_that_templates_use() -> None:
    filters = FilterModule().filters()
    root = Path(__file__).resolve().parents[2]
    texts = [
        path.read_text(encoding="utf-8")
        for path in [*root.glob("compose-templates/*.j2"), *root.glob("roles/model_service/**/*.*")]
        if path.is_file()
    ]
    for name, function in filters.items():
        assert callable(function)
        assert any(f"gpuops.fleet.{name}" in text for text in texts), f"{name} is used by no template and no task"
        assert (root / "plugins" / "filter" / f"{name}.yml").exists()


def test_the_schema_is_the_specifications_own() -> None:
    schema = compose_schema()
    assert schema["$id"] == "compose_spec.json"
    assert json.dumps(schema).count("device_ids") > 0


def test_a_missing_schema_package_is_one_clear_line_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose_filter, "PACKAGE", "no_such_package")
    compose_filter.compose_schema.cache_clear()
    try:
        with pytest.raises(AnsibleFilterError, match=r"no_such_package is not installed; .*pip install check-jsonschema$"):
            compose_filter.compose_problems(VALID)
    finally:
        compose_filter.compose_schema.cache_clear()
    monkeypatch.undo()
    assert compose_filter.compose_problems(VALID) == []
