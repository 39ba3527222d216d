"""``acls``, ``users`` and ``quotas``, against the very thing that decides what they ask."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from protocol import messages as m
from protocol.scram import ITERATIONS, Mechanism, keys_of
from tests.fakes.command_line import CommandLine
from tests.group.node_context import NodeContext

SECRET = "correct horse"


@pytest.fixture
def context() -> NodeContext:
    """Return a node without rules, users and quotas."""
    return NodeContext()


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, context: NodeContext) -> CommandLine:
    """Return a command line that asks it."""
    changes = (
        m.CreateAclsRequest,
        m.DeleteAclsRequest,
        m.AlterUserScramCredentialsRequest,
        m.AlterClientQuotasRequest,
    )
    answers: dict[type, Any] = dict.fromkeys(changes, context.ask)
    answers[m.DescribeAclsRequest] = context.look
    answers[m.DescribeUserScramCredentialsRequest] = context.look
    answers[m.DescribeClientQuotasRequest] = context.look
    return CommandLine(monkeypatch, answers)


def done(result: Result) -> str:
    """Return the output of a command that did its work."""
    assert result.exit_code == 0, result.output
    return result.output


def test_rules_are_added_listed_and_removed(line: CommandLine, context: NodeContext) -> None:
    """A consumer needs two, and gets them by one command."""
    add = ("acls", "add", "User:alice", "read", "--group", "etl", "--topic", "orders")
    dry = line.run(*add)
    assert dry.exit_code == 3
    assert len(context.shard.rules) == 0
    assert done(line.run(*add, "--yes")) == "ok\nok\n"
    assert list(map(str, context.shard.rules.hard_state())) == [
        "User:alice from * may READ TOPIC orders",
        "User:alice from * may READ GROUP etl",
    ]
    done(line.run("acls", "add", "User:bob", "all", "--group", "e", "--prefix", "--deny", "--yes"))
    listed = done(line.run("acls", "list", "--group", "etl", "--output", "csv")).splitlines()
    assert listed[1:] == [
        "User:alice,*,READ,ALLOW,GROUP,etl,LITERAL",
        "User:bob,*,ALL,DENY,GROUP,e,PREFIXED",
    ]
    assert "bob" not in done(line.run("acls", "list", "--principal", "User:alice"))
    done(line.run("acls", "remove", "User:alice", "--topic", "orders", "--yes"))
    assert done(line.run("acls", "remove", "User:alice", "read", "--yes")) == "ok\n"

    assert [rule.principal for rule in context.shard.rules.hard_state()] == ["User:bob"]
    assert line.run("acls", "remove", "User:alice").exit_code == 1


@pytest.mark.parametrize(
    "words",
    [
        ("alice", "read", "--group", "etl"),
        ("User:alice", "--group", "etl"),
        ("User:alice", "read"),
        ("User:alice", "write", "--group", "etl"),
        ("User:alice", "fly", "--group", "etl"),
    ],
)
def test_what_can_be_no_rule_is_a_wrong_command_line(
    line: CommandLine, words: tuple[str, ...]
) -> None:
    """Nobody is asked then."""
    assert line.run("acls", "add", *words, "--yes").exit_code == 2
    assert line.asked == []


def test_the_cluster_needs_no_name(line: CommandLine, context: NodeContext) -> None:
    """There is only one, and a prefix of it is none."""
    done(line.run("acls", "add", "User:a", "describe", "--cluster", "--prefix", "--yes"))
    done(line.run("acls", "remove", "User:a", "--cluster", "--prefix", "--yes"))

    assert len(context.shard.rules) == 0


def test_a_password_comes_from_a_file_and_is_sent_nowhere(
    line: CommandLine, context: NodeContext, tmp_path: Path
) -> None:
    """Only its keys are; and nothing that is printed has any of them."""
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\nsecond line\n", encoding="ascii")
    add = ("users", "add", "alice", "--password-file", str(file))
    dry = line.run(*add)
    assert (dry.exit_code, len(context.shard.users)) == (3, 0)
    printed = [done(line.run(*add, "--yes"))]
    found = context.shard.users.credential("alice", "SCRAM-SHA-256")
    assert found is not None
    keys = keys_of(SECRET, Mechanism.SCRAM_SHA_256, found.salt, ITERATIONS)
    assert (found.stored_key, found.server_key) == keys
    assert line.run(*add, "--yes").exit_code == 1
    printed.append(done(line.run("users", "list", "alice")))
    printed.append(done(line.run("users", "remove", "alice", "--yes")))

    assert line.run("users", "list", "alice").exit_code == 1
    assert not any(SECRET in text or keys.stored_key.hex() in text for text in printed)
    assert not any(SECRET.encode() in repr(one).encode() for one in line.asked)


def test_a_password_is_changed_for_who_has_one(
    line: CommandLine, context: NodeContext, tmp_path: Path
) -> None:
    """Each time with another salt; who has none is added instead."""
    file = tmp_path / "secret"
    file.write_text(SECRET, encoding="ascii")
    rest = ("alice", "--password-file", str(file), "--yes")
    assert line.run("users", "password", *rest).exit_code == 1
    done(line.run("users", "add", *rest))
    before = context.shard.users.credential("alice", "SCRAM-SHA-256")
    done(line.run("users", "password", *rest))
    after = context.shard.users.credential("alice", "SCRAM-SHA-256")

    assert before is not None
    assert after is not None
    assert before.salt != after.salt


def test_without_a_terminal_a_password_needs_a_file(line: CommandLine, tmp_path: Path) -> None:
    """And an empty one is none."""
    empty = tmp_path / "empty"
    empty.write_text("\n", encoding="ascii")

    assert line.run("users", "add", "alice", "--yes").exit_code == 2
    assert line.run("users", "add", "a", "--password-file", str(empty), "--yes").exit_code == 2


def test_quotas_are_set_listed_and_removed(line: CommandLine, context: NodeContext) -> None:
    """For a principal, and for all who have none."""
    done(
        line.run(
            "quotas", "set", "connections=5", "byte_rate=9", "--principal", "User:alice", "--yes"
        )
    )
    done(line.run("quotas", "set", "connections=1", "--default", "--yes"))
    listed = done(line.run("quotas", "list", "--output", "csv")).splitlines()
    assert listed[1:] == [
        "(default),connections,1",
        "User:alice,byte_rate,9",
        "User:alice,connections,5",
    ]
    done(line.run("quotas", "remove", "byte_rate", "--principal", "User:alice", "--yes"))
    done(line.run("quotas", "remove", "--default", "--yes"))

    assert [tuple(q) for q in context.shard.quotas.hard_state()] == [
        ("User:alice", "connections", 5)
    ]
    assert line.run("quotas", "remove", "byte_rate", "--principal", "User:alice").exit_code == 1
    assert line.run("quotas", "set", "connections=5", "--yes").exit_code == 2
    assert line.run("quotas", "set", "wings=2", "--default", "--yes").exit_code == 2
    assert line.run("quotas", "set", "connections=two", "--default", "--yes").exit_code == 2
