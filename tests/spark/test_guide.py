"""docs/spark.md names what there is, and its snippets can be read; running them needs Spark."""

import ast
import importlib
import re
from pathlib import Path
from typing import Final

import pytest

import client.spark
from client.spark.source.reader_options import KNOWN
from tests.guide import GUIDE, ROOT, Section, sections, sections_of

TEXT: Final = GUIDE.read_text(encoding="utf-8")
# What a reader can paste; the others are for the eye.
LANGUAGES: Final = {"python", "sh", "yaml", "json", ""}
SNIPPETS: Final = [snippet for section in sections() for snippet in section.snippets]
CODE: Final = [snippet for snippet in SNIPPETS if snippet.language == "python"]
OPTION: Final = re.compile(r'\.option\(\s*"(\w+)"')
# How the guide shows what a message has in its place.
ELLIPSIS: Final = "…"

PAGE: Final = """# Title
```python
before = 1
```

## First part
```python
# mypkg/logs.py
x = 1
```
text
```
## not a heading
```
## No snippet
## Second
```sh
ls
```
"""


def test_a_page_is_cut_into_sections_and_snippets() -> None:
    """A heading in a block is none, and the first line may name a file."""
    found = sections_of("docs/x.md", PAGE)

    assert [(s.title, s.name) for s in found] == [
        ("", "x-"),
        ("First part", "x-first-part"),
        ("Second", "x-second"),
    ]
    file, plain = found[1].snippets
    assert (file.file, file.language, file.line, file.place) == (
        *("mypkg/logs.py", "python", 8),
        "docs/x.md:8",
    )
    assert (plain.file, plain.language, plain.text) == (None, "", "## not a heading\n")
    assert found[2].text == "ls\n"


def test_a_block_that_is_not_closed_is_an_error() -> None:
    """Else the rest of the page would not be run."""
    with pytest.raises(ValueError, match=r"docs/x\.md:2: the block is not closed"):
        sections_of("docs/x.md", "```python\nx = 1\n")


def test_the_guide_has_snippets() -> None:
    """A walk over nothing finds nothing."""
    assert len(CODE) > 10


def test_every_block_says_what_it_is() -> None:
    """A block of Python under another name would never be run."""
    assert {snippet.language for snippet in SNIPPETS} <= LANGUAGES
    for snippet in SNIPPETS:
        assert snippet.language or "import " not in snippet.text, snippet.place


def test_every_import_of_this_package_in_a_snippet_is_there() -> None:
    """The names are what a user types first."""
    for snippet in CODE:
        for node in ast.walk(ast.parse(snippet.text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("client"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{snippet.place}: {alias.name}"


def test_every_public_name_is_explained() -> None:
    """What is exported is promised, so it has to be in the guide."""
    missing = [name for name in client.spark.__all__ if not re.search(rf"\b{name}\b", TEXT)]

    assert missing == []


def test_every_option_of_the_coordinated_source_has_a_row() -> None:
    """An option that nobody knows is not there."""
    rows = set(re.findall(r"^\| `(\w+)`", TEXT, re.MULTILINE))

    assert set(KNOWN) - rows == set()


def messages(folder: Path) -> list[str]:
    """Return every text in the code of *folder*, with an ellipsis for what is put in."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(_part(value) for value in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def _part(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else ELLIPSIS


def tables_of_messages() -> dict[str, list[str]]:
    """Return the first column of each table of messages, by its heading."""
    parts = re.split(r"^### (.*)\n\n\| message \| .*\n.*\n", TEXT, flags=re.MULTILINE)[1:]
    return {
        title: [line.split(" | ")[0] for line in rows.split("\n\n")[0].splitlines()]
        for title, rows in zip(parts[::2], parts[1::2], strict=True)
    }


def listed_messages() -> list[str]:
    """Return what the tables of messages have in backquotes."""
    cells = [cell for table in tables_of_messages().values() for cell in table]
    return [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]


# What others say, not this package.
FOREIGN: Final = (
    "'client' is not a package",
    "CONCURRENT_STREAM_LOG_UPDATE",
    "DATA_SOURCE_PUSHDOWN_DISABLED",
    "Multiple streaming queries are concurrently using …",
    "Python worker failed to connect back",
    "… UNKNOWN_TOPIC_OR_PART …",
)


def fragments(message: str) -> list[str]:
    """Return what of a message must stand in the code as it does here.

    Where one text is put into another, there is a stop of some kind in between. What is left of
    a message then may be too short to say anything.
    """
    pieces = (piece.strip(" '\",") for piece in STOPS.split(message))
    return [piece for piece in pieces if len(piece) > 3]


PERCENT: Final = re.compile(r"%[.\d]*[sdgfr]")
STOPS: Final = re.compile(r"[….;:?()[\]]")


@pytest.mark.parametrize("message", [m for m in listed_messages() if m not in FOREIGN])
def test_every_message_in_the_guide_is_one_of_the_code(message: str) -> None:
    """People search for what they see; a message that was reworded is not found."""
    for fragment in fragments(message):
        assert any(fragment in text for text in CODE_MESSAGES), f"{message}: no {fragment!r}"


@pytest.mark.parametrize("title", tables_of_messages())
def test_the_messages_of_a_table_stand_by_alphabet(title: str) -> None:
    """Who has one before their eyes looks for it by its first words."""
    words = [
        " ".join(re.findall(r"[a-z0-9]+", cell.lower())) for cell in tables_of_messages()[title]
    ]

    assert words == sorted(words)
    assert len(words) > 3


CODE_MESSAGES: Final = [
    " ".join(PERCENT.sub(ELLIPSIS, text).split())
    for package in ("client", "coordinator", "protocol")
    for text in messages(ROOT / package)
]


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.name)
def test_the_snippets_of_a_section_are_python(section: Section) -> None:
    """So that a slip is seen without Spark, too."""
    for snippet in section.snippets:
        if snippet.language == "python":
            compile(snippet.text, snippet.place, "exec")
