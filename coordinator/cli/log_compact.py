"""What ``log compact`` does."""

import time
from pathlib import Path

import click

from coordinator.log.compact_folder import compact_stopped
from coordinator.log.errors import LogIncompatible, LogRefused
from coordinator.log.journal import Journal
from coordinator.log.os_directory import OsDirectory
from coordinator.log.os_read_only import ReadOnlyDirectory
from coordinator.log.state_files import META_NAME, decode_meta


def compact_folder(data_dir: Path, *, segment_bytes: int, delete_retention_ms: int) -> None:
    """Compact the folder's whole log and close it in good order.

    Raises:
        LogRefused: The daemon would not start on it either.
        LogFailed: The disk failed.
        OSError: Likewise.
    """
    looked_at = ReadOnlyDirectory(data_dir)
    if not looked_at.exists(META_NAME):
        raise LogIncompatible(f"{data_dir} is no data folder: it has no file {META_NAME!r}")
    meta = decode_meta(looked_at.read(META_NAME))
    journal = Journal(
        OsDirectory(data_dir),
        num_partitions=meta.num_partitions,
        segment_bytes=segment_bytes,
        node_id=meta.node_id,
        new_cluster_id=_no_new_folder,
    )
    drop_before_ms = time.time_ns() // 1_000_000 - delete_retention_ms
    try:
        saved = compact_stopped(journal, segment_bytes=segment_bytes, drop_before_ms=drop_before_ms)
    except BaseException:
        journal.close(clean=False)
        raise
    journal.close(clean=True)
    click.echo(
        f"The log had {saved.before_bytes} bytes and has {saved.after_bytes}, "
        f"with {saved.live_entries} entries."
    )


def _no_new_folder() -> str:
    raise LogRefused("the folder was emptied meanwhile")
