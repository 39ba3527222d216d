"""The faults of checkpoints, as the reader's core meets them."""

import json

import pytest

from client.spark.errors import CheckpointError
from client.spark.source.stream_offsets import OffsetFormatError
from tests.spark.fault_support import expect_all, finish, make, shows
from tests.spark.helpers import Checkpoint, Query


def begun(**reader: str) -> Checkpoint:
    """Return a checkpoint with one finished batch, of the reader with these fields."""
    about = {"v": 1, "coordinator": "h:1", "group": "g", "client_id": "old", **reader}
    return Checkpoint([json.dumps({"flights-0": {"s": 0, "e": 5, "g": 1}, "@": about})], 1)


@pytest.mark.parametrize("replayed", [False, True])
@shows("checkpoint of another group")
def test_a_checkpoint_of_another_group_is_refused(replayed: bool) -> None:
    """Batch ids and output folders go with it; nothing is joined or moved."""
    group, log = make({0: 20})
    checkpoint = begun(group="other")
    checkpoint.commits -= replayed
    query = Query(group, log, checkpoint=checkpoint)

    with pytest.raises(CheckpointError, match=r"group 'other', but option 'group' is 'g'"):
        query.core.partitions({}, json.loads(checkpoint.offsets[0])) if replayed else (
            query.trigger()
        )
    assert not group.members


def test_a_checkpoint_knows_its_group_by_any_address() -> None:
    """Coordinators move."""
    group, log = make({0: 20})

    expect_all(finish(Query(group, log, checkpoint=begun(coordinator="moved:1"))), log.ends)


@pytest.mark.parametrize("about", [{}, {"topics": ["flights", "orders"]}])
@shows("checkpoint of another topic set")
def test_a_checkpoint_of_other_topics_only_is_refused(about: dict[str, list[str]]) -> None:
    """Somebody gave the query the wrong folder."""
    group, log = make({0: 20})
    end = {"orders-0": {"s": 0, "e": 5, "g": 1}, "@": {**json.loads(begun().offsets[0])["@"]}}
    query = Query(group, log, checkpoint=Checkpoint([json.dumps(end)], 1))

    with pytest.raises(CheckpointError, match=r"topics 'orders', which.*option 'topics'"):
        query.trigger()
    assert not group.members
    end["@"].update(about)  # With a topic in common it was only changed.
    if about:
        query = Query(group, log, checkpoint=Checkpoint([json.dumps(end)], 1))
        expect_all(finish(query), log.ends)


@pytest.mark.parametrize(
    ("offset", "error", "words"),
    [
        ({"flights-0": {"from": 1}, "@": {"v": 2}}, OffsetFormatError, "version 2.*new checkpoint"),
        ({"flights": {"0": 20}}, OffsetFormatError, "did not write"),
        (20, OffsetFormatError, "did not write"),
    ],
)
@shows("checkpoint from a newer version")
def test_a_checkpoint_that_this_release_cannot_read_is_refused(
    offset: object, error: type[Exception], words: str
) -> None:
    """Also of another source; the message says what to do."""
    group, log = make({0: 20})

    with pytest.raises(error, match=words):
        Query(group, log, checkpoint=Checkpoint([json.dumps(offset)], 1)).trigger()
    with pytest.raises(error, match=words):
        Query(group, log).core.partitions({}, offset)  # type: ignore[arg-type] # As Spark would.
    assert not group.members
