"""Which node is to lead which journal. Pure: every node works it out from what it sees.

There is no controller, and nothing is safe because of this: two nodes that see different things
may both claim, and the fence lets one through.
"""

from collections.abc import Collection, Mapping
from zlib import crc32


def plan(
    nodes: Collection[int],
    leaders: Mapping[int, int | None],
    moved: Collection[int] = frozenset(),
) -> dict[int, int]:
    """Return by journal the node that is to lead it; nothing if there is none that may.

    Everyone gets the same number, or one less. Leaders that are there keep what they have; what
    nobody leads, and what someone has too much of, goes to who has least.

    Args:
        nodes: Those that are ready.
        leaders: By journal who leads it, None if nobody who is there does.
        moved: Journals that lie where an operator wants them: who has too much keeps these first.
    """
    if not nodes:
        return {}
    planned: dict[int, int] = {}
    had: dict[int, list[int]] = {node: [] for node in nodes}
    for journal in sorted(leaders, key=lambda journal: (journal not in moved, journal)):
        leader = leaders[journal]
        if leader in had:
            had[leader].append(journal)
    least, larger = divmod(len(leaders), len(nodes))
    # Those who lead most now are those who may lead one more.
    for node in sorted(nodes, key=lambda node: (-len(had[node]), node)):
        kept = least + (larger > 0 and len(had[node]) > least)
        larger -= kept > least
        planned |= dict.fromkeys(had[node][:kept], node)
    loads = dict.fromkeys(nodes, 0)
    for node in planned.values():
        loads[node] += 1
    for journal in sorted(leaders.keys() - planned.keys()):
        node = min(nodes, key=lambda node: (loads[node], _tie(node, journal)))
        planned[journal] = node
        loads[node] += 1
    return planned


def rank(node: int, journal: int, nodes: Collection[int], planned: int) -> int:
    """Return how many others come before *node* to claim *journal*: 0 for the planned one."""
    others = sorted(set(nodes) - {planned}, key=lambda other: _tie(other, journal))
    return [planned, *others].index(node)


def _tie(node: int, journal: int) -> int:
    return crc32(f"{node} {journal}".encode())
