"""Which Python Spark's workers run on, told before anything fails because of it."""

import stat
import sys
from pathlib import Path

import pytest

from client.spark import PythonMismatch
from client.spark.source.interpreters import check_python, own_version, version_of


def executable(folder: Path, script: str) -> str:
    """Return a program that stands for an interpreter."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_another_minor_version_is_refused_with_what_to_set() -> None:
    """Else the first query ends with a stack trace about a worker."""
    with pytest.raises(PythonMismatch) as raised:
        check_python("python3", lambda _: "3.9")

    message = str(raised.value)
    assert "Spark's workers run on Python 3.9 ('python3')" in message
    assert f"set the environment variable PYSPARK_PYTHON to {sys.executable!r}" in message
    assert "\n" not in message


@pytest.mark.parametrize("theirs", [own_version(), None])
def test_the_same_version_or_one_that_is_not_here_passes(theirs: str | None) -> None:
    """On a cluster the interpreter may be in an archive that this machine doesn't have."""
    check_python("./env/bin/python", lambda _: theirs)


def test_an_interpreter_is_asked_for_its_version(tmp_path: Path) -> None:
    """By running it, as Spark does."""
    assert version_of(executable(tmp_path, "echo 3.9")) == "3.9"
    assert version_of(executable(tmp_path, f'exec {sys.executable} "$@"')) == own_version()


def test_the_own_interpreter_is_not_started_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also under another name; it would take tens of milliseconds."""
    link = tmp_path / "python3"
    link.symlink_to(sys.executable)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("started"))

    assert version_of(str(link)) == own_version()


@pytest.mark.parametrize("script", ["exit 1", "echo not a version", "printf '\\377'", "true"])
def test_what_is_no_interpreter_is_not_judged(tmp_path: Path, script: str) -> None:
    """Spark will say what it thinks of it."""
    assert version_of(executable(tmp_path, script)) is None


def test_a_missing_or_forbidden_one_is_not_judged(tmp_path: Path) -> None:
    """Likewise."""
    (tmp_path / "file").write_text("")
    (tmp_path / "file").chmod(0)

    assert version_of(str(tmp_path / "none")) is None
    assert version_of(str(tmp_path / "file")) is None
