# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of this checkout that belong to the project: what git tracks, and what it would track.

Shared by the tools that work on a copy of the tree (ansible-test refuses a symlink, mutants must not touch the sources).
"""

from __future__ import annotations

import filecmp
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def project_files(under: str = ".") -> list[pathlib.Path]:
    """Paths relative to the root, sorted; files that git ignores or that were deleted are left out."""
    # safe.directory: HOME is our own here, so that a user's own setting for this checkout is not seen.
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", under]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    names = {pathlib.Path(name) for name in done.stdout.split("\0") if name}
    return sorted(name for name in names if (ROOT / name).is_file())


def mirror(target: pathlib.Path) -> list[pathlib.Path]:
    """Make ``target`` the same as the project's files, touching only what differs; returns the files."""
    files = project_files()
    wanted = set(files)
    for path in sorted(target.rglob("*"), reverse=True):
        name = path.relative_to(target)
        if name.parts[:2] == ("tests", "output"):
            continue
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif name not in wanted:
            path.unlink()
    for name in files:
        copy = target / name
        if copy.is_file() and filecmp.cmp(ROOT / name, copy, shallow=False):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy, follow_symlinks=False)
    return files
