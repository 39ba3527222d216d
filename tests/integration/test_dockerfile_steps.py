"""The Dockerfile without a Docker engine: its build steps and its entry point, in a folder."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent.parent


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with their arguments, lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    return [
        (name, arguments.strip())
        for name, _, arguments in (line.partition(" ") for line in lines if line[:1].isupper())
    ]


def last(name: str) -> str:
    """Return the arguments of the last instruction *name*."""
    return next(arguments for found, arguments in reversed(instructions()) if found == name)


def build(root: Path) -> None:
    """Do what the first stage does, with *root* in the place of the image's root folder."""
    workdir = root / "src"
    workdir.mkdir(parents=True)
    stages = 0
    for name, arguments in instructions():
        if name == "FROM":
            stages += 1
            if stages == 2:
                return
        elif name == "COPY":
            *sources, target = arguments.split()
            for source in sources:
                if (ROOT / source).is_dir():
                    ignored = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(ROOT / source, workdir / target, ignore=ignored)
                else:
                    shutil.copy(ROOT / source, workdir / target)
        elif name == "RUN":
            command = arguments.replace(" /", f" {root}/")
            if command.startswith("/"):
                command = f"{root}{command}"
            command = command.replace("python -m", f"{shlex.quote(sys.executable)} -m", 1)
            subprocess.run(["sh", "-ec", command], cwd=workdir, check=True, timeout=300)
    raise AssertionError("the Dockerfile has no second stage")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root folder of an image that was built."""
    root = tmp_path_factory.mktemp("image")
    build(root)
    yield root
    shutil.rmtree(root)


def in_image(image: Path, *arguments: str) -> list[str]:
    """Return the entry point's command line."""
    (entry_point,) = json.loads(last("ENTRYPOINT"))
    return [f"{image}{entry_point}", *arguments]


def wait_for(stdout: IO[str], event: str) -> dict[str, object]:
    """Return the next line of output with this event."""
    for text in stdout:
        line: dict[str, object] = json.loads(text)
        if line["event"] == event:
            return line
    raise AssertionError(f"the daemon ended before {event!r}")


def environment(**http: object) -> dict[str, str]:
    """Return the image's variables, with those of *http* listener in their place."""
    name, _, value = last("ENV").partition("=")
    return {"PATH": os.environ["PATH"], name: str(http.get("listener", value))}


def health_check(listener: str) -> int:
    """Run the image's health check as an engine does; return its exit status."""
    command = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    done = subprocess.run(
        command,
        env=environment(listener=listener),
        timeout=60,
        check=False,
        capture_output=True,
    )
    return done.returncode


def test_the_image_serves_answers_its_health_check_and_stops_on_sigterm(
    image: Path, tmp_path: Path
) -> None:
    """It is run as the image runs it: by its entry point, without this folder on any path."""
    command = json.loads(last("CMD"))
    command[command.index("--data-dir") + 1] = str(tmp_path / "data")
    command[command.index("--listen") + 1] = "127.0.0.1:0"
    daemon = subprocess.Popen(
        in_image(image, *command),
        cwd=tmp_path,
        env=environment(listener="127.0.0.1:0"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert daemon.stdout is not None
        port = wait_for(daemon.stdout, "http.listening")["port"]
        while_it_serves = health_check(f"127.0.0.1:{port}")
        daemon.send_signal(signal.SIGTERM)

        assert daemon.wait(60) == 0
        assert (while_it_serves, health_check(f"127.0.0.1:{port}")) == (0, 1)
    finally:
        daemon.kill()
        daemon.communicate()


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", 0),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", 1),
        (b"", 1),
    ],
)
def test_the_health_check_takes_a_200_only(answer: bytes, status: int) -> None:
    """A check that cannot fail is none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked: list[bytes] = []

        def reply() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as file:
                asked.extend(iter(file.readline, b"\r\n"))
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        found = health_check(f"0.0.0.0:{server.getsockname()[1]}")
        thread.join(60)

    assert found == status
    assert asked == [b"GET /livez HTTP/1.0\r\n", b"Host: localhost\r\n"]


def test_the_image_answers_http_to_itself_only() -> None:
    """Whoever wants it outside says so."""
    assert last("ENV").partition("=")[2].startswith("127.0.0.1:")
    assert "GROUP_COORDINATOR_" + "http.listeners".upper().replace(".", "_") in last("ENV")


def test_the_image_has_only_what_the_server_lock_names(image: Path) -> None:
    """Spark in it would be half a gigabyte that nobody uses."""
    site = next(image.glob("opt/group-coordinator/lib/python3*/site-packages"))
    found = {path.name.partition("-")[0].lower() for path in site.glob("*.dist-info")}
    locked = {
        line.partition("==")[0].replace("-", "_").lower()
        for line in (ROOT / "requirements-server.lock").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }

    assert found - {"pip", "setuptools"} == locked | {"group_coordinator"}


def test_a_container_does_not_listen_to_the_world_unasked(image: Path, tmp_path: Path) -> None:
    """Nothing is encrypted, so its address must be given on purpose."""
    command = json.loads(last("CMD"))
    command[command.index("--data-dir") + 1] = str(tmp_path / "data")
    refused = subprocess.run(
        in_image(image, *command), timeout=60, check=False, capture_output=True, text=True
    )

    assert refused.returncode == 78
    assert "advertised.listeners" in refused.stderr or "allow.plaintext" in refused.stderr
