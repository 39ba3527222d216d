"""HTTP goes at the pace that commits leave it."""

import trio

from coordinator.http.pace import CREDIT_S, REST, Pace


class Work:
    """Time that passes only where somebody works; trio's is another."""

    def __init__(self, credit_s: float = 0.0) -> None:
        self.done_s = 0.0
        self.asked = 0
        self.pace = Pace(lambda: self.asked, lambda: self.done_s, credit_s)

    async def piece(self, seconds: float = 0.001) -> None:
        """Work, and pause."""
        self.done_s += seconds
        await self.pace.pause()


async def test_nobody_rests_while_clients_ask_nothing(autojump_clock: object) -> None:
    """A scrape of a quiet daemon is as quick as it can be."""
    work = Work()
    began_s = trio.current_time()
    for _ in range(100):
        await work.piece()

    assert began_s == trio.current_time()


async def test_a_piece_is_followed_by_a_rest_while_clients_ask(autojump_clock: object) -> None:
    """A fifth of the loop is all that HTTP gets beside commits."""
    work = Work()
    began_s = trio.current_time()
    for _ in range(100):
        work.asked += 1
        await work.piece()

    assert abs(trio.current_time() - began_s - 100 * REST * 0.001) < 1e-9


async def test_who_has_saved_up_need_not_rest(autojump_clock: object) -> None:
    """A scrape now and then is quick; one after the other, they get a fifth of the loop."""
    work = Work(CREDIT_S)
    pieces = 2**10
    began_s = trio.current_time()
    for _ in range(pieces):
        work.asked += 1
        await work.piece(CREDIT_S / pieces)

    assert began_s == trio.current_time()

    for _ in range(100):
        work.asked += 1
        await work.piece()

    assert abs(trio.current_time() - began_s - 100 * REST * 0.001) < 1e-9

    await trio.sleep((1 + REST) * 0.6 * CREDIT_S)
    began_s = trio.current_time()
    for _ in range(pieces // 2):
        work.asked += 1
        await work.piece(CREDIT_S / pieces)

    assert began_s == trio.current_time()


async def test_small_pieces_rest_together(autojump_clock: object) -> None:
    """A rest shorter than the system's timers would be longer than it should."""
    work = Work()
    began_s = trio.current_time()
    rests = []
    for _ in range(99):
        work.asked += 1
        before_s = trio.current_time()
        await work.piece(2**-13)
        rests.append(trio.current_time() - before_s)

    assert 33 == sum(rest > 0 for rest in rests)
    assert abs(trio.current_time() - began_s - 99 * REST * 2**-13) < 1e-9


async def test_many_rest_as_long_as_one(autojump_clock: object) -> None:
    """Sixteen handlers together get what one gets."""
    work = Work()

    async def handler() -> None:
        for _ in range(10):
            work.asked += 1
            await work.piece()

    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(handler)

    assert abs(trio.current_time() - began_s - 160 * REST * 0.001) < 1e-9


async def test_between_two_pieces_everybody_else_has_a_turn(autojump_clock: object) -> None:
    """However many handlers there are, a request of a client waits for one piece."""
    work = Work()
    pieces = 0
    longest = 0

    async def handler() -> None:
        nonlocal pieces
        for _ in range(20):
            await work.piece()
            pieces += 1

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(handler)
        while pieces < 8 * 20:
            before = pieces
            await trio.lowlevel.checkpoint()
            longest = max(longest, pieces - before)

    assert longest <= 2  # Who looks may be the first of one pass, and the last of the next.


async def test_a_wait_for_something_else_is_no_work(autojump_clock: object) -> None:
    """Others used the processor meanwhile."""
    work = Work()
    work.done_s += 60
    work.asked += 1
    work.pace.begin()
    began_s = trio.current_time()
    await work.pace.pause()

    assert began_s == trio.current_time()
