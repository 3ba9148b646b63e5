# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each scenario does after its first apply, and what has to be true then. A story yields one line for everything that is not so."""

from __future__ import annotations

import concurrent.futures
import re
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lab import asking
from lab.breaking import REMAKE
from lab.errors import LabError
from lab.guest import Guest
from lab.newest import newest_core
from lab.ocr import receipt as receipts
from lab.ocr.ask import ask
from lab.plays import must_play, play
from lab.site import Site
from lab.stories_bare import bare
from lab.stories_devices import devices
from lab.stories_pipeline import pipeline
from lab.stories_rollout import rollout, rollout_broken, rollout_killed
from lab.stories_upgrade import upgrade

# What a host may take after a boot until its services answer.
HEALED_SECONDS = 240

Story = Callable[[Site], Iterator[str]]


def ids(guest: Guest) -> dict[str, str]:
    """Id of each running container, by name."""
    lines = guest.ssh("docker ps --no-trunc --format '{{.Names}} {{.ID}}'", "listing containers").splitlines()
    return dict(line.split() for line in lines)


def texts(site: Site) -> Iterator[str]:
    """One line for each replica that reads a receipt wrongly, whatever slice it is on."""
    for replica in asking.replicas(site):
        receipt = receipts.render(7)
        try:
            answer = ask(f"http://127.0.0.1:{site.guest(replica.host).ports[replica.port]}", receipt.png)
        except LabError as error:
            yield f"{replica}: {error}"
            continue
        if lost := receipts.missing(answer["text"], receipt):
            yield f"{replica}: the text lacks {', '.join(lost)}"


def main_job(site: Site) -> Iterator[str]:
    """Every replica reads a receipt, on its own slice and nothing else."""
    yield from asking.problems(site)


def wrong_uuid(site: Site) -> Iterator[str]:
    """A slice vanishes between the CDI specification and the start: the engine refuses, and what ran runs on. The next apply heals it."""
    (guest,) = site.guests()
    victim = asking.replicas(site)[0]
    place = asking.look(guest).slices[victim.gpu, victim.profile, victim.start]
    before = ids(guest)
    manifest = site.home / "manifests" / f"{victim.service}.yml"
    manifest.write_text(_with_env(manifest), encoding="utf-8")
    must_play(site, "plan")
    wrapper = f'#!/bin/sh\n/usr/bin/nvidia-ctk.real "$@" && python3 /root/remake.py {place.instance}\n'
    guest.ssh("cat > /root/remake.py", "writing remake.py", input=REMAKE)
    guest.ssh(
        "simctl set mig-uuid new && cd /usr/bin && mv nvidia-ctk nvidia-ctk.real && cat > nvidia-ctk && chmod 755 nvidia-ctk",
        "making a slice vanish",
        input=wrapper,
    )
    status, text = play(site, "apply")
    guest.ssh("mv /usr/bin/nvidia-ctk.real /usr/bin/nvidia-ctk", "taking that back")
    if status == 0:
        yield "apply succeeded, although the engine could not know the slice"
    told = [line for line in text.splitlines() if victim.container in line and "nvidia.com/gpu=MIG-" in line]
    if not told:
        yield f"no line of the play names {victim.container} and the device that the engine refused"
    if ids(guest) != before:
        yield f"the containers that ran are not those that run: {before} before, {ids(guest)} now"
    yield from texts(site)
    must_play(site, "apply")
    yield from asking.problems(site)


def _with_env(manifest: Path) -> str:
    """The manifest with one more variable, as an owner adds it: the container has to be made again."""
    text = manifest.read_text(encoding="utf-8")
    return re.sub(r"^env: \{", "env: {LOG_LEVEL: debug, ", text, flags=re.MULTILINE)


def _healed(site: Site, guest: Guest, awaited: list[asking.Replica]) -> list[str]:
    """What is still wrong with replicas after a boot, when the host had its time to bring them back by itself."""
    guest.ssh("systemctl is-system-running --wait || true", "waiting for its services")
    names = tuple(str(replica) for replica in awaited)
    deadline = time.monotonic() + HEALED_SECONDS
    while (found := [problem for problem in asking.problems(site) if problem.startswith(names)]) and time.monotonic() < deadline:
        time.sleep(5)
    return found


def reboot(site: Site) -> Iterator[str]:
    """No controller near: after a reboot each service is on its own slice, whatever the driver does to UUIDs."""
    (guest,) = site.guests()
    for behaviour in ("same", "new", "swap"):
        guest.ssh(f"simctl set mig-uuid {behaviour}", "choosing what happens to UUIDs")
        guest.reboot()
        if found := _healed(site, guest, asking.replicas(site)):
            yield from (f"UUIDs {behaviour}: {problem}" for problem in found)
            return
        print(f"UUIDs {behaviour}: every replica reads on its own slice after the boot", flush=True)


def _recut(site: Site, profile: str, replicas: int) -> None:
    """Gives the neighbour of receipt-ocr another profile: its slices are made anew, and those of receipt-ocr must stay."""
    manifest = site.home / "manifests" / "claims-lab.yml"
    text = re.sub(r"profile: \S+", f"profile: {profile}", manifest.read_text(encoding="utf-8"))
    manifest.write_text(re.sub(r"^replicas: \d+", f"replicas: {replicas}", text, flags=re.MULTILINE), encoding="utf-8")
    must_play(site, "plan")


def neighbours(site: Site, layouts: Sequence[tuple[str, int]] = (("2g.20gb", 2), ("3g.40gb", 1))) -> Iterator[str]:
    """The slices beside a service under load are cut anew, twice: every request is answered, by the same containers."""
    (guest,) = site.guests()
    served = [replica for replica in asking.replicas(site) if replica.service == "receipt-ocr"]
    before = {name: ident for name, ident in ids(guest).items() if name in {replica.container for replica in served}}
    over = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(len(served)) as pool:
        loads = [pool.submit(_load, guest, replica, over) for replica in served]
        try:
            for profile, replicas in layouts:
                _recut(site, profile, replicas)
                changed = must_play(site, "apply")
                yield from _says(changed, "apply", [rf"create {profile}", "destroy"])
        finally:
            over.set()
        for replica, load in zip(served, loads, strict=True):
            answered, failed = load.result()
            print(f"{replica}: {answered} receipts read while its neighbours were cut anew, {len(failed)} not", flush=True)
            yield from failed
            if answered < len(served):
                yield f"{replica}: only {answered} requests were made meanwhile, which shows nothing"
    now = ids(guest)
    yield from (f"{name} is not the container that ran before" for name, ident in before.items() if now.get(name) != ident)
    yield from asking.problems(site)


def _load(guest: Guest, replica: asking.Replica, over: threading.Event) -> tuple[int, list[str]]:
    """Posts receipts to a replica, one after the other, until it is over: how many were read right, and a line for each that was not."""
    answered, failed = 0, []
    while not over.is_set():
        receipt = receipts.render(answered % asking.SEEDS)
        try:
            lost = receipts.missing(ask(f"http://127.0.0.1:{guest.ports[replica.port]}", receipt.png)["text"], receipt)
        except LabError as error:
            failed.append(f"{replica}: {error}")
            continue
        if lost:
            failed.append(f"{replica}: the text lacks {', '.join(lost)}")
        answered += 1
    return answered, failed


# Cuts the power as soon as the module that the driver's fault killed is dead, with its journal open: before the play can tidy up.
# The simulated driver lives on the disk that loses what was not yet written: without the sync its fault would be there again.
POWER_CUT = textwrap.dedent("""\
    cd /var/lib/gpuops-fleet
    until grep -q '"state": "open"' mig-journal.json && flock --nonblock mig.lock true; do :; done
    simctl kill --clear
    sync /var/lib/nvmlsim/*
    echo b > /proc/sysrq-trigger
    """)


def power_cut(site: Site) -> Iterator[str]:
    """The power fails in the middle of a change of slices; no controller near: every service is on its slice of the new plan."""
    (guest,) = site.guests()
    boot_id = guest.boot_id()
    _recut(site, "2g.20gb", 2)
    guest.ssh("cat > /root/power-cut.sh", "writing power-cut.sh", input=POWER_CUT)
    # Of six changes: the old slice is gone, the first new one is made and has no compute instance.
    guest.ssh("simctl kill --mutation 3 && systemd-run --quiet sh /root/power-cut.sh", "preparing the power cut")
    status, _text = play(site, "apply")
    if status == 0:
        yield "apply ended well, although the power failed"
    guest.back(boot_id)
    # No file of the second replica of claims-lab was ever brought to this host.
    awaited = [replica for replica in asking.replicas(site) if (replica.service, replica.number) != ("claims-lab", 2)]
    yield from (f"after the power cut: {problem}" for problem in _healed(site, guest, awaited))
    if '"closed"' not in guest.ssh("cat /var/lib/gpuops-fleet/mig-journal.json", "reading the journal"):
        yield "the change of slices is still open after the boot"
    print(f"power cut: {', '.join(map(str, awaited))} read again with no controller near", flush=True)
    must_play(site, "apply")
    yield from asking.problems(site)


def two_hosts(site: Site) -> Iterator[str]:
    """Replicas are spread over two hosts; one is killed: status says what is down, plan proposes where its services go."""
    yield from asking.problems(site)
    placed = asking.replicas(site)
    hosts = sorted({replica.host for replica in placed})
    if len(hosts) != 2:
        yield f"the replicas are on {hosts}, not on both hosts"
        return
    lost = hosts[0]  # the first of the group: run_once would have picked it
    gone = [replica for replica in placed if replica.host == lost]
    plans = {path: path.read_text(encoding="utf-8") for path in (site.home / "plans").glob("*.yml")}
    site.guest(lost).kill()
    status, text = play(site, "status")
    yield from _says(text, "status", [f"{lost}.*down", *(replica.container for replica in gone)])
    if status == 0:
        yield "status ended with 0 although a host is down"
    status, text = play(site, "plan")
    yield from _says(text, "plan", [f"{lost} cannot be read", *(f"{replica.container}.*{hosts[1]}" for replica in gone)])
    if status == 0:
        yield "plan ended with 0 although a host cannot be read"
    if plans != {path: path.read_text(encoding="utf-8") for path in (site.home / "plans").glob("*.yml")}:
        yield "plan wrote plans without being told that the host is down"
    down = ("-e", f'{{"fleet_down_hosts": ["{lost}"]}}')
    must_play(site, "plan", *down)
    must_play(site, "apply", *down)
    if {replica.host for replica in asking.replicas(site)} != {hosts[1]}:
        yield f"the plans do not bring every replica to {hosts[1]}"
    yield from asking.problems(site)


def _says(text: str, playbook: str, patterns: list[str]) -> Iterator[str]:
    yield from (f"{playbook} says nothing like '{pattern}'" for pattern in patterns if not re.search(pattern, text))


def broken(site: Site) -> Iterator[str]:
    """The assertions of main_job can fail: each break is made on purpose, has to be told, and is mended again."""
    (guest,) = site.guests()
    first, second = asking.replicas(site)[:2]
    yield from asking.problems(site)
    place = asking.look(guest).slices[first.gpu, first.profile, first.start]
    name = first.container
    project = f"cd /srv/gpuops/services/{name}"
    guest.ssh("cat > /root/remake.py", "writing remake.py", input=REMAKE)
    breaks = {
        "the image": (
            f"docker exec --user 0 {name} python3 -c 'import glob, os; [os.unlink(f) for f in glob.glob(\"/usr/share/*/*/*/chi_tra*\")]'",
            "the text lacks|answered 5",
        ),
        "the pinning": (
            f"{project} && cp .env /root/kept.env && cp ../{second.container}/.env .env && docker compose up --detach --wait",
            "the engine was asked for",
        ),
        "the slice": (f"python3 /root/remake.py {place.instance} only-destroy", "the driver has no such slice"),
    }
    mend = f"{project} && {{ cp /root/kept.env .env || true; }}; docker compose up --detach --force-recreate --wait"
    for what, (command, told) in breaks.items():
        guest.ssh(command, f"breaking {what}")
        found = [problem for problem in asking.problems(site) if name in problem]
        print(f"{what} broken: {'; '.join(found) or 'nothing was told'}", flush=True)
        if not any(re.search(told, problem) for problem in found):
            yield f"{what} was broken, and the assertions say {found}"
        if what != "the slice":
            guest.ssh(mend, f"mending {what}")
    must_play(site, "apply")
    yield from asking.problems(site)


STORIES: dict[str, Story] = {
    story.__name__: story
    for story in (
        main_job, wrong_uuid, reboot, neighbours, power_cut, two_hosts, broken, newest_core,
        rollout, rollout_broken, rollout_killed, pipeline, bare, upgrade, devices,
    )
}  # fmt: skip
