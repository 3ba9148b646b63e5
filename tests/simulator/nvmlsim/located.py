# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML with the line of every value, so that an error can say where it is."""

from __future__ import annotations

import typing as t

import yaml

from nvmlsim.common import SimError

UNKNOWN = "unknown"


class Section:
    """One mapping of a YAML file: its values are taken by name and type, and what is left over is an error."""

    def __init__(self, file: str, path: str, line: int, items: dict[str, tuple[int, t.Any]]) -> None:
        self.file = file
        self.path = path
        self.line = line
        self.items = items
        self.taken: set[str] = set()

    def error(self, key: str | None, wrong: str, right: str) -> SimError:
        """The one line for a wrong field: file, line, field, what is wrong, what would be right."""
        line = self.items[key][0] if key in self.items else self.line
        field = ".".join(part for part in (self.path, key) if part)
        return SimError(f"{self.file}:{line}: {field or 'file'}: {wrong}; {right}")

    def has(self, key: str) -> bool:
        """Whether the field is given."""
        self.taken.add(key)
        return key in self.items

    def raw(self, key: str, right: str) -> t.Any:
        """The value of a field that must be there."""
        self.taken.add(key)
        if key not in self.items:
            raise self.error(key, "is missing", right)
        return self.items[key][1]

    def text(self, key: str, default: str | None = None) -> str:
        """A text of one line."""
        right = "give a text"
        if default is not None and not self.has(key):
            return default
        value = self.raw(key, right)
        if isinstance(value, int | float):
            raise self.error(key, f"{value!r} is not a text of one line", f"put it in quotes: '{value}'")
        if not isinstance(value, str) or not value.strip() or "\n" in value:
            raise self.error(key, f"{value!r} is not a text of one line", right)
        return value

    def choice(self, key: str, allowed: t.Iterable[str]) -> str:
        """One of a few words."""
        names = ", ".join(allowed)
        value = self.raw(key, f"give one of {names}")
        if value not in allowed:
            raise self.error(key, f"{value!r} is not known", f"give one of {names}")
        return str(value)

    def flag(self, key: str, default: bool) -> bool:
        """true or false; ``default`` when the field is not there."""
        if not self.has(key):
            return default
        value = self.raw(key, "")
        if not isinstance(value, bool):
            raise self.error(key, f"{value!r} is not a truth value", "give true or false")
        return value

    def number(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer from ``low`` to ``high``."""
        right = f"give a whole number from {low} to {high}"
        if default is not None and not self.has(key):
            return default
        value = self.raw(key, right)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(key, f"{value!r} is not possible", right)
        return value

    def maybe(self, key: str, low: int, high: int) -> int | None:
        """As ``number``; None where the file says ``unknown`` or nothing."""
        if key not in self.items or self.items[key][1] in (UNKNOWN, None):
            self.taken.add(key)
            return None
        return self.number(key, low, high)

    def numbers(self, key: str, low: int, high: int) -> list[int]:
        """A list of different integers in a range, not empty."""
        right = f"give a list of different whole numbers from {low} to {high}"
        value = self.raw(key, right)
        good = isinstance(value, list) and value
        if not good or any(isinstance(item, bool) or not isinstance(item, int) or not low <= item <= high for item in value):
            raise self.error(key, f"{plain(value)!r} is not possible", right)
        if len(set(value)) != len(value):
            raise self.error(key, f"{value!r} names a number twice", right)
        return t.cast("list[int]", value)

    def section(self, key: str) -> Section:
        """A mapping in the mapping."""
        value = self.raw(key, "give a mapping")
        if not isinstance(value, Section):
            raise self.error(key, f"{plain(value)!r} is not a mapping", "give a mapping")
        return value

    def sections(self, key: str) -> list[Section]:
        """A list of mappings, not empty."""
        right = "give a list of mappings"
        value = self.raw(key, right)
        if not isinstance(value, list) or not value or any(not isinstance(item, Section) for item in value):
            raise self.error(key, f"{plain(value)!r} is not possible", right)
        return t.cast("list[Section]", value)

    def names(self) -> list[str]:
        """The fields that are given."""
        return list(self.items)

    def finish(self, *also: str) -> None:
        """Every field must have been asked for: a misspelt one would be passed over in silence."""
        for key in self.items:
            if key not in self.taken and key not in also:
                known = ", ".join(sorted(self.taken | set(also)))
                raise self.error(key, "is not a field that is known here", f"known are {known}")


def plain(value: t.Any) -> t.Any:
    """A value as it was written, for messages and for ``show``."""
    if isinstance(value, Section):
        return {key: plain(item) for key, (_line, item) in value.items.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def _convert(file: str, path: str, node: yaml.Node, loader: yaml.SafeLoader) -> t.Any:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        items: dict[str, tuple[int, t.Any]] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            where = f"{path}.{key}" if path else key
            if key in items:
                raise SimError(f"{file}:{key_node.start_mark.line + 1}: {where}: is given twice; give it once")
            items[key] = (value_node.start_mark.line + 1, _convert(file, where, value_node, loader))
        return Section(file, path, line, items)
    if isinstance(node, yaml.SequenceNode):
        return [_convert(file, f"{path}[{index}]", item, loader) for index, item in enumerate(node.value)]
    return loader.construct_object(node)


def read(file: str, text: str) -> Section:
    """Reads one YAML mapping. Raises SimError with file and line for anything else."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        value = None if node is None else _convert(file, "", node, loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or "cannot be read"
        raise SimError(f"{file}:{line}: file: is not YAML ({problem}); give a YAML mapping") from error
    except ValueError as error:
        raise SimError(f"{file}:1: file: is not YAML ({error}); give a YAML mapping") from error
    finally:
        loader.dispose()
    if not isinstance(value, Section):
        raise SimError(f"{file}:1: file: holds no mapping; give a YAML mapping")
    return value
