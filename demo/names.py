"""What the parts of the demo have in common: names, numbers and folders."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

GROUP: Final = "flight-delays"
TOPIC: Final = "flights"
NUM_PARTITIONS: Final = 6
FLIGHTS: Final = 336_776


class Folders:
    """Where a run of the demo keeps what.

    Args:
        home: the folder of all of it; `sdist` in it survives a run, `run` doesn't.

    """

    def __init__(self, home: Path) -> None:
        self.sdist = home / "sdist"
        self.run = home / "run"
        self.csv = self.run / "flights.csv"
        self.log = self.run / "log"
        self.coordinator = self.run / "coordinator"
        self.zookeeper = self.run / "zookeeper"
        self.checkpoints = self.run / "checkpoints"
        self.table = self.run / "table"
        self.logs = self.run / "logs"
        self.picture = self.run / "lag.png"
