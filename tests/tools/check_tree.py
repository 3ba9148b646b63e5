# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the tree that no general tool makes; each finding is one line, and any finding fails.

* a role's defaults and its meta/argument_specs.yml name the same variables with the same values, all prefixed with the role's name;
* no product file knows that a simulated fleet exists: the product has one path;
* every source file says its licence;
* no Python file is longer than a person can hold in mind;
* no two test files bear one name, wherever they are: pytest takes them for one module;
* the collections of requirements.yml and galaxy.yml, and the versions that appear in several places, agree.
"""

from __future__ import annotations

import ast
import collections.abc as c
import pathlib
import re
import sys
import typing as t

import tree
import yaml

PRODUCT = ("plugins", "roles", "playbooks", "compose-templates", "ci", "meta", "inventories/example")
# What stands in for hardware in the tests, by its name and by its switch.
FOREIGN = re.compile(r"simulat|nvml_sim|simctl", re.IGNORECASE)
LICENCE = "SPDX-License-Identifier: GPL-3.0-or-later"
# What is linked into the kernel has its licence, which allows ours as well.
IN_KERNEL, KERNEL_LICENCE = "tests/lab/kernel", "SPDX-License-Identifier: GPL-2.0-or-later"
LICENSED = {".py", ".c", ".h", ".sh", ".j2"}
LONGEST = 500
# Where a release of this collection is named for a site to include, and how.
PIPELINE = ("ci", "inventories/example/gitlab", "docs/gitlab.md")
RELEASE = re.compile(r"(?:ref: v|gpuops-fleet:|git tag v)(\d+\.\d+\.\d+)")
SHOWN = ("DOCUMENTATION", "EXAMPLES", "RETURN")


def load(path: pathlib.Path) -> t.Any:
    """A YAML file's data; an empty or missing file is an empty mapping."""
    return (yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None) or {}


def role_findings(role: pathlib.Path) -> c.Iterator[str]:
    """Where a role's defaults and its argument specification do not agree."""
    where = role.relative_to(tree.ROOT)
    defaults = load(role / "defaults" / "main.yml")
    specs = load(role / "meta" / "argument_specs.yml").get("argument_specs", {})
    if not specs:
        yield f"{where}/meta/argument_specs.yml: a role says what it takes; none found"
    options = {name: option for spec in specs.values() for name, option in spec.get("options", {}).items()}
    for name in sorted(set(defaults) | set(options)):
        if not name.startswith(f"{role.name}_"):
            yield f"{where}: {name}: a role's variables begin with {role.name}_"
        if name not in options:
            yield f"{where}/defaults/main.yml: {name}: not in meta/argument_specs.yml"
            continue
        required, has_default = bool(options[name].get("required")), "default" in options[name]
        if required == (name in defaults):
            said = "required, and has a default" if required else "neither required nor in defaults/main.yml"
            # An optional value may have no default at all; then the specification must not name one either.
            if required or has_default:
                yield f"{where}/meta/argument_specs.yml: {name}: {said}"
        elif has_default and options[name]["default"] != defaults[name]:
            differ = f"default {options[name]['default']!r}, but defaults/main.yml has {defaults[name]!r}"
            yield f"{where}/meta/argument_specs.yml: {name}: {differ}"
        elif not required and not has_default and not isinstance(defaults[name], str):
            yield f"{where}/meta/argument_specs.yml: {name}: default missing, defaults/main.yml has {defaults[name]!r}"


def written_lines(text: str) -> int:
    """Lines of a Python file that are not blank and do not belong to what ansible-doc shows of a module."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in SHOWN:
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return sum(bool(line.strip()) for line in lines)


def text_findings(name: pathlib.Path) -> c.Iterator[str]:
    """Findings in one file's text."""
    try:
        lines = (tree.ROOT / name).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return
    if any(name.is_relative_to(part) for part in PRODUCT):
        for number, line in enumerate(lines, start=1):
            if FOREIGN.search(line):
                yield f"{name}:{number}: the product does not know of the simulated fleet: {line.strip()}"
    licence = KERNEL_LICENCE if name.is_relative_to(IN_KERNEL) else LICENCE
    if name.suffix in LICENSED and lines and licence not in "\n".join(lines[:8]):
        yield f"{name}: no line '{licence}' at its head"
    if name.suffix == ".py" and (length := written_lines("\n".join(lines))) > LONGEST:
        yield f"{name}: {length} lines without blank ones and a module's documentation; split it (at most {LONGEST})"


def name_findings(names: c.Iterable[pathlib.Path]) -> c.Iterator[str]:
    """Test files that bear the name of another."""
    first: dict[str, pathlib.Path] = {}
    for name in names:
        if name.parts[0] == "tests" and name.match("test_*.py") and first.setdefault(name.name, name) != name:
            yield f"{name}: there is a {first[name.name]} already; pytest takes them for one module"


def version_findings() -> c.Iterator[str]:
    """Where the same version or range is written twice and differs."""
    galaxy = load(tree.ROOT / "galaxy.yml")
    wanted = {entry["name"]: entry["version"] for entry in load(tree.ROOT / "requirements.yml")["collections"]}
    if wanted != galaxy["dependencies"]:
        yield f"requirements.yml: {wanted} differs from the dependencies in galaxy.yml, {galaxy['dependencies']}"
    for name in tree.project_files("plugins/module_utils"):
        for found in re.findall(
            r'^(?:COLLECTION_)?VERSION(?:: \S+)? = "([^"]+)"', (tree.ROOT / name).read_text(encoding="utf-8"), re.MULTILINE
        ):
            if found != galaxy["version"]:
                yield f"{name}: version {found}, galaxy.yml has {galaxy['version']}"
    yield from pipeline_findings(galaxy["version"])


def pipeline_findings(version: str) -> c.Iterator[str]:
    """Where the pipeline's samples and documentation name another release than each other, or one before this one.

    Between two releases they are ahead: what they include is not in the last one.
    """
    names = [name for part in PIPELINE for name in tree.project_files(part)]
    found = {(name, release) for name in names for release in RELEASE.findall((tree.ROOT / name).read_text(encoding="utf-8"))}
    if len(releases := {release for _name, release in found}) > 1:
        yield from (f"{name}: names release {release}, and others of the pipeline's files another" for name, release in sorted(found))
    for release in releases:
        if [int(part) for part in release.split(".")] < [int(part) for part in version.split(".")]:
            yield f"{', '.join(PIPELINE)}: release {release} is older than galaxy.yml's {version}"


def main() -> int:
    """Print the findings; 1 if there are any."""
    findings = list(version_findings())
    names = list(tree.project_files())
    findings.extend(name_findings(names))
    for name in names:
        findings.extend(text_findings(name))
    for role in sorted(path for path in (tree.ROOT / "roles").iterdir() if path.is_dir()):
        findings.extend(role_findings(role))
    print("\n".join(findings) or "tree: no findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
