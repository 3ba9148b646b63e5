# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take the collections that galaxy.yml depends on out of PyPI's ``ansible`` wheel.

Galaxy is not needed: pip fetches one wheel, from whatever index the site has given pip, and only the needed trees
(2 MB of 500) are unpacked.
"""

from __future__ import annotations

import argparse
import collections.abc as c
import json
import os
import pathlib
import shutil
import subprocess
import sys
import typing as t
import zipfile

import yaml
from packaging.specifiers import SpecifierSet

ROOT = pathlib.Path(__file__).resolve().parents[2]
PREFIX = "ansible_collections"


def requirement(path: pathlib.Path) -> str:
    """The one requirement line (``ansible==X``) of a requirements file."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    wanted = [line for line in lines if line and not line.startswith("#")]
    if len(wanted) != 1 or not wanted[0].startswith("ansible=="):
        raise SystemExit(f"{path}: one line ansible==VERSION is wanted, found {wanted}")
    return wanted[0]


def wheel(wanted: str, cache: pathlib.Path) -> pathlib.Path:
    """Path of the wheel in the cache; fetched by pip if it is not there."""
    path = cache / f"{wanted.replace('==', '-')}-py3-none-any.whl"
    if not path.is_file():
        print(f"fetching {wanted} (about 55 MB, once)", flush=True)
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
        # It is only unpacked: the newest release wants a newer Python than the one that fetches it here.
        subprocess.run([*command, "--ignore-requires-python", "--no-cache-dir", "--dest", str(cache), wanted], check=True)
    return path


def collection_info(archive: zipfile.ZipFile, name: str) -> dict[str, t.Any]:
    """``collection_info`` of a collection's MANIFEST.json in the wheel."""
    try:
        text = archive.read(f"{PREFIX}/{name.replace('.', '/')}/MANIFEST.json")
    except KeyError:
        raise SystemExit(f"{archive.filename} holds no collection {name}") from None
    info: dict[str, t.Any] = json.loads(text)["collection_info"]
    return info


def resolve(archive: zipfile.ZipFile, ranges: c.Mapping[str, str]) -> dict[str, str]:
    """Versions of all collections needed, dependencies included; SystemExit where a range is not met."""
    found: dict[str, str] = {}
    todo = list(ranges.items())
    while todo:
        name, wanted = todo.pop()
        info = collection_info(archive, name)
        version = str(info["version"])
        # Galaxy writes '*' for any version, which packaging spells as an empty specifier.
        if version not in SpecifierSet("" if wanted == "*" else wanted):
            raise SystemExit(f"{name} {version} in {archive.filename} is outside {wanted}")
        if name not in found:
            found[name] = version
            todo.extend(info["dependencies"].items())
    return dict(sorted(found.items()))


def unpack(archive: zipfile.ZipFile, name: str, into: pathlib.Path) -> None:
    """Unpack one collection beside its place, then move it there, so that a broken run leaves no half collection."""
    place = into / PREFIX / pathlib.Path(*name.split("."))
    fresh = into / f".fresh-{name}-{os.getpid()}"
    prefix = f"{PREFIX}/{name.replace('.', '/')}/"
    archive.extractall(fresh, [entry for entry in archive.namelist() if entry.startswith(prefix)])
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    (fresh / prefix).rename(place)
    shutil.rmtree(fresh)


def main() -> None:
    """Command line: see --help."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requirements", type=pathlib.Path, default=ROOT / "requirements" / "collections.txt")
    parser.add_argument("--into", type=pathlib.Path, default=ROOT / "collections")
    parser.add_argument("--cache", type=pathlib.Path, default=ROOT / "build" / "cache" / "wheels")
    parser.add_argument("--also", action="append", default=[], metavar="NAME", help="a collection that only tests need, in any version")
    args = parser.parse_args()
    ranges = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["dependencies"]
    ranges = {**ranges, **dict.fromkeys(args.also, "*")}
    with zipfile.ZipFile(wheel(requirement(args.requirements), args.cache)) as archive:
        for name, version in resolve(archive, ranges).items():
            unpack(archive, name, args.into)
            print(f"{name} {version}")


if __name__ == "__main__":
    main()
