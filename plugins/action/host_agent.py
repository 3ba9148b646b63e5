# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door of module ``host_agent``: the collection's own host code is packed here, and travels to a host that does not have it."""

from __future__ import annotations

import os
import tempfile
import typing as t
from pathlib import Path

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.fleet.plugins.module_utils import agent_package
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.version import VERSION
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door

MODULE = "gpuops.fleet.host_agent"
_SET_HERE = ("package", "version", "digest")


class ActionModule(ActionBase):
    """Asks the module first; sends the package and asks again only when the host lacks it."""

    TRANSFERS_FILES = False  # no directory is made on a host that needs nothing
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """The module's result, or why there is no package to send."""
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        try:
            for name in _SET_HERE:
                if name in arguments:
                    raise FleetError("the action plugin sets this option itself", field=name, hint="leave it out")
            if arguments.get("state", "present") == "absent":
                return self._ask(arguments, task_vars)
            files = self._files(arguments)
        except FleetError as error:
            return door.failed(error)
        arguments.update(version=VERSION, digest=agent_package.digest_of(files))
        result = self._ask(arguments, task_vars)
        if not result.get("package_needed"):
            return result
        try:
            return self._ask({**arguments, "package": self._send(agent_package.pack(files))}, task_vars)
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)

    def _ask(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        return t.cast("dict[str, t.Any]", self._execute_module(module_name=MODULE, module_args=arguments, task_vars=task_vars))

    def _files(self, arguments: dict[str, t.Any]) -> dict[str, bytes]:
        files = agent_package.with_packages(door.read_sources(Path(agent_package.__file__).parent))
        wheel = arguments.get("wheel")
        if not wheel:
            arguments.pop("wheel", None)
            return files
        try:
            path = str(self._find_needle("files", str(wheel)))
        except AnsibleError as error:
            hint = "write a path on the controller, absolute, or relative to the playbook or to the role's directory 'files'"
            raise FleetError("no such wheel on the controller", file=str(wheel), field="wheel", hint=hint) from error
        return {**files, **agent_package.of_wheel(door.read_bytes(path), path)}

    def _send(self, package: bytes) -> str:
        """Path of the package on the host."""
        directory = self._make_tmp_path()
        remote = self._connection._shell.join_path(directory, "package.zip")
        descriptor, local = tempfile.mkstemp(prefix="gpuops-")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(package)
            self._transfer_file(local, remote)
        finally:
            os.unlink(local)
        self._fixup_perms2((directory, remote))
        return str(remote)
