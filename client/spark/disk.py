"""What makes a rename or a new file survive a power failure."""

import os
from pathlib import Path


def fsync_path(path: Path) -> None:
    """Put a file, or the names in a folder, on disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
