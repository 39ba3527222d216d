"""Secrets that stay out of a stream's options.

Spark shows options in plans, logs and its UI. So an option's value may say where the secret is
instead: ``{env:NAME}`` or ``{file:/path}``, once or within other text. It is looked up by each
process that makes the log, the reader and the executors, and is never part of a message.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from client.spark.options import LOG_PREFIXES, OptionError

_REFERENCE: Final = re.compile(r"\{(env|file):([^{}]+)\}")


def _read_text(path: str) -> str:
    return Path(path).read_text("utf-8")


def with_secrets(
    options: Mapping[str, str],
    *,
    environ: Mapping[str, str] = os.environ,
    read_text: Callable[[str], str] = _read_text,
) -> dict[str, str]:
    """Return the options with the references in those of the log replaced.

    A file's last line break is not part of the secret.

    Args:
        options: names in lower case; only ``log.*`` and ``kafka.*`` may have references.
        environ: where ``env`` looks.
        read_text: how ``file`` reads.

    Raises:
        OptionError: there is no such variable or file here; the message names the option.

    """

    def resolve(name: str, kind: str, where: str) -> str:
        try:
            return environ[where] if kind == "env" else read_text(where).removesuffix("\n")
        except (KeyError, OSError, UnicodeDecodeError) as error:
            what = "environment variable" if kind == "env" else "readable file"
            raise OptionError(
                f"option {name!r} refers to {kind}:{where}, but this process has no such {what}; "
                "the driver and all executors need it"
            ) from error

    return {
        name: _REFERENCE.sub(lambda match: resolve(name, match[1], match[2]), value)  # noqa: B023
        if name.startswith(LOG_PREFIXES)
        else value
        for name, value in options.items()
    }
