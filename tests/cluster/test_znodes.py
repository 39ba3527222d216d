"""Requests as operations of ZooKeeper, and results as answers."""

import json
from typing import get_args

import pytest

from coordinator.cluster import engine, znodes
from coordinator.cluster.engine import Code, Leader, Registration, Reply, Snapshot
from coordinator.cluster.znodes import Contents, Failed, Failure, Names, Znode

LEADER = Leader(7, 2, "run", 0x1000A, "claim")
REGISTRATION = Registration(2, ("plain://host:9310", "tls://[::1]:9311"), 1700, "run", (1, 2), True)
SNAPSHOT = Snapshot(40, "name", 2, 70_000, 99, {0: 12, 65535: 3}, {0: 5})


def test_every_request_is_an_operation() -> None:
    """One that is forgotten would fail only when it is first asked."""
    assert set(znodes._OPERATIONS) == set(get_args(engine.Request))


def test_contents_are_read_as_they_were_written() -> None:
    """What one node writes, all others read."""
    assert znodes.decode_leader(znodes.encode_leader(LEADER)) == LEADER
    frozen = Leader(8, 2, "run", 1, "claim", is_frozen=True)
    assert znodes.decode_leader(znodes.encode_leader(frozen)) == frozen
    data = znodes.encode_registration(REGISTRATION)
    assert znodes.decode_registration(2, data) == REGISTRATION
    assert znodes.decode_snapshot(znodes.encode_snapshot(SNAPSHOT)) == SNAPSHOT


def test_what_a_journal_is_made_with_has_no_leader_and_no_snapshot() -> None:
    """A new cluster is read by the same code as an old one."""
    made = {make.path: make.data for make in znodes.founding(5, 2)}

    assert znodes.decode_leader(made["/journals/1/leader"]) is None
    assert znodes.decode_snapshot(made["/journals/1/snapshot"]) == Snapshot()
    assert made["/journals/1/log/0/0"] == b""


def state_of(leader: Leader, in_sync: tuple[int, ...]) -> bytes:
    """Return what a change of leadership writes about a partition for tools."""
    asked = znodes.operation(engine.SetLeader(1, 3, leader, (4,), in_sync))
    assert isinstance(asked, znodes.Multi)
    (state,) = asked.changes[1:]
    assert isinstance(state, znodes.Set)
    assert state.path == "/brokers/topics/__consumer_offsets/partitions/4/state"
    return state.data


def test_states_are_those_of_kafka_byte_by_byte() -> None:
    """Tools of old parse them, some with less than a parser."""
    made = {make.path: make.data for make in znodes.founding(5, 2)}
    path = "/brokers/topics/__consumer_offsets"

    assert made[path].startswith(b'{"version":1,"partitions":{"0":[],"1":[]')
    assert made[f"{path}/partitions/4/state"] == (
        b'{"controller_epoch":0,"leader":-1,"version":1,"leader_epoch":0,"isr":[]}'
    )
    assert state_of(LEADER, (1, 2)) == (
        b'{"controller_epoch":0,"leader":2,"version":1,"leader_epoch":7,"isr":[1,2]}'
    )
    frozen = Leader(8, 2, "run", 1, "claim", is_frozen=True)
    assert b'"leader":-1' in state_of(frozen, (1, 2))


def test_parents_are_made_before_their_children() -> None:
    """ZooKeeper makes no parents by itself."""
    made = {""}
    for make in znodes.founding(3, 2):
        assert make.path.rpartition("/")[0] in made
        made.add(make.path)


def test_a_registration_shows_what_tools_of_kafka_look_for() -> None:
    """They read host and port of the first endpoint."""
    fields = json.loads(znodes.encode_registration(REGISTRATION))

    assert (fields["host"], fields["port"], fields["jmx_port"]) == ("host", 9310, -1)


@pytest.mark.parametrize(
    ("at", "failure", "code"),
    [
        (0, Failure.BAD_VERSION, Code.FENCED),
        (1, Failure.NO_NODE, Code.GAP),
        (2, Failure.NODE_EXISTS, Code.EXISTS),
        (0, Failure.NO_NODE, Code.GONE),
        (2, Failure.NO_NODE, Code.REFUSED),
    ],
)
def test_an_append_that_fails_says_why(at: int, failure: Failure, code: Code) -> None:
    """Each row of the table of step 5 is another code; what isn't in it is a bug."""
    append = engine.Append(1, 3, 8, (b"a", b"b"))

    assert znodes.reply(append, Failed(at, failure)).code is code


def test_an_append_checks_the_fence_and_the_entry_before_it() -> None:
    """Without the second check, what was queued before what is repeated would leave a hole."""
    asked = znodes.operation(engine.Append(1, 3, 8, (b"a", b"b")))

    assert isinstance(asked, znodes.Multi)
    assert [(type(change).__name__, change.path) for change in asked.changes] == [
        ("Check", "/journals/1/leader"),
        ("Check", "/journals/1/log/0/7"),
        ("Make", "/journals/1/log/0/8"),
        ("Make", "/journals/1/log/0/9"),
    ]


def test_directories_come_with_their_first_entry_and_go_with_their_last() -> None:
    """The version of a directory has 32 bits, so each takes a million entries and no more."""
    append = znodes.operation(engine.Append(0, 1, 1_999_999, (b"a", b"b")))
    trim = znodes.operation(engine.Trim(0, 1, 999_999, 1_000_000))

    assert isinstance(append, znodes.Multi)
    assert isinstance(trim, znodes.Multi)
    assert [change.path for change in append.changes[2:]] == [
        "/journals/0/log/1/1999999",
        "/journals/0/log/2",
        "/journals/0/log/2/2000000",
    ]
    assert [change.path for change in trim.changes[1:]] == [
        "/journals/0/log/0/999999",
        "/journals/0/log/0",
        "/journals/0/log/1/1000000",
    ]


def test_reading_entries_ends_at_the_first_that_is_not_there() -> None:
    """One behind a hole may have been appended between the two reads."""
    found = Contents((Znode(b"a", 0), None, Znode(b"c", 0)))

    assert znodes.reply(engine.ReadEntries(0, 5, 3), found) == Reply(Code.OK, (b"a",))


def test_lists_are_numbers_in_order() -> None:
    """ZooKeeper returns names in no order."""
    names = Names(("10", "9"))

    assert znodes.reply(engine.ListLog(0, 5), names).value == (9, 10)
    assert znodes.reply(engine.ListLog(0, None), names).value == (9_000_000, 10_000_000)


def test_what_cannot_be_read_is_refused_with_the_reason() -> None:
    """Somebody has written into the cluster's own folder."""
    reply = znodes.reply(engine.ReadLeader(0), Contents((Znode(b"{}", 4),)))

    assert reply.code is Code.REFUSED
    assert "KeyError('epoch')" in reply.value


def test_brokers_of_kafka_are_no_nodes() -> None:
    """One may have been given the cluster's chroot by mistake, and others put more there."""
    broker = b'{"version":4,"host":"k","port":9092,"endpoints":["PLAINTEXT://k:9092"]}'
    reply = znodes.reply(engine.ReadNode(7), Contents((Znode(broker, 4, 11),)))

    assert (reply.code, reply.value, reply.owner) == (Code.OK, None, 11)


def test_names_that_are_no_numbers_are_passed_over_and_told() -> None:
    """Tools and people write there; a leader ended by what it had no need to read."""
    names = Names(("7", "x", "1", "01", "9" * 5_000, "x2", "-1", "\u0661"))
    replies = {
        request: znodes.reply(request, names)
        for request in (engine.ListNodes(), engine.ListLog(2, 5), engine.ListChunks(2, "s"))
    }

    assert {reply.value for reply in replies.values()} == {(1, 7)}
    assert [reply.stray for reply in replies.values()] == [
        "/brokers/ids/-1",
        "/journals/2/log/0/-1",
        "/journals/2/snapshots/s/-1",
    ]
    assert znodes.reply(engine.ListLog(2, None), Names(("1", "0"))) == Reply(
        Code.OK, (0, 1_000_000)
    )


READS_WHAT_LASTS: tuple[engine.Request, ...] = (
    engine.ReadCluster(),
    engine.ListNodes(),
    engine.ReadLeader(1),
    engine.ListLog(1, None),
    engine.ReadSnapshot(1),
    engine.ListSnapshots(1),
    engine.ReadPurged(1),
)
READS_WHAT_GOES: tuple[engine.Request, ...] = (
    engine.ReadNode(1),
    engine.ListLog(1, 5),
    engine.ListChunks(1, "name"),
)


@pytest.mark.parametrize("request_", READS_WHAT_LASTS + READS_WHAT_GOES, ids=repr)
def test_a_missing_znode_that_every_cluster_has_means_that_its_data_is_gone(
    request_: engine.Request,
) -> None:
    """A registration, an entry or a chunk comes and goes; the rest is there from the founding."""
    asked = znodes.operation(request_)
    nothing = Names(None) if isinstance(asked, znodes.Children) else Contents((None,))
    reply = znodes.reply(request_, nothing)
    paths = asked.paths if isinstance(asked, znodes.Get) else (getattr(asked, "path", None),)

    assert reply == (
        Reply(Code.GONE, paths[0]) if request_ in READS_WHAT_LASTS else Reply(Code.MISSING)
    )


def test_a_registration_without_its_parent_means_that_the_data_is_gone() -> None:
    """The loss was told as a refused start: Register: Make /brokers/ids/1: NO_NODE."""
    reply = znodes.reply(engine.Register(REGISTRATION), Failed(0, Failure.NO_NODE))

    assert reply == Reply(Code.GONE, "/brokers/ids")
