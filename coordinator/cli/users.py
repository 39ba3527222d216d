"""``group-coordinator users``: who can log in with a password.

A password comes from a question, from a file or from standard input, and never from the command
line, which everybody on the machine can read. Its keys are made here; it is sent nowhere.
"""

import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from coordinator.cli.common import (
    AskFailed,
    Change,
    Coordinator,
    NameType,
    asks,
    asks_to_change,
    refused,
)
from coordinator.cli.grammar import Commands
from coordinator.cli.output import Output, counted
from coordinator.names import quoted
from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.group_ids import NAME_BYTES_MAX
from protocol.scram import (
    ITERATIONS,
    MECHANISMS,
    PASSWORD_CHARACTERS_MAX,
    SALT_BYTES,
    Mechanism,
    keys_of,
    password_problem,
)

USERS_PER_PAGE: Final = 1_000
# Without "User:".
_USER: Final = NameType("user", NAME_BYTES_MAX)
_COLUMNS: Final = ("USER", "MECHANISM", "ITERATIONS")
_CHANGED: Final = ("USER", "MECHANISM", "STATUS")


@click.group(
    cls=Commands,
    examples={
        "Who can log in with a password?": "users list",
        "Let Alice do so; her password is asked for:": "users add alice",
        "Give her another one, from a file:": "users password alice --password-file secret.txt",
    },
)
def users() -> None:
    """Look at the users who can log in with a password (SCRAM), and change them."""


@users.command(
    "list",
    examples={
        "All of them:": "users list",
        "Some, for a program:": "users list alice bob --output json",
    },
)
@click.argument("names", nargs=-1, metavar="[USER]...", type=_USER)
@asks
def list_users(coordinator: Coordinator, output: Output, names: tuple[str, ...]) -> bool:
    """List users, with how their passwords are checked."""
    rows: list[tuple[object, ...]] = []
    missing = []
    for user in _described(coordinator, names):
        if user.error:
            missing.append(user.user)
        rows += [
            (user.user, Mechanism(c.mechanism).sasl_name, c.iterations) for c in user.credentials
        ]
    output.show(_COLUMNS, rows, failed=bool(missing))
    if missing:
        raise AskFailed(f"No such user: {', '.join(map(quoted, missing))}.")
    return False


def _described(coordinator: Coordinator, names: tuple[str, ...] = ()) -> list[m.DescribedUser]:
    if names:
        asked = m.DescribeUserScramCredentialsRequest(tuple(dict.fromkeys(names)), "", 0)
        return list(coordinator.ask(asked).users)
    found: list[m.DescribedUser] = []
    has_more = True
    while has_more:
        after = found[-1].user if found else ""
        request = m.DescribeUserScramCredentialsRequest(None, after, USERS_PER_PAGE)
        answer = coordinator.ask(request)
        found += answer.users
        has_more = answer.has_more and bool(answer.users)
    return found


def _takes_a_password(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.argument("user", type=_USER),
        click.option(
            "--mechanism",
            type=click.Choice(list(MECHANISMS)),
            default=Mechanism.SCRAM_SHA_256.sasl_name,
            help="How it is checked.",
            show_default=True,
        ),
        click.option(
            "--password-file",
            type=click.Path(exists=True, dir_okay=False, allow_dash=True),
            default=None,
            help="A file with the password in its first line, - is standard input.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _password(file: str | None) -> str:
    """Return the password of a file or a person.

    Raises:
        click.UsageError: There is none, or it can't be one.
    """
    if file is None:
        if not sys.stdin.isatty():
            raise click.UsageError("No terminal to ask for the password: give --password-file.")
        password: str = click.prompt(
            "Password", hide_input=True, confirmation_prompt=True, err=True
        )
    else:
        limit = PASSWORD_CHARACTERS_MAX + 2  # An end of line, and one too many.
        if file == "-":
            line = sys.stdin.readline(limit)
        else:
            with Path(file).open(encoding="utf-8", errors="replace") as lines:
                line = lines.readline(limit)
        password = line.rstrip("\r\n")
    problem = password_problem(password)
    if problem is not None:
        raise click.UsageError(f"{problem[0].upper()}{problem[1:]}.")
    return password


def _set(coordinator: Coordinator, user: str, mechanism: Mechanism, password: str) -> None:
    salt = secrets.token_bytes(SALT_BYTES)
    keys = keys_of(password, mechanism, salt, ITERATIONS)
    wanted = m.ScramUpsertion(user, mechanism, ITERATIONS, salt, *keys)
    _alter(coordinator, m.AlterUserScramCredentialsRequest((), (wanted,)))


def _alter(coordinator: Coordinator, request: m.AlterUserScramCredentialsRequest) -> None:
    (done,) = coordinator.ask(request).results
    if done.error:
        raise refused(done.user, done.error, done.message)


def _mechanisms(coordinator: Coordinator, user: str) -> list[Mechanism]:
    """Return the mechanisms for which a user has a password."""
    (found,) = _described(coordinator, (user,))
    if found.error not in {ErrorCode.NONE, ErrorCode.RESOURCE_NOT_FOUND}:
        raise refused(user, found.error)
    return [Mechanism(one.mechanism) for one in found.credentials]


@users.command(
    "add",
    examples={
        "Be asked for her password:": "users add alice",
        "Take it from a file, in a script:": "users add alice --password-file secret.txt --yes",
    },
)
@_takes_a_password
@asks_to_change
def add_user(
    coordinator: Coordinator,
    output: Output,
    change: Change,
    user: str,
    mechanism: str,
    password_file: str | None,
) -> None:
    """Let USER log in with a password; what it may do say rules (acls)."""
    kind = MECHANISMS[mechanism]
    if kind in _mechanisms(coordinator, user):
        raise AskFailed(f"User {quoted(user)} has a password for {mechanism} already.")
    change.confirm(f"Add user {quoted(user)}?", _COLUMNS, [(user, mechanism, ITERATIONS)])
    _set(coordinator, user, kind, _password(password_file))
    output.lines("ok", _CHANGED, [(user, mechanism, "added")])


@users.command(
    "password",
    examples={
        "Be asked for the new one:": "users password alice",
        "Take it from standard input, in a script:": "users password alice --password-file - --yes",
    },
)
@_takes_a_password
@asks_to_change
def change_password(
    coordinator: Coordinator,
    output: Output,
    change: Change,
    user: str,
    mechanism: str,
    password_file: str | None,
) -> None:
    """Give USER another password; the old one is wrong from then on."""
    kind = MECHANISMS[mechanism]
    if kind not in _mechanisms(coordinator, user):
        raise AskFailed(f"User {quoted(user)} has no password for {mechanism}.")
    question = f"Change the password of user {quoted(user)}?"
    change.confirm(question, _COLUMNS, [(user, mechanism, ITERATIONS)])
    _set(coordinator, user, kind, _password(password_file))
    output.lines("ok", _CHANGED, [(user, mechanism, "changed")])


@users.command(
    "remove",
    examples={
        "See what would go, and be asked:": "users remove alice",
        "In a script:": "users remove alice --yes",
    },
)
@click.argument("user", type=_USER)
@asks_to_change
def remove_user(coordinator: Coordinator, output: Output, change: Change, user: str) -> None:
    """Let USER log in no more; its rules and quotas stay."""
    there = _mechanisms(coordinator, user)
    if not there:
        raise AskFailed(f"User {quoted(user)} has no password.")
    rows: list[tuple[object, ...]] = [(user, one.sasl_name, "removed") for one in there]
    question = f"Remove user {quoted(user)}, with {counted(len(there), 'password')}?"
    change.confirm(question, _CHANGED, rows)
    deletions = tuple(m.ScramDeletion(user, one) for one in there)
    _alter(coordinator, m.AlterUserScramCredentialsRequest(deletions, ()))
    output.lines("ok", _CHANGED, rows)
