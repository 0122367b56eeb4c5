"""Registers a playbook, starts an execution of it, and follows it to its end."""

import asyncio
import re
import sys
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from noetl.cli.arguments import PlaybookSource
from noetl.cli.client import open_client
from noetl.cli.following import ExecutionDisplay, catch_interrupts, follow_execution
from noetl.cli.language import check_playbook_or_raise, warn_of_unknown_names
from noetl.cli.output import adapt_commands, say_row
from noetl.cli.pools import find_unserved_pools, make_start_command
from noetl.cli.story import Story
from noetl.cli.waits import PersonWait, say_unanswerable_wait, say_wait
from noetl.client.opening import open_row_client
from noetl.client.rows import Row, RowClient
from noetl.model.commands import USUAL_POOLS
from noetl.model.errors import NotFound, Unavailable
from noetl.model.ids import ExecutionId
from noetl.runtime.running_servers import find_server_address
from noetl.settings import HomeSettings, read_settings

# Seconds before the user is told that the execution runs or that no worker does.
NOTICE_DELAY_S = 3.0


async def run_playbook(
    memory: bool,
    source: PlaybookSource,
    others: list[PlaybookSource],
    workload: dict[str, Any],
    assigned: list[str],
    show: ExecutionDisplay,
) -> Story:
    async with catch_interrupts() as stop:
        if memory:
            warn_of_unknown_names(source.text or "", assigned)
            return await _run_in_memory(source, others, workload, show, stop)
        async with open_client("run", find_pools(source, *others)) as client:
            if assigned:
                with suppress(NotFound):  # the start reports it
                    text = await _read_playbook_text(client, source)
                    warn_of_unknown_names(text, assigned)
            execution_id = await register_and_start(client, source, others, workload)
            said: list[PersonWait] = []

            def announce_wait(execution_id: ExecutionId, wait: PersonWait) -> None:
                said.append(wait)
                say_wait(execution_id, wait)

            notice = asyncio.ensure_future(_notify_user(client, execution_id, show, said))
            try:
                return await follow_execution(client, execution_id, show, stop, announce_wait)
            finally:
                notice.cancel()


async def start_detached(
    source: PlaybookSource,
    others: list[PlaybookSource],
    workload: dict[str, Any],
    assigned: list[str],
    as_json: bool,
) -> None:
    """Start an execution on a server, and print its id and the address of its page."""
    address = find_server_address()
    if address is None:
        raise Unavailable(
            "no server runs on this home, and an execution that nobody waits for needs one",
            hint="noetl dev starts a server and a worker; noetl run without --detach needs none",
        )
    home = read_settings(HomeSettings).home_path
    async with open_row_client(address, home, "run", find_pools(source, *others)) as client:
        if assigned and source.text:
            warn_of_unknown_names(source.text, assigned)
        execution_id = await register_and_start(client, source, others, workload)
        url = f"{address}/executions/{execution_id}"
        sentence = f"execution {execution_id} has started\npage at {url}"
        say_row({"execution_id": execution_id, "url": url}, sentence, as_json=as_json)


async def _read_playbook_text(client: RowClient, source: PlaybookSource) -> str:
    """The text of a file, or of the playbook in the catalog."""
    if source.text:
        return source.text
    row = await client.get_playbook(source.name)
    return str(row["content"])


async def _notify_user(
    client: RowClient, execution_id: ExecutionId, show: ExecutionDisplay, said: list[PersonWait]
) -> None:
    """Tell the user after a while that the execution runs, or that no worker takes its commands.

    Without it, a long execution outside a terminal, or a server without a worker, looks stuck.
    What it waits for was `said` already, with the same page.
    """
    await asyncio.sleep(NOTICE_DELAY_S)
    if not show.live and not said:
        where = f"execution {execution_id} is under way: noetl exec get {execution_id} says how far"
        print(adapt_commands(where), file=sys.stderr)
        address = find_server_address()
        if address is not None:
            print(f"in a browser: {address}/executions/{execution_id}", file=sys.stderr)
    with suppress(Unavailable):
        if client.has_server:
            await _warn_of_missing_workers(client, execution_id)


async def _warn_of_missing_workers(client: RowClient, execution_id: ExecutionId) -> None:
    """Warn of commands that no worker will take. A step that waits for a person has none."""
    queued = await client.list_queue("queued", execution_id)
    pools = await find_unserved_pools(client, queued)
    if pools:
        missing = f"no worker of the pool {', '.join(pools)} is there yet"
        warning = f"{missing}: {make_start_command(pools)}; Ctrl-C cancels the execution"
        print(adapt_commands(warning), file=sys.stderr)


async def _run_in_memory(
    source: PlaybookSource,
    others: list[PlaybookSource],
    workload: dict[str, Any],
    show: ExecutionDisplay,
    stop: asyncio.Event,
) -> Story:
    # Only `--memory` needs the twins of the stores.
    from noetl.runtime.memory import MemoryCluster

    pools = (*USUAL_POOLS, *find_pools(source, *others))
    async with MemoryCluster(pools=pools, check=check_playbook_or_raise) as cluster:
        for other in others:
            await cluster.register(other.text or "", other.name)
        execution_id = await cluster.start(source.text or "", source.name, workload)
        return await follow_execution(cluster, execution_id, show, stop, say_unanswerable_wait)


def find_pools(*sources: PlaybookSource) -> tuple[str, ...]:
    """Names that may be pools of the playbooks. They are searched in the text: extra ones are harmless."""
    names: list[str] = []
    for source in sources:
        names += re.findall(r"""\bpool:\s*["']?([\w.-]+)""", source.text or "")
    return tuple(dict.fromkeys(names))


async def register_and_start(
    client: RowClient,
    source: PlaybookSource,
    others: list[PlaybookSource],
    workload: dict[str, Any],
) -> ExecutionId:
    """Register the files and start an execution."""
    for other in others:
        await _register_source(client, other)
    if source.text is not None:
        row = await _register_source(client, source)
        # By version: another process may register a newer text meanwhile.
        return await client.start(row["path"], row["version"], workload)
    path = source.name
    try:
        return await client.start(path, None, workload)
    except NotFound as error:
        raise NotFound(
            f"no file and no playbook of the catalog is called {path!r}",
            hint=await suggest_playbook(client, path),
        ) from error


async def _register_source(client: RowClient, source: PlaybookSource) -> Row:
    check_playbook_or_raise(
        source.text or "", source.name
    )  # checked here, so that findings name the file
    return await client.register(source.text or "")


async def suggest_playbook(client: RowClient, path: str) -> str:
    """A hint for a playbook that does not exist: the most similar path, or how to list them."""
    names = [row["path"] for row in await client.list_playbooks()]
    close = get_close_matches(path, names, 1)
    if not close:
        return "noetl catalog list shows what there is"
    return f"did you mean {close[0]}?"
