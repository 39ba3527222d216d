"""Break the server on purpose: a simulation that doesn't notice proves nothing."""

from typing import Final

import pytest

from tests.planted.bugs import BUGS
from tests.sim.simulation import OWN_FAULTS, run_seed
from tests.sim.stage import fenced_ones_speak, play

# Several times as many as each of the bugs below takes.
SEEDS_MAX: Final = 200


@pytest.mark.parametrize(
    ("bug", "invariants"),
    [
        ("acknowledge_before_fsync", {"I1", "I7"}),
        ("generation_not_persisted", {"I7"}),
        ("generation_not_checked", {"I8"}),
        ("read_before_durable", {"I1", "I3", "I5", "I7"}),
        ("never_sync", {"start", "I1", "I7"}),
        ("bad_assignment", {"I6"}),
        ("member_is_everybodys", {"I13"}),
    ],
)
def test_the_simulation_notices(
    bug: str, invariants: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each planted bug breaks the promise that it should break, within a few seeds."""
    BUGS[bug].plant(monkeypatch)
    for seed in range(1, SEEDS_MAX + 1):
        broken = run_seed(seed).violations
        if any(v.invariant.startswith(tuple(invariants)) for v in broken):
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not notice")


@pytest.mark.parametrize("bug", ["static_not_fenced", "replacement_forgotten"])
def test_the_stage_notices(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fencing is one line in one place, and another line for the crash."""
    BUGS[bug].plant(monkeypatch)
    broken = play(1, fenced_ones_speak).violations
    assert any(v.invariant.startswith("I12") for v in broken)


@pytest.mark.parametrize(
    ("bug", "invariants"),
    [
        ("compaction_loses", {"I1", "I11"}),
        ("sources_early", {"start"}),
    ],
)
def test_the_simulation_notices_a_bad_compaction(
    bug: str, invariants: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it loses, it may lose in the work or in a crash during the swap."""
    BUGS[bug].plant(monkeypatch)
    faults = ("_crash_in_compaction", "_compact", "_kill")
    for seed in range(1, SEEDS_MAX + 1):
        broken = run_seed(seed, only=faults).violations
        if any(v.invariant.startswith(tuple(invariants)) for v in broken):
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not notice")


def test_it_notices_a_stall_that_evicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rule for late timers, a stall ends the sessions of members that are alive."""
    BUGS["stall_evicts"].plant(monkeypatch)
    assert any(run_seed(seed, only=OWN_FAULTS).evicted for seed in range(1, 21))
