"""Settings of the Kafka client from a file, so that passwords stay off command lines."""

from pathlib import Path


def parse_settings(text: str, name: str) -> dict[str, str]:
    """Return the settings of a file with lines ``name=value``. Pure.

    Empty lines and lines that begin with # are left out. Values are never part of an error.

    Raises:
        ValueError: a line is neither; the message names *name* and the line's number.

    """
    settings = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        key, equals, value = stripped.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{name}, line {number}: not of the form name=value")
        settings[key.strip()] = value.strip()
    return settings


def read_settings(address: str | None, file: Path | None) -> dict[str, str]:
    """Return the settings for a cluster at *address*, with those of *file*.

    Raises:
        ValueError: neither says where the cluster is, or the file can't be read.

    """
    settings: dict[str, str] = {}
    if file is not None:
        try:
            settings = parse_settings(file.read_text(encoding="utf-8-sig"), str(file))
        except OSError as exc:
            raise ValueError(f"{file}: {exc.strerror}") from exc
    if address is not None:
        settings["bootstrap.servers"] = address
    if not settings.get("bootstrap.servers"):
        raise ValueError("say --kafka, or bootstrap.servers in the file of --kafka-config")
    return settings
