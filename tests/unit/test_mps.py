# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MPS daemons as units: for a GPU or a slice, with their own user, their limits, and nothing left when they go."""

from __future__ import annotations

import os
import subprocess
import typing as t
from pathlib import Path
from shutil import which

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import mps
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import mps_client_limit
from conftest import MakeHost, RunModule
from debian import program, release
from mps_world import World, cut

A100, H100, L40S = "a100-80gb", "h100-80gb", "l40s-48gb"
MakeWorld = t.Callable[..., World]


@pytest.fixture
def world(fleet_host: MakeHost, run_module: RunModule) -> t.Iterator[MakeWorld]:
    made: list[World] = []

    def make(*boards: str, control: str | None = None) -> World:
        made.append(World(fleet_host(*boards), run_module, control))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ask(here: World, ident: str, line: str) -> str:
    """What a daemon answers."""
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(here.pipe(ident)), "CUDA_MPS_LOG_DIRECTORY": str(here.where)}
    done = subprocess.run([here.control], input=line + "\n", env=environment, capture_output=True, text=True, check=False, timeout=20)
    return done.stdout.strip()


def test_a_whole_gpu_gets_a_daemon_in_exclusive_mode_with_its_own_user_and_limits(world: MakeWorld) -> None:
    here = world(f"{L40S}:2")
    uuid = here.uuids[0]
    result = here.done({"gpu": 0, "thread_percentage": 25, "memory_limit_mib": 5000})
    assert result["steps"] == [
        "write gpuops-fleet-mps@.service",
        f"start the MPS daemon of {uuid}: user 70700, 25 % of the SMs and 5000 MiB for each client, its shared memory, "
        "it is not started at boot, it does not run",
    ]
    assert result["diff"] == {"before": "", "after": f"{uuid}: user 70700, 25 % of the SMs and 5000 MiB for each client\n"}
    (daemon,) = result["daemons"]
    assert (daemon["unit"], daemon["uid"], daemon["clients"]) == (f"gpuops-fleet-mps@{uuid}.service", 70700, 48)
    assert daemon["pipe"] == str(here.pipe(uuid))
    assert (here.mode(0), here.mode(1)) == ("exclusive_process", "default")
    assert ask(here, uuid, "get_default_active_thread_percentage") == "25.0"
    assert ask(here, uuid, "get_default_device_pinned_mem_limit 0") == "4G"
    assert f"--reuid=70700 --regid=70700 --clear-groups -- {here.control} -f" in (here.where / "setpriv.log").read_text()
    assert f"CUDA_VISIBLE_DEVICES={uuid}\n" in (here.run_dir / uuid / "env").read_text()
    assert here.acts() == [f"--root=/ enable gpuops-fleet-mps@{uuid}.service", f"start gpuops-fleet-mps@{uuid}.service"]


def test_a_slice_gets_one_with_its_mig_uuid_in_default_mode_and_fewer_clients(world: MakeWorld) -> None:
    here = world(H100)
    cut(here.host, 0, "3g.40gb", 4)
    result = here.done({"gpu": 0, "profile": "3g.40gb", "start": 4})
    ident = f"{here.uuids[0]}-4"
    (daemon,) = result["daemons"]
    assert (daemon["id"], daemon["clients"]) == (ident, 20)
    with Nvml() as nvml:
        (instance,) = nvml.gpu_instances(nvml.find(0))
    assert f"CUDA_VISIBLE_DEVICES={instance.compute_instances[0].uuid}\n" in (here.run_dir / ident / "env").read_text()
    assert here.mode() == "default"


def test_a_unit_looks_up_the_slices_uuid_each_time_it_starts(world: MakeWorld) -> None:
    here = world(H100)
    here.host.simctl("set", "mig-uuid", "new")
    cut(here.host, 0, "3g.40gb", 4)
    here.done({"gpu": 0, "profile": "3g.40gb", "start": 4})
    ident = f"{here.uuids[0]}-4"
    before = (here.run_dir / ident / "env").read_text()
    subprocess.run([here.systemctl, "stop", f"gpuops-fleet-mps@{ident}.service"], check=True)
    here.host.simctl("set", "mig", "off", "--gpu", "0")
    cut(here.host, 0, "3g.40gb", 4)
    subprocess.run([here.systemctl, "start", f"gpuops-fleet-mps@{ident}.service"], check=True)
    after = (here.run_dir / ident / "env").read_text()
    assert after != before
    assert here.mps({"gpu": 0, "profile": "3g.40gb", "start": 4})["steps"] == []


def test_daemons_have_different_users_and_keep_them_when_another_goes(world: MakeWorld) -> None:
    here = world(f"{L40S}:3")
    here.done(*({"gpu": number} for number in range(3)))
    here.done({"gpu": 1}, state="absent")
    assert {ident: each["uid"] for ident, each in here.record().items()} == {here.uuids[0]: 70700, here.uuids[2]: 70702}
    here.done({"gpu": 1})
    assert here.record()[here.uuids[1]]["uid"] == 70701


def test_removal_restores_the_compute_mode_and_leaves_nothing_behind(world: MakeWorld) -> None:
    here = world(L40S)
    here.done({"gpu": 0})
    result = here.done(state="pruned")
    assert result["steps"] == [f"remove the MPS daemon of {here.uuids[0]}"]
    assert (result["daemons"], here.mode(), here.record()) == ([], "default", {})
    assert list(here.units.iterdir()) == []
    assert list(here.run_dir.iterdir()) == []
    assert list((here.where / "log").iterdir()) == []
    assert not list(here.systemd.glob("*.enabled"))


def test_pruning_removes_the_others_and_brings_none(world: MakeWorld) -> None:
    here = world(f"{L40S}:3")
    here.done({"gpu": 0}, {"gpu": 1})
    result = here.done({"gpu": here.uuids[1]}, {"gpu": here.uuids[2]}, state="pruned")
    assert result["steps"] == [f"remove the MPS daemon of {here.uuids[0]}"]
    assert list(here.record()) == [here.uuids[1]]


def test_a_lost_gpu_does_not_keep_its_daemon(world: MakeWorld) -> None:
    here = world(f"{L40S}:2")
    here.done({"gpu": 0})
    here.host.simctl("lose", "--gpu", "0")
    result = here.mps(state="pruned")
    assert not result["failed"], result
    assert any("compute mode was not restored" in note for note in result["notes"])
    assert here.record() == {}


def test_a_daemon_with_clients_is_neither_restarted_nor_removed(world: MakeWorld) -> None:
    here = world(L40S)
    here.done({"gpu": 0})
    (here.pipe(here.uuids[0]) / "clients").write_text("101 102", encoding="utf-8")
    message = here.refused({"gpu": 0, "thread_percentage": 30})
    assert "is to be restarted" in message
    assert message.endswith("and it serves pid 101, 102; nothing was changed; stop the services on it first")
    assert "is to be removed, and it serves pid 101, 102" in here.refused(state="pruned")
    (here.pipe(here.uuids[0]) / "clients").unlink()
    (step,) = here.done({"gpu": 0, "thread_percentage": 30})["steps"]
    assert step == f"restart the MPS daemon of {here.uuids[0]}: 30 % of the SMs for each client instead of no limit for each client"
    assert ask(here, here.uuids[0], "get_default_active_thread_percentage") == "30.0"


def test_a_gpu_on_which_somebody_computes_without_mps_is_left_alone(world: MakeWorld) -> None:
    here = world(L40S)
    here.host.simctl("hold", "--gpu", "0", "--pid", "4242")
    assert "is to be shared through MPS, and pid 4242 computes on it; nothing was changed; stop it first" in here.refused({"gpu": 0})


def test_a_daemon_that_died_is_started_again(world: MakeWorld) -> None:
    here = world(L40S)
    here.done({"gpu": 0})
    subprocess.run([here.systemctl, "stop", f"gpuops-fleet-mps@{here.uuids[0]}.service"], check=True)
    (step,) = here.done({"gpu": 0})["steps"]
    assert step == f"start the MPS daemon of {here.uuids[0]}: it does not run"


def test_a_daemon_that_is_ill_is_restarted(world: MakeWorld) -> None:
    here = world(L40S)
    here.done({"gpu": 0})
    (here.pipe(here.uuids[0]) / "control").unlink()
    (step,) = here.done({"gpu": 0})["steps"]
    assert "does not answer" in step
    here.host.simctl("set", "compute-mode", "default", "--gpu", "0")
    (step,) = here.done({"gpu": 0})["steps"]
    assert step.endswith("compute mode is not exclusive_process")
    assert here.mode() == "exclusive_process"


def test_after_a_reboot_the_unit_sets_the_exclusive_mode_again(world: MakeWorld) -> None:
    here = world(L40S)
    here.done({"gpu": 0})
    unit = f"gpuops-fleet-mps@{here.uuids[0]}.service"
    subprocess.run([here.systemctl, "stop", unit], check=True)
    here.host.simctl("reboot")
    assert here.mode() == "default"
    subprocess.run([here.systemctl, "start", unit], check=True)
    assert here.mode() == "exclusive_process"
    assert here.mps({"gpu": 0})["steps"] == []


def test_a_daemon_that_does_not_start_leaves_nothing_behind(world: MakeWorld) -> None:
    here = world(L40S)
    here.host.simctl("fail", "--call", "nvmlDeviceSetComputeMode", "--nth", "1", "--error", "NO_PERMISSION")
    result = here.mps({"gpu": 0})
    assert result["failed"]
    assert "did not start: systemctl start" in result["msg"]
    assert f"it was removed again; see journalctl -u gpuops-fleet-mps@{here.uuids[0]}.service" in result["msg"]
    assert (here.record(), here.mode(), list(here.units.iterdir())) == ({}, "default", [])
    here.done({"gpu": 0})


def test_a_run_that_died_before_the_start_is_brought_to_its_end(world: MakeWorld) -> None:
    here = world(L40S)
    mps.write(here.state_dir, {here.uuids[0]: mps.Daemon(here.uuids[0], 70700)})
    here.done({"gpu": 0})
    assert here.mode() == "exclusive_process"


@pytest.mark.parametrize(
    ("daemon", "words"),
    [
        ({"gpu": 7}, "there is no GPU 7 on this host"),
        ({"gpu": 0, "profile": "1g.10gb"}, "a slice needs both profile and start"),
        ({"gpu": 0, "profile": "1g.10gb", "start": 0}, "has no MIG"),
        ({"gpu": 0, "thread_percentage": 0}, "0 % is no share of the SMs"),
        ({"gpu": 0, "memory_limit_mib": 0}, "a limit of 0 MiB is none"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(world: MakeWorld, daemon: dict[str, t.Any], words: str) -> None:
    assert words in world(L40S).refused(daemon)


def test_a_whole_gpu_in_mig_mode_has_no_daemon(world: MakeWorld) -> None:
    here = world(H100)
    cut(here.host, 0, "1g.10gb", 0)
    assert "has MIG on: no container can have it whole" in here.mps({"gpu": 0})["msg"]


@pytest.mark.parametrize(
    ("option", "words"),
    [("control", "package nvidia-cuda-mps"), ("setpriv", "comes with util-linux"), ("systemctl", "run as systemd units")],
)
def test_a_missing_program_is_named_before_anything_is_changed(world: MakeWorld, option: str, words: str) -> None:
    message = world(L40S).refused({"gpu": 0}, **{option: "/no/such-program"})
    assert message.startswith("there is no program /no/such-program on this host; nothing was changed; ")
    assert words in message


def test_a_missing_host_agent_is_named_by_a_run_and_no_matter_in_check_mode_where_the_play_may_still_bring_it(world: MakeWorld) -> None:
    here = world(L40S)
    assert not here.mps({"gpu": 0}, agent="/no/agent", check=True)["failed"]
    assert "/no/agent on this host; nothing was changed; install the host agent first" in here.mps({"gpu": 0}, agent="/no/agent")["msg"]
    assert here.acts() == []


def test_a_host_without_daemons_needs_none_of_that(world: MakeWorld) -> None:
    result = world(L40S).done(state="pruned", control="/no/such-program", systemctl="/no/such-program", agent="/no/agent")
    assert (result["changed"], result["daemons"]) == (False, [])


@pytest.mark.parametrize("uids", ["70700", "0-5", "9-3", "a-b"])
def test_what_is_no_range_of_users_is_refused(world: MakeWorld, uids: str) -> None:
    assert world(L40S).refused({"gpu": 0}, uids=uids).endswith("write FIRST-LAST, such as 70700-70799")


def test_too_few_users_are_said(world: MakeWorld) -> None:
    assert "no user id is left" in world(f"{L40S}:2").refused({"gpu": 0}, {"gpu": 1}, uids="70700-70700")


def test_units_have_the_names_that_systemd_wants_for_their_mount_points() -> None:
    assert mps.mount_unit_of(Path("/run/gpuops-fleet/mps/GPU-1.5/shm")) == r"run-gpuops\x2dfleet-mps-GPU\x2d1.5-shm.mount"
    escape = "/usr/bin/systemd-escape"
    if Path(escape).exists():
        for path in ("/run/gpuops-fleet/mps/GPU-5c1f8f7e-6b0a/shm", "/.a/b c/ä", "/run/%x"):
            said = subprocess.run([escape, "--path", "--suffix=mount", path], capture_output=True, text=True, check=True).stdout.strip()
            assert mps.mount_unit_of(Path(path)) == said


@pytest.mark.parametrize(
    ("capability", "share", "clients"),
    [("8.0", 1, 48), ("6.1", 1, 16), (None, 1, 48), ("8.0", 1 / 7, 6), ("8.0", 3 / 7, 20), ("9.0", 0.001, 1)],
)
def test_clients_are_48_or_16_before_volta_and_fewer_in_a_slice(capability: str | None, share: float, clients: int) -> None:
    assert mps_client_limit(capability, share) == clients


# The real control daemon, which runs without a GPU as far as everything but a server goes.


@pytest.fixture(scope="session")
def real_control(tmp_path_factory: pytest.TempPathFactory) -> str:
    """NVIDIA's own program: of this machine, or out of Debian's non-free package, kept below build/."""
    return program("nvidia-cuda-mps-control", "nvidia-cuda-mps", f"{release()} non-free", tmp_path_factory)


def test_nvidias_own_daemon_takes_the_limits_and_is_found_well(world: MakeWorld, real_control: str) -> None:
    here = world(L40S, control=real_control)
    here.done({"gpu": 0, "thread_percentage": 25, "memory_limit_mib": 5000})
    uuid = here.uuids[0]
    assert ask(here, uuid, "get_default_active_thread_percentage") == "25.0"
    assert ask(here, uuid, "get_default_device_pinned_mem_limit 0") == "4G"
    assert ask(here, uuid, "get_server_list") == ""
    assert ask(here, uuid, "bogus") == 'Unknown command "bogus"'
    here.done({"gpu": 0, "memory_limit_mib": 512})
    assert ask(here, uuid, "get_default_device_pinned_mem_limit 0") == "512M"
    here.done(state="pruned")
    assert here.mode() == "default"


def test_the_stand_in_speaks_as_nvidias_own_daemon_does(world: MakeWorld, real_control: str) -> None:
    lines = (
        "get_default_active_thread_percentage",
        "set_default_active_thread_percentage 30",
        "set_default_active_thread_percentage 500",
        "get_default_device_pinned_mem_limit 0",
        "set_default_device_pinned_mem_limit 0 1536M",
        "get_default_device_pinned_mem_limit 0",
        "get_server_list",
        "bogus",
    )
    answers = []
    for control in (None, real_control):
        here = world(L40S, control=control)
        here.done({"gpu": 0})
        answers.append([ask(here, here.uuids[0], line) for line in lines])
        here.done(state="pruned")
    assert answers[0] == answers[1]


def test_the_host_agent_knows_the_verb_that_the_units_call(fleet_host: MakeHost, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from ansible_collections.gpuops.fleet.plugins.module_utils import agent

    fleet_host(L40S)
    assert agent.main(["mps", "--state-dir", str(tmp_path), "prepare", "GPU-1"]) == 1
    assert capfd.readouterr().err == f"{tmp_path}/mps.json: this host knows no MPS daemon GPU-1\n"


def test_systemd_itself_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    if which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    places, ident = mps.Places(agent="/bin/true", control="/bin/true", setpriv="/bin/true"), "GPU-5c1f8f7e-6b0a-4"
    service, mount = tmp_path / mps.unit_of(ident), tmp_path / mps.mount_unit_of(places.shm(ident))
    service.write_text(mps.service_text(places), encoding="utf-8")
    mount.write_text(mps.mount_text(places.shm(ident)), encoding="utf-8")
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:/lib/systemd/system"}
    done = subprocess.run(["systemd-analyze", "verify", service, mount], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
