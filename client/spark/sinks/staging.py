# ruff: noqa: S608 - Names are quoted, and values are parameters.
"""Tables to which executors write a batch by JDBC, before a transaction moves it.

Spark writes each task in a transaction of its own, so a batch that failed in the middle, or a
task that ran twice, leaves too few or too many rows. They are in a table that nobody reads, with
a name that is used once; it is moved only if it holds as many rows as the batch.
"""

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from client.spark.sinks.ranges import SinkError
from client.spark.sinks.sql_text import Dialect, create_like, insert_from

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Nobody writes a batch for so long; what is older was left by a crash.
LEFT_OVER_S: Final = 24 * 3600

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JdbcStaging:
    """How executors reach the database.

    Args:
        url: such as ``jdbc:postgresql://host/db``; the driver's jar must be on Spark's class
            path.
        properties: Spark's options for it, such as ``user``, ``password``, ``driver`` and
            ``batchsize``. They are not shown.

    """

    url: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def write(self, rows: "DataFrame", table: str) -> None:
        """Write the rows to a table that exists; its name is quoted already."""
        rows.write.format("jdbc").options(
            **{"batchsize": "10000", **self.properties, "url": self.url, "dbtable": table}
        ).mode("append").save()


class Staged(NamedTuple):
    """A staging table, and how many rows it has to hold."""

    name: str
    target: str
    columns: tuple[str, ...]
    rows: int

    def move(self, cursor: Any, dialect: Dialect) -> None:
        """Insert its rows into the target.

        Raises:
            SinkError: there are too many or too few.

        """
        cursor.execute(f"SELECT COUNT(*) FROM {dialect.name(self.name)}")
        (found,) = cursor.fetchone()
        if found != self.rows:
            raise SinkError(
                f"the staging table {self.name} has {found} rows, the batch has {self.rows}: a "
                "task of Spark ran twice, or transform= returns other rows each time. Restart "
                "the query; switch spark.speculation off"
            )
        cursor.execute(insert_from(dialect, self.target, self.name, self.columns))


class StagingTables(NamedTuple):
    """Makes and drops staging tables, and keeps a list of them in the table *registry*."""

    dialect: Dialect
    target: str
    registry: str

    @property
    def create(self) -> str:
        """The statement that makes the list."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.dialect.name(self.registry)} "
            "(name VARCHAR(255) NOT NULL PRIMARY KEY, created_s BIGINT NOT NULL)"
        )

    def make(self, db: Any, columns: Sequence[str], rows: int, *, now_s: int) -> Staged:
        """Make a staging table for *rows* rows, and drop what crashed drivers left."""
        self._drop_left_over(db, now_s)
        schema, dot, _ = self.target.rpartition(".")
        name = f"{schema}{dot}gc_stage_{uuid.uuid4().hex[:16]}"
        cursor = db.cursor()
        marks = ", ".join(self.dialect.parameters(2))
        listed = self.dialect.name(self.registry)
        cursor.execute(f"INSERT INTO {listed} VALUES ({marks})", (name, now_s))
        cursor.execute(create_like(self.dialect, name, self.target, columns))
        db.commit()
        return Staged(name, self.target, tuple(columns), rows)

    def drop(self, db: Any, name: str) -> None:
        """Drop a staging table. What goes wrong is only logged: it is dropped a day later."""
        try:
            cursor = db.cursor()
            cursor.execute(f"DROP TABLE IF EXISTS {self.dialect.name(name)}")
            (mark,) = self.dialect.parameters(1)
            listed = self.dialect.name(self.registry)
            cursor.execute(f"DELETE FROM {listed} WHERE name = {mark}", (name,))
            db.commit()
        except Exception:
            logger.warning("the staging table %s is not dropped yet", name, exc_info=True)
            db.rollback()

    def _drop_left_over(self, db: Any, now_s: int) -> None:
        cursor = db.cursor()
        (mark,) = self.dialect.parameters(1)
        listed = self.dialect.name(self.registry)
        cursor.execute(
            f"SELECT name FROM {listed} WHERE created_s < {mark}",
            (now_s - LEFT_OVER_S,),
        )
        names = [name for (name,) in cursor.fetchall()]
        db.rollback()
        for name in names:
            self.drop(db, name)
