"""Offsets in znodes: what may stand there, and a write that never takes back another's."""

import pytest

from client.zookeeper.znodes import (
    Create,
    Failed,
    Merge,
    Read,
    Status,
    ZnodeWrite,
    decoded,
    encoded,
    name_problem,
    offsets_path,
)
from protocol.partition import INT64_MAX
from tests.fakes.znodes import carried_out

PATH = offsets_path("g", "t", 0)


class Node:
    """One znode, and who writes it."""

    def __init__(self, data: bytes | None = None) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {}
        if data is not None:
            self.nodes[PATH] = data, 0

    def write(self, offset: int, known: int | None = None, *, is_reset: bool = False) -> ZnodeWrite:
        """Write it as far as that goes, and return the end."""
        write = ZnodeWrite(PATH, offset, known, is_reset=is_reset)
        while write.request is not None:
            write.take(carried_out(self.nodes, write.request))
        return write

    @property
    def text(self) -> bytes:
        """What is there."""
        return self.nodes[PATH][0]


def test_the_layout_is_that_of_kafka_0_8() -> None:
    """Old consumers, and the tools that watch them, look just there."""
    assert offsets_path("billing", "orders", 7) == "/consumers/billing/offsets/orders/7"
    assert encoded(1200) == b"1200"


@pytest.mark.parametrize("offset", [0, 7, INT64_MAX])
def test_an_offset_is_read_as_it_was_written(offset: int) -> None:
    """Up to the largest that Java has."""
    assert decoded(encoded(offset)) == offset


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "is empty"),
        (b"", "is empty"),
        (b"-1", "is '-1', and no offset"),
        (b"abc", "is 'abc', and no offset"),
        (b"1 ", "is '1 ', and no offset"),
        (b"\xd9\xa1", "is '\u0661', and no offset"),
        (str(INT64_MAX + 1).encode(), f"is '{INT64_MAX + 1}', and no offset"),
        (b"9" * 5000, f"is '{'9' * 40}…', and no offset"),
        (b"\xff", "is '\ufffd', and no offset"),
    ],
)
def test_what_is_no_offset_is_never_taken_for_one(data: bytes | None, problem: str) -> None:
    """A group that began at a guess would lose rows, or read all of them again."""
    with pytest.raises(ValueError, match="is ") as caught:
        decoded(data)

    assert str(caught.value) == problem


@pytest.mark.parametrize("name", ["a", "with space", "é", "a.b-c_d", "...", "日本"])
def test_ordinary_names_are_those_of_znodes(name: str) -> None:
    """ZooKeeper takes nearly everything."""
    assert name_problem(name) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\0", "\x7f", "\ud800", "\uf8ff", "\uffff", "\U00010000", "😀"]
)
def test_a_name_that_zookeeper_refuses_is_refused_before(name: str) -> None:
    """A slash would make another group's znode of it."""
    assert name_problem(name) is not None


def test_the_first_write_makes_the_znode() -> None:
    """A group that never was in ZooKeeper gets there by its first commit."""
    node = Node()

    assert node.write(5).version == 0
    assert node.text == b"5"


def test_a_writer_overwrites_what_it_knows_also_back() -> None:
    """An owner that reads rows again says so."""
    node = Node(b"100")

    assert node.write(40, known=0).version == 1
    assert node.text == b"40"


def test_a_writer_that_was_replaced_takes_nothing_back() -> None:
    """It was frozen, another one went on, and now it wakes up; it knows what stays."""
    node = Node(b"100")
    node.write(200, known=0)
    late = node.write(150, known=0)

    assert (late.version, late.kept) == (None, 200)
    assert node.text == b"200"


@pytest.mark.parametrize("there", [None, b"", b"abc", b"4", b"5", b"6"])
@pytest.mark.parametrize("known", [None, 0, 1])
@pytest.mark.parametrize("is_reset", [False, True])
def test_a_write_that_ends_has_written_or_knows_what_is_kept(
    there: bytes | None, known: int | None, *, is_reset: bool
) -> None:
    """A commit that stored nothing is never taken for one that did."""
    node = Node(there)
    write = node.write(5, known, is_reset=is_reset)

    assert (node.text == b"5") == (write.version is not None)
    assert write.kept == (None if node.text == b"5" else int(node.text))


def test_over_anothers_write_an_offset_moves_forward() -> None:
    """Both have done what they say, so the larger one is right."""
    node = Node(b"100")
    node.write(150, known=0)

    assert node.write(200, known=0).version == 2
    assert node.text == b"200"


def test_a_reset_moves_back_over_anything() -> None:
    """An operator wants just that."""
    node = Node(b"100")

    assert node.write(10, known=7, is_reset=True).version == 1
    assert node.text == b"10"


def test_what_is_no_offset_is_overwritten() -> None:
    """Nobody can begin there."""
    node = Node(b"abc")

    assert node.write(10).version == 1


def test_a_lost_answer_is_looked_up() -> None:
    """What was done is not done again, and what wasn't is."""
    node = Node(b"100")
    done = ZnodeWrite(PATH, 110, 0, is_reset=False)
    assert done.request is not None
    carried_out(node.nodes, done.request)
    done.take(Status.LOST)

    assert done.request == Read(PATH)
    done.take(carried_out(node.nodes, done.request))
    assert done.version == 1

    undone = ZnodeWrite(PATH, 50, 1, is_reset=False)
    undone.take(Status.LOST)
    while undone.request is not None:
        undone.take(carried_out(node.nodes, undone.request))
    assert (undone.version, node.text) == (2, b"50")


def test_two_who_make_the_same_znode_agree() -> None:
    """The one that comes second looks at what the first has written."""
    node = Node()
    second = ZnodeWrite(PATH, 5, None, is_reset=False)
    second.take(Status.MISSING)
    node.write(9)

    assert second.request == Create(PATH, b"5")
    while second.request is not None:
        second.take(carried_out(node.nodes, second.request))
    assert (second.version, node.text) == (None, b"9")


def test_a_refusal_ends_it() -> None:
    """Who may not write won't by trying again."""
    write = ZnodeWrite(PATH, 5, 0, is_reset=False)
    write.take(Failed("nobody has allowed it"))

    assert (write.request, write.failure) == (None, "nobody has allowed it")


def test_the_larger_offset_hides_what_the_coordinator_expects() -> None:
    """A commit on the condition of what was fetched is checked by what the coordinator has."""
    merge = Merge()

    assert merge.fetched("p", 100, 120)
    assert merge.expected("p", 120) == 100
    assert merge.expected("p", 7) == 7  # Of something else than was fetched.
    merge.committed("p")
    assert merge.expected("p", 120) == 120


def test_where_the_coordinator_is_ahead_nothing_is_hidden() -> None:
    """Also after a time when it was behind, and of a partition without any offset."""
    merge = Merge()
    merge.fetched("p", -1, 5)

    assert merge.expected("p", 5) == -1
    assert not merge.fetched("p", 5, 5)
    assert merge.expected("p", 5) == 5
    assert not merge.fetched("q", -1, -1)
