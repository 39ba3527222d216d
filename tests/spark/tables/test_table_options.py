"""Options of the tables: each error names the option and says what it may be."""

import pytest

from client.spark.options import OptionError
from client.spark.tables import bulk, offset_log, offset_table
from client.spark.tables.groups import GroupMembersSource
from client.spark.tables.options import SPARK_SCOPES_FILTERS, TableOptions

HOST = {"coordinator": "h:1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option 'coordinator' is missing"),
        ({"coordinator": "h"}, "option 'coordinator' is 'h': it must be host:port"),
        ({"coordinator": "h:99999"}, "option 'coordinator' is 'h:99999'"),
        (HOST | {"group": "g"}, "option 'group' is unknown; did you mean 'groups'?"),
        (HOST | {"xyz": "1"}, "option 'xyz' is unknown (there are coordinator,"),
        (HOST | {"groups": "a,,b"}, "option 'groups' is 'a,,b': it must be names"),
        (HOST | {"maxTasks": "0"}, "option 'maxTasks' is '0': it must be a whole number from 1"),
        (HOST | {"maxTasks": "\u00b2"}, "option 'maxTasks' is"),
        (HOST | {"coordinatorTimeout": "1 day"}, "option 'coordinatorTimeout' is '1 day'"),
        (HOST | {"pushFilters": "yes"}, "option 'pushFilters' is 'yes': it must be 'auto' or"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    """A misspelt one that is ignored reads the wrong groups."""
    source = offset_table.GroupOffsetsSource(options)
    with pytest.raises(OptionError) as caught:
        source.reader(offset_table.SCHEMA)

    assert str(caught.value).startswith(message)


def test_names_of_options_come_in_any_case() -> None:
    """Spark lowers them at times."""
    given = TableOptions({"MAXTASKS": " 3 ", "groups": "a, b"}, ("maxTasks", "groups"))

    assert given.number("maxTasks", 4) == 3
    assert given.names("groups") == frozenset("ab")


def test_every_table_has_its_defaults() -> None:
    """Only the coordinator must be given."""
    reader = offset_table.GroupOffsetsSource(dict(HOST)).reader(offset_table.SCHEMA)
    log = offset_log.parse_options(HOST)

    assert isinstance(reader, offset_table.PushingReader) == SPARK_SCOPES_FILTERS
    assert (reader.target, reader.wanted) == ((("h:1",), 60_000), (None, None))
    assert (log.starts_with_snapshot, log.rescans) == (True, False)
    assert bulk.parse_options(HOST).how == (False, False, False)
    assert GroupMembersSource(dict(HOST)).schema().names[0] == "group"


def test_a_reader_without_push_down_has_no_such_method_of_its_own() -> None:
    """Spark refuses one that has it while its setting is off."""
    reader = offset_table.GroupOffsetsSource(HOST | {"pushFilters": "false"}).reader(
        offset_table.SCHEMA
    )

    assert "pushFilters" not in vars(type(reader))
    assert type(reader) is offset_table.GroupOffsetsReader


def test_a_dry_run_needs_a_place_for_its_report() -> None:
    """Without one it would do nothing that anybody sees."""
    with pytest.raises(OptionError, match="option 'report' is missing"):
        bulk.parse_options(HOST | {"dryRun": "true"})


def test_to_overwrite_is_refused() -> None:
    """It would say that all other offsets are to be forgotten."""
    with pytest.raises(OptionError, match="mode 'overwrite' is not supported"):
        offset_table.GroupOffsetsSource(dict(HOST)).writer(offset_table.SCHEMA, overwrite=True)
