"""``group-coordinator members``: take partitions from members, or members out of their groups.

Who is in a group is told by ``groups describe --members``.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from coordinator.cli.common import (
    GROUP,
    AskFailed,
    Change,
    Coordinator,
    GroupRefused,
    Seconds,
    asks_to_change,
    assignment_of,
    describe_error,
    described,
    partition_count,
)
from coordinator.cli.grammar import Commands
from coordinator.cli.output import Output, counted, note
from coordinator.names import did_you_mean, escaped, quoted
from protocol import messages as m
from protocol.errors import ErrorCode

DRAIN_S: Final = 300.0
DRAIN_POLL_S: Final = 0.5
REASON: Final = "removed by an operator"
HEAD: Final = ("CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS")

_STAY_ASKED: Final = "They stay asked: the same command goes on waiting."
_GONE: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND})


@click.group(
    cls=Commands,
    examples={
        "Take a member's partitions away before it is stopped:": "members drain billing worker-3",
        "A static member won't come back:": "members remove billing --instance worker-3",
    },
)
def members() -> None:
    """Take partitions from members, or members out of their groups."""


@members.command(
    "drain",
    examples={
        "Before a planned stop: nothing is done twice by whoever comes next:": "members drain "
        "billing worker-3",
        "The same in a script, for at most a minute:": "members drain billing worker-3 --yes "
        "--wait 60",
    },
)
@click.argument("group", type=GROUP)
@click.argument("client_id", metavar="CLIENT-ID")
@click.option(
    "--wait",
    "wait_s",
    default=DRAIN_S,
    type=Seconds(),
    metavar="SECONDS",
    help="How long to wait until they own nothing.",
    show_default=True,
)
@asks_to_change
def drain(
    coordinator: Coordinator,
    output: Output,
    change: Change,
    group: str,
    client_id: str,
    wait_s: float,
) -> bool:
    """Let the members of GROUP with a CLIENT-ID finish, and give all partitions to the others.

    They stay in the group and own nothing any more, until they are restarted.
    """
    found = described(coordinator, group)
    asked = [x for x in found.members if x.client_id == client_id]
    if not asked:
        hint = did_you_mean(client_id, (x.client_id for x in found.members))
        raise AskFailed(f"{group}: no member has the client id {quoted(client_id)}.{hint}")
    if len(asked) == len(found.members):
        note("Nobody else is in the group: the partitions will have no owner.")
    question = f"Drain {counted(len(asked), 'member')} of group {quoted(group)}?"
    change.confirm(question, HEAD, [_row(found, x) for x in asked])
    try:
        with progress() as tell:
            left = _drained(coordinator, m.DrainMemberRequest(group, client_id), wait_s, tell)
    except KeyboardInterrupt:
        note("")  # Behind the terminal's ^C.
        note(_STAY_ASKED)
        return True
    rows = [(x.member_id, left.get(x.member_id, "left the group")) for x in asked]
    output.lines("{}: {}", ("CONSUMER-ID", "STATUS"), rows)
    is_late = any(status not in {"drained", "left the group"} for _, status in rows)
    if is_late:
        note(f"Not done within {wait_s:g} s. {_STAY_ASKED}")
    return is_late


def _drained(
    coordinator: Coordinator,
    request: m.DrainMemberRequest,
    wait_s: float,
    tell: Callable[[str], None],
) -> dict[str, str]:
    """Return what became of each member that is still there."""
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            answer: m.DrainMemberResponse = coordinator.ask(request)
            found = described(coordinator, request.group_id)
        except GroupRefused:
            return {}
        except AskFailed as exc:
            if exc.code in _GONE:
                return {}
            raise
        counts = {x.member_id: partition_count(assignment_of(found, x)) for x in found.members}
        status = {
            x.member_id: "drained" if x.drained else f"still owns {_words(counts.get(x.member_id))}"
            for x in answer.members
        }
        late = {who: text for who, text in status.items() if text != "drained"}
        if not late or time.monotonic() >= deadline_s:
            return status
        tell("; ".join(f"{who} {text}" for who, text in late.items()))
        time.sleep(DRAIN_POLL_S)


def _words(count: int | None) -> str:
    return "what it has read" if not count else counted(count, "partition")


@members.command(
    "remove",
    examples={
        "A machine is gone for good, and its static member with it:": "members remove billing "
        "--instance worker-3 --reason 'node gone'",
        "A member hangs; who lives joins again:": "members remove billing "
        "loader-1-6a1f0c5e-3f0b-4a57-9a55-0f6a3c1d2b7e",
    },
)
@click.argument("group", type=GROUP)
@click.argument("member_ids", nargs=-1, metavar="[MEMBER-ID]...")
@click.option(
    "--instance",
    "instance_ids",
    multiple=True,
    metavar="ID",
    help="A static member by its group instance id; may be given several times.",
)
@click.option(
    "--reason", default=REASON, show_default=True, help="What to keep in the history of rebalances."
)
@asks_to_change
def remove(
    coordinator: Coordinator,
    output: Output,
    change: Change,
    group: str,
    member_ids: tuple[str, ...],
    instance_ids: tuple[str, ...],
    reason: str,
) -> bool:
    """Remove members of GROUP that won't come back, all in one rebalance.

    One that lives finds out at its next heartbeat, and joins again as a new member at what is
    committed by then.
    """
    if not member_ids and not instance_ids:
        raise click.UsageError("Name members, by their ids or by --instance.")
    found = described(coordinator, group)
    by_id = {x.member_id: x for x in found.members}
    by_instance = {x.group_instance_id: x for x in found.members if x.group_instance_id is not None}
    wanted: dict[str, tuple[m.DescribedMember, m.LeavingMember]] = {}
    failed = False
    for names, known, what in (
        (member_ids, by_id, "member"),
        (instance_ids, by_instance, "static member"),
    ):
        for name in dict.fromkeys(names):
            member = known.get(name)
            if member is None:
                hint = did_you_mean(name, known)
                note(f"{group}: there is no {what} {quoted(name)}.{hint}")
                failed = True
                continue
            # A static member by its name: it may come back under another id meanwhile.
            leaving = (
                m.LeavingMember(name, None, reason)
                if known is by_id
                else m.LeavingMember("", name, reason)
            )
            wanted[member.member_id] = member, leaving
    question = f"Remove {counted(len(wanted), 'member')} of group {quoted(group)}?"
    change.confirm(question, HEAD, [_row(found, x) for x, _ in wanted.values()], failed=failed)
    if not wanted:
        return failed
    request = m.LeaveGroupRequest(group, tuple(leaving for _, leaving in wanted.values()))
    answer: m.LeaveGroupResponse = coordinator.ask(request)
    rows = []
    for left in answer.members:
        name = left.group_instance_id or left.member_id
        said = describe_error(left.error, left.message) if left.error else "removed"
        rows.append((name, said))
        failed |= bool(left.error)
    output.lines("{}: {}", ("MEMBER", "STATUS"), rows)
    return failed


def _row(group: m.DescribedGroup, x: m.DescribedMember) -> tuple[object, ...]:
    count = partition_count(assignment_of(group, x))
    return (x.member_id, x.group_instance_id, x.client_host, x.client_id, count)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Give what tells how far something is: in one line of a terminal, elsewhere if it changed."""
    told = ""

    def tell(text: str) -> None:
        nonlocal told
        if text != told:
            note(text)
        told = text

    if not sys.stderr.isatty():
        yield tell
        return
    from rich.console import Console  # noqa: PLC0415  # Slow to import, for terminals only.
    from rich.text import Text  # noqa: PLC0415  # likewise

    with Console(stderr=True).status(Text("…")) as status:

        def update(text: str) -> Any:
            status.update(Text(escaped(text)))

        yield update
