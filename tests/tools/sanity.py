# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run ``ansible-test sanity`` on a copy of the project below build/, with no container and nothing written outside the checkout.

ansible-test refuses a collection that is reached through a symlink, keeps its virtual environments in HOME, and fetches its pip
bootstrap from a site of its own. So it gets a real directory, a HOME of ours, and a bootstrap made of ensurepip and pip.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import os
import pathlib
import re
import subprocess
import sys

import tree

COPY = tree.ROOT / "build" / "ansible-test" / "ansible_collections" / "gpuops" / "fleet"
HOME = tree.ROOT / "build" / "ansible-test" / "home"

# Stands in for get-pip.py: called with pip's own arguments, and two of get-pip's that pip does not know.
BOOTSTRAP = """
import subprocess
import sys

# As a process of its own: ensurepip switches pip's configuration off for the process that it runs in.
subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
words = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.exit(subprocess.call([sys.executable, "-m", "pip", "install", "--quiet", *words]))
"""


def write_bootstrap() -> None:
    """Put our bootstrap where ansible-test looks for a fetched one, under each name that this release may ask for."""
    found = subprocess.run(
        [sys.executable, "-c", "import ansible_test; print(*ansible_test.__path__)"], check=True, stdout=subprocess.PIPE, text=True
    )
    source = pathlib.Path(found.stdout.strip()) / "_internal" / "python_requirements.py"
    versions = set(re.findall(r"pip='([0-9.]+)'", source.read_text(encoding="utf-8")))
    if not versions:
        raise SystemExit(f"{source}: no pip version found; this ansible-test keeps it elsewhere")
    cache = HOME / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    for version in versions:
        (cache / f"get_pip_{version.replace('.', '_')}.py").write_text(BOOTSTRAP, encoding="utf-8")


def write_pip_config() -> pathlib.Path:
    """ansible-test hides PIP_* and HOME from pip: hand it the user's own settings (index, certificates) as a file.

    The file may hold an index's password: the caller removes it.
    """
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, stdout=subprocess.PIPE, text=True)
    config = configparser.RawConfigParser()
    config.add_section("global")
    for line in listed.stdout.splitlines():
        key, value = line.split("=", 1)
        # ":env:.find-links" is PIP_FIND_LINKS; pip lists it before the files, and it wins.
        section, option = key.rsplit(".", 1)
        if section in ("global", ":env:") and option not in ("config-file", "cache-dir") and not config.has_option("global", option):
            # A value of several lines is continued in an INI file by indented ones.
            config.set("global", option, str(ast.literal_eval(value)).replace("\n", "\n  "))
    config.set("global", "quiet", "2")
    path = HOME / ".config" / "pip" / "pip.conf"
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
        config.write(stream)
    return path


def main() -> int:
    """Command line: further arguments go to ``ansible-test sanity``."""
    parser = argparse.ArgumentParser(description=__doc__)
    # Not "default": that is every Python on PATH, a version manager's dead shims included.
    parser.add_argument(
        "--python", default=f"{sys.version_info.major}.{sys.version_info.minor}", help="target Python as ansible-test names it"
    )
    args, further = parser.parse_known_args()
    COPY.mkdir(parents=True, exist_ok=True)
    tree.mirror(COPY)
    write_bootstrap()
    config = write_pip_config()
    hidden = ("ANSIBLE_CONFIG", "ANSIBLE_COLLECTIONS_PATH", "PYTHONPATH", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    # The content root is named, or ansible-test finds the checkout's .git above the copy, and every file of the copy ignored.
    env |= {"HOME": str(HOME), "ANSIBLE_HOME": str(HOME / ".ansible"), "ANSIBLE_TEST_CONTENT_ROOT": str(COPY)}
    command = [str(pathlib.Path(sys.executable).parent / "ansible-test"), "sanity", "--color", "no", "--python", args.python]
    try:
        return subprocess.run([*command, *further], cwd=COPY, env=env, check=False).returncode
    finally:
        config.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
