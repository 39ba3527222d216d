"""What the listener takes from Spark's events, and from checkpoints."""

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from client import spark
from client.exceptions import (
    CommitRefused,
    CoordinatorError,
    CoordinatorUnavailable,
    FatalError,
    OutcomeUnknown,
    RetriableError,
)
from client.kafka_groups import KafkaGroupError, KafkaRefused, KafkaUnavailable
from client.spark import checkpoint_offsets
from client.spark.errors import CheckpointError
from client.spark.listener import commits, listener as module
from client.spark.listener.background import Background
from client.spark.listener.commits import (
    BackgroundCommitter,
    CoordinatorTarget,
    KafkaTarget,
    NotNow,
    Refused,
    Target,
)
from client.spark.listener.listener import GroupOffsetListener
from protocol.partition import TopicPartition
from tests.spark.test_checkpoint import Made

A, B, C = (TopicPartition("t", p) for p in range(3))
OWN = (
    '{"t-0":{"s":1,"e":9,"g":1},"@":{"v":1,"coordinator":"h:1","group":"g","client_id":"spark-1"}}'
)


def event(
    *end_offsets: str,
    name: str | None = "orders",
    batch: int = 0,
    run: str = "r1",
    query: str = "q",
) -> Any:
    """Return a progress event as Spark makes it."""
    sources = [
        SimpleNamespace(endOffset=end, latestOffset=None, description="s") for end in end_offsets
    ]
    return SimpleNamespace(
        progress=SimpleNamespace(name=name, sources=sources, batchId=batch, id=query, runId=run)
    )


def life(query: str = "q", run: str = "r1", name: str | None = "orders") -> Any:
    """Return an event of a query's start, idleness or end."""
    return SimpleNamespace(id=query, runId=run, name=name)


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> list[dict[TopicPartition, int]]:
    """What the listener hands to its committers; nothing runs in the background."""
    handed: list[dict[TopicPartition, int]] = []
    monkeypatch.setattr(BackgroundCommitter, "want", lambda _, offsets: handed.append(offsets))
    monkeypatch.setattr(Background, "do", lambda _, task: task())
    monkeypatch.setattr(Background, "start", lambda _: None)
    return handed


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Return the checkpoint of the query."""
    made = Made(tmp_path / "ck")
    (made.folder / "metadata").write_text('{"id":"q"}')
    return made


def test_all_sources_of_a_query_are_committed(wanted: list[dict[TopicPartition, int]]) -> None:
    """By topic name, never by the source's place in the list."""
    listener = GroupOffsetListener("h:1", "lag")

    listener.onQueryProgress(event('{"t":{"0":5}}', "None", '{"u-1":{"s":1,"e":9,"g":1}}'))
    listener.onQueryProgress(event("None", batch=1))

    assert wanted == [{A: 5, TopicPartition("u", 1): 9}]
    listener.close()


def test_other_queries_are_left_alone(wanted: list[dict[TopicPartition, int]]) -> None:
    """Two queries on one topic have different lags."""
    listener = GroupOffsetListener("h:1", "lag", query_name="orders")

    listener.onQueryStarted(life("o", name="other"))
    listener.onQueryProgress(event('{"t":{"0":5}}', name="other", query="o"))
    listener.onQueryIdle(life("o"))
    listener.onQueryTerminated(life("o"))
    listener.onQueryProgress(event('{"t":{"0":6}}'))

    assert wanted == [{A: 6}]
    assert [query.query_id for query in listener.metrics().queries] == ["q"]


def test_the_group_of_a_coordinated_source_is_refused_loudly(
    wanted: list[dict[TopicPartition, int]], caplog: pytest.LogCaptureFixture
) -> None:
    """Its readers own the offsets; a commit from outside would be refused, or worse, not."""
    listener = GroupOffsetListener("h:1", "g")

    listener.onQueryProgress(event(OWN))
    listener.onQueryProgress(event(OWN, batch=1))

    assert wanted == []
    assert caplog.text.count("a group of its own") == 1


def test_a_kafka_group_may_show_a_coordinated_source_of_that_name(
    wanted: list[dict[TopicPartition, int]],
) -> None:
    """It is another group, with nobody in it."""
    listener = GroupOffsetListener("h:1", "g", kafka="k:9092")

    listener.onQueryProgress(event(OWN, '{"u":{"0":5}}'))

    assert wanted == [{TopicPartition("u", 0): 5}, {A: 9, TopicPartition("u", 0): 5}]


def test_both_places_get_the_same_offsets(wanted: list[dict[TopicPartition, int]]) -> None:
    """Each with a thread of its own, so that an outage of one is nothing to the other."""
    listener = GroupOffsetListener("h:1", "lag", kafka={"bootstrap.servers": "k:9092"})

    listener.onQueryProgress(event('{"t":{"0":5}}'))

    assert wanted == [{A: 5}, {A: 5}]
    assert [target.target for target in listener.metrics().targets] == [
        "group 'lag' at the coordinator h:1",
        "group 'lag' at Kafka k:9092",
    ]


def test_a_start_shows_what_the_checkpoint_has(
    wanted: list[dict[TopicPartition, int]], made: Made
) -> None:
    """A query without news would have no lag at all until the next batch."""
    made.planned(4, '{"t":{"0":5}}')
    made.planned(5, '{"t":{"0":6}}')
    made.done(4)
    listener = GroupOffsetListener("h:1", "lag", checkpoint=str(made.folder))

    listener.onQueryStarted(life())

    assert wanted == [{A: 5}]


def test_a_listener_that_comes_late_looks_into_the_checkpoint_too(
    wanted: list[dict[TopicPartition, int]], made: Made
) -> None:
    """It saw no start; quiet partitions of a coordinated source are in older batches."""
    made.planned(4, '{"t-0":{"s":1,"e":9,"g":1},"@":{"v":1}}')
    made.planned(5, '{"t-1":{"s":1,"e":8,"g":1},"@":{"v":1}}')
    made.done(4)
    made.done(5)
    listener = GroupOffsetListener("h:1", "lag", checkpoint=str(made.folder))

    listener.onQueryProgress(event('{"t-1":{"s":1,"e":8,"g":1}}', batch=5))

    assert wanted == [{B: 8}, {A: 9, B: 8}]


def test_dropped_events_and_the_last_batch_heal_from_the_checkpoint(
    wanted: list[dict[TopicPartition, int]], made: Made
) -> None:
    """Spark drops events when its queue is full, and often that of the last batch."""
    listener = GroupOffsetListener("h:1", "lag", checkpoint=str(made.folder))
    listener.onQueryStarted(life())
    for batch, offsets in enumerate(['{"0":1}', '{"1":2}', '{"0":3}', '{"2":4}']):
        made.planned(batch, f'{{"t":{offsets}}}')
        made.done(batch)

    listener.onQueryProgress(event('{"t":{"0":1}}', batch=0))
    listener.onQueryProgress(event('{"t":{"0":3}}', batch=2))
    listener.onQueryTerminated(life())

    # The gap's reading goes as far as the checkpoint does by then.
    assert wanted[:2] == [{A: 1}, {A: 3}]
    assert {tp: offset for news in wanted for tp, offset in news.items()} == {A: 3, B: 2, C: 4}
    (query,) = listener.metrics().queries
    assert (query.dropped_events, query.healed, query.active) == (1, 2, False)


def test_the_end_of_a_query_shows_its_last_batch(
    wanted: list[dict[TopicPartition, int]], made: Made
) -> None:
    """Its event often never comes."""
    listener = GroupOffsetListener("h:1", "lag", checkpoint=str(made.folder))
    listener.onQueryStarted(life())
    listener.onQueryProgress(event('{"t":{"0":1}}', batch=0))
    made.planned(1, '{"t":{"0":5}}')
    made.done(1)

    listener.onQueryTerminated(life())

    assert wanted == [{A: 1}, {A: 5}]


def test_closing_shows_what_no_event_told_yet(
    wanted: list[dict[TopicPartition, int]], made: Made
) -> None:
    """A script ends right after its query, and events take a while."""
    listener = GroupOffsetListener("h:1", "lag", checkpoint=str(made.folder))
    listener.onQueryStarted(life())
    made.planned(0, '{"t":{"0":5}}')
    made.done(0)

    listener.close()

    assert wanted == [{A: 5}]


def test_another_querys_checkpoint_is_not_taken(
    wanted: list[dict[TopicPartition, int]], made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    """A copied path would show the offsets of somebody else."""
    made.planned(0, '{"t":{"0":5}}')
    made.done(0)
    listener = GroupOffsetListener("h:1", "lag", checkpoint=str(made.folder))

    for batch in range(9):
        listener.onQueryProgress(event('{"u":{"0":5}}', batch=batch, query="other"))

    assert wanted == [{TopicPartition("u", 0): 5}] * 9
    assert "is the checkpoint of query q, not of other" in caplog.text
    assert caplog.text.count("isn't shown") == module.READS_FAILED_MAX


def test_a_new_run_looks_into_the_checkpoint_again(
    wanted: list[dict[TopicPartition, int]], made: Made
) -> None:
    """Whatever was wrong with it may be right by now."""
    metadata = (made.folder / "metadata").read_text()
    (made.folder / "metadata").write_text("{}")
    made.planned(0, '{"t":{"0":5}}')
    made.done(0)
    listener = GroupOffsetListener("h:1", "lag", checkpoint=str(made.folder))
    for run in range(module.READS_FAILED_MAX):
        listener.onQueryStarted(life(run=f"r{run}"))
    assert wanted == []
    (made.folder / "metadata").write_text(metadata)

    listener.onQueryStarted(life(run="again"))

    assert wanted == [{A: 5}]


def test_queries_that_ended_long_ago_are_forgotten(
    wanted: list[dict[TopicPartition, int]],
) -> None:
    """A driver that starts a query per hour must not grow."""
    listener = GroupOffsetListener("h:1", "lag")
    for number in range(50):
        listener.onQueryStarted(life(f"q{number}"))
        if number:
            listener.onQueryTerminated(life(f"q{number}"))

    left = [query.query_id for query in listener.metrics().queries]

    assert left == ["q0", *(f"q{number}" for number in range(50 - module.ENDED_MAX - 1, 50))]


def test_a_checkpoint_can_be_shown_without_a_query(
    wanted: list[dict[TopicPartition, int]], made: Made, tmp_path: Path
) -> None:
    """A job that runs once a day is behind in between, and visibly so."""
    made.planned(0, '{"t":{"0":5}}')
    made.done(0)
    listener = GroupOffsetListener("h:1", "lag")

    assert listener.catch_up(str(made.folder)) == {A: 5}
    assert wanted == [{A: 5}]
    assert [query.active for query in listener.metrics().queries] == [False]
    with pytest.raises(CheckpointError, match="no checkpoint"):
        listener.catch_up(str(tmp_path / "none"))


def test_a_checkpoints_offsets_can_be_just_read(made: Made, tmp_path: Path) -> None:
    """To look at them, or to begin anew elsewhere."""
    made.planned(0, '{"t":{"0":5}}', '{"logOffset":2}', '{"count":7}')
    made.done(0)

    found = checkpoint_offsets(
        str(made.folder), file_topics={"/in": "in"}, decode=lambda o: {("n", 0): o["count"]}
    )

    assert found == {A: 5, TopicPartition("in", 0): 3, TopicPartition("n", 0): 7}
    with pytest.raises(CheckpointError, match="no checkpoint"):
        checkpoint_offsets(str(tmp_path / "none"))


def test_a_users_function_that_fails_is_logged_once_and_harms_nothing(
    wanted: list[dict[TopicPartition, int]], caplog: pytest.LogCaptureFixture
) -> None:
    """The other sources of the query are shown all the same."""

    def decode(offset: Any) -> Mapping[tuple[str, int], int]:
        raise KeyError(offset["n"])

    listener = GroupOffsetListener("h:1", "lag", decode=decode)
    for batch in range(3):
        listener.onQueryProgress(event(f'{{"n":{batch}}}', '{"t":{"0":5}}', batch=batch))

    assert wanted == [{A: 5}] * 3
    assert caplog.text.count("raised KeyError") == 1


def test_ends_are_known_for_the_coordinator(storing: "Storing") -> None:
    """So that its own lag is one, too."""
    listener = GroupOffsetListener("h:1", "lag", report_ends=True)
    progress = event('{"t":{"0":5}}')
    progress.progress.sources[0].latestOffset = '{"t":{"0":9}}'

    listener.onQueryProgress(progress)

    (query,) = listener.metrics().queries
    assert query.lag == 4
    listener.close()
    assert storing.reports == [{A: 9}]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"coordinator": None}, "to a 'coordinator', to 'kafka', or to both"),
        ({"group": ""}, "'group' is empty"),
        ({"kafka_group": "k"}, "'kafka_group' needs 'kafka'"),
        ({"metrics_every_s": 0}, "'metrics_every_s' is 0"),
        ({"metrics_file": "/x"}, "'metrics_file' needs 'metrics_every_s'"),
        ({"topics": "orders"}, "'topics' must be several names"),
        ({"kafka": {"security.protocol": "SASL_SSL"}}, "no 'bootstrap.servers'"),
        ({"kafka": {"bootstrap.servers": "k:1", "acks.": "1"}}, "acks"),
    ],
)
def test_wrong_arguments_are_named(given: dict[str, Any], why: str) -> None:
    """At once, not in a thread's log an hour later."""
    with pytest.raises((ValueError, TypeError, KafkaGroupError), match=why):
        GroupOffsetListener(**{"coordinator": "h:1", "group": "g", **given})


def test_metrics_are_logged_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that is read while it is written must be whole."""
    monkeypatch.setattr(BackgroundCommitter, "want", lambda _, _offsets: None)
    file = tmp_path / "lag.prom"
    listener = GroupOffsetListener("h:1", "lag", metrics_every_s=60, metrics_file=str(file))
    listener.onQueryProgress(event('{"t":{"0":5}}'))

    with caplog.at_level(logging.INFO, "client.spark.listener.metrics"):
        listener.close()  # Tells once more.

    assert 'topic="t",partition="0"} 5\n' in file.read_text()
    assert '"finished":5' in caplog.messages[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["lag.prom"]


def test_the_background_goes_on_after_a_task_that_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One damaged checkpoint must not end the metrics."""
    ran: list[str] = []
    empty: list[None] = []
    background = Background(lambda: ran.append("tick"), 3600.0)

    background.do(empty.pop)
    background.do(lambda: ran.append("task"))
    background.close(30)
    background.do(lambda: ran.append("too late"))

    assert ran == ["task", "tick"]
    assert "pop from empty list" in caplog.text


class Refusing:
    """A Kafka cluster or a coordinator's client that raises."""

    address = "k:9092"

    def __init__(self, error: Exception) -> None:
        self.error = error

    @contextmanager
    def connected(self, _addresses: object, client_id: str, **_security: object) -> Iterator[Self]:
        """Stand in for `connect_blocking`."""
        assert client_id
        yield self

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Raise."""
        raise self.error


@pytest.mark.parametrize(
    ("make", "raised", "refused"),
    [
        (lambda: KafkaUnavailable("away"), NotNow, None),
        (lambda: KafkaGroupError("no rights"), Refused, {A, B}),
        (lambda: KafkaRefused("no such partition", {A: "no"}), Refused, {A}),
        (lambda: CoordinatorUnavailable("away"), NotNow, None),
        (lambda: OutcomeUnknown("perhaps"), NotNow, None),
        (lambda: FatalError("members", code=25), Refused, {A, B}),
        (lambda: CommitRefused({A: 3}), Refused, {A}),
    ],
)
def test_each_places_errors_mean_later_or_never(
    make: Callable[[], Exception],
    raised: type[Exception],
    refused: set[TopicPartition] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is refused is not repeated before the next batch; what is away is."""
    refusing: Any = Refusing(make())
    targets: list[Target] = [KafkaTarget("k:9092", "g", lambda _: refusing)]
    if isinstance(refusing.error, CoordinatorError):
        monkeypatch.setattr(commits, "connect_blocking", refusing.connected)
        targets = [CoordinatorTarget("h:1", "g")]

    for target in targets:
        with pytest.raises(raised) as caught:
            target.commit({A: 1, B: 2})
        if refused is not None:
            assert caught.value.partitions == refused  # type: ignore[attr-defined] # A Refused.


class Storing(Refusing):
    """A coordinator's client that takes everything but one report."""

    def __init__(self) -> None:
        super().__init__(FatalError("not registered", code=3))
        self.calls: list[str] = []
        self.commits: list[int] = []
        self.reports: list[Mapping[TopicPartition, int]] = []

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Take it."""
        self.calls.append("commit")
        self.commits.append(len(offsets))

    def report_end_offsets(self, ends: Mapping[TopicPartition, int]) -> None:
        """Refuse it, as the coordinator does with topics that nobody registered."""
        self.calls.append("report")
        self.reports.append(ends)
        raise self.error


@pytest.fixture
def storing(monkeypatch: pytest.MonkeyPatch) -> Storing:
    """Return the client that every connection gives."""
    client = Storing()
    monkeypatch.setattr(commits, "connect_blocking", client.connected)
    return client


def test_ends_are_reported_before_the_commit_and_may_be_refused(storing: Storing) -> None:
    """A commit beyond the last report has no known lag; and the offsets are what matters."""
    target = CoordinatorTarget("h:1", "g", lambda: {A: 9})

    target.commit({A: 1})

    assert storing.calls == ["report", "commit"]
    assert (storing.commits, storing.reports) == ([1], [{A: 9}])


def test_a_coordinator_that_is_away_is_asked_once_for_each_commit(storing: Storing) -> None:
    """Each request waits for as long as a request may."""
    storing.error = CoordinatorUnavailable("nobody is there")
    target = CoordinatorTarget("h:1", "g", lambda: {A: 9})

    with pytest.raises(NotNow, match="nobody is there"):
        target.commit({A: 1})

    assert storing.calls == ["report"]


def test_many_partitions_are_committed_in_parts(storing: Storing) -> None:
    """One request holds ten thousand."""
    target = CoordinatorTarget("h:1", "g")

    target.commit({TopicPartition("t", p): p for p in range(25_000)})

    assert storing.commits == [10_000, 10_000, 5_000]
    assert storing.reports == []


def test_kafka_being_away_is_one_error_for_all() -> None:
    """Whoever catches it, and whatever waits out what passes, must not miss the other's."""
    assert spark.KafkaUnavailable is KafkaUnavailable
    assert issubclass(KafkaUnavailable, KafkaGroupError)
    assert issubclass(KafkaUnavailable, RetriableError)


def test_a_listener_that_was_closed_takes_no_more_tasks() -> None:
    """If it isn't removed from the session, events go on for as long as that lives."""
    background = Background(lambda: None, None)
    background.close(1.0)

    def task() -> None:
        raise AssertionError

    kept = weakref.ref(task)
    background.do(task)
    del task

    assert kept() is None
