"""Bytes that look for new paths through the codec: `python -m tests.fuzz.guided`.

Atheris watches which branches an input takes, and changes those that took new ones. What is read
must be read whole or refused, and what was read is the same when it is written and read again.
It needs the package atheris, which is not among those of the tests. Options are libFuzzer's, such
as ``-max_total_time=600``; without any it ends after ten minutes.
"""

import sys
from typing import Final

import atheris

with atheris.instrument_imports(include=["protocol"]):
    from protocol.codec import REQUEST_CODECS, Invalid, Unreadable
    from protocol.connection import FrameTooLarge, RequestEvent, ServerConnection
    from protocol.consumer import decode_assignment, decode_subscription
    from protocol.messages import APIS, ApiKey, Request

_DEFAULT: Final = "-max_total_time=600"
_WHERE: Final = [(key, api.max_version) for key, api in APIS.items()]


def look(data: bytes) -> None:
    """Read *data* as what a connection brings, and as the body of one request."""
    try:
        events = ServerConnection(RequestEvent).receive(data)
    except FrameTooLarge:
        events = []
    for event in events:
        if isinstance(event, RequestEvent):
            dialect = event.dialect
            _read_again((dialect.api_key, dialect.api_version), event.request)
    if data:
        where = _WHERE[data[0] % len(_WHERE)]
        try:
            request = REQUEST_CODECS[where].decode(data[1:])
        except (Invalid, Unreadable):
            return
        _read_again(where, request)
    decode_assignment(data)
    decode_subscription(data)


def _read_again(where: tuple[ApiKey, int], request: Request) -> None:
    codec = REQUEST_CODECS[where]
    again = codec.decode(codec.encode(request))
    assert again == request, f"{request} became {again}"


def main() -> None:
    """Run until a fault is found, or the time is over."""
    options = sys.argv if len(sys.argv) > 1 else [*sys.argv, _DEFAULT]
    atheris.Setup(options, look)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
