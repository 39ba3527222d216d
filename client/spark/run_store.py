"""The checkpoints of a grouped query: one folder per run, and what it says is finished.

``<root>/<group>/<client id>.<n>`` is the checkpoint of a driver's n-th run. Spark writes
``offsets/<batch>`` before a batch and ``commits/<batch>`` after its sink has finished, so the
newest batch that has both says how far the sink is. Other drivers read it, too: whoever takes
over a partition goes on where the sink of the last run really was.
"""

import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol
from urllib.parse import quote, urlsplit

from client.exceptions import RetriableError
from client.spark.checkpoint import BEFORE_ALL, FinishedBatch, newest_finished
from client.spark.source.stream_offsets import finished_offsets
from protocol.types import TopicPartition

logger = logging.getLogger(__name__)

_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}  # Hadoop's names for what pyarrow calls otherwise.
_LOCAL: Final = frozenset({"", "file"})
_RUN: Final = re.compile(r"(?P<client_id>.+)\.\d+")


class StoreUnavailable(RetriableError):
    """The checkpoints can't be read now."""


class RunStore(Protocol):
    """The checkpoints of one group; the tests keep them in memory."""

    def location(self, run: str) -> str:
        """Return the checkpoint location of a run, for Spark."""

    def finished(self, run: str) -> Mapping[TopicPartition, int]:
        """Return the offsets up to which a run's sink has finished; empty if there is none.

        Raises:
            StoreUnavailable: the file system does not answer.
            CheckpointError: a newer Spark wrote it.

        """

    def remove(self, run: str) -> None:
        """Delete the checkpoint of a run. Never raises: the next `sweep` tries again."""

    def sweep(
        self, alive: Collection[str], in_use: Collection[str], older_than_s: float
    ) -> list[str]:
        """Delete the runs of all client ids but *alive*; return those that were deleted.

        A run that is named *in_use* is left, and one that was written to within the last
        *older_than_s* seconds. Never raises.
        """


class FileRunStore:
    """Checkpoints in a folder of this machine, or in any file system that pyarrow knows.

    Args:
        root: an absolute path of this machine, or a URI such as ``s3a://bucket/checkpoints``.
            Spark gets it as it is, a path with ``file://`` before it.
        group: the group, which has a folder of its own.
        filesystem: a `pyarrow.fs.FileSystem` for *root*, where its credentials or its endpoint
            are not those that pyarrow finds by itself.

    Raises:
        ValueError: *root* is neither, or pyarrow can't open it.

    """

    def __init__(self, root: str, group: str, filesystem: Any = None) -> None:
        from pyarrow import fs  # noqa: PLC0415 - slow to load, and needed here only.

        scheme = urlsplit(root).scheme
        if scheme in _LOCAL:
            path = urlsplit(root).path if scheme else root
            if not path.startswith("/"):
                raise ValueError(f"checkpoint_root is {root!r}: it must be an absolute path or URI")
            location, opened = f"file://{path}", fs.LocalFileSystem()
        else:
            location = root
            try:
                uri = _SCHEMES.get(scheme, scheme) + root[len(scheme) :]
                opened, path = (
                    fs.FileSystem.from_uri(uri)
                    if filesystem is None
                    else (filesystem, root.split("://", 1)[1])
                )
            except (ValueError, OSError) as error:
                raise ValueError(
                    f"checkpoint_root is {root!r}, which pyarrow can't open: {error}. Give a "
                    "pyarrow file system as filesystem=…"
                ) from error
        folder = quote(group, safe="").replace("%", "=")
        self._location = f"{location.rstrip('/')}/{folder}"
        self._path = f"{path.rstrip('/')}/{folder}"
        self._fs: Any = filesystem if filesystem is not None else opened
        # The run that was last asked for, its newest batch, and what that finished.
        self._seen: tuple[str, int, dict[TopicPartition, int]] = ("", BEFORE_ALL, {})

    def location(self, run: str) -> str:
        """See `RunStore.location`."""
        return f"{self._location}/{run}"

    def finished(self, run: str) -> Mapping[TopicPartition, int]:
        """See `RunStore.finished`."""
        files = _ArrowFiles(self._fs, f"{self._path}/{run}", self.location(run))
        if self._seen[0] != run:
            self._seen = run, BEFORE_ALL, {}
        with _answers(f"checkpoint {files.location}"):
            batch = newest_finished(files, self._seen[1])
        if batch is not None:
            self._seen = run, batch.batch_id, _offsets(batch)
        return self._seen[2]

    def remove(self, run: str) -> None:
        """See `RunStore.remove`."""
        if self._seen[0] == run:
            self._seen = "", BEFORE_ALL, {}
        try:
            self._fs.delete_dir(f"{self._path}/{run}")
        except FileNotFoundError:
            pass  # Its query never came so far.
        except OSError as error:
            logger.warning("checkpoint %s is left for later: %s", self.location(run), error)

    def sweep(
        self, alive: Collection[str], in_use: Collection[str], older_than_s: float
    ) -> list[str]:
        """See `RunStore.sweep`."""
        removed = []
        try:
            for info in _listed(self._fs, self._path):
                match = _RUN.fullmatch(info.base_name)
                if match is None or match["client_id"] in alive or info.base_name in in_use:
                    continue
                if time.time() - self._written_s(info) >= older_than_s:
                    self.remove(info.base_name)
                    removed.append(info.base_name)
        except OSError as error:
            logger.warning("old checkpoints in %s are left for later: %s", self._location, error)
        return removed

    def _written_s(self, folder: Any) -> float:
        """Return when a run last began or ended a batch; file systems without folders say 0."""
        times = [folder.mtime_ns or 0]
        for name in ("commits", "offsets"):
            inside = _listed(self._fs, f"{self._path}/{folder.base_name}/{name}")
            times += [info.mtime_ns or 0 for info in inside]
        return float(max(times)) / 1e9


class _ArrowFiles:
    """A checkpoint in a file system of pyarrow; see `CheckpointFiles`.

    Unlike Spark's own reader it needs no job for each look, and a query is looked at twice a
    second.
    """

    def __init__(self, filesystem: Any, path: str, location: str) -> None:
        self.location = location
        self._fs = filesystem
        self._path = path

    def batch_ids(self, folder: str) -> set[int]:
        """Return the numbers that are names of files."""
        names = [info.base_name for info in _listed(self._fs, f"{self._path}/{folder}")]
        return {int(name) for name in names if name.isascii() and name.isdecimal()}

    def texts(self, folder: str, names: Collection[str]) -> dict[str, str]:
        """Return the text of the files that are there."""
        found = {}
        for name in names:
            try:
                with self._fs.open_input_stream(f"{self._path}/{folder}/{name}") as file:
                    data: bytes = file.read()
            except FileNotFoundError:
                continue
            found[name] = data.decode()
        return found


def _listed(filesystem: Any, path: str) -> list[Any]:
    from pyarrow import fs  # noqa: PLC0415 - slow to load, and needed here only.

    found: list[Any] = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return found


def _offsets(batch: FinishedBatch) -> dict[TopicPartition, int]:
    """Return where a batch ended; if several sources read a partition, the one that is behind."""
    finished: dict[TopicPartition, int] = {}
    for text in batch.sources.values():
        for tp, offset in finished_offsets(text).items():
            finished[tp] = min(offset, finished.get(tp, offset))
    return finished


@contextmanager
def _answers(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise StoreUnavailable(f"{what} can't be read now: {error}") from error
