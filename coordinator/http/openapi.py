"""What the HTTP listener can be asked: declared once, for the door and for OpenAPI."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from coordinator.http import views
from coordinator.http.cookies import SECURE_COOKIE
from coordinator.http.routes import GET, Answer, HttpRequest, Refused, Route, Streaming
from coordinator.names import did_you_mean, quoted
from protocol.version import VERSION

TEXT_CHARS_MAX: Final = 255
_DIGITS_MAX: Final = 18
_REF: Final = "#/components/schemas/{name}"
_CURSOR_CHARS_MAX: Final = 4_096


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a query.

    Attributes:
        default: What holds without it; a number says that it is one.
        choices: What it may be; empty for any.
        many: Whether it may be given again for more.
        is_required: Whether it must be given.
    """

    name: str
    meaning: str
    default: str | int = ""
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    many: bool = False
    max_chars: int = TEXT_CHARS_MAX
    is_required: bool = False

    def read(self, text: str) -> str | int:
        """Return what *text* says. Raises Refused if it can't be."""
        if isinstance(self.default, int):
            # Digits alone: int() also takes spaces, signs, and digits of other scripts.
            is_number = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
            if not is_number or not self.low <= int(text) <= self.high:
                raise Refused(
                    400, f"{self.name}: {quoted(text)} is no number from {self.low} to {self.high}"
                )
            return int(text)
        if self.choices and text not in self.choices:
            known = ", ".join(self.choices)
            raise Refused(400, f"{self.name}: {quoted(text)} is not one of {known}")
        if len(text) > self.max_chars:
            raise Refused(400, f"{self.name} has more than {self.max_chars} characters")
        return text

    def document(self, place: str = "query") -> dict[str, Any]:
        """Return it as OpenAPI shows it, where it stands in this *place*."""
        schema: dict[str, Any] = {"type": "string", "maxLength": self.max_chars}
        if isinstance(self.default, int):
            schema = {"type": "integer", "minimum": self.low, "maximum": self.high}
        elif self.choices:
            schema = {"type": "string", "enum": list(self.choices)}
        if self.default != "":
            schema["default"] = self.default
        if self.many:
            schema = {"type": "array", "items": schema}
        return {
            "name": self.name,
            "in": place,
            "required": self.is_required,
            "description": self.meaning,
            "schema": schema,
        }


CURSOR: Final = Parameter(
    "cursor", "where this page begins, from the `next` of another", max_chars=_CURSOR_CHARS_MAX
)


class Query:
    """The parameters of one request, checked."""

    def __init__(self, parameters: Sequence[Parameter], given: Mapping[str, Sequence[str]]) -> None:
        """Read what is *given*. Raises Refused for what isn't known, or can't be."""
        known = {parameter.name: parameter for parameter in parameters}
        self._values: dict[str, tuple[str | int, ...]] = {}
        for name, texts in given.items():
            if name not in known:
                hint = did_you_mean(name, known)
                raise Refused(400, f"there is no parameter {quoted(name)} here.{hint}")
            if len(texts) > 1 and not known[name].many:
                raise Refused(400, f"{name} is given {len(texts)} times")
            self._values[name] = tuple(known[name].read(text) for text in texts)
        for parameter in parameters:
            if parameter.is_required and parameter.name not in given:
                raise Refused(400, f"{parameter.name} is missing: {parameter.meaning}")
        self._defaults = {name: parameter.default for name, parameter in known.items()}

    def number(self, name: str) -> int:
        """Return the value of a number."""
        value = self._values.get(name, (self._defaults[name],))[0]
        assert isinstance(value, int)
        return value

    def text(self, name: str) -> str:
        """Return the value of a text."""
        return str(self._values.get(name, (self._defaults[name],))[0])

    def many(self, name: str) -> tuple[str, ...]:
        """Return all values of a text that may be given again."""
        return tuple(map(str, self._values.get(name, ())))


Asked = Callable[[HttpRequest, Query], Awaitable[Answer | Streaming]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One path, and what it answers.

    Attributes:
        named: The path of older links to the same, with the first parameter within it.
        answer: The type of the body; None for a stream of events.
        parameters: None takes any query, and looks at none of it.
        also: More statuses that have the same body.
        takes: The type of the body of a POST.
        is_open: Whether nobody is asked who he is.
    """

    template: str
    summary: str
    asked: Asked
    answer: type[msgspec.Struct] | None
    parameters: tuple[Parameter, ...] | None = ()
    is_quick: bool = False
    also: tuple[int, ...] = ()
    method: str = GET
    takes: type[msgspec.Struct] | None = None
    is_open: bool = False
    named: str | None = None

    def routes(self) -> Sequence[Route]:
        """Return the routes that read the query, and ask."""

        async def handle(request: HttpRequest) -> Answer | Streaming:
            given = {} if self.parameters is None else dict(request.query)
            for name, value in request.names.items():
                given[name] = [value, *given.get(name, ())]
            return await self.asked(request, Query(self.parameters or (), given))

        return [
            Route(template, handle, self.is_quick, self.is_open, self.method)
            for template in (self.template, self.named)
            if template is not None
        ]

    def documents(self) -> Mapping[str, Any]:
        """Return its paths as OpenAPI shows them."""
        found = {self.template: self._document(self.template, "query")}
        if self.named is not None:
            found[self.named] = self._document(self.named, "path")
        return found

    def _document(self, template: str, place: str) -> dict[str, Any]:
        """Return it at one path, where the first parameter has this *place*."""
        first, rest = (self.parameters or ())[:1], (self.parameters or ())[1:]
        content: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
        if self.answer is not None:
            reference = {"$ref": _REF.format(name=self.answer.__name__)}
            content = {"application/json": {"schema": reference}}
        shown = {"description": self.summary, "content": content}
        operation_id = re.sub(r"\W+", "_", template).strip("_")
        found: dict[str, Any] = {
            "operationId": operation_id,
            "summary": self.summary,
            "parameters": [p.document(place) for p in first] + [p.document() for p in rest],
            "responses": {
                "200": shown,
                **{str(status): shown for status in self.also},
                "default": {"$ref": "#/components/responses/Problem"},
            },
        }
        if self.takes is not None:
            taken = {"schema": {"$ref": _REF.format(name=self.takes.__name__)}}
            found["requestBody"] = {"required": True, "content": {"application/json": taken}}
        if self.is_open:
            found["security"] = []
        if template == self.named:
            found["deprecated"] = True
        return {self.method.lower(): found}


_SECURITY_SCHEMES: Final[Mapping[str, Any]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "a token, signed or known"},
    "basic": {"type": "http", "scheme": "basic", "description": "a user's password; over TLS only"},
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": SECURE_COOKIE,
        "description": "of a log-in; without TLS its name has no __Host-",
    },
    "certificate": {"type": "mutualTLS", "description": "of the connection"},
}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the OpenAPI document of *operations*."""
    named = [kind for operation in operations for kind in (operation.answer, operation.takes)]
    types: list[type[msgspec.Struct]] = [kind for kind in named if kind is not None]
    types += [*views.OF_EVENTS, views.Problem]
    types = sorted(set(types), key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(types, ref_template=_REF)
    problem = {"schema": {"$ref": _REF.format(name="Problem")}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "group-coordinator",
            "version": VERSION,
            "description": (
                "Read-only, but for the log-in. A new release adds fields, and takes none away "
                "within v1."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {path: shown for one in operations for path, shown in one.documents().items()},
        # Asked for once the coordinator knows who may do what; until then nothing is needed.
        "security": [{}, {"bearer": []}, {"basic": []}, {"cookie": []}, {"certificate": []}],
        "components": {
            "securitySchemes": _SECURITY_SCHEMES,
            "schemas": schemas,
            "responses": {
                "Problem": {
                    "description": "It can't be answered: what is wrong, in words (RFC 9457)",
                    "content": {"application/problem+json": problem},
                }
            },
        },
    }
