"""The options of a log of files, checked. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import pyarrow as pa

from client.spark.options import OptionError

FORMATS: Final = ("lines", "json", "parquet", "arrow")
NAMES: Final = (
    "log.badRows",
    "log.format",
    "log.index",
    "log.partitions",
    "log.pattern",
    "log.schema",
    "log.settle",
)
LINES_SCHEMA: Final = pa.schema([pa.field("value", pa.string())])
_DURATION: Final = re.compile(r"([0-9]{1,6})\s*(ms|s|m|h)?", re.ASCII)
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 0.001}
_COLUMN: Final = re.compile(r"\s*(`[^`]+`|\w+)\s+(\w+)\s*(\(\s*\d+\s*,\s*\d+\s*\))?\s*", re.ASCII)
_TYPES: Final = {
    "bigint": pa.int64(),
    "long": pa.int64(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "smallint": pa.int16(),
    "tinyint": pa.int8(),
    "double": pa.float64(),
    "float": pa.float32(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


class FilesOptions(NamedTuple):
    """What a log of files needs to know.

    Attributes:
        path: the folder of the topics.
        schema: the columns; None to take them from the first file.
        index_folder: where the index is kept; None for inside each topic's folder.
        partitions: over how many partitions files are spread; None to take them from folders.
        pattern: what the names of files match.
        settle_s: how long a file is unchanged until it counts as complete.
        bad_rows_are_null: whether a line that is no JSON becomes a row without values.

    """

    path: str
    format: str
    schema: pa.Schema | None
    index_folder: str | None
    partitions: int | None
    pattern: str
    settle_s: float
    bad_rows_are_null: bool


def parse_files_options(options: Mapping[str, str]) -> FilesOptions:
    """Check the options of a log of files; names in any case.

    Raises:
        OptionError: one is missing, unknown or impossible.

    """
    given = {name.lower(): value.strip() for name, value in options.items()}
    known = {name.lower() for name in NAMES}
    for name in given:
        if name.startswith("log.") and name not in known:
            raise OptionError(
                f"option {name!r} is unknown to a log of files; there are {', '.join(NAMES)}"
            )
    if not given.get("path"):
        raise OptionError("option 'path' is missing: the folder that holds the topics' folders")
    form = given.get("log.format", "")
    if form not in FORMATS:
        raise OptionError(f"option 'log.format' is {form!r}: it must be {' or '.join(FORMATS)}")
    bad = given.get("log.badrows", "error")
    if bad not in {"error", "null"}:
        raise OptionError(f"option 'log.badRows' is {bad!r}: it must be 'error' or 'null'")
    return FilesOptions(
        path=given["path"],
        format=form,
        schema=_schema(given, form),
        index_folder=given.get("log.index") or None,
        partitions=_partitions(given),
        pattern=given.get("log.pattern") or "*",
        settle_s=_settle_s(given),
        bad_rows_are_null=bad == "null",
    )


def _schema(given: Mapping[str, str], form: str) -> pa.Schema | None:
    text = given.get("log.schema", "")
    if form == "lines":
        if text:
            raise OptionError("option 'log.schema' is given, but lines have the one column 'value'")
        return LINES_SCHEMA
    if not text and form == "json":
        raise OptionError(
            "option 'log.schema' is missing, which JSON lines need: such as 'id bigint, name "
            "string', or a schema's JSON (df.schema.json())"
        )
    if not text:
        return None
    if text.startswith("{"):
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - slow to load.
        from pyspark.sql.types import StructType  # noqa: PLC0415

        try:
            return to_arrow_schema(StructType.fromJson(json.loads(text)), timezone="UTC")
        except Exception as error:
            raise OptionError(f"option 'log.schema' is no schema of Spark's: {error}") from error
    return pa.schema([_column(part) for part in _split(text)])


def _split(text: str) -> list[str]:
    return re.split(r",(?![^(]*\))", text)


def _column(text: str) -> pa.Field:
    match = _COLUMN.fullmatch(text)
    kind = match[2].lower() if match else ""
    if match and kind == "decimal" and match[3]:
        precision, scale = (int(number) for number in re.findall(r"\d+", match[3]))
        return pa.field(match[1].strip("`"), pa.decimal128(precision, scale))
    if not match or kind not in _TYPES or match[3]:
        raise OptionError(
            f"option 'log.schema' has {text.strip()!r}: it must be a name and one of "
            f"{', '.join(sorted(_TYPES))}, decimal(p,s); for other types give the JSON of a schema "
            "(df.schema.json())"
        )
    return pa.field(match[1].strip("`"), _TYPES[kind])


def _partitions(given: Mapping[str, str]) -> int | None:
    value = given.get("log.partitions", "")
    if not value:
        return None
    if not value.isdecimal() or not 0 < int(value) <= 10_000:
        raise OptionError(
            f"option 'log.partitions' is {value!r}: it must be a whole number from 1 to 10000"
        )
    return int(value)


def _settle_s(given: Mapping[str, str]) -> float:
    value = given.get("log.settle", "1m")
    match = _DURATION.fullmatch(value)
    if not match:
        raise OptionError(
            f"option 'log.settle' is {value!r}: it must be a duration such as '500ms', '10s', '1m'"
        )
    return int(match[1]) * _UNIT_S[match[2]]
