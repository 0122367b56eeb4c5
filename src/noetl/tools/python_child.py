"""Runs inside the child process of the python tool: executes the code it reads from stdin and writes one JSON answer to a pipe.

Stands alone: it imports nothing of ours, since the child is isolated (`python -I`) and must start fast.
"""

import ast
import asyncio
import base64
import inspect
import json
import os
import sys
import traceback
from typing import Any

FILE = "<code>"
WHOLE = ("input", "args", "input_data")  # names under which the code sees its whole input


def main() -> None:
    pipe = int(sys.argv[1])
    os.set_inheritable(pipe, False)
    request = json.loads(sys.stdin.buffer.read())
    sys.stdin = open(os.devnull)  # noqa: SIM115 - for the rest of the process
    answer = run(request["code"], request["input"])
    sys.stdout.flush()
    sys.stderr.flush()
    with os.fdopen(pipe, "wb") as out:
        out.write(answer)


def run(code: str, given: dict[str, Any]) -> bytes:
    try:
        return encode({"value": execute(code, given)})
    except SystemExit as end:
        return encode(
            {"value": None}
            if end.code in (None, 0)
            else failure("SystemExit", f"the code ended with exit({end.code!r})")
        )
    except BaseException as error:  # whatever the code raises is its answer
        return encode(failure(type(error).__name__, str(error), error))


def failure(name: str, message: str, error: BaseException | None = None) -> dict[str, Any]:
    lines = (
        [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE] if error else []
    )
    if isinstance(error, SyntaxError) and error.lineno:
        lines = [error.lineno]
    trace = "".join(traceback.format_exception(error))[-2000:] if error else ""
    return {"error": name, "message": message[:2000], "line": lines[-1] if lines else None, "trace": trace}


def encode(answer: dict[str, Any]) -> bytes:
    try:
        return json.dumps(answer, default=plain, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return json.dumps({"error": "RESULT_NOT_JSON", "message": f"the result is not JSON: {error}"[:2000]}).encode()


def plain(value: Any) -> Any:
    """What JSON lacks and data code returns all the time: moments, sets, bytes, numbers and frames of data libraries."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    for name, arguments in (("isoformat", ()), ("to_dicts", ()), ("to_pylist", ()), ("tolist", ()), ("_asdict", ())):
        if callable(method := getattr(value, name, None)):
            return method(*arguments)
    if type(value).__name__ == "DataFrame" and callable(getattr(value, "to_dict", None)):
        return value.to_dict("records")
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if type(value).__name__ in ("Decimal", "UUID", "Path", "PosixPath", "Fraction"):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def execute(code: str, given: dict[str, Any]) -> Any:
    names: dict[str, Any] = {"__name__": "__noetl__", "__builtins__": __builtins__}
    names |= dict.fromkeys(WHOLE, given)
    names |= given
    before = names.get("result")
    tree = ast.parse(code, FILE)
    returned = returns(tree)
    value = _run(wrapped(tree) if returned else tree, names, returned)
    if returned:
        return value
    if "result" in names and names["result"] is not before:
        return names["result"]
    if callable(entry := names.get("main")):
        return settled(entry(*bound(entry, given)[0], **bound(entry, given)[1]))
    return names.get("result") if "result" not in given else None


def _run(tree: ast.Module, names: dict[str, Any], returned: bool) -> Any:
    made = compile(tree, FILE, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if made.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(made, names))  # noqa: S307 - running the playbook's code is what this process is for
    else:
        exec(made, names)  # noqa: S102 - as above
    return settled(names["__noetl__"]()) if returned else None


def settled(value: Any) -> Any:
    async def wait() -> Any:
        return await value

    return asyncio.run(wait()) if inspect.isawaitable(value) else value


def bound(entry: Any, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of `main`: inputs by name; a parameter called input, args or input_data gets them all, as does a lone one."""
    parameters = list(inspect.signature(entry).parameters.values())
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return [], dict(given)
    named = {p.name: given.get(p.name, given) for p in parameters if p.name in given or p.name in WHOLE}
    missing = [p for p in parameters if p.name not in named and p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    if len(parameters) == 1 and missing:
        return [given], {}
    return [], named


NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


def top_level(tree: ast.AST) -> list[ast.AST]:
    """Nodes of the module's own scope."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(tree):
        found.append(child)
        if not isinstance(child, SCOPES):
            found += top_level(child)
    return found


def returns(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Return) for node in top_level(tree))


def wrapped(tree: ast.Module) -> ast.Module:
    """The code as the body of a function, whose names stay the module's, so that a top-level `return` has a meaning."""
    own = top_level(tree)
    names: set[str] = set()
    for node in own:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            names.add(node.id)
        elif isinstance(node, NAMED) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.alias) and node.name != "*":
            names.add(node.asname or node.name.partition(".")[0])
    waits = any(isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in own)
    function = ast.parse("async def __noetl__(): pass" if waits else "def __noetl__(): pass", FILE).body[0]
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    declared: list[ast.stmt] = [ast.Global(sorted(names))] if names else []
    function.body = declared + tree.body
    return ast.fix_missing_locations(ast.Module([function], tree.type_ignores))


if __name__ == "__main__":
    main()
