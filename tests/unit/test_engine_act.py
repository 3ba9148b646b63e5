# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine takes up its settings, and what runs on it keeps running and keeps its GPUs; where that is not sure, nothing is done."""

from __future__ import annotations

import json
import threading
import typing as t
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import daemon_json, drains, engine_act
from ansible_collections.gpuops.fleet.plugins.module_utils.daemon_json import Waiting
from ansible_collections.gpuops.fleet.plugins.module_utils.engine_act import Options, Result, act
from ansible_collections.gpuops.fleet.plugins.module_utils.engine_force import not_in_force
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import write_json
from daemon_world import Server, World

if t.TYPE_CHECKING:
    from conftest import RunModule

GPU, OTHER = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
LIVE, CDI = {"live-restore": True}, {"features": {"cdi": True}}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with Server(world) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield world
        server.shutdown()
        thread.join()


def options(place: World, action: str = "auto", settings: dict[str, t.Any] | None = None, **more: t.Any) -> Options:
    return Options(
        action,
        settings or {},
        socket=str(place.socket),
        systemctl=str(place.systemctl),
        path=place.settings,
        dockerd="no-such-dockerd",
        pid_file=place.pid_file,
        state_dir=place.state_dir,
        proc_root=place.proc_root,
        dev_root=place.dev_root,
        timeout=5.0,
        **more,
    )


def write(place: World, settings: dict[str, t.Any]) -> Waiting:
    """As module daemon_json does."""
    paths = {"pid_file": place.pid_file, "proc_root": place.proc_root, "dockerd": "no-such-dockerd"}
    return daemon_json.apply(daemon_json.Options(place.settings, settings, place.state_dir, replace=True, **paths)).waiting


def take_up(place: World, settings: dict[str, t.Any], **more: t.Any) -> Result:
    """Settings are written and taken up. What a check tells first is what is done."""
    waiting = write(place, settings)
    wish = options(place, settings=settings, **more)
    promised = act(replace(wish, check=True, promised=waiting))
    assert place.acts() == []
    result = act(wish)
    assert (promised.action, promised.steps) == (result.action, result.steps)
    return result


def refusal(wish: Options, place: World) -> str:
    """Refused in check mode as well, with the same words, before anything was done."""
    done = place.acts()
    said = []
    for each in (replace(wish, check=True), wish):
        with pytest.raises(FleetError) as caught:
            act(each)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "\n" not in said[0]
    assert place.acts() == done
    return said[0]


def drain(place: World, gpu: str | None = None) -> None:
    one = {"gpu": gpu, "by": "lin", "reason": "engine", "since": "2026-11-21T12:00:00Z", "until": None, "force": False}
    write_json(place.state_dir / "drains.json", {"format": drains.FORMAT, "drains": [one]})


# ---- what is done


def test_a_reload_is_enough_for_what_a_reload_puts_in_force_and_a_second_run_does_nothing(place: World) -> None:
    place.run("ocr-1", [GPU])
    result = take_up(place, LIVE)
    assert (result.action, place.acts(), result.live_restore, result.kept) == ("reload", ["reload docker.service"], True, ["ocr-1"])
    again = act(options(place, settings=LIVE))
    assert (again.action, again.steps, place.acts()) == ("none", [], ["reload docker.service"])


def test_a_restart_comes_after_the_reload_that_brings_live_restore_and_containers_run_on(place: World) -> None:
    place.run("ocr-1", [GPU])
    place.run("database")
    result = take_up(place, {**LIVE, **CDI})
    assert place.acts() == ["reload docker.service", "restart docker.service"]
    assert (result.kept, result.stopped) == (["database", "ocr-1"], [])
    assert place.world["containers"]["ocr-1"]["running"]
    assert act(options(place, settings={**LIVE, **CDI})).steps == []


def test_an_engine_without_containers_is_restarted(place: World) -> None:
    assert take_up(place, CDI).steps == ["restart the engine for features/cdi"]
    assert place.world["info"]["CDISpecDirs"] == ["/etc/cdi"]


def test_settings_that_are_in_the_file_and_not_in_force_are_taken_up_without_a_word_of_an_earlier_run(place: World) -> None:
    place.settings.write_text(json.dumps(CDI), encoding="utf-8")
    assert act(options(place, settings=CDI)).action == "restart"


def test_a_key_that_the_engine_does_not_tell_of_is_remembered_from_the_run_that_wrote_it(place: World) -> None:
    write(place, {"log-opts": {"max-size": "50m"}})
    assert act(options(place)).steps == ["restart the engine for log-opts"]
    assert act(options(place)).steps == []


def test_a_host_without_an_engine_has_nothing_to_do(tmp_path: Path) -> None:
    place = World(tmp_path)
    assert act(options(place, settings=CDI)) == Result()


# ---- what is refused


def test_a_restart_that_would_stop_containers_names_them_and_the_ways_out(place: World) -> None:
    for number in range(7):
        place.run(f"ocr-{number}", [GPU])
    write(place, CDI)
    assert refusal(options(place, settings=CDI), place) == (
        "a restart of the engine would stop ocr-0, ocr-1, ocr-2, ocr-3, ocr-4 and 2 more, for live-restore is not in force; "
        "drain this host (playbook drain), or have live-restore in force by a reload first ('live-restore': true in the settings)"
    )
    assert act(options(place, check=True, settings={**CDI, **LIVE})).action == "restart"


@pytest.mark.parametrize("key", ["data-root", "bip", "storage-driver", "nobody-knows"])
def test_live_restore_is_not_trusted_over_settings_that_it_does_not_hold_over(place: World, key: str) -> None:
    place.run("ocr-1", [GPU])
    place.set(info={"LiveRestoreEnabled": True})
    write(place, {key: "x"})
    said = f"a restart with another {key} may lose ocr-1: live-restore does not hold over that; drain this host first (playbook drain)"
    assert refusal(options(place), place) == said


def test_a_unit_that_kills_its_control_group_is_not_restarted_under_containers(place: World) -> None:
    place.run("ocr-1", [GPU])
    place.set(info={"LiveRestoreEnabled": True}, kill_mode="control-group")
    assert "docker.service has KillMode=control-group; set KillMode=process" in refusal(options(place, "restart"), place)


def test_a_setting_that_is_on_the_command_line_as_well_would_keep_the_engine_from_starting(place: World) -> None:
    (place.proc_root / "77/cmdline").write_bytes(b"/usr/sbin/dockerd\0--registry-mirror=https://a\0--log-driver\0local\0")
    write(place, {"log-driver": "local", "registry-mirrors": ["https://b"]})
    said = refusal(options(place), place)
    assert said.startswith(
        "the engine gets log-driver, registry-mirrors on its command line as well, and would not start again; take it out"
    )


def test_an_engine_of_a_swarm_does_not_start_with_live_restore(place: World) -> None:
    place.set(info={"Swarm": {"LocalNodeState": "active"}})
    write(place, {**CDI, **LIVE})
    assert "with live-restore it would not start again" in refusal(options(place), place)


def test_a_file_that_was_broken_meanwhile_is_not_restarted_with(place: World) -> None:
    write(place, CDI)
    place.settings.write_text("{", encoding="utf-8")
    assert refusal(options(place), place).startswith(f"{place.settings}:1: column 2")


def test_a_drained_host_is_restarted_and_what_it_stopped_is_told(place: World) -> None:
    place.run("ocr-1", [GPU])
    drain(place)
    result = take_up(place, CDI)
    assert (result.stopped, result.kept) == (["ocr-1"], [])


def test_one_drained_gpu_is_not_a_drained_host(place: World) -> None:
    place.run("ocr-1", [GPU])
    drain(place, OTHER)
    write(place, CDI)
    assert "would stop ocr-1" in refusal(options(place), place)


def test_a_host_that_another_holds_is_left_alone(place: World) -> None:
    from ansible_collections.gpuops.fleet.plugins.module_utils import lease

    write(place, CDI)
    lease.acquire(place.state_dir, "lin", "apply", 600)
    with pytest.raises(FleetError, match="this host is held by lin"):
        act(options(place, settings=CDI))
    assert place.acts() == []


# ---- the look afterwards


def test_a_setting_that_is_not_in_force_afterwards_is_said(place: World) -> None:
    place.set(deaf=True)
    write(place, LIVE)
    with pytest.raises(FleetError) as caught:
        act(replace(options(place, settings=LIVE), timeout=0.6))
    hint = "journalctl --unit docker.service says why"
    assert str(caught.value) == f"the engine read its settings again, and after 0.6 s live-restore is not in force; {hint}"
    place.set(deaf=False)
    assert act(options(place, settings=LIVE)).action == "reload"


def test_a_container_that_did_not_live_through_it_is_named(place: World) -> None:
    place.run("ocr-1", [GPU])
    place.run("ocr-2", [OTHER])
    place.set(info={"LiveRestoreEnabled": True}, lost=["ocr-2"])
    with pytest.raises(FleetError) as caught:
        act(options(place, "restart"))
    assert str(caught.value) == "after the restart these containers do not run as before: ocr-2; docker ps --all says why"


def test_a_container_that_lost_its_gpu_is_named_with_the_programs_words(place: World) -> None:
    place.run("ocr-1", [GPU])
    place.set(info={"LiveRestoreEnabled": True}, blinded=["ocr-1"])
    with pytest.raises(FleetError) as caught:
        act(options(place, "restart"))
    said = "after the restart these containers lost their GPU: ocr-1 (Failed to initialize NVML: Unknown Error)"
    assert str(caught.value) == f"{said}; start them again: docker restart NAME"


def test_a_container_that_saw_no_gpu_before_is_not_blamed_on_the_restart(place: World) -> None:
    place.run("ocr-1", [GPU])
    place.set(info={"LiveRestoreEnabled": True}, containers={"ocr-1": {**place.world["containers"]["ocr-1"], "sees": []}})
    assert act(options(place, "restart")).kept == ["ocr-1"]


def test_where_the_image_has_no_program_the_device_nodes_are_looked_at(place: World) -> None:
    place.run("ocr-1", [GPU])
    place.set(info={"LiveRestoreEnabled": True}, images=False)
    dev = place.proc_root / "4711/root/dev"
    (dev / "nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidiactl", "nvidia-caps/nvidia-cap21"):
        (dev / name).touch()
    assert act(options(place, "restart")).kept == ["ocr-1"]


def test_a_systemctl_that_fails_is_told_in_its_own_words(place: World) -> None:
    place.set(fails={"restart": "Job for docker.service failed"})
    with pytest.raises(FleetError) as caught:
        act(options(place, "restart"))
    words = "systemctl restart docker.service failed: Job for docker.service failed; journalctl --unit docker.service"
    assert str(caught.value) == words


# ---- systemd reads its units again


def test_a_reload_of_systemd_is_refused_where_the_hook_gave_a_gpu(place: World) -> None:
    place.run("by-cdi", [GPU])
    place.run("by-hook", [OTHER], by_hook=True)
    said = refusal(options(place, "daemon_reload"), place)
    assert said.startswith("systemctl daemon-reload would take the GPU from by-hook, which got it from NVIDIA's hook and not by CDI; drain")
    drain(place)
    assert act(options(place, "daemon_reload")).action == "daemon_reload"


@pytest.mark.parametrize(
    ("runc", "links", "safe"),
    [
        ("1.1.15+ds1", False, True),
        ("1.1.4", False, False),
        ("1.1.4", True, True),
        ("1.1.2", False, True),
        ("", False, False),
        ("1.3.0", False, True),
    ],
)
def test_gpus_by_cdi_outlive_a_reload_of_systemd_but_for_some_runc_without_links(place: World, runc: str, links: bool, safe: bool) -> None:
    place.run("ocr-1", [GPU])
    place.set(runc=runc)
    # a character device that is always there
    (place.dev_root / "nvidia0").symlink_to("/dev/null")
    if links:
        (place.dev_root / "char").mkdir()
        (place.dev_root / "char/1:3").symlink_to("../nvidia0")
    wish = options(place, "daemon_reload")
    if safe:
        assert act(wish).steps == ["have systemd read its units again"]
        assert place.acts() == ["daemon-reload"]
    else:
        said = refusal(wish, place)
        which = f"runc {runc}" if runc else "a runc that does not tell its version"
        assert f"may take the GPU from ocr-1: {which} needs {place.dev_root}/char/1:3; nvidia-ctk system create-dev-char" in said


def test_below_cgroups_that_systemd_does_not_manage_nothing_is_lost(place: World) -> None:
    place.run("by-hook", [OTHER], by_hook=True)
    place.set(info={"CgroupDriver": "cgroupfs"})
    assert act(options(place, "daemon_reload")).kept == ["by-hook"]


def test_a_gpu_that_is_lost_to_a_reload_of_systemd_all_the_same_is_said(place: World) -> None:
    place.run("ocr-1", [GPU])
    place.set(blinded=["ocr-1"])
    with pytest.raises(FleetError, match="after the daemon-reload these containers lost their GPU: ocr-1"):
        act(options(place, "daemon_reload"))


def test_without_an_engine_systemd_may_always_reload(tmp_path: Path) -> None:
    place = World(tmp_path)
    assert act(options(place, "daemon_reload")).steps == ["have systemd read its units again"]
    assert place.acts() == ["daemon-reload"]


# ---- what the engine says is in force

INFO = {
    "LiveRestoreEnabled": True,
    "Debug": False,
    "Labels": ["rack=7"],
    "Runtimes": {"runc": {"path": "runc"}, "nvidia": {"path": "nvidia-container-runtime"}},
    "DefaultRuntime": "runc",
    "LoggingDriver": "local",
    "CgroupDriver": "systemd",
    "CDISpecDirs": ["/etc/cdi"],
    "DockerRootDir": "/var/lib/docker",
    "Driver": "overlay2",
    "RegistryConfig": {
        "Mirrors": ["https://mirror.example.com/"],
        "InsecureRegistryCIDRs": ["127.0.0.0/8"],
        "IndexConfigs": {"docker.io": {"Secure": True}, "registry.example.com:5000": {"Secure": False}},
    },
}
IN_FORCE = {
    "live-restore": True,
    "labels": ["rack=7"],
    "runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}},
    "default-runtime": "runc",
    "log-driver": "local",
    "exec-opts": ["native.cgroupdriver=systemd"],
    "features": {"cdi": True, "buildkit": True},
    "data-root": "/var/lib/docker",
    "storage-driver": "overlay2",
    "registry-mirrors": ["https://mirror.example.com"],
    "insecure-registries": ["registry.example.com:5000", "127.0.0.0/8"],
    "log-opts": {"max-size": "50m"},
}


def test_what_the_engine_tells_of_itself_is_in_force() -> None:
    assert not_in_force(INFO, IN_FORCE) == []


@pytest.mark.parametrize(
    ("key", "wished"),
    [
        ("live-restore", False),
        ("debug", True),
        ("labels", ["rack=8"]),
        ("runtimes", {"kata": {"path": "kata"}}),
        ("runtimes", {"nvidia": {"path": "/usr/local/nvidia-container-runtime"}}),
        ("default-runtime", "nvidia"),
        ("log-driver", "json-file"),
        ("exec-opts", ["native.cgroupdriver=cgroupfs"]),
        ("data-root", "/srv/docker"),
        ("storage-driver", "btrfs"),
        ("registry-mirrors", ["https://other.example.com"]),
        ("insecure-registries", ["docker.io"]),
        ("runtimes", ["nvidia"]),
        ("labels", 7),
        ("exec-opts", [1]),
    ],
)
def test_what_the_engine_contradicts_is_not_in_force(key: str, wished: t.Any) -> None:
    assert not_in_force(INFO, {key: wished}) == [key]


def test_cdi_is_looked_at_by_itself() -> None:
    assert not_in_force({"CDISpecDirs": []}, {"features": {"cdi": True}}) == ["features/cdi"]
    assert not_in_force({"CDISpecDirs": ["/etc/cdi"]}, {"features": {"cdi": False}}) == ["features/cdi"]


def test_only_what_is_proved_harmless_is_held_over_by_live_restore() -> None:
    assert not engine_act.KEPT & daemon_json.RELOADED


# ---- the module


def test_the_module_does_it_tells_its_steps_and_does_nothing_twice(place: World, run_module: RunModule) -> None:
    place.run("ocr-1", [GPU])
    waiting = write(place, {**LIVE, **CDI})
    paths = {"path": place.settings, "state_dir": place.state_dir, "pid_file": place.pid_file, "proc_root": place.proc_root}
    wish: dict[str, t.Any] = {
        key: str(value) for key, value in {**paths, "docker_socket": place.socket, "systemctl": place.systemctl}.items()
    }
    wish |= {"settings": {**LIVE, **CDI}, "dockerd": "no-such-dockerd", "dev_root": str(place.dev_root)}
    promised = run_module("engine_act", wish | {"reload": list(waiting.reload), "restart": list(waiting.restart)}, check=True)
    result = run_module("engine_act", wish)
    assert (promised["changed"], promised["steps"], promised["diff"]) == (True, result["steps"], result["diff"])
    assert (result["action"], result["running"], result["live_restore"], result["kept"]) == ("restart", True, True, ["ocr-1"])
    assert result["diff"]["after"] == ("have the engine read its settings again for live-restore\nrestart the engine for features/cdi\n")
    assert run_module("engine_act", wish)["changed"] is False
    place.set(info={"LiveRestoreEnabled": False})
    refused = run_module("engine_act", wish | {"action": "restart", "settings": {}})
    assert refused["failed"]
    assert refused["msg"].startswith("a restart of the engine would stop ocr-1")
