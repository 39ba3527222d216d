"""What every command says alike: its help with examples, and what is wrong with a command line.

A group of commands is `Commands`; its commands take ``examples``, a mapping from a line of plain
English to the command that does it, without the program's name. The outermost group loads the
module of a command only when that command is wanted (`LazyCommands`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar

import click

from coordinator.names import did_you_mean, escaped, quoted

PROGRAM: Final = "group-coordinator"
# What is longer repeats an argument of 10 kB.
_ERROR_CHARS_MAX: Final = 1_000
_SUMMARY_CHARS_MAX: Final = 200

F = TypeVar("F", bound=Callable[..., Any])


class _WithExamples(click.Command):
    """Shows examples below the options."""

    def __init__(self, *args: Any, examples: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each example does, and below it the line to copy."""
        with formatter.section("Examples"):
            for what, line in self.examples.items():
                formatter.write_text(what)
                with formatter.indentation():
                    formatter.write(f"{'':>{formatter.current_indent}}{PROGRAM} {line}\n")
        super().format_epilog(ctx, formatter)


class Command(_WithExamples):
    """One command."""


class Commands(_WithExamples, click.Group):
    """Commands that have a subject in common."""

    command_class = Command
    group_class = type

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is asked for, or say which one may have been meant."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            hint = did_you_mean(name, self.list_commands(ctx))
            raise click.UsageError(f"No such command {quoted(name)}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options in front of a command, which other tools have in the place of it."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as exc:
            name = exc.option_name.lstrip("-")
            if name not in self.list_commands(ctx):
                raise
            why = f"{quoted(name)} is a command, and no option."
            raise click.UsageError(why, ctx) from exc

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, each with its whole first sentence."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries(ctx)))

    def summaries(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        """Yield each command's name, and what it does."""
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            assert command is not None
            yield name, command.get_short_help_str(_SUMMARY_CHARS_MAX)


class Lazy(NamedTuple):
    """Where a command is, under its own name, and what the list of commands says of it."""

    module: str
    summary: str


class LazyCommands(Commands):
    """Commands of which each is imported when it is wanted.

    The commands of a running coordinator need neither its engine nor each other.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the names, sorted."""
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # likewise
        """Import a command; None for one that isn't there."""
        if cmd_name not in self._lazy:
            return None
        command = getattr(import_module(self._lazy[cmd_name].module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def summaries(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        """Yield them without importing any."""
        for name in self.list_commands(ctx):
            yield name, self._lazy[name].summary

    def make_context(self, *args: Any, **attributes: Any) -> click.Context:
        """Read the command line up to the command."""
        with _errors_for_a_terminal():
            return super().make_context(*args, **attributes)

    def invoke(self, ctx: click.Context) -> Any:
        """Read the rest of the command line, and do it."""
        with _errors_for_a_terminal():
            return super().invoke(ctx)


@contextmanager
def _errors_for_a_terminal() -> Iterator[None]:
    """Escape and shorten what errors repeat of the command line, which a script may have filled."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise  # Its message is the help.
    except click.ClickException as exc:
        message = escaped(exc.message)
        if len(message) > _ERROR_CHARS_MAX:
            message = message[:_ERROR_CHARS_MAX] + "…"
        exc.message = message  # type: ignore[misc]  # There is no other way to say it in its place.
        raise


def refuses(name: str, why: str, *, is_flag: bool = False) -> Callable[[F], F]:
    """Take an option that other tools have and this one can't, to say *why*, and what to do."""

    def callback(_ctx: click.Context, _param: click.Parameter, value: object) -> None:
        if value:
            raise click.UsageError(why)

    return click.option(name, is_flag=is_flag, hidden=True, expose_value=False, callback=callback)
