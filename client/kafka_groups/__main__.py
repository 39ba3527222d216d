"""``python -m client.kafka_groups``: a Kafka cluster's groups, for the coordinator."""

import json
import sys
from pathlib import Path

try:
    import click
except ModuleNotFoundError:
    sys.exit("python -m client.kafka_groups needs click: pip install 'group-coordinator[kafka]'")

from client.exceptions import CoordinatorError
from client.kafka_groups.cluster import KafkaGroupError
from client.kafka_groups.importing import Existing, import_groups


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Move the groups of a Kafka cluster to the coordinator."""


@main.command("import")
@click.option("--kafka", metavar="HOST:PORT", help="The cluster's bootstrap servers.")
@click.option(
    "--kafka-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Lines name=value for confluent-kafka, such as security.protocol; for passwords, too.",
)
@click.option("--coordinator", required=True, metavar="HOST:PORT", help="The coordinator.")
@click.option(
    "--coordinator-config",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Properties for the coordinator: security.protocol, sasl.* and ssl.*.",
)
@click.option("--group", "groups", multiple=True, help="This group; may be given several times.")
@click.option("--pattern", metavar="REGEX", help="All groups whose whole name matches.")
@click.option("--all-groups", is_flag=True, help="All groups.")
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be given more often.")
@click.option("--prefix", default="", help="Put this in front of the names at the coordinator.")
@click.option(
    "--existing",
    type=click.Choice([one.value for one in Existing]),
    default=Existing.FORWARD.value,
    show_default=True,
    help="What to do about offsets that the coordinator has: replace them where Kafka's is "
    "higher, never, or always.",
)
@click.option("--force", is_flag=True, help="Also groups that have members in Kafka.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--summary", is_flag=True, help="A line per group, not per partition.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def import_command(
    kafka: str | None,
    kafka_config: Path | None,
    coordinator: str,
    coordinator_config: str | None,
    groups: tuple[str, ...],
    pattern: str | None,
    all_groups: bool,
    topics: tuple[str, ...],
    prefix: str,
    existing: str,
    force: bool,
    dry_run: bool,
    summary: bool,
    as_json: bool,
) -> None:
    """Copy the committed offsets of groups into groups of the coordinator.

    Groups with members in Kafka are skipped unless --force; groups with members at the
    coordinator always are. Nothing in Kafka changes. Ends with 1 if some group failed, with 2 if
    the arguments or a server are wrong.
    """
    if all_groups + bool(groups) + (pattern is not None) != 1:
        raise click.UsageError("Say exactly one of --group, --pattern and --all-groups.")
    try:
        report = import_groups(
            read_settings(kafka, kafka_config),
            coordinator,
            groups or None,
            pattern=pattern,
            topics=topics or None,
            into=lambda name: prefix + name,
            existing=existing,
            force=force,
            dry_run=dry_run,
            security=coordinator_config,
        )
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    except (KafkaGroupError, CoordinatorError) as exc:
        click.echo(f"Error: {exc}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
    else:
        for line in report.to_lines(each_partition=not summary):
            click.echo(line)
        if dry_run:
            click.echo("Dry run: nothing was changed.")
    sys.exit(1 if report.failed else 0)


def parse_settings(text: str, name: str) -> dict[str, str]:
    """Return the settings of a file with lines ``name=value``.

    Empty lines and lines that begin with # are left out. Values are never part of an error.

    Raises:
        ValueError: a line is invalid; the message has *name* and the line's number.

    """
    settings = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        key, equals, value = stripped.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{name}, line {number}: not of the form name=value")
        settings[key.strip()] = value.strip()
    return settings


def read_settings(address: str | None, file: Path | None) -> dict[str, str]:
    """Return the settings for a cluster at *address*, with those of *file*.

    A file keeps passwords off command lines.

    Raises:
        ValueError: no bootstrap servers are given, or the file can't be read.

    """
    settings: dict[str, str] = {}
    if file is not None:
        try:
            settings = parse_settings(file.read_text(encoding="utf-8-sig"), str(file))
        except OSError as exc:
            raise ValueError(f"{file}: {exc.strerror}") from exc
    if address is not None:
        settings["bootstrap.servers"] = address
    if not settings.get("bootstrap.servers"):
        raise ValueError("say --kafka, or bootstrap.servers in the file of --kafka-config")
    return settings


if __name__ == "__main__":
    main(prog_name="python -m client.kafka_groups")
