# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""YAML with lines: what is read, what is refused, and on which line."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import located
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import MOST_TOLD, FleetErrors, Located, field_name, raise_all, read_yaml


def test_values_are_those_of_yaml_1_2() -> None:
    text = (
        "a: 8.03e9\nb: off\nc: 010\nd: 1:30\ne: 2026-01-01\nf: true\ng: ~\nh: -3\ni: .5\nj: '1'\nk:\nl: <<\nm: [1.0, FALSE, null]\n"
        "n: 99999999999999999999999\no: 0x1f\np: .inf\nq: +7\n"
    )
    assert read_yaml(text, "f").data == {
        "a": 8030000000.0,
        "b": "off",
        "c": "010",
        "d": "1:30",
        "e": "2026-01-01",
        "f": True,
        "g": None,
        "h": -3,
        "i": 0.5,
        "j": "1",
        "k": None,
        "l": "<<",
        "m": [1.0, False, None],
        "n": 1e23,
        "o": "0x1f",
        "p": ".inf",
        "q": 7,
    }
    assert isinstance(read_yaml("a: 1.0\n", "f").data["a"], float)
    assert isinstance(read_yaml("a: 99999999999999999999\n", "f").data["a"], int)


def test_keys_are_text_as_written() -> None:
    assert read_yaml("off: 1\ny: 2\n1: 3\n1.0: 4\nnull: 5\n~: 6\n010: 7\n", "f").data == {
        "off": 1,
        "y": 2,
        "1": 3,
        "1.0": 4,
        "null": 5,
        "~": 6,
        "010": 7,
    }


def test_every_path_has_the_line_of_its_key_or_item() -> None:
    read = read_yaml("# a comment\na:\n  b:\n    - 1\n    - c: 2\n      d: {e: 3}\nf: [4,\n  5]\n", "f")
    assert read.lines == {
        (): 2,
        ("a",): 2,
        ("a", "b"): 3,
        ("a", "b", 0): 4,
        ("a", "b", 1): 5,
        ("a", "b", 1, "c"): 5,
        ("a", "b", 1, "d"): 6,
        ("a", "b", 1, "d", "e"): 6,
        ("f",): 7,
        ("f", 0): 7,
        ("f", 1): 8,
    }


def test_what_was_not_written_has_the_line_of_what_is_around_it() -> None:
    read = read_yaml("a: 1\nb:\n  c: 1\n", "f")
    assert (read.line(("b", "x", "y")), read.line(("z",)), read.line(("b", "c"))) == (2, 1, 3)
    assert Located({}, "f").line(("a",)) is None


def test_an_error_names_file_line_field_wrong_and_right() -> None:
    read = read_yaml("a: 1\nb:\n  c: 1\n", "m/x.yml")
    assert str(read.error(("b", "c"), "wrong", "right")) == "m/x.yml:3: b.c: wrong; right"
    assert str(read.error((), "wrong")) == "m/x.yml:1: wrong"


def test_field_names_are_as_people_write_them() -> None:
    assert field_name(("gpu", "models", 0, "x")) == "gpu.models[0].x"
    assert field_name(()) == ""


def test_aliases_stand_for_what_they_name() -> None:
    assert read_yaml("a: &x {b: 1}\nc: *x\n", "f").data == {"a": {"b": 1}, "c": {"b": 1}}


REFUSED = {
    "": "f:1: the file is empty; write a mapping, one 'field: value' a line",
    "# only a comment\n": "f:1: the file is empty; write a mapping, one 'field: value' a line",
    "- a\n": "f:1: expected a mapping, found a list; write one 'field: value' a line",
    "\n\nwords\n": "f:3: expected a mapping, found plain text; write one 'field: value' a line",
    "a: 1\nb: 2\na: 3\n": "f:3: a: written twice, first on line 1; keep one of them",
    "a: {b: 1, b: 2}\n": "f:1: a.b: written twice, first on line 1; keep one of them",
    "a:\n\tb: 1\n": "f:2: not YAML: found character '\\t' that cannot start any token; indent with spaces, never with tabs",
    "a: 1\n---\nb: 1\n": "f:2: more than one YAML document; write one document a file, without a second '---'",
    "a: 1\nb: \x00\n": "f:2: not a text file: it has control characters; write YAML as UTF-8 text",
    "a: b: c\n": "f:1: not YAML: mapping values are not allowed here; check indentation, quotes and the space after each ':'",
    "a: 'b\n": "f:1: not YAML: a quote is opened and never closed; close it",
    "a: 1\nb: [c,\nd: 2\n": "f:2: not YAML: '[' is opened and never closed; close it",
    "a: 1\nb: {c: 1\n\nd: 2\n": "f:2: not YAML: '{' is opened and never closed; close it",
    "a: 1\n<<<<<<< HEAD\nb: 1\n=======\nb: 2\n>>>>>>> other\n": "f:2: a merge that was not finished; keep what is right of both sides, "
    "without the lines of '<', '=' and '>'; of plans: plan again",
    "a: !vault x\n": "f:1: a: the tag !vault is not read here; write a plain value",
    "a: !x {b: 1}\n": "f:1: a: the tag !x is not read here; write a plain value",
    "a: !x [b]\n": "f:1: a: the tag !x is not read here; write a plain value",
    "a: !!binary aGk=\n": "f:1: a: the tag !!binary is not read here; write a plain value",
    "a: !!int x\n": "f:1: a: the tag !!int is not read here; write a plain value",
    "a: !!bool x\n": "f:1: a: the tag !!bool is not read here; write a plain value",
    "a: 1\nb: {<<: 1}\n": "f:2: b: merge keys ('<<') are not read; write the fields out",
    "? [1]\n: 2\n": "f:1: a key must be plain text; write 'field: value'",
    "a: -1e999\n": "f:1: a: the number -1e999 is too large; write a smaller number",
    "a: &x {b: *x}\n": "f:1: a.b.b: nested too deep, or an alias that contains itself; use fewer than 40 levels",
    "\n" + "[" * 5000: "f:2: brackets are nested too deep; close what was opened",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_one_plain_mapping_is_refused(text: str) -> None:
    with pytest.raises(FleetError) as caught:
        read_yaml(text, "f")
    assert str(caught.value) == REFUSED[text]


def test_nested_aliases_do_not_grow_into_gigabytes() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(FleetError, match="more than 200,000 values, its aliases followed; name the file that was meant"):
        read_yaml("\n".join(lines), "f")


def test_brackets_that_are_closed_are_no_nesting() -> None:
    assert read_yaml("a: [" + "[]," * 5000 + "]\n", "f").data["a"][4999] == []


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("sign", ["- ", "?  ", "-\t"])
@pytest.mark.parametrize("times", [100, 1000, 300_000])
def test_however_deep_the_end_is_a_message(fast: bool, sign: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not fast:
        monkeypatch.setattr(located, "_Fast", located._Slow)
    with pytest.raises(FleetError, match=r"^f:2: .*(nested too deep|plain text|not YAML)"):
        read_yaml("a:\n " + sign * times + "1\n", "f")


def test_a_reader_that_runs_out_of_stack_ends_in_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(located, "_Fast", located._Slow)
    with pytest.raises(FleetError, match=r"^f: nested too deep; use fewer than 40 levels$"):
        read_yaml("\n".join(" " * depth + "a:" for depth in range(1500)), "f")


def test_without_libyaml_everything_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(located, "_Fast", located._Slow)
    assert read_yaml("a: 8.03e9\noff: [1, x]\n", "f") == Located(
        {"a": 8030000000.0, "off": [1, "x"]}, "f", {(): 1, ("a",): 1, ("off",): 2, ("off", 0): 2, ("off", 1): 2}
    )


def test_one_problem_is_raised_as_itself_and_several_each_on_its_line() -> None:
    one, two, three = (
        FleetError("b", file="f", line=10),
        FleetErrors([FleetError("a", file="f", line=2), FleetError("z", file="e", line=30)]),
        FleetError("c"),
    )
    raise_all([])
    with pytest.raises(FleetError) as caught:
        raise_all(iter([one]))
    assert caught.value is one
    with pytest.raises(FleetErrors) as several:
        raise_all([one, two, three])
    assert str(several.value) == "c\ne:30: z\nf:2: a\nf:10: b"
    assert several.value.message == "c"


def test_what_is_wrong_on_many_hosts_alike_is_one_line() -> None:
    """It stands in the variables of a group."""
    hosts = [f"gpu-{number:02}" for number in range(12)]
    wrong = [FleetError("no", file=f"host {name}", field="fleet_moves", hint="yes") for name in hosts]
    one = FleetError("no", file="host gpu-03", field="fleet_ports")
    with pytest.raises(FleetError) as caught:
        raise_all([*wrong, one, FleetError("no", file="hosts.yml", line=3)])
    assert str(caught.value).splitlines() == [
        "host gpu-03: fleet_ports: no",
        "hosts gpu-00, gpu-01, gpu-02 and 9 more: fleet_moves: no; yes",
        "hosts.yml:3: no",
    ]


def test_of_very_many_problems_the_first_are_told_and_how_many_more_there_are() -> None:
    many = FleetErrors([FleetError("wrong", file="f", line=line) for line in range(1, MOST_TOLD + 6)])
    lines = str(many).split("\n")
    assert (len(lines), lines[0], lines[-1]) == (MOST_TOLD + 1, "f:1: wrong", "and 5 more of them")


def test_what_is_very_long_is_told_in_part() -> None:
    error = Located({}, "f").error(("x" * 5000,), f"unknown field '{'x' * 5000}'")
    assert len(str(error)) < 700
    assert str(error).endswith("... (5016 letters)")
