"""What Spark's Python workers do between two tasks."""

from functools import partial

from client.spark.worker_memory import settle


def test_what_the_first_task_loaded_is_frozen_once() -> None:
    """Before it there is little to freeze; later there may be rows of a user's."""
    frozen: list[int] = []
    for task in range(1, 5):
        settle(task, freeze=partial(frozen.append, task))

    assert frozen == [2]
