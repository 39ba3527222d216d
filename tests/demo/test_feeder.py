"""What the feeder appends, and when."""

from pathlib import Path

from client.spark.logs.folder import FolderLog, FolderLogWriter
from demo.dataset import partition_of
from demo.feeder import Feed, Feeder, pace
from demo.names import NUM_PARTITIONS, TOPIC
from tests.demo.flights import flights


def feeder(root: Path) -> Feeder:
    """Return a feeder of four flights that is not started."""
    feed = Feed(flights())
    writer = FolderLogWriter.create(root, TOPIC, flights().schema, NUM_PARTITIONS, fsync=False)
    return Feeder(feed, writer)


def test_the_one_order_runs_through_all_partitions() -> None:
    """Partitions grow side by side, as those of a real source do."""
    feed = Feed(flights())

    assert [sum(feed.ends(upto)) for upto in range(5)] == [0, 1, 2, 3, 4]
    assert feed.ends(2)[partition_of("UA")] == 2
    assert feed.ends(3)[partition_of("AA")] == 1


def test_appending_in_steps_gives_the_same_log_as_at_once(tmp_path: Path) -> None:
    """The pace must not change an offset."""
    fed = feeder(tmp_path)
    for upto in (0, 1, 1, 3, 4):
        fed.append_upto(upto)

    assert fed.done
    log = FolderLog({"path": str(tmp_path)})
    found = [
        row
        for partition in log.partitions(TOPIC)
        for batch in log.read(TOPIC, partition, 0, log.bounds(TOPIC, partition)[1])
        for row in batch.to_pylist()
    ]
    by_partition = sorted(flights().to_pylist(), key=lambda row: partition_of(str(row["carrier"])))
    assert found == by_partition


def test_the_feeder_never_uses_up_what_a_step_may_use() -> None:
    """A driver that takes minutes to start must find flights still coming when it joins."""
    place, limit = 0.0, 1_000
    for _ in range(4 * 600):
        place += 0.25 * pace(limit - place, rows_per_s=100, last=False)

    assert 0.99 * limit < place < limit


def test_the_last_flight_is_fed_at_full_pace() -> None:
    """The end is to be reached."""
    assert pace(1.0, rows_per_s=100, last=True) == 100


def test_a_feeder_beyond_its_limit_waits() -> None:
    """It never takes back what is appended."""
    assert pace(-5.0, rows_per_s=100, last=False) == 0.0


def test_the_thread_feeds_everything_and_lets_go_of_the_topic(tmp_path: Path) -> None:
    """The end of the story waits for it."""
    fed = feeder(tmp_path)
    fed.feed(1_000, share=1.0)
    fed.start()
    fed.join(timeout=60)

    assert (fed.done, fed.error, sum(fed.ends)) == (True, None, 4)
    FolderLogWriter(tmp_path, TOPIC).close()


def test_an_error_in_the_thread_is_kept_for_the_story(tmp_path: Path) -> None:
    """A feeder that dies silently would look like a slow one."""
    fed = feeder(tmp_path)
    (tmp_path / TOPIC / str(partition_of("UA"))).rmdir()
    fed.feed(1_000, share=1.0)
    fed.start()
    fed.join(timeout=60)

    assert isinstance(fed.error, OSError)
