# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions of a service come and go behind a gateway, under constant load: good, broken, with a controller that dies, two at once.

Like all stories it believes no word of the collection's: what is true is what the load was answered, what the engine runs, what the driver
and the gateway have.
"""

from __future__ import annotations

import json
import re
import textwrap
import time
import typing as t
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from lab import asking
from lab.acts import told
from lab.breaking import MEDDLE, REMAKE
from lab.errors import LabError
from lab.guest import Guest
from lab.load import Account, Load
from lab.ocr import receipt as receipts
from lab.ocr.ask import ask
from lab.places import LOGS, REPOSITORY
from lab.plays import Play, Task, must_play
from lab.site import Site

SERVICE, OTHER = "receipt-ocr", "card-reader"
GATEWAY_PORT = 8080
PATH = "/receipts"
# As group_vars of the scenario have them.
KEYS = {"claims": "key-of-claims-1b7d", "cards": "key-of-cards-c43a"}
SECRETS = {SERVICE: "secret-of-claims-5f1c", OTHER: "secret-of-cards-9e27"}
# What an answer of the gateway may wait for a check to see that a server is back.
UP_SECONDS = 120.0
ONLY = ("-e", f"service={SERVICE}")
LEASE_SECONDS = 90
# What a version gets that never gets healthy, in seconds; an emulated host on a busy machine may need longer for a good one.
SOON = "180"
# Requests that a rollout has to see; what it lacks of them comes after it.
LEAST = 2000
# An emulated processor reads a receipt for half a minute: more of them would be the rollout's own load.
RECEIPT_PAUSE = 300.0
# What an image's answers say, by its tag.
VERSIONS = {"lab": 1, "two": 2}
MISSING = "registry.example:5000/claims/receipt-ocr@sha256:" + "0" * 64


# --- what is true -----------------------------------------------------------------------------------------------------


@dataclass
class World:
    """The site, its one guest, and what must be the same after everything."""

    site: Site
    guest: Guest
    slices: set[tuple[str, str, int]]

    @property
    def manifest(self) -> t.Any:
        """The manifest that its owner changes."""
        return self.site.home / "manifests" / f"{SERVICE}.yml"

    @property
    def tag(self) -> str:
        """Which image the manifest asks for: ``lab`` is version 1, ``two`` version 2."""
        text = self.manifest.read_text(encoding="utf-8")
        return next(tag for tag in VERSIONS if f"image: {self.site.image(tag)}" in text)

    @property
    def other(self) -> str:
        """The good version that the manifest does not ask for."""
        return next(tag for tag in VERSIONS if tag != self.tag)

    @property
    def port(self) -> int:
        """Of this machine, behind which the gateway is."""
        return self.guest.ports[GATEWAY_PORT]

    @property
    def key(self) -> dict[str, str]:
        """What a client of the service's own team sends."""
        return {"X-Api-Key": KEYS["claims"]}

    def load(self, threads: int = 4, pace: float = 1.6) -> Load:
        """Load on the service's address; as much as leaves an emulated host time for its rollout."""
        return Load("127.0.0.1", self.port, f"{PATH}/version", self.key, threads=threads, pace=pace)

    def want(self, image: str, **changes: str) -> None:
        """The owner writes another image, and other lines, into the manifest; ``changes``: value of a line by its name."""
        text = re.sub(r"^image: .*", f"image: {image}", self.manifest.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for name, value in changes.items():
            text, found = re.subn(rf"^( *){name}: .*", rf"\g<1>{name}: {value}", text, flags=re.MULTILINE)
            if found != 1:
                raise LabError(f"{self.manifest} has {found} lines '{name}:', and the story changes one")
        self.manifest.write_text(text, encoding="utf-8")

    def homes(self) -> dict[str, str]:
        """Container id of each replica of the service, by name."""
        listed = "docker ps --all --no-trunc --format '{{.Names}} {{.ID}}'"
        lines = self.guest.ssh(listed, "listing containers").splitlines()
        return {name: ident for name, ident in (line.split() for line in lines) if name.startswith(SERVICE)}


def settled(world: World, image: str, read: bool = False) -> Iterator[str]:
    """One line for everything that is not as it has to be when ``image`` is rolled out and nobody is at work.

    ``read``: each replica reads a receipt as well, for which an emulated processor takes half a minute.
    """
    yield from asking.problems(world.site, read=read)
    seen = asking.look(world.guest)
    for name, container in sorted(seen.containers.items()):
        if name.startswith(f"{SERVICE}-surge"):
            yield f"{name} is still there"
        elif name.startswith(SERVICE) and container["Config"]["Image"] != image:
            yield f"{name} runs {container['Config']['Image']}, and wanted is {image}"
    if set(seen.slices) != world.slices:
        yield f"the slices are {sorted(seen.slices)}, and were {sorted(world.slices)}"
    if left := world.guest.ssh(f"ls -d /srv/gpuops/services/{SERVICE}-surge* 2>/dev/null || true", "looking for a surge").split():
        yield f"{', '.join(left)} is left"
    yield from _gateway_well(world)


def _slices(world: World) -> set[str]:
    """UUIDs of the slices that the plan gives the service."""
    seen = asking.look(world.guest).slices
    ours = [replica for replica in asking.replicas(world.site) if replica.service == SERVICE]
    return {place.uuid for replica in ours if (place := seen.get((replica.gpu, replica.profile, replica.start)))}


def _gateway_well(world: World) -> Iterator[str]:
    """Through the gateway, every slice of the service answers, and no other."""
    wanted = _slices(world)
    with world.load(threads=2, pace=0.1) as load:
        load.wait_for(lambda account: account.devices >= wanted, UP_SECONDS)
    if load.account.devices != wanted:
        yield f"the gateway's answers came from the slices {sorted(load.account.devices)}, and the service's are {sorted(wanted)}"
    yield from _unanswered("after it", load.account, 1)


def _unanswered(what: str, account: Account, least: int) -> Iterator[str]:
    """One line for requests that failed, and for a load that shows nothing."""
    if account.failed:
        reasons = sorted({answer.problem for answer in account.failed})
        yield f"{what}: {len(account.failed)} of {len(account.answers)} requests failed: {'; '.join(reasons[:3])}"
    if len(account.answers) < least:
        yield f"{what}: only {len(account.answers)} requests were made meanwhile, which shows nothing"


def receipt_read(world: World) -> Iterator[str]:
    """A real receipt goes through the gateway and comes back as text."""
    receipt = receipts.render(time.time_ns() % asking.SEEDS)
    try:
        answer = ask(f"http://127.0.0.1:{world.port}{PATH}", receipt.png, headers=world.key)
    except LabError as error:
        yield f"a receipt through the gateway: {error}"
        return
    if lost := receipts.missing(answer["text"], receipt):
        yield f"a receipt through the gateway: the text lacks {', '.join(lost)}"


# --- security ---------------------------------------------------------------------------------------------------------

# Runs inside a container: what it could reach beside what is its own.
INSIDE = textwrap.dedent("""\
    import glob, json, os
    found = [path for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock") if os.path.exists(path)]
    secrets = {path: open(path).read().strip() for path in glob.glob("/run/secrets/**", recursive=True) if os.path.isfile(path)}
    mounts = [line.split()[4] for line in open("/proc/self/mountinfo")]
    print(json.dumps({
        "sockets": found + [mount for mount in mounts if "docker.sock" in mount],
        "secrets": secrets,
        "environment": open("/proc/1/environ", errors="replace").read(),
        "user": os.getuid(),
        "capabilities": [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapBnd"))],
    }))
""")


def inside(world: World) -> Iterator[str]:
    """From inside each container: no Docker socket, its own secret and no other's. Other slices' devices are asking.problems' to find."""
    for replica in asking.replicas(world.site):
        said = world.guest.ssh(f"docker exec -i {replica.container} python3 -", "looking from inside", input=INSIDE)
        seen = json.loads(said)
        own = SECRETS[replica.service]
        if seen["sockets"]:
            yield f"{replica}: it has {', '.join(seen['sockets'])}"
        if list(seen["secrets"].values()) != [own]:
            yield f"{replica}: below /run/secrets it has {sorted(seen['secrets'])}, and not just its own"
        if any(secret in seen["environment"] for secret in SECRETS.values()):
            yield f"{replica}: a secret is in its environment"
        if seen["user"] == 0 or any(int(word, 16) for word in seen["capabilities"]):
            yield f"{replica}: it runs as user {seen['user']} with capabilities {seen['capabilities']}"


def doors(world: World) -> Iterator[str]:
    """The gateway lets nobody in without a key of a team that may."""
    for what, headers, wanted in (
        ("without a key", {}, 401),
        ("with a wrong key", {"X-Api-Key": "wrong"}, 403),
        ("with another team's key", {"X-Api-Key": KEYS["cards"]}, 403),
        ("with a key as a bearer", {"Authorization": f"Bearer {KEYS['claims']}"}, 200),
    ):
        with Load("127.0.0.1", world.port, f"{PATH}/version", headers, threads=1) as load:
            load.wait_for(lambda account: account.answers, UP_SECONDS)
        if (status := load.account.answers[0].status) != wanted:
            yield f"a request {what} got {status}, and {wanted} was meant"


def planted(site: Site) -> Iterator[str]:
    """No secret's value is in what the playbooks said and wrote."""
    written = [path for path in site.home.rglob("*") if path.is_file() and "group_vars" not in path.parts and "guests" not in path.parts]
    for path in (LOGS / f"{site.scenario}-plays.log", *written):
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        yield from (f"the secret of {name} is in {path}" for name, secret in SECRETS.items() if secret in text)
        yield from (f"the key of {team} is in {path}" for team, key in KEYS.items() if key in text)


# --- rollouts ---------------------------------------------------------------------------------------------------------


def good(world: World) -> Iterator[str]:
    """The other version takes the place of the one that serves, under load, receipts among it; the seconds of each step are kept."""
    old, new = VERSIONS[world.tag], VERSIONS[world.other]
    image = world.site.image(world.other)
    with world.load(pace=0.8) as load:
        load.wait_for(lambda account: len(account.answers) >= 30, UP_SECONDS)
        changed = time.time()
        world.want(image)
        play = Play(world.site, "deploy", *ONLY)
        while not play.ended:
            yield from receipt_read(world)
            play.rest(RECEIPT_PAUSE)
        status = play.end()
        load.wait_for(lambda account: account.first(new, time.time() - 5) and len(account.answers) >= LEAST, UP_SECONDS)
    what = f"deploy of version {new}"
    print(f"{what}: {load.account}", flush=True)
    if status != 0:
        yield f"{what} ended with {status}: {' | '.join(play.reasons())[:400]}"
    yield from _unanswered(what, load.account, LEAST)
    yield from _times(world, changed, play, load.account, (old, new))
    yield from settled(world, image, read=True)


def _times(world: World, changed: float, play: Play, account: Account, versions: tuple[int, int]) -> Iterator[str]:
    """Writes from the change of the manifest to the first answer of the new version, split by step."""
    old, new = versions
    first, last = account.first(new), account.last(old)
    if first is None or last is None:
        yield f"deploy of version {new}: no answer of version {new if first is None else old} was seen"
        return
    tasks = [task for task in play.tasks() if task.seconds >= 0.05]
    until = [task for task in tasks if task.began < first]
    steps: dict[str, float] = {"start of ansible-playbook": (tasks[0].began if tasks else first) - changed}
    for task in until:
        name = phase(task)
        steps[name] = steps.get(name, 0.0) + min(task.seconds, first - task.began)
    told = {
        "first_answer_s": round(first - changed, 1),
        "last_request_of_the_old_version_s": round(last - changed, 1),
        "play_s": round(play.lines[-1][0] - changed, 1),
        "steps_to_first_answer_s": {name: round(seconds, 1) for name, seconds in steps.items()},
        "tasks": [{"task": task.name, "at_s": round(task.began - changed, 1), "seconds": round(task.seconds, 1)} for task in tasks],
        "load": account.summary(),
        "rollouts": _ledger(world),
    }
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / "rollout-times.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    split = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in steps.items() if seconds >= 0.5)
    print(f"from the manifest's change to the first answer of version {new}: {first - changed:.0f} s ({split})", flush=True)


def phase(task: Task) -> str:
    """Which step of a rollout a task belongs to, as people would say it: its role and, in the role that serves, the task."""
    role, _colon, name = task.name.rpartition(" : ")
    return f"{role.rpartition('.')[2]}: {name}" if role.endswith("model_service") else role.rpartition(".")[2] or name


def _ledger(world: World) -> list[dict[str, t.Any]]:
    """The rollouts that the host has written down."""
    script = textwrap.dedent("""\
        import json, sqlite3
        with sqlite3.connect("file:/var/lib/gpuops-fleet/ledger.sqlite?mode=ro", uri=True) as ledger:
            ledger.row_factory = sqlite3.Row
            print(json.dumps([dict(row) for row in ledger.execute("select * from rollouts")]))
    """)
    found: list[dict[str, t.Any]] = json.loads(world.guest.ssh("python3 -", "reading the ledger", input=script))
    return found


def back(world: World) -> Iterator[str]:
    """One command brings the version before back, under load, and the manifest says so."""
    image = world.site.image(world.other)
    with world.load() as load:
        status = (play := Play(world.site, "rollback", *ONLY)).end()
    print(f"rollback: {load.account} in {play.lines[-1][0] - play.began:.0f} s", flush=True)
    if status != 0:
        yield f"rollback ended with {status}: {' | '.join(play.reasons())[:400]}"
    if f"image: {image}" not in world.manifest.read_text(encoding="utf-8"):
        yield "rollback left the manifest with another image than it rolled back to"
    if not re.search(r"revert", play.text, re.IGNORECASE):
        yield "rollback says nothing of the revert that Git needs"
    yield from _unanswered("rollback", load.account, 300)
    yield from settled(world, image)


def refused(world: World, what: str, image: str, told: str, arguments: tuple[str, ...] = (), **changes: str) -> Iterator[str]:
    """A version that must not come: deploy fails with one line that says why, and the old containers answered all the time."""
    before, old, homes = world.homes(), world.tag, _slices(world)
    kept = world.manifest.read_text(encoding="utf-8")
    world.want(image, **changes)
    with world.load() as load:
        status = (play := Play(world.site, "deploy", *ONLY, *arguments)).end()
    reasons = play.reasons()
    took = play.lines[-1][0] - play.began
    print(f"{what}: deploy ended with {status} after {took:.0f} s; {load.account}\n  it said: {' | '.join(reasons)[:600]}", flush=True)
    if status == 0:
        yield f"{what}: deploy succeeded"
    lines = [line for line in reasons if re.search(told, line) and SERVICE in line]
    if not lines:
        yield f"{what}: no line of the play names {SERVICE} and '{told}'"
    yield from (f"{what}: {problem}" for problem in _unanswered("the old version", load.account, 100))
    if load.account.versions.keys() - {VERSIONS[old]}:
        yield f"{what}: answers came from {dict(load.account.versions)}, and only version {VERSIONS[old]} was to answer"
    if load.account.devices - homes:
        yield f"{what}: answers came from the slices {sorted(load.account.devices)}, and the old version's are {sorted(homes)}"
    if "way" not in changes and world.homes() != before:
        yield f"{what}: the containers that served are not those that serve: {before} before, {world.homes()} now"
    world.manifest.write_text(kept, encoding="utf-8")
    yield from (f"{what}: {problem}" for problem in settled(world, world.site.image(old)))


def wrong_slice(world: World, how: str, told: str) -> Iterator[str]:
    """The new version would get another slice than its own."""
    planned = " ".join(str(start) for _gpu, _profile, start in sorted(world.slices))
    wrapper = textwrap.dedent(f"""\
        #!/bin/sh
        /usr/bin/nvidia-ctk.real "$@" || exit
        for word; do case "$word" in --output=*) python3 /root/meddle.py {how} "${{word#--output=}}" {planned} ;; esac; done
        """)
    world.guest.ssh("cat > /root/remake.py", "writing remake.py", input=REMAKE)
    world.guest.ssh("cat > /root/meddle.py", "writing meddle.py", input=MEDDLE)
    put = "simctl set mig-uuid new && cd /usr/bin && mv nvidia-ctk nvidia-ctk.real && cat > nvidia-ctk && chmod 755 nvidia-ctk"
    world.guest.ssh(put, "putting something before nvidia-ctk", input=wrapper)
    try:
        problems = list(refused(world, f"wrong slice ({how})", world.site.image(world.other), told))
    finally:
        world.guest.ssh("mv /usr/bin/nvidia-ctk.real /usr/bin/nvidia-ctk", "taking that back")
    yield from problems
    must_play(world.site, "deploy", *ONLY)
    yield from (f"after a wrong slice ({how}): {problem}" for problem in settled(world, world.site.image(world.tag)))


def wrong_template(world: World) -> Iterator[str]:
    """A site's own template pins every replica to a slice that another team's service has."""
    (other, *_rest) = [replica for replica in asking.replicas(world.site) if replica.service == OTHER]
    taken = asking.look(world.guest).slices[other.gpu, other.profile, other.start].uuid
    device = f"""    deploy:
      resources:
        reservations:
          devices:
            - driver: cdi
              device_ids: ["nvidia.com/gpu={taken}"]
              capabilities: [gpu]
"""
    ours = (REPOSITORY / "compose-templates/http.yml.j2").read_text(encoding="utf-8")
    templates = world.site.home / "templates"
    templates.mkdir(exist_ok=True)
    (templates / "other-slice.yml.j2").write_text(ours.replace("{{ parts.device() -}}\n", device), encoding="utf-8")
    arguments = ("-e", json.dumps({"fleet_templates": [str(templates)]}))
    yield from refused(world, "wrong slice (template)", world.site.image(world.other), taken, arguments, runtime="other-slice")


def killed(world: World, step: str, after: float) -> Iterator[str]:
    """The controller dies ``after`` seconds of a step; every request is answered, and the next deploy finishes."""
    world.want(image := world.site.image(world.other))
    with world.load() as load:
        # Whoever comes next waits until the dead one's lease is over.
        play = Play(world.site, "deploy", *ONLY, "-e", f"fleet_lease_seconds={LEASE_SECONDS}")
        reached = play.wait_for(rf"^TASK \[(.* : )?{step}\]")
        time.sleep(after)
        at, over = play.task(), play.ended
        play.kill()
        time.sleep(5)
        status = (again := Play(world.site, "deploy", *ONLY)).end()
    what = f"killed in '{at}'"
    print(f"{what}: the next deploy ended with {status} after {again.lines[-1][0] - again.began:.0f} s; {load.account}", flush=True)
    if not reached or over:
        yield f"there was no step like '{step}' to be killed in"
    if status != 0:
        yield f"{what}: the next deploy ended with {status}: {' | '.join(again.reasons())[:400]}"
    yield from (f"{what}: {problem}" for problem in _unanswered("two deploys", load.account, 100))
    yield from (f"{what}: {problem}" for problem in settled(world, image))


def two_at_once(world: World) -> Iterator[str]:
    """Two people deploy the service at once: one waits, is told who holds it, and both end well."""
    world.want(image := world.site.image(world.other))
    with world.load() as load:
        first = Play(world.site, "deploy", *ONLY, "-e", "fleet_holder=anna")
        if not first.wait_for(r"^TASK \[.*Hold the host"):
            yield "the first deploy never held the host"
        time.sleep(10)
        second = Play(world.site, "deploy", *ONLY, "-e", "fleet_holder=ben")
        statuses = first.end(), second.end()
    print(f"two at once: they ended with {statuses}; {load.account}", flush=True)
    if statuses != (0, 0):
        yield f"two at once: they ended with {statuses}: {' | '.join([*first.reasons(), *second.reasons()])[:400]}"
    if not any("anna" in line for _moment, line in second.lines):
        yield "two at once: the second was never told who holds the host"
    yield from _unanswered("two at once", load.account, 100)
    yield from (f"two at once: {problem}" for problem in settled(world, image))


# --- stories ----------------------------------------------------------------------------------------------------------

Act = t.Callable[[World], Iterator[str]]

# Where the controller dies: the act's name, the name of a task, and how many seconds after its begin.
DEATHS = (
    ("killed-begun", "Note that a rollout begins", 0.0),
    ("killed-surge-starts", "Start the service", 1.0),
    ("killed-surge-unproven", "Wait until it is fit for requests", 5.0),
    ("killed-drained", "Stop the old version", 0.0),  # the surge serves, the first replica is drained
    ("killed-stopped", "Note that it is stopped", 0.0),
    ("killed-replaced", "Note that it is in its place", 0.0),  # it runs with the new version, its surge is there
    ("killed-surge-goes", "Take a surge's address from the gateway", 1.0),
    ("killed-slices", "Give the surges' slices back", 1.0),
)
BEGIN: dict[str, Act] = {
    "begin": lambda world: settled(world, world.site.image(world.tag), read=True),
    "inside": inside,
    "doors": doors,
    "good": good,
    "inside-after": inside,
    "back": back,
    "two-at-once": two_at_once,
}
BROKEN: dict[str, Act] = {
    "missing": lambda world: refused(world, "image missing", MISSING, "0000|manifest unknown|not found"),
    "never-healthy": lambda world: refused(world, "never healthy", world.site.image("never-healthy"), "healthy", timeout=SOON),
    "crashing": lambda world: refused(world, "healthy, then crashing", world.site.image("crashing"), "status 3|crash"),
    "stop-first": lambda world: refused(
        world, "stop first, never healthy", world.site.image("never-healthy"), "serves again", way="stop-first", timeout=SOON
    ),
    "template": wrong_template,
    "vanish": lambda world: wrong_slice(world, "vanish", "nvidia.com/gpu=MIG-"),
    "swap": lambda world: wrong_slice(world, "swap", "which is not its own"),
}
KILLED: dict[str, Act] = {name: partial(killed, step=step, after=after) for name, step, after in DEATHS}
END: dict[str, Act] = {"planted": lambda world: planted(world.site)}
ACTS: dict[str, Act] = {**BEGIN, **BROKEN, **KILLED, **END}


def tell_acts(site: Site, names: t.Iterable[str]) -> Iterator[str]:
    """Acts, one after the other; each begins with version 1 or 2 rolled out and leaves it so."""
    (guest,) = site.guests()
    world = World(site, guest, set(asking.look(guest).slices))
    for name in names:
        yield from told(name, _act(world, name))


def _act(world: World, name: str) -> Iterator[str]:
    """One of them, from a version that it can tell from its own."""
    if name == "stop-first" and world.tag != "lab":  # what it brings answers as version 2, from the same slice
        world.want(world.site.image("lab"))
        must_play(world.site, "deploy", *ONLY)
    yield from ACTS[name](world)


def rollout(site: Site) -> Iterator[str]:
    """A good version comes and goes, and two deploys meet."""
    yield from tell_acts(site, (*BEGIN, *END))


def rollout_broken(site: Site) -> Iterator[str]:
    """Bad versions, each in its own way: the old one serves."""
    yield from tell_acts(site, (*BROKEN, *END))


def rollout_killed(site: Site) -> Iterator[str]:
    """The controller dies, step by step: the next deploy finishes."""
    yield from tell_acts(site, (*KILLED, *END))
