"""Look up what the lock files pin in a database of vulnerabilities, by pip-audit.

Status 1 if something is known of a package, or if the database lacks some of them. Where there is
no database, as behind a mirror of the package index that has packages only, that is said in one
line, and nothing more can be done: status 0.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

LIMIT_S: Final = 120
_COMMAND: Final = (
    *(sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes"),
    *("--format", "json", "--progress-spinner", "off", "--timeout", "10"),
)
NO_DATABASE: Final = "audit: no database of vulnerabilities can be asked from here"


def verdict(report: dict[str, Any] | None) -> tuple[int, str]:
    """Return the exit status and what to say of pip-audit's report; None if it made none."""
    packages = [] if report is None else report["dependencies"]
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    if len(unknown) == len(packages):
        return 0, NO_DATABASE
    found = [
        f"{one['name']} {one['version']}: {known['id']}, mended in "
        f"{', '.join(known['fix_versions']) or 'no release yet'}"
        for one in packages
        for known in one.get("vulns", [])
    ]
    lines = [*found, *(f"{name}: not in the database" for name in unknown)]
    if lines:
        return 1, "\n".join(f"audit: {line}" for line in lines)
    return 0, f"audit: nothing is known of {len(packages)} packages"


def main() -> None:
    """Ask, and say it."""
    locks = [word for path in sys.argv[1:] for word in ("-r", str(Path(path)))]
    try:
        asked = subprocess.run(
            [*_COMMAND, *locks], capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
        report = json.loads(asked.stdout)
    except (subprocess.TimeoutExpired, ValueError):  # It ends with a traceback without a network.
        report = None
    status, said = verdict(report)
    print(said)
    sys.exit(status)


if __name__ == "__main__":
    main()
