"""Away from ZooKeeper in three rolling restarts, and back: a real ensemble, a real daemon.

docs/zookeeper.md has the steps.
"""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from kazoo.security import READ_ACL_UNSAFE, make_digest_acl

from bench.ensemble import ZooKeeperServer, ensemble
from client import FatalError, OffsetAndMetadata, OutcomeUnknown, TopicPartition, aio, connect
from client.blocking import BlockingClient, BlockingMember, connect_blocking
from client.zookeeper.ensemble import Ensemble
from client.zookeeper.forms import join_blocking
from client.zookeeper.settings import ZooKeeper
from client.zookeeper.znodes import Create, Failed, Found, Set, Status, Written, offsets_path
from tests.integration.daemon import ROOT, daemon, run_cli
from tests.integration.ensemble import needs_zookeeper
from tests.integration.spark_support import wait_until

pytestmark = [pytest.mark.integration, needs_zookeeper]

TOPIC = "orders"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(4)]
BUSY, IDLE = PARTITIONS[:2], PARTITIONS[2:]
ANSWER_S = 30.0


class Server:
    """A server at *address*; `frozen` is its own, `ensemble` a connection of the test's own."""

    def __init__(self, address: str, server: ZooKeeperServer, connection: Ensemble) -> None:
        self.address = address
        self.frozen = server.frozen
        self.ensemble = connection

    def put(self, nodes: Mapping[str, bytes]) -> None:
        """Write znodes, whatever was there."""
        found = self.ensemble.read(list(nodes), ANSWER_S)
        requests = [
            Set(path, data, there.version) if isinstance(there, Found) else Create(path, data)
            for (path, data), there in zip(nodes.items(), found, strict=True)
        ]
        self.ensemble.ask(requests, ANSWER_S)

    def delete(self, path: str) -> None:
        """Have somebody delete a znode."""
        self.ensemble._client.delete(path)

    def text(self, path: str) -> str | None:
        """Return what is in a znode, None if there is none."""
        (found,) = self.ensemble.read([path], ANSWER_S)
        return found.data.decode() if isinstance(found, Found) else None


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests; each has a group with a name of its own."""
    with (
        ensemble(tmp_path_factory.mktemp("zookeeper"), 1) as made,
        Ensemble(ZooKeeper(made.hosts, 30_000, 30_000)) as connection,
    ):
        yield Server(made.hosts, made.servers[0], connection)


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[str]:
    """The address of a daemon."""
    with daemon(tmp_path / "data", "group.initial.rebalance.delay.ms=0") as running:
        yield f"127.0.0.1:{running.port}"


class Team:
    """A group's members, which are restarted with other properties."""

    def __init__(self, group: str, coordinator: str, zookeeper: Server) -> None:
        self.group = group
        self._coordinator = coordinator
        self._zookeeper = zookeeper

    def connected(
        self, storage: str, *, dual: bool = False
    ) -> AbstractContextManager[BlockingClient]:
        """Connect with offsets in *storage*."""
        return connect_blocking(
            self._coordinator,
            client_id=f"{storage}-{dual}",
            offset_storage={
                "offsets.storage": storage,
                "dual.commit.enabled": dual,
                "zookeeper.connect": self._zookeeper.address,
            },
        )

    def joined(self, client: BlockingClient) -> AbstractContextManager[BlockingMember]:
        """Join the group."""
        return client.join(self.group, [TOPIC], {TOPIC: len(PARTITIONS)})

    def restarted(self, storage: str, *, dual: bool = False) -> dict[int, int]:
        """Have one member with such properties; return where it begins. It reads ten more."""
        with self.connected(storage, dual=dual) as client, self.joined(client) as member:
            member.assignment()
            found = {tp.partition: value.offset for tp, value in member.fetch(PARTITIONS).items()}
            member.commit({tp: found.get(tp.partition, 0) + 10 for tp in BUSY})
            return found

    def in_zookeeper(self) -> dict[int, int]:
        """Return what old consumers would find."""
        found = {
            tp.partition: self._zookeeper.text(offsets_path(self.group, *tp)) for tp in PARTITIONS
        }
        return {partition: int(text) for partition, text in found.items() if text is not None}

    def at_the_coordinator(self) -> dict[int, int]:
        """Return what the coordinator alone has."""
        with connect_blocking(self._coordinator) as client:
            found = client.fetch_offsets(self.group)
        return {tp.partition: value.offset for tp, value in found.items()}


def test_three_restarts_forward_and_back(coordinator: str, zookeeper: Server) -> None:
    """Each owner begins where the one before has committed, also where there are no new rows."""
    team = Team("steps", coordinator, zookeeper)
    old = {0: 100, 1: 200, 2: 300, 3: 400}
    zookeeper.put({offsets_path("steps", TOPIC, p): b"%d" % offset for p, offset in old.items()})

    assert team.restarted("zookeeper") == old
    assert team.at_the_coordinator() == {}

    assert team.restarted("coordinator", dual=True) == {0: 110, 1: 210, 2: 300, 3: 400}
    both = {0: 120, 1: 220, 2: 300, 3: 400}
    assert (team.in_zookeeper(), team.at_the_coordinator()) == (both, both)

    assert team.restarted("coordinator") == both
    assert team.in_zookeeper() == both  # They stay as they were.

    assert team.restarted("coordinator", dual=True) == {0: 130, 1: 230, 2: 300, 3: 400}
    assert team.in_zookeeper() == {0: 140, 1: 240, 2: 300, 3: 400}

    assert team.restarted("zookeeper") == {0: 140, 1: 240, 2: 300, 3: 400}
    assert team.in_zookeeper() == {0: 150, 1: 250, 2: 300, 3: 400}


def test_neighbouring_steps_share_a_group(coordinator: str, zookeeper: Server) -> None:
    """A restart is a rolling one: one member after the other, in one group."""
    team = Team("rolling", coordinator, zookeeper)
    steps = (("zookeeper", False), ("coordinator", True), ("coordinator", False))
    for (before, was_dual), (after, is_dual) in pairwise(steps):
        with (
            team.connected(before, dual=was_dual) as first_client,
            team.connected(after, dual=is_dual) as second_client,
            team.joined(first_client) as first,
            team.joined(second_client) as second,
        ):
            for member in (first, second):
                member.wait_rebalance_needed(ANSWER_S)
            shares = both_of(first, second)
            for member, share in zip((first, second), shares, strict=True):
                found = member.fetch(share)
                at = {tp: found[tp].offset if tp in found else 0 for tp in share}
                member.commit({tp: offset + 5 for tp, offset in at.items()})
    expected = dict.fromkeys(range(4), 10)

    assert team.at_the_coordinator() == expected


def both_of(first: BlockingMember, second: BlockingMember) -> list[list[TopicPartition]]:
    """Return the shares of two members, once each has some."""
    shares: list[list[TopicPartition]] = [[], []]

    def are_shared() -> bool:
        for number, member in enumerate((first, second)):
            with suppress(TimeoutError):
                shares[number] = list(member.assignment(timeout_s=0.5).partitions)
        return all(shares) and not set(shares[0]) & set(shares[1])

    wait_until("both have a share", are_shared)
    return shares


def test_a_process_killed_between_the_two_commits(
    coordinator: str, zookeeper: Server, tmp_path: Path
) -> None:
    """The coordinator has it: only who looks at ZooKeeper alone reads rows again."""
    team = Team("killed", coordinator, zookeeper)
    assert team.restarted("coordinator", dual=True) == {}
    script = tmp_path / "commits.py"
    script.write_text(
        "import sys\n"
        "from client import TopicPartition\n"
        "from client.blocking import connect_blocking\n"
        "storage = {'dual.commit.enabled': 'true', 'zookeeper.connect': sys.argv[2]}\n"
        "with connect_blocking(sys.argv[1], offset_storage=storage) as client:\n"
        "    client.commit('killed', {TopicPartition('orders', 0): 99})\n"
    )
    with zookeeper.frozen():  # The process commits, and gets no further.
        process = subprocess.Popen(
            [sys.executable, str(script), coordinator, zookeeper.address],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
        )
        wait_until("the first commit is there", lambda: team.at_the_coordinator()[0] == 99)
        process.kill()
        process.wait()

    assert team.in_zookeeper()[0] == 10
    with team.connected("zookeeper") as client:
        assert client.fetch_offsets("killed")[PARTITIONS[0]] == OffsetAndMetadata(10)
    assert team.restarted("coordinator", dual=True) == {0: 99, 1: 10}
    assert team.in_zookeeper()[0] == 109


def test_an_ensemble_that_hangs_leaves_a_commit_in_doubt(
    coordinator: str, zookeeper: Server
) -> None:
    """The same commit again brings both places together, once it goes on."""
    team = Team("hangs", coordinator, zookeeper)
    tp = PARTITIONS[0]
    with team.connected("coordinator", dual=True) as client:
        client.commit("hangs", {tp: 1})
        with zookeeper.frozen(), pytest.raises(OutcomeUnknown, match="ZooKeeper at"):
            client.commit("hangs", {tp: 2}, timeout_ms=500)
        assert team.at_the_coordinator() == {0: 2}
        client.commit("hangs", {tp: 2})

    assert team.in_zookeeper() == {0: 2}


def test_all_forms_of_the_client_have_it(coordinator: str, zookeeper: Server) -> None:
    """trio, asyncio and threads: one set of properties."""
    storage = {"dual.commit.enabled": "true", "zookeeper.connect": zookeeper.address}
    tp = PARTITIONS[0]

    async def by_trio() -> None:
        async with connect(coordinator, offset_storage=storage) as client:
            await client.commit("forms", {tp: 3})

    async def by_asyncio() -> None:
        async with aio.connect(coordinator, offset_storage=storage) as client:
            assert await client.fetch_offsets("forms") == {tp: OffsetAndMetadata(3)}
            await client.commit("forms", {tp: 4})

    trio.run(by_trio)
    with ThreadPoolExecutor(1) as pool:  # Playwright keeps a loop of its own in this one.
        pool.submit(asyncio.run, by_asyncio()).result()

    with connect_blocking(coordinator, offset_storage=storage) as client:
        assert client.fetch_offsets("forms") == {tp: OffsetAndMetadata(4)}
    assert zookeeper.text(offsets_path("forms", *tp)) == "4"


def test_a_file_of_a_consumer_of_old_is_taken_as_it_is(
    coordinator: str, zookeeper: Server, tmp_path: Path
) -> None:
    """By clients, by the import, and by a consumer that registers in ZooKeeper."""
    file = tmp_path / "consumer.properties"
    lines = (
        f"zookeeper.connect={zookeeper.address}",
        "zookeeper.connection.timeout.ms=30000",
        "group.id=of-old",
        "auto.commit.enable=true",
        "offsets.storage=kafka",
    )
    file.write_text("\n".join(["# The consumer's.", *lines]))
    tp = PARTITIONS[0]
    with connect_blocking(coordinator, offset_storage=file) as client:
        client.commit("of-old", {tp: 3})
    words = ("zookeeper", "import", zookeeper.address, "of-old", "--zookeeper-config", str(file))
    done = run_cli(*words, "--at", coordinator)
    properties = dict(line.split("=") for line in lines)
    zookeeper.put({f"/brokers/topics/{TOPIC}": b'{"partitions": {"0": [1]}}'})
    with join_blocking(properties, "of-old", [TOPIC]) as consumer:
        fetched = consumer.fetch(consumer.assignment().partitions)

    assert zookeeper.text(offsets_path("of-old", *tp)) == "3"  # As in 0.8.2, both places have it.
    assert (done.returncode, "1 unchanged" in done.stderr) == (0, True)
    assert "without a meaning here: auto.commit.enable, group.id, offsets.storage" in done.stderr
    assert fetched == {tp: 3}


def test_many_znodes_are_read_by_few_requests(zookeeper: Server) -> None:
    """And one by one where a server is too old; both say the same."""
    paths = [offsets_path("many", "t", number) for number in range(1_200)]
    zookeeper.put({path: b"%d" % number for number, path in enumerate(paths) if number % 7})
    ensemble = zookeeper.ensemble
    found = ensemble.read(paths, ANSWER_S)
    ensemble._has_multi_read = False
    try:
        one_by_one = ensemble.read(paths, ANSWER_S)
        names = ensemble.children([offsets_path("many", "t"), "/none"], ANSWER_S)
    finally:
        ensemble._has_multi_read = True

    assert found == one_by_one
    assert found[:2] == [Status.MISSING, Found(b"1", 0)]
    (there, missing) = ensemble.children([offsets_path("many", "t"), "/none"], ANSWER_S)
    assert missing is Status.MISSING
    assert names[1] is Status.MISSING
    assert isinstance(there, tuple)
    assert set(there) == set(map(str, range(1_200))) - set(map(str, range(0, 1_200, 7)))


def test_a_chroot_is_where_everything_is(coordinator: str, zookeeper: Server) -> None:
    """Old clusters share an ensemble; a wrong one is said to be wrong, and not made."""
    zookeeper.put({"/old/marker": b""})
    with Ensemble(ZooKeeper(f"{zookeeper.address}/old")) as below:
        assert below.ask([Create("/consumers/g", b"1")], ANSWER_S) == [Written(0)]
        assert below.read(["/consumers/g", "/marker"], ANSWER_S)[0] == Found(b"1", 0)
    assert zookeeper.text("/old/consumers/g") == "1"
    with (
        Ensemble(ZooKeeper(f"{zookeeper.address}/nowhere")) as wrong,
        pytest.raises(FatalError, match="there is no znode /nowhere"),
    ):
        wrong.read(["/consumers"], ANSWER_S)
    storage = {"offsets.storage": "zookeeper", "zookeeper.connect": f"{zookeeper.address}/nowhere"}
    with (
        connect_blocking(coordinator, offset_storage=storage) as client,
        pytest.raises(FatalError, match="there is no znode /nowhere"),
    ):
        client.fetch_offsets("g")  # The first one that asks ZooKeeper.


def test_what_an_acl_forbids_is_said_in_words(zookeeper: Server) -> None:
    """By each znode, beside those that may be read."""
    zookeeper.put({"/acl/secret": b"1", "/acl/open": b"2"})
    ensemble = zookeeper.ensemble
    acl = make_digest_acl("u", "p", all=True)
    ensemble._client.set_acls("/acl/secret", [acl])
    found = ensemble.read(["/acl/secret", "/acl/open"], ANSWER_S)

    assert found == [Failed("nobody has allowed it (the znode's ACL)"), Found(b"2", 0)]


def test_an_import_says_by_its_status_whether_both_places_are_the_same(
    coordinator: str, zookeeper: Server
) -> None:
    """A check finds a wrong spelling and a deleted znode, and a member brings that back."""
    team = Team("check", coordinator, zookeeper)
    zookeeper.put({offsets_path("check", TOPIC, p): b"%d" % (p + 1) for p in range(4)})
    zookeeper.put({offsets_path("check", TOPIC, "01"): b"900"})

    def checked(*arguments: str) -> tuple[int, list[str]]:
        words = ("zookeeper", "import", zookeeper.address, "check", "--output", "json")
        done = run_cli(*words, *arguments, "--at", coordinator)
        return done.returncode, [row["status"] for row in json.loads(done.stdout)]

    stray = "not imported: '01' is no partition"
    assert checked() == (1, [*["to import"] * 4, stray])
    assert checked("--yes") == (1, [*["imported"] * 4, stray])
    assert team.at_the_coordinator() == {p: p + 1 for p in range(4)}
    zookeeper.delete(offsets_path("check", TOPIC, "01"))
    assert checked() == (0, ["unchanged"] * 4)

    zookeeper.delete(offsets_path("check", TOPIC, 2))
    assert checked() == (4, [*["unchanged"] * 3, "missing"])
    with team.connected("zookeeper") as client:
        assert PARTITIONS[2] not in client.fetch_offsets("check", PARTITIONS)
    team.restarted("coordinator", dual=True)
    assert checked() == (0, ["unchanged"] * 4)


def test_a_dual_commit_that_zookeeper_refuses_says_what_is_stored_where(
    coordinator: str, zookeeper: Server
) -> None:
    """A chroot that isn't there, a znode that may only be read, a name that no znode can have."""
    tp, *_ = PARTITIONS
    at = zookeeper.address

    def commit(address: str, group: str, topic: str = TOPIC) -> str:
        storage = {"dual.commit.enabled": "true", "zookeeper.connect": address}
        with (
            connect_blocking(coordinator, offset_storage=storage) as client,
            pytest.raises(FatalError) as caught,
        ):
            client.commit(group, {TopicPartition(topic, 0): 7})
        return str(caught.value)

    def is_stored(group: str) -> bool:
        return Team(group, coordinator, zookeeper).at_the_coordinator() == {0: 7}

    has = "the coordinator has it, but not ZooKeeper: ZooKeeper at"
    assert commit(f"{at}/none", "typo") == f"{has} {at}/none: there is no znode /none"
    assert is_stored("typo")

    path = offsets_path("readonly", *tp)
    zookeeper.put({path: b"1"})
    zookeeper.ensemble._client.set_acls(path, READ_ACL_UNSAFE)
    why = "nobody has allowed it (the znode's ACL); it has stored 0 of 1 offsets"
    assert commit(at, "readonly") == f"{has} {at} refuses {path}: {why}"
    assert is_stored("readonly")

    for name in ("a/b", "a\U0001f600"):
        assert commit(at, "names", name).endswith(" in its name; nothing was stored")
    assert not is_stored("names")
    (refused,) = zookeeper.ensemble.ask([Create("/a\U0001f600", b"")], ANSWER_S)
    assert isinstance(refused, Failed)


def test_a_znode_put_forward_under_a_member_is_told_of(
    coordinator: str, zookeeper: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Its commits go on without an error, and the next owner begins at what was put there."""
    team = Team("forward", coordinator, zookeeper)
    path = offsets_path("forward", *PARTITIONS[0])
    with team.connected("coordinator", dual=True) as client, team.joined(client) as member:
        member.assignment()
        member.commit({PARTITIONS[0]: 100})
        zookeeper.put({path: b"900"})
        for offset in range(101, 141):
            member.commit({PARTITIONS[0]: offset})
    (told,) = [one.getMessage() for one in caplog.records if one.name == "client.zookeeper"]

    assert f"{path} has 900, 799 more than the 101 of the commit" in told
    assert (team.in_zookeeper(), team.at_the_coordinator()) == ({0: 900}, {0: 140})
    assert team.restarted("coordinator", dual=True) == {0: 900}
    with team.connected("coordinator", dual=True) as client:  # As the warning says.
        client.commit("forward", {PARTITIONS[0]: 140})
    assert (team.in_zookeeper()[0], team.at_the_coordinator()[0]) == (140, 140)


def test_an_import_brings_all_that_is_good(coordinator: str, zookeeper: Server) -> None:
    """By the command, below a chroot; the second time there is nothing to do."""
    nodes = {
        f"/imports{offsets_path(f'g{group}', TOPIC, p)}": b"%d" % (p + 1)
        for group in range(3)
        for p in range(600)
    }
    nodes |= {f"/imports{offsets_path('g1', TOPIC, 600)}": b"nonsense"}
    zookeeper.put(nodes)
    words = ("zookeeper", "import", f"{zookeeper.address}/imports", "--output", "json")
    first = run_cli(*words, "--yes", "--at", coordinator)
    second = run_cli(*words, "--pattern", "g[02]", "--at", coordinator)

    assert first.returncode == 1
    assert Counter(row["status"] for row in json.loads(first.stdout)) == {
        "imported": 1800,
        "not imported: it is 'nonsense', and no offset": 1,
    }
    assert second.returncode == 0
    assert {row["status"] for row in json.loads(second.stdout)} == {"unchanged"}
    with connect_blocking(coordinator) as client:
        found = client.fetch_offsets("g1")
    assert {tp.partition: one.offset for tp, one in found.items()} == {p: p + 1 for p in range(600)}
