"""The whole run as one picture: lag above, who owned which partition below, and what happened."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from demo.view import Snapshot

DRIVER_COLOURS: Final = ("#2f6f9f", "#c2762b", "#4d8b57", "#8b5a9c")
INK: Final = "#333333"
FAINT: Final = "#999999"


class Mark(NamedTuple):
    """Something that happened, seconds after the beginning."""

    at_s: float
    text: str


class Span(NamedTuple):
    """A driver's time with a partition."""

    partition: int
    driver: str
    begin_s: float
    end_s: float


class History:
    """What the demo saw of the group, and what it did to it."""

    def __init__(self) -> None:
        self.looks: list[tuple[float, Snapshot]] = []
        self.marks: list[Mark] = []

    def look(self, at_s: float, snapshot: Snapshot) -> None:
        """Keep one look at the group."""
        self.looks.append((at_s, snapshot))

    def mark(self, at_s: float, text: str) -> None:
        """Keep what happened."""
        self.marks.append(Mark(at_s, text))


def spans(looks: Sequence[tuple[float, Snapshot]]) -> list[Span]:
    """Return who had which partition from when to when, in the order in which it ended."""
    done: list[Span] = []
    current: dict[int, Span] = {}
    for at_s, snapshot in looks:
        for one in snapshot.partitions:
            span = current.get(one.partition)
            if span is not None:
                span = current[one.partition] = span._replace(end_s=at_s)
                if span.driver != one.owner:
                    done.append(current.pop(one.partition))
                    span = None
            if span is None and one.owner:
                current[one.partition] = Span(one.partition, one.owner, at_s, at_s)
    return [*done, *current.values()]


def draw(history: History, path: Path) -> None:
    """Write the picture, a PNG.

    Raises:
        ImportError: matplotlib isn't installed.

    """
    # Only who has it draws: it takes half a second to import.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - as said.
    from matplotlib.figure import Figure  # noqa: PLC0415 - as said.

    figure = Figure(figsize=(11, 6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    times = [at_s for at_s, _ in history.looks]
    lags = [snapshot.lag for _, snapshot in history.looks]
    above.fill_between(times, lags, color=INK, alpha=0.12, linewidth=0)
    above.plot(times, lags, color=INK, linewidth=1.4)
    above.set_ylabel("lag, flights")
    above.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    above.set_ylim(0, 1.35 * max(lags, default=1) + 1)

    found = spans(history.looks)
    drivers = sorted({span.driver for span in found})
    colours = dict(zip(drivers, DRIVER_COLOURS, strict=False))
    for driver in drivers:
        mine = [span for span in found if span.driver == driver]
        for number, span in enumerate(mine):
            below.broken_barh(
                [(span.begin_s, span.end_s - span.begin_s)],
                (span.partition - 0.38, 0.76),
                color=colours.get(driver, FAINT),
                linewidth=0,
                label=driver if number == 0 else None,
            )
    below.set_ylabel("partition")
    below.set_xlabel("seconds")
    below.invert_yaxis()
    if drivers:
        below.legend(ncols=len(drivers), frameon=False, loc="upper left", bbox_to_anchor=(0, 1.2))

    top = above.get_ylim()[1]
    for number, mark in enumerate(history.marks):
        for panel in (above, below):
            panel.axvline(mark.at_s, color=FAINT, linewidth=0.8, linestyle=(0, (3, 3)))
        # In four lines, as some come close to each other.
        height = top * (0.98 - 0.065 * (number % 4))
        above.text(mark.at_s, height, f" {mark.text}", color=INK, fontsize=9, va="top")
    for panel in (above, below):
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(FAINT)
        panel.tick_params(colors=INK)
    above.set_title("Lag of the group, and who owned its partitions", loc="left", color=INK)
    figure.savefig(path)
