"""Plan of leaders: the node that should lead each journal. Pure: every node computes it.

There is no controller, and safety doesn't depend on the plan: two nodes that see different states
may both claim, and the fence lets one through.
"""

from collections.abc import Collection, Mapping
from zlib import crc32


def plan(
    nodes: Collection[int],
    leaders: Mapping[int, int | None],
    moved: Collection[int] = frozenset(),
) -> dict[int, int]:
    """Return the planned leader of each journal; empty if there are no *nodes*.

    All nodes get the same number of journals, or one less. Present leaders keep their journals;
    journals without a leader, and those that a node has in excess, go to the node with the fewest.

    Args:
        nodes: Ready nodes.
        leaders: By journal its leader, None if no registered node leads it.
        moved: Journals that an operator has placed; a node with too many keeps these first.
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
    # The nodes that lead most now may lead one more, as this moves the fewest journals.
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
    """Return the number of nodes that claim *journal* before *node*: 0 for the planned one."""
    others = sorted(set(nodes) - {planned}, key=lambda other: _tie(other, journal))
    return [planned, *others].index(node)


def _tie(node: int, journal: int) -> int:
    return crc32(f"{node} {journal}".encode())
