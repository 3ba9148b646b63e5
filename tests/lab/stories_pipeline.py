# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sample projects' pipelines, from the merge request of a model owner to the container that runs in the guest's engine.

What counts is what the engine runs: image and state of every container, and that each reads a receipt on the slice of the plan that was
pushed to ``fleet-state``. The key to the guest is a protected variable here as well, and what sshd wrote tells whether anybody came.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import typing as t
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from lab import asking
from lab.commands import last_line
from lab.gitlab import PLATFORM, Pipeline, Projects, widget
from lab.guest import Guest, control_path
from lab.places import LOGS
from lab.site import Site

CHANGED, REMOVED = "receipt-ocr", "form-ocr"
# A plan and some deploys of an emulated host.
SECONDS = 3600.0


@dataclass
class World:
    """The site, its one guest, and the projects whose pipelines reach it. ``times``: seconds of each pipeline, by what it was."""

    site: Site
    guest: Guest
    projects: Projects
    times: dict[str, float] = field(default_factory=dict)

    @property
    def manifests(self) -> Path:
        """Where the model owner writes."""
        return self.projects.claims / "manifests"

    def entrances(self) -> int:
        """How often somebody was let into the guest so far."""
        said = self.guest.ssh("journalctl --unit 'ssh*' --no-pager", "reading what sshd wrote")
        return said.count("Accepted publickey")

    def runs(self) -> dict[str, str]:
        """Image of each container that runs in the guest, by the container's name: the engine's own word."""
        found = asking.look(self.guest).containers
        return {name: entry["Config"]["Image"] for name, entry in sorted(found.items()) if entry["State"]["Running"]}

    def kept(self, what: str, run: Pipeline) -> Pipeline:
        """The same pipeline; its seconds and all that it said are written down."""
        self.times[what] = run.seconds
        LOGS.mkdir(parents=True, exist_ok=True)
        with (LOGS / f"{self.site.scenario}-pipelines.log").open("a", encoding="utf-8") as log:
            log.write(f"# {what}: status {run.status} after {run.seconds:.0f} s\n{run.output}\n\n")
        print(f"{what}: status {run.status} after {run.seconds:.0f} s; {', '.join(run.started)}", flush=True)
        return run

    def plans(self) -> None:
        """Lays the plans of branch fleet-state where the questions of all scenarios look for plans."""
        plans = self.site.home / "plans"
        shutil.rmtree(plans, ignore_errors=True)
        plans.mkdir()
        bare = self.projects.work / "repos" / f"{PLATFORM}.git"
        for path in self.projects.git(bare, "ls-tree", "--name-only", "fleet-state", "plans/").split():
            (plans / Path(path).name).write_text(self.projects.state(path), encoding="utf-8")


def _world(site: Site, guest: Guest) -> World:
    """The sample projects, with the guest in the place of the sample's hosts and nothing else changed."""
    work = site.home / "gitlab"
    shutil.rmtree(work, ignore_errors=True)
    projects = Projects(work, lambda: {"ANSIBLE_HOME": str(work / "ansible"), "ANSIBLE_PIPELINING": "true", "ANSIBLE_NOCOLOR": "true"})
    inventory = projects.platform / "inventory"
    known = yaml.safe_load(site.inventory.read_text(encoding="utf-8"))["all"]["children"]["gpu_hosts"]["hosts"]
    # No key, and no connection that the lab keeps open: whoever has no FLEET_SSH_KEY is not let in.
    own = {"ControlPath": f"{control_path(guest.ports[22])}-pipeline", "ControlPersist": "60"}
    words = [word for word in guest.ssh_options() if word not in ("-i", str(guest.key))]
    options = [f"{name}={own.get(name, value)}" if value else name for name, _equals, value in (word.partition("=") for word in words)]
    hosts = {name: {**variables, "ansible_ssh_common_args": shlex.join(options)} for name, variables in known.items()}
    groups = {"all": {"children": {"gpu_hosts": {"children": {"production": {"hosts": hosts}, "staging": {"hosts": {}}}}}}}
    (inventory / "hosts.yml").write_text(yaml.safe_dump(groups, sort_keys=False), encoding="utf-8")
    variables = inventory / "group_vars"
    (variables / "gpu_hosts").mkdir()
    (variables / "gpu_hosts.yml").rename(variables / "gpu_hosts" / "1-sample.yml")
    shutil.copy(site.home / "group_vars" / "gpu_hosts.yml", variables / "gpu_hosts" / "2-guest.yml")
    projects.commit(projects.platform, "The host of the lab")
    # The model owner begins with nothing: what there is comes by merge request.
    for folder in ("manifests", "previews"):
        shutil.rmtree(projects.claims / folder)
        (projects.claims / folder).mkdir()
        (projects.claims / folder / ".gitkeep").touch()
    projects.commit(projects.claims, "No service yet")
    projects.git(projects.claims, "push", "--quiet", "origin", "main:preview")
    key = projects.home / "ssh-key"
    shutil.copy(guest.key, key)
    os.chmod(key, 0o600)
    projects.protected_variables["FLEET_SSH_KEY"] = str(key)
    return World(site, guest, projects)


def _merged(world: World, what: str, change: Callable[[], None], expected: Mapping[str, int]) -> Iterator[str]:
    """The owner's merge request: its preview, made without the hosts, and the merge."""
    projects = world.projects
    projects.git(projects.claims, "switch", "--quiet", "--create", what, "main")
    change()
    projects.commit(projects.claims, what, push=False)
    before = world.entrances()
    run = world.kept(f"{what}: merge request", projects.merge_request(projects.claims))
    if (run.status, run.started) != (0, ["validate", "compat", "preview"]):
        yield f"{what}: the merge request ended with {run.status} after {run.started}: {last_line(run.output)[:300]}"
    elif (told := widget(projects.claims)) != expected:
        yield f"{what}: the merge request announces {told}, and {dict(expected)} was meant"
    if (now := world.entrances()) != before:
        yield f"{what}: somebody came into the host {now - before} times while the merge request's jobs ran"
    projects.git(projects.claims, "switch", "--quiet", "main")
    projects.git(projects.claims, "merge", "--quiet", "--ff-only", what)
    projects.git(projects.claims, "push", "--quiet", "origin", "main")


def _deployed(world: World, what: str, gates: t.Sequence[str], jobs: t.Sequence[str], wanted: Mapping[str, str]) -> Iterator[str]:
    """The platform's pipeline after the merge, its gates opened, and what runs in the guest then."""
    options = [word for gate in gates for word in ("--manual", gate)]
    before = world.entrances()
    run = world.kept(f"{what}: pipeline", world.projects.protected(*options, seconds=SECONDS))
    if run.status != 0 or run.failed:
        reasons = re.findall(r"^.*(?:fatal: \[|\[ERROR\]).*", run.output, re.MULTILINE)
        yield f"{what}: the pipeline ended with {run.status}, {run.failed} failed: {' | '.join(reasons)[-600:] or last_line(run.output)}"
    if sorted(run.started) != sorted(["plan", *gates, *jobs]):
        yield f"{what}: the jobs {sorted(run.started)} ran, and {sorted(['plan', *gates, *jobs])} were meant"
    if world.entrances() == before:
        yield f"{what}: sshd wrote of nobody who came, so that its log shows nothing of merge requests either"
    if (found := world.runs()) != wanted:
        yield f"{what}: the engine runs {found}, and {dict(wanted)} was meant"
    print(f"{what}: the engine runs {world.runs()}", flush=True)
    world.plans()
    if wanted:
        yield from (f"{what}: {problem}" for problem in asking.problems(world.site))


def pipeline(site: Site) -> Iterator[str]:
    """A service is new, then changed, then removed: each by a merge request, its preview, a binding plan and jobs that were let through."""
    (guest,) = site.guests()
    world = _world(site, guest)
    one, two = site.image("lab"), site.image("two")
    name = guest.name
    # What GitLab's schedule does: without published facts there is nothing that a preview could be made from.
    yield from _deployed(world, "schedule", [], ["nothing to deploy"], {})

    def new() -> None:
        for service in (CHANGED, REMOVED):
            shutil.copy(site.home / "manifests" / f"{service}.yml", world.manifests)

    yield from _merged(world, "new", new, {"create": 2, "update": 0, "delete": 0})
    jobs = [f"carry out {name}", *(f"deploy {service} on {name}" for service in (CHANGED, REMOVED))]
    gates = [f"approve {service}" for service in (CHANGED, REMOVED)]
    yield from _deployed(world, "new", gates, jobs, {f"{CHANGED}-1": one, f"{REMOVED}-1": one})

    def changed() -> None:
        manifest = world.manifests / f"{CHANGED}.yml"
        manifest.write_text(re.sub(r"(?m)^image: .*", f"image: {two}", manifest.read_text(encoding="utf-8")), encoding="utf-8")

    yield from _merged(world, "changed", changed, {"create": 0, "update": 1, "delete": 0})
    yield from _deployed(
        world, "changed", [f"approve {CHANGED}"], [f"deploy {CHANGED} on {name}"], {f"{CHANGED}-1": two, f"{REMOVED}-1": one}
    )

    yield from _merged(world, "removed", (world.manifests / f"{REMOVED}.yml").unlink, {"create": 0, "update": 0, "delete": 1})
    yield from _deployed(world, "removed", [f"approve {REMOVED}"], [f"remove {REMOVED} from {name}"], {f"{CHANGED}-1": two})
    if left := guest.ssh(
        f"docker ps --all --quiet --filter name={REMOVED}; ls -d /srv/gpuops/services/{REMOVED}-* || true", "looking"
    ).split():
        yield f"removed: {', '.join(left)} is left of {REMOVED}"
    print(f"seconds: {', '.join(f'{what} {seconds:.0f}' for what, seconds in world.times.items())}", flush=True)
