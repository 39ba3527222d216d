"""Log-ins by SASL: SCRAM and bearer tokens, sans I/O.

Theory of operation
===================

`LogIn` is what a connection has: it takes SaslHandshake and SaslAuthenticate and gives their
answers. Between the two stands a `Conversation` of one mechanism, which the process's one
`Authenticator` begins.

Whoever asks must not learn which users there are. So a name that nobody has gets a credential
that is made up from the name and a secret: the same salt each time, no password that fits, and
the same work. All users have salts of one length and one number of iterations, so it has, too.
Every failure is one answer; what it was is for the audit alone.

SCRAM is scramp's, the tokens are `coordinator.security.bearer`'s. What a record or a client may
ask for is bounded here, as either may be anybody's.
"""

import hmac
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from scramp import ScramException, ScramMechanism

from coordinator.security.bearer import Bearer, TokenRefused
from protocol.acls import user_name_error
from protocol.errors import ErrorCode
from protocol.fields import AUTH_BYTES_MAX
from protocol.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from protocol.scram import ITERATIONS, ITERATIONS_MAX, ITERATIONS_MIN, SALT_BYTES

SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (*SCRAM, OAUTHBEARER)

_FAILED: Final = "authentication failed"
_HASHES: Final = {"SCRAM-SHA-256": ("sha256", 32), "SCRAM-SHA-512": ("sha512", 64)}

# Salt, stored key, server key, iterations.
Credential = tuple[bytes, bytes, bytes, int]
# The credential of a user's name for a mechanism, if there is one.
Lookup = Callable[[str, str], Credential | None]


class UnsupportedMechanism(Exception):
    """The mechanism isn't one of those that are enabled."""


class Challenge(NamedTuple):
    """The conversation goes on: what to tell the client."""

    data: bytes


class Accepted(NamedTuple):
    """The client is *principal*, until its credential ends, if that does; *data* is the last.

    *is_good* says whether what it has shown is still right.
    """

    principal: str
    data: bytes
    expires_wall_ms: int | None
    is_good: Callable[[], bool] = lambda: True


class Refused(NamedTuple):
    """The log-in failed. *reason* is for the audit and never for the client."""

    reason: str


class Conversation(Protocol):
    """One log-in by one mechanism. After `Accepted` or `Refused` it is over."""

    def step(self, data: bytes, wall_ms: int) -> Challenge | Accepted | Refused:
        """Take a message of the client's."""


class Authenticator:
    """Begins conversations. There is one in a process.

    Attributes:
        mechanisms: Those that are enabled.
        credential: Looks users up.
        max_session_ms: How long a log-in is good for at most; 0 is for ever.
        secret: What made-up credentials are made of.

    """

    def __init__(
        self,
        *,
        mechanisms: Sequence[str],
        credential: Lookup,
        bearer: Bearer | None,
        secret: bytes,
        max_session_ms: int = 0,
    ) -> None:
        """Take what knows the users.

        Args:
            mechanisms: Of `MECHANISMS`.
            credential: Looks users up; it must not fail.
            bearer: Knows the tokens; needed for OAUTHBEARER.
            secret: What made-up credentials are made of: the same after a restart, or users that
                don't exist could be told from those that do by their salts.
            max_session_ms: The setting ``connections.max.reauth.ms``.

        Raises:
            ValueError: There is no such mechanism, or nothing to check its tokens with.
        """
        unknown = [name for name in mechanisms if name not in MECHANISMS]
        if unknown:
            raise ValueError(f"no mechanism {unknown[0]!r}: there are {', '.join(MECHANISMS)}")
        if OAUTHBEARER in mechanisms and bearer is None:
            raise ValueError(f"{OAUTHBEARER} needs the keys of an issuer, or a file of tokens")
        self.mechanisms = tuple(mechanisms)
        self.max_session_ms = max_session_ms
        self.credential = credential
        self._bearer = bearer
        self.secret = secret

    def begin(self, mechanism: str) -> Conversation:
        """Return a new conversation.

        Raises:
            UnsupportedMechanism: It isn't enabled.
        """
        if mechanism not in self.mechanisms:
            raise UnsupportedMechanism(mechanism)
        if self._bearer is not None and mechanism == OAUTHBEARER:
            return _ByBearer(self._bearer)
        return _ByScram(mechanism, self.credential, self.made_up)

    def made_up(self, name: str, mechanism: str) -> Credential:
        """Return the credential of a user that there isn't: always the same, and of no password."""
        algorithm, key_bytes = _HASHES[mechanism]
        seed = f"{mechanism}\0{name}".encode()

        def derived(what: bytes) -> bytes:
            return hmac.digest(self.secret, what + b"\0" + seed, algorithm)

        salt = hmac.digest(self.secret, b"salt\0" + seed, "sha512")[:SALT_BYTES]
        stored_key, server_key = derived(b"stored key"), derived(b"server key")
        assert len(stored_key) == len(server_key) == key_bytes
        return salt, stored_key, server_key, ITERATIONS


def credential_of(
    password: str, mechanism: str, *, salt: bytes | None = None, iterations: int = ITERATIONS
) -> Credential:
    """Return what is kept of *password*, from which it can't be had back.

    Raises:
        ValueError: There can't be such a password, salt or number of iterations.
    """
    try:
        salt, stored_key, server_key, count = ScramMechanism(mechanism).make_auth_info(
            password, iterations, salt
        )
    except ScramException:
        raise ValueError("no password, salt or number of iterations for SCRAM") from None
    return salt, stored_key, server_key, count


def with_bootstrap(lookup: Lookup, name: str, password: str, made_up: Lookup) -> Lookup:
    """Return *lookup*, which knows the first administrator, too, whatever the log says.

    Its salts are those of *made_up*: they stay the same at each start, as everybody's do.
    """
    known: dict[str, Credential] = {}
    for mechanism in SCRAM:
        likeness = made_up(name, mechanism)
        assert likeness is not None
        known[mechanism] = credential_of(
            password, mechanism, salt=likeness[0], iterations=likeness[3]
        )
    return lambda who, mechanism: known[mechanism] if who == name else lookup(who, mechanism)


class _Claim:
    """User name that a client claims, and the credential of that user."""

    def __init__(self, mechanism: str, credential: Lookup, made_up: Lookup) -> None:
        self._mechanism = mechanism
        self._lookup = credential
        self._made_up = made_up
        self.name = ""
        self.is_known = False
        self._found: Credential | None = None

    def credential(self, name: str) -> Credential:
        """Return the one of *name*, or one that is made up."""
        # Both are made and looked for in any case: the work doesn't tell whether one is there.
        likeness = self._made_up(name, self._mechanism)
        found = self._lookup(name, self._mechanism)
        assert likeness is not None
        self.name = name
        self._found = found
        self.is_known = (
            found is not None
            and ITERATIONS_MIN <= found[3] <= ITERATIONS_MAX
            and user_name_error(name) is None
        )
        return found if found is not None and self.is_known else likeness

    def is_good(self) -> bool:
        """Say whether the credential is still the user's."""
        return self._lookup(self.name, self._mechanism) == self._found


class _ByScram:
    """SCRAM without channel binding (RFC 5802).

    Nothing that it has refers to it: what a log-in leaves would wait for the garbage collector.
    """

    def __init__(self, mechanism: str, credential: Lookup, made_up: Lookup) -> None:
        self._mechanism = mechanism
        self._claim = _Claim(mechanism, credential, made_up)
        self._turn: Callable[[_ByScram, str], Challenge | Accepted | Refused] = _ByScram._first
        self._server = ScramMechanism(mechanism).make_server(self._claim.credential)

    def step(self, data: bytes, wall_ms: int) -> Challenge | Accepted | Refused:
        """Take the client's first or final message; the time doesn't matter here."""
        del wall_ms
        turn, self._turn = self._turn, _ByScram._over
        if len(data) > AUTH_BYTES_MAX:
            return Refused(f"a message of {len(data)} bytes")
        try:
            return turn(self, data.decode())
        except UnicodeDecodeError:
            return Refused("a message that is no UTF-8")
        except ScramException as exc:
            # Its own words quote the message.
            what = exc.server_error.value if exc.server_error is not None else "malformed message"
            claim = self._claim
            whose = f" of user {claim.name!r}" if claim.is_known else ""  # Else who knows what.
            return Refused(f"{self._mechanism}: {what}{whose}")

    def _first(self, text: str) -> Challenge:
        self._server.set_client_first(text)
        answer: str = self._server.get_server_first()
        self._turn = _ByScram._final
        return Challenge(answer.encode())

    def _final(self, text: str) -> Accepted | Refused:
        claim = self._claim
        try:
            self._server.set_client_final(text)
        except ScramException:
            if not claim.is_known:
                return Refused(f"{self._mechanism}: no such user")
            raise
        if not claim.is_known:  # Nobody has a proof for a key that is made up.
            return Refused(f"{self._mechanism}: no such user")
        if not claim.is_good():
            return Refused(f"{self._mechanism}: the password was changed meanwhile")
        answer: str = self._server.get_server_final()
        return Accepted(f"User:{claim.name}", answer.encode(), None, claim.is_good)

    def _over(self, _text: str) -> Refused:
        return Refused("a message after the end")


class _ByBearer:
    """OAUTHBEARER: one message with a token (RFC 7628, section 3.1)."""

    def __init__(self, bearer: Bearer) -> None:
        self._bearer = bearer
        self._is_over = False

    def step(self, data: bytes, wall_ms: int) -> Challenge | Accepted | Refused:
        """Take the client's only message."""
        if self._is_over:
            return Refused("a message after the end")
        self._is_over = True
        if len(data) > AUTH_BYTES_MAX:
            return Refused(f"a message of {len(data)} bytes")
        try:
            identity, token = _token_in(data.decode())
            found = self._bearer.look(token, wall_ms)
        except (TokenRefused, UnicodeDecodeError) as exc:
            why = str(exc) if isinstance(exc, TokenRefused) else "a message that is no UTF-8"
            return Refused(f"{OAUTHBEARER}: {why}")
        if identity not in {"", found.name}:
            return Refused(f"{OAUTHBEARER}: the token of another than whom the client asks to be")
        is_good = partial(self._bearer.has, found)
        return Accepted(f"User:{found.name}", b"", found.expires_wall_ms, is_good)


def _token_in(text: str) -> tuple[str, str]:
    """Return whom the client asks to be, "" for whoever the token says, and the token."""
    header, *pairs = text.split("\x01")
    flag, *rest = header.split(",")
    ends_well = len(pairs) >= 3 and pairs[-2:] == ["", ""]
    if not ends_well or flag not in {"n", "y"} or len(rest) != 2 or rest[1]:
        raise TokenRefused("malformed message")
    identity = rest[0]
    if identity and not identity.startswith("a="):
        raise TokenRefused("malformed message")
    found = [value for key, _, value in (p.partition("=") for p in pairs) if key == "auth"]
    scheme, _, token = found[0].partition(" ") if len(found) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.strip():
        raise TokenRefused("no token")
    name = identity.removeprefix("a=").replace("=2C", ",").replace("=3D", "=")
    return name, token.strip()


class LogIn:
    """The log-in of one connection: nobody at first, and again before it ends (KIP-368).

    Attributes:
        principal: Who it is; None before the first log-in.
        mechanism: By which it was tried last, "" if by none that is enabled.
        ends_wall_ms: When another log-in must have been done; None is never.
        failures: How many times it failed.
        refused_because: Why it failed last, for the audit.

    """

    def __init__(self, authenticator: Authenticator) -> None:
        """Begin with nobody."""
        self.principal: str | None = None
        self.mechanism = ""
        self.ends_wall_ms: int | None = None
        self.failures = 0
        self.refused_because = ""
        self._authenticator = authenticator
        self._conversation: Conversation | None = None
        self._is_good: Callable[[], bool] = lambda: True

    @property
    def is_done(self) -> bool:
        """Whether somebody is logged in, and not about to do it again."""
        return self.principal is not None and self._conversation is None

    def is_good(self) -> bool:
        """Say whether what was shown is still right: the same password, or a token in its file."""
        return self._is_good()

    def handshake(self, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        """Begin a conversation."""
        mechanisms = self._authenticator.mechanisms
        if self._conversation is not None:
            self._conversation = None
            self._fail("a SaslHandshake inside a conversation")
            return SaslHandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, mechanisms)
        try:
            self._conversation = self._authenticator.begin(request.mechanism)
        except UnsupportedMechanism:
            self._fail("a mechanism that isn't enabled")
            self.mechanism = ""
            return SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms)
        self.mechanism = request.mechanism
        return SaslHandshakeResponse(ErrorCode.NONE, mechanisms)

    def authenticate(
        self, request: SaslAuthenticateRequest, wall_ms: int
    ) -> SaslAuthenticateResponse:
        """Go on with it. A failure ends the conversation, and whoever logs in again loses all."""
        if self._conversation is None:
            return self._refuse(ErrorCode.ILLEGAL_SASL_STATE, "no SaslHandshake before")
        result = self._conversation.step(request.auth_bytes, wall_ms)
        if isinstance(result, Challenge):
            return SaslAuthenticateResponse(ErrorCode.NONE, None, result.data, 0)
        self._conversation = None
        if isinstance(result, Refused):
            return self._refuse(ErrorCode.SASL_AUTHENTICATION_FAILED, result.reason)
        if self.principal not in {None, result.principal}:
            why = f"logged in again as another than {self.principal}"
            return self._refuse(ErrorCode.SASL_AUTHENTICATION_FAILED, why)
        lifetime_ms = self._lifetime_ms(result.expires_wall_ms, wall_ms)
        self.principal = result.principal
        self._is_good = result.is_good
        self.ends_wall_ms = wall_ms + lifetime_ms if lifetime_ms else None
        return SaslAuthenticateResponse(ErrorCode.NONE, None, result.data, lifetime_ms)

    def _lifetime_ms(self, expires_wall_ms: int | None, wall_ms: int) -> int:
        """Return how long the log-in is good for, 0 for ever."""
        longest = self._authenticator.max_session_ms
        if expires_wall_ms is None:
            return longest
        left_ms = max(1, expires_wall_ms - wall_ms)
        return min(left_ms, longest) if longest else left_ms

    def _refuse(self, error: ErrorCode, reason: str) -> SaslAuthenticateResponse:
        self._fail(reason)
        return SaslAuthenticateResponse(error, _FAILED, b"", 0)

    def _fail(self, reason: str) -> None:
        self.failures += 1
        self.refused_because = reason
        self.principal = None
        self.ends_wall_ms = None
