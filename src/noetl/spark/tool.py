"""`spark`: SQL or Python on a Spark Connect server. Results come in, a result goes out; rows pass neither here nor the log.

Every try has a Connect session of its own, whose id follows from the call, so whoever takes the command over can end it: the
sessions of earlier leases are ended first, and nothing can begin in them any more. If one of them had finished its files, these
are the result. Rows are written to a folder of the try; the report that names them is their commit.

The client runs in a process of its own (`child.py`), so that code can be stopped and harms nobody.
"""

import asyncio
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from noetl.model.errors import Failure, InvalidInput, Unavailable
from noetl.model.ids import derive
from noetl.playbook.templates import Marked
from noetl.playbook.validation.code import ALLOWED_CONF
from noetl.playbook.validation.spark import ON_FAIL, output_problem
from noetl.results.rowsets import Reader
from noetl.spark import commits, folders, loops, outputs, tickets, to_postgres
from noetl.spark.inputs import NOETL, InputError, Inputs
from noetl.spark.paths import check_output, format_of, local_folder, located, writing
from noetl.spark.place import SparkPlace
from noetl.spark.processes import Processes, SparkClientCrashed
from noetl.spark.profiles import Profile, profile
from noetl.spark.secrets import answering
from noetl.spark.serve import Serving
from noetl.spark.starting import ensure, period
from noetl.spark.statements import SparkStatement, expressions, statements
from noetl.tools.port import Call, Failed, ItemBatches, Looped, Outcome, Success, Told
from noetl.tools.postgres import Postgres
from noetl.tools.python import crashed
from noetl.tools.sql import SqlError

LOST, OUT_OF_MEMORY = "SPARK_LOST", "SPARK_OUT_OF_MEMORY"
RESTARTS = 2  # how often a command begins anew when its server is lost
T = TypeVar("T")
BRINGS = re.compile(
    r"\b(add|using)\s+(jar|file|archive)s?\b", re.IGNORECASE
)  # what only its own session may see


@dataclass(frozen=True, slots=True)
class Settings:
    home: Path
    profile: str = "local"
    serving: Serving = field(default_factory=Serving)
    copied: int = 64 << 20  # bytes of an input that are brought here from afar


class SparkTool:
    kind = "spark"
    raw = frozenset({"sql", "code", "inputs", "expect"})

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._processes = Processes()
        self._postgres = Postgres()
        self._begun: Counter[str] = Counter()  # sessions of one name: an id is used once
        self._swept = False

    async def close(self) -> None:
        await self._processes.close()
        await self._postgres.close()

    async def run(self, call: Call) -> Outcome:
        return await _told(self._run(call))

    async def run_loop(
        self, call: Call, items: Reader | ItemBatches, told: Told
    ) -> Looped | Failed:
        return await _told(self._loop(call, items, told))

    async def _run(self, call: Call) -> Outcome:
        work = await _work(call, self._profile(call), self._own_folders(call))
        with ExitStack() as held:
            with folders.passing(_parent(call)) as folder:
                async with (
                    self._inputs(call, folder) as inputs,
                    self._ticket(call, inputs.answer) as ticket,
                ):
                    if any(given.get("format") == NOETL for given in inputs.named.values()):
                        work["brings"] = True
                    answer = await self._served(
                        call, {**work, "inputs": inputs.named, "ticket": ticket}, held
                    )
            return await self._outcome(call, answer)

    async def _loop(self, call: Call, items: Reader | ItemBatches, told: Told) -> Looped | Failed:
        with ExitStack() as held:
            with folders.passing(_parent(call)) as folder:
                async with (
                    loops.work(call, items, folder, here=self._profile(call) == Profile()) as work,
                    self._ticket(call, answering(call)) as ticket,
                ):
                    watching = asyncio.ensure_future(loops.watch(Path(work["told"]), told))
                    try:
                        answer = await self._served(
                            call,
                            {
                                "conf": {},
                                "brings": call.config["secret"],
                                "loop": {**work, "ticket": ticket},
                            },
                            held,
                        )
                    finally:
                        watching.cancel()
                        await asyncio.gather(watching, return_exceptions=True)
            if "error" in answer:
                return Failed(Failure(**answer["error"]))
            shards = [loops.items_of(shard) for shard in answer["frames"][""]["shards"]]
            for number, shard in enumerate(shards):
                await told(number, shard)
            provenance = answer["frames"][""]["provenance"]
            return Looped(await asyncio.to_thread(outputs.value, call, answer), shards, provenance)

    def _own_folders(self, call: Call) -> list[Path]:
        """Where NoETL keeps its data on this machine: the results are beside what is on its way to them."""
        staging = call.tables.staging.folder
        return [self._settings.home] if staging is None else [self._settings.home, staging.parent]

    def _profile(self, call: Call) -> Profile:
        return profile(call.config.get("profile") or self._settings.profile)

    def _inputs(self, call: Call, folder: Path) -> Inputs:
        return Inputs(call, self._profile(call), folder, self._postgres, self._settings.copied)

    @asynccontextmanager
    async def _ticket(self, call: Call, answer: tickets.Answering) -> AsyncIterator[str]:
        host = await asyncio.to_thread(tickets.facing, self._profile(call))
        async with tickets.issued(answer, host) as ticket:
            yield ticket

    async def _served(self, call: Call, work: dict[str, Any], held: ExitStack) -> dict[str, Any]:
        """What comes of it, with a server that stays as long as this uses it. Its files are there while they are `held`."""
        where = self._profile(call)
        place = SparkPlace.below(self._settings.home)
        used = await asyncio.to_thread(place.use) if where.url is None else None
        try:
            for left in reversed(range(RESTARTS + 1)):
                url = await asyncio.to_thread(
                    ensure, self._settings.home, where, self._settings.serving
                )
                base = None if work["brings"] else _session("base", period())
                at = {"url": url, "base": base, "ours": where.url is None}
                answer = await self._attempt(call, {**work, **at}, held)
                if answer.get("error", {}).get("code") != LOST or not left:
                    break
                if left < RESTARTS and where.url is None and _ran_out(place):
                    return {
                        "error": _out_of_memory(place)
                    }  # twice: it was this command, not one beside it
                call.log("stderr", "spark: the server was lost; once more")
            return answer
        finally:
            if used is not None:
                place.leave(used)

    async def _attempt(self, call: Call, work: dict[str, Any], held: ExitStack) -> dict[str, Any]:
        earlier = list(_earlier(call))
        if earlier:
            released = await self._release(work, earlier)
            if "error" in released:
                return released
            for folder in (_place_of(call, session) for session in earlier):
                held.enter_context(folders.held(folder))
                found = _finished(folder)
                if found is not None and work.get("output", {}).get("path"):
                    work = {**work, "staged": found["frames"][""]}
                elif found is not None:
                    return found
        name = _name(call, call.identity.lease, call.identity.attempt)
        self._begun[name] += 1
        session = _session(name, self._begun[name])
        folder = _place_of(call, session)
        if not self._swept:
            self._swept = True
            await asyncio.to_thread(folders.sweep, folder.parent)
        request = {
            **work,
            "op": "run",
            "session": session,
            "key": call.key,
            "folder": str(folder),
            "copying": str(_copying(call)),
            "tags": [f"{call.identity.execution_id}.{call.identity.step}", call.key],
        }
        held.enter_context(folders.held(folder))
        try:
            answer = await self._processes.ask(request, call.log, call.progress)
        except (asyncio.CancelledError, SparkClientCrashed):
            await self._end(work, session)
            await asyncio.to_thread(_settle, work)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if "error" in answer:
            shutil.rmtree(folder, ignore_errors=True)
        return answer

    async def _release(
        self, work: dict[str, Any], sessions: list[str], *, quick: bool = False
    ) -> dict[str, Any]:
        request = {
            "op": "release",
            "url": work["url"],
            "ours": work["ours"] or quick,
            "sessions": sessions,
        }
        return await self._processes.ask(request)

    async def _end(self, work: dict[str, Any], session: str) -> None:
        """Also when this is cancelled: what runs in Spark must not outlive its command. Where nobody answers, nothing runs."""
        ending = asyncio.ensure_future(self._release(work, [session], quick=True))
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                continue
            except SparkClientCrashed:
                break

    async def _outcome(self, call: Call, answer: dict[str, Any]) -> Outcome:
        if "error" in answer:
            return Failed(Failure(**answer["error"]), sample=answer.get("sample"))
        facts = {"spark": outputs.facts(answer)}
        for check, failed in facts["spark"].get("expect", {}).items():
            if failed:
                call.log("stderr", f"spark: expect {check}: {failed} rows do not meet it")
        output = call.config.get("output") or {}
        if output.get("kind") == "postgres":
            return await to_postgres.store(call, output, answer, facts)
        return Success(await asyncio.to_thread(outputs.value, call, answer), facts)


async def _told(work: Coroutine[Any, Any, T]) -> T | Failed:
    """What is raised on the way is a failure that a playbook can route on."""
    try:
        return await work
    except (InputError, SqlError) as error:
        return Failed(error.failure)
    except InvalidInput as error:
        return Failed(Failure(code="SPARK_CONFIG", kind="config", message=_said(error)))
    except Unavailable as error:
        code = getattr(error, "code", "SPARK_UNAVAILABLE")
        return Failed(Failure(code=code, kind="unavailable", message=_said(error), retryable=True))
    except SparkClientCrashed as error:
        return crashed("spark", error.status)


# ---- what is asked ---------------------------------------------------------------------------------------------------------


async def _work(call: Call, where: Profile, own_folders: list[Path]) -> dict[str, Any]:
    config = call.config
    conf = {str(name): _conf(value) for name, value in (config.get("conf") or {}).items()}
    for name in conf:
        if not ALLOWED_CONF.fullmatch(name):
            raise InvalidInput(
                f"{name} may not be changed by a playbook", hint="it belongs to the profile"
            )
    work: dict[str, Any] = {
        "conf": conf,
        "expect": await _expected(call),
        "output": _output(config, where, own_folders),
    }
    if config.get("code") is not None:
        return {**work, "brings": True, "code": config["code"], "given": call.input}
    if config.get("sql") is None:
        raise InvalidInput("spark runs sql or code; pipeline and app are not there yet")
    found = await _statements(call, config["sql"])
    if not found:
        raise SqlError("SQL_EMPTY", "there is no statement to run")
    brings = any(BRINGS.search(each.text) for each in found)
    return {
        **work,
        "brings": brings,
        "sql": [{"text": each.text, "values": each.values} for each in found],
    }


def _output(config: dict[str, Any], where: Profile, own_folders: list[Path]) -> dict[str, Any]:
    output = dict(config.get("output") or {})
    if (problem := output_problem(output)) is not None:
        raise InvalidInput(f"output: {problem.message}", hint=problem.hint)
    if not output.get("path"):
        return output
    path = located(str(output["path"]), where)
    check_output(path, own_folders)
    format = format_of(path, output.get("format"))
    return {
        **output,
        "path": path,
        "format": format,
        "options": writing(format, output.get("options")),
    }


def _conf(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def _statements(call: Call, template: str) -> list[SparkStatement]:
    return statements(*await _marked(call, template))


async def _marked(call: Call, template: str) -> tuple[str, list[Marked]]:
    return (template, []) if call.rendering is None else await call.rendering.marked(template)


async def _expected(call: Call) -> list[dict[str, Any]]:
    """Checks with their values beside them."""
    found = []
    for check in call.config.get("expect") or []:
        sql, on_fail = check.get("sql"), check.get("on_fail", "fail")
        name = check.get("name") or sql
        one = expressions(*await _marked(call, sql)) if isinstance(sql, str) else []
        if len(one) != 1 or on_fail not in ON_FAIL:
            raise InvalidInput(
                f"expect {name}: it needs one sql expression, and on_fail is one of {', '.join(ON_FAIL)}"
            )
        found.append(
            {"name": name, "sql": one[0].text, "values": one[0].values, "on_fail": on_fail}
        )
    return found


# ---- sessions --------------------------------------------------------------------------------------------------------------


def _name(call: Call, lease: int, attempt: int) -> str:
    return f"{call.key}:{lease}:{attempt}"


def _session(name: str, number: int) -> str:
    return str(UUID(derive("spark", name, number)[:32]))


def _earlier(call: Call) -> Iterator[str]:
    """Of leases that were lost: whatever tries they made, they made no more than there are now."""
    for lease in range(1, call.identity.lease):
        for attempt in range(1, call.identity.attempt + 1):
            for number in range(1, RESTARTS + 2):
                yield _session(_name(call, lease, attempt), number)


def _parent(call: Call) -> Path:
    """Of all that Spark reads and writes for commands, one folder each."""
    folder = call.tables.staging.folder
    return (
        Path(tempfile.gettempdir()) / f"noetl-{os.getuid()}" if folder is None else folder
    ) / outputs.FOLDER


def _place_of(call: Call, session: str) -> Path:
    return _parent(call) / session


def _copying(call: Call) -> Path:
    """What is known of rows of this call that Spark copies to a path itself."""
    return _parent(call).parent / "spark-copies" / call.key[:16]


def _settle(work: dict[str, Any]) -> None:
    """The process was ended: if that was in the middle of its commit, nobody else may come to finish it."""
    folder = local_folder(work.get("output", {}).get("path") or "")
    if folder is not None:
        commits.settle(folder)


def _finished(folder: Path) -> dict[str, Any] | None:
    """What an earlier lease has left, when it is complete: the answer it did not give. Anything else is removed."""
    try:
        made = json.loads((folder / "result" / "manifest.json").read_bytes())
        if all(os.path.exists(file["path"]) for file in made["files"]):
            return {"frames": {"": made}, "single": True, "spark": {}}
    except (OSError, ValueError):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    return None


# ---- servers that are lost -------------------------------------------------------------------------------------------------


def _ran_out(place: SparkPlace) -> bool:
    """The server of this machine has said so before it ended."""
    try:
        return b"OutOfMemoryError" in place.log.read_bytes()
    except OSError:
        return False


def _out_of_memory(place: SparkPlace) -> dict[str, Any]:
    message = (
        "Spark ran out of memory and ended; use more and smaller partitions, or give it more memory "
        f"(NOETL_SPARK_JAVA_OPTIONS=-Xmx…); {place.log} has more"
    )
    return {"code": OUT_OF_MEMORY, "kind": "resource", "message": message}


def _said(error: InvalidInput | Unavailable) -> str:
    return f"{error}; {error.hint}" if error.hint else str(error)
