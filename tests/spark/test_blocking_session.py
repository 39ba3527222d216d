"""What the leader of a group answers for topics of other members."""

import pytest

from client.spark.blocking_session import partitions_of
from client.spark.folder import FolderLog
from client.spark.log import LogError


@pytest.mark.parametrize("foreign", ["flihgts", "not a topic of a folder"])
def test_a_topic_that_only_others_read_has_no_partitions_where_it_is_unknown(
    tmp_path_factory: pytest.TempPathFactory, foreign: str
) -> None:
    """One driver with a typing error would end the query of each leader in turn."""
    log = FolderLog({"path": str(tmp_path_factory.mktemp("log"))})

    assert partitions_of(log, ("flights",), foreign) == []
    with pytest.raises(LogError, match="no topic 'flights'"):
        partitions_of(log, ("flights",), "flights")
