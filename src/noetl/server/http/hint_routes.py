"""Translates the `noetl` commands that hints name into routes, for clients that use HTTP."""

import re

RESULT_ROUTE = "/api/executions/{execution_id}/result/{step}"
# A pattern of a command, and its route; {0} stands for the first group of the pattern.
COMMAND_ROUTES = (
    (r"noetl exec list\b", "GET /api/executions"),
    (r"noetl exec get (\d+)", "GET /api/executions/{0}"),
    (r"noetl exec events (\d+)", "GET /api/executions/{0}/events"),
    (r"noetl exec release (\d+)", "POST /api/executions/{0}/release"),
    (r"noetl exec explain (\d+) ([\w-]+)", "GET /api/executions/{0}/explain/{1}"),
    (r"noetl exec retry (\d+)", "POST /api/executions/{0}/retry"),
    (r"noetl exec rerun (\d+)", "POST /api/executions/{0}/rerun"),
    (r"noetl result show\b", f"GET {RESULT_ROUTE}"),
    (r"noetl result pin\b", f"POST {RESULT_ROUTE}/pin"),
    (r"\bformat (json|jsonl|csv|parquet)\b", f"GET {RESULT_ROUTE}/data?format={{0}}"),
    (r"noetl catalog list\b", "GET /api/catalog"),
    (r"noetl catalog register\b", "POST /api/catalog/register"),
    (r"noetl credential delete ([\w.-]+)", "DELETE /api/credentials/{0}"),
    (r"noetl credential add\b", "POST /api/credentials"),
    (r"noetl token create\b", "POST /api/tokens"),
    (r"noetl token list\b", "GET /api/tokens"),
    (r"noetl tenant list\b", "GET /api/tenants"),
    (r"noetl tenant quota set ([\w-]+)", "PUT /api/tenants/{0}/quotas"),
    (r"noetl user list\b", "GET /api/users"),
    (r"noetl user password\b", "PUT /api/users/{user}/password"),
    (r"noetl audit list\b", "GET /api/audit"),
    (r"noetl schedule list\b", "GET /api/schedules"),
    (r"noetl hook list\b", "GET /api/hooks"),
)


def find_routes(hint: str | None) -> list[str]:
    """The routes for the commands of the hint, in the order of the commands."""
    found: list[tuple[int, str]] = []
    for command, route in COMMAND_ROUTES:
        for match in re.finditer(command, hint or ""):
            found.append((match.start(), _fill_route(route, match)))
    return [route for _, route in sorted(found)]


def _fill_route(route: str, match: re.Match[str]) -> str:
    for number, value in enumerate(match.groups()):
        route = route.replace(f"{{{number}}}", value)
    return route
