"""The options of the coordinated source, checked before anything is started. Pure."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from client.exceptions import FatalError
from client.security import PREFIXES as SECURITY_PREFIXES, Security, without_literals
from client.spark.options import (
    LOG_PREFIXES,
    OptionError,
    read_addresses,
    read_duration_ms,
    read_security,
)
from client.zookeeper.storage import (
    COORDINATOR,
    PREFIXES as STORAGE_PREFIXES,
    STORAGE_NAME,
    ZOOKEEPER,
    OffsetStorage,
)
from protocol.errors import ErrorCode
from protocol.group_ids import NAME_BYTES_MAX, group_id_error, name_error

# Options that this source knows; a misspelt one must not be ignored.
KNOWN: Final = (
    "coordinator",
    "group",
    "topics",
    "topicsPattern",
    "log",
    "path",
    "maxRowsPerPartition",
    "maxRowsPerBatch",
    "minTasks",
    "rowsPerTask",
    "warmUp",
    "startingOffsets",
    "startingTimestamp",
    "onDataLoss",
    "failOnDataLoss",
    "onFence",
    "onGroupLoss",
    "onStateful",
    "sessionTimeout",
    "rebalanceTimeout",
    "maxPollInterval",
    "requestTimeout",
    "coordinatorTimeout",
    "assignor",
    "groupInstanceId",
    "clientId",
    "host",
    "discoveryInterval",
    "logTimeout",
    "reportEnds",
)

# What Kafka has names for.
_OTHERS: Final = (*LOG_PREFIXES, *SECURITY_PREFIXES, *STORAGE_PREFIXES)

MAX_ROWS_PER_PARTITION: Final = 10_000
MIN_TASKS: Final = 8
ROWS_PER_TASK: Final = 50_000
MAX_POLL_INTERVAL_MS: Final = 300_000  # Kafka's default.
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# A client id is the name of a file, too, and stands in commands: 'members drain', say.
_CLIENT_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)
_NO_CLIENT_ID: Final = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_APP_NAME_MAX: Final = 60

# What the option ``assignor`` may name.
COOPERATIVE: Final = "cooperative"
ASSIGNORS: Final = (COOPERATIVE, "range", "sticky")

# What the option ``onGroupLoss`` may be.
ERROR: Final = "error"
CHECKPOINT: Final = "checkpoint"
STARTING_OFFSETS: Final = "startingOffsets"
ON_GROUP_LOSS: Final = (ERROR, CHECKPOINT, STARTING_OFFSETS)


class ReaderOptions(NamedTuple):
    """The checked options of one stream; durations in milliseconds.

    Either *topics* or *topics_pattern* is given. *assignors* are names, the preferred one first.
    """

    coordinator: str
    group: str
    topics: tuple[str, ...]
    topics_pattern: re.Pattern[str] | None
    max_rows_per_partition: int | None
    max_rows_per_batch: int | None
    min_tasks: int
    rows_per_task: int
    warm_up: bool
    starting_offsets: str
    starting_timestamp_ms: int | None
    on_data_loss: str
    on_fence: str
    on_group_loss: str
    on_stateful: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    max_poll_interval_ms: int
    request_timeout_ms: int
    coordinator_timeout_ms: int
    assignors: tuple[str, ...]
    group_instance_id: str | None
    client_id: str | None
    host: str | None
    discovery_interval_ms: int
    log_timeout_ms: int
    report_ends: bool
    security: Security
    offset_storage: OffsetStorage


def parse_options(options: Mapping[str, str]) -> ReaderOptions:
    """Check all options (names in any case) and fill in the defaults.

    Raises:
        OptionError: with a message that names the option and what it may be.

    """
    values = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(values)
    rebalance_timeout_ms = _duration_ms(values, "rebalanceTimeout", "5m")
    # Who lets a batch take longer than Kafka's default says so with either option.
    max_poll_interval_ms = max(MAX_POLL_INTERVAL_MS, rebalance_timeout_ms)
    parsed = ReaderOptions(
        coordinator=",".join(read_addresses("coordinator", _required(values, "coordinator"))),
        group=_group(values),
        topics=_topics(values),
        topics_pattern=_topics_pattern(values),
        max_rows_per_partition=_max_rows(values, "maxRowsPerPartition", MAX_ROWS_PER_PARTITION),
        max_rows_per_batch=_max_rows(values, "maxRowsPerBatch", "unlimited"),
        min_tasks=_count(values, "minTasks", MIN_TASKS),
        rows_per_task=_count(values, "rowsPerTask", ROWS_PER_TASK),
        warm_up=_choice(values, "warmUp", ("true", "false")) == "true",
        starting_offsets=_choice(values, "startingOffsets", ("earliest", "latest")),
        starting_timestamp_ms=_starting_timestamp_ms(values),
        on_data_loss=_on_data_loss(values),
        on_fence=_choice(values, "onFence", ("rejoin", "fail")),
        on_group_loss=_choice(values, "onGroupLoss", ON_GROUP_LOSS),
        on_stateful=_choice(values, "onStateful", ("fail", "warn")),
        session_timeout_ms=_duration_ms(values, "sessionTimeout", "45s"),
        rebalance_timeout_ms=rebalance_timeout_ms,
        max_poll_interval_ms=_duration_ms(values, "maxPollInterval", f"{max_poll_interval_ms}"),
        request_timeout_ms=_duration_ms(values, "requestTimeout", "10s"),
        coordinator_timeout_ms=_duration_ms(values, "coordinatorTimeout", "10m"),
        assignors=_assignors(values),
        group_instance_id=_name(values, "groupInstanceId"),
        client_id=_client_id(values),
        host=_name(values, "host"),
        discovery_interval_ms=_duration_ms(values, "discoveryInterval", "5s"),
        log_timeout_ms=_duration_ms(values, "logTimeout", "5m"),
        report_ends=_choice(values, "reportEnds", ("true", "false")) == "true",
        security=read_security(values),
        offset_storage=_offset_storage(values),
    )
    if parsed.coordinator_timeout_ms <= parsed.session_timeout_ms:
        # A restarted reader waits until its crashed forerunner's session is over.
        raise OptionError(
            f"option 'coordinatorTimeout' ({parsed.coordinator_timeout_ms} ms) must be longer "
            f"than option 'sessionTimeout' ({parsed.session_timeout_ms} ms)"
        )
    return parsed


def _refuse_unknown(values: Mapping[str, str]) -> None:
    """Refuse what is not an option. Values are not shown: one may be a secret."""
    known = {name.lower(): name for name in KNOWN}
    for name in values:
        if name in known or name.startswith(_OTHERS):
            continue
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
        hint = f"did you mean '{known[close[0]]}'? There" if close else "there"
        raise OptionError(
            f"option {name!r} is unknown; {hint} are {', '.join(KNOWN)}, 'log.<name>' for the log "
            "(or a log class of your own), 'kafka.<name>' for a Kafka log, and Kafka's "
            "'security.protocol', 'sasl.<name>' and 'ssl.<name>' for the coordinator, and "
            "'dual.commit.enabled' and 'zookeeper.<name>' for offsets in ZooKeeper, too"
        )


def _required(values: Mapping[str, str], name: str) -> str:
    value = values.get(name.lower(), "").strip()
    if not value:
        raise OptionError(f"option '{name}' is missing")
    return value


def _group(values: Mapping[str, str]) -> str:
    group = _required(values, "group")
    if error := group_id_error(group):
        raise OptionError(f"option 'group' is {group!r}: {error}")
    return group


def _topics(values: Mapping[str, str]) -> tuple[str, ...]:
    if "topicspattern" in values:
        if "topics" in values:
            raise OptionError("options 'topics' and 'topicsPattern' are both given; name one")
        return ()
    if "topics" not in values:
        raise OptionError("option 'topics' is missing (or 'topicsPattern', for all that match)")
    value = _required(values, "topics")
    topics = tuple(topic.strip() for topic in value.split(","))
    if not all(topics) or len(set(topics)) < len(topics):
        raise OptionError(
            f"option 'topics' is {value!r}: it must be topic names separated by commas, each once"
        )
    return topics


def _topics_pattern(values: Mapping[str, str]) -> re.Pattern[str] | None:
    if "topicspattern" not in values:
        return None
    value = _required(values, "topicsPattern")
    try:
        return re.compile(value)
    except re.error as error:
        raise OptionError(
            f"option 'topicsPattern' is {value!r}: it must be a regular expression that matches "
            f"whole topic names ({error})"
        ) from error


def _assignors(values: Mapping[str, str]) -> tuple[str, ...]:
    value = values.get("assignor", COOPERATIVE)
    names = tuple(name.strip().lower() for name in value.split(","))
    if not set(names) <= set(ASSIGNORS) or len(set(names)) < len(names):
        listed = ", ".join(repr(name) for name in ASSIGNORS)
        raise OptionError(
            f"option 'assignor' is {value!r}: it must be one of {listed}, or several of them "
            "separated by commas, the preferred one first"
        )
    return names


def _name(values: Mapping[str, str], name: str) -> str | None:
    if name.lower() not in values:
        return None
    value = values[name.lower()].strip()
    if error := name_error(value, NAME_BYTES_MAX):
        raise OptionError(f"option '{name}' is {value!r}: {error}")
    return value


def _client_id(values: Mapping[str, str]) -> str | None:
    value = values.get("clientid")
    if value is None:
        return None
    if not _CLIENT_ID.fullmatch(value):
        raise OptionError(
            f"option 'clientId' is {value[:200]!r}: it must be 1 to 100 of the characters "
            "A-Z a-z 0-9 . _ -"
        )
    return value


def client_id_of(options: ReaderOptions, app_name: str, unique: str) -> str:
    """Return the client id of one reader: what people know it by, and what no other one has.

    Args:
        options: the checked options of the stream.
        app_name: the name of the Spark application, which may be any text.
        unique: different for each reader, also those of one query.

    """
    if options.client_id is not None:
        return f"{options.client_id}-{unique}"
    name = _NO_CLIENT_ID.sub("-", app_name)[:_APP_NAME_MAX].strip("-")
    return f"spark-{name}-{unique}" if name else f"spark-{unique}"


def _max_rows(values: Mapping[str, str], name: str, default: object) -> int | None:
    if values.get(name.lower(), str(default)).strip().lower() == "unlimited":
        return None
    return _count(values, name, default, or_else=", or 'unlimited'")


def _count(values: Mapping[str, str], name: str, default: object, or_else: str = "") -> int:
    value = values.get(name.lower(), str(default)).strip()
    if not (value.isascii() and value.isdecimal() and 0 < int(value) < 2**31):
        raise OptionError(
            f"option '{name}' is {value!r}: it must be a whole number from 1 to 2147483647{or_else}"
        )
    return int(value)


def _on_data_loss(values: Mapping[str, str]) -> str:
    """Read ``onDataLoss``, or ``failOnDataLoss`` as Spark's Kafka source has it."""
    policy = _choice(values, "onDataLoss", ("error", "earliest", "latest"))
    if "failondataloss" not in values:
        return policy
    fails = _choice(values, "failOnDataLoss", ("true", "false")) == "true"
    if "ondataloss" not in values:
        return "error" if fails else "earliest"
    if fails != (policy == "error"):
        raise OptionError(
            f"option 'failOnDataLoss' is {str(fails).lower()!r}, which contradicts option "
            f"'onDataLoss' ({policy!r}); give only 'onDataLoss'"
        )
    return policy


def _starting_timestamp_ms(values: Mapping[str, str]) -> int | None:
    value = values.get("startingtimestamp", "").strip()
    if not value:
        return None
    if "startingoffsets" in values:
        raise OptionError("options 'startingOffsets' and 'startingTimestamp' exclude each other")
    if value.isdecimal() and value.isascii():
        return int(value)
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise OptionError(
            f"option 'startingTimestamp' is {value!r}: it must be a time such as "
            "'2026-11-21T08:00:00+01:00' (UTC if no zone is given), or milliseconds since 1970"
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0, (at - _EPOCH) // timedelta(milliseconds=1))


def _offset_storage(values: Mapping[str, str]) -> OffsetStorage:
    """Return where the group's offsets are kept besides the coordinator.

    Only there they can't be: a batch that is done again has to be the same one, and what says so
    stands beside the offset, where a znode has no room.
    """
    given = {name: value for name, value in values.items() if name.startswith(STORAGE_PREFIXES)}
    if given.get(STORAGE_NAME, COORDINATOR).strip().lower() == ZOOKEEPER:
        raise OptionError(
            f"option '{STORAGE_NAME}' is 'zookeeper': a query keeps beside each offset what its "
            "last batch has read, which a znode has no room for. With 'dual.commit.enabled' its "
            "offsets are in ZooKeeper, too"
        )
    try:
        without_literals(given)
        storage = OffsetStorage.of(given)
    except ValueError as error:
        raise OptionError(f"options of offsets in ZooKeeper: {error}") from None
    return replace(storage, groups=frozenset({values["group"].strip()}))


def _choice(values: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = values.get(name.lower(), choices[0]).strip().lower()
    by_value = {choice.lower(): choice for choice in choices}
    if value not in by_value:
        listed = " or ".join(repr(choice) for choice in choices)
        raise OptionError(f"option '{name}' is {value!r}: it must be {listed}")
    return by_value[value]


def _duration_ms(values: Mapping[str, str], name: str, default: str) -> int:
    return read_duration_ms(name, values.get(name.lower(), default).strip())


def explained(error: FatalError, options: ReaderOptions) -> str | None:
    """Return what a refusal by the group means for the stream's options, None if nothing."""
    match error.code if error.code is not None else error.group_code:
        case ErrorCode.FENCED_INSTANCE_ID:
            return (
                f"option 'groupInstanceId': another reader of group {options.group!r} came with "
                f"the name {options.group_instance_id!r} and has this one's place. Each query "
                "that runs at the same time needs a name of its own, also two queries over one "
                f"DataFrame ({error})"
            )
        case ErrorCode.INVALID_SESSION_TIMEOUT:
            return (
                f"option 'sessionTimeout' is {options.session_timeout_ms} ms, which the "
                f"coordinator refuses ({error})"
            )
        case ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            return (
                f"option 'assignor' is {','.join(options.assignors)!r}: group {options.group!r} "
                "has members that offer none of these. Readers of the release before offer "
                "'range' only: set it to 'cooperative,range' as long as such are in the group, "
                f"then to 'cooperative' ({error})"
            )
    return None
