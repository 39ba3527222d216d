"""``group-coordinator acls``: who may do what."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import click
from msgspec import structs

from coordinator.cli.common import (
    AskFailed,
    Change,
    Coordinator,
    NameType,
    asks,
    asks_to_change,
    describe_error,
)
from coordinator.cli.grammar import Commands
from coordinator.cli.output import Output, counted, note
from protocol import messages as m
from protocol.acls import (
    ANY,
    CLUSTER,
    EVERY_HOST,
    MATCH,
    OPERATIONS,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    principal_problem,
)
from protocol.fields import PRINCIPAL_BYTES_MAX
from protocol.group_ids import NAME_BYTES_MAX

PRINCIPAL: Final = NameType("principal", PRINCIPAL_BYTES_MAX, principal_problem)
_NAME: Final = NameType("name", NAME_BYTES_MAX)
_HOST: Final = NameType("host", NAME_BYTES_MAX)
_COLUMNS: Final = ("PRINCIPAL", "HOST", "OPERATION", "PERMISSION", "RESOURCE", "NAME", "PATTERN")
_OPERATIONS: Final = click.Choice([one.name.lower() for one in Operation], case_sensitive=False)


@click.group(
    cls=Commands,
    examples={
        "Which rules are there?": "acls list",
        "Which concern a group?": "acls list --group etl",
        "Let Alice's consumers run as group etl, and read orders:": "acls add User:alice read "
        "--group etl --topic orders",
        "Take all her rules away:": "acls remove User:alice",
    },
)
def acls() -> None:
    """Look at rules of access (ACLs), and change them."""


def _resources(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take groups, topics and the cluster by name; *command* gets the three."""
    groups = click.option("--group", "groups", multiple=True, type=_NAME, help="A group; * is all.")
    topics = click.option("--topic", "topics", multiple=True, type=_NAME, help="A topic; * is all.")
    cluster = click.option("--cluster", is_flag=True, help="The coordinator itself.")
    return groups(topics(cluster(command)))


def _named(
    groups: tuple[str, ...], topics: tuple[str, ...], *, cluster: bool
) -> Iterator[tuple[ResourceType, str]]:
    for group in groups:
        yield ResourceType.GROUP, group
    for topic in topics:
        yield ResourceType.TOPIC, topic
    if cluster:
        yield ResourceType.CLUSTER, CLUSTER


def _named_or_any(
    groups: tuple[str, ...], topics: tuple[str, ...], *, cluster: bool
) -> list[tuple[int, str | None]]:
    """Return what is named, for filters: any resource, if nothing is."""
    named: list[tuple[int, str | None]] = [*_named(groups, topics, cluster=cluster)]
    return named or [(ANY, None)]


def _row(acl: m.Acl | m.DescribedAcl) -> tuple[object, ...]:
    return (
        acl.principal,
        acl.host,
        Operation(acl.operation).name,
        Permission(acl.permission).name,
        ResourceType(acl.resource_type).name,
        acl.resource_name,
        PatternType(acl.pattern_type).name,
    )


def _rows_there(
    coordinator: Coordinator, filters: Iterable[m.AclFilter]
) -> list[tuple[object, ...]]:
    """Return the rules that fit any of *filters*, each once."""
    requests = (m.DescribeAclsRequest(*structs.astuple(one)) for one in filters)
    return sorted({_row(acl) for request in requests for acl in coordinator.ask(request).acls})


@acls.command(
    "list",
    examples={
        "All rules:": "acls list",
        "Those that concern a topic, by whatever pattern:": "acls list --topic orders",
        "Those of Alice, for a program:": "acls list --principal User:alice --output json",
    },
)
@_resources
@click.option("--principal", type=PRINCIPAL, default=None, help="Only this principal's own rules.")
@asks
def list_acls(
    coordinator: Coordinator,
    output: Output,
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    cluster: bool,
    principal: str | None,
) -> None:
    """List the rules: all, or those that concern what is named."""
    resources = _named_or_any(groups, topics, cluster=cluster)
    wanted = [
        m.AclFilter(kind, name, ANY if name is None else MATCH, principal, None, ANY, ANY)
        for kind, name in resources
    ]
    output.show(_COLUMNS, _rows_there(coordinator, wanted))


def _parts_of_a_rule(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.argument("principal", type=PRINCIPAL),
        click.argument("operations", nargs=-1, type=_OPERATIONS, metavar="[OPERATION]..."),
        _resources,
        click.option("--prefix", is_flag=True, help="Names are what resources begin with."),
        click.option("--host", type=_HOST, default=None, help="Only from this address."),
        click.option("--deny", is_flag=True, help="The rule forbids, whatever others allow."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@acls.command(
    "add",
    examples={
        "Let Alice's consumers run as group etl, and read orders:": "acls add User:alice read "
        "--group etl --topic orders",
        "Let her see all groups that begin with team-a:": "acls add User:alice describe "
        "--group team-a --prefix",
        "Let nobody delete a topic, in a script:": "acls add 'User:*' delete --topic '*' --deny "
        "--yes",
    },
)
@_parts_of_a_rule
@asks_to_change
def add_acls(
    coordinator: Coordinator,
    output: Output,
    change: Change,
    principal: str,
    operations: tuple[str, ...],
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    cluster: bool,
    prefix: bool,
    host: str | None,
    deny: bool,
) -> bool:
    """Let PRINCIPAL do each OPERATION with what is named, or with --deny don't."""
    resources = list(_named(groups, topics, cluster=cluster))
    if not operations or not resources:
        raise click.UsageError("Name operations, and a --group, a --topic or the --cluster.")
    wanted = []
    for kind, name in resources:
        for operation in map(Operation.__getitem__, map(str.upper, operations)):
            if operation not in OPERATIONS[kind]:
                raise click.UsageError(
                    f"{operation.name} is nothing that is done with a {kind.name}."
                )
            is_prefix = prefix and kind is not ResourceType.CLUSTER
            pattern = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
            permission = Permission.DENY if deny else Permission.ALLOW
            wanted.append(
                m.Acl(kind, name, pattern, principal, host or EVERY_HOST, operation, permission)
            )
    rows = list(map(_row, wanted))
    change.confirm(f"Add {counted(len(wanted), 'rule')}?", _COLUMNS, rows)
    results = coordinator.ask(m.CreateAclsRequest(tuple(wanted))).results
    done = []
    for row, result in zip(rows, results, strict=True):
        if result.error:
            note(f"{' '.join(map(str, row))}: {describe_error(result.error, result.message)}")
        else:
            done.append(row)
    output.lines("ok", _COLUMNS, done)
    return len(done) < len(rows)


@acls.command(
    "remove",
    examples={
        "See which rules Alice has, and be asked:": "acls remove User:alice",
        "Take back what she may do with a topic:": "acls remove User:alice read --topic orders",
        "All of hers, in a script:": "acls remove User:alice --yes",
    },
)
@_parts_of_a_rule
@asks_to_change
def remove_acls(
    coordinator: Coordinator,
    output: Output,
    change: Change,
    principal: str,
    operations: tuple[str, ...],
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    cluster: bool,
    prefix: bool,
    host: str | None,
    deny: bool,
) -> bool:
    """Remove rules of PRINCIPAL: all, or only those about what is named."""
    wanted = [
        m.AclFilter(
            kind,
            name,
            _pattern_of(name, prefix=prefix),
            principal,
            host,
            operation,
            Permission.DENY if deny else ANY,
        )
        for kind, name in _named_or_any(groups, topics, cluster=cluster)
        for operation in (Operation[one.upper()] if one else ANY for one in operations or ("",))
    ]
    rows = _rows_there(coordinator, wanted)
    if not rows:
        raise AskFailed(f"No such rule of {principal}.")
    change.confirm(f"Remove {counted(len(rows), 'rule')}?", _COLUMNS, rows)
    results = coordinator.ask(m.DeleteAclsRequest(tuple(wanted))).results
    removed = sorted(_row(acl) for result in results for acl in result.acls)
    output.lines("ok", _COLUMNS, removed)
    return False


def _pattern_of(name: str | None, *, prefix: bool) -> int:
    if name in {None, CLUSTER}:
        return ANY
    return PatternType.PREFIXED if prefix else PatternType.LITERAL
