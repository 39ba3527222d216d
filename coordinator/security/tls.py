"""The daemon's certificate, from files that may be replaced while it runs, and who clients are.

`Certificates` has the context that new connections are encrypted with. Whenever one of its files
changes it is loaded anew; what can't be loaded changes nothing, and is told of. Connections keep
what they began with. Files, dates and names are decided about here; the cryptography is OpenSSL's.
"""

import ssl
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import re2
from cryptography import x509

from coordinator.config import ConfigError, Settings
from coordinator.security.files import Look, look_at
from protocol.acls import user_name_error

# With forward secrecy, and authenticated: what is left of TLSv1.2 once the rest is taken away.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
# Texts for the reasons by which OpenSSL refuses a file.
_REASONS: Final = {
    "KEY_VALUES_MISMATCH": "the private key is not that of the first certificate",
    "EE_KEY_TOO_SMALL": "the key is too short",
    "CA_MD_TOO_WEAK": "the certificate is signed with a hash that is too weak",
}
# Told of once a day from so long before the end, or from the last quarter of a shorter life.
_SOON: Final = timedelta(days=14)
_SOON_SHARE: Final = 4
_DAY_MS: Final = 86_400_000

EmitEvent = Callable[[str, dict[str, Any]], None]
_Looks = tuple[Look, ...]


class Loaded(NamedTuple):
    """A certificate in force.

    Attributes:
        context: Encrypts new connections.
        leaf: The certificate itself.
    """

    context: ssl.SSLContext
    leaf: x509.Certificate

    @property
    def expires_ms(self) -> int:
        """When it ends; wall clock."""
        return int(self.leaf.not_valid_after_utc.timestamp() * 1000)

    @property
    def soon_ms(self) -> int:
        """Time before the end at which a renewal is due, in milliseconds."""
        life = self.leaf.not_valid_after_utc - self.leaf.not_valid_before_utc
        return int(min(_SOON, life / _SOON_SHARE).total_seconds() * 1000)


class Certificates:
    """The certificate in force, and the files that it comes from.

    Attributes:
        context: Encrypts new connections.
    """

    def __init__(
        self, settings: Settings, emit_event: EmitEvent, wall_clock_ms: Callable[[], int]
    ) -> None:
        """Load what *settings* name.

        Raises:
            ConfigError: It can't be; the message names the setting and says why.
        """
        self._settings = settings
        self._emit_event = emit_event
        self._wall_clock_ms = wall_clock_ms
        self._rules = PrincipalRules(settings.ssl_principal_mapping_rules)
        self._looks = self._seen = self._look_at_files()
        self._told_ms: int | None = None  # When the end was told of last.
        self._adopt(load(settings, wall_clock_ms()))

    def _adopt(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.context = loaded.context
        self._told_ms = None
        path = Path(self._settings.ssl_keystore_location)
        if _is_for_everybody(path):
            self._emit_event("certificate.key_exposed", {"path": str(path)})

    @property
    def left_ms(self) -> int:
        """How long the certificate is still valid; below 0 once it isn't."""
        return self._loaded.expires_ms - self._wall_clock_ms()

    def watch(self) -> None:
        """Load files that have changed, once they rest; tell of an end that is near.

        Call it every few seconds. Who replaces a file may still be writing it, so a change is taken
        up when the next look finds nothing newer.
        """
        looks = self._look_at_files()
        is_at_rest = looks == self._seen
        self._seen = looks
        if looks != self._looks and is_at_rest:
            self._reload(looks)
        left_ms, now_ms = self.left_ms, self._wall_clock_ms()
        is_told = self._told_ms is not None and 0 <= now_ms - self._told_ms < _DAY_MS
        if left_ms < self._loaded.soon_ms and not is_told:
            self._told_ms = now_ms
            self._emit_event("certificate.expires_soon", self._facts())

    def reload(self) -> None:
        """Load the files again, whether they have changed or not."""
        self._seen = self._look_at_files()
        self._reload(self._seen)

    def _reload(self, looks: _Looks) -> None:
        self._looks = looks  # What is refused is told of once, and tried again when it changes.
        try:
            self._adopt(load(self._settings, self._wall_clock_ms()))
        except ConfigError as exc:
            self._emit_event("certificate.refused", {"reason": str(exc)})
        else:
            self._emit_event("certificate.reloaded", self._facts())

    def _facts(self) -> dict[str, Any]:
        leaf = self._loaded.leaf
        return {
            "subject": leaf.subject.rfc4514_string(),
            "expires": leaf.not_valid_after_utc.isoformat(),
            "days": self.left_ms // _DAY_MS,
        }

    def _look_at_files(self) -> _Looks:
        settings = self._settings
        paths = (
            settings.ssl_keystore_location,
            settings.ssl_key_password_file,
            settings.ssl_truststore_location,
        )
        return tuple(look_at(Path(path)) for path in paths if path)

    def identify(self, certificate: bytes) -> tuple[str, int]:
        """Return who showed this certificate (DER), and when it ends, in wall-clock milliseconds.

        Raises:
            NoPrincipal: Nobody that there is a name for, or not any more.
        """
        theirs = x509.load_der_x509_certificate(certificate)
        # OpenSSL doesn't look again when a session of TLSv1.2 is taken up, two hours later.
        ends_wall_ms = int(theirs.not_valid_after_utc.timestamp() * 1000)
        if self._wall_clock_ms() >= ends_wall_ms:
            raise NoPrincipal("its certificate is not accepted: certificate has expired")
        return self._rules.principal_of(theirs), ends_wall_ms


def _is_for_everybody(path: Path) -> bool:
    with suppress(OSError):
        return bool(path.stat().st_mode & stat.S_IROTH)
    return False


# --- loading -------------------------------------------------------------------------------------


def load(settings: Settings, wall_ms: int) -> Loaded:
    """Return what the files have that *settings* name.

    Raises:
        ConfigError: They can't be used; the message names the setting and says why.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = [_VERSIONS[version] for version in settings.tls_versions()]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= (
        ssl.OP_NO_RENEGOTIATION
        | ssl.OP_NO_COMPRESSION
        | ssl.OP_NO_TICKET
        | ssl.OP_CIPHER_SERVER_PREFERENCE
        # Who only closes his end gets an alert else, in place of the answers that he waits for.
        | ssl.OP_IGNORE_UNEXPECTED_EOF
    )
    # Connections are few and long. A ticket would be worth recording to who gets at its key later,
    # and one that nobody reads can reset a connection at its end.
    context.num_tickets = 0
    suites = settings.ssl_cipher_suites
    try:
        context.set_ciphers(":".join(s.strip() for s in suites.split(",")) if suites else _CIPHERS)
    except ssl.SSLError:
        raise ConfigError(f"ssl.cipher.suites: OpenSSL knows none of {suites!r}") from None
    leaf = _load_key_store(context, settings, datetime.fromtimestamp(wall_ms / 1000, UTC))
    if settings.ssl_client_auth != "none":
        _load_trust_store(context, Path(settings.ssl_truststore_location))
        context.verify_mode = _VERIFY[settings.ssl_client_auth]
    return Loaded(context, leaf)


def _load_key_store(context: ssl.SSLContext, settings: Settings, now: datetime) -> x509.Certificate:
    path = Path(settings.ssl_keystore_location)
    name = f"ssl.keystore.location: {path}"
    before = look_at(path)
    leaf = _leaf_in(_read("ssl.keystore.location", path), name, now)
    password = settings.ssl_key_password_file
    was_asked = False

    def ask() -> bytes:
        nonlocal was_asked
        was_asked = True
        if not password:
            raise ConfigError(f"{name} has an encrypted key, and there is no ssl.key.password.file")
        return _read("ssl.key.password.file", Path(password)).rstrip(b"\r\n")

    try:
        context.load_cert_chain(path, password=ask)
    except ssl.SSLError as exc:
        reason = _REASONS.get(exc.reason or "")
        if reason is None and was_asked:
            reason = f"the key can't be decrypted with the password in {password}"
        said = (exc.reason or "no key, or no certificate, that can be read").replace("_", " ")
        raise ConfigError(f"{name}: {reason or said.lower()}") from None
    except OSError as exc:
        raise ConfigError(f"{name} can't be read: {exc.strerror}") from None
    if look_at(path) != before:
        raise ConfigError(f"{name} was changed while it was read")
    return leaf


def _leaf_in(content: bytes, name: str, now: datetime) -> x509.Certificate:
    """Return the first certificate, which must be valid now. Raises ConfigError."""
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise ConfigError(f"{name} has no certificate in PEM")
    if b"PRIVATE KEY-----" not in content:
        raise ConfigError(f"{name} has no private key in PEM")
    try:
        leaf = x509.load_pem_x509_certificates(content)[0]
    except ValueError as exc:
        raise ConfigError(f"{name} has a certificate that can't be read: {exc}") from None
    if now >= leaf.not_valid_after_utc:
        raise ConfigError(f"{name} has a certificate that expired at {leaf.not_valid_after_utc}")
    if now < leaf.not_valid_before_utc:
        raise ConfigError(
            f"{name} has a certificate that is valid from {leaf.not_valid_before_utc} on, and by "
            f"this machine's clock it is {now:%Y-%m-%d %H:%M:%S%z}"
        )
    return leaf


def _load_trust_store(context: ssl.SSLContext, path: Path) -> None:
    _read("ssl.truststore.location", path)
    try:
        context.load_verify_locations(path)
    except OSError:  # Of which an SSLError is one.
        raise ConfigError(
            f"ssl.truststore.location: {path} has no certificate in PEM, or one that can't be read"
        ) from None


def _read(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ConfigError(f"{setting}: {path} can't be read: {exc.strerror}") from None


# --- who a client is -----------------------------------------------------------------------------


class NoPrincipal(Exception):
    """A certificate names nobody; the message says why."""


class _Rule(NamedTuple):
    """One of ``ssl.principal.mapping.rules``. An empty pattern is DEFAULT: the whole subject."""

    pattern: Any
    replacement: str
    case: str


_CASES: Final[Mapping[str, Callable[[str], str]]] = {"": str, "L": str.lower, "U": str.upper}
_QUIET: Final = re2.Options()
_QUIET.log_errors = False  # They are raised.
_RULE: Final = re2.compile(r"\s*(?:(DEFAULT)|RULE:([^/]*)/([^/]*)/([LU]?))\s*(?:,|$)")
_GROUP: Final = re2.compile(r"\$(\d)")


class PrincipalRules:
    """``ssl.principal.mapping.rules``: Kafka's (KIP-371), but that the patterns are RE2's.

    Without any, a certificate stands for what its extension SubjectAlternativeName has: the first
    URI (SPIFFE's), else the first DNS name, else the first mail address, else its whole subject. A
    certificate of which the extension can't be read, or has 8-bit bytes in such a name, is refused.
    """

    def __init__(self, text: str) -> None:
        """Read *text*. Raises ConfigError."""
        self._rules: list[_Rule] = []
        at = 0
        while at < len(text):
            found = _RULE.match(text, at)
            if found is None:
                raise ConfigError(
                    f"ssl.principal.mapping.rules: {text[at:]!r} begins with neither DEFAULT nor "
                    "RULE:pattern/replacement/, with an L or U behind it or without"
                )
            is_default, pattern, replacement, case = found.groups()
            try:
                compiled = None if is_default else re2.compile(pattern, _QUIET)
            except re2.error as exc:
                raise ConfigError(
                    f"ssl.principal.mapping.rules: {pattern!r} is no pattern of RE2: {exc}"
                ) from None
            self._rules.append(_Rule(compiled, replacement or "", case or ""))
            at = found.end()

    def principal_of(self, certificate: x509.Certificate) -> str:
        """Return ``User:`` and the name. Raises NoPrincipal."""
        subject = certificate.subject.rfc4514_string()
        name = self._mapped(subject) if self._rules else _alternative_name(certificate) or subject
        unshown = None if name.isprintable() else "it has characters that can't be shown"
        if why := user_name_error(name) or unshown:
            raise NoPrincipal(f"the name in its certificate: {why}")
        return f"User:{name}"

    def _mapped(self, subject: str) -> str:
        for rule in self._rules:
            if rule.pattern is None:
                return subject
            found = rule.pattern.fullmatch(subject)
            if found is not None:
                groups: tuple[str | None, ...] = (found.group(0), *found.groups())
                return _CASES[rule.case](_expanded(rule.replacement, groups))
        raise NoPrincipal(f"no rule of ssl.principal.mapping.rules fits its subject {subject!r}")


def _expanded(replacement: str, groups: tuple[str | None, ...]) -> str:
    """Return *replacement* with $1 for the first group, and so on; a missing one is empty."""

    def group(found: Any) -> str:
        number = int(found.group(1))
        return (groups[number] or "") if number < len(groups) else ""

    text: str = _GROUP.sub(group, replacement)
    return text


def _alternative_name(certificate: x509.Certificate) -> str | None:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    except ValueError:
        raise NoPrincipal("the alternative name in its certificate can't be read") from None
    kinds: Iterable[type[x509.UniformResourceIdentifier | x509.DNSName | x509.RFC822Name]] = (
        x509.UniformResourceIdentifier,
        x509.DNSName,
        x509.RFC822Name,
    )
    found = [name for kind in kinds for name in names.get_values_for_type(kind)]
    if not "".join(found).isascii():  # UTF-8 is read, but each of these kinds is ASCII alone.
        raise NoPrincipal("the alternative name in its certificate has 8-bit bytes")
    return found[0] if found else None
