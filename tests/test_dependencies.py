"""What is known of the packages that this project takes, and that a release says which they are."""

import json
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.guide import ROOT

# Made by the Makefile's `check` and `test`.
AUDIT_PYTHON: Final = ROOT / ".audit" / "bin" / "python"
AUDIT: Final[dict[str, Any]] = runpy.run_path(str(ROOT / "tools" / "audit.py"))
KNOWN: Final = {"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
FINE: Final = {"name": "b", "version": "1", "vulns": []}
UNKNOWN: Final = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("dependencies", "status", "said"),
    [
        ([FINE], 0, "audit: nothing is known of 1 packages"),
        ([KNOWN, FINE], 1, "audit: a 1: PYSEC-1, mended in 2"),
        ([FINE, UNKNOWN], 1, "audit: c: not in the database"),
        ([UNKNOWN], 0, AUDIT["NO_DATABASE"]),
    ],
)
def test_an_audit_fails_for_what_it_finds_and_what_it_could_not_look_up(
    dependencies: list[dict[str, object]], status: int, said: str
) -> None:
    """A mirror without a database stops nobody; a hole that is known stops everybody."""
    assert (status, said) == AUDIT["verdict"]({"dependencies": dependencies})


def test_an_audit_without_a_report_says_that_there_is_no_database() -> None:
    """Without a network pip-audit ends with a traceback, which is nobody's fault here."""
    assert (0, AUDIT["NO_DATABASE"]) == AUDIT["verdict"](None)


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-server.lock"])
def test_a_bill_of_materials_names_each_locked_package_and_no_machine(
    tmp_path: Path, name: str
) -> None:
    """Whoever asks whether a release has a certain package must not be told a wrong no."""
    if not AUDIT_PYTHON.exists():
        pytest.skip("no .audit here: make check makes it")
    lock = (ROOT / name).read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([^\s#=]+)==(\S+)", lock, re.MULTILINE))
    texts = []
    for output in (tmp_path / "one.json", tmp_path / "two.json"):
        command = [AUDIT_PYTHON, ROOT / "tools" / "sbom.py", ROOT / name, output]
        subprocess.run(command, check=True, timeout=120)
        texts.append(output.read_text(encoding="utf-8"))
    bill = json.loads(texts[0])
    needed = {one for each in bill["dependencies"] for one in each.get("dependsOn", [])}

    assert texts[0] == texts[1]
    assert pinned == {one["name"]: one["version"] for one in bill["components"]}
    assert needed == {one["bom-ref"] for one in bill["components"]}
    for one in bill["components"]:
        hashes = {each["content"] for each in one["externalReferences"][0]["hashes"]}
        assert hashes
        assert all(f"sha256:{each}" in lock for each in hashes)
    # The address of the schema is all that looks like one.
    assert texts[0].count("://") == 1
    assert str(ROOT) not in texts[0]
