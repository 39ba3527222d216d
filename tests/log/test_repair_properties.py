"""Random logs and random damage: verify finds it, and a repair keeps what can be read."""

import random
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis.strategies import integers

from coordinator.log.errors import LogRefused
from coordinator.log.format import NODE_PARTITION, batch_at, decode_batch
from tests.fakes.disk import Disk
from tests.log.helpers import append, entry, flush, numbers_of, open_journal, replayed
from tests.log.repairs import planned, repaired, verdict

SEGMENT_BYTES = 400
PARTITIONS = 4


class Place(NamedTuple):
    """Where a batch lies."""

    file: str
    start: int
    flush_start: int
    data: bytes
    numbers: list[int]


class Written(NamedTuple):
    """A log, where each batch lies in it, and the end of each partition."""

    disk: Disk
    places: list[Place]
    ends: dict[int, int]


def written(rng: random.Random, *, clean: bool) -> Written:
    """Return a random log of one or more runs."""
    disk = Disk()
    number = 0
    for _run in range(rng.randint(1, 3)):
        zeros_bytes = rng.choice([0, 60, 200])
        journal = open_journal(disk, segment_bytes=SEGMENT_BYTES, zeros_bytes=zeros_bytes)
        for _ in range(rng.randint(1, 12)):
            for _ in range(rng.randint(1, 3)):
                count = rng.randint(1, 3)
                partition = rng.choice([*range(PARTITIONS), NODE_PARTITION])
                padding = rng.randint(0, 40)
                new = range(number, number + count)
                append(journal, partition, *new, padding=padding, wide=rng.random() < 0.5)
                number += count
            flush(journal)
        ends = {p: journal.end_offset(p) for p in (*range(PARTITIONS), NODE_PARTITION)}
        journal.close(clean=clean)
        disk.kill()
    places = []
    for name, content in disk.files().items():
        position = 0
        while name.endswith(".segment") and (raw := batch_at(content, position)) is not None:
            numbers = numbers_of(decode_batch(content, raw))
            data = content[raw.start : raw.end]
            places.append(Place(name, raw.start, raw.flush_start, data, numbers))
            position = raw.end
    return Written(disk, places, ends)


def flipped(rng: random.Random, data: bytes) -> bytes:
    """Turn a bit."""
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def zeroed(rng: random.Random, data: bytes) -> bytes:
    """Lose a page."""
    start = rng.randrange(len(data))
    size = min(rng.randint(1, 200), len(data) - start)
    return data[:start] + bytes(size) + data[start + size :]


def removed(rng: random.Random, data: bytes) -> bytes:
    """Take bytes out of the middle."""
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randint(1, 100) :]


def repeated(rng: random.Random, data: bytes) -> bytes:
    """Put bytes in twice."""
    start = rng.randrange(len(data))
    end = start + rng.randint(1, 150)
    return data[:end] + data[start:end] + data[end:]


Harm = Callable[[random.Random, bytes], bytes]

HARMS: list[Harm] = [
    flipped,
    lambda rng, data: data[: rng.randrange(len(data))],
    zeroed,
    lambda rng, data: data + rng.randbytes(rng.randint(1, 200)),
    removed,
    repeated,
    lambda _, data: b"",
]


def harm(rng: random.Random, disk: Disk) -> None:
    """Damage a few files, or take some away, or give one another name."""
    files = [name for name in disk.files() if "/" not in name and name not in {"lock", "meta"}]
    if rng.random() < 0.1:
        name = rng.choice(files)
        disk.put("renamed.segment", disk.files()[name])
        disk.delete(name)
        return
    for name in rng.sample(files, min(len(files), rng.randint(1, 3))):
        content = disk.files()[name]
        if rng.random() < 0.1:
            disk.delete(name)
        elif content:
            disk.put(name, rng.choice(HARMS)(rng, content))


def intact(log: Written, files: dict[str, bytes]) -> set[int]:
    """Return the numbers of the batches that are where they were, and must be kept."""
    numbers: set[int] = set()
    harmed_flushes = set()
    newest = max(place.file for place in log.places)
    for place in log.places:
        at = slice(place.start, place.start + len(place.data))
        contents = [files.get(name, b"") for name in (place.file, "renamed.segment")]
        if all(content[at] != place.data for content in contents):
            harmed_flushes.add(place.flush_start)
        elif place.file != newest or "clean" in files or place.flush_start not in harmed_flushes:
            # Of a torn flush, nothing behind the tear: of what was written, a prefix survives.
            numbers.update(place.numbers)
    return numbers


def refusal(disk: Disk) -> LogRefused | None:
    """Start the log, and load it, as the daemon does."""
    disk = disk.copy()
    try:
        replayed(open_journal(disk, segment_bytes=SEGMENT_BYTES))
    except LogRefused as exc:
        return exc
    return None


@settings(max_examples=300)
@given(seed=integers(0, 2**32))
def test_a_repair_keeps_what_can_be_read_and_the_daemon_starts(seed: int) -> None:
    """Whatever happened: what the daemon refuses is repaired, and nothing else is touched."""
    rng = random.Random(seed)
    clean = rng.random() < 0.5
    log = written(rng, clean=clean)
    disk = log.disk
    assert planned(disk).is_needed is False
    harm(rng, disk)
    refused = refusal(disk)

    assert str(verdict(disk)) == str(refused)
    plan = planned(disk)
    assert plan.is_needed is (refused is not None), (plan.problems, plan.damages, refused)
    if refused is None:
        return
    before = disk.files()
    repaired(disk, fences=[(0, [entry(-1)])])

    assert verdict(disk) is None
    assert planned(disk).is_needed is False
    assert {v for k, v in before.items() if k != "clean"} <= set(disk.files().values()) | {
        before.get("manifest"),
        before.get("meta"),
    }
    journal = open_journal(disk, segment_bytes=SEGMENT_BYTES)
    loaded = replayed(journal)
    assert len(set(loaded)) == len(loaded)
    assert intact(log, before) <= set(loaded)
    if plan.lost_bytes:
        for partition, end in log.ends.items():
            assert journal.compacted_below[partition] > end
            assert journal.end_offset(partition) > end
    append(journal, 0, 10**6)
    flush(journal)
    disk.kill()
    assert [*loaded, 10**6] == replayed(open_journal(disk, segment_bytes=SEGMENT_BYTES))
