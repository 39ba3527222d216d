"""A command as a process of its own, over TLS and with a log-in."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme
from msgspec import structs

from protocol import messages as m
from tests.client.test_security import BY_SCRAM, MARKER, Certificates, authenticator

pytestmark = pytest.mark.integration

NOTHING = structs.replace(m.APIS[m.ApiKey.SUMMARIZE_GROUPS].example.response, groups=())


async def test_a_command_logs_in_over_tls_and_tells_what_is_wrong(tmp_path: Path) -> None:
    """By a file as Kafka's tools take it; nothing secret is among its arguments or its words."""
    certificates = Certificates(tmp_path, "localhost")
    server = certificates.server()
    server.authenticator = authenticator()
    handle = server.handle
    server.handle = lambda request: (  # type: ignore[method-assign]  # only here
        NOTHING if isinstance(request, m.SummarizeGroupsRequest) else handle(request)
    )
    right = BY_SCRAM | certificates.client() | {"security.protocol": "SASL_SSL"}
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(stranger)
    cases = [
        (right, "localhost", 0, ""),
        (right | {"sasl.password": f"{MARKER}-2"}, "localhost", 1, "refused the log-in"),
        (right | {"ssl.truststore.location": str(stranger)}, "localhost", 1, "nobody in ssl.trust"),
        (right, "127.0.0.1", 1, "not valid for '127.0.0.1'"),
        ({"security.protocol": "PLAINTEXT"}, "localhost", 69, "No coordinator answers"),
    ]
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(partial(trio.serve_listeners, server.serve, listeners))
        for properties, host, status, says in cases:
            path = tmp_path / "client.properties"
            path.write_text("\n".join(f"{name}={value}" for name, value in properties.items()))
            done = await trio.run_process(
                [
                    *(sys.executable, "-m", "coordinator", "groups", "list"),
                    *("--at", f"{host}:{port}", "--command-config", str(path)),
                ],
                capture_stdout=True,
                stderr=subprocess.STDOUT,
                check=False,
            )
            output = done.stdout.decode()
            assert (done.returncode, says in output) == (status, True), output
            assert MARKER not in output
        nursery.cancel_scope.cancel()
