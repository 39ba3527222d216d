"""The page's files, served from memory; they name their parts relatively, and nothing elsewhere."""

from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Final

from coordinator.http.routes import Answer, Handler, HttpRequest, Route

CONTENT_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX: Final = "index.html"


def page_files() -> dict[str, bytes]:
    """Return the path of each file of the page, and what is in it."""
    found = {}
    for file in files("coordinator.http").joinpath("page").iterdir():
        if PurePosixPath(file.name).suffix in CONTENT_TYPES:
            found["/" if file.name == INDEX else f"/page/{file.name}"] = file.read_bytes()
    return found


def answer_for(path: str, body: bytes) -> Answer:
    """Return the answer that has *body*: browsers keep it, and ask each time if it is the same."""
    return Answer(
        content_type=CONTENT_TYPES[PurePosixPath(path).suffix or ".html"],
        body=(body,),
        etag=f'"{sha256(body).hexdigest()[:20]}"',
        headers={"Cache-Control": "no-cache"},
    )


def routes() -> Sequence[Route]:
    """Return a route for each file."""
    return tuple(
        Route(path, _handler(answer_for(path, body)), is_quick=True, is_open=True)
        for path, body in sorted(page_files().items())
    )


def _handler(answer: Answer) -> Handler:
    async def handle(request: HttpRequest) -> Answer:  # noqa: ARG001 - a Handler's form.
        return answer

    return handle
