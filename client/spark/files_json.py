"""JSON lines as Arrow batches. Pure."""

import io
import re
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.json as pa_json

from client.spark.files_lines import Lines, lines_of

_BLANK: Final = re.compile(rb"^[ \t\r]*$", re.MULTILINE)
# A text of nothing but nulls would end the process, in pyarrow.
_NO_OBJECT: Final = re.compile(rb"^[ \t\r]*[^ \t\r\n{]", re.MULTILINE)
_BLOCK_MIN: Final = 1 << 16


def parse_json(
    lines: Lines, schema: pa.Schema, bad: Callable[[int, pa.ArrowInvalid], None]
) -> pa.Table:
    """Return a row for each of *lines*: a line without an object is a row without values.

    Args:
        lines: one object in each.
        schema: the columns.
        bad: called with the number of each line that doesn't fit, and why; raises, or the line
            becomes a row without values.

    """
    try:
        return _parsed(lines, schema)
    except pa.ArrowInvalid:
        return _parsed(_mended(lines, schema, bad), schema)


def _parsed(lines: Lines, schema: pa.Schema) -> pa.Table:
    text = lines.data if lines.data.endswith(b"\n") else lines.data + b"\n"
    if not lines.begin_with("{"):
        text = _BLANK.sub(b"{}", text[:-1]) + b"\n"
        if _NO_OBJECT.search(text):
            raise pa.ArrowInvalid("a line holds no JSON object")
    table = pa_json.read_json(
        io.BytesIO(text),
        read_options=pa_json.ReadOptions(block_size=max(len(text), _BLOCK_MIN), use_threads=False),
        parse_options=pa_json.ParseOptions(
            explicit_schema=pa.schema([field.with_type(_in_json(field.type)) for field in schema]),
            unexpected_field_behavior="ignore",
        ),
    )
    if table.num_rows != len(lines):
        raise pa.ArrowInvalid(f"{len(lines)} line(s) hold {table.num_rows} JSON objects")
    return table.cast(schema)


def _in_json(kind: pa.DataType) -> pa.DataType:
    """Return as what to read a type that pyarrow finds in no JSON: dates are texts."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_json(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_json(field.type)) for field in kind])
    return kind


def _mended(lines: Lines, schema: pa.Schema, bad: Callable[[int, pa.ArrowInvalid], None]) -> Lines:
    mended = []
    for number, line in enumerate(lines.data.removesuffix(b"\n").split(b"\n")):
        try:
            _parsed(lines_of(line + b"\n"), schema)
            mended.append(line)
        except pa.ArrowInvalid as error:
            bad(number, error)
            mended.append(b"{}")
    return lines_of(b"\n".join(mended) + b"\n")
