# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of the Docker engine, ``daemon.json``: wished ones are merged into what is there, and nothing else changes.

What was written is not in force yet. Which keys wait for the engine, and whether for a reload or a restart, is kept in the host's state
directory (``engine-settings.json``), so that a play that was killed or refused between the two is made good by the next one:
``{format, engine, before, reload, restart}``. ``engine`` is the process that has not read the file, ``before`` the digest of the file that
was to be replaced: while the file still has it, nothing was written, and nothing waits.

Sources: ``docker/cli`` docs/reference/dockerd.md, "Configuration reload behavior"; ``moby/moby`` daemon/reload.go and reload_unix.go for
the three ``default-*`` keys that the page leaves out. The page calls all ``features`` reloadable; each is looked at where it is used, and
CDI and the snapshotter are set up when the engine starts (moby/moby pull 49990).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import tempfile
import typing as t
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import commands
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, read_text, write_json, write_text

NONE, RELOAD, RESTART = "none", "reload", "restart"
FORMAT = 1
_FILE = "engine-settings.json"
_MODE, _DIRECTORY_MODE = 0o644, 0o755
_VALIDATE_SECONDS = 60.0

# What the engine reads again at SIGHUP. Everything else counts only from its next start.
RELOADED = frozenset(
    (
        "allow-nondistributable-artifacts",
        "authorization-plugins",
        "debug",
        "default-cgroupns-mode",
        "default-ipc-mode",
        "default-runtime",
        "default-shm-size",
        "insecure-registries",
        "labels",
        "live-restore",
        "max-concurrent-downloads",
        "max-concurrent-uploads",
        "max-download-attempts",
        "registry-mirrors",
        "runtimes",
        "shutdown-timeout",
        "features/buildkit",
    )
)
# Keys of `features` are looked at one by one.
_SPLIT = "features"
# Items of these lists are NAME=VALUE: two of one name contradict each other.
_NAMED = frozenset(("exec-opts", "labels", "node-generic-resources", "storage-opts"))
# What tells one mapping of a list from another.
_KEY_OF = {"default-address-pools": "base"}
# A proxy's address may hold a password.
_USERINFO = re.compile(r"(\w+://)[^/\s\"@]+@")
_INDENT = re.compile(r"\A\s*\{[ \t]*\r?\n([ \t]+)\"")

_Settings = dict[str, t.Any]


@dataclass(frozen=True)
class Options:
    """``path``: the file. ``replace``: a wished value rules over another that is there. ``dockerd``: proves the result, where it is."""

    path: Path
    wished: Mapping[str, t.Any]
    state_dir: Path
    replace: bool = False
    dockerd: str = "dockerd"
    pid_file: Path = Path("/var/run/docker.pid")
    proc_root: Path = Path("/proc")
    token: str | None = None
    check: bool = False


@dataclass(frozen=True)
class Waiting:
    """Keys that are in the file and not in force: what takes effect at a reload, and what only when the engine starts."""

    reload: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()

    @property
    def action(self) -> str:
        """``none``, ``reload`` or ``restart``."""
        return RESTART if self.restart else RELOAD if self.reload else NONE

    def joined(self, other: Waiting) -> Waiting:
        """These and those."""
        return Waiting(tuple(sorted({*self.reload, *other.reload})), tuple(sorted({*self.restart, *other.restart})))


@dataclass(frozen=True)
class Result:
    """What was done, or with ``check`` would be done; texts without passwords. ``settings``: all that the file then says."""

    changed: bool
    before: str
    after: str
    settings: _Settings
    waiting: Waiting


# --- the file


def parse(text: str, path: Path) -> _Settings:
    """The settings in a file's text; an empty one has none. FleetError with line and column where it is not what the engine reads."""
    if not text.strip():
        return {}
    hint = "nothing was changed; mend it by hand"
    try:
        data = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        words = f"column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
        raise FleetError(words, file=str(path), line=error.lineno, hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise FleetError(str(error) or type(error).__name__, file=str(path), hint=hint) from error
    if not isinstance(data, dict):
        raise FleetError("column 1: the engine's settings are a mapping", file=str(path), line=1, hint=hint)
    return data


def _once(pairs: list[tuple[str, t.Any]]) -> _Settings:
    found: _Settings = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"'{key}' is there twice, and only one of them would be kept")
        found[key] = value
    return found


def _no_constant(word: str) -> t.NoReturn:
    raise ValueError(f"{word} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is out of range")
    return number


def render(settings: Mapping[str, t.Any], like: str) -> str:
    """The settings as text, indented as ``like`` is."""
    found = _INDENT.match(like)
    indent: str | int = found.group(1) if found else 2
    text = json.dumps(settings, indent=indent, ensure_ascii=False) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair: only an escape can say that
        text = json.dumps(settings, indent=indent) + "\n"
    return text


def masked(text: str) -> str:
    """The text without what stands before ``@`` in an address."""
    return _USERINFO.sub(r"\1***@", text)


# --- merging


class _Merge:
    """Collects where a wish contradicts what is there."""

    def __init__(self, replace: bool) -> None:
        self.replace = replace
        self.contradictions: list[str] = []

    def mapping(self, where: str, present: Mapping[str, t.Any], wished: Mapping[str, t.Any]) -> _Settings:
        result = dict(present)
        for key, value in wished.items():
            path = f"{where}/{key}" if where else key
            result[key] = self.value(path, present[key], value) if key in present else self.new(path, value)
        return result

    def new(self, where: str, wished: t.Any) -> t.Any:
        """What nobody has set yet. A wish may name one thing twice: that is a contradiction as well, or the last one counts."""
        if isinstance(wished, dict):
            return self.mapping(where, {}, wished)
        return self.items(where, [], wished) if isinstance(wished, list) else wished

    def value(self, where: str, present: t.Any, wished: t.Any) -> t.Any:
        if isinstance(present, dict) and isinstance(wished, dict):
            return self.mapping(where, present, wished)
        if isinstance(present, list) and isinstance(wished, list):
            return self.items(where, present, wished)
        if _same(present, wished):
            return present
        if not self.replace:
            self.contradictions.append(f"{where} is {_plain(present)} there and {_plain(wished)} is wished")
            return present
        return wished

    def items(self, where: str, present: list[t.Any], wished: list[t.Any]) -> list[t.Any]:
        result = list(present)
        for item in wished:
            name = _identity(where, item)
            at = next((index for index, other in enumerate(result) if _identity(where, other) == name), None)
            if at is None:
                result.append(self.new(f"{where}/{name}", item) if isinstance(item, dict) else item)
            else:
                result[at] = self.value(f"{where}/{name}" if isinstance(item, dict) else where, result[at], item)
        return result


def _same(one: t.Any, other: t.Any) -> bool:
    # True == 1 in Python, and not in JSON
    return _canonical(one) == _canonical(other)


def _canonical(value: t.Any) -> str:
    return json.dumps(value, sort_keys=True)


def _identity(where: str, item: t.Any) -> str:
    """What an item of a list is known by: its name, its key, or all of it."""
    key = _KEY_OF.get(where)
    if key is not None and isinstance(item, dict) and key in item:
        return str(item[key])
    if where in _NAMED and isinstance(item, str):
        return item.partition("=")[0]
    return _canonical(item)


def _plain(value: t.Any) -> str:
    return masked(json.dumps(value, ensure_ascii=False))


def merge(present: Mapping[str, t.Any], wished: Mapping[str, t.Any], replace: bool = False, path: str = "daemon.json") -> _Settings:
    """``present`` with what is wished. FleetError that names both values of every contradiction, unless ``replace``."""
    work = _Merge(replace)
    result = work.mapping("", present, wished)
    if work.contradictions:
        hint = "somebody set that: take one of the two away, or set replace to have the wished one"
        raise FleetError("; ".join(work.contradictions), file=path, hint=hint)
    return result


def changed_keys(before: Mapping[str, t.Any], after: Mapping[str, t.Any]) -> list[str]:
    """Keys whose value differs; of ``features`` each one's own."""
    found = []
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if key in before and key in after and _same(old, new):
            continue
        if key == _SPLIT and isinstance(old or {}, dict) and isinstance(new or {}, dict):
            found += [f"{key}/{name}" for name in changed_keys(old or {}, new or {})]
        else:
            found.append(key)
    return found


def waiting_for(keys: Iterable[str]) -> Waiting:
    """What these keys wait for."""
    wanted = set(keys)
    return Waiting(tuple(sorted(wanted & RELOADED)), tuple(sorted(wanted - RELOADED)))


# --- what waits for the engine


def engine_process(pid_file: Path, proc_root: Path) -> str:
    """The engine's process as ``pid:start:boot``, start in ticks since that boot; empty when none runs."""
    pid = (read_text(pid_file) or "").strip()
    if not pid.isdigit():
        return ""
    try:
        stat = (proc_root / pid / "stat").read_text(encoding="utf-8", errors="replace")
        boot = (proc_root / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    # The name in brackets may hold anything; start time is the 22nd field (proc(5)).
    fields = stat.rpartition(")")[2].split()
    return f"{pid}:{fields[19]}:{boot}" if len(fields) > 19 else ""


def waiting(state_dir: Path, path: Path, process: str) -> Waiting:
    """Keys that an earlier play wrote and that the running engine has not read."""
    record = read_json(state_dir / _FILE)
    if record is None or not process or record.get("format") != FORMAT or record.get("engine") != process:
        return Waiting()
    if record.get("before") == _digest(read_text(path)):
        return Waiting()
    return Waiting(tuple(record.get("reload") or ()), tuple(record.get("restart") or ()))


def settle(state_dir: Path, process: str, left: Waiting) -> None:
    """Note what still waits after the engine has acted. FleetError when that cannot be written."""
    place = state_dir / _FILE
    if left.action != NONE and process:
        write_json(place, {"format": FORMAT, "engine": process, "before": "", "reload": left.reload, "restart": left.restart})
        return
    try:
        place.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise FleetError(f"cannot remove {place}: {error.strerror}") from error


def _digest(text: str | None) -> str:
    return hashlib.sha256((text or "").encode("utf-8", errors="surrogateescape")).hexdigest()


# --- all of it


def apply(options: Options) -> Result:
    """Merge what is wished into the file. An engine that does not run will read it when it starts: then nothing waits.

    FleetError when the file is no JSON, when it contradicts the wish, when the engine's own program refuses the result, when somebody else
    holds this host, or when it cannot be written; the file is then as it was.
    """
    # The place that a link leads to is written, and the link stays.
    path = options.path.resolve() if options.path.is_symlink() else options.path
    text = read_text(path)
    present = parse(text or "", options.path)
    settings = merge(present, options.wished, options.replace, str(options.path))
    process = engine_process(options.pid_file, options.proc_root)
    before = waiting(options.state_dir, path, process)
    keys = changed_keys(present, settings)
    after = before.joined(waiting_for(keys)) if process else Waiting()
    if not keys:
        shown = masked(text or "")
        return Result(False, shown, shown, settings, after)
    new = render(settings, text or "")
    validate(options.dockerd, new, options.path)
    if not options.check:
        leases.check(options.state_dir, options.token)
        if process:
            record = {"format": FORMAT, "engine": process, "reload": after.reload, "restart": after.restart}
            write_json(options.state_dir / _FILE, {**record, "before": _digest(text) if before.action == NONE else ""})
        _replace(path, new)
    return Result(True, masked(text or ""), masked(new), settings, after)


def _replace(path: Path, text: str) -> None:
    owner, mode = None, _MODE
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            path.parent.chmod(_DIRECTORY_MODE)
        if path.exists():
            status = path.stat()
            owner, mode = (status.st_uid, status.st_gid), status.st_mode & 0o7777
    except OSError as error:
        raise FleetError(f"cannot write {path}: {error.strerror}") from error
    write_text(path, text, mode, owner)


def validate(dockerd: str, text: str, path: Path) -> None:
    """Ask the engine's own program whether it would start with this text; FleetError with its words when it would not.

    A host where it is not installed yet asks nobody, nor does one older than 23.0, which does not know the question.
    """
    program = shutil.which(dockerd)
    if program is None:
        return
    with tempfile.TemporaryDirectory(prefix="gpuops-engine-") as directory:
        file = Path(directory) / "daemon.json"
        write_text(file, text, 0o600)
        done = commands.run([program, "--validate", f"--config-file={file}"], _VALIDATE_SECONDS)
    if done.status and "--validate" not in done.words:
        said = masked(done.words.replace(str(file), str(path)))
        raise FleetError(f"the engine would not start with these settings: {said}", file=str(path), hint="nothing was changed")
