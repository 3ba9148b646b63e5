# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Debian that has nothing yet becomes a GPU host, as far as Debian's packages go and a machine without a GPU lets them.

Real: apt, dpkg and DKMS, the driver's packages and its kernel module, the kernel that refuses it, systemd, the engine, the container whose
devices are looked at from inside. Stood in for: the compiler's hours (``modules``), ``nvidia-ctk``, which Debian lacks, and the device
nodes that a driver with a GPU would have made, with a CDI specification that names them.
"""

from __future__ import annotations

import json
import re
import textwrap
import time
import typing as t
from collections.abc import Iterator

from lab.acts import told
from lab.archive import DRIVER
from lab.errors import LabError
from lab.guest import Guest
from lab.plays import Play
from lab.site import Site

CONTAINER = "keeper"
# As group_vars of the scenario have it.
REGISTRY = "registry.example:5000"
NODES = ("/dev/nvidia0", "/dev/nvidiactl")
LOADS_NOT = re.compile(
    r"driver 550\.\S+ does not load: no NVIDIA GPU on this host that this driver drives "
    r"\(modprobe: could not insert '\S+': No such device[^\\\n]*\); look for it with `lspci -d 10de:`"
)
GATE = re.compile(r"gpu-bare-1: [^\\\n]*no driver answers[^\\\n]*")
# The daemon comes in any version of the branch.
HELD = {*DRIVER} - {"nvidia-persistenced"}
# What a version is asked for, and no more is ever made of it here: without a driver there is nothing to write a specification of.
TOOLKIT = textwrap.dedent("""\
    #!/bin/sh
    # The lab's: Debian has no NVIDIA container toolkit.
    [ "$1" = --version ] && echo "NVIDIA Container Toolkit CLI version 1.18.1" && exit 0
    echo "the lab's stand-in for nvidia-ctk knows --version only, and was asked for: $*" >&2
    exit 1
""")
SPECIFICATION = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "GPU-1", "containerEdits": {"deviceNodes": [{"path": path} for path in NODES]}}],
}
# No driver is behind a node: where the kernel lets a container through to it, that is said (ENXIO); where it keeps it out, EPERM.
INSIDE = textwrap.dedent("""\
    import errno, os
    for path in NODES:
        try:
            os.close(os.open(path, os.O_RDWR))
            print(path, "OPEN")
        except OSError as error:
            print(path, errno.errorcode[error.errno])
""").replace("NODES", repr(NODES))
STATE = textwrap.dedent("""\
    import glob, json, os, subprocess
    def said(*argv):
        try:
            return subprocess.run(argv, capture_output=True, text=True).stdout
        except FileNotFoundError:
            return ""
    print(json.dumps({
        "packages": {
            words[1]: words[2]
            for words in map(str.split, said("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\\n").splitlines())
            if words[0] == "installed"
        },
        "held": said("apt-mark", "showhold").split(),
        "dkms": said("dkms", "status").splitlines(),
        "module": said("modinfo", "-F", "version", "nvidia-current").strip(),
        "loaded": [line.split()[0] for line in open("/proc/modules") if line.startswith(("nvidia", "nouveau"))],
        "kernel": os.uname().release,
        "sources": "".join(open(path).read() for path in sorted(glob.glob("/etc/apt/sources.list.d/*"))),
        "programs": [name for name in ("docker", "dkms.distrib", "gcc", "nvidia-smi", "nvidia-ctk") if glob.glob("/usr/*bin/" + name)],
    }))
""")


def state(guest: Guest) -> dict[str, t.Any]:
    """What dpkg, DKMS and the kernel say, without a word of the collection's."""
    found: dict[str, t.Any] = json.loads(guest.ssh("python3 -", "looking at it", input=STATE))
    return found


def run(site: Site, what: str, *options: str) -> Play:
    """One ``prepare``, timed."""
    began = time.monotonic()
    play = Play(site, "prepare", *options)
    status = play.end()
    print(f"{what}: ended with {status} after {time.monotonic() - began:.0f} s, changed={changed(play)}", flush=True)
    return play


def changed(play: Play) -> int:
    """How many tasks the recap says changed something. LabError when there is no recap."""
    found = re.search(r"^gpu-bare-1 +: ok=\d+ +changed=(\d+)", play.text, re.MULTILINE)
    if not found:
        raise LabError(f"prepare had no recap: {play.reasons()[:1] or play.text[-300:]}")
    return int(found[1])


def _changers(play: Play) -> str:
    """Names of the tasks that said changed."""
    task, found = "", []
    for _moment, line in play.lines:
        if match := re.match(r"(?:TASK|RUNNING HANDLER) \[(.*?)\] \*+$", line):
            task = match[1]
        elif line.startswith("changed: "):
            found.append(task)
    return "; ".join(dict.fromkeys(found))


def _in_one_line(play: Play, wanted: re.Pattern[str], what: str) -> Iterator[str]:
    """The play failed, once, with a line like this and no traceback."""
    told = wanted.search(play.text)
    if told:
        print(f"  in one line: {told.group(0)}", flush=True)
    else:
        yield f"{what}: no line like {wanted.pattern}; it said {' | '.join(play.reasons())[:600] or 'nothing'}"
    if "Traceback" in play.text:
        yield f"{what}: a traceback was shown"
    failed = re.search(r"failed=(\d+)", play.text)
    if not failed or failed[1] != "1":
        yield f"{what}: it did not fail once, but {failed[1] if failed else 'no'} times"


# --- acts -------------------------------------------------------------------------------------------------------------


def naked(_site: Site, guest: Guest) -> Iterator[str]:
    """Nothing of what the roles bring is there, and apt knows no component but main."""
    seen = state(guest)
    brought = re.compile(r"nvidia|libcuda|libnvidia|dkms|gcc-1\d$|linux-headers|docker|containerd|python3-apt")
    there = [name for name in seen["packages"] if brought.match(name)]
    if there or seen["programs"] or seen["loaded"]:
        yield f"it is not bare: {there} {seen['programs']} {seen['loaded']}"
    if "non-free" in seen["sources"] or "contrib" in seen["sources"]:
        yield f"apt knows more than main before anybody said so: {seen['sources']}"
    print(f"bare: {len(seen['packages'])} packages, kernel {seen['kernel']}", flush=True)


def refused(site: Site, guest: Guest) -> Iterator[str]:
    """The driver's packages are installed, its module is built for this kernel; the kernel refuses it, in one line, for there is no GPU."""
    play = run(site, "prepare of a bare host")
    yield from _in_one_line(play, LOADS_NOT, "prepare")
    yield from _driver_there(guest)
    seen = state(guest)
    if "docker" in seen["programs"]:
        yield "the engine came although the driver does not load"
    if "the lab's stand-in for a build" not in guest.ssh("cat /var/log/apt/term.log", "reading what apt said"):
        yield "DKMS was not stood in for, so that hours of compiling are to come"


def _driver_there(guest: Guest) -> Iterator[str]:
    """dpkg, DKMS, modinfo and apt's holds say the same version."""
    seen = state(guest)
    versions = {name: seen["packages"].get(name, "") for name in DRIVER}
    upstream = versions[DRIVER[0]].partition("-")[0]
    if not upstream or {version.partition("-")[0] for version in versions.values()} != {upstream}:
        yield f"dpkg has of the driver {versions}"
        return
    wanted = f"nvidia-current/{upstream}, {seen['kernel']}, x86_64: installed"
    if [line.split(" (")[0] for line in seen["dkms"]] != [wanted]:
        yield f"DKMS says {seen['dkms']}, and not '{wanted}'"
    if seen["module"] != upstream:
        yield f"modinfo finds version '{seen['module']}' of the module for {seen['kernel']}"
    if HELD - set(seen["held"]):
        yield f"held are {seen['held']}, not all of {sorted(HELD)}"
    if seen["loaded"]:
        yield f"{seen['loaded']} are loaded without a GPU"
    if "contrib non-free" not in seen["sources"]:
        yield f"apt does not know the other components: {seen['sources']}"
    print(f"  dpkg: {', '.join(DRIVER)} {versions[DRIVER[0]]}; DKMS: {'; '.join(seen['dkms'])}; held: {len(seen['held'])}", flush=True)


WITHOUT_GPU = ("-e", '{"nvidia_driver_load": false}')


def far(site: Site, guest: Guest) -> Iterator[str]:
    """Without a GPU to load it for, it goes on: engine, toolkit, agent; and the gate keeps services away, in one line."""
    guest.ssh("cat > /usr/bin/nvidia-ctk && chmod 755 /usr/bin/nvidia-ctk", "standing in for nvidia-ctk", input=TOOLKIT)
    nodes = " && ".join(f"{{ test -c {path} || mknod -m 666 {path} c 195 {minor}; }}" for path, minor in zip(NODES, (0, 255), strict=True))
    guest.ssh(nodes, "making the nodes that a driver with a GPU makes")
    play = run(site, "prepare without loading", *WITHOUT_GPU)
    yield from _in_one_line(play, GATE, "the gate")
    yield from _driver_there(guest)
    yield from _engine_there(guest)


def _engine_there(guest: Guest) -> Iterator[str]:
    """The engine runs with its settings, and so does the agent."""
    said = guest.ssh(
        "docker info --format '{{.ServerVersion}} {{.LiveRestoreEnabled}} {{.LoggingDriver}} {{.CgroupDriver}}';"
        " docker compose version --short; systemctl is-active docker.service;"
        " systemctl list-unit-files 'gpuops-fleet*' --no-legend; ls -l /dev/char/195:0",
        "looking at the engine",
    )
    print("  " + "; ".join(said.splitlines()), flush=True)
    lines = said.splitlines()
    if not re.match(r"\d+\.\S+ true json-file ", lines[0] if lines else ""):
        yield f"the engine is not as role docker_host makes it: {said}"
    if "active" not in lines:
        yield f"docker.service is not active: {said}"
    if "gpuops-fleet" not in said:
        yield f"there is no unit of the host agent: {said}"
    if "/dev/char/195:0" not in said:
        yield f"there is no link of the device's number: {said}"


def again(site: Site, guest: Guest) -> Iterator[str]:
    """The same once more changes nothing."""
    play = run(site, "prepare once more", *WITHOUT_GPU)
    yield from _in_one_line(play, GATE, "the gate")
    if number := changed(play):
        yield f"a second prepare changed {number} tasks: {_changers(play)}"
    yield from _driver_there(guest)


def container(site: Site, guest: Guest) -> Iterator[str]:
    """A container with a device by CDI starts, and gets through to it."""
    guest.ssh("mkdir -p /etc/cdi && cat > /etc/cdi/lab.json", "writing a CDI specification", input=json.dumps(SPECIFICATION))
    image = site.image("lab")
    # The image has Python, and no sleep.
    stay = f"--entrypoint python3 {image} -c 'import signal; signal.pause()'"
    start = f"docker run --detach --name {CONTAINER} --network none --device nvidia.com/gpu=GPU-1 {stay}"
    guest.ssh(f"docker rm --force {CONTAINER} 2>/dev/null; {start}", "starting a container with a device")
    yield from _through(guest, "after its start")


def _through(guest: Guest, when: str) -> Iterator[str]:
    said = guest.ssh(f"docker exec -i {CONTAINER} python3 -", "looking from inside", input=INSIDE).split()
    print(f"  from inside, {when}: {' '.join(said)}", flush=True)
    if said != [word for path in NODES for word in (path, "ENXIO")]:
        yield f"{when} the container finds {' '.join(said)}: it does not get through to its devices"


def _life(guest: Guest) -> str:
    form = "{{.Id}} {{.State.StartedAt}} {{.State.Pid}}"
    return guest.ssh(f"docker inspect --format '{form}' {CONTAINER}", "asking the engine").strip()


def kept(site: Site, guest: Guest) -> Iterator[str]:
    """Every role runs twice over a container with a device, with a setting that restarts the engine, and systemd reads its units again."""
    before = _life(guest)
    engine = guest.ssh("cat /var/run/docker.pid", "asking for the engine's process")
    limits = {"default-ulimits": {"nofile": {"Name": "nofile", "Soft": 65536, "Hard": 65536}}, "insecure-registries": [REGISTRY]}
    more = ("-e", json.dumps({"docker_host_settings": limits}))
    play = run(site, "prepare over a container, with another setting of the engine", *WITHOUT_GPU, *more)
    yield from _in_one_line(play, GATE, "the gate")
    if guest.ssh("cat /var/run/docker.pid", "asking for the engine's process") == engine:
        yield "the engine was not restarted, so that nothing was tried"
    yield from _through(guest, "after every role and a restart of the engine")
    play = run(site, "the same once more", *WITHOUT_GPU, *more)
    if number := changed(play):
        yield f"the same once more changed {number} tasks: {_changers(play)}"
    yield from _through(guest, "after every role once more")
    guest.ssh("systemctl daemon-reload", "having systemd read its units again")
    yield from _through(guest, "after systemd read its units again")
    if (now := _life(guest)) != before:
        yield f"the container is not the one that ran: {before} before, {now} now"
    # Told, and no problem: Debian 13's runc keeps the devices without the links of role container_toolkit as well.
    guest.ssh("rm /dev/char/195:* && systemctl daemon-reload", "taking the links away")
    lost = guest.ssh(f"docker exec -i {CONTAINER} python3 -", "looking from inside", input=INSIDE).split()
    print(f"  from inside, without the links of role container_toolkit and after a daemon-reload: {' '.join(lost)}", flush=True)


Act = t.Callable[[Site, Guest], Iterator[str]]
ACTS: dict[str, Act] = {act.__name__: act for act in (naked, refused, far, again, container, kept)}


def tell_acts(site: Site, names: t.Iterable[str]) -> Iterator[str]:
    """Acts, one after the other; each goes on where the one before it ended."""
    (guest,) = site.guests()
    for name in names:
        yield from told(name, ACTS[name](site, guest))


def bare(site: Site) -> Iterator[str]:
    """From nothing to a host that passes the gate but for the GPU that it has not, twice; a container keeps its devices throughout."""
    yield from tell_acts(site, ACTS)
