"""What is live, and that a compacted log says the same as the one it came from."""

from collections.abc import Sequence
from typing import Final

import msgpack
import pytest
from hypothesis import example, given, strategies as st

from coordinator.log.compaction import (
    Compacted,
    Job,
    LiveSearch,
    compact,
    find_live,
    goes_into_same_output,
    is_due,
    live_items,
)
from coordinator.log.errors import LogCorrupt
from coordinator.log.format import (
    HEADER_BYTES,
    NODE_PARTITION,
    SCOPE_TOMBSTONE,
    Batch,
    Entry,
    batch_at,
    encode_batch,
    numbered,
)
from coordinator.log.journal import Journal
from coordinator.log.offline.compact import Saved, compact_stopped
from coordinator.log.state_files import Manifest, SegmentInfo, sealed_sizes
from coordinator.log.swap import replaced
from tests.fakes.disk import Disk
from tests.log.helpers import NOW_MS, flush, loaded, open_journal, segments_of, singles

SEGMENT_BYTES: Final = 400
PARTITIONS: Final = (0, 1, 3, NODE_PARTITION)
DAY_MS: Final = 86_400_000

# Partition, entries of one batch, whether a flush follows; a time passes between batches.
Written = tuple[int, tuple[Entry, ...], bool]

NUMBERS: Final = st.integers(0, 999)
TEXTS: Final = st.text(max_size=20)


@st.composite
def wide_entries(draw: st.DrawFn) -> Entry:
    """Return an entry that stands for several keys, perhaps for one of them twice."""
    elements = tuple(draw(st.lists(st.integers(0, 6), min_size=1, max_size=6)))
    count = len(elements)
    value = draw(
        st.tuples(
            NUMBERS | st.tuples(*[NUMBERS] * count),
            TEXTS | st.tuples(*[TEXTS] * count),
        )
    )
    topic = draw(st.sampled_from(["t", "u"]))
    return Entry(draw(st.sampled_from([1, 2])), 1, draw(SCOPES), (topic, elements), value)


SCOPES: Final = st.sampled_from(["a", "b", ""])
entries = st.one_of(
    st.builds(
        Entry,
        st.sampled_from([1, 2]),
        st.just(0),
        SCOPES,
        st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 2)),
        st.none() | st.tuples(NUMBERS, TEXTS),
    ),
    wide_entries(),
    st.builds(
        Entry,
        st.just(SCOPE_TOMBSTONE),
        st.just(0),
        SCOPES,
        st.just(()),
        st.none(),
    ),
)
batches = st.tuples(
    st.sampled_from(PARTITIONS), st.lists(entries, min_size=1, max_size=4).map(tuple), st.booleans()
)
logs = st.lists(batches, min_size=1, max_size=40)


def put(partition: int, scope: str, number: int, value: int | None) -> tuple[int, Entry]:
    """Return an entry for a key that *number* stands for."""
    found = None if value is None else (value,)
    return partition, Entry(1, 0, scope, ("t", number), found)


def gone(partition: int, scope: str) -> tuple[int, Entry]:
    """Return a scope tombstone."""
    return partition, Entry(SCOPE_TOMBSTONE, 0, scope, (), None)


def journal_of(disk: Disk, *written: tuple[int, Entry], timestamp_ms: int = NOW_MS) -> Journal:
    """Open and write the entries, each as a batch and a flush of its own."""
    journal = open_journal(disk, segment_bytes=SEGMENT_BYTES)
    for partition, entry in written:
        journal.append(partition, [entry], timestamp_ms)
        flush(journal)
    return journal


def shrink(journal: Journal, *, drop_before_ms: int = 0) -> Saved:
    """Compact everything."""
    return compact_stopped(journal, segment_bytes=SEGMENT_BYTES, drop_before_ms=drop_before_ms)


def content(journal: Journal) -> list[tuple[int, int, Entry]]:
    """Return partition, offset and entry of all that the log has, in its order."""
    return [(b.partition, offset, e) for b in loaded(journal) for offset, e in b.entries]


def fold(replay: list[tuple[int, int, Entry]]) -> dict[tuple[object, ...], object]:
    """Return the state that the log stands for."""
    state: dict[tuple[object, ...], object] = {}
    for partition, _, entry in replay:
        if entry.type == SCOPE_TOMBSTONE:
            for key in [k for k in state if k[:2] == (partition, entry.scope)]:
                del state[key]
            continue
        key = (partition, entry.scope, entry.type, entry.key)
        state.pop(key, None)
        if entry.value is not None:
            state[key] = entry.value
    return state


def naive_live(
    replay: list[tuple[Batch, int, Entry]], drop_before_ms: int
) -> tuple[list[tuple[int, int]], dict[int, int]]:
    """Return (partition, offset) of what is live, and below which offset tombstones went."""
    live = []
    below: dict[int, int] = {}
    for at, (batch, offset, entry) in enumerate(replay):
        later = [e for b, _, e in replay[at + 1 :] if b.partition == batch.partition]
        if any(
            e.scope == entry.scope
            and (e.type == SCOPE_TOMBSTONE or (e.type, e.key) == (entry.type, entry.key))
            for e in later
        ):
            continue
        if entry.value is None and batch.timestamp_ms < drop_before_ms:
            below[batch.partition] = max(offset + 1, below.get(batch.partition, 0))
        else:
            live.append((batch.partition, offset))
    return live, below


def test_only_the_last_entry_of_a_key_stays_with_all_that_it_had() -> None:
    """Offset, epoch, time and order: whoever reads on must not notice."""
    disk = Disk()
    journal = journal_of(disk, *[put(0, "g", n % 3, n) for n in range(30)], put(1, "g", 0, 99))
    saved = shrink(journal)

    assert content(journal) == [
        (0, 27, put(0, "g", 0, 27)[1]),
        (0, 28, put(0, "g", 1, 28)[1]),
        (0, 29, put(0, "g", 2, 29)[1]),
        (1, 0, put(1, "g", 0, 99)[1]),
    ]
    assert {(b.leader_epoch, b.timestamp_ms) for b in loaded(journal)} == {(1, NOW_MS)}
    assert saved.live_entries == 4
    assert saved.after_bytes == journal.size_bytes < saved.before_bytes / 5


def test_a_scope_tombstone_takes_all_types_of_its_scope_and_no_other() -> None:
    """And what comes behind it stays."""
    metadata = (0, Entry(2, 0, "g", (), ("m",)))
    journal = journal_of(
        Disk(),
        put(0, "g", 1, 1),
        metadata,
        put(0, "h", 1, 2),
        put(1, "g", 1, 3),
        gone(0, "g"),
        put(0, "g", 2, 4),
    )
    shrink(journal)

    assert [offset for _, offset, _ in content(journal)] == [2, 0, 3, 4]


def test_tombstones_are_kept_while_young() -> None:
    """Who follows the changes hears of a removal."""
    journal = journal_of(Disk(), put(0, "g", 1, 1), put(0, "g", 1, None), gone(1, "g"))
    shrink(journal, drop_before_ms=NOW_MS)

    assert content(journal) == [(0, 1, put(0, "g", 1, None)[1]), (1, 0, gone(1, "g")[1])]
    assert journal.compacted_below == {}


def test_old_tombstones_go_and_it_is_noted_up_to_where() -> None:
    """A stream of changes from below would miss a removal."""
    disk = Disk()
    journal = journal_of(
        disk, put(0, "g", 1, 1), put(0, "g", 1, None), put(0, "g", 2, 2), gone(3, "g")
    )
    shrink(journal, drop_before_ms=NOW_MS + 1)

    assert content(journal) == [(0, 2, put(0, "g", 2, 2)[1])]
    assert journal.compacted_below == {0: 2, 3: 1}

    journal.close(clean=True)

    assert open_journal(disk).compacted_below == {0: 2, 3: 1}


def test_a_tombstone_that_was_overwritten_is_nothing_that_was_dropped() -> None:
    """What took its place is told to whoever reads from below."""
    journal = journal_of(Disk(), put(0, "g", 1, None), put(0, "g", 1, 5))
    shrink(journal, drop_before_ms=NOW_MS + 1)

    assert journal.compacted_below == {}


def test_end_offsets_and_reads_of_one_partition_go_on() -> None:
    """Also of a partition of which nothing is left."""
    disk = Disk()
    written = [put(n % 2, "g", 0, n) for n in range(20)]
    journal = journal_of(disk, *written, gone(0, "g"))
    shrink(journal, drop_before_ms=NOW_MS + 1)

    for _ in range(2):
        assert [journal.end_offset(p) for p in range(3)] == [11, 10, 0]
        assert list(journal.read(0)) == []
        assert [offset for b in journal.read(1) for offset, _ in b.entries] == [9]
        assert [offset for b in journal.read(1, 9) for offset, _ in b.entries] == [9]
        assert list(journal.read(1, 10)) == []
        journal.close(clean=False)
        journal = open_journal(disk, segment_bytes=SEGMENT_BYTES)
    journal.append(0, [put(0, "g", 7, 7)[1]], NOW_MS)
    flush(journal)

    assert [b.base_offset for b in journal.read(0)] == [11]
    assert [(b.partition, b.base_offset) for b in loaded(journal)] == [(1, 9), (0, 11)]


def wide(*numbers: int, value: int = 0) -> tuple[int, Entry]:
    """Return an entry of partition 0 for the keys that *numbers* stand for."""
    return 0, Entry(1, 1, "g", ("t", numbers), (tuple(10 * n + value for n in numbers), "m"))


def test_a_wide_entry_is_left_whole_while_all_its_keys_are_live() -> None:
    """Its bytes are copied, and it stays one entry."""
    journal = journal_of(Disk(), wide(4, 5), wide(0, 1, 2), put(0, "g", 7, 7), wide(4, 5, value=1))
    shrink(journal)

    assert [b.items for b in loaded(journal)] == [
        ((0, *wide(0, 1, 2)[1]),),
        ((0, *put(0, "g", 7, 7)[1]),),
        ((0, *wide(4, 5, value=1)[1]),),
    ]
    assert [b.base_offset for b in loaded(journal)] == [2, 5, 6]


def test_of_a_wide_entry_the_runs_of_live_keys_stay_wide_entries() -> None:
    """Each with its offsets, and with what all its keys had in common."""
    journal = open_journal(Disk(), segment_bytes=SEGMENT_BYTES)
    journal.append(0, [put(0, "g", 99, 1)[1], wide(*range(9))[1], put(0, "g", 8, 3)[1]], NOW_MS)
    flush(journal)
    journal.append(0, [wide(2, 5)[1], put(0, "g", 6, None)[1]], NOW_MS)
    flush(journal)
    saved = shrink(journal)
    first, second = loaded(journal)

    assert first.items == (
        (0, *put(0, "g", 99, 1)[1]),
        (1, *wide(0, 1)[1]),
        (4, *wide(3, 4)[1]),
        (8, *wide(7)[1]),
        (10, *put(0, "g", 8, 3)[1]),
    )
    assert second.items == ((0, *wide(2, 5)[1]), (2, *put(0, "g", 6, None)[1]))
    assert (first.num_keys, second.num_keys, saved.live_entries) == (7, 3, 10)
    assert (first.end_offset, second.base_offset, second.end_offset) == (11, 11, 14)


def test_only_the_last_one_of_a_key_that_a_wide_entry_has_twice_is_live() -> None:
    """As if each had an entry of its own."""
    journal = journal_of(Disk(), wide(3, 4, 3, 3))
    shrink(journal)

    assert [item[0] for b in loaded(journal) for item in b.items] == [1, 3]


def test_keys_are_the_same_in_wide_and_narrow_entries_and_differ_by_their_type() -> None:
    """1, 1.0, true and "1" are four keys, in either kind."""
    elements = (1, True, 1.0, "1", b"1", None, {"a": 1}, 300, -1)
    narrow = [(0, Entry(1, 0, "g", ("t", element), (0,))) for element in elements]
    wide_one = 0, Entry(1, 1, "g", ("t", elements), (1,))
    journal = journal_of(Disk(), *narrow, wide_one, narrow[1])
    shrink(journal)

    assert [offset for _, offset, _ in content(journal)] == [9, *range(11, 18), 18]


def test_live_offsets_that_a_batch_does_not_have_are_damage() -> None:
    """The source was changed between two passes, and what is live in it is not known."""
    items = ((0, *put(0, "g", 1, 1)[1]), (3, *wide(1, 2)[1]), (7, *put(0, "g", 3, 3)[1]))
    for live in ([10, 11], [12, 13], [13, 14, 15], [16, 17], [9, 10], [18], [17, 18]):
        with pytest.raises(LogCorrupt):
            live_items(items, 10, live)
    assert live_items(items, 10, [10, 13, 14, 17]) == [*items]


@given(
    logs,
    st.lists(st.tuples(st.integers(0, 40), st.integers(-1, 3)), min_size=1, max_size=4),
    st.integers(100, 1500),
)
@example([(0, (gone(0, "a")[1],), True)], [(1, 1), (1, 2)], 100)
def test_a_compacted_log_is_the_same_log(
    written: list[Written], compactions: list[tuple[int, int]], segment_bytes: int
) -> None:
    """Several in a row, each at some point and with some retention, restarts in between."""
    disk = Disk()
    journal = open_journal(disk, segment_bytes=segment_bytes)
    everything: list[tuple[int, int, Entry]] = []
    for at, (partition, some, flushes) in enumerate(written):
        first = journal.end_offset(partition)
        journal.append(partition, some, NOW_MS + at)
        everything += [(partition, first + delta, e) for delta, e in enumerate(singles(some))]
        if flushes or at == len(written) - 1:
            flush(journal)
        due = [horizon for when, horizon in compactions if when == at]
        if due and not journal.open_bytes:
            before = [(b, offset, e) for b in loaded(journal) for offset, e in b.entries]
            drop_before_ms = NOW_MS + at + 1 if due[0] < 0 else NOW_MS + at - 10 * due[0]
            live, below = naive_live(before, drop_before_ms)
            was_below = journal.compacted_below
            compact_stopped(journal, segment_bytes=segment_bytes, drop_before_ms=drop_before_ms)
            if segment_bytes > 500:
                journal.close(clean=bool(at % 2))
                journal = open_journal(disk, segment_bytes=segment_bytes)

            assert [(p, offset) for p, offset, _ in content(journal)] == live
            assert fold(content(journal)) == fold(everything)
            assert journal.compacted_below == {
                p: max(below.get(p, 0), was_below.get(p, 0)) for p in below | was_below
            }
    left = content(journal)

    assert fold(left) == fold(everything)
    assert set(map(repr, left)) <= set(map(repr, everything))
    assert [journal.end_offset(p) for p in PARTITIONS] == [
        max([offset + 1 for p2, offset, _ in everything if p2 == p], default=0) for p in PARTITIONS
    ]
    for p in PARTITIONS:
        alone = [(p, offset, e) for b in journal.read(p) for offset, e in b.entries]
        assert alone == [item for item in left if item[0] == p]
    assert not [name for name in disk.files() if name.endswith(".tmp") or "/" in name]
    assert len(segments_of(disk)) == len(journal.manifest.segments)


@given(logs, st.integers(1, 4_000), st.integers(0, 45))
def test_little_memory_only_takes_more_passes(
    written: list[Written], pass_bytes: int, drop: int
) -> None:
    """The result is that of one pass over everything."""
    disk = Disk()
    journal = open_journal(disk)
    for at, (partition, some, _) in enumerate(written):
        journal.append(partition, some, NOW_MS + at)
    flush(journal)

    def read() -> list[tuple[int, int, int, bytes]]:
        return [
            (b.partition, b.base_offset, b.timestamp_ms, msgpack.packb(b.items))
            for b in loaded(journal)
        ]

    small = find_live(read, NOW_MS + drop, pass_bytes=pass_bytes)
    replay = [(b, offset, e) for b in loaded(journal) for offset, e in b.entries]
    live, below = naive_live(replay, NOW_MS + drop)

    assert small == find_live(read, NOW_MS + drop)
    assert sorted((p, offset) for p, found in small.offsets.items() for offset in found) == sorted(
        live
    )
    assert small.dropped_below == below


def test_an_entry_whose_scope_is_no_text_is_damage() -> None:
    """Its checksum may be right all the same."""
    entries = [wide(1, 2)[1], put(0, "g", 1, 1)[1]._replace(scope=5)]  # type: ignore[arg-type]  # that is the point
    journal = open_journal(Disk())
    journal.append(0, entries, NOW_MS)
    flush(journal)

    with pytest.raises(LogCorrupt, match="no text"):
        shrink(journal)


@pytest.mark.parametrize("numbers", [range(20), range(0, 4_000, 200)])
def test_wide_entries_take_as_many_passes_as_narrow_ones(numbers: Sequence[int]) -> None:
    """Their keys are counted like all others, so the memory stays bounded."""
    passes = []
    for is_wide in (False, True):
        search = LiveSearch(0, pass_bytes=8_000)
        while not search.is_done:
            for at, scope in enumerate("abcdefghij" * 2):
                one = wide(*numbers)[1]._replace(scope=scope)
                packed = msgpack.packb(numbered([one] if is_wide else singles([one]))[0])
                search.take((0, at * len(numbers), 0, packed))
            search.end_pass()
        assert len(search.result().offsets[0]) == 10 * len(numbers)
        passes.append(search.passes)

    assert passes[0] == passes[1] > 4


def sealed(base: int, end: int, data_bytes: int, *, compacted: bool) -> SegmentInfo:
    """Return a sealed segment."""
    return SegmentInfo(f"{base}", base, end, data_bytes, compacted)


@pytest.mark.parametrize(
    ("clean_bytes", "dirty_bytes", "ratio", "due"),
    [
        (0, 0, 0.5, False),
        (0, 1, 0.5, True),
        (100, 99, 0.5, False),
        (100, 100, 0.5, True),
        (100, 1, 0.0, True),
        (100, 0, 0.0, False),
        (1, 1000, 1.0, False),
        (0, 1000, 1.0, True),
    ],
)
def test_a_compaction_is_due_by_what_was_sealed_since(
    clean_bytes: int, dirty_bytes: int, ratio: float, *, due: bool
) -> None:
    """As Kafka counts: what is dirty, of all that is sealed."""
    segments = (
        sealed(0, 500, clean_bytes, compacted=True),
        sealed(500, 2000, dirty_bytes, compacted=False),
        SegmentInfo("2000", 2000, None, None, compacted=False),
    )
    manifest = Manifest(segments, {}, 3)

    assert sealed_sizes(manifest.segments) == (clean_bytes, dirty_bytes)
    assert is_due(manifest, ratio) is due


@pytest.mark.parametrize(
    ("output_bytes", "source_bytes", "same"),
    [
        (0, 100, True),
        (60, 40, True),
        (60, 41, False),
        (49, 100, True),
        (50, 51, False),
        (49, 151, True),
        (49, 152, False),
    ],
)
def test_small_neighbours_share_an_output(
    output_bytes: int, source_bytes: int, *, same: bool
) -> None:
    """Neither many small files, nor one over twice the size of a segment."""
    source = sealed(0, source_bytes, source_bytes, compacted=False)

    assert goes_into_same_output(output_bytes, source, 100) is same


def test_segments_that_became_small_are_merged() -> None:
    """Thousands of nearly empty files would slow each start down."""
    disk = Disk()
    journal = journal_of(disk, *[put(0, "g", 0, n) for n in range(100)])
    assert len(segments_of(disk)) > 10
    shrink(journal)

    assert len(segments_of(disk)) == 2
    assert [s.compacted for s in journal.manifest.segments] == [True, False]


def test_sources_that_are_not_the_first_segments_are_refused() -> None:
    """A mix-up must not cost data: what isn't covered would be gone."""
    first, second = sealed(0, 10, 10, compacted=False), sealed(10, 20, 10, compacted=False)
    newest = SegmentInfo("20", 20, None, None, compacted=False)
    manifest = Manifest((first, second, newest), {}, 3)
    whole = Compacted((sealed(0, 20, 5, compacted=True),), {}, 1)

    assert replaced(manifest, (first, second), whole, ("n",)).segments[0].name == "n"
    below = manifest._replace(compacted_below={0: 9, 1: 2})
    dropped = whole._replace(dropped_below={0: 5, 1: 3, 2: 1})
    assert replaced(below, (first, second), dropped, ("n",)).compacted_below == {0: 9, 1: 3, 2: 1}

    for sources, outputs in [
        ((second,), (sealed(10, 20, 5, compacted=True),)),
        ((first,), whole.outputs),
        ((first, second), (sealed(0, 10, 5, compacted=True),)),
        ((first, second), (sealed(0, 9, 5, compacted=True), sealed(10, 20, 5, compacted=True))),
    ]:
        with pytest.raises(ValueError, match="compact"):
            replaced(manifest, sources, Compacted(outputs, {}, 1), ("n",) * len(outputs))


def job_of(journal: Journal, sources: tuple[SegmentInfo, ...]) -> Job:
    """Return a compaction of these segments."""
    return Job(sources, 4, SEGMENT_BYTES, 0, "compaction-x", 0, journal.key)


def test_damage_in_a_source_is_damage_and_changes_nothing() -> None:
    """Compaction must not make a hole look whole."""
    disk = Disk()
    journal = journal_of(disk, *[put(0, "g", n, n) for n in range(30)])
    name = segments_of(disk)[1]
    content_before = disk.files()[name]
    for position in range(len(content_before)):
        damaged = bytearray(content_before)
        damaged[position] ^= 4
        disk.put(name, bytes(damaged))
        before = disk.files().keys()
        sources = tuple(s for s in journal.manifest.segments if s.end is not None)
        with pytest.raises(LogCorrupt):
            list(compact(journal.directory, job_of(journal, sources)))
        assert before == disk.files().keys()


def test_batches_that_were_written_elsewhere_are_damage() -> None:
    """Their checksums are right, and yet they don't belong into this segment."""
    journal = journal_of(Disk(), *[put(0, "g", n, n) for n in range(30)])
    sources = tuple(s for s in journal.manifest.segments if s.end is not None)
    for wrong in ([sources[0]._replace(compacted=True)], [sources[1], sources[0]]):
        with pytest.raises(LogCorrupt):
            list(compact(journal.directory, job_of(journal, tuple(wrong))))


def test_too_little_room_ends_a_compaction_before_it_takes_the_rest() -> None:
    """The daemon needs what is left for commits."""
    disk = Disk()
    journal = journal_of(disk, *[put(0, "g", n, n) for n in range(30)])
    disk.free_bytes = 1_000
    sources = tuple(s for s in journal.manifest.segments if s.end is not None)
    job = job_of(journal, sources)._replace(leave_free_bytes=900)

    with pytest.raises(OSError, match="too little room"):
        list(compact(journal.directory, job))


def test_a_batch_that_names_a_flush_does_not_belong_in_a_compacted_segment() -> None:
    """Then it is not what compaction wrote."""
    disk = Disk()
    journal = journal_of(disk, put(0, "g", 1, 1))
    shrink(journal)
    name = journal.manifest.segments[0].name
    journal.close(clean=True)
    data = disk.files()[name]
    raw = batch_at(data, 0)
    assert raw is not None
    fields = (raw.partition, raw.leader_epoch, raw.base_offset, 7, raw.timestamp_ms, 0)
    changed = b"".join(encode_batch(fields, data[HEADER_BYTES : raw.end]))
    disk.put(name, changed + data[raw.end :])

    with pytest.raises(LogCorrupt, match="written elsewhere"):
        loaded(open_journal(disk))
