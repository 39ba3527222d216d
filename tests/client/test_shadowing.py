"""Files of a user's own that hide a package of this project."""

import subprocess
import sys
from pathlib import Path

import pytest

from client import shadowing
from client.shadowing import PACKAGES, ROOT


@pytest.mark.parametrize("package", PACKAGES)
def test_a_users_own_file_with_a_packages_name_is_named(package: str, tmp_path: Path) -> None:
    """The error that Python gives elsewhere names neither the file nor the cure."""
    assert shadowing.find([tmp_path, ROOT]) == {}

    (tmp_path / f"{package}.py").touch()
    found = shadowing.find([tmp_path, ROOT])

    assert found == {package: tmp_path / f"{package}.py"}
    said = shadowing.message(found[package], package)
    assert said.startswith(f"{found[package]} hides group-coordinator's package `{package}`")
    assert said.endswith("Rename that file.")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_folder_with_a_packages_name_hides_it_as_well(package: str, tmp_path: Path) -> None:
    """Only a package does: a folder without __init__.py gives way to a real package."""
    (tmp_path / package).mkdir()

    assert shadowing.find([tmp_path]) == {}

    (tmp_path / package / "__init__.py").touch()

    assert shadowing.find([tmp_path]) == {package: tmp_path / package / "__init__.py"}


def test_another_copy_of_this_project_hides_nothing(tmp_path: Path) -> None:
    """A checkout beside an installation is how this project is worked on."""
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "client" / "shadowing.py").touch()

    assert shadowing.find([tmp_path]) == {}


def test_a_file_beside_the_package_hides_nothing(tmp_path: Path) -> None:
    """Of the two Python takes the package."""
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "__init__.py").touch()
    (tmp_path / "client.py").touch()

    assert shadowing.find([tmp_path], root=tmp_path) == {}


def run(script: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    """Run a script of these lines, which finds this project behind its own folder."""
    script.write_text("\n".join(["import sys", f"sys.path.append({str(ROOT)!r})", *lines]))
    return subprocess.run(
        [sys.executable, "-W", "always", str(script)],
        env={},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_importing_the_package_warns_of_every_such_file(tmp_path: Path) -> None:
    """Here the package still wins, but Spark's workers start in that folder."""
    for package in PACKAGES:
        (tmp_path / f"{package}.py").touch()

    done = run(tmp_path / "driver.py", f"sys.path.insert(0, {str(ROOT)!r})", "import client")

    assert done.returncode == 0, done.stderr
    for package in PACKAGES:
        file = tmp_path / f"{package}.py"
        assert f"{file} hides group-coordinator's package `{package}`" in done.stderr
        # It points to the line that imports, not to one of ours.
        assert f"{tmp_path / 'driver.py'}:4: ShadowingWarning: {file}" in done.stderr


def test_a_hidden_protocol_is_one_clear_error(tmp_path: Path) -> None:
    """The client is found and what it needs is not; Python would name some name of ours."""
    (tmp_path / "protocol.py").touch()

    done = run(tmp_path / "service.py", "import client")

    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    file = tmp_path / "protocol.py"
    assert last.startswith(f"ImportError: {file} hides group-coordinator's package `protocol`")


def test_a_hidden_protocol_is_one_line_of_the_daemon(tmp_path: Path) -> None:
    """Whoever starts it needs the file's name and no traceback."""
    (tmp_path / "protocol.py").touch()

    start = ("from coordinator.__main__ import main", "main()")
    done = run(tmp_path / "start.py", *start)

    file = tmp_path / "protocol.py"
    said = f"{file} hides the package `protocol` of group-coordinator: rename that file"
    assert (done.returncode, done.stderr) == (78, f"group-coordinator: {said}\n")
