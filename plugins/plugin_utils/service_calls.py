# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A call to a service in the languages of those who call: curl, Python, Node, Go. Pure; the key is always the caller's own variable."""

from __future__ import annotations

import json
import shlex
import typing as t
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.plugin_utils import speech

Data = Mapping[str, t.Any]

#: Environment variable from which every example takes the key.
KEY: t.Final = "GPUOPS_KEY"
# Triton's type -> a value that JSON carries. Source: KServe's "Open Inference Protocol" (v2), tensor data.
_SAMPLES: t.Final[dict[str, t.Any]] = {"BOOL": True, "STRING": "text", "FP16": 0.0, "FP32": 0.0, "FP64": 0.0, "BF16": 0.0}


@dataclass(frozen=True)
class Call:
    """One request. ``body``: text of ``content_type``; ``file``: form field and file name of an upload, with ``form`` as further fields."""

    what: str
    method: str
    url: str
    body: str = ""
    content_type: str = ""
    file: tuple[str, str] | None = None
    form: tuple[tuple[str, str], ...] = ()
    keys: bool = True


def call_of(manifest: Data, url: str) -> Call | None:
    """The call that shows what a service does, by its runtime (manifest as ``Manifest.data()``); None for one that answers no calls."""
    runtime, keys = manifest["runtime"], manifest["route"]["keys"]
    if runtime == "batch":
        return None
    if runtime in ("vllm", "sglang", "llama-cpp"):
        name = (manifest.get("model") or {}).get("name") or manifest["service"]
        body = {"model": name, "messages": [{"role": "user", "content": "Say hello."}]}
        return Call("Chat, as OpenAI's clients do it", "POST", f"{url}/v1/chat/completions", _json(body), "application/json", keys=keys)
    if runtime == "speech":
        name = speech.name_of(manifest["speech"]) if manifest.get("speech") else manifest["service"]
        form = (("model", str(name)),)
        return Call("Speech to text", "POST", f"{url}/v1/audio/transcriptions", file=("file", "speech.wav"), form=form, keys=keys)
    if runtime == "triton" and manifest.get("triton"):
        triton = manifest["triton"]
        name = triton["model"] or manifest["service"]
        inputs = [_tensor(tensor, bool(triton["max_batch_size"])) for tensor in triton["inputs"]]
        what = "Inference by the Open Inference Protocol (KServe v2)"
        return Call(what, "POST", f"{url}/v2/models/{name}/infer", _json({"inputs": inputs}), "application/json", keys=keys)
    warm_up = manifest["rollout"]["warm_up"]
    if warm_up is not None:
        kind = warm_up["content_type"] if warm_up["body"] else ""
        return Call(
            "The request that every new version must answer", warm_up["method"], url + warm_up["path"], warm_up["body"], kind, keys=keys
        )
    if manifest["health"] is not None and manifest["health"]["port"] == manifest["route"]["port"]:
        return Call("Is it there?", "GET", url + manifest["health"]["path"], keys=keys)
    return Call("A request", "GET", f"{url}/", keys=keys)


def _tensor(tensor: Data, batched: bool) -> dict[str, t.Any]:
    shape = [1 if size < 0 else size for size in tensor["dims"]]
    count = 1
    for size in shape:
        count *= size
    data = [_SAMPLES.get(tensor["type"], 0)] * count if count <= 8 else "..."
    kind = {"STRING": "BYTES"}.get(tensor["type"], tensor["type"])
    return {"name": tensor["name"], "shape": [1, *shape] if batched else shape, "datatype": kind, "data": data}


def _json(body: t.Any) -> str:
    return json.dumps(body, ensure_ascii=False)


def examples(call: Call) -> list[tuple[str, str]]:
    """(language, text) of the call, ready to be copied."""
    return [("curl", _curl(call)), ("Python", _python(call)), ("Node", _node(call)), ("Go", _go(call))]


def _curl(call: Call) -> str:
    parts = [f"curl -fsS {'' if call.method == 'GET' else f'-X {call.method} '}{shlex.quote(call.url)}"]
    if call.keys:
        parts.append(f'-H "Authorization: Bearer ${KEY}"')
    if call.file:
        parts += [f"-F {shlex.quote(f'{name}={value}')}" for name, value in call.form]
        parts.append(f"-F {shlex.quote(f'{call.file[0]}=@{call.file[1]}')}")
    elif call.body:
        parts += [f"-H {shlex.quote(f'Content-Type: {call.content_type}')}", f"--data-raw {shlex.quote(call.body)}"]
    return " \\\n  ".join(parts)


def _headers(call: Call, key: str) -> list[tuple[str, str]]:
    """(name, expression of the language)."""
    headers = [("Authorization", key)] if call.keys else []
    return [*headers, ("Content-Type", json.dumps(call.content_type))] if call.body else headers


def _data(call: Call) -> t.Any:
    """The body as data where it is JSON, which each language writes in its own way; None where it is not."""
    if call.body and call.content_type == "application/json":
        try:
            return json.loads(call.body)
        except ValueError:
            pass
    return None


def _python(call: Call) -> str:
    key = f'"Bearer " + os.environ["{KEY}"]'
    data = _data(call)
    headers = ", ".join(f'"{name}": {value}' for name, value in _headers(call, key) if data is None or name != "Content-Type")
    lines = [
        *(["import os"] if call.keys else []),
        "import requests",
        "",
        "answer = requests.request(",
        f'    "{call.method}", {_text(call.url)},',
    ]
    if headers:
        lines.append(f"    headers={{{headers}}},")
    if call.file:
        lines.append(f"    data={{{', '.join(f'{_text(name)}: {_text(value)}' for name, value in call.form)}}},")
        lines.append(f'    files={{{_text(call.file[0])}: open({_text(call.file[1])}, "rb")}},')
    elif data is not None:
        lines.append(f"    json={data!r},")
    elif call.body:
        lines.append(f"    data={_text(call.body)}.encode(),")
    return "\n".join([*lines, "    timeout=60,", ")", "answer.raise_for_status()", "print(answer.text)"])


def _node(call: Call) -> str:
    headers = ", ".join(f'"{name}": {value}' for name, value in _headers(call, f"`Bearer ${{process.env.{KEY}}}`"))
    lines, body = [], ""
    if call.file:
        lines += ['import { openAsBlob } from "node:fs";', "", "const form = new FormData();"]
        lines += [f"form.set({_text(name)}, {_text(value)});" for name, value in call.form]
        lines.append(f"form.set({_text(call.file[0])}, await openAsBlob({_text(call.file[1])}), {_text(call.file[1])});")
        body = "form"
    elif call.body:
        body = _text(call.body) if _data(call) is None else f"JSON.stringify({_json(_data(call))})"
    lines += [f"const answer = await fetch({_text(call.url)}, {{", f'  method: "{call.method}",']
    if headers:
        lines.append(f"  headers: {{ {headers} }},")
    if body:
        lines.append(f"  body: {body},")
    return "\n".join([*lines, "});", "if (!answer.ok) throw new Error(await answer.text());", "console.log(await answer.text());"])


def _go(call: Call) -> str:
    imports = {"fmt", "io", "net/http"} | ({"os"} if call.keys or call.file else set())
    lines, body = [], "nil"
    if call.file:
        imports |= {"bytes", "mime/multipart"}
        lines += ["var body bytes.Buffer", "form := multipart.NewWriter(&body)"]
        lines += [f"form.WriteField({_text(name)}, {_text(value)})" for name, value in call.form]
        lines += [
            f"part, _ := form.CreateFormFile({_text(call.file[0])}, {_text(call.file[1])})",
            f"file, err := os.Open({_text(call.file[1])})",
        ]
        lines += ["if err != nil {", "\tpanic(err)", "}", "io.Copy(part, file)", "form.Close()"]
        body = "&body"
    elif call.body:
        imports.add("strings")
        lines.append(f"body := strings.NewReader({_go_text(call.body)})")
        body = "body"
    lines.append(f'request, _ := http.NewRequest("{call.method}", {_text(call.url)}, {body})')
    lines += [f'request.Header.Set("{name}", {value})' for name, value in _headers(call, f'"Bearer "+os.Getenv("{KEY}")')]
    if call.file:
        lines.append('request.Header.Set("Content-Type", form.FormDataContentType())')
    lines += ["answer, err := http.DefaultClient.Do(request)", "if err != nil {", "\tpanic(err)", "}", "defer answer.Body.Close()"]
    lines += ["text, _ := io.ReadAll(answer.Body)", "fmt.Println(answer.Status, string(text))"]
    head = ["package main", "", "import (", *(f'\t"{name}"' for name in sorted(imports)), ")", "", "func main() {"]
    return "\n".join([*head, *(f"\t{line}" for line in lines), "}"])


def _go_text(value: str) -> str:
    """A raw string where Go can have one, which reads better."""
    return f"`{value}`" if value.isprintable() and "`" not in value else _text(value)


def _text(value: str) -> str:
    """A string as Python, JavaScript and Go all read it."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
