"""Who may read over HTTP."""

import pytest

from coordinator.http.guard import SECURITY_HEADERS, refusal
from coordinator.http.routes import Answer, HttpRequest, Route

ALLOWED = frozenset({"coordinator", "metrics.example", "*.internal"})


async def _handler(_request: HttpRequest) -> Answer:
    return Answer()


PAGE = Route("/", _handler)
API = Route("/api/v1/groups", _handler)


def status(route: Route = API, **headers: str) -> int | None:
    """Return the status of the refusal of *headers*, None for none."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    refused = refusal(named, ALLOWED, route)
    return None if refused is None else refused.status


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:9311",
        "localhost.",
        "127.0.0.1:9311",
        "192.0.2.7",
        "[::1]:9311",
        "[2001:db8::7]",
        "coordinator:9311",
        "metrics.example",
        "Metrics.Example.:80",
        "a.internal",
        "a.b.internal:9311",
        "localhost:",
    ],
)
def test_the_names_that_it_should_have_are_answered(host: str) -> None:
    """An address can't be bound to another by anybody; a name must be known."""
    assert status(host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "metrics.example.evil",
        "sub.metrics.example",
        "internal",
        "xinternal",
        "1.2.3.4.5",
    ],
)
def test_a_name_bound_to_this_address_by_somebody_else_is_refused(host: str) -> None:
    """A page of that name could read everything, for the browser takes it for the same site."""
    assert 421 == status(host=host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "a b",
        "localhost:x",
        "localhost:1:2",
        "[::1",
        "[::1]x",
        "[localhost]",
        "user@localhost",
        "localhost/x",
        "h\u00f6st",
        "::1",
        "*.internal",
    ],
)
def test_what_is_no_host_at_all_is_refused(host: str) -> None:
    """Two readers of a strange name may read two names."""
    assert 400 == status(host=host)


def test_a_program_without_a_host_is_answered() -> None:
    """HTTP/1.0 has none, and no browser leaves it out."""
    assert status() is None


@pytest.mark.parametrize(
    ("site", "mode", "dest", "route", "expected"),
    [
        ("none", "navigate", "document", API, None),
        ("same-origin", "cors", "empty", API, None),
        ("cross-site", "no-cors", "script", API, 403),
        ("cross-site", "cors", "empty", API, 403),
        ("same-site", "cors", "empty", API, 403),
        ("cross-site", "navigate", "document", API, 403),
        ("cross-site", "navigate", "document", PAGE, None),
        ("cross-site", "navigate", "iframe", PAGE, 403),
        ("cross-site", "no-cors", "image", PAGE, 403),
        ("anything-new", "cors", "empty", API, 403),
    ],
)
def test_a_browser_that_says_it_comes_from_elsewhere_is_refused(
    site: str, mode: str, dest: str, route: Route, expected: int | None
) -> None:
    """But for whoever follows a link to the page; another port of this machine is elsewhere."""
    assert expected == status(
        route, host="localhost", sec_fetch_site=site, sec_fetch_mode=mode, sec_fetch_dest=dest
    )


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:9311", None),
        ("https://localhost:9311", None),
        ("http://localhost:9312", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_an_origin_must_be_the_listener_itself(origin: str, expected: int | None) -> None:
    """Browsers leave Sec-Fetch-Site out where the page is neither https nor local."""
    assert expected == status(host="localhost:9311", origin=origin)


def test_nothing_lets_another_site_read() -> None:
    """One CORS header would undo all of it."""
    assert not [name for name in SECURITY_HEADERS if name.startswith("access-control")]
    assert "frame-ancestors 'none'" in SECURITY_HEADERS["content-security-policy"]
    assert "unsafe" not in SECURITY_HEADERS["content-security-policy"]
