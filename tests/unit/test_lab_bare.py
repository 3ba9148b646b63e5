# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What makes a host of a bare guest: an archive that has what its index says, and a build that DKMS finds done. Programs are stand-ins."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import textwrap
import typing as t
import urllib.request
from pathlib import Path

import pytest
import yaml
from lab_world import program

from lab import archive, commands, guest, modules, packages, stories_bare, stories_upgrade
from lab.errors import LabError
from lab.guest import Guest, Hardware
from lab.load import Account, Answer
from lab.packages import Mirror
from lab.site import Site

KERNEL = "6.12.1+deb13-amd64"
STATUS = f"Package: dpkg\nStatus: install ok installed\n\nPackage: linux-image-{KERNEL}\nStatus: install ok installed\n"
POOL = {
    "main": ("gcc", "4:14.2.0-1", "pool/main/g/gcc_14.2.0-1_amd64.deb"),
    "non-free": ("nvidia-kernel-dkms", "550.1-2", "pool/non-free/n/n.deb"),
}
RECORD = """Package: {0}
Version: {1}
Architecture: amd64
Filename: {2}
Description: more
 lines

"""
APT_GET = r"""
for word; do case "$word" in Dir::Cache=*) cache=${word#Dir::Cache=} ;; esac; done
echo "$*" >> "$CALLS"
case "$*" in
*--download-only*)
  echo gcc > "$cache/archives/gcc_4%3a14.2.0-1_amd64.deb"
  echo driver > "$cache/archives/nvidia-kernel-dkms_550.1-2_amd64.deb" ;;
*--simulate*) echo "NOTE: this is only a simulation"; echo "Inst gcc (4:14.2.0-1 Debian:13/stable [amd64])"
  echo "Inst nvidia-kernel-dkms [1] (550.1-2 Debian:13/stable [amd64]) []"; echo "Conf gcc (4:14.2.0-1 Debian:13/stable [amd64])" ;;
esac
"""
GPG = r"""
while [ $# -gt 0 ]; do [ "$1" = --output ] && out=$2; last=$1; shift; done
[ -n "$out" ] && { [ -e "$last" ] && cat "$last" || echo key; } > "$out"
exit 0
"""


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image's directory, and a machine whose apt knows two packages."""
    folder, home = tmp_path / "bin", tmp_path / "image"
    for path in (folder, home):
        path.mkdir()
    (home / "status").write_text(STATUS, encoding="utf-8")
    (tmp_path / "records").write_text("".join(RECORD.format(*package) for package in POOL.values()), encoding="utf-8")
    program(folder, "apt-get", APT_GET)
    program(folder, "apt-cache", f"cat '{tmp_path}/records'")
    program(folder, "gpg", GPG)
    program(folder, "gpgconf", "exit 0")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    for module in (archive, commands, packages, modules):
        monkeypatch.setattr(module, "BUILD", tmp_path / "build")
    return home


def made(image: Path) -> archive.Archive:
    return archive.ensure(image, Mirror("http://mirror.example/"), lambda _line: None)


def test_an_archive_lies_by_component_and_its_release_has_the_hash_of_each_index(image: Path) -> None:
    found = made(image)

    assert (found.kernel, found.driver) == (KERNEL, "550.1-2")
    suite = found.home / "dists/trixie"
    release = (suite / "InRelease").read_text(encoding="utf-8")
    for component, (name, _version, place) in POOL.items():
        index = suite / component / "binary-amd64/Packages"
        assert re.findall(r"^Package: (.+)", index.read_text(encoding="utf-8"), re.MULTILINE) == [name]
        data = index.read_bytes()
        assert f" {hashlib.sha256(data).hexdigest()} {len(data)} {component}/binary-amd64/Packages" in release
        assert (found.home / place).exists()
    assert (suite / "contrib/binary-amd64/Packages").read_text(encoding="utf-8") == ""
    assert found.key.exists()


def test_an_archive_is_fetched_once_with_the_image_s_own_status(image: Path, tmp_path: Path) -> None:
    assert made(image) == made(image)

    calls = (tmp_path / "calls").read_text(encoding="utf-8")
    assert calls.count("--download-only") == 1
    assert calls.count(f"Dir::State::status={image}/status") == 3
    assert f"linux-headers-{KERNEL}" in calls


def test_an_archive_that_cannot_be_fetched_leaves_nothing(image: Path, tmp_path: Path) -> None:
    program(tmp_path / "bin", "apt-get", "case \"$*\" in *--download-only*) echo 'E: Unable to locate package dkms' >&2; exit 100 ;; esac")

    with pytest.raises(LabError, match=r"^fetching packages for the guests: apt-get ended with 100: E: Unable to locate package dkms$"):
        made(image)
    assert not list((tmp_path / "build/archive").glob("*"))


def test_an_image_without_a_kernel_is_told(image: Path) -> None:
    (image / "status").write_text("Package: dpkg\n", encoding="utf-8")

    with pytest.raises(LabError, match="names no kernel: remove"):
        made(image)


def test_a_guest_is_told_of_the_archive_and_of_nothing_else() -> None:
    said = archive.told("gpu-1")

    assert "rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*" in said
    assert "'Components: main'" in said
    assert "non-free" not in said


def test_an_archive_is_served_until_it_is_stopped(image: Path, tmp_path: Path) -> None:
    found = made(image)
    served = archive.Served(tmp_path / "site", found)

    port = served.start()

    address = f"http://127.0.0.1:{port}/key.asc"
    with urllib.request.urlopen(address, timeout=10) as answer:
        assert answer.read() == found.key.read_bytes()
    archive.Served(tmp_path / "site").stop()  # another process stops it, and knows its home only
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=10)


# --- builds -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def dkms(tmp_path: Path) -> t.Callable[[str], str]:
    """Calls the stand-in on a host whose cache has one build; what DKMS itself was asked, or the stand-in's words."""
    own = tmp_path / "var/lib/dkms"
    module = tmp_path / f"cache/nvidia-current/550.1/{KERNEL}/x86_64/module"
    module.mkdir(parents=True)
    (module / "nvidia-current.ko.xz").write_text("built", encoding="utf-8")
    program(tmp_path, "dkms.distrib", 'echo "asked: $*"')
    text = modules.STAND_IN.replace(modules.CACHE, str(tmp_path / "cache"))
    text = text.replace("/var/lib/dkms", str(own)).replace("/usr/sbin/dkms.distrib", str(tmp_path / "dkms.distrib"))
    script = tmp_path / "dkms"
    script.write_text(text, encoding="utf-8")

    def call(words: str) -> str:
        return subprocess.run(["sh", str(script), *words.split()], capture_output=True, text=True, check=True).stdout

    return call


BUILD = f"build -m nvidia-current -v 550.1 -k {KERNEL}"


def added(tmp_path: Path) -> Path:
    """What DKMS has when a source was added."""
    tree = tmp_path / "var/lib/dkms/nvidia-current/550.1"
    (tree / "source").mkdir(parents=True)
    return tree


def test_a_build_that_was_made_elsewhere_is_laid_where_dkms_builds(dkms: t.Callable[[str], str], tmp_path: Path) -> None:
    tree = added(tmp_path)

    said = dkms(BUILD)

    assert said == f"the lab's stand-in for a build: nvidia-current/550.1/{KERNEL} was built on the machine of the lab\n"
    assert (tree / KERNEL / "x86_64/module/nvidia-current.ko.xz").read_text(encoding="utf-8") == "built"
    assert dkms("status") == "asked: status\n"


def test_a_build_for_another_kernel_is_dkms_s_own(dkms: t.Callable[[str], str], tmp_path: Path) -> None:
    added(tmp_path)

    assert dkms(BUILD.replace("6.12.1", "6.12.9")).endswith(f"asked: {BUILD.replace('6.12.1', '6.12.9')}\n")


def test_what_is_not_a_build_lays_nothing(dkms: t.Callable[[str], str], tmp_path: Path) -> None:
    tree = added(tmp_path)

    assert dkms("install -m nvidia-current -v 550.1") == "asked: install -m nvidia-current -v 550.1\n"
    assert not (tree / KERNEL).exists()


def test_without_its_source_nothing_is_laid(dkms: t.Callable[[str], str], tmp_path: Path) -> None:
    assert dkms(BUILD) == f"asked: {BUILD}\n"
    assert not (tmp_path / "var").exists()


def test_an_autoinstall_finds_it_built_and_goes_on(dkms: t.Callable[[str], str], tmp_path: Path) -> None:
    tree = added(tmp_path)

    assert dkms("autoinstall").endswith("asked: autoinstall\n")
    assert (tree / KERNEL / "x86_64").is_dir()


# --- guests and stories -----------------------------------------------------------------------------------------------


def test_a_guest_calls_what_it_is_let_and_nothing_else(tmp_path: Path) -> None:
    network = Guest("g", tmp_path, tmp_path)._network(
        Hardware(registry=4000, calls=((*archive.ADDRESS, 4001), ("10.0.2.102", 18000, 4002)))
    )

    assert "restrict=on" in network
    assert re.findall(r"guestfwd=tcp:([\d.:]+)-cmd:socat - TCP:127.0.0.1:(\d+)", network) == [
        (":".join(map(str, guest.REGISTRY_IN_GUEST)), "4000"),
        ("10.0.2.101:80", "4001"),
        ("10.0.2.102:18000", "4002"),
    ]


def test_the_kernel_s_refusal_counts_only_in_one_line() -> None:
    line = (
        "driver 550.163.01 does not load: no NVIDIA GPU on this host that this driver drives (modprobe: could not insert 'nvidia_current': "
        "No such device; kernel: NVRM: No NVIDIA GPU found.); look for it with `lspci -d 10de:`, and for a driver that has it elsewhere"
    )

    assert stories_bare.LOADS_NOT.search(f"[ERROR]: Task failed: Module failed: {line}")
    assert not stories_bare.LOADS_NOT.search(line.replace("; kernel", "\n kernel"))


def test_the_programs_of_a_story_are_python_that_runs(tmp_path: Path) -> None:
    for number, text in enumerate((stories_bare.STATE, stories_bare.INSIDE)):
        compile(text, str(tmp_path / f"{number}.py"), "exec")
    program = textwrap.dedent(stories_bare.INSIDE).replace("/dev/nvidia0", "/dev/null")
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert said.stdout.splitlines()[0] == "/dev/null OPEN"


def test_the_gateway_s_host_calls_the_ports_of_the_other_but_for_its_ssh(tmp_path: Path) -> None:
    site = Site("upgrade")
    site.home = tmp_path
    home = tmp_path / "guests/gpu-lab-2"
    home.mkdir(parents=True)
    guest.write(
        home / "guest.json", json.dumps({"name": "gpu-lab-2", "image": "i", "ports": {"22": 40000, "18000": 40001, "18001": 40002}})
    )

    address = yaml.safe_load((site.source / "site/host_vars/gpu-lab-2.yml").read_text(encoding="utf-8"))["fleet_address"]
    assert site._peers("gpu-lab-1") == ((address, 18000, 40001), (address, 18001, 40002))
    assert site._peers("gpu-lab-2") == ()


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([("GPU-1", ""), ("GPU-2", "")], ""),
        ([("GPU-1", ""), ("GPU-1", "answered 503: no server")], "1 of 2 requests failed: answered 503: no server"),
        ([("GPU-1", "")], "only 1 requests were made"),
    ],
)
def test_one_request_that_fails_is_a_problem_of_an_upgrade(answers: list[tuple[str, str]], problem: str) -> None:
    account = Account([Answer(0.0, 0.1, False, 200, 1, device, said) for device, said in answers])

    found = list(stories_upgrade._unanswered("upgrade", account, 2))

    assert found == [] if not problem else problem in found[0]
