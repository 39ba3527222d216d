"""What makes a rename or a new file survive a power failure."""

import os
from pathlib import Path


def fsync_folder(folder: Path) -> None:
    """Put the names in *folder* on disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
