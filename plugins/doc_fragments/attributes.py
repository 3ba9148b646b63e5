# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every module says about itself: check mode, diff mode, idempotence, where it runs."""

from __future__ import annotations


class ModuleDocFragment:
    """The parts C(gpuops.fleet.attributes[.part]) of a module's documentation."""

    # Base: each module adds `support` for the three attributes itself, or takes one of the parts below.
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode and then returns what a run would do, without doing it.
  diff_mode:
    description: Returns what changed, or would change, when diff mode is on.
  idempotent:
    description: A second run with the same arguments on the same state reports no change.
  platform:
    description: Operating systems of the target.
    platforms: posix
    support: full
"""

    # A module that changes things and is honest in all three ways.
    FULL = r"""
options: {}
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
"""

    # A module that reads and changes nothing.
    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    support: full
    details: This module changes nothing, so that a run in check mode does the same as any other.
  diff_mode:
    support: N/A
    details: This module changes nothing.
  idempotent:
    support: full
    details: This module changes nothing.
"""

    FACTS = r"""
options: {}
attributes:
  facts:
    description: Returns a dictionary C(ansible_facts) that becomes facts of the host.
"""

    # A module with a door: an action plugin of the same name that runs on the controller.
    DOOR = r"""
options: {}
attributes:
  action:
    description: An action plugin of the same name runs part of the work on the controller.
    support: full
"""

    # A module that runs on the controller only.
    CONTROLLER = r"""
options: {}
attributes:
  action:
    description: An action plugin of the same name runs all of the work on the controller; nothing is sent to the host.
    support: full
"""

    ACTIONGROUP = r"""
options: {}
attributes:
  action_group:
    description: Use C(group/gpuops.fleet.all) in C(module_defaults) to set defaults for this module.
    support: full
    membership:
      - gpuops.fleet.all
"""
