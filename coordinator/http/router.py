"""Which route answers a path, and how answers and refusals look. Pure."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import parse_qs, unquote

import msgspec

from coordinator.http.routes import GET, HEAD, POST, Answer, HttpRequest, Refused, Route

PARAMETERS_MAX: Final = 64
METHODS: Final = frozenset({GET, HEAD, POST})
_URL: Final = re.compile("(?P<scheme>https?)://(?P<authority>[^/?]*)(?P<rest>.*)", re.IGNORECASE)
OTHER: Final = "other"  # Stands for all paths without a route, where answers are counted.


class Target(NamedTuple):
    """What a request line asks for; *authority* only where it stands there, as for a proxy."""

    path: str
    query: str
    authority: str | None


def split_target(text: str, *, is_tls: bool = False) -> Target:
    """Return the parts of *text*, the target of a request line that came over TLS or not.

    Raises:
        Refused: It is neither a path nor a URL, or one that is asked for in another way.
    """
    scheme = authority = None
    if url := _URL.match(text):
        scheme, authority, text = url["scheme"].lower(), url["authority"], url["rest"]
        text = text if text.startswith("/") else f"/{text}"
    if not text.startswith("/"):
        raise Refused(400, "the target of the request is not a path")
    if scheme not in {None, "https" if is_tls else "http"}:
        raise Refused(421, f"{scheme} is not what this listener speaks")
    path, _, query = text.partition("?")
    return Target(path, query, authority)


def check_method(route: Route, method: str) -> None:
    """Raise Refused unless *route* takes requests of this *method*."""
    taken = (route.method, HEAD) if route.method == GET else (route.method,)
    if method not in taken:
        allowed = {"allow": ", ".join(taken)}
        raise Refused(405, f"this path takes {' and '.join(taken)} only", headers=allowed)


def query_of(text: str) -> Mapping[str, Sequence[str]]:
    """Return the parameters in *text*.

    Raises:
        Refused: They are too many, or no UTF-8.
    """
    if not text:
        return {}
    try:
        return parse_qs(
            text, keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS_MAX
        )
    except UnicodeDecodeError:
        raise Refused(400, "the query is not UTF-8") from None
    except ValueError:
        raise Refused(400, f"the query has more than {PARAMETERS_MAX} parameters") from None


class Router:
    """The routes of one listener."""

    def __init__(self, routes: Sequence[Route]) -> None:
        """Take *routes*, whose templates must differ; a plain one is found before one with names.

        Raises:
            ValueError: Two have one template.
        """
        self._plain: dict[str, Route] = {}
        # By how many segments they have: each with its segments, None for a name.
        self._named: dict[int, list[tuple[tuple[str | None, ...], tuple[str, ...], Route]]] = {}
        templates = [route.template for route in routes]
        if len(set(templates)) < len(templates):
            raise ValueError(f"two routes have one template: {sorted(templates)}")
        for route in routes:
            if "{" not in route.template:
                self._plain[route.template] = route
                continue
            segments = route.template.split("/")
            names = tuple(part[1:-1] for part in segments if part.startswith("{"))
            pattern = tuple(None if part.startswith("{") else part for part in segments)
            self._named.setdefault(len(segments), []).append((pattern, names, route))

    def find(self, path: str) -> tuple[Route, Mapping[str, str]]:
        """Return the route of *path*, and what stands where its template has names.

        It is cut at its slashes before it is decoded, so a name may have some.

        Raises:
            Refused: There is none.
        """
        route = self._plain.get(path)
        if route is not None:
            return route, {}
        try:
            segments = [unquote(part, errors="strict") for part in path.split("/")]
        except UnicodeDecodeError:
            raise Refused(400, "the path is not UTF-8") from None
        for pattern, names, named in self._named.get(len(segments), ()):
            pairs = list(zip(pattern, segments, strict=True))
            if all(wanted in {None, part} for wanted, part in pairs):
                found = [part for wanted, part in pairs if wanted is None]
                if all(found):
                    return named, dict(zip(names, found, strict=True))
        raise Refused(404, "there is nothing at this path")


def problem(refused: Refused) -> Answer:
    """Return *refused* as RFC 9457 has it."""
    body = {
        "type": "about:blank",
        "title": HTTPStatus(refused.status).phrase,
        "status": refused.status,
        "detail": refused.detail,
    }
    headers = {"cache-control": "no-store", **refused.headers}
    if refused.retry_after_s is not None:
        headers["retry-after"] = str(refused.retry_after_s)
    return Answer(
        status=refused.status,
        content_type="application/problem+json",
        body=(msgspec.json.encode(body),),
        headers=headers,
    )


def unless_known(answer: Answer, request: HttpRequest) -> Answer:
    """Return *answer*, or 304 where the peer has it already (RFC 9110, weak comparison)."""
    known = request.headers.get("if-none-match")
    if known is None or answer.etag is None or answer.status != HTTPStatus.OK:
        return answer
    tags = [tag.strip().removeprefix("W/") for tag in known.split(",")]
    if known.strip() != "*" and answer.etag.removeprefix("W/") not in tags:
        return answer
    return Answer(status=HTTPStatus.NOT_MODIFIED, etag=answer.etag, headers=answer.headers)
