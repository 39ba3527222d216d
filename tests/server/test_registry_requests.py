"""Topics, lag, rebalances, scans and changes, through the whole server."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings, strategies as st
from msgspec import structs
from trio.testing import MockClock

from client.operators import offsets_of_page
from coordinator.group.core import Caller
from coordinator.group.ends_history import REPEAT_LOG_MS
from coordinator.group.lag import Turn
from coordinator.group.registry import Registry, TopicChange
from coordinator.log.format import Entry
from coordinator.runtime import offset_changes
from coordinator.runtime.calls import REST, SLICE_S
from coordinator.runtime.node import TopicPurges
from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.group_ids import offsets_partition
from protocol.messages import ApiKey, error_response
from tests.fakes.disk import Disk
from tests.log.helpers import NOW_MS
from tests.server.world import Client, beat, commit, join, world

PARTITION = offsets_partition("g", 4)


async def turn() -> None:
    """Let everybody finish what they can do now."""
    await trio.testing.wait_all_tasks_blocked()


def registration(**topics: int) -> m.RegisterTopicsRequest:
    """Return a registration of *topics* with their partition counts."""
    return m.RegisterTopicsRequest(
        tuple(m.TopicRegistration(name, count, None) for name, count in topics.items())
    )


def everything(**changes: Any) -> m.DescribeTopicsRequest:
    """Ask for all topics."""
    return structs.replace(m.DescribeTopicsRequest(None, None, True, "", 100), **changes)


async def counts(client: Client) -> dict[str, int]:
    """Return the registered topics with their partition counts."""
    answer = await client.ask(everything())
    assert isinstance(answer, m.DescribeTopicsResponse)
    return {topic.topic: topic.partition_count for topic in answer.topics}


async def test_topics_survive_a_restart_with_their_end_offsets(autojump_clock: MockClock) -> None:
    """The registry is hard state, of a partition of its own."""
    disk = Disk()
    async with world(disk=disk) as w:
        client = w.connect()
        answer = await client.ask(registration(a=3, b=1))
        assert isinstance(answer, m.RegisterTopicsResponse)
        assert [0, 0] == [topic.error for topic in answer.topics]
        ends = (m.TopicEnds("a", (m.PartitionEnd(2, 77),)),)
        await client.ask(m.ReportEndOffsetsRequest(ends))
        before = w.node.registry.core.hard_state()
    disk.kill()

    async with world(disk=disk) as w:
        assert before == w.node.registry.core.hard_state()
        answer2 = await w.connect().ask(everything())
        assert isinstance(answer2, m.DescribeTopicsResponse)
        assert ["a", "b"] == [topic.topic for topic in answer2.topics]
        assert [77] == [end.end_offset for end in answer2.topics[0].end_offsets]


async def test_ends_are_as_old_after_a_restart_as_before(autojump_clock: MockClock) -> None:
    """A wrong age would raise an alert for an idle topic that is reported each second."""
    disk = Disk()
    report = m.ReportEndOffsetsRequest((m.TopicEnds("idle", (m.PartitionEnd(0, 7),)),))
    async with world(disk=disk) as w:
        client = w.connect()
        await client.ask(registration(idle=1))
        for _ in range(600):
            await client.ask(report)
            await trio.sleep(1)
    disk.kill()

    async with world(disk=disk) as w:
        now = w.node.now()
        (found,) = w.node.registry.core.topic_facts(now, Turn())

    assert found is not None
    assert found.age_ms <= REPEAT_LOG_MS + 1_000


async def test_a_topic_is_not_told_before_it_is_durable(autojump_clock: MockClock) -> None:
    """A crash could take it back."""
    async with world() as w:
        client, reader = w.connect(), w.connect()
        w.slow_disk.hold()
        sent = client.send(registration(a=3))
        await turn()
        asked = [reader.send(everything()), reader.send(registration(a=3))]
        await turn()
        assert client.answers() == reader.answers() == {}
        w.slow_disk.let_go()
        await turn()

        assert sent in client.answers()
        assert asked == sorted(reader.answers())
        assert -1 == client.answers()[sent].leader_epoch


async def test_groups_are_told_of_a_topic_while_another_one_is_on_its_way(
    autojump_clock: MockClock,
) -> None:
    """With two who register topics without a pause there is always another one."""
    async with world() as w:
        client, other = w.connect(), w.connect()
        await client.ask(registration(t=2))
        member_id = await client.join_alone()
        w.slow_disk.hold()
        client.send(registration(t=4))
        await turn()
        told_late = other.send(registration(a=1))
        await turn()
        w.slow_disk.let_go()
        w.slow_disk.hold()  # The flush that has the other one.
        await trio.sleep(0.5)

        assert await client.error(beat(member_id)) == ErrorCode.REBALANCE_IN_PROGRESS
        assert told_late not in other.answers()
        w.slow_disk.let_go()


@pytest.mark.parametrize("restart", [False, True], ids=["running", "over a crash"])
async def test_a_deleted_topic_is_forgotten_when_its_offsets_are_gone(
    restart: bool, autojump_clock: MockClock
) -> None:
    """From every shard, and also if the process dies in the middle."""
    disk = Disk()
    async with world(disk=disk) as w:
        client = w.connect()
        await client.ask(registration(t=8))
        for number in range(10):
            assert 0 == await client.error(commit(number, group_id=f"g{number}"))
        if not restart:
            await client.ask(m.DeleteTopicsRequest(("t",)))
            await trio.sleep(1)
            await assert_purged(client)
            assert 0 == (await client.ask(registration(t=2))).topics[0].error  # type: ignore[attr-defined]  # it has them
            return
        # The deletion is on disk, and no slice of the purge has run.
        caller = Caller("c", "h")
        w.node.registry.core.handle(m.DeleteTopicsRequest(("t",)), object(), caller, w.node.now())
        outcome = w.node.registry.core.interrupted()
        assert outcome is not None
        outcome.replies.clear()
        w.node.registry.apply(outcome, w.node.now())
        await turn()
    disk.kill()

    async with world(disk=disk) as w:
        await trio.sleep(1)
        await assert_purged(w.connect())


async def assert_purged(client: Client) -> None:
    """Fail unless topic t and its offsets are gone."""
    assert {} == await counts(client)
    fetch = m.OffsetFetchRequest(tuple(m.GroupFetch(f"g{n}", None) for n in range(10)), False)
    answer = await client.ask(fetch)
    assert isinstance(answer, m.OffsetFetchResponse)
    assert [()] * 10 == [group.topics for group in answer.groups]


def test_a_topic_is_not_forgotten_before_the_last_shard_is_done() -> None:
    """Registered again too early, it would inherit offsets of its former life."""
    purges = TopicPurges(shards=2)
    assert ["t", "u"] == purges.begin([deleted("t", 3), TopicChange(4, "v", 0, 1), deleted("u", 5)])
    purges.done(0, ["t", "u"])
    assert ([], ["t", "u"]) == (purges.left_for(0, 0), purges.left_for(1, 0))
    assert ["u"] == purges.left_for(1, 3)  # Its log is known to have none of t.
    assert [] == purges.take_over(purges.reached([0, 1]), 10)

    purges.done(0, ["t"])  # Loaded anew, it has looked again.
    purges.done(1, ["t"])
    assert (5, 3) == (purges.reached([0]), purges.reached([0, 1]))
    assert ["t"] == purges.take_over(purges.reached([0, 1]), 10)
    assert ["u"] == purges.left_for(1, 0)


def test_a_topic_that_is_made_anew_is_not_forgotten() -> None:
    """Its groups would lose what they have committed since."""
    purges = TopicPurges(shards=1)
    purges.begin([deleted("t", 3)])
    purges.begin([TopicChange(4, "t", 0, 1)])

    assert [] == purges.left_for(0, 0)
    purges.done(0, ["t"])
    assert [] == purges.take_over(9, 10)


def deleted(topic: str, version: int) -> TopicChange:
    """Return the deletion that made a version of the registry."""
    return TopicChange(version, topic, 1, 0)


async def test_a_full_disk_refuses_registrations(autojump_clock: MockClock) -> None:
    """As all new data, definitely."""
    disk = Disk(total_bytes=1 << 40)
    async with world("storage.reserve.bytes=1000000", disk=disk) as w:
        disk.free_bytes = 999_999
        await trio.sleep(1)
        answer = await w.connect().ask(registration(a=3))

        assert isinstance(answer, m.RegisterTopicsResponse)
        assert [ErrorCode.STORAGE_FULL] == [topic.error for topic in answer.topics]


REFUSED: list[tuple[m.Request, str]] = [
    (structs.replace(registration(a=1), topics=registration(a=1).topics * 2), ""),
    (m.ReportEndOffsetsRequest((m.TopicEnds("t", (m.PartitionEnd(0, 1),) * 2),)), ""),
    (m.OffsetDeleteRequest("g", (m.TopicPartitions("t", (1, 1)),)), ""),
    (
        m.OffsetDeleteRequest(
            "g", tuple(m.TopicPartitions(t, tuple(range(5_001))) for t in ("t", "u"))
        ),
        "",
    ),
    (everything(max_topics=0), "max_topics"),
    (m.DescribeRebalancesRequest("g", 0), "max_rebalances"),
    (m.ScanOffsetsRequest(0, b"", 0, in_columns=True), ""),
    (m.ScanOffsetsRequest(4, b"", 1, in_columns=True), ""),
    (m.ReadOffsetChangesRequest(0, 0, 0), ""),
    (m.ReadOffsetChangesRequest(4, 0, 1), ""),
]


@pytest.mark.parametrize(("request_", "words"), REFUSED)
async def test_content_that_cannot_be_is_42_in_full_shape(
    request_: m.Request, words: str, autojump_clock: MockClock
) -> None:
    """The body could be read, so the answer has its shape, and words where it has room."""
    async with world() as w:
        answer: Any = await w.connect().ask(request_)
        message = getattr(answer, "message", None)
        if message is not None:
            answer = structs.replace(answer, message=None)

        assert error_response(request_, 42) == answer
        assert words in (message or "")


LOADING: list[m.Request] = [
    registration(a=1),
    m.DeleteTopicsRequest(("a",)),
    everything(),
    m.ReportEndOffsetsRequest(()),
    m.DescribeRebalancesRequest("g", 1),
    m.ScanOffsetsRequest(0, b"", 1, in_columns=True),
    m.ReadOffsetChangesRequest(0, 0, 1),
    m.DescribeLagRequest("g"),
    m.SummarizeGroupsRequest(None, (), b"", 1, 0),
    m.AlterGroupRetentionRequest("g", None),
    m.OffsetDeleteRequest("g", ()),
    m.CompactLogRequest(),
]


@pytest.mark.parametrize("request_", LOADING, ids=lambda r: type(r).__name__)
async def test_while_loading_the_newer_requests_are_14_too(
    request_: m.Request, autojump_clock: MockClock
) -> None:
    """Nothing half-loaded is shown."""
    async with world(load=False) as w:
        assert error_response(request_, 14) == await w.connect().ask(request_)


async def test_lag_is_known_only_where_both_ends_are(autojump_clock: MockClock) -> None:
    """Unknown is -1, and never 0."""
    async with world() as w:
        client = w.connect()
        await client.ask(registration(t=2))
        await client.ask(commit(5, 0, 1))
        ends = (m.TopicEnds("t", (m.PartitionEnd(0, 7),)),)
        await client.ask(m.ReportEndOffsetsRequest(ends))
        answer = await client.ask(m.DescribeLagRequest("g"))

        assert isinstance(answer, m.DescribeLagResponse)
        assert [(0, 2), (1, -1)] == [
            (p.partition, p.lag) for topic in answer.topics for p in topic.partitions
        ]


# --- scan and changes -------------------------------------------------------------------


async def changes_from(
    client: Client, position: int, most: int = 100
) -> m.ReadOffsetChangesResponse:
    """Read changes of g's partition."""
    answer = await client.ask(m.ReadOffsetChangesRequest(PARTITION, position, most))
    assert isinstance(answer, m.ReadOffsetChangesResponse)
    return answer


@pytest.mark.parametrize("version", [0, 1])
async def test_a_scan_in_rows_is_a_bare_35(version: int, autojump_clock: MockClock) -> None:
    """As every version or form that a server doesn't know: of version 0, and of 1 in rows."""
    async with world() as w:
        client = w.connect()
        answer = await client.ask(m.ScanOffsetsRequest(PARTITION, b"", 1), version)
        versions = await client.ask(m.ApiVersionsRequest("client", "", ""), 0)

        assert m.BareError(ErrorCode.UNSUPPORTED_VERSION) == answer
        assert isinstance(versions, m.ApiVersionsResponse)
        assert [(1, 1)] == [
            (api.min_version, api.max_version)
            for api in versions.apis
            if api.api_key == ApiKey.SCAN_OFFSETS
        ]


async def scanned(client: Client) -> tuple[dict[tuple[str, str, int], int], int]:
    """Return all committed offsets of g's partition, and the position that they are of."""
    answer = await client.ask(m.ScanOffsetsRequest(PARTITION, b"", 1_000, in_columns=True))
    assert isinstance(answer, m.ScanOffsetsResponse)
    (columns,) = answer.columns
    offsets = offsets_of_page(columns)
    return {(o.group_id, o.topic, o.partition): o.offset for o in offsets}, answer.position


async def test_a_scan_and_its_changes_are_the_state(autojump_clock: MockClock) -> None:
    """In any size of steps, with deletions in between."""
    async with world("offsets.topic.segment.bytes=4096") as w:
        client = w.connect()
        await client.ask(commit(1, *range(50)))
        state, position = await scanned(client)
        assert 50 == len(state)
        for number in range(2, 40):
            await client.ask(commit(number, number % 50))
        await client.ask(m.OffsetDeleteRequest("g", (m.TopicPartitions("t", (3,)),)))
        while True:
            answer = await changes_from(client, position, 7)
            for change in answer.changes:
                key = (change.group_id, change.topic, change.partition)
                if change.kind == "committed":
                    state[key] = change.offset
                else:
                    del state[key]
            position = answer.next_position
            if position == answer.end_position:
                break

        assert state == (await scanned(client))[0]
        assert 49 == len(state)
        await client.ask(m.DeleteGroupsRequest(("g",)))
        assert ["group deleted"] == [c.kind for c in (await changes_from(client, position)).changes]


Written = list[tuple[str, str, tuple[int, ...]]]
PARTITION_SETS = st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True).map(tuple)


def entries_of_commits(written: Written, *, wide: bool) -> Iterator[list[Entry]]:
    """Yield a batch for each commit; every third is followed by a removal, every tenth deletes."""
    for number, (group_id, topic, partitions) in enumerate(written):
        said = [(10 * number + p, number, f"m{p}", NOW_MS, -1) for p in partitions]
        if wide:
            offsets, _, metadata, _, _ = zip(*said, strict=True)
            value = (offsets, number, metadata, NOW_MS, -1)
            batch = [Entry(1, 1, group_id, (topic, partitions), value)]
        else:
            batch = [
                Entry(1, 0, group_id, (topic, p), one)
                for p, one in zip(partitions, said, strict=True)
            ]
        if number % 3 == 2:
            batch.append(Entry(1, 1, group_id, (topic, partitions[0]), None))
        if number % 10 == 9:
            batch.append(Entry(1001, 0, group_id, (), None))
        yield batch


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(st.sampled_from(["g", "h"]), st.sampled_from("tu"), PARTITION_SETS),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 7),
)
def test_changes_are_the_same_whether_an_entry_stands_for_one_partition_or_for_several(
    written: Written, most: int
) -> None:
    """From every position, also from one in the midst of an entry, in any size of steps."""
    told: list[list[m.ReadOffsetChangesResponse]] = []

    async def run(*, wide: bool) -> None:
        async with world() as w:
            for batch in entries_of_commits(written, wide=wide):
                w.journal.append(PARTITION, batch, NOW_MS)
            w.node.want_flushes()
            await w.node.wait_durable()
            await turn()
            w.journal.close(clean=True)
            disk = w.disk
        async with world(disk=disk) as w:
            client = w.connect()
            end = w.journal.end_offset(PARTITION)
            told.append([await changes_from(client, at, most) for at in range(end + 1)])

    for wide in (False, True):
        trio.run(partial(run, wide=wide), clock=MockClock(autojump_threshold=0))
    narrow, wide_ones = told

    assert narrow == wide_ones
    for at, answer in enumerate(narrow):
        assert [c.position for c in answer.changes] == [*range(at, answer.next_position)]
        assert answer.next_position == min(at + most, answer.end_position)


async def test_only_durable_changes_are_told(autojump_clock: MockClock) -> None:
    """A reader that has seen a change can't unsee it."""
    async with world() as w:
        client, reader = w.connect(), w.connect()
        await client.ask(commit(1))
        w.slow_disk.hold()
        client.send(commit(2))
        await turn()
        # The fake has one lane for writing and reading; the position is judged before either.
        sent = reader.send(m.ReadOffsetChangesRequest(PARTITION, 0, 10))
        await turn()
        w.slow_disk.let_go()
        answer = (await reader.answer(sent)).response

        assert isinstance(answer, m.ReadOffsetChangesResponse)
        assert [1] == [change.offset for change in answer.changes]
        assert answer.next_position == answer.end_position == 1


@pytest.mark.parametrize("position", [1, 1_000])
async def test_a_position_that_the_log_does_not_have_is_1008(
    position: int, autojump_clock: MockClock
) -> None:
    """Beyond the end there was another log; the reader must scan anew."""
    async with world() as w:
        answer = await changes_from(w.connect(), position)

        assert ErrorCode.POSITION_TOO_OLD == answer.error


async def test_a_read_is_bounded_and_goes_on(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far back the position lies."""
    monkeypatch.setattr(offset_changes, "ENTRIES_PER_READ", 10)
    async with world() as w:
        client = w.connect()
        await client.ask(commit(1, *range(25)))
        positions = [0]
        while positions[-1] < 25:
            positions.append((await changes_from(client, positions[-1])).next_position)

        assert [0, 10, 20, 25] == positions


async def test_a_read_that_ended_early_keeps_no_file(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction waits for all who still read; who has all that he wanted reads no more."""
    monkeypatch.setattr(offset_changes, "ENTRIES_PER_READ", 1)
    async with world() as w:
        client = w.connect()
        await client.ask(commit(1, *range(25)))
        await changes_from(client, 0)

        assert not w.journal.readers.now()


async def test_many_reads_do_not_hold_up_commits(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reads at a time, what waits is bounded, and the rest is told to come back."""
    monkeypatch.setattr(offset_changes, "READS_WAITING_MAX", 3)
    async with world() as w:
        client, reader = w.connect(), w.connect()
        await client.ask(commit(1))
        w.slow_disk.hold()
        sent = [reader.send(m.ReadOffsetChangesRequest(PARTITION, 0, 10)) for _ in range(6)]
        await turn()
        refused = [i for i in sent if i in reader.answers()]
        answers: list[Any] = [reader.answers()[i].response for i in refused]
        assert {ErrorCode.TOO_MANY_REQUESTS} == {answer.error for answer in answers}
        assert 2 <= len(refused) <= 3
        w.slow_disk.let_go()
        await turn()

        assert sent == sorted(reader.answers())
        assert 0 == await client.error(commit(2))


async def test_large_answers_are_refused_while_they_are_made(autojump_clock: MockClock) -> None:
    """A small request must not make the server build a gigabyte."""
    async with world("response.max.bytes=65536") as w:
        client = w.connect()
        for number in range(40):
            hosts = (m.PartitionHosts(0, tuple(f"{h}" + "h" * 200 for h in range(10))),)
            topic = m.TopicRegistration(f"t{number}", 1, hosts)
            await client.ask(m.RegisterTopicsRequest((topic,)))
        names = tuple(f"t{number}" for number in range(40))

        for request in (everything(), everything(topics=names)):
            assert m.BareError(ErrorCode.RESPONSE_TOO_LARGE) == await client.ask(request)
        some = await client.ask(everything(topics=names[:5]))
        assert isinstance(some, m.DescribeTopicsResponse)
        assert 5 == len(some.topics)


async def test_a_drain_answers_the_reads_that_wait(autojump_clock: MockClock) -> None:
    """Each request gets one answer, also at the end."""
    async with world() as w:
        client = w.connect()
        await client.ask(commit(1))
        w.slow_disk.hold()
        sent = [client.send(m.ReadOffsetChangesRequest(PARTITION, 0, 10)) for _ in range(3)]
        await turn()
        w.nursery.start_soon(w.node.drain)
        await turn()
        w.slow_disk.let_go()
        await turn()

        # The first one was being read already.
        errors = [client.answers()[number].response.error for number in sent]  # type: ignore[attr-defined]  # these have one
        assert [0, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR] == errors
        assert ErrorCode.NOT_COORDINATOR == await client.error(beat())


def make_patterns_costly(clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each name that is matched take a slice."""
    match = Registry.match

    def costing(registry: Registry, pattern: str) -> Iterator[int]:
        for cost_us in match(registry, pattern):
            clock.jump(SLICE_S)
            yield cost_us

    monkeypatch.setattr(Registry, "match", costing)


@pytest.mark.parametrize("asks", ["describes", "joins"])
async def test_a_costly_pattern_holds_nobody_up(
    asks: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are served between two names, and who has gone meanwhile changes nothing."""
    make_patterns_costly(autojump_clock, monkeypatch)
    pattern = ".*b"
    async with world() as w:
        slow, gone, other = w.connect(), w.connect(), w.connect()
        await other.ask(registration(**{f"t{n}": 1 for n in range(300)}))
        asked: m.Request = everything(topics=None, pattern=pattern)
        if asks == "joins":
            first = structs.replace(join("new"), topic_pattern=pattern)
            asked = structs.replace(first, member_id=await slow.member_id("new"))
        frames = [client.frame(asked) for client in (slow, gone)]
        for client, (_, frame) in zip((slow, gone), frames, strict=True):
            client.transport.put(frame)
        sent = other.send(commit(7))
        for _ in range(200):
            await trio.lowlevel.checkpoint()
        assert sent in other.answers()
        assert frames[0][0] not in slow.answers()
        gone.transport.reset()
        await trio.sleep(4)
        if asks == "describes":
            answer: Any = slow.answers()[frames[0][0]].response
            assert (answer.error, answer.topics) == (0, ())
        else:
            assert await w.connect().error(beat("nobody", group_id="new")) == 25
            assert len(w.node.shard_of("new").core.groups["new"].members) == 1
        assert not [name for name in w.event_names() if name.endswith("failed")]


async def test_the_matching_of_patterns_has_a_fifth_of_the_loop_while_clients_ask(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had half of it, and all of it where what waited was matched already."""
    make_patterns_costly(autojump_clock, monkeypatch)
    async with world() as w:
        slow, other = w.connect(), w.connect()
        await other.ask(registration(**{f"t{n}": 1 for n in range(300)}))
        began_s = trio.current_time()
        sent = slow.send(everything(topics=None, pattern=".*b"))
        beats = 0
        while sent not in slow.answers():
            await other.error(beat())
            beats += 1
            await trio.sleep(0.001)
        took_s = trio.current_time() - began_s

    assert took_s == pytest.approx(300 * SLICE_S * (1 + REST), rel=0.01)
    assert beats > 300


async def test_a_bug_behind_a_pattern_ends_one_connection(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that matches goes on."""
    async with world() as w:
        client, other = w.connect(), w.connect()
        await other.ask(registration(a=1))

        def fail(*_: object) -> None:
            raise ZeroDivisionError("planted")

        with monkeypatch.context() as patch:
            patch.setattr(w.node.registry, "tell", fail)
            answer = await client.ask(everything(topics=None, pattern="a"))
        assert isinstance(answer, m.BareError)
        assert answer.error == -1
        found: Any = await other.ask(everything(topics=None, pattern="a"))
        assert [topic.topic for topic in found.topics] == ["a"]
