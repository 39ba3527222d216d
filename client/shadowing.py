"""Looks for other modules that hide this project's packages, such as a stray client.py."""

# A script called client.py, or one with such a file beside it, hides this package from itself
# and from every Python process that starts in its folder, such as Spark's workers. Once it
# does, no code of ours runs there. So each import of this package looks for a file that will
# hide it elsewhere. A file protocol.py is worse and
# easier: this package is found, and what it needs is not, so its import can say why.

import sys
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGES: Final = ("client", "protocol", "coordinator")
NEEDED: Final = "protocol"  # The sibling package that this package imports.
ROOT: Final = Path(__file__).resolve().parent.parent


class ShadowingWarning(UserWarning):
    """Some file will hide a package of this project in other processes."""


def find(folders: Iterable[str | Path], root: Path = ROOT) -> dict[str, Path]:
    """Return, by package, the first other module of its name in *folders*."""
    found: dict[str, Path] = {}
    for folder in map(Path, folders):
        for package in PACKAGES:
            if package not in found and (other := _other(folder, package, root)):
                found[package] = other
    return found


def _other(folder: Path, package: str, root: Path) -> Path | None:
    # Of a package and a module in one folder Python takes the package.
    for candidate in (folder / package / "__init__.py", folder / f"{package}.py"):
        try:
            if candidate.is_file():
                return None if _is_ours(candidate, package, root) else candidate.resolve()
        except OSError:
            continue  # Unreadable folders on sys.path are none of our business.
    return None


def _is_ours(candidate: Path, package: str, root: Path) -> bool:
    if candidate.resolve().parent == root / package:
        return True
    # Accept another copy of this project, e.g. a checkout beside an installation.
    beside = candidate.parent.parent / "client" / Path(__file__).name
    return candidate.name == "__init__.py" and beside.is_file()


def message(found: Path, package: str) -> str:
    """Return the one clear sentence, with what to do."""
    return (
        f"{found} hides group-coordinator's package `{package}` (in {ROOT / package}) from Python "
        f'processes that look there first; they fail with "cannot import name ... from '
        f"'{package}'\" or \"'{package}' is not a package\". Rename that file."
    )


def look() -> None:
    """Warn of each package that is hidden from others; raise for one that is hidden from us.

    Looked at are the script's own folder and the entries of ``sys.path``.

    Raises:
        ImportError: this process would get another `protocol`, so this package can't work.
    """
    spec = find_spec(NEEDED)
    here = Path(spec.origin) if spec is not None and spec.origin else None
    if here is not None and not _is_ours(here, NEEDED, ROOT):
        raise ImportError(message(here, NEEDED), name=NEEDED, path=str(here))
    folders = [Path(entry or ".") for entry in sys.path]
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script:
        folders.insert(0, Path(script).parent)
    for package, other in find(folders).items():
        # Behind this function: this module, the package, and who imports it.
        warnings.warn(message(other, package), ShadowingWarning, stacklevel=4)


look()  # Before the package's other modules import what may be hidden.
