"""``group-coordinator``, also ``python -m coordinator``.

A command is imported when it is wanted: a health check that pings every few seconds pays for
asking a question, and not for the engine that answers it.
"""

import io
import sys
from typing import Final

import click

from coordinator.cli.grammar import PROGRAM, Lazy, LazyCommands
from protocol.version import VERSION

_COMMANDS: Final = {
    "acls": Lazy("coordinator.cli.acls", "Look at rules of access, and change them."),
    "cluster": Lazy("coordinator.cli.cluster", "Make a cluster of coordinators, and look at it."),
    "compact": Lazy("coordinator.cli.node", "Compact the offsets log now."),
    "config": Lazy("coordinator.cli.config", "See what a daemon is set to, and why."),
    "groups": Lazy("coordinator.cli.groups", "Look at consumer groups, and change them."),
    "health": Lazy("coordinator.cli.node", "Say how the coordinator is, with its metrics."),
    "log": Lazy("coordinator.cli.log", "Look at a stopped daemon's folder, and repair it."),
    "members": Lazy("coordinator.cli.members", "Take partitions from members, or remove them."),
    "offsets": Lazy("coordinator.cli.offsets", "Follow committed offsets, export and import them."),
    "ping": Lazy("coordinator.cli.node", "Say whether a coordinator answers (health checks)."),
    "quotas": Lazy("coordinator.cli.quotas", "Look at quotas, and change them."),
    "reload": Lazy("coordinator.cli.node", "Load a partition of the offsets log again."),
    "serve": Lazy("coordinator.cli.serve", "Run the daemon."),
    "settings": Lazy("coordinator.cli.config", "Print the daemon's settings."),
    "topics": Lazy("coordinator.cli.topics", "Look at the topic registry, and change it."),
    "users": Lazy("coordinator.cli.users", "Look at users with a password, and change them."),
    "zookeeper": Lazy(
        "coordinator.cli.zookeeper", "Import offsets that consumers of old keep in ZooKeeper."
    ),
}


@click.group(
    cls=LazyCommands,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples={
        "Run a coordinator on this machine:": "serve --data-dir data",
        "Which groups are there?": "groups list",
        "How far behind is a group?": "groups describe billing",
    },
)
@click.version_option(VERSION, prog_name=PROGRAM)
def main() -> None:
    """Coordinate consumer groups and keep their offsets, on disk before they are acknowledged."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that has no sign for a character of a name, or for "≥", gets its number.
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
