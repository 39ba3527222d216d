"""Whom hostile clients claim to be, rightly or not, and what must hold whoever they are.

Eve may do everything, Alice and Bob what rules allow, which Eve changes all the while, and Mallory
nothing at all. They come with a password, a token or a certificate; with what is wrong; or without.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from scramp import ScramClient, ScramException

from coordinator.security.sasl import OAUTHBEARER, credential_of
from protocol import messages as m
from protocol.acls import ANONYMOUS, Operation, PatternType, Permission, ResourceType
from protocol.errors import ErrorCode
from protocol.quotas import QUOTAS
from protocol.scram import SALT_BYTES, Mechanism
from tests.fuzz.frames import Account, Broken, damaged
from tests.fuzz.grammar import USERS
from tests.server.test_authorization import errors_of

ROOT: Final = "root"
EVE: Final = "eve"
MALLORY: Final = "mallory"
NAMES: Final = (*(EVE,) * 5, *USERS, *USERS, MALLORY)
SCRAM: Final = "SCRAM-SHA-256"
# Who somebody is over HTTP: a password is compared for some tens of milliseconds, so there are few.
HEADERS: Final = (
    *(f"Authorization: Bearer token-of-{name}" for name in NAMES * 4),
    "Authorization: Basic YWxpY2U6cGFzc3dvcmQgb2YgYWxpY2U=",
    "Authorization: Bearer nobody's",
    "Authorization: Basic AAAA",
    "Authorization: Digest x",
    "Cookie: session=0",
    "X-Nobody: 1",
)
_SASL: Final = m.SaslHandshakeRequest | m.SaslAuthenticateRequest
_BEFORE_LOG_IN: Final = m.ApiVersionsRequest | _SASL
_NOT_YET: Final = ErrorCode.ILLEGAL_SASL_STATE
_ENOUGH: Final = 2**40


def password_of(name: str) -> str:
    """Return it."""
    return f"password of {name}"


def token_of(name: str) -> str:
    """Return the bearer token of *name*."""
    return f"token-of-{name}"


def write_secrets(folder: Path) -> list[str]:
    """Write the files that the daemon knows people by; return the settings that name them."""
    tokens = [
        f"{name} {hashlib.sha256(token_of(name).encode()).hexdigest()}\n" for name in set(NAMES)
    ]
    (folder / "tokens").write_text("".join(sorted(tokens)), encoding="ascii")
    (folder / "password").write_text(password_of(ROOT), encoding="ascii")
    return [
        f"super.users=User:{EVE}",
        f"sasl.enabled.mechanisms={SCRAM},{OAUTHBEARER}",
        f"sasl.tokens.file={folder / 'tokens'}",
        f"sasl.bootstrap.user={ROOT}",
        f"sasl.bootstrap.password.file={folder / 'password'}",
    ]


def enrolling() -> list[m.Request]:
    """Return what the administrator asks for first: users, rights, and room to ask for more."""
    users = []
    for name in sorted(set(NAMES)):
        salt, stored, server, iterations = credential_of(
            password_of(name), SCRAM, salt=name.encode().ljust(SALT_BYTES)
        )
        users.append(
            m.ScramUpsertion(name, Mechanism.SCRAM_SHA_256, iterations, salt, stored, server)
        )
    rules = [
        m.Acl(kind, "*", PatternType.LITERAL, f"User:{name}", "*", operation, Permission.ALLOW)
        for name in USERS
        for kind in (ResourceType.GROUP, ResourceType.TOPIC)
        for operation in (Operation.READ, Operation.DELETE)
    ]
    enough = tuple(m.QuotaChange(key, _ENOUGH) for key in QUOTAS)
    return [
        m.AlterUserScramCredentialsRequest((), tuple(users)),
        m.CreateAclsRequest(tuple(rules)),
        m.AlterClientQuotasRequest(
            tuple(m.AlteredPrincipal(f"User:{name}", enough) for name in (ROOT, EVE))
        ),
    ]


def without_quotas() -> m.Request:
    """Return what has everybody's requests answered that still wait for a quota."""
    none = tuple(m.QuotaChange(key, None) for key in QUOTAS)
    entries = [m.AlteredPrincipal(f"User:{name}", none) for name in USERS]
    return m.AlterClientQuotasRequest((*entries, m.AlteredPrincipal("", none)))


def log_in(ask: Callable[[m.Request], Any], name: str) -> None:
    """Have the connection that *ask* asks over be *name*'s, who has a password."""
    client = ScramClient([SCRAM], name, password_of(name))
    ask(m.SaslHandshakeRequest(SCRAM))
    first = ask(m.SaslAuthenticateRequest(client.get_client_first().encode()))
    client.set_server_first(first.auth_bytes.decode())
    final = ask(m.SaslAuthenticateRequest(client.get_client_final().encode()))
    assert not final.error, final


class LogIn:
    """The client's end of a log-in: a right one, mostly.

    Attributes:
        principal: Who it is, as far as the answers tell; None before that.
        is_under_way: There is more to say, now or after the next answer.
    """

    def __init__(self, rng: Random) -> None:
        self.principal: str | None = None
        self.is_under_way = False
        self._rng = rng
        self._was_somebody = False
        self._steps: list[Callable[[bytes], m.Request]] = []
        self._waits = False
        self._heard = b""
        self._name = rng.choice(NAMES)
        if rng.random() < 0.93:  # Else it never logs in.
            self.begin(self._name)

    def begin(self, name: str) -> None:
        """Log in, or try to, as *name*; on a connection that is logged in it is done again."""
        rng = self._rng
        self._name = name
        self.is_under_way, self._waits = True, False
        by_token = rng.random() < 0.2
        mechanism = OAUTHBEARER if by_token else SCRAM
        if rng.random() < 0.02:
            mechanism = rng.choice(("PLAIN", "", "SCRAM-SHA-512", "x" * 300))
        steps = [lambda _: m.SaslHandshakeRequest(mechanism)]
        self._steps = [*steps, *(self._by_token() if by_token else self._by_password())]

    def _by_token(self) -> list[Callable[[bytes], m.Request]]:
        token = token_of(self._name if self._rng.random() < 0.9 else "nobody")
        said = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        return [lambda _: self._authenticate(said)]

    def _by_password(self) -> list[Callable[[bytes], m.Request]]:
        name = self._name if self._rng.random() < 0.95 else "nobody"
        right = self._rng.random() < 0.95
        client = ScramClient([SCRAM], name, password_of(name) if right else "wrong")

        def final(heard: bytes) -> m.Request:
            try:
                client.set_server_first(heard.decode())
                said = client.get_client_final().encode()
            except (ScramException, ValueError):  # It was not what was sent that was answered.
                said = b"c=biws,r=x,p=AAAA"
            return self._authenticate(said)

        return [lambda _: self._authenticate(client.get_client_first().encode()), final]

    def _authenticate(self, said: bytes) -> m.Request:
        rng = self._rng
        if rng.random() < 0.05:
            data = bytearray(said)
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(len(data) + 1)
                data[at : at + 1] = rng.choice(
                    (b"", b",", b"=", b"\x00", b"\xff", rng.randbytes(9))
                )
            said = bytes(data * rng.choice((1, 1, 1, 50)))[:4_000]
        return m.SaslAuthenticateRequest(said)

    def next_bytes(self, account: Account) -> bytes:
        """Return the frame of what to say, maybe damaged; none before something was heard."""
        if self._waits or not self._steps:
            return b""
        self._waits = True
        frame = account.frame(self._steps.pop(0)(self._heard), 0)
        if self._rng.random() < 0.02:
            account.forget(frame)
            frame = damaged(self._rng, frame)
        return frame

    def heard(self, request: m.Request, answer: Any) -> bool:
        """Take an answer; return whether it ends a log-in that was accepted.

        Raises:
            Broken: A stranger was told something.
        """
        if self.principal is None and not self._was_somebody:
            # What asks about nothing has no place for an error in its answer; and what can't be
            # read is refused before anybody looks who asks.
            is_refused = errors_of(answer) <= {_NOT_YET} or isinstance(answer, m.BareError)
            if not isinstance(request, _BEFORE_LOG_IN) and not is_refused:
                raise Broken(f"before a log-in {request} was answered {answer}")
        if not isinstance(request, _SASL):
            return False
        self._waits = False
        if m.first_error(answer):
            self.principal = None
            self.is_under_way = self._rng.random() < 0.8
            if self.is_under_way:
                self.begin(self._name)
        elif isinstance(request, m.SaslAuthenticateRequest):
            self._heard = answer.auth_bytes
            if not self._steps and self.is_under_way:
                self.is_under_way = False
                self.principal = f"User:{self._name}"
                self._was_somebody = True
                return True
        return False


class Deeds:
    """What was done in whose name: a member belongs to who joined, and some may do nothing."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def check(self, request: Any, answer: Any, principal: str | None) -> None:
        """Look at an answer to *principal*.

        Raises:
            Broken: It tells of something that he may not.
        """
        if principal == f"User:{MALLORY}" and _has_changed_something(request, answer):
            raise Broken(f"{principal} may do nothing, and {request} was answered {answer}")
        match request, answer:
            case m.JoinGroupRequest(), m.JoinGroupResponse(error=0 | ErrorCode.MEMBER_ID_REQUIRED):
                self._acts(answer.member_id, request, principal)
            case (m.HeartbeatRequest(), m.HeartbeatResponse(error=0)) | (
                m.SyncGroupRequest(),
                m.SyncGroupResponse(error=0),
            ):
                self._acts(request.member_id, request, principal)
            case m.OffsetCommitRequest(), _ if request.generation_id >= 0:  # Else it is nobody's.
                if _has_changed_something(request, answer):
                    self._acts(request.member_id, request, principal)

    def _acts(self, member_id: str, request: m.Request, principal: str | None) -> None:
        if principal in {None, ANONYMOUS}:
            return
        owner = self._owners.setdefault(member_id, principal)
        if owner != principal:
            raise Broken(f"{principal} acts as a member of {owner}: {request}")


def _has_changed_something(request: m.Request, answer: Any) -> bool:
    match request, answer:
        case m.OffsetCommitRequest(), m.OffsetCommitResponse():
            return any(not one.error for topic in answer.topics for one in topic.partitions)
        case m.JoinGroupRequest() | m.SyncGroupRequest() | m.HeartbeatRequest(), _:
            return not m.first_error(answer)
        case (
            m.CreateAclsRequest()
            | m.AlterUserScramCredentialsRequest()
            | m.RegisterTopicsRequest(),
            _,
        ):
            return any(not one.error for one in getattr(answer, "results", ()))
        case _:
            return False
