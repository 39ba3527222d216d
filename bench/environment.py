"""What a result depends on besides the code. No paths, no host names."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

_LIBRARIES: Final = ("trio", "msgpack", "structlog", "click")


def environment(data_dir: Path) -> dict[str, str]:
    """Describe machine, disk, versions and commit, as texts by name."""
    filesystem, device = _filesystem(data_dir)
    found = {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} core(s)",
        "kernel": f"{platform.system()} {platform.release()}",
        "filesystem": filesystem,
        "disk": _disk(data_dir) or device,
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "commit": _commit(),
        "load before": _load_average(),
    }
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "not installed"
    return found


def is_memory(data_dir: Path) -> bool:
    """Return whether the folder is in memory, where fsync costs nothing and proves nothing."""
    return _filesystem(data_dir)[0] in {"tmpfs", "ramfs"}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _filesystem(folder: Path) -> tuple[str, str]:
    """Return type and device of the mount that the folder is on."""
    best = ("", "unknown", "unknown")
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        mounts = []
    absolute = folder.resolve()
    for mount in mounts:
        device, point, kind = mount.split()[:3]
        if len(point) >= len(best[0]) and absolute.is_relative_to(point):
            best = (point, kind, device)
    # The device's last name only, such as vda; a network share's server is nobody's business.
    return best[1], best[2].rpartition("/")[2]


def _disk(folder: Path) -> str:
    """Return what the kernel says about the disk, "" if nothing."""
    try:
        device = folder.stat().st_dev
        block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
        if not (block / "queue").is_dir():  # A partition: its disk is the folder above.
            block = block.parent
        rotational = (block / "queue/rotational").read_text(encoding="ascii").strip()
        cache = (block / "queue/write_cache").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    kind = "rotating" if rotational == "1" else "not rotating"
    return f"{block.name}, {kind}, {cache} cache"


def _commit() -> str:
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head} with uncommitted changes" if changed else head


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        capture_output=True,
        check=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    return done.stdout.strip()


def _load_average() -> str:
    try:
        return f"{os.getloadavg()[0]:.2f}"
    except OSError:
        return "unknown"
