"""The command that takes back what a refused query has committed."""

import shlex

from hypothesis import given, strategies as st

from client.spark.source.stream_offsets import ReaderIdentity
from client.spark.source.way_back import Committed, way_back
from coordinator.cli.offset_files import parse_offsets
from protocol.group_ids import name_error
from protocol.partition import TopicPartition

READER = ReaderIdentity("h:1,i:2", "e t l", "spark-1")
TOPICS = st.text(max_size=20).filter(lambda name: not name_error(name, 249))
PARTITIONS = st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1))


def test_a_run_that_committed_nothing_has_no_way_back() -> None:
    """A command would reset a group that is where it was."""
    assert way_back({}, READER) == "Nothing of this run is committed"


def test_a_message_names_a_few_partitions_and_the_command_has_all() -> None:
    """The error stands in several logs; what it leaves out would be read by nobody."""
    moved = {TopicPartition("t", p): Committed(0, p + 1) for p in range(30)}

    said, command = way_back(moved, READER).split(", then run: ")

    assert said.startswith("This run has committed t-0 from 0 to 1, t-1 from 0 to 2, ")
    assert said.count(" from ") == 10
    assert "and 20 more. To take that back" in said
    begin = "group-coordinator groups reset-offsets 'e t l' --at h:1,i:2 --from-file <(printf "
    lines = ["topic,partition,offset", *(f"t,{p},0" for p in range(30))]
    assert command == begin + "'%s\\n' " + " ".join(lines) + ")"


@given(st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1), min_size=1, max_size=5))
def test_the_command_says_where_each_partition_was(starts: dict[TopicPartition, int]) -> None:
    """Names of topics may have commas, quotes and spaces."""
    message = way_back({tp: Committed(at, 2**63 - 1) for tp, at in starts.items()}, READER)

    file = message.rpartition("<(printf ")[2].removesuffix(")")
    _, *lines = shlex.split(file)

    found = parse_offsets("\n".join(lines), READER.group)
    assert {one.where: one.offset for one in found} == starts
