# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules of this directory that are imported when a function of theirs is first called.

For the filters: ansible-core reads every filter file of a collection to find one filter, and does so anew in the process of each
task. What a file imports there, all tasks pay for.
"""

from __future__ import annotations

import functools
import importlib
import typing as t

PACKAGE = __name__.rpartition(".")[0]


class Late:
    """``Late("upgrade").lost`` is a function that imports the module ``upgrade`` when it is called, and then calls its ``lost``."""

    def __init__(self, module: str) -> None:
        self._module = f"{PACKAGE}.{module}"

    def __getattr__(self, name: str) -> t.Callable[..., t.Any]:
        if name.startswith("_"):  # what Python itself asks of an object is not a function of the module
            raise AttributeError(name)
        return functools.partial(_call, self._module, name)


def _call(module: str, name: str, /, *arguments: t.Any, **options: t.Any) -> t.Any:
    return getattr(importlib.import_module(module), name)(*arguments, **options)
