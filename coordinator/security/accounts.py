"""Who asks over HTTP: by a bearer token, a password, or the cookie of a log-in. Sans I/O.

Theory of operation
===================

Each way ends in an `Account`: a principal, and what says whether its credential still holds. A
token is looked at where it comes. A password is compared with what is kept of it (SCRAM's stored
key), which takes milliseconds of a core, so that is a step of its own, for a thread.

A log-in by the page's form becomes a visit: 128 random bits that the browser keeps as a cookie, and
the account here, in memory alone. A visit ends with its credential, after an idle time, when its
owner says so, and with the process. Kept is the hash of those bits: to look one up tells nothing
by the time that it takes.

Every failure is one answer; what it was is for the audit. As everywhere, a user that there isn't
takes the work of one that there is.
"""

import base64
import binascii
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from coordinator.security.bearer import Bearer, TokenRefused
from coordinator.security.sasl import Credential, Lookup, credential_of
from protocol.acls import user_name_error
from protocol.scram import ITERATIONS_MAX, ITERATIONS_MIN

SECRET_BYTES: Final = 16
PASSWORD_CHARS_MAX: Final = 1_024
VISITS_MAX: Final = 10_000
VISITS_OF_ONE_MAX: Final = 100


class NoAccount(Exception):
    """Nobody is known by this; the message, which quotes nothing of it, is for the audit alone."""


class Account:
    """Who somebody has shown to be.

    Attributes:
        principal: The name, for example "User:alice".
        way: How he has shown it.
    """

    def __init__(self, principal: str, way: str, holds: Callable[[int], bool]) -> None:
        """Make it; *holds* says whether the credential is in force at a time of the wall clock."""
        self.principal = principal
        self.way = way
        self.holds = holds


def by_certificate(principal: str, ends_wall_ms: int | None = None) -> Account:
    """Return the account of a connection's certificate, which is good until it ends."""
    return Account(
        principal, "certificate", lambda wall_ms: ends_wall_ms is None or wall_ms < ends_wall_ms
    )


class _Visit(NamedTuple):
    account: Account
    used_ms: int


class Accounts:
    """Everybody who can say who he is."""

    def __init__(
        self,
        *,
        bearer: Bearer | None,
        credential: Lookup,
        made_up: Lookup,
        mechanisms: Sequence[str],
        new_secret: Callable[[], bytes],
        idle_ms: int,
    ) -> None:
        """Take what knows them.

        Args:
            bearer: Knows the tokens, if any are taken.
            credential: Looks users up.
            made_up: Returns what stands for a user that there isn't.
            mechanisms: Of SCRAM, those by which passwords are checked; none: none is taken.
            new_secret: Returns `SECRET_BYTES` random bytes.
            idle_ms: How long a visit lasts that nobody uses.
        """
        self._bearer = bearer
        self._credential = credential
        self._made_up = made_up
        self._mechanisms = tuple(mechanisms)
        self._new_secret = new_secret
        self._idle_ms = idle_ms
        self._visits: OrderedDict[bytes, _Visit] = OrderedDict()  # Used least lately first.

    def __len__(self) -> int:
        """Return how many visits are known."""
        return len(self._visits)

    @property
    def takes_passwords(self) -> bool:
        """Whether anybody can log in by one."""
        return bool(self._mechanisms)

    # --- tokens -------------------------------------------------------------------------

    def by_token(self, token: str, wall_ms: int) -> Account:
        """Return whose *token* is.

        Raises:
            NoAccount: It is nobody's, or not now.
        """
        bearer = self._bearer
        if bearer is None:
            raise NoAccount("no tokens are taken here")
        try:
            found = bearer.look(token, wall_ms)
        except TokenRefused as exc:
            raise NoAccount(f"token: {exc}") from None
        looked_at = bearer.sources

        def holds(wall_ms: int) -> bool:
            nonlocal looked_at
            if found.expires_wall_ms is not None and wall_ms >= found.expires_wall_ms:
                return False
            if looked_at != bearer.sources:  # A file was replaced, maybe by one without it.
                try:
                    if bearer.look(token, wall_ms).name != found.name:
                        return False
                except TokenRefused:
                    return False
                looked_at = bearer.sources
            return True

        return Account(f"User:{found.name}", "token", holds)

    # --- passwords ----------------------------------------------------------------------

    def password_check(self, name: str, password: str) -> Callable[[], Account]:
        """Return what compares *password* with the one of user *name*: milliseconds, in a thread.

        It raises NoAccount if it is another one, or nobody's.
        """
        pairs = [
            (mechanism, self._credential(name, mechanism), self._made_up(name, mechanism))
            for mechanism in self._mechanisms
        ]

        def check() -> Account:
            # All of them in any case: the work doesn't tell what is there.
            fits = [_fits(password, *pair) for pair in pairs]
            for (mechanism, known, _), is_right in zip(pairs, fits, strict=True):
                if is_right and user_name_error(name) is None:
                    return self._by_password(name, mechanism, known)
            if any(known is not None for _, known, _ in pairs):
                raise NoAccount(f"password: not that of user {name!r}")
            raise NoAccount("password: no such user")

        return check

    def _by_password(self, name: str, mechanism: str, known: Credential | None) -> Account:
        def holds(_wall_ms: int) -> bool:
            return self._credential(name, mechanism) == known

        return Account(f"User:{name}", "password", holds)

    # --- visits -------------------------------------------------------------------------

    def begin_visit(self, account: Account, now_ms: int) -> str:
        """Return the secret of a new visit."""
        own = [key for key, visit in self._visits.items() if _same(visit.account, account)]
        if len(own) >= VISITS_OF_ONE_MAX:
            del self._visits[own[0]]
        if len(self._visits) >= VISITS_MAX:
            self._visits.popitem(last=False)
        random = self._new_secret()
        assert len(random) == SECRET_BYTES
        secret = base64.urlsafe_b64encode(random).rstrip(b"=").decode()
        self._visits[_key(secret)] = _Visit(account, now_ms)
        return secret

    def visit(self, secret: str, now_ms: int, wall_ms: int) -> Account:
        """Return whose visit it is, which is in use by that.

        Raises:
            NoAccount: There is none, or it has ended.
        """
        key = _key(secret)
        visit = self._visits.pop(key, None)
        if visit is None:
            raise NoAccount("cookie: no such log-in")
        if now_ms - visit.used_ms >= self._idle_ms:
            raise NoAccount("cookie: not used for too long")
        if not visit.account.holds(wall_ms):
            raise NoAccount("cookie: its credential has ended")
        self._visits[key] = _Visit(visit.account, now_ms)
        return visit.account

    def end_visit(self, secret: str) -> Account | None:
        """End it; return whose it was."""
        visit = self._visits.pop(_key(secret), None)
        return None if visit is None else visit.account


def only_certificates() -> Accounts:
    """Return what knows nobody, where only connections say who somebody is."""
    return Accounts(
        bearer=None,
        credential=lambda _name, _mechanism: None,
        made_up=lambda _name, _mechanism: None,
        mechanisms=(),
        new_secret=lambda: bytes(SECRET_BYTES),
        idle_ms=0,
    )


def _same(one: Account, other: Account) -> bool:
    return one.principal == other.principal


def _key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()


def _fits(
    password: str, mechanism: str, known: Credential | None, likeness: Credential | None
) -> bool:
    assert likeness is not None
    is_known = known is not None and ITERATIONS_MIN <= known[3] <= ITERATIONS_MAX
    salt, stored_key, _, iterations = known if known is not None and is_known else likeness
    try:
        found = credential_of(password, mechanism, salt=salt, iterations=iterations)
    except ValueError:
        return False
    return hmac.compare_digest(found[1], stored_key) and is_known


def basic(text: str) -> tuple[str, str]:
    """Return the name and the password of an ``Authorization: Basic`` (RFC 7617).

    Raises:
        NoAccount: It is none.
    """
    try:
        name, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise NoAccount("malformed Basic") from None
    if not colon or len(password) > PASSWORD_CHARS_MAX:
        raise NoAccount("malformed Basic")
    return name, password
