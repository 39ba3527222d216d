"""Where the daemon's time goes."""

import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest

from bench.hot_spots import table
from bench.sampled import INTERVAL_S, Sampler, Switch, cpu_of_threads, name_of


def frame_of() -> FrameType:
    """The frame of a function that is known."""
    frame = sys._getframe()
    assert frame is not None
    return frame


def test_a_function_counts_once_for_each_look_even_if_it_calls_itself() -> None:
    """Else recursion would take more than all of the time."""
    sampler = Sampler()

    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        else:
            sampler.note(sys._getframe())

    deep(3)
    sampler.note(frame_of())
    profile = sampler.profile({"MainThread": 1.0})
    (inner,) = [name for name in profile.total if name.endswith("deep")]
    assert profile.samples == 2
    assert (profile.own[inner], profile.total[inner]) == (1, 1)
    assert sum(profile.own.values()) == 2


def test_names_hold_no_folder_of_this_machine() -> None:
    """A profile is something to be shown."""
    assert name_of(frame_of()) == "bench/test_hot_spots.py:frame_of"


def test_the_second_signal_writes_what_was_counted_since_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the interval timer runs between the two only."""
    timers: list[tuple[float, ...]] = []
    monkeypatch.setattr(signal, "setitimer", lambda _which, *given: timers.append(given))
    switch = Switch(tmp_path / "profile.json")
    switch.note(0, frame_of())
    switch.turn(0, None)
    switch.note(0, frame_of())
    switch.turn(0, None)
    assert timers == [(INTERVAL_S, INTERVAL_S), (0,)]
    assert '"samples": 1' in (tmp_path / "profile.json").read_text(encoding="utf-8")


def test_every_thread_has_its_time() -> None:
    """The disk's thread has a share of the same core."""
    assert "MainThread" in cpu_of_threads()


def test_the_tables_leave_out_what_is_always_there_and_sort_the_rest() -> None:
    """What starts the program is in all samples and says nothing."""
    profile = {
        "samples": 4,
        "own": {"a": 1, "b": 3},
        "total": {"main": 4, "a": 1, "b": 3},
        "threads_s": {"MainThread": 1.0, "disk": 2.0},
    }
    threads, own, total = table(profile, {"requests": 1000}, lines=5)
    assert threads[1:] == [("disk", "2.00", "2000.0"), ("MainThread", "1.00", "1000.0")]
    assert own[1:] == [("b", "75.0 %"), ("a", "25.0 %")]
    assert total[1:] == own[1:]


@pytest.mark.integration
def test_a_real_daemon_is_profiled_under_load(tmp_path: Path) -> None:
    """From start to stop."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench.hot_spots", "commit_8x64"),
            *("--seconds=0.5", f"--work-dir={tmp_path}"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "us of CPU each" in done.stdout
    assert "dispatch" in done.stdout
