"""SIGHUP: the file of the log is opened anew, and the settings that may change are read again."""

from collections.abc import Callable
from contextlib import suppress

from coordinator.config import ConfigError, Settings
from coordinator.server.terminal import LogOutput, log_event


class Reload:
    """Reads settings as the start did, and puts those in force that may change.

    A file that can't be, or a log that can't be opened, changes nothing.
    """

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings],
        output: LogOutput,
        applied: Callable[[], None],
    ) -> None:
        """*applied* is called when *settings* have changed, for those who keep a copy."""
        self._settings = settings
        self._read = read
        self._output = output
        self._applied = applied

    def __call__(self) -> None:
        """Do it, and say what came of it."""
        try:
            newer = self._read()
            open_log(self._output, newer)
        except ConfigError as exc:
            with suppress(ConfigError):  # Whoever has moved the file away wants a new one.
                open_log(self._output, self._settings)
            log_event("settings.refused", {"reason": str(exc)})
            return
        adopted = self._settings.adopt(newer)
        if adopted.changed:
            self._applied()
        log_event("settings.reloaded", adopted._asdict())


def open_log(output: LogOutput, settings: Settings) -> None:
    """Have *output* write as *settings* say.

    Raises:
        ConfigError: The file can't be opened; everything is as it was.
    """
    try:
        output.configure(settings.log_level, settings.log_format, settings.log_file)
    except OSError as exc:
        raise ConfigError(f"log.file: {settings.log_file} can't be opened: {exc.strerror}") from exc
