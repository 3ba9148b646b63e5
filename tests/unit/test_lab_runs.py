# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's command line as a process: however it ends, one line says why, and nothing that it started runs on."""

from __future__ import annotations

import os
import signal
import typing as t
from pathlib import Path

import pytest
from lab_world import Checkout, program, until


@pytest.fixture
def checkout(tmp_path: Path) -> t.Iterator[Checkout]:
    made = Checkout(tmp_path)
    yield made
    made.clean()


def test_a_run_that_goes_well_leaves_nothing_running(checkout: Checkout) -> None:
    status, out, err = checkout.run("test", "main_job")

    assert (status, err) == (0, [])
    assert "main_job: passed" in out
    assert "1 of 1 as they should be" in out
    assert (checkout.root / "build/up-main_job").exists(), "nothing was booted"
    assert checkout.left() == {}


def test_an_unknown_scenario_is_told_before_anything_is_built(checkout: Checkout) -> None:
    status, _out, err = checkout.run("test", "main_jb")

    assert status == 1
    assert err == [f"lab: there is no scenario 'main_jb'; there are: {', '.join(_names(checkout))}"]
    assert not (checkout.tmp / "qemu.calls").exists()


def test_a_checkout_with_a_space_in_its_path_is_told_what_is_wrong(tmp_path: Path) -> None:
    spaced = Checkout(tmp_path, "a b")

    status, _out, err = spaced.run("test", "main_job")

    assert (status, err) == (1, [f"lab: the path of this checkout has a space, and make cannot build below one: {spaced.root}"])
    assert not (tmp_path / "qemu.calls").exists()


def test_a_guest_that_never_answers_is_one_line_with_its_last_words(checkout: Checkout) -> None:
    status, out, err = checkout.run("test", "two_hosts", QEMU_MODE="mute")

    assert (status, err) == (1, [])
    (line,) = [line for line in out.splitlines() if line.startswith("  two_hosts")]
    assert "FAILED: gpu-lab-" in line
    assert "did not answer on SSH within 2 s; its last line: OK Reached target nothing." in line
    assert checkout.left() == {}


def test_a_step_that_fails_is_told_with_its_line_of_the_log(checkout: Checkout) -> None:
    status, out, err = checkout.run("test", "main_job", MOLECULE_MODE="fails")

    assert (status, err) == (1, [])
    assert "main_job: FAILED: Task failed: converge failed in " in out
    assert checkout.left() == {}


def test_a_guest_by_hand_that_never_answers_is_one_line(checkout: Checkout) -> None:
    status, _out, err = checkout.run("up", "main_job", QEMU_MODE="mute")

    assert status == 1
    assert len(err) == 1
    assert err[0].startswith("lab: gpu-lab-1 did not answer on SSH within 2 s; its last line: OK Reached target nothing.")
    assert checkout.left() == {}


def test_a_full_disk_under_a_guest_is_one_line(checkout: Checkout) -> None:
    program(checkout.bin, "qemu-img", "echo 'qemu-img: disk.qcow2: No space left on device' >&2; echo 'giving up' >&2; exit 1")

    status, _out, err = checkout.run("up", "main_job")

    assert (status, err) == (1, ["lab: gpu-lab-1: making its disk: qemu-img ended with 1: a disk is full: "
                                 "qemu-img: disk.qcow2: No space left on device"])  # fmt: skip
    assert checkout.left() == {}


def test_a_missing_molecule_is_one_line(checkout: Checkout) -> None:
    (checkout.tmp / "venv/bin/molecule").unlink()

    status, _out, err = checkout.run("test", "main_job")

    assert (status, err) == (1, [f"lab: there is no {checkout.tmp}/venv/bin/molecule here: `make lab` installs it"])


def test_an_expected_failure_is_not_taken_for_what_the_lab_itself_did_wrong(checkout: Checkout) -> None:
    program(checkout.bin, "docker-registry", "echo 'panic: no' >&2; exit 1")

    status, out, _err = checkout.run("test", "reboot")

    assert status == 1
    assert "FAILED: the registry did not answer: panic: no" in out
    assert "as expected" not in out


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_ends_everything(checkout: Checkout, number: signal.Signals, status: int) -> None:
    with checkout.start("test", "main_job", MOLECULE_MODE="stays") as started:
        checkout.wait_until_up("main_job", started)
        before = " ".join(checkout.left().values())
        os.kill(started.pid, number)
        _out, err = started.communicate(timeout=40)

    # What has to end was there: a machine, the registry, a kept connection, Ansible's own session.
    assert all(word in before for word in ("qemu-system", "docker-registry", "molecule", "sleep 600"))
    assert started.returncode == status
    assert err.splitlines() == [f"lab: stopped by {number.name}; nothing of this run is left"]
    assert checkout.left() == {}


def test_a_signal_while_a_guest_boots_ends_everything_at_once(checkout: Checkout) -> None:
    with checkout.start("up", "two_hosts", QEMU_MODE="mute", LAB_BOOT_SECONDS="500") as started:
        _until_machines(checkout, 2)
        os.kill(started.pid, signal.SIGTERM)
        started.communicate(timeout=40)

    assert started.returncode == 143
    assert checkout.left() == {}


def test_the_next_run_ends_what_a_killed_one_left_and_nothing_else(checkout: Checkout) -> None:
    status, out, err = checkout.run("shell", "wrong_uuid")
    assert (status, err) == (0, [])
    assert "ssh -i" in out
    by_hand = checkout.left()
    with checkout.start("test", "main_job", MOLECULE_MODE="stays") as started:
        checkout.wait_until_up("main_job", started)
        os.kill(started.pid, signal.SIGKILL)
        started.communicate()
    assert any("sites/main_job" in line for line in checkout.left().values()), "a SIGKILL left nothing: this test shows nothing"

    status, out, err = checkout.run("test", "main_job")

    assert (status, err) == (0, [])
    assert "processes that a killed run had left" in out
    assert checkout.left() == by_hand
    assert checkout.run("down")[0] == 0
    assert checkout.left() == {}


def test_a_second_run_in_the_same_checkout_is_told_who_is_at_work(checkout: Checkout) -> None:
    with checkout.start("test", "main_job", MOLECULE_MODE="stays") as started:
        checkout.wait_until_up("main_job", started)
        second = checkout.run("test", "wrong_uuid")
        os.kill(started.pid, signal.SIGTERM)
        started.communicate(timeout=40)

    assert second[0] == 1
    assert second[2] == [f"lab: process {started.pid} (test main_job) uses this checkout's lab: wait until it ends, or end it"]


def _names(checkout: Checkout) -> list[str]:
    return sorted(path.parent.name for path in (checkout.root / "extensions/molecule").glob("*/lab.yml"))


def _until_machines(checkout: Checkout, count: int) -> None:
    until(lambda: len(list((checkout.root / "build/lab/sites").glob("*/guests/*/qemu.pid"))) == count)
