"""The scenarios of `blackbox.py` written for DBOS: a program that runs in an environment with DBOS, not in ours.

It answers each line of JSON on its standard input with one on its standard output. DBOS is a library, so whoever
starts workflows is in the process that runs them: there is no HTTP between them, and no process of its own for code.
Every step and every item of a loop is a DBOS step, recorded in Postgres when it is done. Chains are plain functions, which
DBOS runs in threads; as coroutines they took more processor time. The items of a loop are coroutines, so that they run at once.

    python peer_dbos.py postgresql://user:password@host:port/database
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from dbos import DBOS, SetWorkflowID

LINE_LIMIT_BYTES = 64 << 20


@DBOS.step()
def give_number(i: int) -> dict[str, int]:
    return {"i": i}


@DBOS.step()
async def give_item(i: int) -> dict[str, int]:
    return {"i": i}


@DBOS.step()
async def mark_item(i: int, file: str) -> dict[str, int]:
    with Path(file).open("a") as out:  # noqa: ASYNC230 - as a step of ours does
        out.write(f"{i}\n")
    return {"i": i}


@DBOS.step()
async def add_numbers(rows: list[dict[str, int]]) -> dict[str, int]:
    return {"i": sum(row["i"] for row in rows), "rows": len(rows)}


@DBOS.step()
def make_rows(code: str, n: int) -> list[dict[str, Any]]:
    names: dict[str, Any] = {"n": n}
    exec(code, names)
    rows: list[dict[str, Any]] = names["result"]
    return rows


@DBOS.step()
def add_rows(code: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    names: dict[str, Any] = {"rows": rows}
    exec(code, names)
    found: dict[str, Any] = names["result"]
    return found


@DBOS.workflow()
def run_chain(length: int, first: int) -> dict[str, int]:
    value = give_number(first)
    for _ in range(length - 1):
        value = give_number(value["i"] + 1)
    return value


def run_chains(length: int, firsts: list[int]) -> list[dict[str, int]]:
    handles = [DBOS.start_workflow(run_chain, length, first) for first in firsts]
    return [handle.get_result() for handle in handles]


@DBOS.workflow()
async def run_loop(items: list[int], file: str | None) -> dict[str, int]:
    """All items are started at once, in their order: DBOS gives a step its number when it starts."""
    calls = [give_item(i) if file is None else mark_item(i, file) for i in items]
    rows = await asyncio.gather(*calls)
    return await add_numbers(rows)


@DBOS.workflow()
def pass_rows(make_code: str, add_code: str, n: int) -> dict[str, Any]:
    return add_rows(add_code, make_rows(make_code, n))


async def answer_request(request: list[Any]) -> Any:
    match request:
        case ["chains", length, firsts]:
            return await asyncio.to_thread(run_chains, length, firsts)
        case ["loop", items]:
            return await run_loop(items, None)
        case ["rows", make_code, add_code, n]:
            return await asyncio.to_thread(pass_rows, make_code, add_code, n)
        case ["begin_loop", workflow_id, items, file]:
            with SetWorkflowID(workflow_id):
                await DBOS.start_workflow_async(run_loop, items, file)
            return workflow_id
        case ["result", workflow_id]:
            handle: Any = await DBOS.retrieve_workflow_async(workflow_id)
            return await handle.get_result(polling_interval_sec=0.05)
        case _:
            raise ValueError(request)


async def serve_requests() -> None:
    stdin = asyncio.StreamReader(limit=LINE_LIMIT_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    while line := await stdin.readline():
        answer = await answer_request(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def main() -> None:
    DBOS(
        config={
            "name": "noetl-bench",
            "system_database_url": sys.argv[1],
            "application_version": "1",
            "executor_id": "local",  # a process that starts again recovers what it had begun
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    asyncio.run(serve_requests())


if __name__ == "__main__":
    main()
