"""One version, one licence, and no package for those who don't use it."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from client import connection
from client.shadowing import PACKAGES
from coordinator import __main__ as entry
from coordinator.log.errors import EXIT_REFUSED
from coordinator.server.dispatch import SERVER_SOFTWARE
from protocol.version import VERSION
from tests.guide import ROOT

PROJECT: Final[dict[str, Any]] = tomllib.loads(
    (ROOT / "pyproject.toml").read_text(encoding="utf-8")
)["project"]
# What imports a package under another name than the one it is installed by.
IMPORTED_AS: Final = {
    "google-re2": "re2",
    "prometheus-client": "prometheus_client",
    "pyjwt": "jwt",
}
# Importing everything that an executor can need, in a process without what only the daemon has.
EVERYTHING: Final = """
import importlib, pkgutil, sys
for name in {missing!r}:
    sys.modules[name] = None  # As if it weren't installed.
for package in ("protocol", "client"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if module.name not in {with_extras!r}:
            importlib.import_module(module.name)
"""
# What has packages of its own: command lines, and metrics.
WITH_EXTRAS: Final = (
    "client.metrics",
    "client.kafka_groups.__main__",
    "client.spark.lag.__main__",
    "client.spark.lag.job",
)


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


def test_daemon_client_and_package_have_one_version() -> None:
    """Who reports a mistake says which release; three answers would be none."""
    assert PROJECT["dynamic"] == ["version"]
    assert f"group-coordinator/{VERSION}" == SERVER_SOFTWARE
    assert vars(connection)["VERSION"] is VERSION


def test_no_module_says_the_version_once_more() -> None:
    """The copy would be forgotten; only the example of the wire protocol has one, for its bytes."""
    copies = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value == VERSION
    ]

    assert [copy.partition(":")[0] for copy in copies] == ["protocol/version.py"]


def test_the_changelog_begins_with_this_version() -> None:
    """What is released is what it tells of."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = [line for line in text.splitlines() if line.startswith("## ")]

    assert headings[0].split()[1] in {VERSION, "Unreleased"}
    assert any(line.split()[1] == VERSION for line in headings)


def test_the_licence_is_the_one_that_the_package_names() -> None:
    """Many may use nothing that has none."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")

    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE"]
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert "urls" not in PROJECT


@pytest.mark.parametrize("package", PACKAGES)
def test_a_type_checker_takes_the_packages_types(package: str) -> None:
    """Without the mark it takes every name of ours for Any."""
    assert (ROOT / package / "py.typed").is_file()


def names_of(requirements: list[str]) -> set[str]:
    """Return what *requirements* are imported as."""
    found = {text.split(">")[0].split("[")[0].split("<")[0].strip() for text in requirements}
    return {IMPORTED_AS.get(name, name) for name in found}


def test_an_executor_gets_three_packages() -> None:
    """Each other one would be installed on every machine of a cluster for nothing."""
    assert names_of(PROJECT["dependencies"]) == {"trio", "msgspec", "msgpack"}


def test_the_daemon_knows_what_its_extra_brings() -> None:
    """Else the line that names the extra would not come for one of them."""
    assert names_of(PROJECT["optional-dependencies"]["server"]) == entry.SERVER_ONLY


def test_the_client_and_spark_need_nothing_of_the_daemon() -> None:
    """An import that slipped in would be seen first by a user's executors."""
    missing = sorted(entry.SERVER_ONLY - {"outcome"})  # trio needs that one itself.
    done = python(EVERYTHING.format(missing=missing, with_extras=WITH_EXTRAS))

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("missing", ["click", "re2", "structlog"])
def test_a_daemon_without_its_extra_says_what_to_install(missing: str, tmp_path: Path) -> None:
    """Whoever forgot the extra has one line to read, and knows what to type."""
    arguments = ["group-coordinator", "serve", "--listen", "127.0.0.1:0"]
    arguments += ["--data-dir", str(tmp_path / "data")]
    code = f"import sys; sys.modules[{missing!r}] = None; sys.argv = {arguments!r}"
    done = python(f"{code}\nfrom coordinator.__main__ import main; main()")

    assert (done.returncode, done.stdout, done.stderr) == (
        *(EXIT_REFUSED, ""),
        f"group-coordinator: {missing} isn't installed: pip install 'group-coordinator[server]'\n",
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("module", "extra"), [("client.kafka_groups", "kafka"), ("client.spark.lag", "server")]
)
def test_a_command_line_of_the_client_says_what_it_needs(module: str, extra: str) -> None:
    """They are started where the client is, which needs no click."""
    start = f"runpy.run_module({f'{module}.__main__'!r})"
    done = python(f"import runpy, sys; sys.modules['click'] = None; {start}")

    assert (done.returncode, done.stderr) == (
        1,
        f"python -m {module} needs click: pip install 'group-coordinator[{extra}]'\n",
    )


@pytest.mark.parametrize("missing", sorted(entry.SERVER_ONLY))
def test_every_package_of_the_extra_is_explained(missing: str) -> None:
    """Also one that only some command uses, or a part of it."""
    exc = ModuleNotFoundError(f"No module named '{missing}.x'", name=f"{missing}.x")

    assert entry.explained(exc) == (
        f"{missing} isn't installed: pip install 'group-coordinator[server]'"
    )


def test_another_import_that_fails_is_not_explained_away() -> None:
    """A mistake of ours must be seen with its traceback."""
    assert entry.explained(ModuleNotFoundError("No module named 'x'", name="x")) is None
    assert entry.explained(ImportError("cannot import name")) is None
