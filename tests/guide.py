"""The snippets of a Markdown page: by section, with their lines, and as files of a reader.

A section begins with a heading of the second level; its snippets build on each other, so they
share one namespace and one folder. A snippet whose first line is a comment with a file name
(``# mypkg/logs.py``) is that file; the others run.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
GUIDE: Final = ROOT / "docs/spark.md"

_FENCE: Final = re.compile(r"^```(\w*)\s*$")
_HEADING: Final = re.compile(r"^## +(.*?) *$")
_FILE: Final = re.compile(r"^# ((?:[\w-]+/)*[\w-]+\.(?:py|txt|yaml))$")


class Snippet(NamedTuple):
    """One fenced block.

    Attributes:
        line: Of its first line of text, from 1.
        file: The name that its first line gives it; None if it is to be run.
    """

    page: str
    line: int
    language: str
    text: str
    file: str | None

    @property
    def place(self) -> str:
        """Where to look for it."""
        return f"{self.page}:{self.line}"


class Section(NamedTuple):
    """A heading and the snippets under it."""

    page: str
    title: str
    snippets: tuple[Snippet, ...]

    @property
    def name(self) -> str:
        """What a test is called that runs it."""
        words = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        return f"{Path(self.page).stem}-{words}"

    @property
    def text(self) -> str:
        """All of its snippets."""
        return "\n".join(snippet.text for snippet in self.snippets)


def sections_of(page: str, text: str) -> list[Section]:
    """Return the sections of *text* that have snippets.

    Raises:
        ValueError: a fence is not closed.

    """
    found: list[tuple[str, list[Snippet]]] = [("", [])]
    opened: tuple[str, int] | None = None
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if opened is None:
            if heading := _HEADING.match(line):
                found.append((heading[1], []))
            elif fence := _FENCE.match(line):
                opened, inside = (fence[1], number + 1), []
        elif line.rstrip() == "```":
            named = _FILE.match(inside[0]) if inside else None
            content = "\n".join(inside) + "\n"
            found[-1][1].append(Snippet(page, opened[1], opened[0], content, named and named[1]))
            opened = None
        else:
            inside.append(line)
    if opened is not None:
        raise ValueError(f"{page}:{opened[1]}: the block is not closed")
    return [Section(page, title, tuple(snippets)) for title, snippets in found if snippets]


def sections(page: Path = GUIDE) -> list[Section]:
    """Return the sections with snippets of a page, else of the guide."""
    name = page.relative_to(ROOT).as_posix()
    return sections_of(name, page.read_text(encoding="utf-8"))
