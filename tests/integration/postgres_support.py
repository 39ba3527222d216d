"""A real PostgreSQL, for the tests that name it; skipped where it isn't installed."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from bench.peer_jars import spark_jars
from tests.integration.spark_support import wait_until

MISSING = [tool for tool in ("postgres", "initdb") if shutil.which(tool) is None]

needs_postgres = pytest.mark.skipif(
    bool(MISSING), reason=f"no PostgreSQL: {', '.join(MISSING)} not found"
)
needs_jdbc = pytest.mark.skipif(
    spark_jars("spark-jdbc") is None,
    reason="the JDBC drivers aren't in build/peers: make peers",
)


class Postgres(NamedTuple):
    """A server that listens at a port of loopback."""

    port: int

    @property
    def conninfo(self) -> str:
        """For psycopg."""
        return f"host=127.0.0.1 port={self.port} user=test dbname=postgres"

    @property
    def jdbc_url(self) -> str:
        """For Spark."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres?user=test"

    def answers(self) -> bool:
        """Say whether it is up."""
        try:
            psycopg.connect(self.conninfo, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def postgres(port: int) -> Iterator[Postgres]:
    """Run a server with an empty database; it refuses to run as root, so another user does."""
    user = _ordinary_user()
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        options = ("--username=test", "--auth=trust", "--no-sync", "--encoding=UTF8")
        subprocess.run(
            ["initdb", "--pgdata", str(folder / "data"), *options],
            check=True,
            capture_output=True,
            user=user,
            cwd=folder,
        )
        settings = (
            f"port={port}",
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={folder}",
        )
        process = subprocess.Popen(
            ["postgres", "-D", str(folder / "data"), *(f"--{one}" for one in settings)],
            stderr=subprocess.DEVNULL,
            user=user,
            cwd=folder,
        )
        server = Postgres(port)
        try:
            wait_until("PostgreSQL is up", server.answers)
            yield server
        finally:
            process.terminate()
            process.wait()
    finally:
        shutil.rmtree(folder)


def _ordinary_user() -> str | None:
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
