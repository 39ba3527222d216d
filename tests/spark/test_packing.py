"""Ranges packed into tasks."""

from hypothesis import example, given, strategies as st

from client.spark.source.core import Task
from client.spark.source.data_source import pack_ranges
from client.spark.source.stream_offsets import Range
from protocol.partition import TopicPartition


def ranges(*rows: int) -> list[Task]:
    """Return a range of so many rows for each of as many partitions."""
    return [
        Task(TopicPartition("t", partition), Range(100, 100 + count, 1))
        for partition, count in enumerate(rows)
    ]


def sizes(packed: list[list[Task]]) -> list[int]:
    """Return how many rows each task has."""
    return [sum(one.range.end - one.range.start for one in task) for task in packed]


def test_few_ranges_are_a_task_each() -> None:
    """Nothing is gained by having one wait for another."""
    few = ranges(5, 1_000_000, 0)

    assert sorted(pack_ranges(few, 8, 50_000)) == [[one] for one in few]


def test_many_small_ranges_are_few_tasks() -> None:
    """A task costs more than such a range."""
    assert sizes(pack_ranges(ranges(*[10] * 1_000), 8, 50_000)) == [1_250] * 8


def test_many_large_ranges_are_many_tasks() -> None:
    """They keep all cores of a cluster busy, and a task that failed is repeated sooner."""
    assert sizes(pack_ranges(ranges(*[10_000] * 100), 8, 50_000)) == [50_000] * 20


def test_a_large_range_has_a_task_to_itself() -> None:
    """Else its task would end long after the others."""
    packed = pack_ranges(ranges(10, 10, 10_000, 10, 10), 2, 50_000)

    assert sorted(sizes(packed)) == [40, 10_000]


@example([0, 0, 0], 3, 1)
@example([1, 2, 3], 1, 10)
@given(st.lists(st.integers(0, 10**6)), st.integers(1, 50), st.integers(1, 10**6))
def test_every_range_is_in_one_task(rows: list[int], tasks_min: int, rows_per_task: int) -> None:
    """In none it would be lost, in two it would be there twice; and no task is empty."""
    made = ranges(*rows)

    packed = pack_ranges(made, tasks_min, rows_per_task)

    assert sorted(one for task in packed for one in task) == made
    assert all(task and task == sorted(task) for task in packed)
    assert len(packed) >= min(len(made), tasks_min)
    if packed:  # As even as ranges that aren't cut can be.
        assert max(sizes(packed)) <= sum(rows) / len(packed) + max(rows)
        assert len(packed) <= max(tasks_min, sum(rows) / rows_per_task + 1)
