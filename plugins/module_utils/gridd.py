# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a virtual machine asks for its vGPU's licence: ``gridd.conf`` and the token, for NVIDIA's daemon ``nvidia-gridd``.

Keys, values and their ranges are those of NVIDIA's template (``/etc/nvidia/gridd.conf.template``), and of its licensing guide. The daemon
reads both files when it starts. Its token gives whoever reads it licences of the site, so it is root's alone: NVIDIA's guide says 0744, and
the daemon runs as root. It never comes into a message, difference or result.
"""

from __future__ import annotations

import os
import re
import stat
import typing as t
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_text, sync_directory, write_text

HEAD = "# Written by gpuops.fleet, role vgpu_guest: changes here are lost.\n"
TOKEN = "client_configuration_token_gpuops-fleet.tok"  # the name of its file
DAEMON = "nvidia-gridd"
DEFAULT_TOKEN_DIR = "/etc/nvidia/ClientConfigToken"  # a directory
# FeatureType by name.
FEATURES = {"unlicensed": 0, "vgpu": 1, "workstation": 2, "compute": 4}
# Option -> key of the file, and the least and most value of a number.
_KEYS: dict[str, tuple[str, tuple[int, int] | None]] = {
    "server_address": ("ServerAddress", None),
    "server_port": ("ServerPort", (1, 65535)),
    "backup_server_address": ("BackupServerAddress", None),
    "backup_server_port": ("BackupServerPort", (1, 65535)),
    "feature": ("FeatureType", None),
    "enable_ui": ("EnableUI", None),
    "interval_minutes": ("LicenseInterval", (10, 10080)),
    "linger_minutes": ("LingerInterval", (0, 10080)),
}
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:_-]{0,252}[A-Za-z0-9])?")
_ASIDE = ".before-gpuops-fleet"
# The kernel tells seconds only of when it was started.
_SLACK_SECONDS = 2.0


@dataclass(frozen=True)
class Options:
    """See the options of module ``vgpu_licence``."""

    options: Mapping[str, t.Any]
    token: str
    conf: Path
    token_dir: Path
    token_mode: str = "0600"  # permission bits
    gridd: Path = Path("/usr/bin/nvidia-gridd")
    proc_root: Path = Path("/proc")
    state_dir: Path = Path("/var/lib/gpuops-fleet")
    lease: str | None = None


def text_of(options: Mapping[str, t.Any], token_dir: str = DEFAULT_TOKEN_DIR) -> str:
    """The file for options as of module ``vgpu_licence``; '' when there is nothing to say. FleetError for a value that cannot be."""
    lines = []
    for name, (key, limits) in _KEYS.items():
        given = options.get(name)
        if given is None or given == "":
            continue
        if limits is not None and not limits[0] <= int(given) <= limits[1]:
            raise FleetError(f"it is {given}", field=name, hint=f"it is from {limits[0]} to {limits[1]}")
        if name.endswith("_address") and not _HOST.fullmatch(str(given)):
            raise FleetError(f"'{given}' is no name or address of a host", field=name, hint="write it as licence.example.com")
        if name == "feature":
            if given not in FEATURES:
                raise FleetError(f"'{given}' is not known", field=name, hint=f"it is one of {', '.join(FEATURES)}")
            given = FEATURES[given]
        lines.append(f"{key}={str(given).upper() if isinstance(given, bool) else given}\n")
    for name in ("server", "backup_server"):
        if options.get(f"{name}_port") and not options.get(f"{name}_address"):
            raise FleetError("a port without an address", field=f"{name}_port", hint=f"give {name}_address, too")
    if options.get("backup_server_address") and not options.get("server_address"):
        raise FleetError("a second server without a first", field="backup_server_address", hint="give server_address")
    if lines and token_dir != DEFAULT_TOKEN_DIR:
        lines.append(f"ClientConfigTokenPath={token_dir}\n")
    return HEAD + "".join(lines) if lines else ""


def apply(options: Options, check: bool) -> dict[str, t.Any]:
    """The module's result; ``restart``: the daemon has not read what is there. FleetError: nothing was changed."""
    token = options.token.strip()
    if len(token.split()) > 1:
        raise FleetError("it has blanks or several lines, so it is no token", field="token", hint="give the text of one .tok file")
    if not re.fullmatch("0?[0-7]{3}", options.token_mode):
        raise FleetError(f"'{options.token_mode}' is no mode", field="token_mode", hint="write it as '0600'")
    wished = text_of(options.options, str(options.token_dir))
    if (wished or token) and not options.gridd.exists():
        hint = "install NVIDIA's driver for guests of vGPUs first: vgpu_guest_package"
        raise FleetError(f"there is no {options.gridd} on this host", hint=hint)
    before = read_text(options.conf) or ""
    after = wished or (_aside(options.conf) if before.startswith(HEAD) else before)
    config, tokens = before != after, _token_differs(options, token)
    lines = _token_lines(options, token, tokens)
    if (config or tokens) and not check:
        leases.check(options.state_dir, options.lease)
        if tokens:
            _write_token(options, token)
        if config:
            _write_conf(options.conf, before, after)
    others = sorted(path.name for path in options.token_dir.glob("*.tok") if path.name != TOKEN) if token else []
    notes = [f"{options.token_dir} has other tokens, too: {', '.join(others)}; {DAEMON} takes which it likes"] if others else []
    if token and options.options.get("server_address"):
        notes.append("a token names its own server: server_address is for licence servers without tokens")
    return {
        "changed": config or tokens,
        "restart": config or tokens or _older_than_files(options),
        "token": "present" if token else "absent",
        "notes": notes,
        "diff": {
            "before": before + lines[0],
            "after": after + lines[1],
            "before_header": str(options.conf),
            "after_header": str(options.conf),
        },
    }


def _token_lines(options: Options, token: str, differs: bool) -> tuple[str, str]:
    """Of a token a difference says that there is one, never which."""
    path = options.token_dir / TOKEN
    there, line = path.exists(), f"# token: {path}\n"
    after = f"# token, another one or another mode: {path}\n" if there and differs else line
    return line if there else "# token: none\n", after if token else "# token: none\n"


def _token_differs(options: Options, token: str) -> bool:
    path = options.token_dir / TOKEN
    if not path.exists():
        return bool(token)
    return not token or read_text(path) != token or stat.S_IMODE(path.stat().st_mode) != int(options.token_mode, 8)


def _write_token(options: Options, token: str) -> None:
    path = options.token_dir / TOKEN
    if not token:
        path.unlink(missing_ok=True)
        sync_directory(options.token_dir)
        return
    _directory(options.token_dir)
    write_text(path, token, int(options.token_mode, 8))


def _directory(path: Path) -> None:
    """As NVIDIA's package makes it; one that is there stays as it is."""
    for each in (*reversed(path.parents), path):
        if not each.is_dir():
            each.mkdir()
            each.chmod(0o755)


def _aside(conf: Path) -> str:
    """What was there before us."""
    return read_text(conf.with_name(conf.name + _ASIDE)) or ""


def _write_conf(conf: Path, before: str, after: str) -> None:
    aside = conf.with_name(conf.name + _ASIDE)
    if before and not before.startswith(HEAD):
        write_text(aside, before, 0o644)
    if after:
        _directory(conf.parent)
        write_text(conf, after, 0o644)
    else:
        conf.unlink(missing_ok=True)
    if not after.startswith(HEAD):
        aside.unlink(missing_ok=True)


def _older_than_files(options: Options) -> bool:
    """Was the daemon started before its files changed? So it is after a run that was ended between the two. False when none runs."""
    ours = [path for path in (options.conf, options.token_dir / TOKEN) if path.exists()]
    if options.token_dir.is_dir():
        ours.append(options.token_dir)  # a token that went
    started = _started(options.proc_root)
    return started is not None and any(path.stat().st_mtime > started + _SLACK_SECONDS for path in ours)


def _started(proc_root: Path) -> float | None:
    """When the daemon was started, in seconds since 1970; None when it does not run. See proc(5)."""
    boot = re.search(r"^btime ([0-9]+)$", read_text(proc_root / "stat") or "", re.MULTILINE)
    if boot is None:
        return None
    for path in proc_root.glob("[0-9]*/comm"):
        try:
            if path.read_text(encoding="utf-8").strip() != DAEMON:
                continue
            fields = (path.parent / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it ended
        return int(boot.group(1)) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return None
