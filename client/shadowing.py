"""Warns of another module ``client`` that would hide this package, such as a stray client.py."""

# A script called client.py, or one with such a file beside it, hides this package from itself
# and from every Python process that starts in its folder, such as Spark's workers. Once it
# does, no code of ours runs there. What can be done is to look, whenever this package is
# imported somewhere, for the file that will do it elsewhere.

import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PACKAGE_FOLDER: Final = Path(__file__).resolve().parent


class ShadowingWarning(UserWarning):
    """Some file will hide the package `client` in other processes."""


def find(folders: Iterable[str | Path], package: Path = PACKAGE_FOLDER) -> Path | None:
    """Return the first other module or package ``client`` in *folders*, None if there is none."""
    for folder in folders:
        for candidate in (Path(folder) / "client" / "__init__.py", Path(folder) / "client.py"):
            try:
                if candidate.is_file() and not _is_ours(candidate, package):
                    return candidate.resolve()
            except OSError:
                continue  # Unreadable folders on sys.path are none of our business.
    return None


def _is_ours(candidate: Path, package: Path) -> bool:
    if candidate.resolve().parent == package:
        return True
    # Another copy of this package, such as a checkout beside an installation.
    return candidate.name == "__init__.py" and (candidate.parent / Path(__file__).name).is_file()


def message(found: Path) -> str:
    """Return the one clear sentence, with what to do."""
    return (
        f"{found} hides group-coordinator's package `client` (in {PACKAGE_FOLDER}) from Python "
        f'processes that look there first; they fail with "cannot import name ... from '
        f"'client'\" or \"'client' is not a package\". Rename that file."
    )


def warn() -> None:
    """Warn if the script's own folder or some entry of ``sys.path`` has another `client`."""
    folders = [Path(entry or ".") for entry in sys.path]
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script:
        folders.insert(0, Path(script).parent)
    found = find(folders)
    if found is not None:
        warnings.warn(message(found), ShadowingWarning, stacklevel=3)
