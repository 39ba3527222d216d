"""`group-coordinator log` on folders that are made here, with every kind of entry."""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner, Result

from coordinator.cli.main import main
from coordinator.group import node_records, records as r, registry as t
from coordinator.group.acls import Rule, RuleAdded
from coordinator.group.quotas import QuotaSet
from coordinator.group.users import CredentialRemoved, CredentialSet, ScramCredential
from coordinator.log.directory import OsDirectory
from coordinator.log.format import NODE_PARTITION, Entry, FlushKey
from coordinator.log.journal import Journal
from protocol.acls import Operation, PatternType, ResourceType
from protocol.consumer import Assignment, Subscription, encode_assignment, encode_subscription
from protocol.messages import LateMember, PartitionHosts, Rebalance
from protocol.partition import TopicPartition
from protocol.scram import Mechanism
from tests.log.helpers import CLUSTER_ID, NOW_MS, SECRET, flush, open_real

MEMBER = r.MemberMetadata(
    "m-1",
    None,
    "client",
    "10.0.0.1",
    30_000,
    10_000,
    encode_subscription(Subscription(("orders",))),
    encode_assignment(Assignment((TopicPartition("orders", 3), TopicPartition("orders", 4)))),
)
REBALANCE = Rebalance(
    1, NOW_MS, "member joined", "m-1", None, "client", "10.0.0.1", "why", 0, 1, 5, 6, 1, "stable",
    (LateMember("m-2", "slow", "10.0.0.2", "join", 900, True),),
)  # fmt: skip
RARE: list[r.Record] = [
    r.GroupMetadata("etl", "consumer", 1, "range", "m-1", NOW_MS, (MEMBER,), 7),
    r.GroupGeneration("etl", 2, NOW_MS),
    r.GroupRetention("etl", 86_400_000),
    r.GroupRebalanced("etl", REBALANCE),
    r.OffsetRemoved("etl", "orders", 9),
    r.GroupDeleted("gone"),
    r.GroupOwned("etl", "User:alice"),
]


SECRET_KEYS = b"\x5e\xc2\xe7" * 8
CREDENTIAL = ScramCredential(SECRET_KEYS, SECRET_KEYS, SECRET_KEYS, 4_096)
NODES: list[node_records.NodeRecord] = [
    RuleAdded(
        Rule(
            ResourceType.GROUP,
            "etl",
            PatternType.PREFIXED,
            "User:alice",
            "*",
            Operation.READ,
            is_allow=True,
        )
    ),
    CredentialSet("alice", Mechanism.SCRAM_SHA_256, CREDENTIAL),
    CredentialRemoved("bob", Mechanism.SCRAM_SHA_512),
    QuotaSet("User:alice", "connections", 5),
]


def offset(group_id: str, number: int) -> Entry:
    """Return a commit."""
    return Entry(1, 0, group_id, ("orders", 3), (number, -1, "", NOW_MS, -1))


def make(path: Path, *, clean: bool = True, is_known: bool = False) -> list[Path]:
    """Write a log of two partitions and the node's, in several segments; return them."""
    journal = open_real(path, segment_bytes=400)

    def write(partition: int, count: int, packed: bytes) -> None:
        journal.append_packed(partition, count, packed, NOW_MS)
        flush(journal)

    for number in range(6):
        journal.append(1, [offset("etl", number), offset("other", number)], NOW_MS)
        flush(journal)
    write(1, *r.pack(RARE))
    write(
        NODE_PARTITION,
        *node_records.pack(
            [
                t.TopicRegistered("orders", 9, (PartitionHosts(0, ("h1",)),), False, 3),
                t.EndReported("orders", 0, 1500, NOW_MS),
                t.RegistryChanged(3, 0),
                t.TopicForgotten("old"),
            ]
        ),
    )
    if not is_known:
        journal.append(2, [Entry(7777, 3, "x", ("k",), (b"\x01", {"a": 1}))], NOW_MS)
        flush(journal)
    journal.close(clean=clean)
    return sorted(path.glob("*.segment"))


def run(path: Path, command: str, *options: str) -> Result:
    """Run one of the commands."""
    return CliRunner().invoke(main, ["log", command, "--data-dir", str(path), *options])


def dumped(path: Path, *options: str) -> list[dict[str, Any]]:
    """Return the lines of a dump in JSON."""
    done = run(path, "dump", "--output", "json", *options)
    assert done.exit_code in {0, 65}, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_type_of_entry_is_shown_by_its_names(tmp_path: Path) -> None:
    """Nobody should have to count the elements of an array."""
    make(tmp_path)
    found = {(e["type"], e["scope"]): e for e in dumped(tmp_path)}

    assert found["offset", "other"]["value"]["offset"] == 5
    assert found["offset", "etl"]["key"] == {"topic": "orders", "partition": 9}
    assert found["offset", "etl"]["value"] is None
    group = found["group", "etl"]["value"]
    assert (group["generation"], group["topics_version"]) == (1, 7)
    (member,) = group["members"]
    assert member["subscription"]["topics"] == ["orders"]
    assert member["assignment"] == {"partitions": {"orders": [3, 4]}, "user_data": None}
    assert found["generation", "etl"]["value"] == {"generation": 2, "timestamp_ms": NOW_MS}
    assert found["retention", "etl"]["value"] == {"retention_ms": 86_400_000}
    assert found["rebalance", "etl"]["value"]["late"][0]["client_id"] == "slow"
    assert found["scope-deleted", "gone"]["value"] is None
    assert found["topic", "orders"]["value"]["hosts"] == [[0, ["h1"]]]
    assert found["end-offset", "orders"]["key"] == {"partition": 0}
    assert found["registry", ""]["value"] == {"version": 3, "last_deletion_version": 0}
    assert found["scope-deleted", "old"]["partition"] == "node"


def test_rights_are_shown_and_no_salt_or_key_is(tmp_path: Path) -> None:
    """In any form, whatever the entry looks like; and they outlive compaction and repair."""
    journal = open_real(tmp_path, segment_bytes=10_000)
    journal.append_packed(NODE_PARTITION, *node_records.pack(NODES), NOW_MS)
    flush(journal)
    journal.close(clean=True)
    before = {e["type"]: e for e in dumped(tmp_path) if e["value"] is not None}
    assert before["credential"]["key"] == {"user": "alice", "mechanism": 1}
    assert before["credential"]["value"] == {"iterations": 4_096}
    assert before["acl"]["key"]["name"] == "etl"
    assert before["quota"]["value"] == {"value": 5}
    assert run(tmp_path, "verify").exit_code == 0
    assert run(tmp_path, "compact", "--segment-bytes", "4096").exit_code == 0
    assert {e["type"] for e in dumped(tmp_path, "--live-only")} == {"acl", "credential", "quota"}
    odd_values: tuple[object, ...] = ((SECRET_KEYS,), SECRET_KEYS, {})
    odd = [Entry(1021, 0, "", ("eve", 1), value) for value in odd_values]
    journal = open_real(tmp_path, segment_bytes=10_000)
    journal.append(NODE_PARTITION, odd, NOW_MS)
    flush(journal)
    journal.close(clean=True)
    texts = [run(tmp_path, "dump", "--output", form).output for form in ("table", "json", "csv")]
    texts.append(run(tmp_path, "verify").output)
    texts.append(run(tmp_path, "repair", "--accept-loss").output)

    assert "eve" in texts[0]
    assert [SECRET_KEYS.hex() in t or "\\x5e" in t or "^" in t for t in texts] == [False] * 5
    keys = [e["key"] for e in dumped(tmp_path) if e["type"] == "credential"]
    assert {"user": "alice", "mechanism": 1} in keys


def make_wide(path: Path, *batches: Sequence[Entry]) -> None:
    """Write a log with these batches in partition 1."""
    journal = open_real(path, segment_bytes=10_000)
    for batch in batches:
        journal.append(1, batch, NOW_MS)
        flush(journal)
    journal.close(clean=True)


def wide(*partitions: int) -> Entry:
    """Return a commit of several partitions."""
    value = (tuple(100 + p for p in partitions), 5, "m", NOW_MS, -1)
    return Entry(1, 1, "etl", ("orders", partitions), value)


def test_an_entry_for_several_partitions_is_shown_as_one_for_each(tmp_path: Path) -> None:
    """With its own offset: that is where a stream of changes has it."""
    batches = [[wide(0, 1, 2), offset("etl", 9)], [wide(1)]]
    make_wide(tmp_path, *batches)
    found = dumped(tmp_path, "--live")

    assert [(e["offset"], e["key"]["partition"], e["live"]) for e in found] == [
        (0, 0, True),
        (1, 1, False),
        (2, 2, True),
        (3, 3, True),
        (4, 1, True),
    ]
    assert [e["byte"] for e in found[:4]] == [0] * 4
    assert [e["value"]["offset"] for e in found] == [100, 101, 102, 9, 101]
    assert found[1]["value"] == {
        "offset": 101,
        "leader_epoch": 5,
        "metadata": "m",
        "commit_timestamp_ms": NOW_MS,
        "expire_timestamp_ms": -1,
    }
    assert [e["offset"] for e in dumped(tmp_path, "--from-offset", "1", "--limit", "2")] == [1, 2]
    assert [e["offset"] for e in dumped(tmp_path, "--live-only")] == [0, 2, 3, 4]

    verified = run(tmp_path, "verify", "--verbose")
    row = verified.stdout.splitlines()[-2].split()
    compacted = run(tmp_path, "compact", "--segment-bytes", "4096")

    assert verified.exit_code == compacted.exit_code == 0
    # Of the first batch, the entry is cut to two.
    kept = [(0, *wide(0)), (0, *wide(2)), (0, *offset("etl", 9)), (0, *wide(1))]
    live_bytes = sum(len(msgpack.packb(item)) for item in kept)
    assert [*row[:3], *row[4:]] == ["1", "2", "5", "4", str(live_bytes), "5"]
    assert "with 4 entries" in compacted.stdout
    assert [e["offset"] for e in dumped(tmp_path)] == [0, 2, 3, 4]


def test_a_repair_keeps_entries_for_several_partitions_and_drops_what_nobody_understands(
    tmp_path: Path,
) -> None:
    """A group that has nothing else gets its fence, too."""
    nonsense = Entry(1, 1, "etl", ("orders", (4, 5)), ((1, 2, 3), -1, "", NOW_MS, -1))
    make_wide(tmp_path, [wide(0, 1)], [nonsense], [wide(1, 2)])

    assert run(tmp_path, "verify").exit_code == 65
    done = run(tmp_path, "repair", "--accept-loss")
    assert done.exit_code == 0, done.output
    assert "Kept: 4 entries in 2 batches." in done.stdout
    found = dumped(tmp_path, "--partition", "1")
    assert [(e["type"], e["offset"]) for e in found[:4]] == [("offset", at) for at in (0, 1, 4, 5)]
    assert [(e["type"], e["scope"]) for e in found[4:]] == [("generation", "etl")]
    assert run(tmp_path, "verify").exit_code == 0


def test_what_this_release_does_not_know_is_shown_as_it_is(tmp_path: Path) -> None:
    """An operator may have to look at a newer release's log."""
    make(tmp_path)
    (entry,) = dumped(tmp_path, "--partition", "2")

    assert (entry["type"], entry["type_number"], entry["version"]) == ("unknown", 7777, 3)
    assert (entry["key"], entry["value"]) == (["k"], ["01", {"a": 1}])
    text = run(tmp_path, "dump", "--partition", "2").stdout
    assert "type 7777 version 3" in text
    assert run(tmp_path, "verify").exit_code == 78


def test_an_entry_of_another_shape_is_shown_as_it_is(tmp_path: Path) -> None:
    """Whatever it is, the command must not fail on it."""
    journal = Journal(
        OsDirectory(tmp_path),
        num_partitions=4,
        segment_bytes=400,
        node_id=1,
        new_cluster_id=lambda: CLUSTER_ID,
        new_secret=lambda: bytes(16),
    )
    shapes: Sequence[object] = (5, "text", (), (1, 2, 3, 4, 5, 6, 7, 8), {"a": b"\0"}, (b"\xff",))
    for type_ in (1, 2, 1000, 1002, 1003, 1004):
        journal.append(0, [Entry(type_, 0, "g\x1b[2J", shape, shape) for shape in shapes], NOW_MS)
    flush(journal)
    journal.close(clean=True)

    assert len(dumped(tmp_path)) == 6 * len(shapes)
    text = run(tmp_path, "dump")
    assert text.exit_code == 0
    assert "\x1b" not in text.stdout
    assert run(tmp_path, "verify").exit_code == 65
    refused = run(tmp_path, "repair", "--accept-loss")
    assert refused.exit_code == 65
    assert "no repair for this" in refused.stderr


def test_a_dump_says_where_each_entry_lies(tmp_path: Path) -> None:
    """Segment, byte, position, flush, epoch, time, partition and offset."""
    first, *_ = make(tmp_path)
    entries = dumped(tmp_path)

    assert entries[0]["segment"] == first.name
    assert [e["offset"] for e in entries if e["partition"] == 1] == list(range(12 + len(RARE)))
    assert entries[2]["byte"] == entries[2]["position"] == entries[2]["flush_start"] > 0
    assert {e["leader_epoch"] for e in entries} == {1}
    line = run(tmp_path, "dump", "--limit", "1").stdout
    assert line == (
        f"{first.name}:0 position=0 flush=0 epoch=1 2023-11-14T22:13:20+00:00 partition=1 "
        'offset=0 offset "etl" topic="orders" partition=3 offset=0 leader_epoch=-1 metadata="" '
        "commit_timestamp_ms=2023-11-14T22:13:20+00:00 expire_timestamp_ms=-\n"
    )


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ((), 24),
        (("--partition", "1"), 19),
        (("--partition", "node"), 4),
        (("--group", "other"), 6),
        (("--type", "offset"), 13),
        (("--type", "1000"), 1),
        (("--type", "offset", "--group", "etl", "--from-offset", "4"), 5),
        (("--limit", "0"), 0),
        (("--limit", "5"), 5),
        (("--live-only", "--type", "offset"), 3),
    ],
)
def test_a_dump_is_filtered(tmp_path: Path, options: tuple[str, ...], count: int) -> None:
    """A log has millions of entries, and one of them is wanted."""
    make(tmp_path)

    assert len(dumped(tmp_path, *options)) == count


def test_a_dump_tells_what_is_live(tmp_path: Path) -> None:
    """What a compaction keeps: the last of each key, tombstones included."""
    make(tmp_path)
    live = [(e["scope"], e["live"]) for e in dumped(tmp_path, "--live", "--partition", "1")]

    assert live[:12] == [("etl", False), ("other", False)] * 5 + [("etl", True), ("other", True)]
    assert all(is_live for _, is_live in live[12:])
    assert " dead " in run(tmp_path, "dump", "--live", "--limit", "1").stdout


@pytest.mark.parametrize("option", [("--type", "nothing"), ("--partition", "x")])
def test_a_filter_that_cannot_be_is_a_wrong_command_line(
    tmp_path: Path, option: tuple[str, str]
) -> None:
    """An empty answer would be taken for one."""
    make(tmp_path)

    assert run(tmp_path, "dump", *option).exit_code == 2


@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_log_is_dumped_to_its_end(tmp_path: Path, *, clean: bool) -> None:
    """What can't be read stands where it was; everything behind it follows."""
    segments = make(tmp_path, clean=clean)
    content = bytearray(segments[0].read_bytes())
    content[60] ^= 1
    segments[0].write_bytes(content)
    segments[1].rename(tmp_path / "elsewhere")
    done = run(tmp_path, "dump")
    entries = dumped(tmp_path)

    assert done.exit_code == 65
    assert f"# {segments[0].name}, bytes 0 to " in done.stdout
    assert f"# {segments[1].name}: what should be in this segment is in elsewhere" in done.stdout
    assert sum("problem" not in entry for entry in entries) == 22
    assert entries[0]["problem"]["file"] == segments[1].name


def test_a_torn_tail_is_told_and_no_damage(tmp_path: Path) -> None:
    """The next start cuts it."""
    *_, newest = make(tmp_path, clean=False)
    newest.write_bytes(newest.read_bytes() + b"torn")
    done = run(tmp_path, "dump", "--partition", "1")

    assert done.exit_code == 0
    assert "the next start cuts it off" in done.stdout


@pytest.mark.parametrize("harm", ["", "meta", "manifest", "clean", "field", "segment"])
def test_no_command_shows_the_secret(tmp_path: Path, harm: str) -> None:
    """Their output is posted where anybody may read it, and tracebacks are, too."""
    segment = make(tmp_path)[1]
    if harm == "segment":
        segment.write_bytes(b"x" + segment.read_bytes()[1:])
    elif harm == "field":
        old, _, _ = (tmp_path / "meta").read_bytes().partition(b"\n")
        line = old.replace(b"node_id", b"nobody") + b"\n"
        (tmp_path / "meta").write_bytes(line + f"{zlib.crc32(line):08x}\n".encode())
    elif harm:
        (tmp_path / harm).write_bytes(b"{" + (tmp_path / harm).read_bytes())
    checks = [FlushKey(SECRET).check(1, flush_start) for flush_start in (0, 7)]
    hidden = [SECRET.hex()[4:16], repr(SECRET[4:8])[2:-1], *map(str, checks), *map(hex, checks)]
    asked = [
        run(tmp_path, "dump"),
        run(tmp_path, "dump", "--output", "json"),
        run(tmp_path, "verify", "--verbose"),
        run(tmp_path, "repair"),
        run(tmp_path, "repair", "--accept-loss", "--node-id", "1", "--partitions", "4"),
        run(tmp_path, "verify", "--verbose"),
        run(tmp_path, "compact"),
    ]

    for done in asked:
        told = f"{done.output}{done.stderr}{done.exception!r}"
        assert not any(secret in told for secret in hidden)
    assert {done.exit_code for done in asked} <= {0, 65, 78}


def test_verify_counts_what_is_there(tmp_path: Path) -> None:
    """By partition, if wanted."""
    make(tmp_path, is_known=True)
    done = run(tmp_path, "verify", "--verbose")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}

    assert done.exit_code == 0
    assert rows["1"][:2] == ["7", "19"]
    assert rows["1"][3] == "9"
    assert rows["1"][5] == "19"
    assert rows["node"][1] == "4"
    assert f"Cluster {CLUSTER_ID}, node 1, 4 partitions, leader epoch 1" in done.stdout
    assert "23 entries, of which 13 are live" in done.stdout
    assert done.stdout.endswith("Nothing is wrong.\n")
    assert run(tmp_path, "repair", "--accept-loss").stdout == "There is nothing to repair.\n"


def test_a_folder_in_which_nothing_was_kept_is_told(tmp_path: Path) -> None:
    """The daemon would begin in it."""
    for command in ("verify", "repair"):
        done = run(tmp_path, command)
        assert done.exit_code == 0
    assert "Nothing was ever kept" in run(tmp_path, "verify").stdout
    assert run(tmp_path, "dump").exit_code == 78
    assert run(tmp_path, "compact").exit_code == 78
    assert list(tmp_path.iterdir()) == []
