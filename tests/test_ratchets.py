"""Measures of the product that may only get better.

A change that makes one worse has to touch its number in the table here, and says why. A change that
makes one better lowers the number.
"""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.test_tidy import ROOT, files

PRODUCT: Final = ("client/", "coordinator/", "protocol/")
MOST: Final = {
    "lines without blanks": 68_908,
    "modules": 290,
    "public class names in several modules": 97,
    "docstring lines per 10 comment lines": 51,
}
# Prose blocks (docstrings, or runs of comment lines) that break the rule of plain words. About one
# in five that the expressions find is harmless.
RIDDLING: Final = {
    "client/": 1,
    "client/assignors/": 0,
    "client/kafka_groups/": 0,
    "client/spark/": 68,
    "client/zookeeper/": 0,
    "coordinator/": 0,
    "coordinator/cli/": 51,
    "coordinator/cluster/": 0,
    "coordinator/group/": 0,
    "coordinator/http/": 95,
    "coordinator/log/": 0,
    "coordinator/runtime/": 99,
    "coordinator/security/": 24,
    "coordinator/server/": 111,
    "protocol/": 64,
}
_SENTENCE: Final = r"(?:^|[.!?:]\s+|\n\n\s*)"
_RIDDLES: Final = [
    # A clause as the subject.
    re.compile(_SENTENCE + r"(?:Who|Whoever|Whose|Whatever|What)\b(?![^.!?]*\?)"),
    # A pronoun as that of the first sentence.
    re.compile(r"^(?:It|That|So|Such|Another|Nobody|They|Those|These)\b"),
    # Words that stand in for a number, or a name.
    re.compile(r"\b[Ss]o (?:many|much)\b"),
    re.compile(r"\b(?:[Hh]e|[Hh]is|[Hh]im)\b"),
    re.compile(r"\b(?:by|from|of|for|to) (?:who|whoever|whom)\b"),
]
_HAS_DOCSTRING: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def product() -> dict[str, str]:
    """Return the text of each module of the product, by its path."""
    named = ((path.relative_to(ROOT).as_posix(), path) for path in files())
    return {
        name: path.read_text(encoding="utf-8")
        for name, path in named
        if name.startswith(PRODUCT) and name.endswith(".py")
    }


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _HAS_DOCSTRING) and (text := ast.get_docstring(node)) is not None:
            yield node.body[0].lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each run of comment lines."""
    run: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if run and token.start[0] > last + 1:
            yield last - len(run) + 1, "\n".join(run)
            run = []
        run.append(token.string.lstrip("#!: ").strip())
        last = token.start[0]
    if run:
        yield last - len(run) + 1, "\n".join(run)


def folder_of(name: str) -> str:
    """Return the longest folder of the table that a module lies in."""
    return max((folder for folder in RIDDLING if name.startswith(folder)), key=len)


@cache
def measures() -> dict[str, float]:
    """Return what `MOST` limits."""
    classes: dict[str, set[str]] = defaultdict(set)
    for name, source in product().items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].add(name)
    lengths = [
        sum(text.count("\n") + 1 for source in product().values() for _, text in found(source))
        for found in (docstrings, comments)
    ]
    return {
        "lines without blanks": sum(
            bool(line.strip()) for text in product().values() for line in text.splitlines()
        ),
        "modules": len(product()),
        "public class names in several modules": sum(len(n) > 1 for n in classes.values()),
        "docstring lines per 10 comment lines": round(10 * lengths[0] / lengths[1]),
    }


@pytest.mark.parametrize("measure", MOST)
def test_what_is_measured_gets_no_worse(measure: str) -> None:
    """The product is smaller and plainer after each change, or the change says why it isn't."""
    assert measures()[measure] <= MOST[measure]


@pytest.mark.parametrize("folder", RIDDLING)
def test_prose_has_a_thing_as_its_subject(folder: str) -> None:
    """Readers at night, and those whose first language isn't English, understand that at once."""
    found = [
        f"{name}:{line}: {' '.join(text.split())[:100]}"
        for name, source in product().items()
        if folder_of(name) == folder
        for blocks in (docstrings(source), comments(source))
        for line, text in blocks
        if any(riddle.search(text) for riddle in _RIDDLES)
    ]

    assert len(found) <= RIDDLING[folder], "\n".join(found)


def test_there_is_a_product_to_measure() -> None:
    """A walk over nothing is never too long."""
    assert all(any(name.startswith(folder) for name in product()) for folder in RIDDLING)
    assert Path(__file__).name in {path.name for path in files()}
