"""Options: what is wrong must be said by name, before anything starts."""

import os
import re
import stat
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from client.exceptions import FatalError
from client.security import Security
from client.spark.options import OptionError, with_secrets
from client.spark.source.query_guard import Refusals
from client.spark.source.reader_options import client_id_of, explained, parse_options
from client.zookeeper.storage import OffsetStorage
from protocol.errors import ErrorCode

GOOD = {"coordinator": "localhost:9310", "group": "g", "topics": "flights"}


def test_the_defaults_are_as_documented() -> None:
    """docs/spark.md has the same table."""
    assert parse_options(GOOD)._asdict() == {
        "coordinator": "localhost:9310",
        "group": "g",
        "topics": ("flights",),
        "topics_pattern": None,
        "max_rows_per_partition": 10_000,
        "max_rows_per_batch": None,
        "starting_offsets": "earliest",
        "starting_timestamp_ms": None,
        "min_tasks": 8,
        "rows_per_task": 50_000,
        "warm_up": True,
        "on_data_loss": "error",
        "on_fence": "rejoin",
        "on_group_loss": "error",
        "on_stateful": "fail",
        "session_timeout_ms": 45_000,
        "rebalance_timeout_ms": 300_000,
        "max_poll_interval_ms": 300_000,
        "request_timeout_ms": 10_000,
        "coordinator_timeout_ms": 600_000,
        "assignors": ("cooperative",),
        "group_instance_id": None,
        "client_id": None,
        "host": None,
        "discovery_interval_ms": 5_000,
        "log_timeout_ms": 300_000,
        "report_ends": True,
        "security": Security(),
        "offset_storage": OffsetStorage(groups=frozenset({"g"})),
    }


def test_who_allows_long_batches_allows_them_before_a_reader_leaves_too() -> None:
    """A group that has run for years with a long 'rebalanceTimeout' must not lose each batch."""
    longer = parse_options({**GOOD, "rebalanceTimeout": "30m"})
    both = parse_options({**GOOD, "rebalanceTimeout": "30m", "maxPollInterval": "10m"})

    assert longer.max_poll_interval_ms == 1_800_000
    assert both.max_poll_interval_ms == 600_000


@pytest.mark.parametrize(
    ("app_name", "expected"),
    [
        ("orders", "spark-orders-0a1b2c3d"),
        ("Orders to table (v2)", "spark-Orders-to-table-v2-0a1b2c3d"),
        ("", "spark-0a1b2c3d"),
        ("../../etc/passwd", "spark-..-..-etc-passwd-0a1b2c3d"),
        ("\x1b[31mred\n[bold]", "spark-31mred-bold-0a1b2c3d"),
        ("日本", "spark-0a1b2c3d"),
        ("x" * 10_000, f"spark-{'x' * 60}-0a1b2c3d"),
    ],
)
def test_a_reader_is_named_after_its_application(app_name: str, expected: str) -> None:
    """Operators see it in lists, type it into commands, and it names a file."""
    assert client_id_of(parse_options(GOOD), app_name, "0a1b2c3d") == expected


def test_readers_with_a_name_of_ones_own_differ_all_the_same() -> None:
    """A drain of one of them must not drain the others of the query."""
    named = parse_options({**GOOD, "clientId": "etl.orders_1"})

    assert client_id_of(named, "orders", "0a1b2c3d") == "etl.orders_1-0a1b2c3d"


@given(st.text(), st.sampled_from(["0a1b2c3d", "ffffffff"]))
def test_whatever_the_application_is_called_its_readers_have_legal_names(
    app_name: str, unique: str
) -> None:
    """A reader that the coordinator refuses because of a title would be a bad joke."""
    client_id = client_id_of(parse_options(GOOD), app_name, unique)

    assert re.fullmatch(r"spark-[A-Za-z0-9._-]*", client_id)
    assert client_id.endswith(unique)
    assert len(client_id) <= 80


def test_names_are_taken_in_any_case() -> None:
    """Spark's are."""
    parsed = parse_options({**GOOD, "MAXROWSPERPARTITION": "7", "onfence": "Fail"})

    assert (parsed.max_rows_per_partition, parsed.on_fence) == (7, "fail")


@pytest.mark.parametrize(
    ("text", "duration_ms"), [("250", 250), ("250ms", 250), ("3 s", 3_000), ("2m", 120_000)]
)
def test_durations_have_units(text: str, duration_ms: int) -> None:
    """A bare number is milliseconds, as in Kafka."""
    assert parse_options({**GOOD, "requestTimeout": text}).request_timeout_ms == duration_ms


def test_lists_are_separated_by_commas() -> None:
    """Several topics, several addresses to begin with."""
    parsed = parse_options({**GOOD, "topics": "a, b", "coordinator": "x:1, [::1]:2"})

    assert parsed.topics == ("a", "b")
    assert parsed.coordinator == "x:1,[::1]:2"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("coordinator", ""),
        ("coordinator", "localhost"),
        ("coordinator", "localhost:0"),
        ("coordinator", "localhost:70000"),
        ("coordinator", "a:1,,b:2"),
        ("group", ""),
        ("group", "g" * 256),
        ("group", "a\x00b"),
        ("topics", ""),
        ("topics", "a,,b"),
        ("topics", "a,a"),
        ("maxRowsPerPartition", "0"),
        ("maxRowsPerPartition", "many"),
        ("maxRowsPerPartition", "-1"),
        ("startingOffsets", "middle"),
        ("failOnDataLoss", "perhaps"),
        ("onFence", "ignore"),
        ("onGroupLoss", "latest"),
        ("onDataLoss", "skip"),
        ("onStateful", "ignore"),
        ("maxRowsPerBatch", "0"),
        ("maxRowsPerBatch", "1.5"),
        ("minTasks", "0"),
        ("rowsPerTask", "unlimited"),
        ("rowsPerTask", "²"),
        ("warmUp", "never"),
        ("logTimeout", "0s"),
        ("sessionTimeout", "0"),
        ("sessionTimeout", "5 minutes"),
        ("rebalanceTimeout", "-1s"),
        ("coordinatorTimeout", "10s"),
        ("assignor", "eager"),
        ("assignor", "range,range"),
        ("groupInstanceId", ""),
        ("groupInstanceId", "a\nb"),
        ("host", " "),
        ("discoveryInterval", "now"),
        ("maxPollInterval", "0"),
        ("reportEnds", "seldom"),
        ("clientId", ""),
        ("clientId", "a b"),
        ("clientId", "../a"),
        ("clientId", "\x1b[31m"),
        ("clientId", "a" * 10_000),
    ],
)
def test_an_impossible_value_is_named(name: str, value: str) -> None:
    """The message is all that the user sees, in a Java stack trace."""
    with pytest.raises(OptionError, match=f"option '{name}'"):
        parse_options({**GOOD, name: value})


def test_a_misspelt_option_is_not_ignored() -> None:
    """It would silently mean the default."""
    with pytest.raises(OptionError, match=r"'maxrows' is unknown.*maxRowsPerPartition"):
        parse_options({**GOOD, "maxRows": "5"})


def test_options_of_a_log_of_ones_own_have_a_prefix() -> None:
    """They are the log's business."""
    parse_options({**GOOD, "log.table": "orders"})


def test_several_assignors_are_taken_in_their_order() -> None:
    """For the time in which readers of two kinds are in one group."""
    parsed = parse_options({**GOOD, "assignor": "Cooperative, range"})

    assert parsed.assignors == ("cooperative", "range")


def test_a_pattern_stands_for_the_topics() -> None:
    """It is matched against whole names."""
    given = {name: value for name, value in GOOD.items() if name != "topics"}
    parsed = parse_options({**given, "topicsPattern": "orders-.*"})

    assert parsed.topics == ()
    assert parsed.topics_pattern is not None
    assert parsed.topics_pattern.pattern == "orders-.*"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topicsPattern": "x", "topics": "y"}, "'topics' and 'topicsPattern' are both given"),
        ({"topicsPattern": "(x"}, "option 'topicsPattern' is '\\(x': it must be a regular"),
        ({"topicsPattern": " "}, "option 'topicsPattern' is missing"),
        ({}, "option 'topics' is missing"),
    ],
)
def test_either_topics_or_a_pattern_is_needed(given: dict[str, str], message: str) -> None:
    """Both, or neither, would leave open what is meant."""
    rest = {name: value for name, value in GOOD.items() if name != "topics"}

    with pytest.raises(OptionError, match=message):
        parse_options({**rest, **given})


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("maxRowPerPartition", "maxRowsPerPartition"),
        ("max_rows_per_batch", "maxRowsPerBatch"),
        ("topic", "topics"),
        ("sesionTimeout", "sessionTimeout"),
        ("onDataLost", "onDataLoss"),
    ],
)
def test_a_misspelt_option_gets_a_suggestion(misspelt: str, meant: str) -> None:
    """Most unknown options are slips."""
    with pytest.raises(
        OptionError, match=f"'{misspelt.lower()}' is unknown; did you mean '{meant}'"
    ):
        parse_options({**GOOD, misspelt: "5"})


def test_the_value_of_an_unknown_option_is_not_shown() -> None:
    """It may be a password under a wrong name."""
    with pytest.raises(OptionError) as caught:
        parse_options({**GOOD, "kafka_password": "s3cret"})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ({}, "error"),
        ({"failOnDataLoss": "true"}, "error"),
        ({"failOnDataLoss": "false"}, "earliest"),
        ({"onDataLoss": "latest"}, "latest"),
        ({"onDataLoss": "latest", "failOnDataLoss": "false"}, "latest"),
        ({"onDataLoss": "error", "failOnDataLoss": "true"}, "error"),
    ],
)
def test_the_policy_for_lost_rows_has_two_names(given: dict[str, str], policy: str) -> None:
    """Spark's Kafka source has the older one."""
    assert parse_options({**GOOD, **given}).on_data_loss == policy


@pytest.mark.parametrize(("policy", "fails"), [("error", "false"), ("earliest", "true")])
def test_two_policies_that_contradict_each_other_are_refused(policy: str, fails: str) -> None:
    """Nobody knows which is meant."""
    with pytest.raises(OptionError, match="contradicts option 'onDataLoss'"):
        parse_options({**GOOD, "onDataLoss": policy, "failOnDataLoss": fails})


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
        ("2023-11-14T23:13:20.123+01:00", 1_700_000_000_123),
        ("2023-11-14 22:13:20", 1_700_000_000_000),
        ("1969-01-01", 0),
        ("", None),
    ],
)
def test_a_start_by_time_is_a_time_or_milliseconds(text: str, expected_ms: int | None) -> None:
    """Milliseconds are what Spark's Kafka source takes; a time is what people write."""
    parsed = parse_options({**GOOD, "startingTimestamp": text})

    assert parsed.starting_timestamp_ms == expected_ms


def test_a_start_by_time_is_told_when_it_is_wrong() -> None:
    """Also when there are two starts."""
    with pytest.raises(OptionError, match="option 'startingTimestamp' is 'noon'"):
        parse_options({**GOOD, "startingTimestamp": "noon"})
    with pytest.raises(OptionError, match="'startingOffsets' and 'startingTimestamp' exclude"):
        parse_options({**GOOD, "startingTimestamp": "0", "startingOffsets": "latest"})


# --- Secrets -------------------------------------------------------------------------------


@pytest.fixture
def _environ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PASSWORD": "s3cret", "USER": "me"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("_environ")
def test_references_are_replaced_in_the_options_of_a_log(tmp_path: Path) -> None:
    """Also several in one value, as in a JAAS configuration."""
    path = tmp_path / "p"
    path.write_text(f"<{path}>\n")
    given = {
        "kafka.sasl.password": "{env:PASSWORD}",
        "log.url": f"x://{{env:USER}}:{{file:{path}}}@h",
        "kafka.plain": "{not:one} {} {env}",
    }

    assert with_secrets(given) == {
        "kafka.sasl.password": "s3cret",
        "log.url": f"x://me:<{path}>@h",
        "kafka.plain": "{not:one} {} {env}",
    }


@pytest.mark.usefixtures("_environ")
def test_other_options_are_left_alone() -> None:
    """A group may be named so."""
    assert with_secrets({"group": "{env:USER}"}) == {"group": "{env:USER}"}


@pytest.mark.parametrize("reference", ["env:NOT_THERE", "file:/not/there"])
def test_a_missing_secret_is_named_without_the_rest(reference: str) -> None:
    """The rest of the value may be a secret itself."""
    given = {"kafka.sasl.jaas.config": f"p=s3cret {{{reference}}}"}

    with pytest.raises(OptionError, match=r"'kafka\.sasl\.jaas\.config' refers to") as caught:
        with_secrets(given)
    assert reference in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_refusal_reaches_its_reader_until_it_is_withdrawn(tmp_path: Path) -> None:
    """Another reader, or a query that starts later, has nothing to do with it."""
    folder = tmp_path / "notes"
    assert Refusals(folder).reason("spark-1") is None
    Refusals(folder).refuse("spark-1", "it is stateful")

    assert Refusals(folder).reason("spark-2") is None
    for _ in range(2):
        assert Refusals(folder).reason("spark-1") == "it is stateful"
    for _ in range(2):
        Refusals(folder).withdraw("spark-1")
    assert Refusals(folder).reason("spark-1") is None
    assert list(folder.iterdir()) == []
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IRWXU


def test_a_folder_of_somebody_else_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else any user of the machine could end our queries."""
    Refusals(tmp_path).refuse("spark-1", "for fun")
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)

    assert Refusals(tmp_path).reason("spark-1") is None


def test_a_refused_session_timeout_names_the_option() -> None:
    """The coordinator's bounds are in its answer."""
    refused = FatalError("between 6000 and 1800000", code=ErrorCode.INVALID_SESSION_TIMEOUT)

    reason = explained(refused, parse_options({**GOOD, "sessionTimeout": "2s"}))

    assert reason == (
        "option 'sessionTimeout' is 2000 ms, which the coordinator refuses "
        "(between 6000 and 1800000)"
    )


def test_offsets_may_be_in_zookeeper_too() -> None:
    """A team that moves away has its tools there, and a way back; only for the query's group."""
    storage = parse_options(
        {**GOOD, "Dual.Commit.Enabled": "true", "zookeeper.connect": "zk:2181/old"}
    ).offset_storage

    assert storage.is_dual
    assert storage.zookeeper is not None
    assert storage.zookeeper.chroot == "/old"
    assert (storage.keeps("g"), storage.keeps("g.places")) == (True, False)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"offsets.storage": "zookeeper", "zookeeper.connect": "zk"}, "no room for"),
        ({"dual.commit.enabled": "true"}, "zookeeper.connect is missing"),
        ({"dual.commit.enabled": "1"}, "must be true or false"),
        ({"zookeeper.conect": "zk"}, "there is no property 'zookeeper.conect'"),
        ({"zookeeper.connect": "zk", "zookeeper.sasl.password": "x"}, "must say where the secret"),
    ],
)
def test_offsets_in_zookeeper_are_refused_with_the_reason(
    options: dict[str, str], problem: str
) -> None:
    """Without its notes beside the offset, a batch that is done again would be another one."""
    with pytest.raises(OptionError, match=re.escape(problem)):
        parse_options({**GOOD, **options})
