"""Routes: the signature of a function says what a request has and what it is answered with.

    routes = Routes("executions")

    @routes.get("/api/executions/{execution_id}")
    async def get_execution(execution_id: Id, has: Has, who: Who, min_seq: MinSeq = None) -> Detail: ...

A parameter is annotated with `PathParameter`, `QueryParameter` or `HeaderParameter`, with `Provided` (the services, the
caller), or it is the `body`, a struct. What the function returns is encoded as it is. `openapi.py`
writes the documentation from the same signature.
"""

import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from re import Pattern
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Struct
from starlette.datastructures import QueryParams, State
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from noetl.model.errors import NoetlError
from noetl.model.identity import Permission, require
from noetl.server.audit.call_origin import REQUEST_ID_HEADER, CallOrigin, current_origin
from noetl.server.http.bodies import decode_strict_json
from noetl.server.http.callers import IDENTITY, identify_caller
from noetl.server.http.parameters import PathParameter, RequestParameter, TextParser, choose_parser
from noetl.server.http.problems import (
    make_error_problem,
    make_http_problem,
    make_validation_problem,
)
from noetl.server.http.validation import InvalidRequest, RequestFinding, StructReader

Handler = Callable[..., Awaitable[Any]]
Endpoint = Callable[[Request], Awaitable[Response]]
Value = TypeVar("Value")
JSON_TYPE = "application/json"
REFUSED_STATUSES = (401, 403)
RefusalObserver = Callable[[Request, int, CallOrigin], None]


class Provided(Struct, frozen=True):
    """Marks an argument that the server provides: the function returns it for a request."""

    function: Callable[[Request], Any]


@dataclass(frozen=True, slots=True)
class Reply(Generic[Value]):
    """An answer with a status or headers of its own."""

    value: Value
    status: int
    headers: dict[str, str] = field(default_factory=dict)


class RouteParameter(Struct, frozen=True):
    """A parameter of one route: its name there and in the function, and how its text is read."""

    argument: str
    name: str
    place: str
    kind: Any
    default: Any
    parse: TextParser
    reader: StructReader
    about: RequestParameter

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


class RouteBody(Struct, frozen=True):
    kind: Any
    required: bool
    reader: StructReader


class RouteSignature(Struct, frozen=True):
    """What the function of a route takes and returns."""

    parameters: tuple[RouteParameter, ...]
    provided: dict[str, Callable[[Request], Any]]  # by argument
    request_argument: str | None
    body: RouteBody | None
    returns: Any


@dataclass(frozen=True)
class DocumentedRoute:
    """A route with what its function says of it.

    `responses` are documented instead of what the function returns, and `extra` is added to the
    documentation of the route.
    """

    method: str
    path: str
    handler: Handler
    name: str
    tag: str
    strict: bool  # refuse unknown query parameters
    status: int = 200
    documented: bool = True
    public: bool = False  # callers need no token
    problem_type: str = JSON_TYPE  # the media type under which the document lists problems
    responses: dict[int, dict[str, Any]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def signature(self) -> RouteSignature:
        """What the function says. It is read when the route is used, so that the start of a server
        does not wait for all routes."""
        return _read_signature(self.handler, self.path)

    async def answer(self, request: Request) -> Response:
        """Read the request, call the function, and encode what it returns."""
        if self.strict and request.scope["query_string"]:
            self._check_query(request.query_params)
        arguments = await self._read_arguments(request)
        for name, provide in self.signature.provided.items():
            arguments[name] = provide(request)
        if self.signature.request_argument is not None:
            arguments[self.signature.request_argument] = request
        returned = await self.handler(**arguments)
        if isinstance(returned, Response):
            return returned
        if isinstance(returned, Reply):
            content = msgspec.json.encode(returned.value)
            return Response(content, returned.status, returned.headers, JSON_TYPE)
        return Response(msgspec.json.encode(returned), self.status, media_type=JSON_TYPE)

    async def _read_arguments(self, request: Request) -> dict[str, Any]:
        """The arguments from the request. Raises `InvalidRequest` with everything that is wrong."""
        arguments: dict[str, Any] = {}
        findings: list[RequestFinding] = []
        body = self.signature.body
        content = UNSET if body is None else await _read_json(request)
        for parameter in self.signature.parameters:
            try:
                arguments[parameter.argument] = _read_parameter(parameter, request)
            except InvalidRequest as error:
                findings.extend(error.findings)
        if body is not None:
            try:
                arguments["body"] = _read_body(body, content)
            except InvalidRequest as error:
                findings.extend(error.findings)
        if findings:
            raise InvalidRequest(*findings)
        return arguments

    def _check_query(self, given: QueryParams) -> None:
        """Refuse unknown and repeated parameters: `?offset=20` would silently give the first page."""
        known = {each.name for each in self.signature.parameters if each.place == "query"}
        for name in given:
            if name not in known:
                message = f"no such parameter here; known: {', '.join(sorted(known)) or 'none'}"
                raise InvalidRequest(
                    RequestFinding("unknown_parameter", ("query", name[:60]), message)
                )
            if len(given.getlist(name)) > 1:
                raise InvalidRequest(
                    RequestFinding("repeated_parameter", ("query", name), "given more than once")
                )


def _read_parameter(parameter: RouteParameter, request: Request) -> Any:
    place = (parameter.place, parameter.name)
    match parameter.place:
        case "path":
            text = request.path_params[parameter.name]
        case "query" if not request.scope["query_string"]:
            text = None
        case "query":
            text = request.query_params.get(parameter.name)
        case _:
            text = request.headers.get(parameter.name)
    if text is None:
        if parameter.required:
            raise InvalidRequest(RequestFinding("missing", place, "Field required"))
        return parameter.default
    return parameter.reader.read(parameter.parse(text, place), place)


async def _read_json(request: Request) -> Any:
    """The body as JSON, if its type says that it is JSON; UNSET if it is empty."""
    data = await request.body()
    if not data:
        return UNSET
    content_type = request.headers.get("content-type", "")
    main, _, sub = content_type.partition(";")[0].strip().lower().partition("/")
    if main == "application" and (sub == "json" or sub.endswith("+json")):
        return decode_strict_json(data)
    return data


def _read_body(body: RouteBody, value: Any) -> Any:
    if value is not UNSET:
        return body.reader.read(value, ("body",))
    if body.required:
        raise InvalidRequest(RequestFinding("missing", ("body",), "Field required"))
    return None


class Routes:
    """The routes of one subject, in the order in which they are declared."""

    def __init__(self, tag: str, *, strict: bool = True, public: bool = False) -> None:
        self.tag = tag
        self.strict = strict
        self.public = public
        self.routes: list[DocumentedRoute] = []

    def get(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._declare("GET", path, options)

    def head(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._declare("HEAD", path, options)

    def post(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._declare("POST", path, options)

    def put(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._declare("PUT", path, options)

    def delete(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._declare("DELETE", path, options)

    def _declare(
        self, method: str, path: str, options: dict[str, Any]
    ) -> Callable[[Handler], Handler]:
        """A decorator that adds a route. The options are fields of `DocumentedRoute`."""

        def declare(handler: Handler) -> Handler:
            fields = {
                "name": handler.__name__,
                "strict": self.strict,
                "public": self.public,
                **options,
            }
            route = DocumentedRoute(method, path, handler, tag=self.tag, **fields)
            self.routes.append(route)
            return handler

        return declare


def _read_signature(handler: Handler, path: str) -> RouteSignature:
    hints = get_type_hints(handler, include_extras=True)
    parameters: list[RouteParameter] = []
    provided: dict[str, Callable[[Request], Any]] = {}
    request_argument = None
    body = None
    for argument, given in inspect.signature(handler).parameters.items():
        hint = hints[argument]
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        parameter = next((mark for mark in marks if isinstance(mark, RequestParameter)), None)
        provider = next((mark for mark in marks if isinstance(mark, Provided)), None)
        if parameter is not None:
            kind = get_args(hint)[0]
            parameters.append(_make_parameter(argument, parameter, kind, given.default))
        elif provider is not None:
            provided[argument] = provider.function
        elif f"{{{argument}}}" in path or f"{{{argument}:" in path:
            parameters.append(_make_parameter(argument, PathParameter(), hint, given.default))
        elif hint is Request:
            request_argument = argument
        elif argument == "body":
            body = RouteBody(hint, given.default is inspect.Parameter.empty, StructReader(hint))
        else:
            raise TypeError(f"{handler.__name__}: {argument} is no part of a request")
    return RouteSignature(tuple(parameters), provided, request_argument, body, hints.get("return"))


def _make_parameter(
    argument: str, about: RequestParameter, kind: Any, default: Any
) -> RouteParameter:
    name = argument
    if about.alias is not None:
        name = about.alias
    elif about.place == "header":
        name = argument.replace("_", "-")
    constrained = about.make_type(kind)
    return RouteParameter(
        argument,
        name,
        about.place,
        constrained,
        default,
        choose_parser(kind),
        StructReader(constrained),
        about,
    )


class RoutedEndpoint(Struct, frozen=True):
    """A function that answers requests itself.

    A caller needs one of the permissions; without any, the function asks for those that it needs.
    """

    answer: Endpoint
    label: Any  # names it in the metrics
    public: bool = False  # callers need no token
    permissions: tuple[Permission, ...] = ()


class _Target(Struct, frozen=True):
    """What answers the requests of one path, by method."""

    path: str
    pattern: Pattern[str]
    endpoints: dict[str, RoutedEndpoint]


@dataclass(frozen=True, slots=True)
class _Fallback:
    """What answers the paths without a route, and which of them."""

    takes_path: Callable[[str], bool]
    target: _Target


class HttpRouter:
    """The ASGI application of all routes.

    A path without parameters is found by its text. Others are found by their number of parts, and
    then in the order of declaration. Paths with a parameter of any number of parts come last, and
    then the fallback.
    """

    def __init__(self) -> None:
        self.state = State()
        self._fixed: dict[str, _Target] = {}
        self._by_part_count: dict[int, list[_Target]] = defaultdict(list)
        self._of_any_length: list[_Target] = []
        self._targets: dict[str, _Target] = {}
        self._fallback: _Fallback | None = None
        self._note_refusal: RefusalObserver | None = None

    def add_routes(self, routes: Iterable[DocumentedRoute]) -> None:
        for route in routes:
            endpoint = RoutedEndpoint(route.answer, route.handler, route.public)
            self.add_endpoint(route.method, route.path, endpoint)

    def add_plain(self, method: str, path: str, answer: Endpoint, *permissions: Permission) -> None:
        """Add a function that answers requests itself, without documentation. GET includes HEAD.

        A caller needs one of the permissions.
        """
        endpoint = RoutedEndpoint(answer, answer, permissions=permissions)
        self.add_endpoint(method, path, endpoint)
        if method == "GET":
            self.add_endpoint("HEAD", path, endpoint)

    def set_fallback(self, takes_path: Callable[[str], bool], endpoint: Endpoint) -> None:
        """Let a function answer GET and HEAD of the paths without a route that `takes_path` accepts.

        Callers need no token: the page is the same for everybody.
        """
        routed = RoutedEndpoint(endpoint, endpoint, public=True)
        path = "/{path:path}"
        endpoints = dict.fromkeys(("GET", "HEAD"), routed)
        self._fallback = _Fallback(takes_path, _Target(path, compile_path(path)[0], endpoints))

    def set_refusal_observer(self, note_refusal: RefusalObserver) -> None:
        """Call this function for every request that is answered with 401 or 403."""
        self._note_refusal = note_refusal

    def list_endpoints(self) -> Iterator[tuple[str, str, RoutedEndpoint]]:
        """Method, path and function of every route, without the fallback."""
        for target in self._targets.values():
            for method, endpoint in target.endpoints.items():
                yield method, target.path, endpoint

    def add_endpoint(self, method: str, path: str, endpoint: RoutedEndpoint) -> None:
        target = self._targets.get(path)
        if target is None:
            target = self._targets[path] = _Target(path, compile_path(path)[0], {})
            if ":path}" in path:
                self._of_any_length.append(target)
            elif "{" in path:
                self._by_part_count[path.count("/")].append(target)
            else:
                self._fixed[path] = target
        target.endpoints[method] = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        target = self._fixed.get(path)
        if target is None:
            target = self._find_target(path, scope)
        scope["app"] = self
        request = Request(scope, receive)
        origin = _find_origin(scope)
        current_origin.set(origin)
        response = await self._answer(target, request)
        if response.status_code in REFUSED_STATUSES and self._note_refusal is not None:
            self._note_refusal(request, response.status_code, origin)
        if origin.used_request_id is not None:
            response.headers[REQUEST_ID_HEADER] = origin.used_request_id
        await response(scope, receive, send)

    def _find_target(self, path: str, scope: Scope) -> _Target | None:
        for targets in (self._by_part_count.get(path.count("/"), ()), self._of_any_length):
            for target in targets:
                match = target.pattern.match(path)
                if match is not None:
                    scope["path_params"] = match.groupdict()
                    return target
        if self._fallback is not None and self._fallback.takes_path(path):
            return self._fallback.target
        return None

    async def _answer(self, target: _Target | None, request: Request) -> Response:
        try:
            if target is None:
                raise HTTPException(404)
            found = target.endpoints.get(request.method)
            if found is None:
                raise HTTPException(405, headers={"Allow": ", ".join(target.endpoints)})
            request.scope["endpoint"] = found.label
            if not found.public:
                await self._check_caller(request, found)
            return await found.answer(request)
        except NoetlError as error:
            return make_error_problem(error)
        except InvalidRequest as error:
            return make_validation_problem(error)
        except HTTPException as error:
            return make_http_problem(error)

    async def _check_caller(self, request: Request, endpoint: RoutedEndpoint) -> None:
        """Find out who calls, after the route was found: what is public is a property of routes, not
        of texts of paths."""
        identity = await identify_caller(request)
        request.scope[IDENTITY] = identity
        if endpoint.permissions:
            require(identity, *endpoint.permissions)


def _find_origin(scope: Scope) -> CallOrigin:
    client = scope.get("client")
    return CallOrigin(client[0] if client else None, scope.get("headers", ()))
