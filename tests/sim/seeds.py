"""Many seeds, as tests run them: some at a time, and whichever breaks something is named."""

import os
from collections.abc import Callable
from typing import Final

import pytest

from tests.sim.simulation import Result

FIRST_SEED: Final = int(os.environ.get("SIM_FIRST_SEED", "1"))


def in_chunks(count: int, size: int) -> pytest.MarkDecorator:
    """Run a test with *count* seeds from the first one on, *size* of them at a time."""
    end = FIRST_SEED + count
    chunks = [range(at, min(at + size, end)) for at in range(FIRST_SEED, end, size)]
    return pytest.mark.parametrize("seeds", chunks, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")


def keep_every_promise(run_seed: Callable[[int], Result], seeds: range) -> None:
    """Run *seeds*, and fail if one of them broke a promise, or if there was nothing to keep."""
    acknowledged = 0
    for seed in seeds:
        result = run_seed(seed)
        assert not result.violations, _report(result)
        acknowledged += result.acknowledged
    assert acknowledged, "nothing was ever acknowledged, so nothing was checked"


def _report(result: Result) -> str:
    """Return what was broken, and how to see it again."""
    broken = "\n".join(f"  {v.invariant}: {v.text}" for v in result.violations)
    alone = f"SIM_FIRST_SEED={result.seed} SIM_SEEDS=1 CLUSTER_SEEDS=1"
    replay = f"{alone} python -m pytest tests/sim -k every_promise"
    return f"seed {result.seed} broke\n{broken}\nreplay: {replay}"
