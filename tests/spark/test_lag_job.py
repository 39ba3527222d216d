"""The lag job's command line, as far as it needs no Spark."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from client.spark.lag.ends import registered
from client.spark.lag.job import AtLeast, main, table
from protocol.messages import DescribedTopic, EndOffset


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--coordinator is missing"),
        (["--offsets", "x"], "--coordinator is missing"),
        (["--every", "1 minute"], "need --history"),
        (["--window", "1 minute"], "need --history"),
        (["--every", "1 s", "--window", "1 s", "--history", "x"], "one at a time"),
        (["--offsets", "x", "--ends", "kafka"], "needs --kafka bootstrap.servers"),
        (["--offsets", "x", "--ends", "log"], "needs --topic"),
        (["--coordinator", "h:1", "--kafka", "sasl.password"], "--kafka: each setting must be"),
        (["--coordinator", "h:1", "--by", "age"], "'--by'"),
    ],
)
def test_a_command_that_lacks_something_says_what(arguments: list[str], words: str) -> None:
    """Before Spark is started, which takes its time."""
    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 2
    assert words in result.output


def test_settings_of_kafka_come_from_a_file(tmp_path: Path) -> None:
    """Passwords don't belong on a command line."""
    config = tmp_path / "kafka.properties"
    config.write_text("# ours\nbroken\n")

    result = CliRunner().invoke(main, ["--coordinator", "h:1", "--kafka-config", str(config)])

    assert "--kafka-config: each setting must be NAME=VALUE" in result.output


def test_a_table_has_numbers_to_the_right_and_dashes_for_what_is_unknown() -> None:
    """An empty cell would be read as 0."""
    text = table(
        ["group", "lag", "age", "full", "at"],
        [["a", 5, 1.25, True, datetime(2026, 3, 1, tzinfo=UTC)], ["bb", None, None, False, None]],
    )

    assert text.splitlines() == [
        "group  lag  age  full  at",
        "a        5  1.2   yes  2026-03-01 00:00:00+00:00",
        "bb       -    -    no  -",
    ]
    assert table(["group"], []) == "group"


def test_a_number_that_is_known_in_part_stands_among_the_numbers() -> None:
    """To the right, as the whole ones."""
    text = table(["lag"], [[AtLeast(5)], [1_234], [AtLeast(1.25)], [None]])

    assert text.splitlines() == ["  lag", "  ≥ 5", " 1234", "≥ 1.2", "    -"]


def test_the_registry_tells_when_an_end_was_reported() -> None:
    """An old report is no end of now."""
    topic = DescribedTopic("t", 0, 2, (), (EndOffset(1, 40, 1_500),))

    (end,) = registered([topic])

    assert (end.topic, end.partition, end.begin_offset, end.end_offset) == ("t", 1, None, 40)
    assert end.sampled_at == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
