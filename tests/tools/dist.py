# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the collection, install it into an empty path with the collections it needs, and run the demo from there.

The demo then proves that the archive is whole: nothing of the checkout's collection is on the path.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import tree
import yaml

DIST = tree.ROOT / "build" / "dist"
# What a user of the collection has no use for, or must not get.
UNWANTED = ("tests/", "build/", "collections/", ".git", ".venv", "requirements/", "Makefile")
GALAXY = pathlib.Path(sys.executable).parent / "ansible-galaxy"


def build() -> pathlib.Path:
    """Build the archive from a clean copy of the tree, so that no ignored file can slip in."""
    source = DIST / "source"
    tree.mirror(source)
    galaxy = yaml.safe_load((tree.ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    archive = DIST / f"{galaxy['namespace']}-{galaxy['name']}-{galaxy['version']}.tar.gz"
    command = [str(GALAXY), "collection", "build", "--force", "--output-path", str(DIST), str(source)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with tarfile.open(archive) as opened:
        names = opened.getnames()
    unwanted = [name for name in names if name.startswith(UNWANTED)]
    if unwanted:
        raise SystemExit(f"{archive.name} holds what it must not: {', '.join(unwanted[:5])}; mend build_ignore in galaxy.yml")
    print(f"built {archive.relative_to(tree.ROOT)}: {archive.stat().st_size // 1024} KiB, {len(names)} files")
    return archive


def install(archive: pathlib.Path) -> pathlib.Path:
    """Install into an empty path; what it depends on is put there first, so that Galaxy is asked for nothing."""
    path = DIST / "collections"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    for name in ("docker", "library_inventory_filtering_v1"):
        shutil.copytree(tree.ROOT / "collections/ansible_collections/community" / name, path / "ansible_collections/community" / name)
    # --offline, and not --no-deps: the ranges in galaxy.yml are checked against what is there.
    command = [str(GALAXY), "collection", "install", "--offline", "--collections-path", str(path), str(archive)]
    # The only path: what lies on another one would count as installed already.
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"ANSIBLE_COLLECTIONS_PATH": str(path)})
    print(f"installed into {path.relative_to(tree.ROOT)}")
    return path


def demo(path: pathlib.Path) -> None:
    """Run the demo with the installed collection only."""
    env = os.environ | {"ANSIBLE_COLLECTIONS_PATH": str(path)}
    command = [sys.executable, str(tree.ROOT / "tests/demo/run.py"), "--collections", str(path), "--work", str(DIST / "demo")]
    shutil.rmtree(DIST / "demo", ignore_errors=True)
    subprocess.run(command, check=True, env=env, cwd=tree.ROOT)


def main() -> None:
    """Build, install, run."""
    DIST.mkdir(parents=True, exist_ok=True)
    demo(install(build()))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.cmd[0]}: exit {error.returncode}")
