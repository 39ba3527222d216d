"""The manifest of a folder: which files count, and up to where each partition is in them.

::

    <folder>/_log/<version>.json            one change, never changed again
    <folder>/_log/<version>.snapshot.json   everything up to that version
    <folder>/_log/_last_snapshot            the version of a snapshot, a hint

Versions are 20 digits and count from 1. A change is made under a name that readers ignore and
appears, whole, by a hard link to its name: of all who try the same version exactly one succeeds.
So files and positions change together or not at all, and each change was decided on the
version right before it.

A change that a snapshot covers may be emptied to save space, but its name stays: a writer that
slept for a month must not find its version free.
"""

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from client.spark.disk import fsync_path
from client.spark.sinks.ranges import PartitionKey, SinkError, Stored

LOG_FOLDER: Final = "_log"
FORMAT_VERSION: Final = 1
SNAPSHOT_EVERY: Final = 50

_LAST_SNAPSHOT: Final = "_last_snapshot"
_SNAPSHOT: Final = ".snapshot.json"


class DataFile(NamedTuple):
    """One Parquet file: how many rows and bytes it has."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one version changes."""

    kind: str
    at_ms: int
    add: Mapping[str, DataFile] = field(default_factory=dict)
    remove: tuple[str, ...] = ()
    purge: tuple[str, ...] = ()  # Files removed before, which are deleted now.
    positions: Mapping[PartitionKey, Stored | None] = field(default_factory=dict)
    schema: str | None = None  # Spark's JSON, where it is new.
    partition_by: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What all changes up to *version* come to."""

    version: int = 0
    at_ms: int = 0
    schema: str | None = None
    partition_by: tuple[str, ...] = ()
    files: Mapping[str, DataFile] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)  # When, in ms.
    positions: Mapping[PartitionKey, Stored] = field(default_factory=dict)

    def then(self, change: Change) -> "State":
        """Return the state after *change*."""
        files = {**self.files, **change.add}
        removed = dict(self.removed)
        for name in change.remove:
            del files[name]
            removed[name] = change.at_ms
        for name in change.purge:
            removed.pop(name, None)
        positions = dict(self.positions)
        for key, stored in change.positions.items():
            if stored is None:
                positions.pop(key, None)
            else:
                positions[key] = stored
        return replace(
            self,
            version=self.version + 1,
            at_ms=change.at_ms,
            schema=self.schema if change.schema is None else change.schema,
            partition_by=(
                self.partition_by if change.partition_by is None else change.partition_by
            ),
            files=files,
            removed=removed,
            positions=positions,
        )


class Manifest:
    """The manifest of *folder*.

    Args:
        folder: the folder, on a file system with hard links that all drivers see.
        fsync: whether a change is on disk before it counts.

    """

    def __init__(self, folder: Path, *, fsync: bool = True) -> None:
        self.folder = folder
        self._log = folder / LOG_FOLDER
        self._fsync = fsync

    def load(self, version: int | None = None) -> State:
        """Return the state at *version*, or the newest one; version 0 where there is nothing.

        Raises:
            SinkError: the version isn't there (any more), or was written by a newer release.

        """
        if version is not None:
            return self._load_at(version)
        return self.refresh(self._snapshot(self._hint()) or State())

    def refresh(self, state: State) -> State:
        """Return the newest state, given one that was loaded before."""
        while (change := self._change(state.version + 1)) is not None:
            if change == b"":  # Emptied, so a snapshot has it.
                state = self._newer_snapshot(state.version)
            else:
                state = state.then(decode_change(change))
        return state

    def commit(self, state: State, change: Change) -> State | None:
        """Make *change* the version after *state*; None says that somebody was faster.

        Raises:
            SinkError: the file system has no hard links.

        """
        self._log.mkdir(parents=True, exist_ok=True)
        version = state.version + 1
        building = self._log / f".{version}.{uuid.uuid4().hex}.building"
        self._write(building, encode(change))
        try:
            os.link(building, self._path(version))
        except FileExistsError:
            # Over a network the answer to a link that was made may be lost; the same request,
            # sent again, then gets this one.
            if not building.samefile(self._path(version)):
                return None
        except OSError as error:
            raise SinkError(
                f"{self._log} is on a file system without hard links ({error}), which the "
                "manifest needs; keep the folder on a local or NFS-like file system"
            ) from error
        finally:
            building.unlink()
        self._fsync_log()
        after = state.then(change)
        if version % SNAPSHOT_EVERY == 0:
            self.write_snapshot(after)
        return after

    def write_snapshot(self, state: State) -> None:
        """Write everything up to *state* in one file, to be found by whoever loads next."""
        text = encode(state)
        for name, content in (
            (f"{state.version:020d}{_SNAPSHOT}", text),
            (_LAST_SNAPSHOT, str(state.version).encode()),
        ):
            building = self._log / f".{name}.{uuid.uuid4().hex}.building"
            self._write(building, content)
            building.replace(self._log / name)
        self._fsync_log()

    def change(self, version: int) -> Change | None:
        """Return one change, or None where there is none (any more)."""
        text = self._change(version)
        return decode_change(text) if text else None

    def empty_before(self, version: int, before_s: float) -> None:
        """Free the space of changes older than *before_s* that the snapshot of *version* covers."""
        for at in range(version - 1, 0, -1):
            path = self._path(at)
            stat = path.stat()
            if stat.st_mtime >= before_s and stat.st_size:
                continue
            if stat.st_size == 0:
                break  # Those before were emptied earlier.
            os.truncate(path, 0)
            (self._log / f"{at:020d}{_SNAPSHOT}").unlink(missing_ok=True)

    def _load_at(self, version: int) -> State:
        state = State()
        for at in self._snapshot_versions():
            if at <= version and (found := self._snapshot(at)) is not None:
                state = found
                break
        while state.version < version:
            change = self._change(state.version + 1)
            if not change:
                raise SinkError(
                    f"{self.folder} has no version {version}"
                    + (" any more: it was vacuumed" if change == b"" else "")
                )
            state = state.then(decode_change(change))
        return state

    def _newer_snapshot(self, version: int) -> State:
        # The hint may be older: of a driver that slept between its change and its snapshot.
        for at in (self._hint(), *self._snapshot_versions()):
            if at > version and (snapshot := self._snapshot(at)) is not None:
                return snapshot
        raise SinkError(
            f"{self._log} is damaged: change {version + 1} is empty, and no snapshot covers it"
        )

    def _snapshot_versions(self) -> list[int]:
        """Return the versions of the snapshots, the newest first."""
        found = (path.name.removesuffix(_SNAPSHOT) for path in self._log.glob(f"*{_SNAPSHOT}"))
        return sorted((int(name) for name in found if name.isdecimal()), reverse=True)

    def _hint(self) -> int:
        try:
            return int((self._log / _LAST_SNAPSHOT).read_text())
        except FileNotFoundError:
            return 0

    def _snapshot(self, version: int) -> State | None:
        try:
            return decode_state((self._log / f"{version:020d}{_SNAPSHOT}").read_bytes())
        except FileNotFoundError:
            return None

    def _change(self, version: int) -> bytes | None:
        try:
            return self._path(version).read_bytes()
        except FileNotFoundError:
            return None

    def _path(self, version: int) -> Path:
        return self._log / f"{version:020d}.json"

    def _write(self, path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            if self._fsync:
                os.fsync(file.fileno())

    def _fsync_log(self) -> None:
        if self._fsync:
            fsync_path(self._log)


def encode(value: Change | State) -> bytes:
    """Return a change or a state as text."""
    named = {one.name: getattr(value, one.name) for one in fields(value)}
    named["positions"] = [[*key, stored] for key, stored in sorted(value.positions.items())]
    return json.dumps({"v": FORMAT_VERSION, **named}, separators=(",", ":")).encode() + b"\n"


def decode_change(text: bytes) -> Change:
    """Read a change.

    Raises:
        SinkError: a newer release wrote it.

    """
    given = _checked(json.loads(text))
    by = given["partition_by"]
    return Change(
        kind=given["kind"],
        at_ms=given["at_ms"],
        add={name: DataFile(*file) for name, file in given["add"].items()},
        remove=tuple(given["remove"]),
        purge=tuple(given["purge"]),
        positions=_read_positions(given["positions"]),
        schema=given["schema"],
        partition_by=None if by is None else tuple(by),
    )


def decode_state(text: bytes) -> State:
    """Read a state.

    Raises:
        SinkError: a newer release wrote it.

    """
    given = _checked(json.loads(text))
    positions = _read_positions(given["positions"])
    return State(
        version=given["version"],
        at_ms=given["at_ms"],
        schema=given["schema"],
        partition_by=tuple(given["partition_by"]),
        files={name: DataFile(*file) for name, file in given["files"].items()},
        removed=given["removed"],
        positions={key: stored for key, stored in positions.items() if stored is not None},
    )


def _read_positions(listed: list[list[Any]]) -> dict[PartitionKey, Stored | None]:
    return {
        PartitionKey(group, topic, partition): None if stored is None else Stored(*stored)
        for group, topic, partition, stored in listed
    }


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    if given.get("v") != FORMAT_VERSION:
        raise SinkError(
            f"the manifest has format version {given.get('v')!r}, this release reads version "
            f"{FORMAT_VERSION}: use the release that wrote it"
        )
    return given
