# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Triton model's ``config.pbtxt`` out of the ``triton`` block of a manifest. Pure.

Source: Triton's user guide, "Model Configuration" (protobuf text format of inference.ModelConfig, common/protobuf/model_config.proto).
"""

from __future__ import annotations

import typing as t
from collections.abc import Iterable

Data = t.Mapping[str, t.Any]


def name_of(manifest: Data) -> str:
    """The name under which the model is served: its own, else the service's."""
    return str(manifest["triton"]["model"] or manifest["service"])


def config_lines(manifest: Data) -> list[str]:
    """The file's lines. Instances are left to Triton: one on each GPU that it sees."""
    block = manifest["triton"]
    lines = [f"name: {_text(name_of(manifest))}", f"backend: {_text(block['backend'])}", f"max_batch_size: {block['max_batch_size']}"]
    lines += _tensors("input", block["inputs"]) + _tensors("output", block["outputs"])
    return [*lines, "dynamic_batching { }"] if block["max_batch_size"] else lines


def _tensors(field: str, tensors: Iterable[Data]) -> list[str]:
    lines = []
    for tensor in tensors:
        dims = ", ".join(str(size) for size in tensor["dims"])
        lines.append(f"{field} {{ name: {_text(tensor['name'])} data_type: TYPE_{tensor['type']} dims: [ {dims} ] }}")
    return lines


def _text(value: str) -> str:
    """A string of protobuf's text format."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
