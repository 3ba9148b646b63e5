# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The door's hinges: the only file here that opens files, for the plugins that stand between Ansible and the pure code."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import tempfile
import typing as t
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Located, read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.written import with_origin

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_facts import CompatFacts
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_table import Judge
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.vgpu_table import VgpuTable

# No file that people write comes near; what does was named by mistake.
MAX_BYTES = 8 * 1024 * 1024
# What was written here may be longer, for much is said of a very large fleet.
MAX_WRITTEN = 512 * 1024 * 1024
_YAML = (".yml", ".yaml")

DATA = Path(__file__).resolve().parent / "data"


def read_text(path: str | os.PathLike[str], most: int = MAX_BYTES) -> str:
    """Text of one file.

    :raises FleetError: it is not there, cannot be read, is not UTF-8, or is larger than ``most`` bytes.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as stream:
            data = stream.read(most + 1)
    except FileNotFoundError as error:
        raise FleetError("no such file", file=name, hint="check the path") from error
    except OSError as error:
        raise FleetError(f"cannot be read: {error.strerror}", file=name, hint="check the path and its permissions") from error
    if len(data) > most:
        raise FleetError(f"larger than {most >> 20} MiB", file=name, hint="name the YAML file that was meant")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FleetError("not a text file: it is not UTF-8", file=name, line=line, hint="write YAML as UTF-8 text") from error


def read_text_or_none(path: str | os.PathLike[str]) -> str | None:
    """As :func:`read_text`, but ``None`` where there is no such file."""
    return read_text(path) if os.path.lexists(path) else None


def read_written(path: str | os.PathLike[str]) -> str | None:
    """As :func:`read_text_or_none`, of a file that this collection writes."""
    return read_text(path, MAX_WRITTEN) if os.path.lexists(path) else None


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Content of one file that is no text. :raises FleetError: it cannot be read, or is larger than 8 MiB."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise FleetError(f"cannot be read: {error.strerror}", file=name, hint="check the path and its permissions") from error
    if len(data) > MAX_BYTES:
        raise FleetError("larger than 8 MiB", file=name, hint="name the file that was meant")
    return data


def read_sources(directory: str | os.PathLike[str]) -> dict[str, bytes]:
    """The Python files in a directory of the collection, by name. :raises FleetError: as :func:`read_bytes`."""
    names = sorted(name for name in os.listdir(directory) if name.endswith(".py"))
    return {name: read_bytes(os.path.join(directory, name)) for name in names}


def read_yaml_file(path: str | os.PathLike[str]) -> Located:
    """One YAML mapping with the lines of its fields. :raises FleetError: as :func:`read_text` and ``read_yaml``."""
    return read_yaml(read_text(path), os.fspath(path))


def read_data(name: str) -> Located:
    """One of the collection's own data files, such as ``boards.yml``."""
    return read_yaml(read_text(DATA / name), f"data/{name}")


def catalogue() -> Catalogue:
    """The boards and geometries that the collection knows."""
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue

    return Catalogue(read_data("boards.yml").data, read_data("geometry.yml").data)


def compat_facts() -> CompatFacts:
    """What the collection knows of drivers, CUDA and GPUs."""
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_facts import CompatFacts

    return CompatFacts(read_data("compat.yml"))


def vgpu_table() -> VgpuTable:
    """What the collection knows of vGPU types."""
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.vgpu_table import VgpuTable

    return VgpuTable(read_data("vgpu_types.yml"))


def judge(variables: Mapping[str, Sequence[str]], record: str | None = None) -> Judge:
    """The compatibility gate with the collection's own facts. ``variables``: of images, by their names in manifests; they rule over those
    in ``record``, the file that playbook images writes. FleetError when that one is damaged."""
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_table import Judge
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.images import read_record, variables_by_digest

    recorded = variables_by_digest(read_record(record, read_text_or_none(record))) if record else {}
    return Judge(compat_facts(), read_data("runtimes.yml").data, {**recorded, **variables})


def yaml_files(directory: str | os.PathLike[str]) -> list[str]:
    """Paths of all ``*.yml`` and ``*.yaml``, in whatever case, below a directory, sorted; hidden files and directories are left out.

    :raises FleetError: there is no such directory, it cannot be read, a directory in it is a link, or a directory, a pipe or a device bears
        the name of a YAML file.
    """
    root = os.fspath(directory)
    if not os.path.isdir(root):
        wrong = "not a directory" if os.path.lexists(root) else "no such directory"
        raise FleetError(wrong, file=root, hint="create it, or name the right one")

    def refuse(error: OSError) -> t.NoReturn:
        raise FleetError(f"cannot be read: {error.strerror}", file=error.filename, hint="check its permissions")

    found: list[str] = []
    for place, directories, names in os.walk(root, onerror=refuse):
        directories[:] = [name for name in directories if not name.startswith(".")]
        for name in sorted(directories):
            path = os.path.join(place, name)
            if os.path.islink(path):  # os.walk passes over it; followed, it may lead round in a circle
                raise FleetError("a link to a directory", file=path, hint="copy or mount the directory there")
            if name.lower().endswith(_YAML):  # passed over in silence, a service that was meant would be missing
                raise FleetError("a directory, where its name promises a file", file=path, hint="rename or remove it")
        found.extend(os.path.join(place, name) for name in names if name.lower().endswith(_YAML) and not name.startswith("."))
    for path in found:
        if os.path.exists(path) and not os.path.isfile(path):  # of a pipe nobody may ever write the end
            raise FleetError("no regular file", file=path, hint="rename or remove it")
    return sorted(found)


def read_texts(directory: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """``(path, text)`` of all YAML files below a directory, sorted by path. :raises FleetError: as the parts do."""
    return [(path, read_text(path)) for path in yaml_files(directory)]


def texts_below(directory: str | os.PathLike[str], leave_out: Iterable[str] = ()) -> list[tuple[str, str]]:
    """``(path, text)`` of every text file below a directory that a person may have written, sorted by path.

    Without what is hidden, a link, no UTF-8, larger than 8 MiB, or below one of ``leave_out``. Nothing where there is no such directory.
    """
    left_out = {os.path.realpath(path) for path in leave_out}
    found: list[tuple[str, str]] = []
    for place, directories, names in os.walk(os.fspath(directory)):
        directories[:] = [
            name for name in directories if not name.startswith(".") and os.path.realpath(os.path.join(place, name)) not in left_out
        ]
        for path in (os.path.join(place, name) for name in names if not name.startswith(".")):
            if os.path.isfile(path) and not os.path.islink(path):
                with contextlib.suppress(FleetError):
                    found.append((path, read_text(path)))
    return sorted(found)


def rewrite_all(files: Mapping[str, str]) -> None:
    """As :func:`write_all`, for files of people that are there: each keeps its permissions."""
    _replace((path, text, os.stat(path).st_mode & 0o777) for path, text in sorted(files.items()))


def last_plans(directory: str, fleet: str) -> dict[str, tuple[str, str]]:
    """Host -> (path, text) of the plan files that are there; none where the directory is not there yet. ``fleet``: what is no host's."""
    if not os.path.lexists(directory):
        return {}
    paths = (path for path in yaml_files(directory) if os.path.dirname(path) == directory.rstrip("/") and path.endswith(".yml"))
    names = {os.path.basename(path).removesuffix(".yml"): path for path in paths}
    return {name: (path, read_text(path, MAX_WRITTEN)) for name, path in names.items() if name != fleet}


def write_text(path: str | os.PathLike[str], text: str, mode: int = 0o644) -> None:
    """Replace a file as a whole: whoever reads sees the old text or the new one, after a crash too.

    :raises FleetError: the directory cannot be made or written.
    """
    _replace([(os.fspath(path), text, mode)])


def _replace(files: Iterable[tuple[str, str, int]]) -> None:
    """Replace all of the files (path, text, permissions), or none: plans of two hosts belong together. A full disk or a missing permission
    is seen while each is written beside its place; only then they are renamed, and renamed back where one of them cannot be.

    :raises FleetError: one cannot be written.
    """
    name, written = "", []
    try:
        for name, text, mode in files:
            if os.path.isdir(name):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            written.append((_beside(name, text.encode(), mode), name))
        with contextlib.ExitStack() as undo:
            for temporary, name in written:
                back = functools.partial(_put_back, name, *_bytes_and_mode(name))
                os.replace(temporary, name)
                undo.callback(back)
            undo.pop_all()
    except OSError as error:
        raise FleetError(f"cannot be written: {error.strerror}", file=name, hint="check the directory and its permissions") from error
    finally:
        for temporary, _name in written:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def _beside(path: str, data: bytes, mode: int) -> str:
    """A new file in the same directory, to be renamed; its path."""
    directory = os.path.dirname(path) or "."
    os.makedirs(directory, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".gpuops-", dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, mode)
    except OSError:
        os.unlink(temporary)
        raise
    return temporary


def _bytes_and_mode(path: str) -> tuple[bytes | None, int]:
    """What a file holds and its permissions; None and 0 where there is none."""
    try:
        with open(path, "rb") as stream:
            return stream.read(), os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        return None, 0


def _put_back(path: str, data: bytes | None, mode: int) -> None:
    if data is None:
        os.unlink(path)
    else:
        os.replace(_beside(path, data, mode), path)


def make_directory(path: str | os.PathLike[str]) -> None:
    """Make a directory with all that leads to it, where it is missing. :raises FleetError: it cannot be made."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise FleetError(
            f"cannot be made: {error.strerror}", file=os.fspath(path), hint="check what is there and its permissions"
        ) from error


def write_all(files: Mapping[str, str]) -> list[str]:
    """Write those files whose text differs from what is on the disk, all of them or none; returns their paths, sorted."""
    changed = [path for path in sorted(files) if read_written(path) != files[path]]
    _replace((path, files[path], 0o644) for path in changed)
    return changed


def put(files: Mapping[str, str], check_mode: bool, diff: bool) -> dict[str, t.Any]:
    """Write those whose text differs, unless in check mode; ``changed``, and with ``diff`` what Ansible shows of it, for the result."""
    before = {path: read_written(path) for path in files}
    if not check_mode:
        write_all(files)
    return {"changed": before != dict(files), **({"diff": diffs(files, before)} if diff else {})}


def remove_all(paths: Iterable[str]) -> None:
    """Remove files that are there. :raises FleetError: one cannot be removed."""
    for path in paths:
        try:
            os.unlink(path)
        except OSError as error:
            raise FleetError(f"cannot be removed: {error.strerror}", file=path, hint="check its permissions") from error


def diffs(files: Mapping[str, str], before: Mapping[str, str | None]) -> list[dict[str, str]]:
    """The list that Ansible shows with ``--diff``: one entry for every file whose text changes, sorted by path."""
    return [
        {"before": before.get(path) or "", "after": files[path], "before_header": path, "after_header": path}
        for path in sorted(files)
        if before.get(path) != files[path]
    ]


def plain(value: t.Any) -> t.Any:
    """Ansible's tagged and lazy values as what they stand for: dict, list, str, int, float, bool and None."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def failed(error: FleetError, result: Mapping[str, t.Any] | None = None) -> dict[str, t.Any]:
    """The result of a door that failed: one line for each problem, no traceback, nothing changed."""
    return {**(result or {}), "failed": True, "changed": False, "msg": str(error)}


def known_runtimes(directories: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Names of the compose templates (``NAME.yml.j2``) that are found in the directories; missing directories are skipped."""
    names: set[str] = set()
    for directory in directories:
        if os.path.isdir(directory):
            names.update(name.removesuffix(".yml.j2") for name in os.listdir(directory) if name.endswith(".yml.j2"))
    return sorted(names)


class Door(ActionBase):
    """An action plugin that does its work on the controller and sends nothing to a host.

    ``arguments`` is its argument spec; ``work`` returns the result, or raises FleetError and has then changed nothing.
    """

    TRANSFERS_FILES = False
    arguments: t.ClassVar[Mapping[str, t.Any]]

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
        """What a door is made for."""
        raise NotImplementedError

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """The result of the module, see its RETURN; a problem is ``failed`` with one line each in ``msg``, and then nothing is written."""
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _result, arguments = self.validate_argument_spec(argument_spec=self.arguments)
        try:
            return {**result, **self.work(plain(arguments), self._task.check_mode, self._task.diff)}
        except FleetError as error:
            return failed(with_origin(error, arguments.get("hosts")), result)


class LabelDoor(ActionBase):
    """The door of a module that takes its wish inline or from a file with labels, which is read on the controller.

    ``config`` and ``label`` become ``selectors``. ``inline``: the option that says the same without a file; ``example``: such a file.
    """

    TRANSFERS_FILES = False
    _supports_async = True
    module = ""
    inline = ""
    example = ""

    def entries(self, text: str, file: str, label: str) -> list[dict[str, t.Any]]:
        """What the file says under a label, as plain data. FleetError when it is wrong."""
        raise NotImplementedError

    def completed(self, arguments: dict[str, t.Any]) -> dict[str, t.Any]:
        """The arguments with what else the controller knows."""
        return arguments

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """The module's result, or what is wrong with the file."""
        super().run(tmp, task_vars)
        try:
            arguments = self.completed(self._with_file_read(dict(self._task.args)))
        except FleetError as error:
            return failed(error)
        return t.cast(
            "dict[str, t.Any]",
            self._execute_module(module_name=self.module, module_args=arguments, task_vars=task_vars, wrap_async=self._task.async_val),
        )

    def _with_file_read(self, arguments: dict[str, t.Any]) -> dict[str, t.Any]:
        """The module's arguments, ``config`` and ``label`` replaced by what the file says. FleetError when they do not agree."""
        config, label = arguments.pop("config", None), arguments.pop("label", None)
        if arguments.get("selectors"):
            raise FleetError("the entries of a layout file are read from it", field="selectors", hint="write config and label instead")
        if config is None and label is None:
            return arguments
        if arguments.get(self.inline):
            hint = f"write either {self.inline}, or config and label"
            raise FleetError("a layout is given inline and by file", field=self.inline, hint=hint)
        examples = {
            "config": f"config: {self.example}, the file that has this label",
            "label": "label: NAME, one of the labels in the file",
        }
        for name, value, other in (("label", label, "config"), ("config", config, "label")):
            if value is None:
                raise FleetError(f"{other} is given without {name}", field=name, hint=f"write {examples[name]}")
            if not isinstance(value, str):
                raise FleetError(f"expected text, found {value}", field=name, hint=f"write it in quotes: {name}: '{value}'")
        file = self._find(t.cast(str, config))
        return {**arguments, "selectors": self.entries(read_text(file), file, t.cast(str, label))}

    def _find(self, config: str) -> str:
        """The file, looked for as ``src`` of ansible.builtin.copy is: in ``files`` of the role and beside the playbook."""
        try:
            return str(self._find_needle("files", config))
        except AnsibleError as error:
            hint = "write a path on the controller, absolute, or relative to the playbook or to the role's directory 'files'"
            raise FleetError("no such layout file on the controller", file=config, field="config", hint=hint) from error
