"""The flights of the demo."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from demo.dataset import (
    MEMBER,
    DatasetError,
    check_complete,
    extract_csv,
    parse,
    partition_column,
    partition_of,
)
from tests.demo.flights import FIRST, csv_text, flights


def archive(folder: Path, name: str, text: bytes) -> Path:
    """Make a source archive with the one file that is looked for."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as packed:
        packed.writestr(name, text)
    path = folder / "archive.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo(MEMBER)
        info.size = len(zipped.getvalue())
        zipped.seek(0)
        tar.addfile(info, zipped)
    return path


def test_flights_are_ordered_by_departure() -> None:
    """The order is part of the job's definition: offsets must be the same in every run."""
    assert flights()["flight"].to_pylist() == [1545, 1714, 1141, 4308]


def test_what_a_cancelled_flight_lacks_is_null() -> None:
    """NA is no number, and no text either."""
    late = flights().to_pylist()[3]

    assert (late["dep_time"], late["arr_delay"], late["tailnum"]) == (None, None, "N18120")
    assert flights()["tailnum"].null_count == 1


def test_the_hour_of_departure_is_a_moment_in_time() -> None:
    """As a local time it would be ambiguous once a year."""
    assert flights()["time_hour"].to_pylist()[0].isoformat() == "2013-01-01T10:00:00+00:00"


@pytest.mark.parametrize(("carrier", "partition"), [("UA", 4), ("AA", 3), ("EV", 4), ("FL", 1)])
def test_a_carrier_has_its_partition_for_ever(carrier: str, partition: int) -> None:
    """Python's own hash would be another one in each process."""
    assert partition_of(carrier) == partition


def test_the_partition_column_is_that_of_each_rows_carrier() -> None:
    """It is computed once per carrier and spread over the rows."""
    assert partition_column(flights()).to_pylist() == [
        partition_of(carrier) for carrier in ("UA", "UA", "AA", "EV")
    ]


def test_a_row_that_is_no_flight_is_refused() -> None:
    """A wrong file must not become half a demo."""
    with pytest.raises(DatasetError, match="can't be read"):
        parse(csv_text(FIRST.replace("517", "early")))


def test_a_file_without_a_column_is_refused() -> None:
    """The message names the column."""
    with pytest.raises(DatasetError, match="no column"):
        parse(b"year,month\n2013,1\n")


def test_too_few_flights_are_refused() -> None:
    """The number is the point of the demo."""
    with pytest.raises(DatasetError, match="4 flights, 4 of them distinct, and not 336,776"):
        check_complete(flights())


def test_the_file_is_taken_out_of_the_archive_as_it_is(tmp_path: Path) -> None:
    """Nothing of the package is run or unpacked."""
    assert extract_csv(archive(tmp_path, "flights.csv", b"text")) == b"text"


def test_another_archive_is_refused_with_advice(tmp_path: Path) -> None:
    """A half-finished download is what most likely stands there."""
    with pytest.raises(DatasetError, match="run `make demo` again"):
        extract_csv(archive(tmp_path, "weather.csv", b"text"))

    (tmp_path / "half").write_bytes(b"\x1f\x8b")
    with pytest.raises(DatasetError, match="run `make demo` again"):
        extract_csv(tmp_path / "half")
