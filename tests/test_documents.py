"""What the guides show of a terminal is what the program says."""

import ast
import functools
import re
from collections.abc import Iterator
from typing import Final

import pytest

from tests.guide import ROOT, sections_of

# Fewer letters of its own would match any line, and one word all that begin with it.
_LETTERS_MIN: Final = 8
_PAGES: Final = ("README.md", "docs/operations.md", "docs/client.md", "docs/cluster.md")
_TABLE: Final = re.compile(r"\S  +\S")


@functools.cache
def templates() -> list[re.Pattern[str]]:
    """Return every text of the program as a pattern, with anything where a value stands."""
    found = set()
    for folder in ("coordinator", "client", "protocol"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    values = (x.value if isinstance(x, ast.Constant) else "" for x in node.values)
                    texts = list(map(str, values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts = re.sub(r"\{.*?\}", "\0\0", node.value).split("\0")
                else:
                    continue
                words = "".join(texts)
                if " " in words and sum(map(str.isalpha, words)) >= _LETTERS_MIN:
                    found.add("".join(re.escape(text) or ".+?" for text in texts))
    return [re.compile(rf"(.+: )?{pattern}( .+)?") for pattern in found]


def said(page: str) -> Iterator[str]:
    """Yield the lines of the page's terminals that are neither typed nor rows of a table."""
    for section in sections_of(page, (ROOT / page).read_text()):
        for snippet in section.snippets:
            if snippet.language == "console":
                for line in snippet.text.splitlines():
                    if not (line.startswith(("$", "…")) or _TABLE.search(line)) and " " in line:
                        yield line


@pytest.mark.parametrize("page", _PAGES)
def test_every_sentence_that_a_terminal_shows_is_one_of_the_programs(page: str) -> None:
    """Whoever searches a guide for the words on the screen must find them."""
    patterns = templates()
    strange = [
        line for line in said(page) if not any(pattern.fullmatch(line) for pattern in patterns)
    ]

    assert strange == []


def test_a_sentence_of_nobody_would_be_found() -> None:
    """A check that can't fail proves nothing."""
    line = "Consumer group 'billing' has members, and is Stable: go away."

    assert not any(pattern.fullmatch(line) for pattern in templates())
