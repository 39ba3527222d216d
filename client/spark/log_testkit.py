"""Checks for a `PartitionLog` of your own: all that the coordinated source relies on.

Say how to fill your log in a `LogSubject`, and let pytest (or anything else) run the checks::

    from client.spark.log_testkit import CHECKS, Check, LogSubject

    class Orders(LogSubject):
        def options(self): return {"log": "mypkg.logs:OrdersLog", "log.url": self.url}
        def append(self, partition, count): ...

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_the_orders_log_keeps_the_rules(check: Check, tmp_path):
        check(Orders(tmp_path))

Each check takes a fresh subject. A check whose operation the subject doesn't have is skipped. A
`LogCheckFailed` says which rule is broken, and by what call.
"""

from collections.abc import Callable
from typing import Final, NamedTuple
from unittest import SkipTest

from client.spark import log_checks
from client.spark.log_subject import LogCheckFailed, LogSubject

__all__ = ["CHECKS", "Check", "LogCheckFailed", "LogSubject", "check_log"]


class Check(NamedTuple):
    """One rule, callable with a fresh subject.

    Raises when called:
        LogCheckFailed: the log breaks the rule.
        SkipTest: the subject can't do what the check needs.

    """

    name: str
    rule: str
    function: Callable[[LogSubject], None]

    def __call__(self, subject: LogSubject) -> None:
        """Check a log."""
        try:
            self.function(subject)
        except NotImplementedError as error:
            raise SkipTest(f"{type(subject).__name__} can't do what {self.name} needs") from error
        except LogCheckFailed as error:
            raise LogCheckFailed(f"{self.name}: {error}\nThe rule: {self.rule}") from None
        except Exception as error:
            error.add_note(f"In the check {self.name}. The rule: {self.rule}")
            raise

    def __str__(self) -> str:
        return self.name


def check_log(make_subject: Callable[[], LogSubject]) -> None:
    """Run all checks, each with a subject of its own, without a test runner.

    Raises:
        LogCheckFailed: the first rule that is broken.

    """
    for check in CHECKS:
        try:
            check(make_subject())
        except SkipTest:
            continue


CHECKS: Final = tuple(
    Check(function.__name__, function.__doc__ or "", function)
    for function in (
        log_checks.partitions,
        log_checks.growth,
        log_checks.unknown,
        log_checks.schema,
        log_checks.empty,
        log_checks.ends,
        log_checks.cuts,
        log_checks.again,
        log_checks.beyond,
        log_checks.deleted,
        log_checks.all_bounds,
        log_checks.while_appending,
        log_checks.executor,
        log_checks.times,
        log_checks.names,
    )
)
