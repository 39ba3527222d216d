"""Whether Spark's Python workers run on the same Python as this program."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from client.spark.errors import PythonMismatch

# An interpreter starts in some tens of milliseconds; on a network file system it may take long.
ANSWER_S: Final = 20.0

_VERSION: Final = re.compile(r"[0-9]+\.[0-9]+", re.ASCII)
_ASK: Final = "import sys; print('%d.%d' % sys.version_info[:2])"


def version_of(executable: str) -> str | None:
    """Return the minor version of a Python interpreter, such as ``3.11``; None if it can't tell."""
    found = shutil.which(executable)
    if found is None:
        return None
    with suppress(OSError):
        if Path(found).samefile(sys.executable):
            return own_version()
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        asked = subprocess.run(  # noqa: S603 - Spark starts the same command.
            [found, "-c", _ASK], capture_output=True, text=True, timeout=ANSWER_S, check=True
        )
        version = asked.stdout.strip()
        if _VERSION.fullmatch(version):
            return version
    return None


def own_version() -> str:
    """Return the minor version of this interpreter."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def check_python(
    executable: str, version_of_workers: Callable[[str], str | None] = version_of
) -> None:
    """Refuse an interpreter for Spark's workers that has another minor version than this one.

    One that isn't found here is not judged: it may be that of a cluster.

    Raises:
        PythonMismatch: it is another version; the message says what to set.

    """
    theirs, ours = version_of_workers(executable), own_version()
    if theirs is not None and theirs != ours:
        raise PythonMismatch(
            f"Spark's workers run on Python {theirs} ({executable!r}), but this program on Python "
            f"{ours}: set the environment variable PYSPARK_PYTHON to {sys.executable!r} before "
            "the session is made (with spark-submit: spark.pyspark.python)"
        )
