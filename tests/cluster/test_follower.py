"""What a node holds of the log of one journal, and where in the log it lies."""

import random
from collections.abc import Sequence
from typing import Final

import msgpack
import pytest

from coordinator.cluster.engine import Snapshot
from coordinator.cluster.entries import encode
from coordinator.cluster.follower import Tail
from coordinator.log.format import encode_batch

CLAIM: Final = "0" * 32


def unit(index: int, base_offset: int, size: int = 10) -> tuple[bytes, ...]:
    """Return the entries of a unit with one batch of partition 0, whose text can't be packed."""
    text = random.Random(base_offset).randbytes(size).hex()
    packed = msgpack.packb([(0, 1, 1, "g", ("k",), (text,))])
    data = b"".join(encode_batch((0, 1, base_offset, 0, 1_700, 0), packed))
    return encode(data, 1, CLAIM, index)


def units(sizes: Sequence[int]) -> list[tuple[bytes, ...]]:
    """Return units of these sizes, one behind the other."""
    made, index = [], 1
    for base_offset, size in enumerate(sizes):
        made.append(unit(index, base_offset, size))
        index += len(made[-1])
    return made


@pytest.mark.parametrize("seed", range(20))
def test_sizes_are_those_of_the_entries_that_are_kept(seed: int) -> None:
    """They say when a snapshot is due, and how full ZooKeeper is; they are counted as it goes."""
    rng = random.Random(seed)
    made = units([rng.choice((10, 1_000, 100_000)) for _ in range(12)])
    tail, log = Tail(), [b""]
    snapshot_index, kept_from = 0, 1
    for entries in made:
        for _ in tail.take(entries):
            pass
        log += entries
        if rng.random() < 0.4:
            snapshot_index = rng.choice((snapshot_index, tail.applied))
            kept_from = tail.forget(snapshot_index, rng.choice((0, 50_000)))
        behind = log[snapshot_index + 1 :]
        assert tail.sizes_behind(snapshot_index) == (sum(map(len, behind)), len(behind))
        assert tail.kept_bytes == sum(map(len, log[kept_from:]))


def test_what_is_kept_before_a_snapshot_is_found_by_who_starts() -> None:
    """But for a unit whose beginning was trimmed: nobody can read that."""
    made = units([100_000, 10, 10, 10])
    log = [b"", *(data for entries in made for data in entries)]
    first_whole = 1 + len(made[0])
    tail = Tail()
    tail.loaded(Snapshot(index=first_whole + 1, ends={0: 3}))
    for index in range(2, first_whole + 2):
        tail.keep(index, [log[index]])
    for _ in tail.take(made[3]):
        pass

    assert len(made[0]) > 1
    assert tail.compacted_below == {0: 1}
    places = [tail.place_of(0, offset) for offset in (1, 2, 3, 4)]
    assert places == [first_whole, first_whole + 1, first_whole + 2, None]
    assert tail.sizes_behind(first_whole + 1) == (len(made[3][0]), 1)


def test_nothing_is_kept_if_that_was_trimmed_meanwhile() -> None:
    """Places of what isn't there any more would be read, and not found."""
    made = units([10, 10, 10])
    tail = Tail()
    tail.loaded(Snapshot(index=2, ends={0: 2}))
    tail.keep(1, made[0])
    tail.keep_nothing()
    assert tail.compacted_below == {0: 2}
    for _ in tail.take(made[2]):
        pass

    assert (tail.compacted_below, tail.kept_bytes) == ({0: 2}, len(made[2][0]))
