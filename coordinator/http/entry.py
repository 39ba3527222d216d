"""Who is let in: finds out for each request who asks, by its headers and its connection.

In this order: `Authorization` (a bearer token, or over TLS a password), the cookie of a log-in, the
certificate of the connection. Whoever shows none of these gets 401; a wrong one is no better. What
came of it is told to the audit, with the reason that the asker never hears.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import trio

from coordinator.group.core import Now
from coordinator.http.cookies import cookie_line, cookie_of
from coordinator.http.routes import NotKnown, Refused
from coordinator.http.viewer import Connection, FindOut, Viewer
from coordinator.security.accounts import Account, Accounts, NoAccount, basic, by_certificate
from coordinator.server.attempts import Attempts, TooManyAttempts
from coordinator.server.authorization import Access, Authorizer
from coordinator.server.throttles import Throttles
from protocol.acls import ANONYMOUS

ACCESSES_MAX: Final = 1_000

# What of a page's request a browser would show its own dialog for is not offered: Basic.
_CHALLENGE: Final = {"www-authenticate": 'Bearer realm="group-coordinator"'}
_FAILED: Final = "this says of nobody who may come in"


Audit = Callable[..., None]  # Event, peer, and more by name.
RunInThread = Callable[[Callable[[], Account]], Awaitable[Account]]


class Entry:
    """The one door of all HTTP listeners."""

    def __init__(
        self,
        accounts: Accounts,
        authorizer: Authorizer,
        *,
        now: Callable[[], Now],
        audit: Audit,
        throttles: Throttles,
        attempts: Attempts,
        is_ready: Callable[[], bool] = lambda: True,
        run_in_thread: RunInThread | None = None,
    ) -> None:
        """Take what knows people and rules.

        Args:
            accounts: Knows people.
            authorizer: Knows what they may.
            now: Returns the time.
            audit: Is told of what is refused, and of the log-ins of the page.
            throttles: What clients take, by principal, and who owes something.
            attempts: What failed, by address.
            is_ready: Says whether users and rules are loaded; until then nobody is known.
            run_in_thread: Compares a password; by default one at a time, in a thread.
        """
        self.accounts = accounts
        self._authorizer = authorizer
        self.now = now
        self.audit = audit
        self._throttles = throttles
        self._attempts = attempts
        self._is_ready = is_ready
        self._run_in_thread = run_in_thread or partial(
            trio.to_thread.run_sync, limiter=trio.CapacityLimiter(1)
        )
        self._accesses: dict[tuple[str, str], Access] = {}

    def viewer(self, headers: Mapping[str, str], connection: Connection) -> Viewer | FindOut:
        """Return who asks, or what finds that out.

        Raises:
            Refused: Nobody who may come in.
        """
        self._check_ready()
        said = headers.get("authorization")
        if said is not None:
            scheme, _, rest = said.partition(" ")
            if scheme.lower() == "bearer":
                return self._viewer(self.by_token(rest.strip(), connection), connection)
            if scheme.lower() == "basic":
                return partial(self._by_basic, rest.strip(), connection)
            raise NotKnown("Authorization is neither Bearer nor Basic", headers=_CHALLENGE)
        secret = cookie_of(headers, is_tls=connection.is_tls)
        if secret is not None:
            now = self.now()
            try:
                account = self.accounts.visit(secret, now.mono_ms, now.wall_ms)
            except NoAccount as exc:
                if connection.principal == ANONYMOUS:
                    raise self._over(exc, connection) from None
            else:
                return self._viewer(account, connection, secret)
        certified = by_certificate(connection.principal, connection.ends_wall_ms)
        if connection.principal != ANONYMOUS and certified.holds(self.now().wall_ms):
            return self._viewer(certified, connection)
        raise NotKnown("log in, or send a bearer token", headers=_CHALLENGE)

    def by_token(self, token: str, connection: Connection) -> Account:
        """Return whose token it is. Raises Refused."""
        self._begin(connection)
        try:
            account = self.accounts.by_token(token, self.now().wall_ms)
        except NoAccount as exc:
            raise self._refused(exc, connection, "token") from None
        self._attempts.succeeded(connection.peer)
        return account

    async def by_password(self, name: str, password: str, connection: Connection) -> Account:
        """Return whose password it is. Raises Refused."""
        if not connection.is_tls:
            raise Refused(403, "a password is taken over TLS only (https); use a token")
        if not self.accounts.takes_passwords:
            raise Refused(403, "no passwords are taken here (sasl.enabled.mechanisms); use a token")
        self._begin(connection)
        try:
            account = await self._run_in_thread(self.accounts.password_check(name, password))
        except NoAccount as exc:
            raise self._refused(exc, connection, "password") from None
        self._attempts.succeeded(connection.peer)
        return account

    async def _by_basic(self, text: str, connection: Connection) -> Viewer:
        try:
            name, password = basic(text)
        except NoAccount as exc:
            self._begin(connection)
            raise self._refused(exc, connection, "password") from None
        account = await self.by_password(name, password, connection)
        return self._viewer(account, connection)

    def _viewer(
        self, account: Account, connection: Connection, secret: str | None = None
    ) -> Viewer:
        def is_known() -> bool:
            if account.way == "password" and not self._is_ready():
                return True  # Else nobody would have a password.
            now = self.now()
            if secret is None:
                return account.holds(now.wall_ms)
            try:  # Whoever follows events is using his log-in by that.
                self.accounts.visit(secret, now.mono_ms, now.wall_ms)
            except NoAccount:
                return False
            return True

        way = account.way if secret is None else "cookie"
        access = self._access(account.principal, connection.peer)
        return Viewer(account.principal, way, access, is_known, self._is_ready)

    def _access(self, principal: str, host: str) -> Access:
        key = (principal, host)
        found = self._accesses.pop(key, None) or self._authorizer.access(principal, host)
        self._accesses[key] = found
        if len(self._accesses) > ACCESSES_MAX:
            del self._accesses[next(iter(self._accesses))]
        return found

    def check_quota(self, viewer: Viewer) -> None:
        """Let *viewer* wait if its principal owes something for what it has asked.

        Raises:
            Refused: It does; nothing of it is answered until then.
        """
        assert viewer.principal is not None
        wait_ms = self._throttles.of(viewer.principal).wait_over_http_ms()
        if wait_ms:
            text = f"{viewer.principal} has taken more than its quotas allow"
            raise Refused(429, text, retry_after_s=-(-wait_ms // 1000))

    def handled(self, viewer: Viewer, size_bytes: int, spent_s: float) -> None:
        """Count a request of *viewer*: the bytes of its answer, and the time it took to make it."""
        assert viewer.principal is not None
        throttle = self._throttles.of(viewer.principal)
        throttle.take_over_http(size_bytes, int(spent_s * 1_000_000))

    def _check_ready(self) -> None:
        # To be called a stranger would end a program that only came too early.
        if not self._is_ready():
            raise Refused(503, "users and rules of access are being loaded", retry_after_s=1)

    def _begin(self, connection: Connection) -> None:
        self._check_ready()
        try:
            self._attempts.begin(connection.peer, self.now().mono_ms)
        except TooManyAttempts as exc:
            raise Refused(429, str(exc), retry_after_s=-(-exc.wait_ms // 1000)) from None

    def _refused(self, exc: NoAccount, connection: Connection, mechanism: str) -> Refused:
        self._attempts.failed(connection.peer, self.now().mono_ms)
        self._tell_refused(exc, connection, mechanism)
        return Refused(401, _FAILED, headers=_CHALLENGE)

    def _over(self, exc: NoAccount, connection: Connection) -> Refused:
        self._tell_refused(exc, connection, "cookie")
        gone = cookie_line("", is_tls=connection.is_tls, is_over=True)
        detail = "the log-in has ended; log in again"
        return Refused(401, detail, headers={**_CHALLENGE, "set-cookie": gone})

    def _tell_refused(self, exc: NoAccount, connection: Connection, mechanism: str) -> None:
        self.audit(
            "login.refused",
            connection.peer,
            principal=connection.principal,
            mechanism=mechanism,
            reason=str(exc),
        )
