"""Files of offsets: what is written is read again, and what is wrong is told by line."""

import csv
import io
import itertools
from typing import Final

import pytest
from hypothesis import given, strategies as st

from coordinator.cli.offset_files import (
    COLUMNS,
    FileOffset,
    csv_line,
    parse_offsets,
    write_offsets,
)
from coordinator.cli.output import CSV, JSON
from tests.fakes.command_line import Terminal

NAMES = st.text(min_size=1, max_size=20).filter(
    lambda name: all(ord(c) >= 0x20 and not 0x7F <= ord(c) <= 0x9F for c in name)
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
OFFSETS = st.builds(
    FileOffset,
    NAMES.filter(lambda name: len(name.encode()) < 250),
    NAMES.filter(lambda name: len(name.encode()) < 250),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    TEXTS,
)
HEAD: Final = csv_line(COLUMNS)


def written(offsets: list[FileOffset], form: str) -> str:
    """Return a whole file."""
    stream = io.StringIO(newline="")
    write_offsets(offsets, form, stream)
    return (HEAD if form == CSV else "") + stream.getvalue()


@pytest.mark.parametrize("form", [CSV, JSON])
@given(offsets=st.lists(OFFSETS, max_size=8, unique_by=lambda one: one[:3]))
def test_what_is_exported_is_imported(form: str, offsets: list[FileOffset]) -> None:
    """Quotes, line ends of any kind, control characters and other scripts in names and metadata."""
    assert parse_offsets(written(offsets, form)) == offsets


@given(offsets=st.lists(OFFSETS, max_size=8, unique_by=lambda one: one[:3]))
def test_an_export_is_csv_as_anybody_reads_it(offsets: list[FileOffset]) -> None:
    """Not only our own reader."""
    found = list(csv.DictReader(io.StringIO(written(offsets, CSV), newline="")))

    assert [tuple(row.values()) for row in found] == [tuple(map(str, one)) for one in offsets]


def test_on_a_terminal_nothing_is_obeyed() -> None:
    """Metadata is whatever a client sent."""
    stream = Terminal()
    write_offsets([FileOffset("g", "t", 0, 1, -1, "\x1b[2J")], CSV, stream)

    assert stream.getvalue() == "g,t,0,1,-1,\\x1b[2J\n"


ONE = FileOffset("g", "t", 0, 5)


@pytest.mark.parametrize(
    ("text", "only", "expected"),
    [
        ("g,t,0,5\n", None, ONE),
        ("t,0,5\n", "g", ONE),
        ("h,t,0,5\n", "g", ONE._replace(group_id="h")),
        (" g , t , 0 , 5 \r\n\r\n", None, ONE),
        ("offset,partition,topic\n5,0,t\n", "g", ONE),
        ("metadata,group,topic,partition,offset\n m,g,t,0,5\n", None, ONE._replace(metadata=" m")),
        ("group,topic,partition,offset,leader_epoch\n,t,0,5,\n", "g", ONE),
        ("group,topic,partition,offset\n g,t,0,5\n", None, ONE._replace(group_id=" g")),
        ('{"group": "g", "topic": "t", "partition": 0, "offset": 5}', None, ONE),
        ('\n{"topic": "t", "partition": 0, "offset": 5, "metadata": null}\n\n', "g", ONE),
    ],
)
def test_files_of_other_tools_are_read(text: str, only: str | None, expected: FileOffset) -> None:
    """Those of kafka-consumer-groups.sh and of spreadsheets, and JSON that leaves things out."""
    assert parse_offsets(text, only) == [expected]


LONG: Final = "x" * 10_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("g,t,0\n", "line 1: 3 columns; group,topic,partition,offset is wanted"),
        ("topic,partition,offset\nt,0,1\n", "line 2: there is no group"),
        ("g,t\n", "line 1: 2 columns; group,topic,partition,offset is wanted"),
        ("g,t,0,5\n\ng,t,0,6\n", "line 3: t-0 is there twice, first in line 1"),
        ("g,t,x,5\n", "line 1: 'x' is no partition"),
        ("g,t,2147483648,5\n", "line 1: '2147483648' is no partition"),
        ("g,t,0,-1\n", "line 1: '-1' is no offset"),
        ("g,t,0,٣\n", "line 1: '٣' is no offset"),
        ("g,t,0,9223372036854775808\n", "line 1: '9223372036854775808' is no offset"),
        (HEAD + "g,t,0,5,-2,\n", "line 2: '-2' is no leader_epoch"),
        (HEAD + 'g,t,0,5,,"a\nb"\ng,t,x,5,,\n', "line 4: 'x' is no partition"),
        ("g,t,0,5\nh,t\nh,t,x,1\n", "line 2: 2 columns"),
        ("topic,partition,offset,colour\n", "line 1: 'colour' is none of group, topic"),
        ("topic,partition,offset,offset\n", "line 1: a column is there twice"),
        ('"g,t,0,5\n', "line 1: unexpected end of data"),
        ('g,t,0,5\n"g"x,t,1,5\ng,t,2,y\n', "line 3: 'y' is no offset"),
        (f"{LONG},t,0,5\n", "line 1: the group 'xxx"),
        (f"g,{LONG},0,5\n", "is not legal: it is longer than 249 bytes of UTF-8"),
        ('"g\x1b[2J",t,0,5\n', r"line 1: the group 'g\x1b[2J' is not legal: it contains control"),
        (HEAD + f"g,t,0,5,,{'m' * 40_000}\n", "line 2: the metadata is longer than 32768 bytes"),
        ("{", "line 1: this is no JSON"),
        ('{"a": 1}', "line 1: 'a' is none of group, topic"),
        ('{"topic": "t", "partition": 0}', "line 1: there is no group"),
        ('{"group": "g", "topic": "t", "partition": 0.0, "offset": 1}', "'0.0' is no partition"),
        ('{"group": "g", "topic": "t", "partition": true, "offset": 1}', "'True' is no partition"),
        ('{"group": "g", "topic": 7, "partition": 0, "offset": 1}', "'7' is no topic"),
        ('{"group": "g", "topic": "t", "partition": 0, "offset": -5}', "'-5' is no offset"),
        ("{}\n[1]\n", "line 2: this is no JSON object"),
        ("[" * 100_000, "line 1: 1 columns"),
        ('{"a":' * 100_000, "line 1: this is no JSON"),
        (
            '{"group": "g", "topic": "\\ud800", "partition": 0, "offset": 1}',
            "line 1: the topic '\\ud800' is not legal: it is no UTF-8",
        ),
        (
            '{"group": "g", "topic": "t", "partition": 0, "offset": 1, "metadata": "\\ud800"}',
            "line 1: the metadata is no Unicode",
        ),
    ],
    ids=map(str, itertools.count()),  # The texts themselves are too long.
)
def test_what_is_wrong_is_told_by_line(text: str, expected: str) -> None:
    """In all lines at once, short enough to be read, and before anything is done."""
    with pytest.raises(ValueError, match="line") as caught:
        parse_offsets(text)

    assert expected in str(caught.value)
    assert len(str(caught.value)) < 2_000


def test_many_wrong_lines_are_counted() -> None:
    """They have one cause, and it is in the first of them."""
    with pytest.raises(ValueError, match=r"line 1: .*line 10: .* and 90 more"):
        parse_offsets("g,t\n" * 100)


def test_a_group_that_was_not_asked_for_is_refused() -> None:
    """Where the command line says which groups there may be."""
    assert parse_offsets("g,t,0,5\n", None, {"g"}) == [ONE]
    with pytest.raises(ValueError, match="line 2: group 'h' is none of those asked for"):
        parse_offsets("g,t,0,5\nh,t,0,5\n", None, {"g"})
