"""What the commands for a running coordinator share: where it is, which groups, and exit statuses.

0 is done, 1 says that the coordinator refused some of it, 2 is a wrong command line, and 69
(EX_UNAVAILABLE) that nobody answered.
"""

import functools
import re
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, Self, TypeVar

import click

from coordinator.cli.output import end, note
from coordinator.config import Address, ConfigError
from protocol import messages as m
from protocol.connection import ClientConnection
from protocol.errors import ERRORS, Applied, ErrorCode, LocalProtocolError, ProtocolError
from protocol.messages import ApiVersionsRequest, BareError, Request, Response
from protocol.partition import INT32_MAX, INT64_MAX, TopicPartition

EXIT_SOME_FAILED: Final = 1
EXIT_UNREACHABLE: Final = 69
TIMEOUT_MS: Final = 10_000
# Of one request; with the longest names they stay below the largest request.
PARTITIONS_PER_REQUEST: Final = 2_000
FOR_EVER: Final = -1

_IN_DOUBT: Final = {code for code, info in ERRORS.items() if info.applied is Applied.UNKNOWN}
_UNITS_MS: Final = {
    "w": 604_800_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "ms": 1,
}
_TIME: Final = re.compile(r"([0-9]{1,19})(ms|[smhdw])")
# "t", "t:" or "t:0,1"; a name may have colons of its own.
_TOPIC: Final = re.compile(r"(.+?)(?::((?:[0-9]{1,10}(?:,[0-9]{1,10})*)?))?", re.DOTALL)

F = TypeVar("F", bound=Callable[..., Any])
Scope = dict[str, set[int] | None]  # Topics with some of their partitions, None for all.


class AskFailed(Exception):
    """There is no useful answer; the message says why."""


class GroupRefused(AskFailed):
    """One group can't be served; the message names it."""


class InDoubt(AskFailed):
    """The coordinator answered that it doesn't know what became of the request."""


class Unreachable(AskFailed):
    """Nobody answered, or somebody who is no coordinator."""


class Coordinator:
    """Where the questions go. It is connected at the first one, and anew after a failure."""

    def __init__(self, host: str, port: int, *, timeout_ms: int) -> None:
        self._host = host
        self._port = port
        self._timeout_s = timeout_ms / 1000
        self._socket: socket.socket | None = None
        self._protocol = ClientConnection()

    def __enter__(self) -> Self:
        """Return it; nothing is connected yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self._close()

    def ask(self, request: Request) -> Any:
        """Return the answer to *request*.

        Raises:
            AskFailed: The coordinator refuses the request as a whole, or it can't be sent.
            InDoubt: It may have been applied.
            Unreachable: It can't be reached or doesn't answer in time.
        """
        try:
            return _checked(self._exchange(request))
        except LocalProtocolError as exc:
            raise AskFailed(str(exc)) from exc
        except (OSError, ProtocolError) as exc:
            self._close()
            raise Unreachable(f"{self._host}:{self._port}: {exc}") from exc

    def _exchange(self, request: Request) -> Response:
        sock = self._socket
        hello = b""
        if sock is None:
            self._protocol = ClientConnection()
            name = "group-coordinator"
            _, hello = self._protocol.send(ApiVersionsRequest(name, name, ""))
        wanted, frame = self._protocol.send(request)
        if sock is None:
            sock = socket.create_connection((self._host, self._port), timeout=self._timeout_s)
            self._socket = sock
        sock.sendall(hello + frame)
        while data := sock.recv(65536):
            for event in self._protocol.receive(data):
                if event.correlation_id == wanted:
                    return event.response
        raise ConnectionResetError("it closed the connection without an answer")

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _checked(response: Response) -> Response:
    error = getattr(response, "error", 0)
    if type(response) is BareError or error:
        text = describe_error(error, getattr(response, "message", None))
        raise InDoubt(text) if error in _IN_DOUBT else AskFailed(text)
    return response


def describe_error(error: int, message: str | None = None) -> str:
    """Return *error* in words: the server's own, or what the code means."""
    try:
        code = ErrorCode(error)
    except ValueError:
        return f"error {error}"
    return f"{message or ERRORS[code].meaning} ({code.name})"


def asks(
    command: Callable[..., bool | None], *, timeout_ms: int = TIMEOUT_MS
) -> Callable[..., None]:
    """Give *command* a `Coordinator` as its first argument; it returns whether something failed."""

    @click.option(
        "--at",
        default="127.0.0.1:9310",
        metavar="HOST:PORT",
        help="The coordinator.",
        show_default=True,
    )
    @click.option(
        "--timeout",
        "timeout_ms",
        default=timeout_ms,
        type=click.IntRange(1, 3_600_000),
        metavar="MS",
        help="How long to wait for an answer.",
        show_default=True,
    )
    @functools.wraps(command)
    def asking(*arguments: Any, at: str, timeout_ms: int, **options: Any) -> None:
        try:
            host, port = Address.parse("--at", at)
        except ConfigError as exc:
            raise click.BadParameter(str(exc)) from exc
        failed: bool | None = None
        try:
            with Coordinator(host, port, timeout_ms=timeout_ms) as coordinator:
                failed = command(coordinator, *arguments, **options)
        except Unreachable as exc:
            end(str(exc), EXIT_UNREACHABLE)
        except AskFailed as exc:
            end(str(exc), EXIT_SOME_FAILED)
        if failed:
            sys.exit(EXIT_SOME_FAILED)

    return asking


def several_groups(command: F) -> F:
    """Take groups by name, or all; for `groups_asked_for`."""
    all_groups = click.option("--all-groups", is_flag=True, help="All groups that are there.")
    return click.argument("group_ids", nargs=-1, metavar="GROUP...")(all_groups(command))


def groups_asked_for(
    coordinator: Coordinator, group_ids: tuple[str, ...], *, all_groups: bool
) -> list[str]:
    """Return the groups of the command line, each once.

    Raises:
        click.UsageError: None are named, or some beside all.
    """
    if bool(group_ids) == all_groups:
        raise click.UsageError("Name groups, or say --all-groups.")
    if all_groups:
        answer: m.ListGroupsResponse = coordinator.ask(m.ListGroupsRequest((), ()))
        return sorted(group.group_id for group in answer.groups)
    return list(dict.fromkeys(group_ids))


def for_each(group_ids: Iterable[str], work: Callable[[str], None]) -> bool:
    """Do *work* for each group; tell which ones failed, and return whether any did.

    Raises:
        Unreachable: Nobody answers any more; the groups that follow were not tried.
    """
    failed = False
    for group_id in group_ids:
        try:
            work(group_id)
        except Unreachable as exc:
            raise Unreachable(f"{group_id}: {exc}") from exc
        except AskFailed as exc:
            note(str(exc) if type(exc) is GroupRefused else f"{group_id}: {exc}")
            failed = True
    return failed


def described(coordinator: Coordinator, group_id: str) -> m.DescribedGroup:
    """Return a group that is there.

    Raises:
        GroupRefused: It isn't.
        AskFailed: It can't be described.
    """
    found = described_or_dead(coordinator, group_id)
    if found.error:
        raise GroupRefused(f"Consumer group '{group_id}' does not exist.")
    return found


def described_or_dead(coordinator: Coordinator, group_id: str) -> m.DescribedGroup:
    """Return a group, one that isn't there as Dead with error 69.

    Raises:
        AskFailed: It can't be described.
    """
    answer: m.DescribeGroupsResponse = coordinator.ask(m.DescribeGroupsRequest((group_id,)))
    (found,) = answer.groups
    if found.error not in {ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND}:
        raise AskFailed(describe_error(found.error, found.message))
    return found


def topic_scope(texts: Iterable[str]) -> Scope:
    """Return the topics of ``--topic t`` and ``--topic t:0,1``, given any number of times.

    A name that itself ends in a colon and digits is written with a colon behind it.

    Raises:
        click.BadParameter: A partition is out of range, or a name is empty.
    """
    scope: Scope = {}
    for text in texts:
        match = _TOPIC.fullmatch(text)
        if match is None:
            raise click.BadParameter(f"{text!r} names no topic; t or t:0,1", param_hint="--topic")
        topic, listed = match.groups()
        partitions = {int(p) for p in listed.split(",")} if listed else None
        if partitions and max(partitions) > INT32_MAX:
            raise click.BadParameter(f"{text!r} is no partition", param_hint="--topic")
        known = scope.get(topic, set())
        scope[topic] = None if partitions is None or known is None else known | partitions
    return scope


def retention_ms(text: str) -> int:
    """Return for how long offsets are kept by *text*, in milliseconds; -1 for "never".

    Raises:
        ValueError: It is neither, or no time at all.
    """
    if text == "never":
        return FOR_EVER
    match = _TIME.fullmatch(text)
    kept_ms = int(match[1]) * _UNITS_MS[match[2]] if match else 0
    if not 0 < kept_ms <= INT64_MAX:
        raise ValueError(f"{text!r} is none of 14d, 36h, 90m (also w, s, ms), never, default")
    return kept_ms


def retention_text(kept_ms: int) -> str:
    """Return such a time in the largest unit that gives a whole number; a week stays 7d."""
    if kept_ms < 0:
        return "never"
    if kept_ms:
        for unit in ("d", "h", "m", "s"):
            if kept_ms % _UNITS_MS[unit] == 0:
                return f"{kept_ms // _UNITS_MS[unit]}{unit}"
    return f"{kept_ms}ms"


def committed_offsets(coordinator: Coordinator, group_id: str) -> dict[TopicPartition, int]:
    """Return what the group has committed; nothing for one that isn't there.

    Raises:
        AskFailed: They can't be read.
    """
    request = m.OffsetFetchRequest((m.GroupFetch(group_id, None),), False)
    (found,) = coordinator.ask(request).groups
    if found.error:
        raise AskFailed(describe_error(found.error))
    return {
        TopicPartition(topic.topic, p.partition): p.offset
        for topic in found.topics
        for p in topic.partitions
    }


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return partitions by topic, in the order given."""
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return found
