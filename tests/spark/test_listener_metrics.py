"""The metrics as an object, as JSON and for Prometheus."""

import json

from client.spark.listener.metrics import (
    ListenerMetrics,
    PartitionLag,
    QueryMetrics,
    TargetMetrics,
    TopicLag,
)
from protocol.partition import TopicPartition


def query(*lags: int | None, name: str | None = "orders") -> QueryMetrics:
    """Return a query with a partition for each lag."""
    partitions = {
        TopicPartition("t", p): PartitionLag(
            1_234_567_890_123, None if lag is None else 1_234_567_890_123 + lag, lag, 2.5
        )
        for p, lag in enumerate(lags)
    }
    return QueryMetrics("id-1", name, True, 7, 1.0, 0.5, 8, 2, 1, 3, partitions)


TARGET = TargetMetrics("group 'g' at Kafka k:9092", 4, 1, 0, None, 2, "no answer")


def test_a_topics_lag_is_the_sum_and_the_worst() -> None:
    """The sum for scaling, the worst for a partition that is stuck."""
    assert query(3, 0, 9).topics == {"t": TopicLag(3, 12, 9)}
    assert query(3, 0, 9).lag == 12
    assert query(0).lag == 0


def test_a_lag_that_is_partly_unknown_is_unknown() -> None:
    """A sum of what happens to be known looks like good news."""
    assert query(3, None).topics == {"t": TopicLag(2, None, None)}
    assert query(3, None).lag is None
    assert query().lag is None


def test_prometheus_text_has_whole_numbers_and_leaves_out_the_unknown() -> None:
    """Offsets are longer than a float's usual six digits."""
    text = ListenerMetrics((query(3, None),), (TARGET,)).to_prometheus()

    assert (
        'spark_listener_offset{query="orders",query_id="id-1",topic="t",partition="0"}'
        " 1234567890123\n" in text
    )
    assert "# TYPE spark_listener_dropped_events_total counter\n" in text
    assert 'spark_listener_dropped_events_total{query="orders",query_id="id-1"} 2\n' in text
    assert 'spark_listener_query_active{query="orders",query_id="id-1"} 1\n' in text
    assert 'topic="t",partition="0"} 3\n' in text
    assert text.count("spark_listener_lag{") == 1
    assert "spark_listener_query_lag" not in text
    assert "stored_seconds" not in text
    assert "quiet_seconds" in text
    assert "2.500" in text


def test_names_are_escaped_for_prometheus() -> None:
    """A query may be called anything."""
    text = ListenerMetrics((query(name='a"b\\c\nd'),), ()).to_prometheus()

    assert r'query="a\"b\\c\nd"' in text
    assert text.count("\n") == sum(line.startswith(("#", "spark_")) for line in text.splitlines())


def test_json_is_one_line_with_the_sums() -> None:
    """Log collectors take a line for a record."""
    text = ListenerMetrics((query(3, 1, name=None),), (TARGET,)).to_json()

    assert "\n" not in text
    found = json.loads(text)
    (one,) = found["queries"]
    assert (one["name"], one["lag"], one["topics"]["t"]["lag_max"]) == (None, 4, 3)
    assert one["partitions"][1]["partition"] == 1
    assert found["targets"][0]["failures"] == 2


def test_before_anything_happened_there_is_nothing_to_say() -> None:
    """The first scrape may come at once."""
    metrics = ListenerMetrics((), ())

    assert metrics.to_prometheus() == ""
    assert json.loads(metrics.to_json()) == {"queries": [], "targets": []}
