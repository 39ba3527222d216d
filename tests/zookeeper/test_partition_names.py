"""The names of znodes that are partitions."""

from itertools import product

import pytest

from client import TopicPartition
from client.zookeeper.znode_offsets import ZnodeOffsets, is_partition
from client.zookeeper.znodes import offsets_path
from protocol.partition import INT32_MAX
from tests.fakes.znodes import Znodes


def test_only_the_number_itself_names_a_partition() -> None:
    """Each partition has one znode, or two consumers would use two."""
    characters = "012-+_. x٣²"
    names = {"".join(one) for length in range(4) for one in product(characters, repeat=length)}
    numbers = {str(number) for number in range(1_000)}

    assert {name for name in names if is_partition(name)} == names & numbers


@pytest.mark.parametrize("number", [0, 9, 10, 999_999_999, INT32_MAX])
def test_a_partition_may_be_as_large_as_a_number_of_the_protocol(number: int) -> None:
    """No larger, and with no zeros ahead."""
    assert is_partition(str(number))
    assert not is_partition(f"0{number}")
    assert not is_partition(str(INT32_MAX + 1 + number))


def test_a_fetch_of_a_whole_group_has_each_partition_once() -> None:
    """What else lies there is nobody's, as for the consumers of Kafka 0.8."""
    znodes = Znodes()
    for name, data in {"1": b"10", "01": b"900", "002": b"7"}.items():
        znodes.put(offsets_path("g", "t", name), data)

    assert ZnodeOffsets(znodes).fetch("g", None, 1) == {TopicPartition("t", 1): 10}  # type: ignore[arg-type]
