"""Hints name commands, as `noetl` has them; whoever speaks HTTP is told the routes that do the same."""

import re

RESULT = "/api/executions/{execution_id}/result/{step}"
# What a hint says, and the route; a number in brackets stands for what was found there.
ROUTES = (
    (r"noetl exec list\b", "GET /api/executions"),
    (r"noetl exec explain (\d+) ([\w-]+)", "GET /api/executions/{0}/explain/{1}"),
    (r"noetl exec retry (\d+)", "POST /api/executions/{0}/retry"),
    (r"noetl exec rerun (\d+)", "POST /api/executions/{0}/rerun"),
    (r"noetl result show\b", f"GET {RESULT}"),
    (r"noetl result pin\b", f"POST {RESULT}/pin"),
    (r"--format (\w+)", f"GET {RESULT}/data?format={{0}}"),
    (r"noetl catalog list\b", "GET /api/catalog"),
    (r"noetl catalog register\b", "POST /api/catalog/register"),
    (r"noetl credential delete ([\w.-]+)", "DELETE /api/credentials/{0}"),
    (r"noetl credential add\b", "POST /api/credentials"),
    (r"noetl schedule list\b", "GET /api/schedules"),
    (r"noetl hook list\b", "GET /api/hooks"),
)


def routes(hint: str | None) -> list[str]:
    """In the order in which the hint names their commands."""
    found = [
        (match.start(), _filled(route, match))
        for said, route in ROUTES
        for match in re.finditer(said, hint or "")
    ]
    return [route for _, route in sorted(found)]


def _filled(route: str, match: re.Match[str]) -> str:
    for number, value in enumerate(match.groups()):
        route = route.replace(f"{{{number}}}", value)
    return route
