"""Who may import whom. The table is the one of docs/architecture.md; this makes it true."""

import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("protocol", "coordinator", "client")

# What would make a result depend on more than the arguments.
IMPURE = frozenset(
    {
        "asyncio",
        "concurrent",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "uuid",
    }
)


class Layer(NamedTuple):
    """What the modules under one prefix may import besides the standard library and each other."""

    ours: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    banned: frozenset[str] = frozenset()


def names(*modules: str) -> frozenset[str]:
    """Return *modules* as a set."""
    return frozenset(modules)


OF_THE_SERVER = names(
    "protocol",
    "coordinator.config",
    "coordinator.events",
    "coordinator.names",
    "coordinator.group",
    "coordinator.log",
    "coordinator.runtime",
)
FROM_FOLDERS = names(
    "coordinator.cluster",
    "coordinator.cluster.founding",
    "coordinator.cluster.snapshots",
    "coordinator.cluster.zookeeper",
    "coordinator.log",
)

# The longest prefix that fits a module decides.
LAYERS = {
    "protocol": Layer(others=names("msgspec"), banned=IMPURE),
    "coordinator.group": Layer(
        ours=names("protocol", "coordinator.group.registry"),
        others=names("msgpack", "msgspec"),
        banned=IMPURE,
    ),
    # The one place where patterns of topics are evaluated.
    "coordinator.group.registry": Layer(
        ours=names("protocol", "coordinator.group"),
        others=names("msgpack", "msgspec", "re2"),
        banned=IMPURE,
    ),
    "coordinator.log": Layer(
        ours=names("coordinator.log.format"),
        others=names("msgpack"),
        banned=names("threading", "asyncio", "time"),
    ),
    "coordinator.log.format": Layer(
        ours=names("coordinator.log"), others=names("msgpack", "msgspec"), banned=IMPURE
    ),
    # Of the log it knows the bytes, and no files.
    "coordinator.cluster": Layer(
        ours=names("coordinator.log.format", "coordinator.log.errors"),
        others=names("msgpack"),
        banned=IMPURE,
    ),
    # What a compaction finds live, a snapshot keeps.
    "coordinator.cluster.snapshots": Layer(
        ours=names("coordinator.cluster", "coordinator.log"), others=names("msgpack"), banned=IMPURE
    ),
    # The one place that knows how ZooKeeper is reached; imported only where there is a cluster.
    "coordinator.cluster.zookeeper": Layer(
        ours=names("coordinator.cluster", "coordinator.config"),
        others=names("kazoo", "outcome", "trio"),
    ),
    # A process of its own.
    "coordinator.cluster.snapshot_child": Layer(
        ours=names(
            "coordinator.cluster",
            "coordinator.cluster.snapshots",
            "coordinator.cluster.zookeeper",
            "coordinator.config",
            "coordinator.log",
        )
    ),
    # What is done there before a node runs.
    "coordinator.cluster.founding": Layer(
        ours=names("coordinator.cluster", "coordinator.cluster.zookeeper"), others=names("kazoo")
    ),
    # The way from a folder into it, and back.
    "coordinator.cluster.move_in": Layer(ours=FROM_FOLDERS),
    "coordinator.cluster.move_out": Layer(ours=FROM_FOLDERS),
    "coordinator.runtime": Layer(
        ours=names("protocol", "coordinator.group", "coordinator.log", "coordinator.cluster"),
        others=names("trio", "structlog", "outcome", "msgspec"),
    ),
    # Who somebody is, without sockets and tasks.
    "coordinator.security": Layer(
        ours=names("protocol", "coordinator.config", "coordinator.group.buckets"),
        others=names("cryptography", "jwt", "re2", "scramp"),
        banned=names("threading", "asyncio", "time", "socket"),
    ),
    "coordinator.server": Layer(
        ours=OF_THE_SERVER, others=names("trio", "structlog", "outcome", "msgspec")
    ),
    # Imported only where there is a cluster, as it brings ZooKeeper's client.
    "coordinator.server.cluster": Layer(
        ours=OF_THE_SERVER
        | names(
            "coordinator.cluster",
            "coordinator.cluster.founding",
            "coordinator.cluster.snapshot_child",
            "coordinator.cluster.zookeeper",
        ),
        others=names("structlog"),
    ),
    # The last two are imported only where there are http.listeners, or listeners with TLS: who has
    # none pays nothing for them.
    "coordinator.server.run": Layer(
        ours=OF_THE_SERVER
        | names("coordinator.server", "coordinator.http", "coordinator.security"),
        others=names("trio", "structlog", "outcome", "msgspec"),
    ),
    # Imported only where somebody is asked who he is: who asks nobody pays nothing for it.
    "coordinator.http.entry": Layer(
        ours=names(
            "protocol.acls",
            "coordinator.group",
            "coordinator.http",
            "coordinator.security",
            "coordinator.server",
        ),
        others=names("trio"),
    ),
    "coordinator.http": Layer(
        ours=names(
            "protocol",
            "coordinator.config",
            "coordinator.events",
            "coordinator.names",
            "coordinator.group",
            "coordinator.runtime",
            "coordinator.server",
            "coordinator.http.entry",
        ),
        others=names("trio", "structlog", "msgspec", "h11", "prometheus_client"),
    ),
    "coordinator.config": Layer(ours=names("protocol", "coordinator.group", "coordinator.names")),
    # The rest of the daemon: its command line, which is free to use all of it.
    "coordinator": Layer(
        ours=names("protocol", "coordinator"),
        others=names("trio", "structlog", "click", "rich", "msgpack", "msgspec"),
    ),
    # What its commands for a running coordinator know of TLS and log-ins is the client's.
    "coordinator.cli.common": Layer(
        ours=names("protocol", "coordinator", "client.security", "client.exceptions"),
        others=names("click", "rich", "msgspec"),
    ),
    # An ensemble, as the client knows it.
    "coordinator.cli.zookeeper": Layer(
        ours=names(
            "protocol", "coordinator", "client.exceptions", "client.security", "client.zookeeper"
        ),
        others=names("click", "re2"),
    ),
    "client": Layer(
        ours=names("protocol", "client.security", "client.zookeeper"),
        others=names("trio", "msgspec"),
    ),
    # SCRAM is imported by who logs in by it.
    "client.security": Layer(ours=names("protocol", "client"), others=names("trio", "scramp")),
    # Its command line, and the Kafka client behind it, which are imported only when they are used.
    "client.kafka_groups": Layer(
        ours=names("protocol", "client"), others=names("click", "confluent_kafka")
    ),
    "client.zookeeper": Layer(
        ours=names(
            "protocol",
            "client",
            "client.security",
            "client.zookeeper.ensemble",
            "client.zookeeper.membership",
            "client.zookeeper.registrations",
        ),
        others=names("trio", "msgspec"),
    ),
    # The one importer of kazoo; it is imported late, and asked for by threads.
    "client.zookeeper.ensemble": Layer(
        ours=names("protocol", "client", "client.security", "client.zookeeper"),
        others=names("kazoo"),
    ),
    # A member of a group of old consumers decides without it.
    "client.zookeeper.registrations": Layer(ours=names("protocol"), banned=IMPURE),
    "client.zookeeper.membership": Layer(
        ours=names("protocol", "client.zookeeper.registrations"), banned=IMPURE
    ),
    "client.metrics": Layer(
        ours=names("protocol", "client"), others=names("trio", "prometheus_client")
    ),
    "client.spark": Layer(
        ours=names("protocol", "client", "client.zookeeper"),
        others=names(
            "msgspec",
            "pyspark",
            "pyarrow",
            "pandas",
            "numpy",
            "py4j",
            "trio",
            "click",
            "confluent_kafka",
            "deltalake",
        ),
    ),
}


def within(module: str, prefixes: frozenset[str] | dict[str, Layer]) -> str | None:
    """Return the longest of *prefixes* that *module* is or is inside of."""
    fitting = [p for p in prefixes if module == p or module.startswith(p + ".")]
    return max(fitting, key=len, default=None)


def imports(module: str, source: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield the line and the full name of everything that *source* imports, at any depth."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]) if base else ".".join(above)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """Return what *source*, as the text of *module*, imports against the rules."""
    prefix = within(module, LAYERS)
    assert prefix is not None, f"{module} belongs to no layer"
    layer = LAYERS[prefix]
    found = []
    for line, name in imports(module, source, is_package=is_package):
        top = name.partition(".")[0]
        if top in PACKAGES:
            # Inside its own layer a module is free; a layer within it (client.spark in client) is
            # another one.
            allowed = within(name, LAYERS) == prefix or within(name, layer.ours) is not None
        elif top in sys.stdlib_module_names:
            allowed = top not in layer.banned
        else:
            allowed = top in layer.others
        if not allowed:
            found.append(f"{module}:{line} imports {name}")
    return found


def modules() -> list[tuple[str, Path]]:
    """Return every module of the product with its file."""
    result = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            result.append((".".join(parts).removesuffix(".__init__"), path))
    return result


def test_every_module_imports_only_what_its_layer_allows() -> None:
    """The pure core stays pure, and no server ever needs Spark."""
    broken = [
        line
        for module, path in modules()
        for line in violations(
            module, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py"
        )
    ]

    assert broken == []


def circles(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return the sets of modules of *graph* that import each other, at whatever distance."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            for name in graph.get(ahead.pop(), ()):
                if name not in seen:
                    seen.add(name)
                    ahead.append(name)
        reached[start] = seen
    found = {
        tuple(sorted({start} | {n for n in seen if start in reached.get(n, ())}))
        for start, seen in reached.items()
        if start in seen
    }
    return [list(circle) for circle in sorted(found)]


def graph_of_the_product() -> dict[str, set[str]]:
    """Return which modules each module imports, for its types and inside functions too."""
    known = dict(modules())
    graph: dict[str, set[str]] = {module: set() for module in known}
    for module, path in known.items():
        source = path.read_text(encoding="utf-8")
        for _, name in imports(module, source, is_package=path.name == "__init__.py"):
            imported = name if name in known else name.rpartition(".")[0]
            if imported in known and imported != module:
                graph[module].add(imported)
    return graph


def test_no_modules_import_each_other_in_a_circle() -> None:
    """What goes round in a circle can only be understood, tested and moved as a whole."""
    assert circles(graph_of_the_product()) == []


def test_a_circle_is_found() -> None:
    """At any length, and without those that only lead into it."""
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"e"}, "e": set[str](), "f": {"f"}}

    assert circles(graph) == [["b", "c"], ["f"]]


def test_no_module_has_the_name_of_one_in_the_standard_library() -> None:
    """Started in its folder, Python would import it in the place of its own."""
    taken = [
        str(path.relative_to(ROOT))
        for module, path in modules()
        if path.name != "__init__.py" and path.stem in sys.stdlib_module_names
    ]

    assert taken == []


def test_the_product_is_found() -> None:
    """A test that walks an empty folder would pass for ever."""
    assert set(PACKAGES) <= {module.partition(".")[0] for module, _ in modules()}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("protocol.codec", "import trio"),
        ("protocol.codec", "from coordinator.log import format"),
        ("coordinator.group.shard", "import time"),
        ("coordinator.group.shard", "from os import path"),
        ("coordinator.group.shard", "def f():\n    import random"),
        ("coordinator.group.shard", "import structlog"),
        ("coordinator.group.shard", "import re2"),
        ("coordinator.group.registry", "import time"),
        ("coordinator.group.shard", "from coordinator.log.format import Entry"),
        ("coordinator.group.shard", "from ..log import format"),
        ("coordinator.cluster.engine", "import kazoo"),
        ("coordinator.cluster.engine", "import time"),
        ("coordinator.cluster.engine", "from coordinator.log import journal"),
        ("coordinator.log.journal", "import trio"),
        ("coordinator.log.journal", "from protocol import partition"),
        ("coordinator.log.journal", "from coordinator.group import shard"),
        ("coordinator.log.format", "import os"),
        ("coordinator.runtime.shard", "from coordinator.server import session"),
        ("coordinator.server.session", "from client import connect"),
        ("coordinator.cli.main", "import client"),
        ("coordinator.cli.main", "import pyspark"),
        ("client.connection", "from coordinator.config import Config"),
        ("client.connection", "import pyarrow"),
        ("client.zookeeper.offset_calls", "def f():\n    import kazoo.client"),
        ("client.connection", "from client.spark import register"),
        ("client.spark.source.data_source", "from coordinator import config"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str) -> None:
    """The table is only worth as much as the walk over the imports."""
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("protocol.codec", "import struct, msgspec\nfrom protocol.partition import TopicPartition"),
        ("coordinator.group.shard", "from protocol import messages\nfrom . import records"),
        ("coordinator.log.journal", "import os\nfrom coordinator.log.format import Entry"),
        ("coordinator.runtime.shard", "import trio\nfrom coordinator.group.shard import Outcome"),
        ("coordinator.server.session", "from coordinator.runtime import node"),
        ("coordinator.cli.main", "import click\nfrom coordinator.server import serve"),
        ("client.connection", "import trio\nfrom protocol import codec"),
        (
            "client.spark.source.data_source",
            "import pyspark\nfrom client.blocking import connect_blocking",
        ),
    ],
)
def test_an_allowed_import_is_not_held_against_a_module(module: str, source: str) -> None:
    """A rule that forbids what is right would soon be switched off."""
    assert violations(module, source) == []
