"""What isn't replayed is kept: files and bytes that are put into the folder's `aside/`."""

from collections.abc import Iterable
from typing import Final

from coordinator.log.directory import Directory
from coordinator.log.mark import MARK_NAME
from coordinator.log.state_files import (
    CLEAN_NAME,
    MANIFEST_NAME,
    META_NAME,
    TEMPORARY_SUFFIX,
)

ASIDE: Final = "aside"
LOCK_NAME: Final = "lock"
STATE_NAMES: Final = frozenset({LOCK_NAME, META_NAME, MANIFEST_NAME, CLEAN_NAME, MARK_NAME})


def move_aside(
    directory: Directory,
    names: Iterable[str],
    listed: frozenset[str],
    dispensable: frozenset[str] = frozenset(),
) -> list[tuple[str, str]]:
    """Move what of *names* isn't *listed* in the manifest; return old and new names.

    What was only being written, or is *dispensable*, is removed; hidden files are left alone.
    """
    moved = []
    for name in names:
        if name in listed or name in STATE_NAMES or name.startswith("."):
            continue
        if name.endswith(TEMPORARY_SUFFIX) or name in dispensable:
            directory.remove(name)
            continue
        target = _free_name(directory, name)
        directory.rename(name, target)
        moved.append((name, target))
    if moved:
        directory.sync(ASIDE)
    if moved or dispensable:
        # Before a manifest is written that no longer knows the dispensable ones.
        directory.sync()
    return moved


def save(directory: Directory, name: str, content: bytes) -> str:
    """Write *content* to a new file in `aside/`, durably; return its name."""
    target = _free_name(directory, name)
    file = directory.create(target)
    try:
        file.append(content)
        file.sync()
    finally:
        file.close()
    directory.sync(ASIDE)
    directory.sync()
    return target


def _free_name(directory: Directory, name: str) -> str:
    target = f"{ASIDE}/{name}"
    number = 1
    while directory.exists(target):
        number += 1
        target = f"{ASIDE}/{name}.{number}"
    return target
