"""Source archive and wheel: built, looked into, and installed in empty environments."""

import json
import signal
import subprocess
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from client.blocking import connect_blocking
from client.shadowing import PACKAGES
from protocol.version import VERSION
from tests.integration.packages import ENVIRON, ROOT, Environment, build, metadata_of, run, tracked

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source archive, and the wheel that was built from it."""
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def base(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What an executor has, but for Spark."""
    return Environment(tmp_path_factory.mktemp("base") / "env", built[1])


@pytest.fixture(scope="module")
def server(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What the daemon has."""
    return Environment(tmp_path_factory.mktemp("server") / "env", built[1], "server")


def test_the_wheel_has_the_packages_and_nothing_else(built: tuple[Path, Path]) -> None:
    """Tests in it would be installed beside everybody's own package of that name."""
    names = set(ZipFile(built[1]).namelist())
    about = {name for name in names if name.startswith("group_coordinator-")}

    assert names - about == set(tracked(*PACKAGES))
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert {name.partition("/")[2] for name in about} == {
        *("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt"),
        "licenses/LICENSE",
    }


def test_the_wheel_says_version_licence_and_no_address(built: tuple[Path, Path]) -> None:
    """This is what a package index and a licence check read."""
    about = metadata_of(built[1]).metadata

    assert about["Version"] == VERSION
    assert about["License-Expression"] == "Apache-2.0"
    assert about["License-File"] == "LICENSE"
    assert "Typing :: Typed" in about.get_all("Classifier", [])
    assert about.get_all("Project-URL") is None
    assert about["Home-page"] is None


def test_the_source_archive_has_what_its_readme_leads_to(built: tuple[Path, Path]) -> None:
    """Documentation and examples, too; not the tests, which need servers and pinned packages."""
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert set(tracked("docs", "examples", *PACKAGES)) <= names
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= names
    others = ("tests/", "bench/", "demo/", "tools/")
    assert [name for name in names if name.startswith(others)] == ["bench/README.md"]


def test_an_executor_gets_what_the_client_needs_and_no_more(base: Environment) -> None:
    """Each further package is one that somebody's cluster has to agree about."""
    theirs = {"attrs", "idna", "outcome", "sniffio", "sortedcontainers"}  # trio's own.

    assert base.packages == {"trio", "msgspec", "msgpack"} | theirs
    assert "No broken requirements" in base.pip("check")


def test_without_its_extra_the_daemon_says_what_to_install(
    base: Environment, tmp_path: Path
) -> None:
    """A traceback would name a module, and not what to type."""
    done = subprocess.run(
        [base.bin("group-coordinator"), "serve", "--data-dir", "data"],
        cwd=tmp_path,
        env=ENVIRON,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 78
    assert done.stdout == ""
    assert done.stderr.endswith("isn't installed: pip install 'group-coordinator[server]'\n")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_daemon_and_consumer_run_from_the_wheel(
    base: Environment, server: Environment, tmp_path: Path
) -> None:
    """Each with its own packages only, and this folder on no path."""
    assert run(server.bin("group-coordinator"), "--version", cwd=tmp_path).strip().endswith(VERSION)
    command = [str(server.bin("group-coordinator")), "serve", "--listen", "127.0.0.1:0"]
    command += ["--data-dir", str(tmp_path / "data")]
    with subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRON, stdout=subprocess.PIPE, text=True
    ) as daemon:
        try:
            assert daemon.stdout is not None
            lines = (json.loads(line) for line in daemon.stdout)
            port = next(line["port"] for line in lines if line["event"] == "listening")
            address = f"127.0.0.1:{port}"
            code = (ROOT / "examples/consumer.py").read_text().replace("127.0.0.1:9310", address)
            with subprocess.Popen(
                [base.bin("python"), "-u", "-c", code],
                cwd=tmp_path,
                env=ENVIRON,
                stdout=subprocess.PIPE,
                text=True,
            ) as consumer:
                assert consumer.stdout is not None
                first = consumer.stdout.readline()
                consumer.send_signal(signal.SIGINT)
                consumer.communicate(timeout=60)

            assert first.startswith("generation 1: flights-")
            assert consumer.returncode == 0
            with connect_blocking(address) as client:
                assert [one.state for one in client.describe_groups(["readers"])] == ["Empty"]
        finally:
            daemon.terminate()
            daemon.communicate(timeout=60)
    assert daemon.returncode == 0
