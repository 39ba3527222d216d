"""The page's files: what they are, and what they never do."""

import re

import trio

from coordinator.http import page
from coordinator.http.routes import Answer
from tests.http.asking import request

IMPORTED = re.compile(r'from "\./([\w.]+)"')
NAMED = re.compile(r'(?:src|href)="(page/[\w.]+)"')
# As the log-in, which lies beside them, names the files of the page.
BESIDE = re.compile(r'(?:src|href)="([\w.]+)"')
LOG_IN = "/page/login.html"
PAGES = {"/", LOG_IN}
# What would take text for markup or a program, whatever the text is.
DANGEROUS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc"
    r"|DOMParser|setHTML|createContextualFragment"
)
ELSEWHERE = re.compile(r"https?:|[\"'(]//[a-z]", re.IGNORECASE)
NAMESPACE = "http://www.w3.org/2000/svg"


def texts() -> dict[str, str]:
    """Return what is in each file."""
    return {path: body.decode() for path, body in page.page_files().items()}


def test_what_a_file_of_the_page_names_is_there() -> None:
    """A misspelled import is an empty page."""
    files = texts()
    named = {f"/page/{name}" for text in files.values() for name in IMPORTED.findall(text)}
    named |= {f"/{name}" for name in NAMED.findall(files["/"])}
    named |= {f"/page/{name}" for name in BESIDE.findall(files[LOG_IN])}

    assert named <= files.keys()
    assert set(files) - named == PAGES


def test_all_modules_are_asked_for_at_once() -> None:
    """One after the other, as they import each other, would be five round trips."""
    files = texts()
    modules = {path for path in files if path.endswith(".js")} - {"/page/login.js"}

    assert modules == {f"/{name}" for name in NAMED.findall(files["/"]) if name.endswith(".js")}


def test_no_text_becomes_markup() -> None:
    """Names of groups come from whoever may commit."""
    found = [path for path, text in texts().items() if DANGEROUS.search(text)]

    assert found == []


def test_nothing_comes_from_elsewhere() -> None:
    """The page works where there is no other network, and tells nobody that it is open."""
    found = [
        f"{path}: {line.strip()}"
        for path, text in texts().items()
        for line in text.replace(NAMESPACE, "").splitlines()
        if ELSEWHERE.search(line)
    ]

    assert found == []


def test_styles_and_scripts_stand_in_files_of_their_own() -> None:
    """The content policy forbids all others, silently."""
    for page_of_it in PAGES:
        markup = texts()[page_of_it]

        assert " style=" not in markup
        assert "<style" not in markup
        assert not re.search(r"\son\w+=", markup)
        assert not re.search(r"<script(?![^>]*src=)", markup)


def test_a_file_is_kept_by_the_browser_and_asked_for_again() -> None:
    """After an update of the daemon nobody should see the old page."""

    async def ask(template: str) -> Answer:
        route = next(route for route in page.routes() if route.template == template)
        answer = await route.handler(request(template))
        assert isinstance(answer, Answer)
        return answer

    index, style = trio.run(ask, "/"), trio.run(ask, "/page/style.css")

    assert index.headers["Cache-Control"] == "no-cache"
    assert index.content_type == "text/html; charset=utf-8"
    assert style.content_type == "text/css; charset=utf-8"
    assert index.etag != style.etag
