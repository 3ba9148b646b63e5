# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Model files before a service stops for them: there, right, copied whole or not at all, and never overwritten."""

from __future__ import annotations

import hashlib
import json
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.model_files import BLOCK, ModelFiles, Wish
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.runtimes import store_paths
from ansible_collections.gpuops.fleet.tests.unit.decide_world import manifest_text
from conftest import RunModule

NEW = b"weights of version 2" * 1000
WISH = {"path": "faces/2/model.onnx", "sha256": hashlib.sha256(NEW).hexdigest()}


class Store:
    """A model store, an archive beside it, and the module."""

    def __init__(self, work: Path, run: RunModule) -> None:
        self.store, self.archive, self.state, self._run = work / "models", work / "archive", work / "state", run
        self.target = self.store / WISH["path"]
        self.store.mkdir()

    def put(self, root: Path, content: bytes) -> Path:
        path = root / WISH["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def run(self, *wishes: dict[str, str], check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        own = {"models_dir": str(self.store), "source": str(self.archive), "state_dir": str(self.state), "files": list(wishes or (WISH,))}
        return self._run("model_files", {**own, **more}, check)


@pytest.fixture
def store(tmp_path: Path, run_module: RunModule) -> Store:
    return Store(tmp_path, run_module)


def test_what_is_missing_is_copied_once_and_check_mode_said_so(store: Store) -> None:
    store.put(store.archive, NEW)
    step = f"copy {WISH['path']} from {store.archive} to {store.store}"
    predicted = store.run(check=True)
    assert (predicted["changed"], predicted["steps"], store.target.exists(), store.state.exists()) == (True, [step], False, False)
    done = store.run()
    assert (done["changed"], done["steps"], done["copied"]) == (True, [step], [WISH["path"]])
    assert store.target.read_bytes() == NEW
    assert oct(store.target.stat().st_mode & 0o777) == "0o644"
    assert not store.run()["changed"]


def test_a_file_with_another_checksum_is_never_overwritten(store: Store) -> None:
    store.put(store.archive, NEW)
    store.put(store.store, b"weights of version 1")
    told = store.run()
    found = hashlib.sha256(b"weights of version 1").hexdigest()[:12]
    wrong = f"{WISH['path']} in the model store {store.store} has checksum {found}..., and {WISH['sha256'][:12]}... is wished"
    assert told["failed"]
    assert told["msg"] == f"{wrong}: give a new version another path; nothing was stopped"
    assert store.target.read_bytes() == b"weights of version 1"


@pytest.mark.parametrize("check", [False, True])
def test_an_archive_with_something_else_leaves_nothing_behind(store: Store, check: bool) -> None:
    store.put(store.archive, b"cut short")
    told = store.run(check=check)
    assert told["failed"]
    assert f"{WISH['path']} in {store.archive} has checksum " in told["msg"]
    assert not list(store.store.rglob("*.onnx*"))


def test_every_reason_is_told_at_once(store: Store) -> None:
    told = store.run({"path": "a", "sha256": "0" * 64}, {"path": "b", "sha256": "0" * 64}, paths=["llama", "faces"])
    none = f"neither the model store {store.store} nor {store.archive} has a file"
    lacks = f"the model store {store.store} has no"
    assert told["msg"] == f"{none} a; {none} b; {lacks} llama; {lacks} faces; nothing was stopped"


def test_a_directory_that_will_be_copied_counts_as_there(store: Store) -> None:
    store.put(store.archive, NEW)
    assert not store.run(paths=["faces/2"], check=True)["failed"]
    assert not store.run(paths=["faces/2"])["failed"]


def test_what_was_hashed_is_hashed_again_only_when_the_file_changed(store: Store) -> None:
    path = store.put(store.store, NEW)
    assert not store.run(source=None)["failed"]
    memory = store.state / "model-files.json"
    known = json.loads(memory.read_text())
    # A checksum that was remembered is believed as long as the file is the same: this one shows that it was not hashed again.
    known["files"][str(path)]["sha256"] = "f" * 64
    memory.write_text(json.dumps(known))
    assert "has checksum ffffffffffff" in store.run(source=None)["msg"]
    os.utime(path, ns=(1, 1))
    assert not store.run(source=None)["failed"]


def test_a_damaged_memory_is_one_line(store: Store) -> None:
    store.state.mkdir()
    (store.state / "model-files.json").write_text('{"format": 9}')
    assert store.run()["msg"] == f"{store.state}/model-files.json: this is no list of checksums; remove it; the files are hashed again then"


def test_what_a_service_reads_of_the_store_is_known() -> None:
    model = "{parameters: 8.03e9, bytes_per_parameter: 2, layers: 32, kv_heads: 8, head_dim: 128, context: 8192}"
    mounts = "[{source: faces, target: /faces}, {source: out, target: /out, read_only: false}, {source: /etc/ssl, target: /ssl}]"
    text = manifest_text(runtime="vllm", model=model, volumes=mounts)
    assert store_paths(read_manifest("m.yml", text).data()) == ["faces", "receipt-ocr"]


def test_weights_outside_the_store_are_refused() -> None:
    for path in ("/etc/shadow", "../other-team/model.onnx"):
        with pytest.raises(Exception, match="is not below the model store"):
            read_manifest("m.yml", manifest_text(weights=f"[{{path: {path}, sha256: '{'0' * 64}'}}]"))


def test_other_weights_are_another_version_and_none_are_as_before() -> None:
    plain = read_manifest("m.yml", manifest_text()).digest()
    assert read_manifest("m.yml", manifest_text(weights="[]")).digest() == plain
    first, second = (read_manifest("m.yml", manifest_text(weights=f"[{{path: a, sha256: {one * 64!r}}}]")).digest() for one in "01")
    assert len({plain, first, second}) == 3


def test_the_lease_is_looked_at_while_files_are_copied_and_hashed_and_a_lost_one_ends_that(store: Store) -> None:
    content = b"w" * (3 * BLOCK)
    wish = Wish(WISH["path"], hashlib.sha256(content).hexdigest())
    store.put(store.archive, content)
    looks: list[int] = []

    def alive() -> None:
        looks.append(1)
        if len(looks) == 3:
            raise FleetError("the lease on this host was lost")

    with pytest.raises(FleetError, match="lease on this host was lost"):
        ModelFiles(store.store, store.state, store.archive, alive=alive).stage([], [wish])
    assert list(store.target.parent.iterdir()) == []
    looks[:] = [1] * 3
    assert ModelFiles(store.store, store.state, store.archive, alive=alive).stage([], [wish]).copied == [wish.path]
    assert len(looks) == 6
    os.utime(store.target, (1, 1))  # what is remembered of it counts no longer
    ModelFiles(store.store, store.state, store.archive, alive=alive).stage([], [wish])
    assert len(looks) == 9
