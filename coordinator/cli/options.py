"""What the commands for a running coordinator share: where it is, which groups, and exit statuses.

0 is done, 1 says that the coordinator refused some of it, 2 is a wrong command line, and 69
(EX_UNAVAILABLE) that nobody answered.
"""

import functools
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import click

from coordinator.cli.asking import AskFailed, Coordinator, GroupRefused, Unreachable, describe_error
from coordinator.cli.output import end, note
from coordinator.config import Address, ConfigError
from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.types import INT32_MAX

EXIT_SOME_FAILED: Final = 1
EXIT_UNREACHABLE: Final = 69
TIMEOUT_MS: Final = 10_000

F = TypeVar("F", bound=Callable[..., Any])

# "t", "t:" or "t:0,1"; a name may have colons of its own.
_TOPIC: Final = re.compile(r"(.+?)(?::((?:[0-9]{1,10}(?:,[0-9]{1,10})*)?))?", re.DOTALL)


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


Scope = dict[str, set[int] | None]  # Topics with some of their partitions, None for all.


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
