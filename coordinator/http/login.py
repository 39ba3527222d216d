"""The page's log-in and log-out, and who one is: the only requests that change anything here.

Another site can't make a browser send them: they are JSON, which no form is and which needs a
permission that nobody is given (CORS), and must come from a page of this very listener (`guard`).
"""

from typing import TYPE_CHECKING, Final

import msgspec

from coordinator.http import views
from coordinator.http.cookies import cookie_line, cookie_of
from coordinator.http.openapi import Operation, Query
from coordinator.http.routes import Answer, HttpRequest, Refused

if TYPE_CHECKING:
    from coordinator.http.entry import Entry

_HEADERS: Final = {"cache-control": "no-store"}


async def session(request: HttpRequest, _query: Query) -> Answer:
    """Answer /api/v1/session."""
    viewer = request.viewer
    return _shown(views.Session(viewer.principal, viewer.way or None))


def operations(entry: "Entry | None") -> tuple[Operation, ...]:
    """Return what is asked of who one is; without *entry*, everybody is nobody in particular."""
    asked = Operation("/api/v1/session", "Who asks", session, views.Session)
    if entry is None:
        return (asked,)

    async def log_in(request: HttpRequest, _query: Query) -> Answer:
        said, connection = _said(request), request.connection
        if said.token:
            account = entry.by_token(said.token, connection)
        else:
            account = await entry.by_password(said.name, said.password, connection)
        _end(request)
        secret = entry.accounts.begin_visit(account, entry.now().mono_ms)
        entry.audit("http.logged_in", connection.peer, principal=account.principal, by=account.way)
        cookie = cookie_line(secret, is_tls=connection.is_tls)
        return _shown(views.Session(account.principal, "cookie"), cookie)

    async def log_out(request: HttpRequest, _query: Query) -> Answer:
        _end(request)
        cookie = cookie_line("", is_tls=request.connection.is_tls, is_over=True)
        return _shown(views.Session(None, None), cookie)

    def _end(request: HttpRequest) -> None:
        connection = request.connection
        secret = cookie_of(request.headers, is_tls=connection.is_tls)
        account = None if secret is None else entry.accounts.end_visit(secret)
        if account is not None:
            entry.audit("http.logged_out", connection.peer, principal=account.principal)

    return (
        asked,
        Operation(
            "/api/v1/login",
            "Log in: the answer has a cookie",
            log_in,
            views.Session,
            method="POST",
            takes=views.LogIn,
            is_open=True,
        ),
        Operation(
            "/api/v1/logout",
            "End the log-in of this cookie",
            log_out,
            views.Session,
            method="POST",
            is_open=True,
        ),
    )


def _said(request: HttpRequest) -> views.LogIn:
    try:
        return msgspec.json.decode(request.body, type=views.LogIn)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # Their texts quote it.
        raise Refused(400, "the body is no JSON with a name and a password, or a token") from None


def _shown(shown: views.Session, cookie: str | None = None) -> Answer:
    headers = _HEADERS if cookie is None else {**_HEADERS, "set-cookie": cookie}
    return Answer(body=(views.encode(shown),), headers=headers)
