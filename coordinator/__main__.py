"""Entry point of ``group-coordinator`` and ``python -m coordinator``; names missing packages."""

import sys
from importlib.util import find_spec
from typing import Final

from coordinator.log.errors import EXIT_REFUSED
from coordinator.runtime import stop_signals

# Modules that only the extra "server" installs.
SERVER_ONLY: Final = frozenset(
    {
        "click",
        "cryptography",
        "h11",
        "jwt",
        "outcome",
        "prometheus_client",
        "re2",
        "rich",
        "scramp",
        "structlog",
    }
)


def main() -> None:
    """Run the command line; if a package is missing, exit with one line, not a traceback."""
    if sys.argv[1:2] == ["serve"]:
        stop_signals.catch()
    try:
        # Imported here, as it needs the extra; each command imports more when it runs.
        from coordinator.cli.main import main as command_line  # noqa: PLC0415

        command_line(prog_name="group-coordinator")
    except ImportError as exc:
        reason = explained(exc)
        if reason is None:
            raise
        print(f"group-coordinator: {reason}", file=sys.stderr)  # noqa: T201 - There is no click.
        sys.exit(EXIT_REFUSED)


def explained(exc: ImportError) -> str | None:
    """Return how to fix a failed import; None if the cause is a bug of this package."""
    missing = (exc.name or "").partition(".")[0]
    if missing in SERVER_ONLY:
        return f"{missing} isn't installed: pip install 'group-coordinator[server]'"
    if missing == "kazoo":
        return "kazoo isn't installed: pip install 'group-coordinator[server,zookeeper]'"
    if missing == "protocol" and (spec := find_spec(missing)) is not None:
        return f"{spec.origin} hides the package `protocol` of group-coordinator: rename that file"
    return None


if __name__ == "__main__":
    main()
