"""Send hostile frames, as many as told: `python -m tests.fuzz --frames 10000000`.

Episodes in memory are spread over processes, each with a seed of its own; a tenth of all goes to
real daemons, one that asks who clients are among them. A failure names the seed that repeats it.
"""

import argparse
import multiprocessing
import os
import sys
import time
from typing import Final

from tests.fuzz.episode import CALL_S, FRAMES, STALL_MAX_S, run_episode
from tests.fuzz.frames import Broken
from tests.fuzz.real import run_real

REAL_SHARE: Final = 0.1
MEMORY_MAX_BYTES: Final = 128 * 1024 * 1024


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=10_000_000, help="how many in all")
    parser.add_argument("--episodes", type=int, help="how many episodes in memory instead, alone")
    parser.add_argument("--seed", type=int, default=1, help="of the first episode")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    real_frames = 0 if options.episodes else int(options.frames * REAL_SHARE)
    episodes = options.episodes or -(-(options.frames - real_frames) // FRAMES)
    seeds = range(options.seed, options.seed + episodes)
    try:
        _in_memory(seeds, options.processes)
        if real_frames:
            for is_guarded in (False, True):
                _real(options.seed, real_frames // 2, is_guarded=is_guarded)
    except Broken as exc:
        sys.exit(f"BROKEN: {exc}")


def _in_memory(seeds: range, processes: int) -> None:
    began_s = time.monotonic()
    frames = answers = commits = longest_step = 0
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=50) as pool:
        for done, report in enumerate(pool.imap_unordered(run_episode, seeds), 1):
            frames += report.frames
            answers += report.answers
            commits += report.commits
            longest_step = max(longest_step, report.longest_step)
            if done % 100 == 0 or done == len(seeds):
                took_s = time.monotonic() - began_s
                print(  # noqa: T201 - the result
                    f"{done} episodes, seeds {seeds[0]} to {seeds[-1]}: {frames:,} frames, "
                    f"{answers:,} answers, {commits:,} commits, longest step "
                    f"{longest_step * CALL_S * 1000:.1f} ms of calls, {took_s:.0f} s",
                    flush=True,
                )
    if longest_step * CALL_S >= STALL_MAX_S:
        raise Broken(f"a step of {longest_step} calls")


def _real(seed: int, frames: int, *, is_guarded: bool) -> None:
    found = run_real(seed, frames, is_guarded=is_guarded)
    extra_bytes = found.most.memory_bytes - found.before.memory_bytes
    which = "a daemon that asks who clients are" if is_guarded else "a daemon"
    print(  # noqa: T201 - the result
        f"{which}, seed {seed}: {found.frames:,} frames, {found.log_ins:,} log-ins; memory + "
        f"{extra_bytes / 2**20:.0f} MiB at most, {found.before} before, {found.after} after; "
        f"somebody else waited p50 {found.p50_s * 1000:.1f}, p99 {found.p99_s * 1000:.1f}, at most "
        f"{found.waited_s[-1] * 1000:.1f} ms, {len(found.waited_s):,} times"
    )
    if extra_bytes >= MEMORY_MAX_BYTES:
        raise Broken(f"{extra_bytes:,} bytes more memory")
    if found.after.descriptors > found.before.descriptors + 2:
        raise Broken(f"{found.after.descriptors} descriptors")
    if found.p99_s >= STALL_MAX_S:
        raise Broken("others wait too long")


if __name__ == "__main__":
    main()
