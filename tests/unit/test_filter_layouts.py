# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layouts out of facts and compared with files: what the filters of playbooks export and assert say."""

from __future__ import annotations

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.fleet.plugins.filter.layouts import FilterModule
from ansible_collections.gpuops.fleet.plugins.plugin_utils.layouts import parse
from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu_facts

FILTERS = FilterModule().filters()


@pytest.mark.parametrize("label", ["current", "off", "before the move", "1"])
def test_a_layout_is_exported_under_any_label_and_read_back(label: str) -> None:
    known = facts([gpu_facts(0, slices="1g.10gb@0 3g.40gb@4"), gpu_facts(1)], driver={"present": True})
    text = FILTERS["mig_parted"](known, label)
    assert [entry.mig for entry in parse(text, "a.yaml").select(label)] == [True, False]
    assert yaml.safe_load(text)["version"] == "v1"


def test_a_host_without_a_driver_has_no_layout_to_export() -> None:
    with pytest.raises(AnsibleFilterError, match="no layout can be read: nvmlInit: NVML_ERROR_DRIVER_NOT_LOADED"):
        FILTERS["mig_parted"](facts(driver={"present": False, "error": "nvmlInit: NVML_ERROR_DRIVER_NOT_LOADED"}))


def test_steps_and_modes_that_wait_are_differences() -> None:
    pending = [{"gpu": "GPU-2", "reason": "it waits for a reset of the GPU"}]
    found = FILTERS["layout_differences"]({"steps": ["GPU-1: create 1g.10gb at memory slice 0"], "pending": pending})
    assert found == ["GPU-1: create 1g.10gb at memory slice 0", "GPU-2: it waits for a reset of the GPU"]
    assert FILTERS["layout_differences"]({"steps": [], "pending": []}) == []
