"""What a reviewer should not have to say twice."""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Spelled in two halves, so that this file doesn't find itself.
BANNED_WORDS = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
REGISTRIES = re.compile(
    "|".join(["py" + r"pi\.org", r"pythonho" + r"sted\.org", "--index" + "-url"])
)
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:ho" + "me|ro" + "ot|wo" + r"rk)/\w")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@cache
def files() -> tuple[Path, ...]:
    """Return the files of the project: what git tracks, and what it would."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    paths = (ROOT / name for name in listed.split("\0") if name)
    return tuple(sorted(path for path in paths if path.is_file()))


def texts() -> list[tuple[str, str]]:
    """Return the name and text of each file that is text."""
    result = []
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        result.append((path.relative_to(ROOT).as_posix(), text))
    return result


def matching(pattern: re.Pattern[str], prefix: str = "") -> list[str]:
    """Return file:line of every line that *pattern* finds in files under *prefix*."""
    return [
        f"{name}:{number}: {line.strip()[:80]}"
        for name, text in texts()
        if name.startswith(prefix)
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_there_is_something_to_look_at() -> None:
    """A walk over nothing finds nothing."""
    assert {"Makefile", "pyproject.toml", "tests/test_tidy.py"} <= {name for name, _ in texts()}


def test_no_unfinished_work_is_noted_in_the_files() -> None:
    """What is left to do stands in an issue, where it is seen."""
    assert matching(BANNED_WORDS) == []


def test_no_file_names_a_package_index() -> None:
    """Where packages come from is a setting of the machine, not of the project."""
    assert matching(REGISTRIES) == []


def test_no_file_names_a_path_of_one_machine() -> None:
    """It would work for one person only."""
    assert matching(MACHINE_PATHS) == []


def test_tests_do_not_sleep() -> None:
    """Only tests with real processes may wait, by polling with a deadline."""
    found = [
        f"{name}:{node.lineno}"
        for name, text in texts()
        if name.startswith("tests/") and not name.startswith("tests/integration/")
        if name.endswith(".py")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep"
    ]

    assert found == []


def test_every_test_says_why_it_is_there() -> None:
    """The name says what; the docstring says who would suffer."""
    silent = [
        f"{name}:{node.lineno} {node.name}"
        for name, text in texts()
        if name.startswith("tests/") and name.endswith(".py")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]

    assert silent == []


def test_links_between_the_documents_lead_somewhere() -> None:
    """A dead link in a guide costs its reader more than no link."""
    dead = [
        f"{name} -> {target}"
        for name, text in texts()
        if name.endswith(".md")
        for target in LINK.findall(text)
        if not target.startswith(("http://", "https://", "mailto:", "#"))
        and not (ROOT / name).parent.joinpath(target.partition("#")[0]).exists()
    ]

    assert dead == []
