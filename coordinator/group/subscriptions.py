"""What the members of a group subscribe to, and which changes of topics are news to it."""

# Theory of operation
# ===================
#
# A group's `topics_version` says up to which version of the registry its assignment is known to
# be good. It is set when a join phase completes, and lies in the group's record. Whenever the
# group becomes Stable, after a load, and when something changes while it is Stable, the newer
# changes are looked at: is one of a topic that the group subscribes to, or has assigned, or of
# one that a member's pattern matches and that the member didn't have on its list when it
# joined? Then the group rebalances; else its assignment is good up to now.
#
# A member finds the topics of its pattern before it joins, so what it knows may be older than
# the join phase. Hence `topics_version` is lowered below the first topic that such a member
# misses. A client that never takes a topic up would so rebalance for ever: a change that has
# made this group rebalance once (`topics_triggered`, soft) doesn't count any more.

from collections.abc import Iterable, Iterator
from typing import Final

from coordinator.group.core import Core
from coordinator.group.group import Group
from coordinator.group.registry import InvalidPattern, Registry

# Up to so many changes are looked at one by one, for each group that they are news to.
CHANGES_WALKED: Final = 100


def generation_opened(core: Core, group: Group) -> None:
    """Note what the members subscribe to, and how much of the registry they have seen."""
    group.subscribed = group.topics_wanted()
    registry = core.registry
    version = registry.version
    if version > group.topics_triggered:
        for pattern, known in _patterns(group):
            for name in _matching(registry, pattern):
                made_at = registry.topics[name].version
                if group.topics_triggered < made_at <= version and name not in known:
                    version = made_at - 1
    group.topics_version = version


def news(registry: Registry, group: Group) -> Iterator[str]:
    """Yield in words what concerns *group* and is newer than its assignment."""
    known_version = max(group.topics_version, group.topics_triggered)
    subscribed = group.subscribed or frozenset()
    patterns = {pattern for pattern, _ in _patterns(group)}
    owned: frozenset[str] | None = None  # Most changes are no deletions.
    for topic in _candidates(registry, group, patterns, known_version):
        change = registry.change_of(topic, known_version)
        if change is None:
            continue
        concerns = topic in subscribed
        if not concerns and change.after:
            concerns = any(registry.matches(pattern, topic) for pattern in patterns)
        elif not concerns:
            owned = _owned_topics(group) if owned is None else owned
            concerns = topic in owned
        if concerns:
            yield str(change)
    if registry.may_miss_deletions_since(known_version):
        for topic in sorted(subscribed):
            if topic not in registry.topics:
                yield f"topic {topic} is not registered, and topics were deleted"


def _candidates(
    registry: Registry, group: Group, patterns: set[str], known_version: int
) -> Iterable[str]:
    """Return the topics that may be news to *group*, in an order that can be repeated.

    A group that was loaded may be thousands of changes behind, and so may all the others be:
    then its own topics are looked up.
    """
    if registry.number_of_changes_since(known_version) <= CHANGES_WALKED:
        return dict.fromkeys(change.topic for change in registry.changes_since(known_version))
    topics = set(group.subscribed or ()) | _owned_topics(group)
    for pattern in patterns:
        topics.update(_matching(registry, pattern))
    return sorted(topics)


def _patterns(group: Group) -> list[tuple[str, frozenset[str]]]:
    """Return the different patterns of the members, each with the topics found for it."""
    found = {
        (member.topic_pattern, member.topics): None
        for member in group.members.values()
        if member.topic_pattern is not None
    }
    return [(pattern, frozenset(topics or ())) for pattern, topics in found]


def _matching(registry: Registry, pattern: str) -> list[str]:
    try:
        return registry.matching(pattern)
    except InvalidPattern:  # Of a log that another version of RE2 wrote.
        return []


def _owned_topics(group: Group) -> frozenset[str]:
    return frozenset(topic for member in group.members.values() for topic, _ in member.owned or ())
