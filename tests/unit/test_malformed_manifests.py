# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ten thousand manifests that nobody should write: each is read, or refused in lines that a person can use. None is a crash."""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import yaml
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import need_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifests
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
    "weights": [{"path": "faces/1/model.onnx", "sha256": "0" * 64}],
    "route": {"port": "http", "path": "/a", "keys": True, "teams": ["claims"], "rate": 60, "timeout": 30},
    "rollout": {"way": "auto", "settle": 5, "warm_up": {"method": "POST", "path": "/", "body": "{}", "status": 200}},
    "lease": {"days": 7, "notice_hours": 24, "idle_minutes": 60, "idle_below": 0.05},
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
MANY = settings(max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def places(data: t.Any, at: tuple[t.Any, ...] = ()) -> t.Iterator[tuple[t.Any, ...]]:
    """The way to every value below a document, the document's own left out."""
    keys: t.Iterable[t.Any] = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield (*at, key)
        yield from places(data[key], (*at, key))


PLACES = sorted(places(COMPLETE), key=repr)


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
