"""``python -m tests.soak``: run, and say what came of it; status 1 if a promise was broken."""

from tests.soak.report import command
from tests.soak.run import soak

if __name__ == "__main__":
    command("tests.soak", soak, minutes=30)
