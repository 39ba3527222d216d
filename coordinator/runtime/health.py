"""What is wrong with this node, part by part, for whoever asks how it is."""

from coordinator.runtime.changes import EmitEvent


class Health:
    """The node's known problems. A part without one is well.

    Attributes:
        problems: Part ("compaction", "storage") -> what is wrong with it, for the operator.
    """

    def __init__(self, emit_event: EmitEvent) -> None:
        self._emit_event = emit_event
        self.problems: dict[str, str] = {}

    def report(self, part: str, problem: str | None) -> None:
        """Note how *part* is; None is well. What changes is told as an event, once."""
        if self.problems.get(part) == problem:
            return
        if problem is None:
            del self.problems[part]
            self._emit_event("health.recovered", {"part": part})
        else:
            self.problems[part] = problem
            self._emit_event("health.problem", {"part": part, "problem": problem})
