"""The server's end of a connection for fakes, which ask what they read by name."""

from protocol.connection import BadRequest, RequestEvent, ServerConnection
from protocol.messages import OffsetCommitRequest, PartitionCommit, TopicCommit


class NamedServerConnection(ServerConnection):
    """Gives the partitions of a commit their names back, which a server does without."""

    def receive(self, data: bytes) -> list[RequestEvent | BadRequest]:
        """Return what *data* completes."""
        return [_named(event) for event in super().receive(data)]


def _named(event: RequestEvent | BadRequest) -> RequestEvent | BadRequest:
    if isinstance(event, BadRequest) or not isinstance(event.request, OffsetCommitRequest):
        return event
    topics = tuple(
        TopicCommit(topic, tuple(PartitionCommit(*item) for item in partitions))
        for topic, partitions in event.request.topics
    )
    return event._replace(request=event.request._replace(topics=topics))
