"""Each fault has its evidence: a test of the core, and one with real Spark."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.fault_support import FAULTS

TESTS = Path(__file__).parent.parent

# How many of the tests with real Spark may run each time; the others are for the night.
AT_DAY_MAX = 6


def shown(folder: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (fault, test, whether it runs at night only) of the tests in a folder."""
    for file in (TESTS / folder).glob("test_*.py"):
        for node in ast.parse(file.read_text()).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            nightly = any("nightly" in ast.unparse(mark) for mark in node.decorator_list)
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "shows":
                    for fault in mark.args:
                        yield ast.literal_eval(fault), node.name, nightly


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("folder", ["spark", "integration"])
def test_each_fault_is_shown(fault: str, folder: str) -> None:
    """A row of the table without a test is a promise without evidence."""
    assert [test for shown_fault, test, _ in shown(folder) if shown_fault == fault]


def test_no_core_test_of_a_fault_waits_for_the_night() -> None:
    """They take milliseconds."""
    assert not [test for _, test, nightly in shown("spark") if nightly]


def test_few_tests_with_real_spark_run_each_time() -> None:
    """They share a budget of minutes with everything else."""
    by_day = {test for _, test, nightly in shown("integration") if not nightly}

    assert 0 < len(by_day) <= AT_DAY_MAX
