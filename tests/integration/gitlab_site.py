# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A GitLab of two sample projects for tests: real git repositories, the demo's kind of hosts, and pipelines run by gitlab-ci-local."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from fleet_site import REPOSITORY, SIMULATOR, demo

SAMPLE = REPOSITORY / "inventories" / "example" / "gitlab"
HOSTS = {"gpu-prod-01": "a100-80gb:1", "gpu-prod-02": "a100-80gb:1", "gpu-stage-01": "a100-80gb:1"}
PLATFORM, CLAIMS, COLLECTION = "platform/gpu-fleet", "claims/claims-services", "platform/gpuops-fleet"
# What must be nowhere but where it was given.
SECRET = "planted-5ecret-6f1d2c"
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# What the runner writes before a line of a child pipeline.
_CHILD = r"(?:\t\[[^\]]+\] -> )?"


def runner() -> Path:
    """The executable gitlab-ci-local of tests/gitlab/package-lock.json, fetched into build/gitlab once.

    The test is skipped where it cannot be.
    """
    home = REPOSITORY / "build" / "gitlab"
    program = home / "node_modules" / ".bin" / "gitlab-ci-local"
    lock = (REPOSITORY / "tests" / "gitlab" / "package-lock.json").read_text(encoding="utf-8")
    for needed in ("npm", "node", "rsync", "git"):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed (Debian: apt install npm rsync git)")
    stamp = home / "installed"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != lock:
        home.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(REPOSITORY / "tests" / "gitlab" / name, home)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--cache", str(REPOSITORY / "build" / "cache" / "npm")]
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
            pytest.skip(f"npm cannot fetch gitlab-ci-local: {last[0]}")
        stamp.write_text(lock, encoding="utf-8")
    return program


@dataclass
class Pipeline:
    """One run: its exit status and what each job printed, by name, those of child pipelines too."""

    status: int
    output: str
    started: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def words(self, job: str) -> str:
        """What one job printed."""
        return "\n".join(re.findall(rf"^{_CHILD}{re.escape(job)} +> ?(.*)$", self.output, re.MULTILINE))


class GitLab:
    """The sample projects as bare repositories below ``work/repos``, and a clone of each, in which pipelines are run."""

    def __init__(self, work: Path) -> None:
        self.program = runner()
        self.work = work
        self.home = work / "home"
        self.home.mkdir()
        # The address of a clone's origin is left alone but for pushes: gitlab-ci-local takes host and project out of it.
        prefixes = [f"\tinsteadOf = {prefix}" for prefix in ("ssh://git@gitlab.example.com:22/", "https://gitlab.example.com/")]
        prefixes.append("\tpushInsteadOf = git@gitlab.example.com:")
        (self.home / ".gitconfig").write_text(
            "\n".join(
                [
                    *("[user]", "\tname = Somebody", "\temail = somebody@example.com", "[init]", "\tdefaultBranch = main"),
                    *(f'[url "file://{work}/repos/"]', *prefixes, ""),
                ]
            ),
            encoding="utf-8",
        )
        for name, board in HOSTS.items():
            demo.make_host(work, name, board, SIMULATOR)
        self.platform = self._project(PLATFORM, SAMPLE / "platform")
        self.claims = self._project(CLAIMS, SAMPLE / "claims-services")
        self._host_paths()
        self.commit(self.platform, "Hosts of the test")
        self.git(self.platform, "switch", "--quiet", "--orphan", "fleet-state")
        self.git(self.platform, "commit", "--quiet", "--allow-empty", "--message", "Nothing is planned yet")
        self.git(self.platform, "push", "--quiet", "origin", "fleet-state")
        self.git(self.platform, "switch", "--quiet", "main")
        self.git(self.claims, "push", "--quiet", "origin", "main:preview")
        collection = self._project(COLLECTION, None)
        shutil.copytree(REPOSITORY / "ci", collection / "ci")
        self.commit(collection, "The collection's pipeline")
        self.git(collection, "tag", "v0.2.0")
        self.git(collection, "push", "--quiet", "origin", "v0.2.0")

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
        self.git(clone, "remote", "add", "origin", f"git@gitlab.example.com:{path}.git")
        (clone / ".git" / "info" / "exclude").write_text(
            ".gitlab-ci-local*\n/state/\n/before/\n/out/\n/checkouts/\n/platform/\n", encoding="utf-8"
        )
        self.commit(clone, "As the sample has it")
        return clone

    def _host_paths(self) -> None:
        """The sample's hosts are the demo's kind: this machine, each below a directory of its own."""
        variables = self.platform / "inventory" / "group_vars"
        (variables / "gpu_hosts").mkdir()
        shutil.copy(REPOSITORY / "inventories" / "demo" / "group_vars" / "gpu_hosts.yml", variables / "gpu_hosts" / "1-hosts.yml")
        (variables / "gpu_hosts.yml").rename(variables / "gpu_hosts" / "2-sample.yml")

    def git(self, where: Path, *arguments: str) -> str:
        """What git says; it must succeed."""
        env = {**os.environ, "HOME": str(self.home), "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(["git", *arguments], cwd=where, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def commit(self, clone: Path, message: str, push: bool = True) -> None:
        """Commit all that is there, and push it to main."""
        self.git(clone, "add", "--all")
        self.git(clone, "commit", "--quiet", "--allow-empty", "--message", message)
        if push:
            self.git(clone, "push", "--quiet", "origin", "HEAD:main")

    def run(self, clone: Path, variables: dict[str, str], *options: str) -> Pipeline:
        """Run the pipeline of a clone's checked out commit, every job as a shell of this machine."""
        (clone / ".gitlab-ci-local-variables.yml").write_text(yaml.safe_dump(variables), encoding="utf-8")
        env = {
            **demo.environment(self.work, REPOSITORY / "collections"),
            "HOME": str(self.home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "FLEET_DEMO": str(self.work),
        }
        env.pop("ANSIBLE_CALLBACK_RESULT_FORMAT")
        # One job after the other: the runner knows no resource_group, which is what keeps two jobs off one host.
        command = [str(self.program), "--force-shell-executor", "--concurrency", "1", "--no-color", "--home", str(self.home), *options]
        done = subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, check=False, timeout=600)
        output = _ESCAPE.sub("", done.stdout + done.stderr)
        assert "Traceback" not in output, output
        return Pipeline(done.returncode, output, *_jobs(output))

    def merge_request(self, clone: Path, target: str = "main") -> Pipeline:
        """The pipeline of a merge request: on a ref that is not protected, where no protected variable exists."""
        more = {"CI_PIPELINE_SOURCE": "merge_request_event", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": target, "CI_MERGE_REQUEST_IID": "7"}
        return self.run(clone, more)

    def protected(self, *options: str, **more: str) -> Pipeline:
        """The platform's pipeline on its protected branch, with the variables that only exist there."""
        self.git(self.platform, "switch", "--quiet", "main")
        secrets = self.work / "home" / "secrets.yml"
        secrets.write_text(yaml.safe_dump({"fleet_secrets": {"receipt-ocr": {"token": SECRET}}}), encoding="utf-8")
        # What GitLab knows and this runner does not.
        known = {"CI_COMMIT_REF_PROTECTED": "true", "CI_SERVER_SHELL_SSH_HOST": "gitlab.example.com", "FLEET_SECRETS": str(secrets)}
        return self.run(self.platform, {**known, **more}, *options)

    def child(self) -> dict[str, t.Any]:
        """The child pipeline that was generated last."""
        data: dict[str, t.Any] = yaml.safe_load((self.platform / "out" / "child.yml").read_text(encoding="utf-8"))
        return data

    def state(self, path: str) -> str:
        """A file of branch fleet-state, as it was pushed."""
        return self.git(self.work / "repos" / f"{PLATFORM}.git", "show", f"fleet-state:{path}")

    def services(self, host: str) -> dict[str, dict[str, t.Any]]:
        """Replica -> its compose file as it is on a host."""
        root = self.work / host / "services"
        return {path.parent.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(root.glob("*/compose.yml"))}

    def everywhere(self) -> t.Iterator[tuple[Path, bytes]]:
        """Every file of the world: repositories unpacked, clones, artifacts, hosts, logs."""
        for path in sorted(self.work.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path, path.read_bytes()


def _jobs(output: str) -> tuple[list[str], list[str]]:
    """Names of the jobs that were started and of those that failed, those of child pipelines too, in the order of the log."""
    started = re.findall(rf"^{_CHILD}(\S.*?) +starting \S+ \(\S+\)", output, re.MULTILINE)
    failed = re.findall(rf"^{_CHILD}(\S.*?) +finished in .* FAIL +\d+", output, re.MULTILINE)
    return started, failed


def widget(clone: Path) -> dict[str, int]:
    """The report of a merge request."""
    data: dict[str, int] = json.loads((clone / "out" / "widget.json").read_text(encoding="utf-8"))
    return data


__all__ = ["CLAIMS", "HOSTS", "PLATFORM", "SECRET", "GitLab", "Pipeline", "widget"]
