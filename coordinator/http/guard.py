"""Who may read over HTTP: nobody whom a page of another site has sent. Pure.

The danger is a browser of somebody who can reach this port, or has logged in, on a page of somebody
who can't. Three things stand against it. A name that was bound to this address by
somebody else (DNS rebinding) is none of the *allowed*. A browser says where a request comes from
(`Sec-Fetch-Site`, `Origin`), and what comes from elsewhere is refused. And where it doesn't say,
there are no CORS headers, so what is answered can't be read.

What changes something, a log-in and a log-out, is a POST, and that must say that it comes from a
page of this listener; to say nothing is not enough. It must be JSON, too, which no form sends.
"""

import ipaddress
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from coordinator.http.routes import POST, Refused, Route

PAGE: Final = "/"

SECURITY_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "x-content-type-options": "nosniff",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-frame-options": "DENY",
        "content-security-policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'"
        ),
    }
)


def refusal(
    headers: Mapping[str, str], allowed: Collection[str], route: Route, *, is_tls: bool = False
) -> Refused | None:
    """Return why a request with *headers* gets no answer of *route*, or None.

    Args:
        headers: By lower-case name.
        allowed: Names that may be asked for, in lower case; `*.` in front stands for all below.
        route: What it asks for: the page alone may be linked to.
        is_tls: Whether it came over TLS.
    """
    asked = headers.get("host")
    # Only HTTP/1.0 may come without; no browser does.
    if asked is not None:
        host = host_of(asked)
        if host is None:
            return Refused(400, "the Host header is not a host and a port")
        if not _may_be_asked_for(host, allowed):
            return Refused(
                421,
                f"{host} is none of the names that this listener answers to: http.allowed.hosts",
            )
    site = headers.get("sec-fetch-site", "none")
    if site not in {"none", "same-origin"}:
        is_link = (
            headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
            and route.template == PAGE
        )
        if not is_link:
            return Refused(403, f"it comes from another site (Sec-Fetch-Site: {site})")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != (asked or "").lower():
        return Refused(403, "it comes from another site (Origin)")
    return _refusal_of_post(headers, is_tls=is_tls) if route.method == POST else None


def _refusal_of_post(headers: Mapping[str, str], *, is_tls: bool) -> Refused | None:
    origin = headers.get("origin")
    # A proxy in front may speak TLS where we don't, but never the other way round.
    is_downgraded = is_tls and origin is not None and not origin.startswith("https://")
    if is_downgraded or (origin is None and headers.get("sec-fetch-site") != "same-origin"):
        return Refused(403, "it doesn't say that it comes from a page of this listener (Origin)")
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        return Refused(415, "what is posted must be application/json")
    return None


def host_of(text: str) -> str | None:
    """Return the host in *text*, a Host header, in lower case and without port; None for none."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not _is_port(rest) or not _is_address(host):
            return None
        return host.lower()
    host, colon, port = text.partition(":")
    if not host or not host.isascii() or not _is_port(colon + port):
        return None
    if not all(char.isalnum() or char in "-._" for char in host):
        return None
    return host.lower().removesuffix(".")


def _is_port(text: str) -> bool:
    return not text or (text[0] == ":" and (len(text) == 1 or (text[1:].isdecimal())))


def _may_be_asked_for(host: str, allowed: Collection[str]) -> bool:
    if host == "localhost" or host in allowed or _is_address(host):
        return True
    # Each name above it, the nearest first.
    parts = host.split(".")
    return any(f"*.{'.'.join(parts[n:])}" in allowed for n in range(1, len(parts)))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
