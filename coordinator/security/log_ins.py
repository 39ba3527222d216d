"""Log-in mechanisms of clients, chosen by the settings, and the files behind them."""

import hmac
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from coordinator.config import ConfigError, Settings
from coordinator.security.accounts import Accounts
from coordinator.security.bearer import Bearer, Keys, Rules, StaticTokens
from coordinator.security.files import BadFile, WatchedFile
from coordinator.security.sasl import (
    OAUTHBEARER,
    SCRAM,
    Authenticator,
    LogIn,
    with_bootstrap,
)

_PASSWORD_BYTES_MAX: Final = 4_096


class Users(Protocol):
    """Those who have a password: see `coordinator.group.users.Users`."""

    def credential(self, name: str, mechanism: str) -> tuple[bytes, bytes, bytes, int] | None:
        """Return what the password of *name* is checked by, None if there is no such one."""


class LogIns:
    """What all log-ins of a process share.

    Its files are read again when they change. One that makes no sense changes nothing.
    """

    def __init__(self, settings: Settings, tell: Callable[[str, Mapping[str, Any]], None]) -> None:
        """Read the files; *tell* takes events.

        Raises:
            ConfigError: One can't be read or makes no sense; the message names the setting.
        """
        self._settings = settings
        self._tell = tell
        self._authenticator: Authenticator | None = None
        self._files: list[WatchedFile[Any]] = []
        self._bearer = self._read_bearer() if OAUTHBEARER in settings.mechanisms() else None
        self._password = self._read_password() if settings.sasl_bootstrap_user else ""

    def over(self, users: Users) -> Callable[[], LogIn]:
        """Return a function that begins the log-in of a connection; `take_secret` comes first."""
        self._authenticator = authenticator = Authenticator(
            mechanisms=self._settings.mechanisms(),
            credential=users.credential,
            bearer=self._bearer,
            secret=b"",
            max_session_ms=self._settings.connections_max_reauth_ms,
        )
        return lambda: LogIn(authenticator)

    def take_secret(self, secret: bytes) -> None:
        """Make up credentials by *secret*, which is the same at each start."""
        authenticator = self._authenticator
        assert authenticator is not None
        authenticator.secret = hmac.digest(secret, b"log-ins", "sha256")
        if self._settings.sasl_bootstrap_user:
            try:
                authenticator.credential = with_bootstrap(
                    authenticator.credential,
                    self._settings.sasl_bootstrap_user,
                    self._password,
                    authenticator.made_up,
                )
            finally:
                self._password = ""

    def accounts(self, new_secret: Callable[[], bytes]) -> Accounts:
        """Return who can say over HTTP who he is, by what clients log in by."""
        authenticator = self._authenticator
        assert authenticator is not None
        return Accounts(
            bearer=self._bearer,
            credential=lambda name, mechanism: authenticator.credential(name, mechanism),  # noqa: PLW0108 - it changes with the secret
            made_up=authenticator.made_up,
            mechanisms=[name for name in authenticator.mechanisms if name in SCRAM],
            new_secret=new_secret,
            idle_ms=self._settings.http_session_idle_timeout_ms,
        )

    def watch(self) -> None:
        """Take over files that have changed."""
        for file in self._files:
            self._refresh(file, force=False)

    def reload(self) -> None:
        """Read all files again."""
        for file in self._files:
            self._refresh(file, force=True)

    def _refresh(self, file: WatchedFile[Any], *, force: bool) -> None:
        try:
            if file.refresh(force=force):
                self._tell("tokens.reloaded", {"path": str(file.path), "count": len(file.value)})
        except BadFile as exc:
            self._tell("tokens.refused", {"reason": str(exc)})

    def _read_bearer(self) -> Bearer:
        s = self._settings
        audiences = s.sasl_oauthbearer_expected_audience.split(",")
        rules = Rules(
            s.sasl_oauthbearer_expected_issuer or None,
            tuple(name.strip() for name in audiences if name.strip()),
            s.sasl_oauthbearer_sub_claim_name,
            s.sasl_oauthbearer_clock_skew_seconds,
        )
        tokens = self._watched("sasl.tokens.file", s.sasl_tokens_file, StaticTokens.parse)
        keys = self._watched("sasl.oauthbearer.jwks.file", s.sasl_oauthbearer_jwks_file, Keys.parse)
        return Bearer(
            tokens=tokens or StaticTokens,
            keys=keys or (lambda: None),
            rules=rules,
        )

    def _watched(
        self, setting: str, path: str, parse: Callable[[str], Any]
    ) -> WatchedFile[Any] | None:
        if not path:
            return None
        try:
            file = WatchedFile(Path(path), parse)
        except BadFile as exc:
            raise ConfigError(f"{setting}: {exc}") from None
        self._files.append(file)
        return file

    def _read_password(self) -> str:
        path = Path(self._settings.sasl_bootstrap_password_file)
        text = ""
        try:
            with path.open("rb") as file:
                data = file.read(_PASSWORD_BYTES_MAX)
        except OSError as exc:
            raise ConfigError(f"sasl.bootstrap.password.file: {path}: {exc.strerror}") from None
        with suppress(UnicodeDecodeError):
            text = data.decode().split("\n", 1)[0].rstrip("\r")
        if not text or not (text.isascii() and text.isprintable()):
            raise ConfigError(
                f"sasl.bootstrap.password.file: the first line of {path} is no password of "
                "printable ASCII"
            )
        return text
