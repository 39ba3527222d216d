"""The jars of peers, and of Spark's connectors: fetched by coordinates with Maven, checked by hash.

    python -m bench.peer_jars fetch    # the jars of bench/peers.lock into build/peers
    python -m bench.peer_jars lock     # resolve again what `ROOTS` need, and write bench/peers.lock

Where Maven finds them is a setting of the machine. A jar whose bytes aren't those of the lock file
is not used.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path("build/peers")
LOCK: Final = Path(__file__).parent / "peers.lock"

# Whose dependencies are resolved; the first of each names the peer's version. ZooKeeper declares
# the last two as provided: its server needs them, and its own archive brings them.
ROOTS: Final[Mapping[str, Sequence[str]]] = {
    "kafka": ("org.apache.kafka:kafka_2.13:4.1.1",),
    "zookeeper": (
        "org.apache.zookeeper:zookeeper:3.9.4",
        "io.dropwizard.metrics:metrics-core:4.1.12.1",
        "org.xerial.snappy:snappy-java:1.1.10.5",
    ),
    # The last one whose consumers only knew ZooKeeper, for tests beside them.
    "kafka-0.8": ("org.apache.kafka:kafka_2.11:0.8.2.2",),
}

# For ``spark.jars``. They are named one by one: what they declare can't be resolved, as Spark's
# parent project names a repository of its own. Spark brings the rest.
SPARK_ROOTS: Final[Mapping[str, Sequence[str]]] = {
    "spark-kafka": (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    ),
    "spark-jdbc": (
        "org.xerial:sqlite-jdbc:3.46.1.3",
        "org.postgresql:postgresql:42.7.4",
    ),
}
ALL_ROOTS: Final = {**ROOTS, **SPARK_ROOTS}
_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:2.8"
_LOCK_HEADER: Final = (
    "# The jars of the peers: program, group:artifact:version, sha256.\n"
    "# Written by python -m bench.peer_jars lock.\n"
)


class PeerJarsError(Exception):
    """The jars can't be had; the message says why."""


class Jar(NamedTuple):
    """One line of the lock file."""

    program: str
    coordinates: str
    sha256: str

    @property
    def file_name(self) -> str:
        """What Maven calls the file."""
        _, artifact, version = self.coordinates.split(":")
        return f"{artifact}-{version}.jar"


def parse_lock(text: str) -> list[Jar]:
    """Read a lock file.

    Raises:
        ValueError: A line is not of the three words.
    """
    lines = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return [Jar(program, coordinates, digest) for program, coordinates, digest in lines]


def lock_text(jars: Iterable[Jar]) -> str:
    """Return the lock file of these jars."""
    return _LOCK_HEADER + "".join(f"{' '.join(jar)}\n" for jar in sorted(jars))


def pom(coordinates: Iterable[str], *, transitive: bool) -> str:
    """Return a project that needs these artifacts and, if *transitive*, what they need."""
    alone = "" if transitive else (
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        "</exclusions>"
    )  # fmt: skip
    needed = []
    for group, artifact, version in (name.split(":") for name in coordinates):
        names = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        needed.append(f"<dependency>{names}<version>{version}</version>{alone}</dependency>\n")
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId>"
        "<artifactId>peers</artifactId><version>1</version><packaging>pom</packaging>\n"
        f"<dependencies>\n{''.join(needed)}</dependencies></project>\n"
    )


def parse_list(text: str) -> list[str]:
    """Return the coordinates in what Maven's dependency:list wrote.

    Jars for one kind of machine only (they have a classifier) are left out: no peer needs them.
    """
    found = []
    for line in text.splitlines():
        words = line.strip().split(":")
        if len(words) == 5 and words[2] == "jar":
            group, artifact, _, version, _ = words
            found.append(f"{group}:{artifact}:{version}")
    return found


def wrong_jars(jars: Iterable[Jar], folder: Path) -> list[str]:
    """Return the names of the jars that aren't in the folder as the lock file says."""
    wrong = []
    for jar in jars:
        path = folder / jar.program / jar.file_name
        if not path.is_file() or sha256(path.read_bytes()).hexdigest() != jar.sha256:
            wrong.append(jar.file_name)
    return wrong


@cache
def class_path(program: str) -> str:
    """Return the class path of a program, "" if a jar is missing or is another one."""
    jars = [jar for jar in parse_lock(LOCK.read_text(encoding="utf-8")) if jar.program == program]
    if wrong_jars(jars, FOLDER):
        return ""
    return ":".join(str((FOLDER / program / jar.file_name).resolve()) for jar in jars)


def spark_jars(*programs: str) -> str | None:
    """Return the setting ``spark.jars`` for programs of `SPARK_ROOTS`, None if a jar is missing."""
    paths = [class_path(program) for program in programs]
    return ",".join(paths).replace(":", ",") if all(paths) else None


def version_of(program: str) -> str:
    """Return the version of a program."""
    return ALL_ROOTS[program][0].rpartition(":")[2]


def _maven(folder: Path, *arguments: str) -> None:
    if not shutil.which("mvn"):
        raise PeerJarsError("there is no mvn on the PATH")
    done = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PeerJarsError(f"mvn failed:\n{(done.stdout + done.stderr)[-2000:]}")


def _copy(coordinates: Sequence[str], folder: Path, *, transitive: bool) -> str:
    """Copy the jars of these artifacts into the folder; return Maven's list of them."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "pom.xml").write_text(pom(coordinates, transitive=transitive), encoding="utf-8")
        listed = work / "list"
        scope = "-DincludeScope=runtime"
        _maven(work, f"{_PLUGIN}:copy-dependencies", scope, f"-DoutputDirectory={folder.resolve()}")
        _maven(work, f"{_PLUGIN}:list", scope, f"-DoutputFile={listed}")
        return listed.read_text(encoding="utf-8")


def fetch() -> None:
    """Bring every jar of the lock file that isn't there.

    Raises:
        PeerJarsError: They can't be had, or are not those of the lock file.
    """
    jars = parse_lock(LOCK.read_text(encoding="utf-8"))
    for program in ALL_ROOTS:
        needed = [jar for jar in jars if jar.program == program]
        if not wrong_jars(needed, FOLDER):
            continue
        folder = FOLDER / program
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _copy([jar.coordinates for jar in needed], folder, transitive=False)
        if wrong := wrong_jars(needed, FOLDER):
            raise PeerJarsError(f"{program}: not the jars of the lock file: {', '.join(wrong)}")
        print(f"{program} {version_of(program)}: {len(needed)} jars")


def lock() -> None:
    """Write the lock file anew.

    Raises:
        PeerJarsError: Maven can't resolve the roots.
    """
    jars = []
    for program, roots in ALL_ROOTS.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for coordinates in parse_list(_copy(roots, folder, transitive=program in ROOTS)):
                jar = Jar(program, coordinates, "")
                digest = sha256((folder / jar.file_name).read_bytes()).hexdigest()
                jars.append(jar._replace(sha256=digest))
    LOCK.write_text(lock_text(jars), encoding="utf-8")


def main() -> int:
    """Do what the command line says."""
    commands = {"fetch": fetch, "lock": lock}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        print("usage: python -m bench.peer_jars fetch|lock", file=sys.stderr)
        return 2
    try:
        commands[sys.argv[1]]()
    except PeerJarsError as exc:
        print(f"bench.peer_jars: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
