# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checking what people wrote: pydantic models in, one clear line for each problem out.

pydantic is a need of the controller only. This file is the one place that imports it, so that everything else can be imported
(for documentation, for ansible-test) where it is not installed; :func:`check` then says what to install.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import NO_TEXT, Located, Path, not_text, raise_all
from ansible_collections.gpuops.fleet.plugins.plugin_utils.near import near

try:
    from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

    PYDANTIC_ERROR: ImportError | None = None
except ImportError as error:
    PYDANTIC_ERROR = error
    # ansible-test and ansible-doc import this file without pydantic. mypy has pydantic, so to it these are second definitions.

    class BaseModel:  # type: ignore[no-redef]
        """Stands where pydantic's class would; never used to check anything."""

    class ValidationError(Exception):  # type: ignore[no-redef]
        """Never raised: without pydantic nothing is checked."""

    def _nothing(*_args: t.Any, **_kwargs: t.Any) -> t.Any:
        return lambda value: value

    AfterValidator = BeforeValidator = ConfigDict = Field = model_validator = _nothing  # type: ignore[assignment, misc]

__all__ = [
    "MOST_MIB",
    "NAME",
    "AfterValidator",
    "BaseModel",
    "BeforeValidator",
    "ConfigDict",
    "Field",
    "Name",
    "Size",
    "Strict",
    "Wrong",
    "check",
    "describe",
    "model_validator",
    "not_left_empty",
    "parse_size",
    "require",
]

Model = t.TypeVar("Model", bound="BaseModel")

_SIZE = re.compile(r"^([0-9]+(?:\.[0-9]+)?) ?(MiB|GiB)$")
NAME = re.compile(r"^[a-z][a-z0-9-]{0,61}[a-z0-9]$")
SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)? ?(MiB|GiB)$"

_LONG = 10**60

# 1 EiB: far more than any GPU, host or disk has.
MOST_MIB = 2**40


class Wrong(ValueError):
    """Raised inside validators: what was wrong, what would be right, and at which field below the checked one."""

    def __init__(self, message: str, hint: str, *where: str | int) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where


def parse_size(value: object) -> int:
    """``'8 GiB'`` or ``'512 MiB'`` in MiB. A bare number is refused: it would hide its unit.

    :raises Wrong: not such a text, or not a whole number of MiB.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise Wrong(f"{describe(value)} has no unit", f"write '{value} MiB' or '{value} GiB'" if 0 <= value < _LONG else "write '8 GiB'")
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if not found:
        raise Wrong(f"{describe(value)} is not a size", "write a number with MiB or GiB, such as '512 MiB' or '1.5 GiB'")
    amount = float(found.group(1)) * (1024 if found.group(2) == "GiB" else 1)
    if amount > MOST_MIB:  # so many digits that float() calls it infinite among them
        raise Wrong("the size is too large to be true", f"write at most '{MOST_MIB // 1024} GiB'")
    if amount != int(amount):
        raise Wrong(f"'{value}' is not a whole number of MiB", f"write '{int(amount) + 1} MiB'")
    return int(amount)


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise Wrong(f"'{value}' is not a name", "use 2 to 63 of a-z, 0-9 and '-'; start with a letter, end with a letter or digit")
    return value


Name = t.Annotated[str, AfterValidator(_name), Field(json_schema_extra={"pattern": NAME.pattern})]
Size = t.Annotated[int, BeforeValidator(parse_size, json_schema_input_type=t.Annotated[str, Field(pattern=SIZE_PATTERN)])]


class Strict(BaseModel):
    """Base of everything that is checked: unknown fields are errors, nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def not_left_empty(part: BaseModel, *fields: str) -> None:
    """Where nothing means "no limit" or "not at all", an empty line may not say it. :raises Wrong: one of the fields is written so."""
    for field in fields:
        if field in part.model_fields_set and getattr(part, field) is None:
            raise Wrong("nothing is written there", f"write what it shall be, or leave '{field}' out", field)


def require() -> None:
    """:raises FleetError: pydantic 2 is not installed for the Python that runs Ansible on the controller."""
    if PYDANTIC_ERROR is not None:
        hint = "install it into the Python that runs ansible-playbook: pip install 'pydantic>=2'"
        raise FleetError(f"the controller needs the Python package pydantic, version 2: {PYDANTIC_ERROR}", hint=hint)


def check(model: type[Model], located: Located) -> Model:
    """Data as an instance of ``model``.

    :raises FleetError: one, or a ``FleetErrors`` with every problem on its own line.
    """
    require()
    raise_all(located.error(path, *NO_TEXT) for path in not_text(located.data))
    try:
        return model.model_validate(located.data)
    except ValidationError as error:
        raise_all(_explain(model, located, dict(problem)) for problem in error.errors(include_url=False))
        raise


def _explain(model: type[BaseModel], located: Located, problem: Mapping[str, t.Any]) -> FleetError:
    path = _path(located.data, problem["loc"])
    context = problem.get("ctx", {})
    wrong = context.get("error")
    if isinstance(wrong, Wrong):
        return located.error((*path, *wrong.where), wrong.message, wrong.hint)
    kind, value = problem["type"], problem["input"]
    if kind == "missing":
        return located.error(path[:-1], f"the field '{path[-1]}' is missing", f"add '{path[-1]}: ...'")
    if kind == "extra_forbidden":
        return located.error(path, *_unknown(model, path))
    if kind.endswith("_type") or kind in ("int_from_float", "dict_type"):
        return located.error(
            path, f"expected {_WANTED.get(kind, kind.removesuffix('_type'))}, found {describe(value)}", _example(kind, value)
        )
    if kind == "literal_error":
        return located.error(path, f"unknown value {describe(value)}", f"write {context['expected']}")
    if kind == "string_pattern_mismatch":
        return located.error(path, f"{describe(value)} does not have the right form", f"it must match {context['pattern']}")
    if kind == "too_short" and not value:
        return located.error(path, "the list is empty", f"write at least {context['min_length']}{_such_as(model, path)}")
    if kind == "string_too_short" and not value:
        return located.error(path, "the text is empty", "write what it shall be, or leave it out")
    if kind == "too_long":
        return located.error(path, f"{len(value)} are too many", f"it may have at most {context['max_length']}")
    return located.error(path, f"{describe(value)} is not right", _limit(kind, context, str(problem["msg"])))


_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def _example(kind: str, value: object) -> str:
    if kind == "string_type" and isinstance(value, float):
        return f'write it in quotes: "{value}", with all of its zeros'  # as a number 12.10 is 12.1
    if kind == "string_type" and isinstance(value, int):
        return f'write it in quotes: "{str(value).lower() if isinstance(value, bool) else value}"'
    examples = {
        "string_type": "write text",
        "int_type": "write a number such as 2",
        "int_from_float": "write a number such as 2",
        "float_type": "write a number such as 0.5",
        "bool_type": "write true or false",
        "list_type": "write [a, b], or one '- ' a line",
    }
    return examples.get(kind, "write one 'field: value' a line below it")


def _limit(kind: str, context: Mapping[str, t.Any], message: str) -> str:
    words = {
        "greater_than_equal": ("ge", "at least"),
        "less_than_equal": ("le", "at most"),
        "greater_than": ("gt", "more than"),
        "less_than": ("lt", "less than"),
    }
    if kind == "finite_number":
        return "write a number such as 2"
    if kind in words:
        key, text = words[kind]
        limit = context[key]
        return f"it must be {text} {limit if isinstance(limit, int) else format(limit, 'g')}"
    if kind in ("too_short", "string_too_short"):
        return f"it needs at least {context['min_length']}"
    if kind == "string_too_long":
        return f"it may have at most {context['max_length']} letters"
    return message


def _such_as(model: type[BaseModel], path: Path) -> str:
    """What a list is that nobody writes, as an example; '' where that is no more than nothing."""
    field = model.model_fields.get(str(path[-1])) if len(path) == 1 else None
    return f", such as [{', '.join(map(str, field.default))}]" if field is not None and isinstance(field.default, list) else ""


def _unknown(model: type[BaseModel], path: Path) -> tuple[str, str]:
    known = _fields_at(model, path[:-1])
    return f"unknown field '{path[-1]}'", near(str(path[-1]), known, f"known here: {', '.join(known)}")


def _fields_at(model: type[BaseModel], path: Path) -> list[str]:
    """Names of the fields that the mapping at ``path`` may have."""
    kind: t.Any = model
    for part in path:
        if isinstance(part, str):
            fields = {info.alias or name: info.annotation for name, info in kind.model_fields.items()}
            kind = _model_in(fields[part]) if part in fields else kind  # else a key of a mapping of models
    return [info.alias or name for name, info in kind.model_fields.items()]


def _model_in(annotation: t.Any) -> t.Any:
    """The model inside ``list[Model]``, ``Model | None`` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for found in map(_model_in, t.get_args(annotation)) if found is not None), None)


def _path(data: object, loc: tuple[str | int, ...]) -> Path:
    """pydantic's location without its own words (names of union members, ``[key]``)."""
    path: list[str | int] = []
    for part in loc:
        if isinstance(data, Mapping):
            if isinstance(part, str) and (part in data or part == loc[-1]) and part != "[key]":
                path.append(part)
                data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            path.append(part)
            data = data[part] if part < len(data) else None
    return tuple(path)


def describe(value: object) -> str:
    """A value in words that fit into one line."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and abs(value) >= _LONG:  # Python itself refuses to write numbers of more than 4300 digits
        return "a number of more than 60 digits"
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:56] + "...'"
