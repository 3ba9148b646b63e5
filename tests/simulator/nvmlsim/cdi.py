# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CDI specification of the simulated host: what nvidia-ctk would write, from what NVML answers.

Names, device nodes and which devices there are follow pkg/nvcdi of NVIDIA's container toolkit; the mounts are only those that the
simulator needs: its library, and the state that stands for the driver.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import pathlib
import tempfile
import typing as t

from nvmlsim.common import CAPS_OF_GI, CAPS_OF_GPU, DEFAULT_STATE, FIRST_CAP, SimError
from nvmlsim.library import SONAME, SYSTEM_LIBRARIES
from nvmlsim.nvidia_smi import Nvml

# The oldest version that lets a device name begin with a digit; the real program writes the oldest that will do.
CDI_VERSION = "0.5.0"
STRATEGIES = ("index", "uuid", "type-index")
OPTIONS = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
NOT_SUPPORTED, NOT_FOUND = 3, 6

Names = tuple[str, str, str]


@dataclasses.dataclass(frozen=True)
class Device:
    """A device: its names by strategy and the paths of its nodes."""

    names: list[str]
    nodes: list[str]


@dataclasses.dataclass(frozen=True)
class Output:
    """Where the specification goes (None: stdout) and in which format."""

    file: pathlib.Path | None
    format: str


def strategies(wanted: list[str] | None) -> list[str]:
    """The naming strategies of the command line, each once; the default is index and UUID."""
    found = [name for text in wanted or ["index,uuid"] for name in text.split(",")]
    for name in found:
        if name not in STRATEGIES:
            raise SimError(f"invalid device name strategy: {name}; give some of {', '.join(STRATEGIES)}")
    return list(dict.fromkeys(found))


def output_name(file: str, wanted: str | None) -> Output:
    """File and format: the ending of the name decides when nothing else does, and a name without a known one gets it."""
    path = pathlib.Path(file) if file else None
    by_name = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}.get(path.suffix if path else "")
    kind = wanted or by_name or "yaml"
    if path and path.suffix == ".yml":
        path = path.with_suffix(".yaml")
    elif path and by_name is None:
        path = path.with_name(f"{path.name}.{kind}")
    return Output(path, kind)


# ---- devices ----


def _fail(nvml: Nvml, what: str, code: int) -> t.NoReturn:
    raise SimError(f"failed to generate CDI spec: failed to create device CDI specs: {what}: {nvml.text_of(code)}")


def _number(nvml: Nvml, function: str, handle: ctypes.c_void_p) -> int:
    out = ctypes.c_uint()
    code = nvml.call(function, handle, ctypes.byref(out))
    if code:
        _fail(nvml, function, code)
    return out.value


def _uuid(nvml: Nvml, handle: ctypes.c_void_p) -> str:
    text = nvml.string("nvmlDeviceGetUUID", handle)
    if text is None:
        raise SimError("failed to generate CDI spec: failed to create device CDI specs: failed to get device UUID")
    return text


def _mig_is_on(nvml: Nvml, handle: ctypes.c_void_p) -> bool:
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    code = nvml.call("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
    if code and code != NOT_SUPPORTED:
        _fail(nvml, "error checking if MIG is enabled", code)
    return not code and current.value == 1


def _chosen(names: Names, wanted: list[str]) -> list[str]:
    return [dict(zip(STRATEGIES, names, strict=True))[strategy] for strategy in wanted]


def _slices(nvml: Nvml, directory: str, index: int, gpu: ctypes.c_void_p, wanted: list[str]) -> t.Iterator[Device]:
    minor = _number(nvml, "nvmlDeviceGetMinorNumber", gpu)
    for slot in range(_number(nvml, "nvmlDeviceGetMaxMigDeviceCount", gpu)):
        part = ctypes.c_void_p()
        code = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, slot, ctypes.byref(part))
        if code == NOT_FOUND:
            continue  # a gap
        if code:
            _fail(nvml, f"error getting MIG device handle at index '{slot}'", code)
        gi = FIRST_CAP + CAPS_OF_GPU * minor + CAPS_OF_GI * _number(nvml, "nvmlDeviceGetGpuInstanceId", part)
        ci = gi + 1 + _number(nvml, "nvmlDeviceGetComputeInstanceId", part)
        caps = [f"{directory}/nvidia-caps/nvidia-cap{number}" for number in (gi, ci)]
        names = _chosen((f"{index}:{slot}", _uuid(nvml, part), f"mig{index}:{slot}"), wanted)
        yield Device(names, [f"{directory}/nvidia{minor}", *caps])


def devices(nvml: Nvml, directory: str, wanted: list[str]) -> list[Device]:
    """Whole GPUs with MIG off, then the MIG devices of the others; a GPU with MIG on is no device of its own.

    A lost GPU fails the whole, as it does in the real program.
    """
    count = nvml.number("nvmlDeviceGetCount_v2") or 0
    whole: list[Device] = []
    parts: list[Device] = []
    for index in range(count):
        gpu = ctypes.c_void_p()
        code = nvml.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(gpu))
        if code:
            _fail(nvml, f"error getting device handle for index '{index}'", code)
        if _mig_is_on(nvml, gpu):
            parts += _slices(nvml, directory, index, gpu, wanted)
            continue
        node = f"{directory}/nvidia{_number(nvml, 'nvmlDeviceGetMinorNumber', gpu)}"
        whole.append(Device(_chosen((str(index), _uuid(nvml, gpu), f"gpu{index}"), wanted), [node]))
    return whole + parts


# ---- the specification ----


def _nodes(paths: t.Iterable[str]) -> list[dict[str, str]]:
    return [{"path": path} for path in sorted(set(paths))]


def loaded_library() -> str:
    """Path of the library that this process has loaded, as the dynamic loader found it. Raises SimError when it has none."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].rstrip("\n")
            if os.path.basename(path).startswith(SONAME):
                return path
    raise SimError(f"failed to generate CDI spec: no {SONAME} is loaded")


def common_edits(directory: str, library: str, state: str) -> dict[str, t.Any]:
    """What every container gets: control nodes, library, and the state, read-only: a container makes no instances."""
    shared = [f"{directory}/{name}" for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")]
    mounts = [(library, f"{SYSTEM_LIBRARIES}/{SONAME}"), (os.path.realpath(state), DEFAULT_STATE)]
    return {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": _nodes(shared),
        "mounts": [{"hostPath": host, "containerPath": inside, "options": OPTIONS} for host, inside in mounts],
    }


def specification(kind: str, found: list[Device], common: dict[str, t.Any]) -> dict[str, t.Any]:
    """The specification as data, with `all` at its end. Without any device there is none: CDI refuses an empty one."""
    if not found:
        raise SimError('failed to generate CDI spec: invalid CDI Spec: invalid device "all": invalid device, empty device edits')
    entries = [{"name": name, "containerEdits": {"deviceNodes": _nodes(device.nodes)}} for device in found for name in device.names]
    everything = _nodes(path for device in found for path in device.nodes)
    entries.append({"name": "all", "containerEdits": {"deviceNodes": everything}})
    return {"cdiVersion": CDI_VERSION, "kind": kind, "devices": entries, "containerEdits": common}


def as_text(spec: dict[str, t.Any], kind: str) -> str:
    """YAML with sorted keys, as the real program writes it, or JSON."""
    if kind == "json":
        return json.dumps(spec, sort_keys=True) + "\n"
    import yaml  # slow to import, and JSON needs none

    class Plain(yaml.SafeDumper):
        """Writes a list that stands in two places twice: an anchor is not what the real program writes."""

        def ignore_aliases(self, _data: t.Any) -> bool:
            return True

    return str(yaml.dump(spec, Dumper=Plain, sort_keys=True, explicit_start=True, default_flow_style=False))


def save(path: pathlib.Path, text: str) -> None:
    """Writes the file in one step, readable for everybody, and its directory when that is missing."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise SimError(f"failed to save CDI spec: cannot write {path}: {error.strerror}") from error


# ---- list ----


def _read(file: pathlib.Path) -> tuple[str, list[str]]:
    """Kind and device names of a specification. Raises ValueError when it is none."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        data = json.loads(text)
    else:
        import yaml

        try:
            data = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError("no YAML") from error
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str) or not isinstance(data.get("devices"), list):
        raise ValueError("no CDI specification")
    return data["kind"], [str(one["name"]) for one in data["devices"] if isinstance(one, dict) and "name" in one]


def names_in(directories: list[str]) -> tuple[list[str], list[str]]:
    """Full names of all devices in the specifications of some directories, sorted, and what was wrong with a file."""
    names: set[str] = set()
    complaints = []
    for directory in map(pathlib.Path, directories):
        for file in sorted(directory.glob("*")):
            if file.suffix not in (".yaml", ".json") or file.name.startswith("."):
                continue
            try:
                kind, found = _read(file)
            except (OSError, ValueError) as error:
                complaints.append(f"{file}: {error}")
                continue
            names.update(f"{kind}={name}" for name in found)
    return sorted(names), complaints
