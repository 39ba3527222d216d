"""One grammar for all commands: a walk over every one of them."""

import re
import shlex
from collections.abc import Iterator
from typing import Final

import click
import pytest
from click.testing import CliRunner

from coordinator.cli.grammar import PROGRAM
from coordinator.cli.main import main

Path = tuple[str, ...]

# A new command must say what it is: without a coordinator, a look at one, or a change.
OFFLINE: Final = {
    *("serve", "settings", "log compact", "log dump", "log repair", "log verify"),
    *("cluster export", "cluster init", "cluster thaw"),
}
LOOKS: Final = {
    *("cluster status", "compact", "health", "ping", "reload"),
    *("groups describe", "groups lag", "groups list", "groups rebalances", "groups top"),
    *("topics describe", "topics list", "topics register", "topics report-end"),
    *("config show", "offsets export", "offsets watch"),
    *("acls list", "quotas list", "users list"),
}
CHANGES: Final = {
    "cluster move",
    *("groups delete", "groups delete-offsets", "groups reset-offsets"),
    *("members drain", "members remove", "offsets import"),
    *("groups retention", "topics delete"),
    *("acls add", "acls remove", "quotas remove", "quotas set"),
    *("users add", "users password", "users remove", "zookeeper import"),
}
CHANGES_IN_ZOOKEEPER: Final = {"cluster export", "cluster init", "cluster thaw"}
PRINT_ROWS: Final = {
    *(*LOOKS, *CHANGES, *CHANGES_IN_ZOOKEEPER),
    *("settings", "log dump", "log verify"),
}


def walk(command: click.Command = main, path: Path = ()) -> Iterator[tuple[Path, click.Command]]:
    """Yield every command and every group of them."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from walk(found, (*path, name))


EVERY: Final = dict(walk())
LEAVES: Final = {
    " ".join(path): command
    for path, command in EVERY.items()
    if not isinstance(command, click.Group)
}


def options_of(name: str) -> set[str]:
    """Return the options that a person may give."""
    return {
        text
        for option in LEAVES[name].params
        if isinstance(option, click.Option) and not option.hidden
        for text in option.opts
    }


def parsed(words: list[str]) -> str:
    """Read a command line as far as its options; return the name of the command."""
    command: click.Command = main
    context = click.Context(main)
    names = []
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert name is not None
        assert found is not None
        names.append(name)
        command, context = found, click.Context(found, parent=context)
    command.make_parser(context).parse_args(list(words))
    return " ".join(names)


def test_every_command_is_known_to_the_grammar() -> None:
    """Who adds one decides whether it looks or changes."""
    assert set(LEAVES) == OFFLINE | LOOKS | CHANGES


@pytest.mark.parametrize("name", sorted(LOOKS | CHANGES))
def test_who_asks_a_coordinator_is_told_where_it_is_and_how_long_to_wait(name: str) -> None:
    """In the same words, everywhere."""
    assert {"--at", "--timeout"} <= options_of(name)
    (seconds,) = (o for o in LEAVES[name].params if o.name == "timeout_s")
    assert seconds.make_metavar(click.Context(LEAVES[name])) == "SECONDS"


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_who_prints_rows_prints_them_for_programs_too(name: str) -> None:
    """One option, and no other for the same."""
    options = options_of(name)

    assert ("--output" in options) == (name in PRINT_ROWS)
    assert not options & {"--json", "--format", "--as-json"}


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_who_changes_something_takes_a_yes_and_nobody_else_does(name: str) -> None:
    """A script that says --yes to a look has mistaken it for something else."""
    assert ("--yes" in options_of(name)) == (name in {*CHANGES, *CHANGES_IN_ZOOKEEPER})
    assert not options_of(name) & {"--execute", "--dry-run", "--force"}


@pytest.mark.parametrize("path", sorted(EVERY), ids=" ".join)
def test_every_help_has_examples_that_can_be_typed(path: Path) -> None:
    """An example with an option that isn't there is worse than none."""
    command = EVERY[path]
    shown = CliRunner().invoke(main, [*path, "--help"])
    assert shown.exit_code == 0
    assert "Examples:" in shown.output

    lines = re.findall(rf"^ +{PROGRAM} (.+)$", shown.output.partition("Examples:")[2], re.MULTILINE)
    examples: dict[str, str] = command.examples  # type: ignore[attr-defined]  # all have them
    assert lines == list(examples.values())
    for what, line in examples.items():
        assert what.endswith((":", "?"))
        assert parsed(shlex.split(line)).startswith(" ".join(path))


@pytest.mark.parametrize("line", ["groups dance", "groups list --jsn", "groups describe --al g"])
def test_an_example_that_is_wrong_would_be_found(line: str) -> None:
    """A check that can't fail proves nothing."""
    with pytest.raises(click.UsageError):
        parsed(shlex.split(line))


def test_the_list_of_commands_says_of_each_what_it_is() -> None:
    """Without importing any; so nothing else would notice a name that leads nowhere."""
    shown = CliRunner().invoke(main, ["--help"]).output
    for name, *deeper in filter(None, EVERY):
        assert deeper or re.search(rf"^  {name} +[A-Z].+\.$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["group", "list"], "'groups'"),
        (["groups", "lst"], "'list'"),
        (["grouqs"], "'groups'"),
        (["groups", "delete-ofsets"], "'delete-offsets'"),
        (["groups", "reset"], "'reset-offsets'"),
    ],
)
def test_a_misspelt_command_is_answered_with_the_one_that_was_meant(
    arguments: list[str], meant: str
) -> None:
    """Reading the whole list for a missing letter is work for a machine."""
    done = CliRunner().invoke(main, arguments)

    assert done.exit_code == 2
    assert f"Did you mean {meant}" in done.stderr


@pytest.mark.parametrize("path", [["groups"], ["topics"], []], ids=" ".join)
def test_a_subject_without_a_command_is_answered_with_its_help(path: list[str]) -> None:
    """In as many lines as with --help: it is no name that somebody made up."""
    bare = CliRunner().invoke(main, path)
    asked = CliRunner().invoke(main, [*path, "--help"])

    assert bare.exit_code == 2
    assert bare.stderr == asked.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["groups", "--describe", "--group", "g"], "'describe' is a command, and no option."),
        (["groups", "describe", "--group", "g"], "Name groups without an option"),
        (["groups", "list", "--bootstrap-server", "h:1"], "--at HOST:PORT"),
        (["topics", "describe", "t", "--bootstrap-server", "h:1"], "--at HOST:PORT"),
    ],
)
def test_a_command_line_of_kafkas_tools_is_answered_with_ours(
    arguments: list[str], words: str
) -> None:
    """Fingers remember it."""
    done = CliRunner().invoke(main, arguments)

    assert done.exit_code == 2
    assert words in done.stderr


@pytest.mark.parametrize("name", ["", "a\x1b[31m", "x" * 10_000, "\udcff"])
@pytest.mark.parametrize(
    "words",
    [
        "groups describe NAME",
        "groups delete ok NAME",
        "groups delete-offsets NAME --topic t",
        "groups rebalances NAME",
        "groups retention NAME",
        "members drain NAME c",
        "members remove NAME m",
        "offsets export NAME",
        "offsets export g --topic NAME",
        "offsets import - NAME",
        "offsets watch --group NAME",
        "offsets watch --topic NAME",
        "topics delete NAME",
        "topics describe NAME",
        "topics register NAME 3",
        "topics report-end NAME 0 1",
    ],
)
def test_a_name_that_can_not_be_is_a_wrong_command_line(words: str, name: str) -> None:
    """The coordinator would say so in terms of its wire protocol, and after looking for it."""
    done = CliRunner().invoke(main, [word.replace("NAME", name) for word in words.split()])

    assert done.exit_code == 2
    assert "is not legal: it is" in done.stderr or "it contains control characters" in done.stderr
    assert len(done.stderr) < 1_000


@pytest.mark.parametrize("name", ["a\x1b[31m", "x" * 10_000 + ":0", "\udcff"])
def test_a_topic_with_partitions_is_as_legal_as_one_alone(name: str) -> None:
    """`t:0,1` is read by hand."""
    done = CliRunner().invoke(main, ["groups", "delete-offsets", "g", "--topic", name])

    assert done.exit_code == 2
    assert "is not legal: it" in done.stderr
    assert len(done.stderr) < 1_000


@pytest.mark.parametrize("host", ["x" * 100, "a..b", "\udcff"])
def test_a_host_that_nobody_can_look_up_is_a_wrong_command_line(host: str) -> None:
    """Python says so in a traceback."""
    asked = CliRunner().invoke(main, ["ping", "--at", f"{host}:9310"])
    served = CliRunner().invoke(main, ["serve", "--data-dir", "d", "--listen", f"{host}:9310"])

    assert (asked.exit_code, served.exit_code) == (2, 78)
    assert "is not HOST:PORT" in asked.stderr
    assert "is not host:port" in served.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("\x1b[2J" * 3_000,),
        ("groups", "\x9b2J" + "x" * 10_000),
        ("groups", "list", "--state", "\x1b[2J" * 3_000),
        ("groups", "list", "--at", "\x1b[2J" * 3_000),
        ("groups", "list", "--\x1b[2J" + "x" * 10_000),
        ("settings", "\u202e" * 10_000),
        ("groups", "retention", "g", "--set", "\x1b[2J" * 3_000),
        ("serve", "--data-dir", "d", "--set", "\x1b[2J" * 3_000),
        ("serve", "--data-dir", "d", "--set", "\x1b[2J" * 3_000 + "=1"),
        ("serve", "--data-dir", "d", "--set", "node.id=" + "\x1b[2J" * 3_000),
    ],
    ids=range(10),
)
def test_an_error_about_a_hostile_argument_is_short_and_commands_no_terminal(
    arguments: tuple[str, ...],
) -> None:
    """It may come from a name that a script has read somewhere."""
    done = CliRunner().invoke(main, arguments)

    assert done.exit_code in {2, 78}
    assert len(done.stderr) < 1_500
    assert done.stderr.replace("\n", "").isprintable()


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", "3601", ""])
def test_a_timeout_is_some_time(text: str) -> None:
    """One of 0 would never wait, and one in milliseconds for hours."""
    done = CliRunner().invoke(main, ["groups", "list", "--timeout", text])

    assert done.exit_code == 2
    assert "--timeout" in done.stderr


def test_the_settings_that_are_named_are_printed_or_the_ones_that_were_meant() -> None:
    """Nobody should have to look for one among forty."""
    runner = CliRunner()
    one = runner.invoke(main, ["settings", "group.max.size", "node.id"])
    misspelt = runner.invoke(main, ["settings", "group.max.sise"])

    assert [line.split(" = ")[0] for line in one.stdout.splitlines()[::2]] == [
        "group.max.size",
        "node.id",
    ]
    assert misspelt.exit_code == 2
    assert "Did you mean 'group.max.size'" in misspelt.stderr
