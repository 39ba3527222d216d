"""The long version must really be longer."""

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
COUNTING = """
import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, rule

counts = {"function": 0, "machine": 0}


@settings(max_examples=7, database=None)
@given(st.integers())
def test_a_function(number):
    counts["function"] += 1


class Machine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        counts["machine"] += 1

    @rule(number=st.integers())
    def step(self, number):
        pass


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=5, stateful_step_count=2, database=None)


def test_z_the_counts():
    print(f"COUNTED {counts['function']} {counts['machine']}")
"""


def test_the_factor_reaches_property_tests_and_state_machines(tmp_path: Path) -> None:
    """It relies on where Hypothesis keeps its settings; an update may move that."""
    (tmp_path / "test_counting.py").write_text(COUNTING, encoding="utf-8")
    conftest = ROOT / "tests" / "conftest.py"
    (tmp_path / "conftest.py").write_text(conftest.read_text(encoding="utf-8"), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_counting.py"],
        cwd=tmp_path,
        env={"EXAMPLES_FACTOR": "3", "PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert ran.returncode == 0, ran.stdout
    counted = next(line for line in ran.stdout.splitlines() if "COUNTED" in line)
    functions, machines = (int(number) for number in counted.partition("COUNTED ")[2].split())
    assert functions >= 3 * 7
    assert machines >= 3 * 5
