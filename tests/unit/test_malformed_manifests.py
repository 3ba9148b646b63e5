# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ten thousand manifests that nobody should write: each is read, or refused in lines that a person can use. None is a crash.

What is read can do no harm to others: it makes no line of the gateways' files but those that are meant, and no runtime mounts anything
for it that is not below the model store.
"""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import gateway, gateway_config, runtimes
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import need_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest, read_manifests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FILES = sorted((Path(__file__).resolve().parents[2] / "inventories").glob("*/manifests/*.yml"))
TEXTS = [path.read_text(encoding="utf-8") for path in FILES]
# Every block that a manifest may have, so that what is exchanged for something else reaches all of them.
COMPLETE: dict[str, t.Any] = {
    **yaml.safe_load(TEXTS[0]),
    "ports": [{"name": "http", "container": 8000, "host": 18000}],
    "health": {"port": "http", "path": "/health", "start_period": 60, "interval": 30, "timeout": 10, "retries": 3},
    "env": {"LOG_LEVEL": "info"},
    "volumes": [{"source": "models/a", "target": "/models", "read_only": True}],
    "model": {"parameters": 8e9, "bytes_per_parameter": 2, "layers": 32, "kv_heads": 8, "head_dim": 128, "context": 8192, "concurrency": 4},
    "triton": {
        "path": "faces",
        "inputs": [{"name": "image", "type": "FP32", "dims": [3, 112, 112]}],
        "outputs": [{"name": "face", "type": "FP32", "dims": [512]}],
    },
    "speech": {"model": "whisper-large-v3", "compute_type": "float16", "language": "zh"},
    "secrets": ["hub_token"],
    "weights": [{"path": "faces/1/model.onnx", "sha256": "0" * 64}],
    "route": {"port": "http", "path": "/a", "keys": True, "teams": ["claims"], "rate": 60, "timeout": 30},
    "rollout": {"way": "auto", "settle": 5, "warm_up": {"method": "POST", "path": "/", "body": "{}", "status": 200}},
    "lease": {"days": 7, "notice_hours": 24, "idle_minutes": 60, "idle_below": 0.05},
    "needs": {"cuda": "12.4.1", "capability": "8.0", "forward_compat": True},
}
ODD: st.SearchStrategy[t.Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(
        [
            "",
            " ",
            "off",
            "1e999",
            "-0",
            "8 GiB",
            "8GB",
            "../..",
            "/",
            "\x00",
            "\u2028",
            "{{ lookup('pipe', 'id') }}",
            "${HOME}",
            "!!python/object",
        ]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=5,
)
# Put into a text that was right: what is hard to see, and what other programs read in their own way.
SLIPS = ["\n", "\x00", "\x1b", "\x7f", " ", "\u2028", "'", "/", "/../"]
GATEWAY = gateway.read_settings({"domain": "models.example.com"})
MEANT = re.compile(r"|#[ -~]*|(global|defaults|frontend [a-z_]+|backend [a-z0-9_-]+)|    [ -~]+")
MANY = settings(max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def places(data: t.Any, at: tuple[t.Any, ...] = ()) -> t.Iterator[tuple[t.Any, ...]]:
    """The way to every value below a document, the document's own left out."""
    keys: t.Iterable[t.Any] = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield (*at, key)
        yield from places(data[key], (*at, key))


PLACES = sorted(places(COMPLETE), key=repr)


def minds_its_own(manifest: Manifest) -> None:
    """The gateways' files have the lines that they should, and what a runtime mounts lies below the model store."""
    data = manifest.data()
    wanted = [*(data["weights"] or ()), data["model"] or {}, data["triton"] or {}]
    for path in [one["path"] for one in wanted if one] + [mount["source"] for mount in mounts(data)]:
        assert not path.startswith("/"), path
        assert ".." not in path.split("/"), path
    line = {"service": manifest.service, "replica": 1, "ports": {port["name"]: 18000 for port in data["ports"]}}
    try:
        routes, _notes = gateway.make_routes([manifest], {"h1": {"services": [line]}}, {"h1": "10.0.0.1"}, GATEWAY)
    except FleetError:
        return  # an address that is the gateway's own
    for row in gateway_config.config(routes, {}, {}, GATEWAY).split("\n"):
        assert MEANT.fullmatch(row), row
    for text in gateway_config.files(routes, {}, {}, GATEWAY).values():
        assert re.fullmatch(r"([!-~]+ [a-z0-9-]+\n)*", text), text


def mounts(data: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    """What the runtimes would mount, that of the manifest and those of which it has a block too."""
    known = {"triton": data["triton"], "speech": data["speech"], "vllm": data["model"]}
    return [mount for runtime, block in known.items() if block for mount in runtimes.volumes({**data, "runtime": runtime})]


def judge(text: str) -> None:
    """Read, or refused in lines that each name the file and have neither a traceback nor a control character."""
    try:
        (manifest,) = read_manifests([("m/odd.yml", text)])
    except FleetError as error:
        for line in str(error).split("\n"):
            assert line.startswith("m/odd.yml"), line
            assert not re.search(r"Traceback|[\x00-\x08\x0b-\x1f\x7f]", line), line
        return
    json.dumps(manifest.data(), allow_nan=False)
    minds_its_own(manifest)
    assert manifest.digest().startswith("sha256:")
    assert need_of(manifest).service == manifest.service


@MANY
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.one_of(st.just(...), ODD)), min_size=1, max_size=3))
def test_any_value_in_any_field_is_read_or_refused(changes: list[tuple[tuple[t.Any, ...], t.Any]]) -> None:
    data = json.loads(json.dumps(COMPLETE))
    for place, value in changes:
        here = data
        try:
            for key in place[:-1]:
                here = here[key]
            if value is ...:
                del here[place[-1]]
            else:
                here[place[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # what was there went with a change before
    judge(yaml.safe_dump(data, allow_unicode=True, sort_keys=False))


@pytest.mark.parametrize("slip", SLIPS, ids=ascii)
def test_a_character_too_many_in_any_word_is_read_or_refused(slip: str) -> None:
    for place in PLACES:
        data = json.loads(json.dumps(COMPLETE))
        here = data
        for key in place[:-1]:
            here = here[key]
        right = here[place[-1]]
        for at in (0, len(right) // 2, len(right)) if isinstance(right, str) else ():
            here[place[-1]] = right[:at] + slip + right[at:]
            judge(yaml.safe_dump(data, allow_unicode=True, sort_keys=False))


@MANY
@given(
    st.sampled_from(TEXTS),
    st.lists(
        st.tuples(
            st.floats(0, 1),
            st.integers(0, 40),
            st.text(max_size=6) | st.sampled_from(["\n", "\t", ": ", "- ", "&a ", "*a", "<<: ", "{", "]", "---\n", "!!int "]),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_any_slip_of_the_pen_is_read_or_refused(text: str, slips: list[tuple[float, int, str]]) -> None:
    for where, length, put in slips:
        at = int(where * len(text))
        text = text[:at] + put + text[at + length :]
    judge(text)
