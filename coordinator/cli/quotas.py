"""``group-coordinator quotas``: how much each principal may take."""

from collections.abc import Callable
from typing import Any, Final

import click

from coordinator.cli.acls import PRINCIPAL
from coordinator.cli.common import (
    AskFailed,
    Change,
    Coordinator,
    asks,
    asks_to_change,
    describe_error,
)
from coordinator.cli.grammar import Commands
from coordinator.cli.output import Output, counted
from protocol import messages as m
from protocol.partition import INT64_MAX
from protocol.quotas import DEFAULT, QUOTAS

_COLUMNS: Final = ("PRINCIPAL", "QUOTA", "VALUE")
_CHANGES: Final = ("PRINCIPAL", "QUOTA", "VALUE", "NEW-VALUE")
_DEFAULT_NAME: Final = "(default)"


class Quota(click.ParamType[tuple[str, int]]):
    """A quota with its value, such as connections=100."""

    name = "quota"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, int]:
        """Return its name and number."""
        if isinstance(value, tuple):
            return value
        key, _, number = value.partition("=")
        if key not in QUOTAS:
            self.fail(f"{key!r} is no quota; there are {', '.join(QUOTAS)}.", param, ctx)
        if not number.isascii() or not number.isdecimal() or int(number) > INT64_MAX:
            self.fail(f"{value!r} has no whole number behind the =.", param, ctx)
        return key, int(number)


@click.group(
    cls=Commands,
    examples={
        "Which quotas are set?": "quotas list",
        "Bound what Alice may take:": "quotas set request_rate=5000 connections=20 "
        "--principal User:alice",
        "And everybody without such quotas:": "quotas set connections=200 --default",
    },
)
def quotas() -> None:
    """Look at quotas, and change them."""


def _whose(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take a principal, or the default; for `_principal`."""
    default = click.option("--default", is_flag=True, help="For all who have none of that name.")
    return click.option("--principal", type=PRINCIPAL, default=None, help="For whom.")(
        default(command)
    )


def _principal(principal: str | None, *, default: bool) -> str:
    """Return whose quotas are meant.

    Raises:
        click.UsageError: Nobody's, or both.
    """
    if (principal is None) != default:
        raise click.UsageError("Say --principal User:<name> or --default.")
    return DEFAULT if principal is None else principal


def _quotas(
    coordinator: Coordinator, principals: tuple[str, ...] | None
) -> list[m.DescribedQuotas]:
    return list(coordinator.ask(m.DescribeClientQuotasRequest(principals)).entries)


@quotas.command(
    "list",
    examples={
        "All of them:": "quotas list",
        "Alice's own:": "quotas list User:alice",
    },
)
@click.argument("principals", nargs=-1, metavar="[PRINCIPAL]...", type=PRINCIPAL)
@asks
def list_quotas(coordinator: Coordinator, output: Output, principals: tuple[str, ...]) -> None:
    """List the quotas that are set: all, or those of some principals."""
    rows = [
        (entry.principal or _DEFAULT_NAME, quota.key, quota.value)
        for entry in _quotas(coordinator, principals or None)
        for quota in entry.quotas
    ]
    output.show(_COLUMNS, rows)


def _change(
    coordinator: Coordinator,
    output: Output,
    change: Change,
    principal: str,
    wanted: dict[str, int | None],
) -> None:
    there = {q.key: q.value for e in _quotas(coordinator, (principal,)) for q in e.quotas}
    name = principal or _DEFAULT_NAME
    rows: list[tuple[object, ...]] = [(name, k, there.get(k), v) for k, v in wanted.items()]
    change.confirm(f"Change {counted(len(rows), 'quota')} of {name}?", _CHANGES, rows)
    changes = tuple(m.QuotaChange(key, value) for key, value in wanted.items())
    entry = m.AlteredPrincipal(principal, changes)
    (done,) = coordinator.ask(m.AlterClientQuotasRequest((entry,))).results
    if done.error:
        raise AskFailed(f"{name}: {describe_error(done.error, done.message)}")
    output.lines("ok", _CHANGES, rows)


@quotas.command(
    "set",
    examples={
        "Bound what Alice may take:": "quotas set request_rate=5000 connections=20 "
        "--principal User:alice",
        "And everybody without such quotas, in a script:": "quotas set connections=200 --default "
        "--yes",
    },
)
@click.argument("values", nargs=-1, required=True, metavar="QUOTA=NUMBER...", type=Quota())
@_whose
@asks_to_change
def set_quotas(
    coordinator: Coordinator,
    output: Output,
    change: Change,
    values: tuple[tuple[str, int], ...],
    principal: str | None,
    default: bool,
) -> None:
    """Set quotas of a principal, or of all who have none."""
    _change(coordinator, output, change, _principal(principal, default=default), dict(values))


@quotas.command(
    "remove",
    examples={
        "All of Alice's:": "quotas remove --principal User:alice",
        "One of the default's, in a script:": "quotas remove connections --default --yes",
    },
)
@click.argument("names", nargs=-1, metavar="[QUOTA]...", type=click.Choice(list(QUOTAS)))
@_whose
@asks_to_change
def remove_quotas(
    coordinator: Coordinator,
    output: Output,
    change: Change,
    names: tuple[str, ...],
    principal: str | None,
    default: bool,
) -> None:
    """Remove quotas: all of a principal, or some."""
    whose = _principal(principal, default=default)
    entries = _quotas(coordinator, (whose,))
    there = [quota.key for entry in entries for quota in entry.quotas]
    gone = [key for key in names or there if key in there]
    if not gone:
        raise AskFailed(f"No such quota of {whose or _DEFAULT_NAME}.")
    _change(coordinator, output, change, whose, dict.fromkeys(gone))
