# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML text to plain data that still knows on which line each field was written.

The reader follows the core schema of YAML 1.2 and not PyYAML's YAML 1.1: ``8.03e9`` is a number, ``off`` and ``22:30`` are text,
and ``010`` is not eight. Keys of mappings are always text, as written. What a reviewer cannot see at a glance
is refused: a key written twice, merge keys, tags, more than one document.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import yaml
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

Path = tuple[str | int, ...]

# A file of people is far smaller. The limit keeps a handful of nested aliases from growing into gigabytes.
MAX_NODES = 200_000
MAX_DEPTH = 40

# So many problems are told at once: who made more has made one of them very often.
MOST_TOLD = 40
# What a person wrote is told as far as that helps to find it.
_MOST_LETTERS = 300

_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_INT = re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$")
_FLOAT = re.compile(r"^[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$")
_TAG = "tag:yaml.org,2002:"
# What an error says in place of a file where a host's variables or facts are wrong.
_OF_HOST = "host "
_HALVES = re.compile("[\ud800-\udfff]")
_MERGE = re.compile(r"^(?:<{7}|>{7}) \S", re.MULTILINE)
_SIGNS = list("-+0123456789")
_RUN = re.compile(rf"(?:[-?:][ \t]+){{{20 * MAX_DEPTH}}}")


class FleetErrors(FleetError):
    """Several problems; ``str()`` has each on its own line, in the order of files and lines, the first of very many."""

    def __init__(self, errors: Sequence[FleetError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        super().__init__(first.message, file=first.file, line=first.line, field=first.field, hint=first.hint)

    def __str__(self) -> str:
        lines = [str(error) for error in self.errors[:MOST_TOLD]]
        more = len(self.errors) - len(lines)
        return "\n".join([*lines, f"and {more} more of them"] if more else lines)


def raise_all(errors: Iterable[FleetError]) -> None:
    """Raise what was found: nothing, the one error itself, or all of them as one :class:`FleetErrors`.

    What is said of several hosts in the same words, for it stands in a group's variables, is one error of all of them.
    """
    said: dict[tuple[t.Any, ...], list[FleetError]] = {}
    for error in errors:
        for one in error.errors if isinstance(error, FleetErrors) else (error,):
            alike = one.file is not None and one.file.startswith(_OF_HOST) and (one.field or "").startswith("fleet_")
            own = None if alike else one.file
            said.setdefault((own, one.line, one.field, one.message, one.hint, alike), []).append(one)
    flat = [_of_hosts(several) for several in said.values()]
    if len(flat) == 1:
        raise flat[0]
    if flat:
        raise FleetErrors(sorted(flat, key=lambda error: (error.file or "", error.line or 0, str(error))))


def _of_hosts(several: Sequence[FleetError]) -> FleetError:
    first = several[0]
    hosts = sorted({str(each.file).removeprefix(_OF_HOST) for each in several})
    if len(hosts) < 2:
        return first
    more = f" and {len(hosts) - 3} more" if len(hosts) > 3 else ""
    return FleetError(first.message, file=f"hosts {', '.join(hosts[:3])}{more}", line=first.line, field=first.field, hint=first.hint)


@dataclass(frozen=True)
class Located:
    """Plain data, and the line (from 1) of every path in it; ``lines`` is empty for data that came without a text."""

    data: t.Any
    file: str
    lines: Mapping[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int | None:
        """Line of ``path``, or of the nearest thing around it that was written."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None

    def error(self, path: Path, message: str, hint: str | None = None) -> FleetError:
        """An error at ``path``, to be raised by the caller."""
        field = field_name(path) or None
        return FleetError(_short(message), file=self.file, line=self.line(path), field=field and _short(field), hint=hint)


def _short(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}... ({len(text)} letters)"


NO_TEXT: t.Final = ("it has half a character, which no text has", "write the character itself")
"""What is wrong with what :func:`not_text` finds, and what would be right."""


def not_text(data: t.Any, path: Path = ()) -> Iterator[Path]:
    """Where data has something that no file can hold as text: YAML and JSON can write halves of characters (``\\ud800``)."""
    if isinstance(data, str):
        if _HALVES.search(data):
            yield path
    elif isinstance(data, Mapping):
        for key, value in data.items():
            if isinstance(key, str) and _HALVES.search(key):
                yield path
            yield from not_text(value, (*path, key))
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from not_text(value, (*path, index))


def field_name(path: Path) -> str:
    """``('gpu', 'models', 0)`` as people write it: ``gpu.models[0]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def _with_core_schema(loader: type[t.Any]) -> type[t.Any]:
    """A loader class that resolves plain scalars by the core schema of YAML 1.2."""

    class Loader(loader):  # type: ignore[misc]  # the base is chosen at run time: libyaml or not
        yaml_implicit_resolvers: t.ClassVar[dict[str | None, list[tuple[str, re.Pattern[str]]]]] = {}

    for kind, pattern, first in (
        ("bool", _BOOL, list("tTfF")),
        ("null", _NULL, ["~", "n", "N", ""]),
        ("int", _INT, _SIGNS),
        ("float", _FLOAT, [*_SIGNS, "."]),
        ("merge", re.compile(r"^<<$"), ["<"]),
    ):
        Loader.add_implicit_resolver(_TAG + kind, pattern, first)
    return Loader


_Slow = _with_core_schema(yaml.SafeLoader)
# libyaml is some ten times faster; its error messages differ between versions, so every message comes from the slow reader.
_Fast = _with_core_schema(yaml.CSafeLoader) if hasattr(yaml, "CSafeLoader") else _Slow


def read_yaml(text: str, file: str) -> Located:
    """Read one mapping from ``text``; ``file`` is only a name for messages.

    :raises FleetError: not YAML, empty, not a mapping, more than one document, a key written twice, a tag, a merge key.
    """
    _check_depth(text, file)
    _check_merge(text, file)
    try:
        node = _compose(text, file, _Fast)
    except FleetError:
        node = _compose(text, file, _Slow)
    if node is None:
        raise FleetError("the file is empty", file=file, line=1, hint="write a mapping, one 'field: value' a line")
    if not isinstance(node, yaml.MappingNode):
        found = "a list" if isinstance(node, yaml.SequenceNode) else "plain text"
        raise FleetError(f"expected a mapping, found {found}", file=file, line=_line(node), hint="write one 'field: value' a line")
    lines: dict[Path, int] = {(): _line(node)}
    data = _Builder(file, lines).build(node, ())
    return Located(data, file, lines)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _check_depth(text: str, file: str) -> None:
    """Refuse nesting so deep that a reader written as recursion would end with a crash in place of a message.

    Only brackets and runs of ``- - -`` can be that deep in a file of the size that is read: indentation grows with the square.
    """
    depth = 0
    run = _RUN.search(text)
    if run is not None:
        raise FleetError("nested too deep", file=file, line=text.count("\n", 0, run.start()) + 1, hint=f"use fewer than {MAX_DEPTH} levels")
    for number, line in enumerate(text.split("\n"), 1):
        for character in line:
            if character in "[{":
                depth += 1
            elif character in "]}":
                depth = max(0, depth - 1)
            if depth > 20 * MAX_DEPTH:
                raise FleetError("brackets are nested too deep", file=file, line=number, hint="close what was opened")


def _check_merge(text: str, file: str) -> None:
    """Refuse what a merge has left, in words of its own: to a reader of YAML it is an error of indentation somewhere near."""
    found = _MERGE.search(text)
    if found is not None:
        line = text.count("\n", 0, found.start()) + 1
        hint = "keep what is right of both sides, without the lines of '<', '=' and '>'; of plans: plan again"
        raise FleetError("a merge that was not finished", file=file, line=line, hint=hint)


def _compose(text: str, file: str, loader_class: type[t.Any]) -> yaml.Node | None:
    try:
        loader = loader_class(text)
        try:
            return t.cast("yaml.Node | None", loader.get_single_node())
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else None
        raise FleetError("not a text file: it has control characters", file=file, line=line, hint="write YAML as UTF-8 text") from error
    except yaml.MarkedYAMLError as error:
        raise _yaml_error(error, file) from error
    except RecursionError as error:
        raise FleetError("nested too deep", file=file, hint=f"use fewer than {MAX_DEPTH} levels") from error


def _yaml_error(error: yaml.MarkedYAMLError, file: str) -> FleetError:
    opened = next((what for what in _OPENED if what in (error.context or "")), None)
    # What was opened and never closed is found out at the end of the file.
    mark = (error.context_mark if opened else error.problem_mark) or error.context_mark
    line = None if mark is None else int(mark.line) + 1
    problem = error.problem or str(error)
    if opened and error.problem_mark is not None and error.problem_mark.line != (line or 0) - 1:
        return FleetError(f"not YAML: {_OPENED[opened]} is opened and never closed", file=file, line=line, hint="close it")
    if "but found another document" in problem:
        return FleetError("more than one YAML document", file=file, line=line, hint="write one document a file, without a second '---'")
    hint = "indent with spaces, never with tabs" if "\\t" in problem else "check indentation, quotes and the space after each ':'"
    return FleetError(f"not YAML: {problem}", file=file, line=line, hint=hint)


# What PyYAML says it was reading, and what people call it.
_OPENED: t.Final = {"quoted scalar": "a quote", "flow sequence": "'['", "flow mapping": "'{'"}


class _Builder:
    """Turns a tree of nodes into plain data and notes the line of each path."""

    def __init__(self, file: str, lines: dict[Path, int]) -> None:
        self.file = file
        self.lines = lines
        self.nodes = 0

    def build(self, node: yaml.Node, path: Path) -> t.Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise self._error(node, path, f"more than {MAX_NODES:,} values, its aliases followed", "name the file that was meant")
        if len(path) > MAX_DEPTH:
            raise self._error(node, path[:3], "nested too deep, or an alias that contains itself", f"use fewer than {MAX_DEPTH} levels")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            if node.tag != _TAG + "seq":
                raise self._tag(node, path)
            return [self._item(child, (*path, index)) for index, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _item(self, node: yaml.Node, path: Path) -> t.Any:
        self.lines[path] = _line(node)
        return self.build(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, t.Any]:
        if node.tag != _TAG + "map":
            raise self._tag(node, path)
        result: dict[str, t.Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, path, "a key must be plain text", "write 'field: value'")
            if key.tag == _TAG + "merge":
                raise self._error(key, path, "merge keys ('<<') are not read", "write the fields out")
            name = str(key.value)
            here = (*path, name)
            if name in result:
                raise self._error(key, here, f"written twice, first on line {self.lines[here]}", "keep one of them")
            self.lines[here] = _line(key)
            result[name] = self.build(value, here)
        return result

    def _scalar(self, node: yaml.Node, path: Path) -> t.Any:
        kind = node.tag.removeprefix(_TAG)
        text = str(node.value)
        if kind == "str" or kind == "merge":
            return text
        if kind == "null":
            return None
        if kind == "bool" and _BOOL.fullmatch(text):
            return text.lower() == "true"
        if kind == "int" and _INT.fullmatch(text) and len(text) <= 20:
            return int(text)
        if kind in ("int", "float") and _FLOAT.fullmatch(text):
            number = float(text)
            if number in (float("inf"), float("-inf")):
                raise self._error(node, path, f"the number {text[:20]} is too large", "write a smaller number")
            return number
        raise self._tag(node, path)

    def _tag(self, node: yaml.Node, path: Path) -> FleetError:
        tag = str(node.tag).replace(_TAG, "!!")
        return self._error(node, path, f"the tag {tag} is not read here", "write a plain value")

    def _error(self, node: yaml.Node, path: Path, message: str, hint: str) -> FleetError:
        return FleetError(message, file=self.file, line=_line(node), field=field_name(path) or None, hint=hint)
