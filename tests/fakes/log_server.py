"""A node that clients can connect to, with offsets in a log."""

from protocol import messages as m
from tests.fakes.offsets_log import OffsetsLog
from tests.fakes.scripted_server import ScriptedServer


class LogServer(ScriptedServer):
    """A node that keeps its offsets in a log."""

    def __init__(self, log: OffsetsLog) -> None:
        super().__init__()
        self.log = log

    def handle(self, request: m.Request) -> m.Response:
        """Answer what concerns the log from there."""
        if isinstance(
            request, m.DescribeNodeRequest | m.ScanOffsetsRequest | m.ReadOffsetChangesRequest
        ):
            answer: m.Response = self.log.answers[type(request)](request)
            return answer
        return super().handle(request)

    async def go_away(self) -> None:
        """Break all connections, and take no more."""
        self.unreachable = True
        for stream in self.streams:
            await stream.aclose()
