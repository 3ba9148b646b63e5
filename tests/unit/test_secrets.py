# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets of services: sealed at rest where that works, ready in memory after a boot, gone with the service, and never shown."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils import secrets
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

if t.TYPE_CHECKING:
    from conftest import RunModule

CANARY = "canary-5f2c$'\" line\nanother \u00fc"
REAL = shutil.which("systemd-creds")
# Seals by turning every byte round and putting the name and the host's key before them, and logs what everybody on the host could see.
STAND_IN = """\
import json, os, sys
here = {here!r}
key = open(os.path.join(here, "key"), "rb").read()
with open(os.path.join(here, "seen"), "ab") as log:
    for process in ("self", str(os.getppid())):
        for name in ("cmdline", "environ"):
            log.write(open(f"/proc/{{process}}/{{name}}", "rb").read() + b"\\n")
verb, options, ends = sys.argv[1], sys.argv[2:-2], sys.argv[-2:]
name = [option for option in options if option.startswith("--name=")][0].encode()
assert ends == ["-", "-"], ends
data = sys.stdin.buffer.read()
if not key:
    sys.exit("Failed to determine local credential key: no host key")
if verb == "encrypt":
    sys.stdout.buffer.write(key + name + b"\\0" + bytes(255 - byte for byte in data))
elif not data.startswith(key + name + b"\\0"):
    sys.exit("Embedded credential name does not match")
else:
    sys.stdout.buffer.write(bytes(255 - byte for byte in data[len(key + name) + 1 :]))
"""


class World:
    """A host with a ``systemd-creds`` of its own, and the module on it."""

    def __init__(self, home: Path, run_module: RunModule) -> None:
        self.home, self._run_module = home, run_module
        self.state, self.ready = home / "state", home / "run" / "secrets"
        self.config = {"state_dir": str(self.state), "secrets_dir": str(self.ready)}
        self.output: list[str] = []

    def key(self, key: bytes) -> None:
        """The host's key; empty: systemd-creds cannot seal here."""
        (self.home / "key").write_bytes(key)

    def run(self, check: bool = False, replica: str = "ocr-1", **args: t.Any) -> dict[str, t.Any]:
        result = self._run_module("service_secrets", {"replica": replica, **self.config, **args}, check=check, diff=True)
        self.output.append(json.dumps(result, ensure_ascii=False))
        return result

    def kept(self, name: str = "token", replica: str = "ocr-1") -> dict[str, t.Any]:
        data: dict[str, t.Any] = json.loads((self.state / "secrets" / replica / f"{name}.json").read_text())
        return data

    def plain(self, name: str = "token", replica: str = "ocr-1") -> Path:
        return self.ready / replica / name

    def files(self) -> dict[str, tuple[bytes, int]]:
        """Everything that lies on the host, with its inode."""
        found = [path for top in (self.state, self.ready) for path in top.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.home)): (path.read_bytes(), path.stat().st_ino) for path in found}

    def seen(self) -> bytes:
        return (self.home / "seen").read_bytes()


@pytest.fixture
def world(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> World:
    program = tmp_path / "bin" / "systemd-creds"
    program.parent.mkdir()
    (tmp_path / "creds.py").write_text(STAND_IN.format(here=str(tmp_path)))
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {tmp_path}/creds.py "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    made = World(tmp_path, run_module)
    made.key(b"KEY1")
    return made


def mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"


def test_a_secret_is_sealed_at_rest_and_ready_in_memory(world: World) -> None:
    predicted = world.run(check=True, secrets={"token": CANARY})
    assert not world.state.exists()
    result = world.run(secrets={"token": CANARY})
    assert (predicted["changed"], result["changed"], result["sealed"]) == (True, True, {"token": "systemd-creds"})
    assert predicted["sealed"] == {"token": "(known after apply)"}
    assert world.kept()["sealed"] == "systemd-creds"
    assert world.plain().read_text() == CANARY
    assert (mode(world.plain()), mode(world.plain().parent), mode(world.ready)) == ("0444", "0700", "0700")
    folder = world.state / "secrets"
    assert (mode(folder), mode(folder / "ocr-1"), mode(folder / "ocr-1" / "token.json")) == ("0700", "0700", "0600")
    assert result["directory"] == str(world.ready / "ocr-1")


@pytest.mark.parametrize("broken", ["no key", "no program"])
def test_where_nothing_can_be_sealed_a_root_only_file_keeps_it_and_that_is_said(
    world: World, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken == "no key":
        world.key(b"")
    else:
        monkeypatch.setenv("PATH", str(world.home))
    result = world.run(secrets={"token": CANARY})
    assert (result["sealed"], world.kept()["sealed"]) == ({"token": "file"}, "file")
    assert "systemd-creds cannot seal on this host: token of ocr-1 in files that only root can read" in str(result["warnings"])
    assert mode(world.state / "secrets" / "ocr-1" / "token.json") == "0600"
    shutil.rmtree(world.ready)
    assert secrets.materialise(world.config, "ocr-1") == ["token"]
    assert world.plain().read_text() == CANARY
    assert world.run(secrets={"token": CANARY})["changed"] is False


def test_the_same_again_changes_nothing(world: World) -> None:
    first = world.run(secrets={"token": CANARY, "other": "x y"})
    before = world.files()
    for check in (True, False):
        again = world.run(check=check, secrets={"token": CANARY, "other": "x y"})
        assert (again["changed"], again["revision"]) == (False, first["revision"])
        assert again["diff"]["before"] == again["diff"]["after"]
    assert world.files() == before


def test_a_new_value_is_a_change_that_shows_and_that_compose_sees(world: World) -> None:
    first = world.run(secrets={"token": CANARY})
    predicted = world.run(check=True, secrets={"token": CANARY + "2"})
    assert world.plain().read_text() == CANARY
    result = world.run(secrets={"token": CANARY + "2"})
    assert (predicted["changed"], result["changed"]) == (True, True)
    assert predicted["diff"]["before"] == result["diff"]["before"] == "token: mode 0444, sealed by systemd-creds\n"
    assert predicted["diff"]["after"] == result["diff"]["after"] == "token: mode 0444, a new value\n"
    assert predicted["revision"] == "(known after apply)"
    assert result["revision"] != first["revision"]
    back = world.run(secrets={"token": CANARY})
    assert back["revision"] not in (first["revision"], result["revision"]), "it would tell that the value is the old one"


def test_a_running_container_keeps_the_file_that_it_has(world: World) -> None:
    world.run(secrets={"token": CANARY})
    with world.plain().open() as mounted:
        world.run(secrets={"token": "another"})
        assert mounted.read() == CANARY
    assert world.plain().read_text() == "another"


def test_what_leaves_the_list_is_removed(world: World) -> None:
    first = world.run(secrets={"token": CANARY, "other": "x y"})
    predicted = world.run(check=True, secrets={"other": "x y"})
    assert world.plain().exists()
    result = world.run(secrets={"other": "x y"})
    assert predicted["diff"] == result["diff"]
    assert (result["changed"], result["diff"]["after"]) == (True, "other: mode 0444, sealed by systemd-creds\n")
    assert result["revision"] not in ("", first["revision"])
    assert sorted(path.name for path in (world.state / "secrets" / "ocr-1").iterdir()) == ["other.json"]
    assert sorted(path.name for path in (world.ready / "ocr-1").iterdir()) == ["other"]


def test_a_service_that_leaves_takes_its_secrets_along(world: World) -> None:
    world.run(secrets={"token": CANARY})
    world.run(replica="ocr-2", secrets={"token": "second"})
    assert world.run(check=True, state="absent")["changed"]
    assert world.plain().exists()
    result = world.run(state="absent", secrets={"token": CANARY})
    assert (result["changed"], result["sealed"], result["revision"]) == (True, {}, "")
    assert [path.name for path in (world.state / "secrets").iterdir()] == ["ocr-2"]
    assert [path.name for path in world.ready.iterdir()] == ["ocr-2"]
    assert world.run(state="absent")["changed"] is False
    assert secrets.remove(world.config, "ocr-2") is True
    assert secrets.remove(world.config, "ocr-2") is False
    assert world.files() == {}


def test_a_service_without_secrets_leaves_no_trace(world: World) -> None:
    assert world.run()["changed"] is False
    assert secrets.materialise(world.config, "ocr-1") == []
    assert (world.state.exists(), world.ready.exists()) == (False, False)


def test_after_a_boot_everything_is_made_ready_again_with_its_rights(world: World) -> None:
    world.run(secrets={"token": CANARY, "other": "x y"}, mode="0400", uid=os.getuid(), gid=os.getgid())
    shutil.rmtree(world.ready)  # it was in memory
    assert secrets.materialise(world.config, "ocr-1") == ["other", "token"]
    assert (world.plain().read_text(), mode(world.plain()), world.plain().stat().st_uid) == (CANARY, "0400", os.getuid())
    assert (mode(world.ready), mode(world.ready / "ocr-1")) == ("0700", "0700")
    before = world.files()
    (world.ready / "ocr-1" / "stranger").write_text("left behind")
    secrets.materialise(world.config, "ocr-1")
    assert world.files() == before, "what is right is left alone, what is nobody's is taken away"


def test_a_file_that_somebody_spoilt_is_a_change(world: World) -> None:
    world.run(secrets={"token": CANARY})
    world.plain().chmod(0o644)
    world.plain().write_text("spoilt")
    assert world.run(check=True, secrets={"token": CANARY})["changed"]
    assert world.run(secrets={"token": CANARY})["changed"]
    assert (world.plain().read_text(), mode(world.plain())) == (CANARY, "0444")


def test_other_rights_are_a_change_of_the_file_alone(world: World) -> None:
    first = world.run(secrets={"token": CANARY})
    result = world.run(secrets={"token": CANARY}, mode="0440")
    assert (result["changed"], mode(world.plain()), result["revision"]) == (True, "0440", first["revision"])
    assert result["diff"]["after"] == "token: mode 0440, sealed by systemd-creds\n"
    assert world.run(secrets={"token": CANARY}, mode="0440")["changed"] is False


def test_a_key_that_is_another_one_now_is_named_at_boot_and_mended_by_the_next_apply(world: World) -> None:
    world.run(secrets={"token": CANARY})
    world.key(b"KEY2")
    with pytest.raises(
        FleetError, match=r"^secret token of ocr-1 cannot be unsealed on this host any more; its key or TPM changed: apply again"
    ):
        secrets.materialise(world.config, "ocr-1")
    assert world.run(secrets={"token": CANARY})["changed"]
    assert secrets.materialise(world.config, "ocr-1") == ["token"]


def test_one_secrets_file_is_no_use_in_anothers_place(world: World) -> None:
    world.run(secrets={"token": CANARY})
    world.run(replica="spy-1", secrets={"mine": "x"})
    shutil.copy(world.state / "secrets/ocr-1/token.json", world.state / "secrets/spy-1/mine.json")
    with pytest.raises(FleetError, match="cannot be unsealed"):
        secrets.materialise(world.config, "spy-1")


@pytest.mark.parametrize(
    "text", ["not json", "[]", "{}", json.dumps({"format": 9}), json.dumps({"format": 1, "sealed": "file", "mode": "0444", "data": "%"})]
)
def test_a_damaged_file_is_named_without_its_content(world: World, text: str) -> None:
    world.run(secrets={"token": CANARY})
    path = world.state / "secrets" / "ocr-1" / "token.json"
    path.write_text(text)
    with pytest.raises(FleetError, match=str(path)) as caught:
        secrets.materialise(world.config, "ocr-1")
    assert "%" not in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"secrets": {"../x": "a value"}},
            "secrets: '../x' cannot be a file's name here; use 1 to 63 of letters, digits, '-', '_' and '.'",
        ),
        ({"secrets": {".x": "a value"}}, "secrets: '.x' cannot be"),
        ({"secrets": {"token": ""}}, "secrets.token: a secret is a text that is not empty; write numbers between quotes"),
        ({"secrets": {"token": 7}}, "secrets.token: a secret is a text"),
        ({"secrets": {"token": "a" * 600_000}}, "secrets.token: it has 600000 bytes; 524288 are the most"),
        ({"replica": "../x"}, "replica: '../x' cannot be a file's name"),
        ({"mode": "rw"}, "mode: 'rw' is no mode of a file; write it between quotes, as '0444'"),
        ({"mode": "4755"}, "mode: '4755' is no mode"),
        ({"uid": -1}, "uid: expected a number of a user or group, found -1"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_written(world: World, asked: dict[str, t.Any], message: str) -> None:
    for check in (True, False):
        result = world.run(check=check, **asked)
        assert result["failed"]
        assert result["msg"].startswith(message)
    assert world.files() == {}


def test_without_the_hosts_lease_nothing_is_written(world: World) -> None:
    leases.acquire(world.state, "alice", "apply", 600)
    assert "lost to alice" in world.run(secrets={"token": CANARY}, lease="another")["msg"]
    assert not (world.state / "secrets").exists()


def test_a_value_shows_nowhere_but_where_the_service_reads_it(world: World) -> None:
    """Not in what the module returns, not in what any process could see of another, not at rest, not in a file that is left behind."""
    world.run(check=True, secrets={"token": CANARY})
    world.run(secrets={"token": CANARY})
    world.run(secrets={"token": CANARY, "more": "x y z"})
    world.run(secrets={"token": CANARY}, mode="0400")
    world.run(state="absent", secrets={"token": CANARY})
    world.run(secrets={"token": CANARY})
    first_line = CANARY.splitlines()[0].encode()
    forms = [
        first_line,
        CANARY.encode(),
        base64.b64encode(CANARY.encode()),
        json.dumps(CANARY)[1:-1].encode(),
        CANARY.encode().hex().encode(),
    ]
    assert b"--name=gpuops.ocr-1.token" in world.seen()
    for form in forms:
        assert form not in world.seen()
        assert all(form not in text.encode() for text in world.output)
        assert [name for name, (content, _inode) in world.files().items() if form in content] in ([], ["run/secrets/ocr-1/token"])
    assert not [path for path in world.home.rglob("*") if "gpuops-new" in path.name or path.name.startswith("~")]


@pytest.mark.skipif(REAL is None, reason="this machine has no systemd-creds")
def test_the_real_systemd_creds_seals_and_unseals(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.home / "bin" / "systemd-creds").unlink()
    monkeypatch.setenv("SYSTEMD_CREDENTIAL_SECRET", str(world.home / "hostkey"))  # not this machine's own
    result = world.run(secrets={"token": CANARY})
    assert result["sealed"] in ({"token": "systemd-creds"}, {"token": "file"}), "an old one may not be able to"
    if os.getuid() == 0:
        assert result["sealed"] == {"token": "systemd-creds"}
        assert CANARY.encode() not in base64.b64decode(world.kept()["data"])
    shutil.rmtree(world.ready)
    secrets.materialise(world.config, "ocr-1")
    assert world.plain().read_text() == CANARY
    assert world.run(secrets={"token": CANARY})["changed"] is False


def test_without_purge_what_a_version_mounts_that_may_come_back_stays_and_the_revision_is_that_of_the_others(world: World) -> None:
    world.run(secrets={"token": "one", "old": "two"})
    promised = world.run(check=True, secrets={"token": "one"}, purge=False)
    kept = world.run(secrets={"token": "one"}, purge=False)
    assert (promised["changed"], kept["changed"], kept["others"]) == (False, False, ["old"])
    assert promised["revision"] == kept["revision"]
    assert world.plain("old").read_text() == "two"
    new = world.run(secrets={"token": "one", "new": "three"}, purge=False)
    assert (new["changed"], new["others"], world.plain("old").exists(), world.plain("new").exists()) == (True, ["old"], True, True)
    gone = world.run(secrets={"token": "one", "new": "three"})
    assert (gone["changed"], gone["others"], gone["revision"]) == (True, [], new["revision"])
    assert not world.plain("old").exists()
    assert world.run(secrets={}, purge=False)["others"] == ["new", "token"]
    assert world.plain().exists()
