"""Authentication of daemon and client by TLS and SASL, with Kafka's names.

Theory of operation
===================

`Security` is a value, made of properties as Kafka's clients have them. It opens nothing until a
connection is made, and then reads certificates and secrets anew: those that are replaced while a
program runs are taken with its next connection.

A secret may stand in a property, or where it is: ``{file:/path}`` or ``{env:NAME}``. It is looked
up when it is needed, so that it is in no value that is pickled, shown or kept.

A log-in is a generator of requests. `client.connection` drives it, and the command line does, over
a socket that blocks.

Failures of trust don't heal by themselves, so they raise `AuthenticationFailed`, which no loop
retries. A broken connection raises other errors.
"""

import os
import re
import ssl
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from client.exceptions import AuthenticationFailed
from protocol import scram
from protocol.errors import ERRORS, ErrorCode
from protocol.messages import (
    Request,
    Response,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (*scram.MECHANISMS, OAUTHBEARER)

_FIELDS: Final[Mapping[str, str]] = {
    "security.protocol": "protocol",
    "sasl.mechanism": "mechanism",
    "sasl.username": "username",
    "sasl.password": "password",
    "sasl.oauthbearer.token": "token",
    "ssl.truststore.location": "truststore",
    "ssl.keystore.location": "keystore",
    "ssl.key.password": "key_password",
    "ssl.endpoint.identification.algorithm": "check",
}
NAMES: Final = tuple(_FIELDS)
# Where commands go that have no --at. A file of properties may have it for them.
BOOTSTRAP_SERVERS: Final = "bootstrap.servers"
PREFIXES: Final = ("security.", "sasl.", "ssl.")
SECRETS: Final = (
    "sasl.password",
    "sasl.oauthbearer.token",
    "ssl.key.password",
    "zookeeper.sasl.password",
)

# Where a secret is, in place of it.
REFERENCE: Final = re.compile(r"\{(env|file):([^{}]+)\}")
_ITERATIONS: Final = re.compile(r"(?:^|,)i=([0-9]{1,20})(?:,|$)")

LogIn = Generator[Request, Response, int]


@dataclass(frozen=True, slots=True)
class Security:
    """Settings of TLS and SASL. The repr leaves out secrets.

    Attributes:
        protocol: One of `PROTOCOLS`.
        mechanism: One of `MECHANISMS`; needed by the protocols that begin with SASL.
        username: For SCRAM.
        password: For SCRAM; the password, or where it is.
        token: For OAUTHBEARER: the token, a reference to it, or a function that returns one,
            called at each log-in, in a thread.
        truststore: A PEM file of the authorities that are trusted; "": the system's.
        keystore: A PEM file with this client's key and certificates; "": none.
        key_password: Password of the encrypted key, or a reference to it.
        check: "https" to have the server's name compared with its certificate, "" not to.

    """

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    token: str | Callable[[], str] = field(default="", repr=False)
    truststore: str = ""
    keystore: str = ""
    key_password: str = field(default="", repr=False)
    check: str = "https"

    def __post_init__(self) -> None:
        """Check that it makes sense.

        Raises:
            ValueError: It doesn't; the message names the property, and shows no secret.
        """
        _choice("security.protocol", self.protocol, PROTOCOLS)
        _choice("ssl.endpoint.identification.algorithm", self.check, ("https", ""))
        if not self.logs_in:
            return
        _choice("sasl.mechanism", self.mechanism, MECHANISMS)
        needed = (
            {"sasl.oauthbearer.token": self.token}
            if self.mechanism == OAUTHBEARER
            else {"sasl.username": self.username, "sasl.password": self.password}
        )
        for name, value in needed.items():
            if not value:
                raise ValueError(f"{name} is missing, which {self.mechanism} needs")

    @classmethod
    def of(cls, given: "Given") -> "Security":
        """Return it, made of properties by Kafka's names, or of a file of such; None is plaintext.

        Raises:
            ValueError: A property is unknown or impossible, or the file can't be read.
        """
        if isinstance(given, Security):
            return given
        if given is None:
            return cls()
        if isinstance(given, str | os.PathLike):
            given = read_properties(given)
            given.pop(BOOTSTRAP_SERVERS, None)
        given = properties_of(given, NAMES)
        values = {_FIELDS[name]: value for name, value in given.items()}
        for name, value in given.items():
            if not isinstance(value, str) and not (name.endswith(".token") and callable(value)):
                raise ValueError(f"{name} must be a text")
        for name in ("protocol", "mechanism"):
            if name in values:
                values[name] = values[name].strip().upper()
        return cls(**values)

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def logs_in(self) -> bool:
        """Whether connections begin with a log-in."""
        return self.protocol.startswith("SASL")

    # --- TLS ------------------------------------------------------------------------------

    def context(self) -> ssl.SSLContext:
        """Return the settings of a connection, read from the files as they are now. It blocks.

        Raises:
            AuthenticationFailed: A file can't be used.
        """
        context: ssl.SSLContext = _made(
            "ssl.truststore.location",
            self.truststore,
            lambda: ssl.create_default_context(cafile=self.truststore or None),
        )
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = bool(self.check)
        if self.keystore:
            # A key that is encrypted must not have somebody asked for the password.
            password = resolved("ssl.key.password", self.key_password)
            _made(
                "ssl.keystore.location",
                self.keystore,
                lambda: context.load_cert_chain(self.keystore, password=lambda: password),
            )
        return context

    async def secured(self, stream: trio.abc.Stream, host: str, name: str) -> trio.abc.Stream:
        """Return *stream* to *host*, encrypted if it is to be; it is closed if that fails.

        Raises:
            AuthenticationFailed: The server is not who it should be, or doesn't want this client.
            trio.BrokenResourceError: The connection broke.
        """
        if not self.uses_tls:
            return stream
        try:
            context = await trio.to_thread.run_sync(self.context)
            encrypted = trio.SSLStream(stream, context, server_hostname=host, https_compatible=True)
            await encrypted.do_handshake()
        except BaseException as exc:
            await trio.aclose_forcefully(stream)
            refusal = tls_refusal(exc, name)
            if refusal is not None:
                raise refusal from None
            if isinstance(exc, trio.BrokenResourceError):
                raise trio.BrokenResourceError(CLOSED_IN_HANDSHAKE) from None
            raise
        return encrypted

    # --- SASL -----------------------------------------------------------------------------

    def log_in(self, name: str) -> LogIn:
        """Yield the requests of one log-in at *name*; return how long it is good for, in ms.

        0 is for ever. Between two requests it may work for a second, or read a file.

        Raises:
            AuthenticationFailed: The server refuses it, or doesn't prove that it knows the user.
            NotNow: It can't say yet.
        """
        answer = yield SaslHandshakeRequest(self.mechanism)
        _check_handshake(answer, self.mechanism, name)
        if self.mechanism == OAUTHBEARER:
            return (yield from self._by_token(name))
        return (yield from self._by_scram(name))

    def _by_token(self, name: str) -> LogIn:
        token = self.token() if callable(self.token) else self.token
        token = resolved("sasl.oauthbearer.token", token).strip()
        if not re.fullmatch(r"[\x21-\x7e]{1,4000}", token):
            raise AuthenticationFailed(
                "sasl.oauthbearer.token is no token: 1 to 4000 characters without spaces"
            )
        answer = yield SaslAuthenticateRequest(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        return _authenticated(answer, self, name).session_lifetime_ms

    def _by_scram(self, name: str) -> LogIn:
        scramp = _scramp()
        try:
            password = resolved("sasl.password", self.password)
            client = scramp.ScramClient([self.mechanism], self.username, password)
        except scramp.ScramException:
            raise AuthenticationFailed(
                "sasl.username or sasl.password has characters that SCRAM forbids"
            ) from None
        answer = yield SaslAuthenticateRequest(client.get_client_first().encode())
        try:
            first = _authenticated(answer, self, name).auth_bytes.decode()
            asked = _ITERATIONS.search(first)
            if asked is not None and int(asked[1]) > scram.ITERATIONS_MAX:
                raise AuthenticationFailed(
                    f"{name} asks for {asked[1]} iterations of {self.mechanism}, and this client "
                    f"does {scram.ITERATIONS_MAX} at most"
                )
            client.set_server_first(first)
            answer = yield SaslAuthenticateRequest(client.get_client_final().encode())
            accepted = _authenticated(answer, self, name)
            client.set_server_final(accepted.auth_bytes.decode())
        except (scramp.ScramException, UnicodeDecodeError):
            raise AuthenticationFailed(
                f"{name} didn't prove that it knows user {self.username!r}: it may be somebody "
                "else's. Nothing was sent to it"
            ) from None
        return accepted.session_lifetime_ms


# Type of the argument *security* of `connect`.
Given = Security | Mapping[str, Any] | str | os.PathLike[str] | None

CLOSED_IN_HANDSHAKE: Final = (
    "it closed the connection while TLS began; maybe its listener is a plaintext one "
    "(security.protocol)"
)


class NotNow(Exception):
    """The server can't check a log-in yet; the message names it."""


def read_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the properties in a file: ``name=value`` a line, as Kafka's tools take them.

    Raises:
        ValueError: It can't be read, or a line is something else; no value is shown.
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except OSError as exc:
        raise ValueError(f"{os.fspath(path)}: {exc.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{os.fspath(path)}: it is no UTF-8") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, equals, value = text.partition("=")
        if not equals or name.strip() in found:
            raise ValueError(f"{os.fspath(path)}: line {number} is no NAME=VALUE, or there twice")
        found[name.strip()] = value.strip()
    return found


def properties_of(
    given: Mapping[str, Any] | str | os.PathLike[str], names: Collection[str]
) -> Mapping[str, Any]:
    """Return properties, those in the file if *given* is a path. All are among *names*.

    Raises:
        ValueError: One isn't, or the file can't be read.
    """
    found = read_properties(given) if isinstance(given, str | os.PathLike) else given
    if unknown := sorted(set(found) - set(names)):
        raise ValueError(f"there is no property {unknown[0]!r}; there are {', '.join(names)}")
    return found


def without_literals(properties: Mapping[str, str]) -> None:
    """Check that *properties* say where secrets are, and have none themselves.

    Raises:
        ValueError: One does; the message names the property.
    """
    for name in SECRETS:
        value = properties.get(name, "")
        if value and not REFERENCE.fullmatch(value):
            raise ValueError(
                f"{name} must say where the secret is, as {{file:/path}} or {{env:NAME}}: "
                "what stands here is shown to others"
            )


def resolved(name: str, value: str) -> str:
    """Return the secret *value* of the property *name*: itself, or what is where it points.

    Raises:
        AuthenticationFailed: There is nothing.
    """
    found = REFERENCE.fullmatch(value)
    if found is None:
        return value
    try:
        return looked_up(found)
    except LookupError as exc:
        raise AuthenticationFailed(f"{name} {exc}") from None


def looked_up(reference: re.Match[str]) -> str:
    """Return the secret to which a match of `REFERENCE` points.

    A file's last line break is not part of it.

    Raises:
        LookupError: There is none; the message goes behind the name of what refers to it.
    """
    kind, where = reference[1], reference[2]
    try:
        if kind == "env":
            return os.environ[where]
        return Path(where).read_text("utf-8").removesuffix("\n")
    except (KeyError, OSError, UnicodeDecodeError) as exc:
        what = "environment variable" if kind == "env" else "readable file"
        raise LookupError(f"refers to {kind}:{where}, but this process has no such {what}") from exc


def tls_refusal(error: BaseException, name: str) -> AuthenticationFailed | None:
    """Return what *error* of a connection to *name* says about trust; None: nothing."""
    if isinstance(error, AuthenticationFailed):
        return error
    cause = error if isinstance(error, ssl.SSLError) else error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        why = _CERTIFICATES.get(cause.verify_code, f"it is not valid: {cause.verify_message}")
        text = f"the certificate of {name} was refused: {why.format(cause.verify_message)}"
        return AuthenticationFailed(text, cause=cause)
    if isinstance(cause, ssl.SSLError) and cause.reason is not None:
        for part, why in _REASONS.items():
            if part in cause.reason:
                return AuthenticationFailed(f"{name} {why}", cause=cause)
    return None


_UNKNOWN: Final = "nobody in ssl.truststore.location has signed it ({})"
# By OpenSSL's numbers.
_CERTIFICATES: Final[Mapping[int, str]] = {
    9: "it isn't valid yet; are both clocks right?",
    10: "it has expired; the server needs a new one",
    18: _UNKNOWN,
    19: _UNKNOWN,
    20: _UNKNOWN,
    21: _UNKNOWN,
    62: "{} Connect by a name that it has (or ssl.endpoint.identification.algorithm=)",
    64: "{} Connect by a name that it has (or ssl.endpoint.identification.algorithm=)",
}
_OWN: Final = "doesn't take this client's certificate (ssl.keystore.location): "
# By a part of OpenSSL's reason; the first that fits.
_REASONS: Final[Mapping[str, str]] = {
    "WRONG_VERSION_NUMBER": "speaks no TLS; maybe its listener is a plaintext one "
    "(security.protocol)",
    "CERTIFICATE_REQUIRED": "wants a client's certificate: set ssl.keystore.location",
    "ALERT_UNKNOWN_CA": f"{_OWN}it doesn't know who has signed it",
    "ALERT_CERTIFICATE_EXPIRED": f"{_OWN}it has expired",
    "ALERT_CERTIFICATE": f"{_OWN}it is not valid there",
    "ALERT_BAD_CERTIFICATE": f"{_OWN}it is not valid there",
    "PROTOCOL_VERSION": "has no version of TLS in common with this client",
    "UNSUPPORTED_PROTOCOL": "has no version of TLS in common with this client",
    "HANDSHAKE_FAILURE": "has no way of TLS in common with this client, or wants its certificate "
    "(ssl.keystore.location)",
}


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        listed = ", ".join(repr(one) for one in choices)
        raise ValueError(f"{name} is {value!r}: it must be one of {listed}")


def _made(name: str, path: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ssl.SSLError as exc:
        why = "a key with its certificates, or the password is wrong"
        what = why if "keystore" in name else "certificates"
        raise AuthenticationFailed(f"{name}: {path} has no PEM of {what}", cause=exc) from None
    except OSError as exc:
        raise AuthenticationFailed(f"{name}: {path}: {exc.strerror}", cause=exc) from None


def _check_handshake(answer: Response, mechanism: str, name: str) -> None:
    error = getattr(answer, "error", ErrorCode.NONE)
    _check_now(error, name)
    if error == ErrorCode.UNSUPPORTED_SASL_MECHANISM and isinstance(answer, SaslHandshakeResponse):
        listed = ", ".join(answer.mechanisms) or "no log-ins at all"
        raise AuthenticationFailed(
            f"{name} doesn't take {mechanism} (sasl.mechanism); it takes {listed}", code=error
        )
    if not isinstance(answer, SaslHandshakeResponse) or error != ErrorCode.NONE:
        raise AuthenticationFailed(f"{name} takes no log-in here ({error})", code=error)


def _authenticated(answer: Response, security: Security, name: str) -> SaslAuthenticateResponse:
    error = getattr(answer, "error", ErrorCode.NONE)
    _check_now(error, name)
    if isinstance(answer, SaslAuthenticateResponse) and error == ErrorCode.NONE:
        return answer
    who = f" of user {security.username!r}" if security.mechanism != OAUTHBEARER else ""
    what = "sasl.oauthbearer.token" if not who else "sasl.username and sasl.password"
    raise AuthenticationFailed(
        f"{name} refused the log-in{who} by {security.mechanism}: check {what}", code=error
    )


def _check_now(error: int, name: str) -> None:
    if error in {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE}:
        raise NotNow(f"{name} can't check a log-in yet: {ERRORS[ErrorCode(error)].meaning}")


def _scramp() -> Any:
    try:
        import scramp  # noqa: PLC0415 - An extra.
    except ImportError as exc:
        raise AuthenticationFailed(
            "a log-in by SCRAM needs scramp: pip install group-coordinator[sasl]"
        ) from exc
    return scramp


PLAINTEXT: Final = Security()
