"""What Spark's Python workers do between two tasks."""

import itertools
from functools import partial

import pytest

from client.spark import worker_memory
from client.spark.worker_memory import settle


def test_what_the_first_task_loaded_is_frozen_once() -> None:
    """Before it there is little to freeze; later there may be rows of a user's."""
    frozen: list[int] = []
    for task in range(1, 5):
        settle(task, freeze=partial(frozen.append, task))

    assert frozen == [2]


def test_the_tasks_of_a_process_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever format they read: a worker runs tasks of all of them."""
    monkeypatch.setattr(worker_memory, "_tasks", itertools.count(1))
    frozen: list[int] = []
    for task in range(1, 5):
        settle(freeze=partial(frozen.append, task))

    assert frozen == [2]
