# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sample projects of inventories/example/gitlab as a GitLab has them: real git repositories, and pipelines run by gitlab-ci-local.

Used by the scenario ``pipeline`` and by tests/integration: the first has a guest below it, the second hosts that are this machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import typing as t
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from lab import process
from lab.commands import run
from lab.errors import LabError
from lab.places import REPOSITORY

SAMPLE = REPOSITORY / "inventories" / "example" / "gitlab"
PLATFORM, CLAIMS, COLLECTION = "platform/gpu-fleet", "claims/claims-services", "platform/gpuops-fleet"
SERVER = "gitlab.example.com"
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# What the runner writes before a line of a child pipeline.
_CHILD = r"(?:\t\[[^\]]+\] -> )?"


def runner() -> Path:
    """The executable gitlab-ci-local of tests/gitlab/package-lock.json, fetched into build/gitlab once. LabError where it cannot be."""
    home = REPOSITORY / "build" / "gitlab"
    lock = (REPOSITORY / "tests" / "gitlab" / "package-lock.json").read_text(encoding="utf-8")
    if missing := [name for name in ("npm", "node", "rsync", "git") if shutil.which(name) is None]:
        raise LabError(f"{', '.join(missing)} is not installed (Debian: apt install npm rsync git)")
    stamp = home / "installed"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != lock:
        home.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(REPOSITORY / "tests" / "gitlab" / name, home)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--cache", str(REPOSITORY / "build" / "cache" / "npm")]
        run(["npm", "ci", *options], "fetching gitlab-ci-local", deadline=300, cwd=home)
        stamp.write_text(lock, encoding="utf-8")
    return home / "node_modules" / ".bin" / "gitlab-ci-local"


@dataclass
class Pipeline:
    """One run: its exit status, its seconds, and what each job printed, by name, those of child pipelines too."""

    status: int
    output: str
    seconds: float
    started: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def words(self, job: str) -> str:
        """What one job printed."""
        return "\n".join(re.findall(rf"^{_CHILD}{re.escape(job)} +> ?(.*)$", self.output, re.MULTILINE))


class Projects:
    """The sample projects as bare repositories below ``work/repos``, and a clone of each, in which pipelines are run.

    ``environment``: of every job, called before each run. ``protected_variables``: what jobs of a protected branch know and others do not.
    """

    def __init__(self, work: Path, environment: Callable[[], Mapping[str, str]]) -> None:
        self.program = runner()
        self.work = work
        self.home = work / "home"
        self.home.mkdir(parents=True)
        self.environment = environment
        self.protected_variables: dict[str, str] = {}
        # The address of a clone's origin is left alone but for pushes: gitlab-ci-local takes host and project out of it.
        prefixes = [f"\tinsteadOf = {prefix}" for prefix in (f"ssh://git@{SERVER}:22/", f"https://{SERVER}/")]
        prefixes.append(f"\tpushInsteadOf = git@{SERVER}:")
        (self.home / ".gitconfig").write_text(
            "\n".join(
                [
                    *("[user]", "\tname = Somebody", "\temail = somebody@example.com", "[init]", "\tdefaultBranch = main"),
                    *(f'[url "file://{work}/repos/"]', *prefixes, ""),
                ]
            ),
            encoding="utf-8",
        )
        self.platform = self._project(PLATFORM, SAMPLE / "platform")
        self.claims = self._project(CLAIMS, SAMPLE / "claims-services")
        self._branch_of_the_state()
        collection = self._project(COLLECTION, None)
        shutil.copytree(REPOSITORY / "ci", collection / "ci")
        self.commit(collection, "The collection's pipeline")
        sample = yaml.safe_load((SAMPLE / "platform" / ".gitlab-ci.yml").read_text(encoding="utf-8"))
        tag = sample["include"][0]["ref"]
        self.git(collection, "tag", tag)
        self.git(collection, "push", "--quiet", "origin", tag)

    def _project(self, path: str, sample: Path | None) -> Path:
        bare = self.work / "repos" / f"{path}.git"
        clone = self.work / "clones" / path
        bare.parent.mkdir(parents=True, exist_ok=True)
        self.git(self.work, "init", "--quiet", "--bare", str(bare))
        if sample is None:
            clone.mkdir(parents=True)
        else:
            shutil.copytree(sample, clone)
        self.git(clone, "init", "--quiet")
        self.git(clone, "remote", "add", "origin", f"git@{SERVER}:{path}.git")
        (clone / ".git" / "info" / "exclude").write_text(".gitlab-ci-local*\n", encoding="utf-8")
        self.commit(clone, "As the sample has it")
        return clone

    def _branch_of_the_state(self) -> None:
        self.git(self.platform, "switch", "--quiet", "--orphan", "fleet-state")
        self.git(self.platform, "commit", "--quiet", "--allow-empty", "--message", "Nothing is planned yet")
        self.git(self.platform, "push", "--quiet", "origin", "fleet-state")
        self.git(self.platform, "switch", "--quiet", "main")

    def git(self, where: Path, *arguments: str) -> str:
        """What git says. LabError when it fails."""
        env = {**os.environ, "HOME": str(self.home), "GIT_CONFIG_NOSYSTEM": "1"}
        return run(["git", *arguments], f"git {arguments[0]}", deadline=120, cwd=where, env=env)

    def commit(self, clone: Path, message: str, push: bool = True) -> None:
        """Commit all that is there, and push it to main."""
        self.git(clone, "add", "--all")
        self.git(clone, "commit", "--quiet", "--allow-empty", "--message", message)
        if push:
            self.git(clone, "push", "--quiet", "origin", "HEAD:main")

    def run(self, clone: Path, variables: Mapping[str, str], *options: str, seconds: float = 1200) -> Pipeline:
        """Run the pipeline of a clone's checked out commit, every job as a shell of this machine. LabError after so many seconds."""
        (clone / ".gitlab-ci-local-variables.yml").write_text(yaml.safe_dump(dict(variables)), encoding="utf-8")
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        env = {**os.environ, "PATH": path, **self.environment(), "HOME": str(self.home), "GIT_CONFIG_NOSYSTEM": "1"}
        env.pop("ANSIBLE_CALLBACK_RESULT_FORMAT", None)
        # One job after the other: the runner knows no resource_group, which is what keeps two jobs off one host.
        command = [str(self.program), "--force-shell-executor", "--concurrency", "1", "--no-color", "--home", str(self.home), *options]
        began = time.monotonic()
        try:
            done = process.attend(command, seconds=seconds, cwd=clone, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except subprocess.TimeoutExpired as error:
            raise LabError(f"the pipeline of {clone.name} did not end within {seconds:.0f} s") from error
        output = _ESCAPE.sub("", done.stdout + done.stderr)
        return Pipeline(done.returncode, output, time.monotonic() - began, *_jobs(output))

    def merge_request(self, clone: Path, target: str = "main") -> Pipeline:
        """The pipeline of a merge request: on a ref that is not protected, where no protected variable exists."""
        more = {"CI_PIPELINE_SOURCE": "merge_request_event", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": target, "CI_MERGE_REQUEST_IID": "7"}
        return self.run(clone, more)

    def _known(self, more: Mapping[str, str]) -> dict[str, str]:
        """What GitLab knows on a protected branch and this runner does not."""
        return {"CI_COMMIT_REF_PROTECTED": "true", "CI_SERVER_SHELL_SSH_HOST": SERVER, **self.protected_variables, **more}

    def protected(self, *options: str, seconds: float = 1200, **more: str) -> Pipeline:
        """The platform's pipeline on its protected branch, with the variables that only exist there."""
        self.git(self.platform, "switch", "--quiet", "main")
        return self.run(self.platform, self._known(more), *options, seconds=seconds)

    def press(self, *jobs: str, seconds: float = 1200) -> Pipeline:
        """Jobs of the child pipeline that was generated last, by hand, as a person does who presses their buttons."""
        return self.run(self.platform, self._known({}), "--file", "out/child.yml", *jobs, seconds=seconds)

    def child(self) -> dict[str, t.Any]:
        """The child pipeline that was generated last."""
        data: dict[str, t.Any] = yaml.safe_load((self.platform / "out" / "child.yml").read_text(encoding="utf-8"))
        return data

    def state(self, path: str) -> str:
        """A file of branch fleet-state, as it was pushed."""
        return self.git(self.work / "repos" / f"{PLATFORM}.git", "show", f"fleet-state:{path}")


def _jobs(output: str) -> tuple[list[str], list[str]]:
    """Names of the jobs that were started and of those that failed, those of child pipelines too, in the order of the log."""
    started = re.findall(rf"^{_CHILD}(\S.*?) +starting \S+ \(\S+\)", output, re.MULTILINE)
    failed = re.findall(rf"^{_CHILD}(\S.*?) +finished in .* FAIL +\d+", output, re.MULTILINE)
    return started, failed


def widget(clone: Path) -> dict[str, int]:
    """The report of a merge request."""
    data: dict[str, int] = json.loads((clone / "out" / "widget.json").read_text(encoding="utf-8"))
    return data
