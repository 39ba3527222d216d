"""What the Makefile says when something is missing on the machine."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent.parent
TIMED_OUT = 124  # The exit status of timeout(1).


def check(tool: str, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run one of the checks; return its exit status and what it said."""
    done = subprocess.run(
        [ROOT / "tools" / tool, *arguments],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not done.stdout
    return done.returncode, done.stderr


def fake(path: Path, script: str) -> Path:
    """Make an executable that runs *script*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def java(home: Path, version: str) -> str:
    """Make a Java that says it is *version*; return its home."""
    fake(
        home / "bin" / "java",
        "echo 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g' >&2\n"
        f"""echo 'openjdk version "{version}" 2025-04-15' >&2""",
    )
    return str(home)


@pytest.mark.parametrize("version", ["17.0.15", "17", "21.0.7", "25-ea"])
def test_a_java_that_spark_can_use_is_passed_silently(tmp_path: Path, version: str) -> None:
    """It runs before every test run."""
    assert check("check-java", JAVA_HOME=java(tmp_path, version)) == (0, "")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "16", "strange"])
def test_a_java_that_is_too_old_is_named_with_advice(tmp_path: Path, version: str) -> None:
    """Spark's own message would be a class file version."""
    status, said = check("check-java", JAVA_HOME=java(tmp_path, version))

    assert status == 1
    assert f'version "{version}"' in said
    assert "apt-get install openjdk-17-jre-headless" in said


def test_no_java_at_all_says_what_to_install(tmp_path: Path) -> None:
    """The most common case on a new machine."""
    status, said = check("check-java", JAVA_HOME=str(tmp_path))

    assert status == 1
    assert f"there is no {tmp_path}/bin/java" in said
    assert "Java 17 or newer" in said


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    """Without this, pip would complain about some package instead."""
    old = fake(tmp_path / "python3", 'test "$1" = --version && echo "Python 3.9.2"; exit 1')
    status, said = check("check-python", str(old))

    assert status == 1
    assert "Python 3.9.2. Install Python 3.11 or newer" in said


def test_a_missing_python_is_named() -> None:
    """The name may have been given by hand."""
    status, said = check("check-python", "python-that-is-not-there")

    assert status == 1
    assert "there is no python-that-is-not-there" in said


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [("true", "true", 0), ("exit 3", "true", 3), ("true", "exit 4", 4)],
)
def test_two_commands_run_at_once_and_both_count(
    tmp_path: Path, first: str, second: str, status: int
) -> None:
    """A failure of either must not be lost."""
    begun = [f"touch {tmp_path}/{name}; " for name in ("a", "b")]
    # Each waits for the other one, so one after the other they would never end.
    meet = f"until [ -e {tmp_path}/a ] && [ -e {tmp_path}/b ]; do sleep 0.05; done; "
    done = subprocess.run(
        [
            ROOT / "tools" / "beside",
            f"{begun[0]}{meet}echo one; {first}",
            f"{begun[1]}{meet}echo two; {second}",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (status, "one\ntwo\n")


def test_a_command_that_hangs_is_aborted_and_its_output_is_not_lost() -> None:
    """Else the whole run would hang with it, and nobody would know where."""
    done = subprocess.run(
        [ROOT / "tools" / "beside", "echo one", "echo two; sleep 300"],
        env={"PATH": "/usr/bin:/bin", "LIMIT_S": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (TIMED_OUT, "one\ntwo\n")
