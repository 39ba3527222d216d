"""The package as its users get it: built, and installed where nothing else is.

Nothing is downloaded. An environment begins empty and gets links to those packages of this one
that the wheel asks for, and to what these ask for.
"""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Final
from zipfile import Path as ZipPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[2]
NAME: Final = "group-coordinator"
TIMEOUT_S: Final = 120
# This folder is on no path of what is installed elsewhere.
ENVIRON: Final = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}


def run(*command: str | Path, cwd: Path) -> str:
    """Return what a command prints; it must succeed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=ENVIRON,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def tracked(*folders: str) -> list[str]:
    """Return the files that belong to the project, or to some folders of it."""
    listed = run(
        *("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *folders), cwd=ROOT
    )
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def build(folder: Path) -> tuple[Path, Path]:
    """Build the source archive from the project's files, and the wheel from that archive.

    Both with the pinned setuptools that is installed here.
    """
    source = folder / "source"
    for name in tracked():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    code = "from setuptools.build_meta import build_sdist; import sys; build_sdist(sys.argv[1])"
    run(sys.executable, "-c", code, folder, cwd=source)
    (archive,) = folder.glob("*.tar.gz")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    run(*command, "--no-index", "--wheel-dir", folder, archive, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return archive, wheel


def metadata_of(wheel: Path) -> metadata.Distribution:
    """Return what a wheel says about itself."""
    (about,) = (part for part in ZipPath(wheel).iterdir() if part.name.endswith(".dist-info"))
    return metadata.PathDistribution(about)


def needed(wheel: Path, extras: tuple[str, ...]) -> dict[str, metadata.Distribution]:
    """Return the installed packages that a wheel with these extras needs, by their names."""
    found: dict[str, metadata.Distribution] = {}
    open_ = [(metadata_of(wheel), extra) for extra in ("", *extras)]
    while open_:
        one, extra = open_.pop()
        for requirement in map(Requirement, one.requires or ()):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            name = canonicalize_name(requirement.name)
            if name not in found:
                found[name] = metadata.distribution(name)
                open_ += [(found[name], more) for more in ("", *requirement.extras)]
    return found


class Environment:
    """A virtual environment with the wheel, and nothing that this one doesn't ask for.

    Attributes:
        packages: The names of what it has besides.
    """

    def __init__(self, folder: Path, wheel: Path, *extras: str) -> None:
        self.folder = folder
        run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
        (site,) = folder.glob("lib/python3*/site-packages")
        packages = needed(wheel, extras)
        for package in packages.values():
            for top in {file.parts[0] for file in package.files or () if file.parts[0] != ".."}:
                link = site / top
                if top != "__pycache__" and not link.exists():
                    link.symlink_to(Path(str(package.locate_file(top))).resolve())
        self.packages = set(packages)
        self.pip("install", "--no-deps", "--no-index", "--no-compile", wheel)

    def pip(self, *arguments: str | Path) -> str:
        """Run this environment's installer on that one; it must succeed."""
        pip = (sys.executable, "-m", "pip", "--python", self.bin("python"))
        return run(*pip, *arguments, cwd=self.folder)

    def bin(self, name: str) -> Path:
        """Return the path of one of its programs."""
        return self.folder / "bin" / name
