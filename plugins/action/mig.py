# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door of module ``mig``: a layout file is read on the controller, the host receives plain data."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door, layouts

MODULE = "gpuops.fleet.mig"


class ActionModule(ActionBase):
    """Checks what only the controller can check, reads the file, and hands everything else to the module as it is."""

    TRANSFERS_FILES = False
    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """The module's result, or what is wrong with the layout file."""
        super().run(tmp, task_vars)
        try:
            arguments = self._with_file_read(dict(self._task.args))
        except FleetError as error:
            return door.failed(error)
        return t.cast(
            "dict[str, t.Any]",
            self._execute_module(module_name=MODULE, module_args=arguments, task_vars=task_vars, wrap_async=self._task.async_val),
        )

    def _with_file_read(self, arguments: dict[str, t.Any]) -> dict[str, t.Any]:
        """The module's arguments, ``config`` and ``label`` replaced by what the file says. FleetError when they do not agree."""
        config, label = arguments.pop("config", None), arguments.pop("label", None)
        if arguments.get("selectors"):
            raise FleetError("the entries of a layout file are read from it", field="selectors", hint="write config and label instead")
        if config is None and label is None:
            return arguments
        if arguments.get("layout"):
            raise FleetError("a layout is given inline and by file", field="layout", hint="write either layout, or config and label")
        for name, value, other in (("label", label, "config"), ("config", config, "label")):
            if value is None:
                raise FleetError(f"{other} is given without {name}", field=name, hint=f"write {_EXAMPLE[name]}")
            if not isinstance(value, str):
                raise FleetError(f"expected text, found {value}", field=name, hint=f"write it in quotes: {name}: '{value}'")
        file = self._find(config)
        return {**arguments, "selectors": layouts.selectors(door.read_text(file), file, label)}

    def _find(self, config: str) -> str:
        """The file, looked for as ``src`` of ansible.builtin.copy is: in ``files`` of the role and beside the playbook."""
        try:
            return str(self._find_needle("files", config))
        except AnsibleError as error:
            hint = "write a path on the controller, absolute, or relative to the playbook or to the role's directory 'files'"
            raise FleetError("no such layout file on the controller", file=config, field="config", hint=hint) from error


_EXAMPLE = {"config": "config: layouts.yml, the file that has this label", "label": "label: NAME, one of the labels in the file"}
