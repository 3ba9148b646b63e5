# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Routes as the files of HAProxy (2.6 to 3.x): configuration, maps and pages. Pure; the same routes give the same bytes.

Keys reach the files as SHA-256 only. A request's key is hashed by HAProxy, looked up, and taken off before the request is passed on.
"""

from __future__ import annotations

import hashlib
import json
import typing as t
from collections.abc import Mapping, Sequence

from ansible_collections.gpuops.fleet.plugins.plugin_utils.gateway import OWN_PATH, Route, Settings

#: Where HAProxy shows which files it was started with.
DESCRIPTION: t.Final = "gpuops.fleet "
_UNKNOWN = "sha256:" + "0" * 64
#: Room for one page and for the headers of one request, in bytes.
BUFFER: t.Final = 32768
# Seconds over which requests are counted; rates are by the minute.
_WINDOW = 60

# status -> (type, message, more headers); the words that callers read.
_ERRORS: t.Final[dict[int, tuple[str, str, tuple[tuple[str, str], ...]]]] = {
    400: ("bad_request", "The request is not valid HTTP, or its path leads upwards.", ()),
    401: ("no_key", "An API key is needed: send it as 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'.", (("WWW-Authenticate", "Bearer"),)),
    403: ("key_not_allowed", "This API key is not known, or its team may not use this service.", ()),
    404: ("no_such_service", "No service has this address.", ()),
    405: ("method_not_allowed", "The gateway does not take this method.", ()),
    408: ("request_timeout", "The request did not come in time.", ()),
    413: ("too_large", "The request is too large.", ()),
    429: ("rate_limit", "The team's limit of requests a minute is reached.", (("Retry-After", str(_WINDOW)),)),
    500: ("gateway_error", "The gateway failed.", ()),
    502: ("bad_gateway", "The service broke off or answered nonsense.", ()),
    503: ("no_replica", "No replica of this service answers now.", (("Retry-After", "5"),)),
    504: ("timeout", "The service did not answer in time.", ()),
}

# Requests that may be sent again: what they do, they do once.
_IDEMPOTENT = "GET HEAD OPTIONS"


def files(routes: Sequence[Route], hashes: Mapping[str, str], pages: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Name below ``settings.directory`` -> text of every file but the configuration. ``pages``: service, or '' for the index -> HTML."""
    return {
        "hosts.map": _map((f"{route.host}{route.path or ''}/", route.service) for route in routes if route.host),
        "paths.map": _map((f"{route.path}/", route.service) for route in routes if not route.host),
        "keys.map": _map(hashes.items()),
        "rates.map": _map((team, str(rate)) for team, rate in settings.team_rates.items()),
        **{f"pages/{name or '_index'}.html": text for name, text in pages.items()},
    }


def _map(entries: t.Iterable[tuple[str, str]]) -> str:
    return "".join(f"{key} {value}\n" for key, value in sorted(entries))


def config(routes: Sequence[Route], hashes: Mapping[str, str], pages: Mapping[str, str], settings: Settings) -> str:
    """The configuration. Its ``description`` is the digest of this text and of all files, by which a host knows what HAProxy runs with."""
    lines = [
        "# Written by gpuops.fleet (playbook gateway); change manifests and settings, not this file.",
        *_global(settings),
        *_defaults(),
        *_frontend(pages, settings),
        *_metrics(settings),
        *_tables(),
        *(line for route in routes for line in _backend(route, settings)),
    ]
    text = "\n".join(lines) + "\n"
    everything = {"": text, **files(routes, hashes, pages, settings)}
    digest = hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()
    return text.replace(_UNKNOWN, f"sha256:{digest}", 1)


def _global(settings: Settings) -> list[str]:
    lines = [
        "global",
        f'    description "{DESCRIPTION}{_UNKNOWN}"',
        f"    log {settings.log}",
        f"    stats socket {settings.socket} mode 600 level admin expose-fd listeners",
        f"    server-state-file {settings.state_file}",
        f"    maxconn {settings.maxconn}",
        f"    hard-stop-after {settings.hard_stop_after}s",
        f"    tune.bufsize {BUFFER}",
    ]
    lines += [f"    {word} {value}" for word in ("user", "group", "chroot") if (value := getattr(settings, word))]
    if settings.certificate:
        # Mozilla's "intermediate" profile, version 5.7: TLS 1.2 with forward secrecy and authenticated encryption only, or TLS 1.3.
        lines += [
            "    ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets prefer-client-ciphers",
            "    ssl-default-bind-ciphersuites TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256",
            "    ssl-default-bind-ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:"
            "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305",
        ]
    return [*lines, ""]


def error_body(status: int) -> str:
    """What the gateway itself answers, in the form that clients of OpenAI's interface read."""
    kind, message, _headers = _ERRORS[status]
    return json.dumps({"error": {"code": status, "type": kind, "message": message}})


def _defaults() -> list[str]:
    lines = [
        "defaults",
        "    mode http",
        "    log global",
        "    option dontlognull",
        # A connection that a service closes at the moment in which the next request is sent on it would lose that request.
        "    option http-server-close",
        # A client's idle connection that is closed at a reload, at the moment in which its next request is under way, would lose that
        # request: it is answered first, with "Connection: close". Seen under load, once in 7,000 requests.
        "    option idle-close-on-response",
        "    option redispatch 1",
        "    retries 3",
        "    retry-on conn-failure empty-response",
        "    timeout connect 5s",
        "    timeout client 60s",
        "    timeout server 60s",
        "    timeout queue 30s",
        "    timeout http-request 10s",
        "    timeout http-keep-alive 60s",
        "    timeout tunnel 1h",
        "    load-server-state-from-file global",
    ]
    for status, (_kind, _message, headers) in _ERRORS.items():
        body = error_body(status).replace("'", "'\\''")
        more = "".join(f" hdr {name} {value}" for name, value in headers)
        lines.append(f"    http-error status {status} content-type application/json string '{body}'{more}")
    return [*lines, ""]


def _frontend(pages: Mapping[str, str], settings: Settings) -> list[str]:
    where = settings.directory
    lines = ["frontend fleet", f"    bind {settings.address}:{settings.http_port}"]
    if settings.certificate:
        lines.append(f"    bind {settings.address}:{settings.https_port} ssl crt {settings.certificate} alpn h2,http/1.1")
    lines += [
        "    unique-id-format %[uuid()]",
        "    unique-id-header X-Request-Id",
        # Neither headers nor the query are logged: either may hold a key.
        '    log-format \'{"at":"%[date,utime(%Y-%m-%dT%H:%M:%SZ)]","id":"%ID","client":"%ci","service":"%[var(txn.service)]",'
        '"team":"%[var(txn.team)]","server":"%s","method":"%HM","path":"%[var(txn.path),bytes(0,256),json(utf8s)]","status":%ST,'
        '"bytes":%B,"ms":%Ta,"first_byte_ms":%Tr,"end":"%ts"}\'',
        "    http-request set-var(txn.path) path",
        # A request without a Host (HTTP/1.0) has an empty one.
        r"    http-request set-var(txn.host) 'req.fhdr(host),field(1,:),lower,regsub(\.$,)'",
    ]
    if settings.certificate:
        port = "" if settings.https_port == 443 else f":{settings.https_port}"
        lines.append(f"    http-request redirect location https://%[var(txn.host)]{port}%[pathq] code 308 unless {{ ssl_fc }}")
        lines.append("    http-after-response set-header Strict-Transport-Security max-age=31536000 if { ssl_fc }")
    lines += [
        "    http-after-response set-header X-Request-Id %[unique-id]",
        "    http-request deny status 405 default-errorfiles if { method CONNECT TRACE }",
        r"    http-request deny status 400 default-errorfiles if { path,lower -m reg '(^|[/\\]|%2f|%5c)(\.|%2e){1,2}([/\\]|%2f|%5c|$)' }",
        "    http-request deny status 400 default-errorfiles unless { path -m beg / }",
        # What only the gateway may say. WSGI takes X_Gpuops_Team for the same header.
        "    http-request del-header '^x[-_]gpuops[-_]' -m reg",
        "    http-request del-header '^x[-_]forwarded[-_]' -m reg",
        "    http-request del-header '^x[-_]request[-_]id$' -m reg",
        "    http-request del-header forwarded",
        "    http-request del-header proxy",
        # h2c would tunnel requests past these rules.
        "    http-request del-header upgrade unless { req.fhdr(upgrade) -i websocket }",
        "    http-request del-header http2-settings",
        "    http-request set-header X-Forwarded-For %[src]",
        "    http-request set-header X-Forwarded-Proto %[ssl_fc,iif(https,http)]",
        "    http-request set-header X-Forwarded-Host %[var(txn.host)]",
        "    http-request set-var(txn.key) req.fhdr(x-api-key),sha2(256),hex,lower if { req.fhdr(x-api-key) -m found }",
        "    http-request set-var(txn.key) http_auth_bearer,sha2(256),hex,lower if { http_auth_bearer -m found }",
        f"    http-request set-var(txn.team) var(txn.key),map_str({where}/keys.map) if {{ var(txn.key) -m found }}",
        "    http-request set-var(txn.place) var(txn.host),concat(,txn.path,/)",
        f"    http-request set-var(txn.service) var(txn.place),map_beg({where}/hosts.map)",
        f"    http-request set-var(txn.service) var(txn.path),concat(/),map_beg({where}/paths.map) unless {{ var(txn.service) -m found }}",
        *_pages(pages, where),
        "    http-request deny status 404 default-errorfiles unless { var(txn.service) -m found }",
        "    use_backend svc_%[var(txn.service)]",
        "",
    ]
    return lines


_PAGE_HEADERS = (
    "hdr Cache-Control no-cache hdr X-Content-Type-Options nosniff hdr Referrer-Policy no-referrer "
    "hdr Content-Security-Policy "
    "\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\""
)


def _pages(pages: Mapping[str, str], where: str) -> list[str]:
    lines = []
    for name in sorted(pages):
        address = f"{OWN_PATH}/{name}/" if name else f"{OWN_PATH}/"
        reply = f'return status 200 content-type "text/html; charset=utf-8" lf-file {where}/pages/{name or "_index"}.html {_PAGE_HEADERS}'
        lines.append(f"    http-request {reply} if {{ path {address} {address[:-1]} }} {{ method GET HEAD }}")
    lines.append(f"    http-request deny status 404 default-errorfiles if {{ path -m beg {OWN_PATH}/ }} or {{ path {OWN_PATH} }}")
    return lines


def _metrics(settings: Settings) -> list[str]:
    if not settings.metrics:
        return []
    return [
        "frontend fleet_metrics",
        f"    bind {settings.metrics}",
        "    no log",
        "    http-request use-service prometheus-exporter if { path /metrics }",
        "    http-request deny status 404 default-errorfiles",
        "",
    ]


def _tables() -> list[str]:
    """Requests that were let in, by service and team (or client), and by team."""
    lines = []
    for name, length in (("rate_service", 130), ("rate_team", 64)):
        lines += [f"backend {name}", f"    stick-table type string len {length} size 100k expire 2m store gpc0,gpc0_rate({_WINDOW}s)", ""]
    return lines


def _backend(route: Route, settings: Settings) -> list[str]:
    lines = [f"backend {route.backend}", "    balance leastconn"]
    if route.keys:
        lines += [
            "    http-request deny status 401 default-errorfiles unless { var(txn.key) -m found }",
            *(f"    acl allowed var(txn.team) -m str {' '.join(some)}" for some in _parts(route.teams)),
            "    http-request deny status 403 default-errorfiles unless allowed",
            "    http-request del-header authorization",
            "    http-request set-header X-Gpuops-Team %[var(txn.team)]",
            "    http-request set-var(txn.caller) var(txn.team)",
        ]
    else:
        # A service may have keys of its own; a key of the fleet is not for it, though.
        lines += [
            "    http-request del-header authorization if { var(txn.team) -m found }",
            "    http-request set-var(txn.caller) src",
        ]
    lines.append("    http-request del-header '^x[-_]api[-_]key$' -m reg")
    lines += _limits(route, settings)
    if route.path:
        pattern = route.path.replace(".", r"\.")
        lines += [
            f"    http-request set-header X-Forwarded-Prefix {route.path}",
            rf"    http-request replace-path '^{pattern}/?(.*)$' '/\1'",
        ]
    lines += [
        f"    http-request disable-l7-retry unless {{ method {_IDEMPOTENT} }}",
        f"    timeout server {route.timeout}s",
        f"    timeout tunnel {max(route.timeout, 3600)}s",
    ]
    if route.check is not None:
        lines += [
            "    option httpchk",
            f"    timeout check {route.check_timeout}s",
            f"    http-check send meth GET uri '{route.check.replace(chr(39), '%27')}' ver HTTP/1.1 hdr Host {route.service}",
            "    http-check expect status 200-399",
        ]
    lines.append("    default-server check inter 2s fastinter 500ms downinter 1s fall 3 rise 2 init-addr libc,none")
    lines += [f"    server {server.name} {server.place}" for server in route.servers]
    # The name resolves nowhere: it lets HAProxy keep, over a reload, the address that a rollout has set.
    lines += [f"    server {name} surge.invalid:1 init-addr last,127.0.0.1 disabled" for name in route.surges]
    return [*lines, ""]


def _parts(words: Sequence[str]) -> t.Iterator[Sequence[str]]:
    """HAProxy takes 64 words a line, and refuses all of its files for one that has more. Lines of one acl are joined by 'or'."""
    return (words[at : at + 32] for at in range(0, len(words), 32))


def _limits(route: Route, settings: Settings) -> list[str]:
    lines = [f"    http-request track-sc0 str({route.service}/),concat(,txn.caller) table rate_service"]
    if route.rate:
        lines.append(f"    http-request deny status 429 default-errorfiles if {{ sc0_gpc0_rate ge {route.rate} }}")
    if route.keys:
        lines += [
            "    http-request track-sc1 var(txn.team) table rate_team",
            f"    http-request set-var(txn.limit) var(txn.team),map_str_int({settings.directory}/rates.map,0)",
            "    http-request deny status 429 default-errorfiles if { var(txn.limit) -m int gt 0 } { sc1_gpc0_rate,sub(txn.limit) ge 0 }",
            "    http-request sc-inc-gpc0(1)",
        ]
    # Only what is let in counts: whoever asks too often gets in again as soon as the minute allows.
    return [*lines, "    http-request sc-inc-gpc0(0)"]
