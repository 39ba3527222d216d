"""Which route answers a path."""

import re
from urllib.parse import quote

import pytest
from hypothesis import given, strategies as st

from coordinator.http.router import Router, split_target, unless_known
from coordinator.http.routes import Answer, HttpRequest, Refused, Route
from tests.http.asking import request


async def _handler(_request: HttpRequest) -> Answer:
    return Answer()


TEMPLATES = ("/", "/g", "/g/all", "/g/{group}", "/g/{group}/p", "/g/{group}/p/{topic}")
ROUTER = Router([Route(template, _handler) for template in TEMPLATES])


@pytest.mark.parametrize(
    ("path", "template", "names"),
    [
        ("/", "/", {}),
        ("/g", "/g", {}),
        ("/g/all", "/g/all", {}),
        ("/g/some", "/g/{group}", {"group": "some"}),
        ("/g/a%2Fb", "/g/{group}", {"group": "a/b"}),
        ("/g/a%2Fp", "/g/{group}", {"group": "a/p"}),
        ("/g/a+b%20c", "/g/{group}", {"group": "a+b c"}),
        ("/g/%C3%BC/p/t%25", "/g/{group}/p/{topic}", {"group": "ü", "topic": "t%"}),
        ("/g/../p", "/g/{group}/p", {"group": ".."}),
    ],
)
def test_a_path_finds_its_route(path: str, template: str, names: dict[str, str]) -> None:
    """It is cut before it is decoded: a slash in a name is no slash of the path."""
    route, found = ROUTER.find(path)

    assert (template, names) == (route.template, found)


@pytest.mark.parametrize("path", ["/x", "/g/", "/g//p", "/g/a/q", "//g", "/g/a/p/t/", "/G"])
def test_a_path_without_a_route_is_not_found(path: str) -> None:
    """An empty name is none."""
    with pytest.raises(Refused) as caught:
        ROUTER.find(path)

    assert 404 == caught.value.status


@given(group=st.text(min_size=1), topic=st.text(min_size=1))
def test_every_name_can_be_asked_for(group: str, topic: str) -> None:
    """Names are what others made up: slashes, dots, percent signs and all."""
    group, topic = (name.encode(errors="replace").decode() for name in (group, topic))
    path = f"/g/{quote(group, safe='')}/p/{quote(topic, safe='')}"

    assert {"group": group, "topic": topic} == ROUTER.find(path)[1]


def test_two_routes_of_one_template_are_a_mistake() -> None:
    """One of them would never be asked."""
    with pytest.raises(ValueError, match="one template"):
        Router([Route("/", _handler), Route("/", _handler)])


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("/a?b=c?d", ("/a", "b=c?d", None)),
        ("/a", ("/a", "", None)),
        ("http://h:1/a?b", ("/a", "b", "h:1")),
        ("HTTP://h", ("/", "", "h")),
        ("http://h?a=/b", ("/", "a=/b", "h")),
        ("http:///a", ("/a", "", "")),
        ("http://u@h/a", ("/a", "", "u@h")),
        ("//h/a", ("//h/a", "", None)),
        ("/a?b=https://h/", ("/a", "b=https://h/", None)),
    ],
)
def test_a_target_is_a_path_or_what_a_proxy_is_asked(
    text: str, target: tuple[str, str, str | None]
) -> None:
    """RFC 9112 wants a server to understand both, over TLS as without."""
    over_tls = re.sub("^http:", "https:", text, flags=re.IGNORECASE)

    assert target == split_target(text)
    assert target == split_target(over_tls, is_tls=True)


@pytest.mark.parametrize(
    ("text", "is_tls", "status"),
    [
        ("https://h/a", False, 421),
        ("http://h/a", True, 421),
        ("ftp://h/a", True, 400),
        ("https:/a", True, 400),
        ("a", False, 400),
        ("*", False, 400),
        ("h:443", True, 400),
    ],
)
def test_what_is_asked_for_in_another_way_is_refused(text: str, is_tls: bool, status: int) -> None:
    """An answer without TLS to what was to come over TLS would be anybody's (RFC 9110, 7.4)."""
    with pytest.raises(Refused) as caught:
        split_target(text, is_tls=is_tls)

    assert status == caught.value.status


@pytest.mark.parametrize(
    ("known", "status"),
    [
        (None, 200),
        ('"1"', 304),
        ('W/"1"', 304),
        ('"0", "1"', 304),
        ("*", 304),
        ('"2"', 200),
        ("1", 200),
    ],
)
def test_what_the_peer_has_already_is_not_sent_again(known: str | None, status: int) -> None:
    """Asking again for a list that did not change costs nothing."""
    headers = {} if known is None else {"if-none-match": known}
    answer = unless_known(Answer(body=(b"x",), etag='"1"'), request("/", headers=headers))

    assert (status, '"1"') == (answer.status, answer.etag)
    assert (status == 200) == bool(answer.body)


def test_a_refusal_is_never_what_the_peer_has_already() -> None:
    """Its tag is that of what was there once."""
    asked = request("/", headers={"if-none-match": "*"})

    assert 404 == unless_known(Answer(status=404, etag='"1"'), asked).status
