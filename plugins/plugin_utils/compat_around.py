# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about what is around the GPU: engine, container toolkit, MIG, vGPU, operating system, age. docs/compat.md lists them."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_case import Case, Finding
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_facts import version
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_rules import HOST, finding, upgrade

# What NVIDIA names for older branches was read for a part of the systems only: for them nothing is said.
_FIRST_NAMED = 580


def judge_engine(case: Case) -> Iterator[Finding]:
    """Is there an engine, and a way from it to a GPU?"""
    host, docker = case.host, case.facts.docker()
    if host.engine is False:
        yield finding("no", "engine", "the container engine does not answer", f"install and start Docker on {host.name}", HOST)
    elif host.cdi is False and host.runtime is False:
        first, default = docker.value
        message = f"Docker {host.docker} gives containers no GPU: CDI is off, and NVIDIA's runtime is not there"
        remedy = "set features.cdi to true in daemon.json, or add NVIDIA's runtime"
        if version(host.docker) and version(host.docker) < version(first):
            remedy = f"add NVIDIA's runtime, or upgrade to Docker {default} or newer"
        yield finding("no", "engine", message, remedy, docker)


def judge_container_toolkit(case: Case) -> Iterator[Finding]:
    """Where containers get GPUs by CDI, somebody has to make the specification."""
    host, known = case.host, case.facts.container_toolkit()
    if not host.cdi or host.specs is not False:
        return
    toolkit, first = version(host.container_toolkit), known.value[0]
    if toolkit and toolkit < version(first):
        message = f"no CDI specification, and container toolkit {host.container_toolkit} makes none"
        yield finding("no", "container-toolkit", message, f"upgrade the container toolkit to {first} or newer", known)
    else:
        yield finding("warn", "container-toolkit", "no CDI specification yet", f"run nvidia-ctk cdi generate on {host.name}", known)


def judge_mig(case: Case) -> Iterator[Finding]:
    """A slice needs a driver that can cut this board."""
    if not case.image.mig or not case.host.driver:
        return
    known = case.facts.mig(case.gpu.board)
    if known is None and case.gpu.mig is False:
        remedy = "ask for 'isolation: exclusive' or 'isolation: shared', or for a board with MIG"
        yield finding("no", "mig", f"{case.gpu.board} has no MIG, and the service wants a slice", remedy, HOST)
    elif known is None:
        message = f"the least driver for MIG on {case.gpu.board} is not known"
        yield finding("warn", "mig", message, "", case.facts.mig_source())
    elif version(case.host.driver) < version(known.value):
        message = f"MIG on {case.gpu.board} needs driver {known.value} or newer, here is {case.host.driver}"
        yield finding("no", "mig", message, upgrade(case, known.value), known)


def judge_vgpu(case: Case) -> Iterator[Finding]:
    """A vGPU's guest runs on a host of its own major release of vGPU software, or of the next one."""
    if case.gpu.virtualization != "vgpu" or case.branch is None:
        return
    guest = case.facts.vgpu(case.branch)
    below = version(case.host.vgpu_host)
    host = case.facts.vgpu(below[0]) if below else None
    if host is None or host.value is None or guest.value is None:
        message = f"whether a host with driver {case.host.vgpu_host or 'that is not known'} takes this guest is not known"
        yield finding("warn", "vgpu", message, "", guest)
    elif host.value - guest.value not in (0, 1):
        pair = f"guest of vGPU {guest.value} ({case.host.driver}) on a host of vGPU {host.value} ({case.host.vgpu_host})"
        wrong = "newer than its host" if guest.value > host.value else "older than the release before its host's"
        remedy = f"install a guest driver of vGPU {host.value}" if host.value != guest.value else ""
        yield finding("no", "vgpu", f"{pair}: the guest is {wrong}", remedy, guest)


def judge_system(case: Case) -> Iterator[Finding]:
    """Operating system, kernel and GCC: what NVIDIA does not name may work all the same."""
    host, branch = case.host, case.branch
    if host.os_id is None or host.os_version is None or branch is None or branch < _FIRST_NAMED:
        return
    name = f"{host.os_id} {host.os_version}"
    rows = [fact for fact in case.facts.systems(host.os_id) if f"{host.os_version}.".startswith(f"{fact.value.version}.")]
    if not rows:
        message = f"{name} is not among the systems that NVIDIA names for R{branch}"
        yield finding("warn", "os", message, "", case.facts.systems_source())
        return
    row = rows[0].value
    if row.until is not None and branch > row.until:
        yield finding("warn", "os", f"NVIDIA names {name} up to R{row.until} only, here is R{branch}", "", rows[0])
    elif row.since is not None and branch < row.since:
        yield finding("warn", "os", f"NVIDIA names {name} from R{row.since} on, here is R{branch}", "", rows[0])
    kernel = version(host.kernel)[:2]
    if kernel and row.kernel is not None and kernel > version(row.kernel):
        message = f"kernel {host.kernel} is newer than {row.kernel}, the newest that NVIDIA names for {name}: the modules may not build"
        yield finding("warn", "kernel", message, "", rows[0])


def judge_gcc(case: Case) -> Iterator[Finding]:
    """The compiler of the host, which DKMS and nvcc use; containers need none."""
    have, speaks, built = version(case.host.gcc), case.speaks, version(case.host.kernel_gcc)
    if have and built and have[0] != built[0]:
        message = (
            f"kernel {case.host.kernel} was built with GCC {case.host.kernel_gcc}, and no GCC {built[0]} is here, only {case.host.gcc}"
        )
        yield finding("warn", "gcc", f"{message}: modules may not build", f"install gcc-{built[0]}", case.facts.toolchain())
    known = case.facts.gcc(".".join(map(str, speaks))) if speaks else None
    if have and known is not None and have[0] > known.value:
        message = f"GCC {case.host.gcc} is newer than {known.value}, the newest that CUDA {'.'.join(map(str, speaks))} takes"
        yield finding("warn", "gcc", message, "", known)


def judge_age(case: Case) -> Iterator[Finding]:
    """Does the branch still get fixes?"""
    known = case.facts.branch(case.branch) if case.branch is not None else None
    if known is None or case.facts.supported(known.value.branch, case.month):
        return
    row = known.value
    since = f"since {row.eol}" if row.eol and (case.month is None or row.eol < case.month) else "by NVIDIA's list"
    yield finding("warn", "end-of-life", f"R{row.branch} gets no fixes any more, {since}", upgrade(case, f"{row.branch}.0"), known)
