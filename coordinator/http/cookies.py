"""The cookie of a log-in: what it is called, how it is given, taken away, and found. Pure."""

from collections.abc import Mapping
from typing import Final

# Browsers take a cookie with this prefix over TLS only, and only from the very host (RFC 6265bis).
COOKIE: Final = "group-coordinator-session"
SECURE_COOKIE: Final = f"__Host-{COOKIE}"


def cookie_name(*, is_tls: bool) -> str:
    """Return what the cookie is called."""
    return SECURE_COOKIE if is_tls else COOKIE


def cookie_line(secret: str, *, is_tls: bool, is_over: bool = False) -> str:
    """Return a ``Set-Cookie`` with *secret*, or the one that takes it away."""
    flags = "; Path=/; HttpOnly; SameSite=Strict"
    if is_tls:
        flags += "; Secure"
    if is_over:
        flags += "; Max-Age=0"
    return f"{cookie_name(is_tls=is_tls)}={secret}{flags}"


def cookie_of(headers: Mapping[str, str], *, is_tls: bool) -> str | None:
    """Return the secret in a request's cookies, None if there is none."""
    wanted = cookie_name(is_tls=is_tls)
    for pair in headers.get("cookie", "").replace(",", ";").split(";"):
        name, equals, value = pair.strip().partition("=")
        if equals and name == wanted:
            return value
    return None
