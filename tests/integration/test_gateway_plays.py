# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbook gateway and the role's entry for rollouts, by real ansible-playbook, with the real HAProxy on this machine."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import to_text
from fleet_site import REPOSITORY, demo

KEY = "planted-key-of-claims-0123456789"
MANIFEST = f"""schema: 1
service: receipt-ocr
team: claims
environment: production
image: r.example/receipt-ocr@sha256:{"a" * 64}
gpu: {{memory: 4 GiB}}
ports: [{{name: http, container: 8080}}]
route: {{}}
"""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _number in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in found]


class Plays:
    """An inventory with one GPU host and one gateway, both this machine."""

    def __init__(self, work: Path, program: str) -> None:
        self.work, self.program = work, program
        self.inventory = work / "inventory"
        self.http, self.metrics, self.replica = free_ports(3)
        # The path of a socket may have 107 bytes.
        self.run_dir = Path("/tmp") / f"gpuops-play-{self.http}"
        self.run_dir.mkdir()
        self.process: subprocess.Popen[bytes] | None = None
        for folder in ("manifests", "plans"):
            (self.inventory / folder).mkdir(parents=True)
        (self.inventory / "manifests" / "receipt-ocr.yml").write_text(MANIFEST)
        services = [
            {"service": "receipt-ocr", "replica": 1, "gpu": "GPU-1", "profile": "1g.10gb", "start": 0, "ports": {"http": self.replica}}
        ]
        services[0]["manifest"] = "sha256:" + "0" * 64
        plan = {"plan": 1, "host": "gpu-01", "serial": 1, "digest": plan_record.digest_of_plan([], services)}
        base: dict[str, t.Any] = {"digest": plan_record.digest_of_base([]), "gpus": []}
        (self.inventory / "plans" / "gpu-01.yml").write_text(to_text({**plan, "base": base, "layout": [], "services": services}))
        local = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "ansible_become": False,
            "fleet_address": "127.0.0.1",
        }
        gateway = {
            "gateway_http_port": self.http,
            "gateway_address": "127.0.0.1",
            "gateway_metrics": f"127.0.0.1:{self.metrics}",
            "gateway_package": False,
            "gateway_service": False,
            "gateway_program": program,
            "gateway_path": str(work / "etc" / "gw.cfg"),
            "gateway_directory": str(work / "etc" / "files"),
            "gateway_run_dir": str(self.run_dir),
            "gateway_state_dir": str(work / "state"),
            "gateway_user": "",
            "gateway_group": "",
            "gateway_maxconn": 500,
            "fleet_gateway_keys": {"claims": [KEY]},
        }
        groups = {"gpu_hosts": {"hosts": {"gpu-01": None}}, "gateways": {"hosts": {"gw-01": None}, "vars": gateway}}
        (self.inventory / "hosts.yml").write_text(yaml.safe_dump({"all": {"vars": local, "children": groups}}))

    def play(self, book: str, *options: str) -> tuple[int, str]:
        """(status, output) of a playbook."""
        env = demo.environment(self.work, REPOSITORY / "collections")
        command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(self.inventory / "hosts.yml"), book, *options]
        done = subprocess.run(command, env=env, cwd=self.work, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def start(self) -> None:
        """HAProxy, as its unit would start it."""
        argv = [self.program, "-W", "-f", str(self.work / "etc" / "gw.cfg"), "-S", str(self.run_dir / "master.sock")]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 15
        while not (self.run_dir / "admin.sock").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def close(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(15)
        shutil.rmtree(self.run_dir, ignore_errors=True)


@pytest.fixture
def plays(tmp_path: Path) -> t.Iterator[Plays]:
    # The unit tests keep one there where none is installed.
    kept = REPOSITORY / "build" / "cache" / "debian" / "haproxy" / "run"
    program = shutil.which("haproxy", path=f"/usr/sbin:/usr/local/sbin:/usr/bin:{kept}")
    if program is None:
        pytest.skip("no haproxy on this machine (Debian: apt install haproxy)")
    made = Plays(tmp_path, program)
    yield made
    made.close()


def changed(output: str, host: str = "gw-01") -> int:
    found = re.search(rf"^{host} .*changed=(\d+) ", output, re.MULTILINE)
    assert found, output
    return int(found.group(1))


def test_the_playbook_brings_the_gateway_once_and_no_output_or_file_has_a_key_in_it(plays: Plays) -> None:
    status, output = plays.play("gpuops.fleet.gateway", "--check", "--diff")
    assert (status, changed(output)) == (0, 2), output
    assert not (plays.work / "etc").exists()
    told = output
    status, output = plays.play("gpuops.fleet.gateway", "--diff", "-vvv")
    assert (status, changed(output)) == (0, 2), output
    told += output
    plays.start()
    status, output = plays.play("gpuops.fleet.gateway", "--check", "--diff")
    assert (status, changed(output)) == (0, 0), output
    told += output
    status, output = plays.play("gpuops.fleet.gateway", "-e", "fleet_gateway_rate=7", "-vvv", "--diff")
    assert (status, changed(output)) == (0, 2), output
    assert "load the new configuration" in output
    told += output
    page = (plays.inventory / "reports" / "pages" / "receipt-ocr.html").read_text()
    assert f"http://127.0.0.1:{plays.http}/receipt-ocr/" in page
    written = "".join(
        path.read_text() for folder in ("etc", "state", "inventory/reports") for path in (plays.work / folder).rglob("*") if path.is_file()
    )
    assert "claims" in written
    assert KEY not in written + told
    status, output = plays.play("gpuops.fleet.gateway", "-e", "fleet_gateway_keys={'claims':['short-planted']}")
    assert status != 0
    assert "fleet_gateway_keys.claims[0]: a key of 13 characters can be guessed" in output
    assert "short-planted" not in output
    status, output = plays.play("gpuops.fleet.gateway", "-e", "fleet_gateway_keys={}")
    assert status != 0
    assert "fleet_gateway_keys: no team has a key, and receipt-ocr asks for one: nobody could call it" in output
    assert " claims\n" in (plays.work / "etc" / "files" / "keys.map").read_text()
    plays.close()
    plays.process = None
    status, output = plays.play("gpuops.fleet.gateway", "-e", "gateway_state=absent")
    assert status == 0, output
    assert not list((plays.work / "etc").iterdir())


def test_a_gateway_that_fails_in_a_deploy_is_told_to_it_and_the_hosts_are_given_back(plays: Plays) -> None:
    inventory = yaml.safe_load((plays.inventory / "hosts.yml").read_text())
    dead = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
    inventory["all"]["children"]["gateways"]["hosts"] = {"gw-00": dead, "gw-01": {"fleet_gateway_keys": {"claims": ["short-planted"]}}}
    (plays.inventory / "hosts.yml").write_text(json.dumps(inventory))
    begin = {"name": "Hold", "hosts": "gpu_hosts", "gather_facts": False, "tasks": [{"ansible.builtin.set_fact": {"deploy_began": "now"}}]}
    words = [{"ansible.builtin.debug": {"msg": "given back: {{ deploy_problem }}"}}]
    end = {"name": "Give back", "hosts": "gpu_hosts", "gather_facts": False, "tasks": words}
    book = plays.work / "book.yml"
    book.write_text(yaml.safe_dump([begin, {"name": "Routes", "ansible.builtin.import_playbook": "gpuops.fleet.gateway"}, end]))
    _status, output = plays.play(str(book))
    assert re.search(r"given back: gateway gw-0[01]: .*(refused|can be guessed)", output), output
    assert "gw-00" in output
    assert "can be guessed" in output


def test_a_gpu_hosts_play_tells_every_gateway_and_nobody_where_there_is_none(plays: Plays) -> None:
    assert plays.play("gpuops.fleet.gateway")[0] == 0
    plays.start()
    book = plays.work / "book.yml"
    role = {"name": "gpuops.fleet.gateway", "tasks_from": "server.yml"}
    names = {
        "gateway_server_service": "receipt-ocr",
        "gateway_server_name": "receipt-ocr-1",
        "gateway_server_state": "drain",
        "gateway_server_wait": 5,
    }
    tasks = [{"name": "Drain", "ansible.builtin.include_role": role, "vars": names}]
    book.write_text(yaml.safe_dump([{"name": "Roll", "hosts": "gpu_hosts", "gather_facts": False, "become": True, "tasks": tasks}]))
    status, output = plays.play(str(book), "--limit", "gpu-01", "--check")
    assert (status, changed(output, "gpu-01")) == (0, 1), output
    for wanted in (1, 0):
        status, output = plays.play(str(book), "--limit", "gpu-01")
        assert (status, changed(output, "gpu-01")) == (0, wanted), output
    inventory = yaml.safe_load((plays.inventory / "hosts.yml").read_text())
    # One that no ssh reaches: the GPU host's play goes on to its rescue, and the others were told.
    dead = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
    inventory["all"]["children"]["gateways"]["hosts"] = {"gw-00": dead, "gw-01": None}
    (plays.inventory / "hosts.yml").write_text(json.dumps(inventory))
    again = {**tasks[0], "vars": {**names, "gateway_server_state": "ready", "gateway_server_wait": 0}}
    words = {"ansible.builtin.debug": {"msg": "rescued: {{ ansible_failed_result.msg }}"}}
    last = {"ansible.builtin.debug": {"msg": "done {{ gateway_server_result.results | map(attribute='changed') }}"}}
    tried = [{"block": [again], "rescue": [words], "always": [last]}]
    book.write_text(yaml.safe_dump([{"name": "Roll", "hosts": "gpu_hosts", "gather_facts": False, "tasks": tried}]))
    status, output = plays.play(str(book), "--limit", "gpu-01")
    assert status == 0, output
    assert re.search(r"rescued: gateway gw-00: .*(refused|connect)", output), output
    assert re.search(r"done \[[Ff]alse, [Tt]rue\]", output), output
    del inventory["all"]["children"]["gateways"]
    (plays.inventory / "hosts.yml").write_text(json.dumps(inventory))
    status, output = plays.play(str(book))
    assert (status, changed(output, "gpu-01")) == (0, 0), output
