"""The tool `spark`: SQL or Python on a Spark Connect server.

Inputs and outputs are results; their rows pass neither through the worker nor through the log.

Every try has its own Connect session, and the id of the session is computed from the call. So a
worker that takes a command over can end the sessions of earlier leases first, and nothing can begin
in them any more. If an earlier lease has completed its files, they are the result. Rows are written
to a folder of the try; the report that names them is their commit.

The client runs in a process of its own (`child.py`), so that user code can be stopped and cannot
harm the worker.
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
from noetl.spark.messages import CheckSpec, FailureFields, OutputSpec, SparkAnswer, SparkRequest
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
# Statements that add files to a session: such a session is not a copy of the shared base session.
BRINGS = re.compile(r"\b(add|using)\s+(jar|file|archive)s?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Settings:
    home: Path
    profile: str = "local"
    serving: Serving = field(default_factory=Serving)
    copied: int = 64 << 20  # the most bytes of an input that are downloaded from an object store


class SparkTool:
    kind = "spark"
    raw = frozenset({"sql", "code", "inputs", "expect"})

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._processes = Processes()
        self._postgres = Postgres()
        self._begun: Counter[str] = Counter()  # sessions by name, so that no id is used twice
        self._swept = False

    async def close(self) -> None:
        await self._processes.close()
        await self._postgres.close()

    async def run(self, call: Call) -> Outcome:
        return await _told(self._run(call))

    async def run_loop(
        self,
        call: Call,
        items: Reader | ItemBatches,
        told: Told,
    ) -> Looped | Failed:
        return await _told(self._loop(call, items, told))

    async def _run(self, call: Call) -> Outcome:
        own_folders = self._own_folders(call)
        work = await _work(call, self._profile(call), own_folders)
        with ExitStack() as held_folders:
            with folders.passing(_parent(call)) as folder:
                async with (
                    self._inputs(call, folder) as inputs,
                    self._ticket(call, inputs.answer) as ticket,
                ):
                    formats = {spec.get("format") for spec in inputs.named.values()}
                    if NOETL in formats:
                        work["brings"] = True
                    work = {**work, "inputs": inputs.named, "ticket": ticket}
                    answer = await self._served(call, work, held_folders)
            return await self._outcome(call, answer)

    async def _loop(
        self,
        call: Call,
        items: Reader | ItemBatches,
        listener: Told,
    ) -> Looped | Failed:
        is_local = self._profile(call) == Profile()
        with ExitStack() as held_folders:
            with folders.passing(_parent(call)) as folder:
                async with (
                    loops.work(call, items, folder, here=is_local) as loop,
                    self._ticket(call, answering(call)) as ticket,
                ):
                    work = {
                        "conf": {},
                        "brings": call.config["secret"],
                        "loop": {**loop, "ticket": ticket},
                    }
                    watch = loops.watch(Path(loop["told"]), listener)
                    watching = asyncio.ensure_future(watch)
                    try:
                        answer = await self._served(call, work, held_folders)
                    finally:
                        watching.cancel()
                        await asyncio.gather(watching, return_exceptions=True)
            if "error" in answer:
                return Failed(Failure(**answer["error"]))
            frame = answer["frames"][""]
            shards = [loops.items_of(shard) for shard in frame["shards"]]
            for number, shard in enumerate(shards):
                await listener(number, shard)
            value = await asyncio.to_thread(outputs.value, call, answer)
            return Looped(value, shards, frame["provenance"])

    def _own_folders(self, call: Call) -> list[Path]:
        """The folders of this machine in which NoETL keeps its data. Results are beside staging."""
        staging = call.tables.staging.folder
        if staging is None:
            return [self._settings.home]
        return [self._settings.home, staging.parent]

    def _profile(self, call: Call) -> Profile:
        return profile(call.config.get("profile") or self._settings.profile)

    def _inputs(self, call: Call, folder: Path) -> Inputs:
        return Inputs(call, self._profile(call), folder, self._postgres, self._settings.copied)

    @asynccontextmanager
    async def _ticket(self, call: Call, answer: tickets.Answering) -> AsyncIterator[str]:
        host = await asyncio.to_thread(tickets.facing, self._profile(call))
        async with tickets.issued(answer, host) as ticket:
            yield ticket

    async def _served(self, call: Call, work: SparkRequest, held_folders: ExitStack) -> SparkAnswer:
        """The answer to a request, from a server that is kept running meanwhile.

        `held_folders` keeps the locks of the folders that hold the files of the answer.
        """
        profile = self._profile(call)
        is_ours = profile.url is None
        place = SparkPlace.below(self._settings.home)
        used = None
        if is_ours:
            used = await asyncio.to_thread(place.use)
        try:
            for restarts_left in reversed(range(RESTARTS + 1)):
                url = await asyncio.to_thread(
                    ensure,
                    self._settings.home,
                    profile,
                    self._settings.serving,
                )
                base = None if work["brings"] else _session("base", period())
                server = {"url": url, "base": base, "ours": is_ours}
                answer = await self._attempt(call, {**work, **server}, held_folders)
                error_code = answer.get("error", {}).get("code")
                if error_code != LOST or not restarts_left:
                    break
                is_second_loss = restarts_left < RESTARTS
                if is_second_loss and is_ours and _ran_out(place):
                    # Lost twice: this command uses the memory, not one beside it.
                    return {"error": _out_of_memory(place)}
                call.log("stderr", "spark: the server was lost; once more")
            return answer
        finally:
            if used is not None:
                place.leave(used)

    async def _attempt(
        self, call: Call, work: SparkRequest, held_folders: ExitStack
    ) -> SparkAnswer:
        """Run the request in a new session, after the sessions of earlier leases are ended."""
        earlier = list(_earlier(call))
        if earlier:
            released = await self._release(work, earlier)
            if "error" in released:
                return released
        for earlier_session in earlier:
            earlier_folder = _place_of(call, earlier_session)
            held_folders.enter_context(folders.held(earlier_folder))
            found = _finished(earlier_folder)
            if found is None:
                continue
            if not work.get("output", {}).get("path"):
                return found
            work = {**work, "staged": found["frames"][""]}
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
        held_folders.enter_context(folders.held(folder))
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
        self,
        work: SparkRequest,
        sessions: list[str],
        *,
        quick: bool = False,
    ) -> SparkAnswer:
        request = {
            "op": "release",
            "url": work["url"],
            "ours": work["ours"] or quick,
            "sessions": sessions,
        }
        return await self._processes.ask(request)

    async def _end(self, work: SparkRequest, session: str) -> None:
        """End a session, even if this is cancelled: an operation in Spark must not outlive its
        command. If the server does not answer, nothing runs there."""
        release = self._release(work, [session], quick=True)
        ending = asyncio.ensure_future(release)
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                continue
            except SparkClientCrashed:
                break

    async def _outcome(self, call: Call, answer: SparkAnswer) -> Outcome:
        if "error" in answer:
            failure = Failure(**answer["error"])
            return Failed(failure, sample=answer.get("sample"))
        facts = {"spark": outputs.facts(answer)}
        failed_rows = facts["spark"].get("expect", {})
        for check, failed in failed_rows.items():
            if failed:
                call.log("stderr", f"spark: expect {check}: {failed} rows do not meet it")
        output = call.config.get("output") or {}
        if output.get("kind") == "postgres":
            return await to_postgres.store(call, output, answer, facts)
        return Success(await asyncio.to_thread(outputs.value, call, answer), facts)


async def _told(work: Coroutine[Any, Any, T]) -> T | Failed:
    """The result of the work. Expected exceptions become failures, so that a playbook can route on
    them."""
    try:
        return await work
    except (InputError, SqlError) as error:
        return Failed(error.failure)
    except InvalidInput as error:
        message = _said(error)
        return Failed(Failure(code="SPARK_CONFIG", kind="config", message=message))
    except Unavailable as error:
        code = getattr(error, "code", "SPARK_UNAVAILABLE")
        message = _said(error)
        failure = Failure(code=code, kind="unavailable", message=message, retryable=True)
        return Failed(failure)
    except SparkClientCrashed as error:
        return crashed("spark", error.status)


# ---- requests --------------------------------------------------------------------------------------------------------------


async def _work(call: Call, profile: Profile, own_folders: list[Path]) -> SparkRequest:
    """The part of the request that follows from the step's configuration."""
    config = call.config
    work: SparkRequest = {
        "conf": _read_conf(config),
        "expect": await _expected(call),
        "output": _output(config, profile, own_folders),
    }
    if config.get("code") is not None:
        return {**work, "brings": True, "code": config["code"], "given": call.input}
    if config.get("sql") is None:
        raise InvalidInput("spark runs sql or code; pipeline and app are not there yet")
    found = await _statements(call, config["sql"])
    if not found:
        raise SqlError("SQL_EMPTY", "there is no statement to run")
    brings = any(BRINGS.search(statement.text) for statement in found)
    sql = [{"text": statement.text, "values": statement.values} for statement in found]
    return {**work, "brings": brings, "sql": sql}


def _output(
    config: dict[str, Any],
    profile: Profile,
    own_folders: list[Path],
) -> OutputSpec:
    output = dict(config.get("output") or {})
    problem = output_problem(output)
    if problem is not None:
        raise InvalidInput(f"output: {problem.message}", hint=problem.hint)
    if not output.get("path"):
        return output
    path = located(str(output["path"]), profile)
    check_output(path, own_folders)
    format = format_of(path, output.get("format"))
    options = writing(format, output.get("options"))
    return {**output, "path": path, "format": format, "options": options}


def _read_conf(config: dict[str, Any]) -> dict[str, str]:
    """The settings of the session. InvalidInput if a playbook may not change one of them."""
    given = config.get("conf") or {}
    conf = {str(name): _conf(value) for name, value in given.items()}
    for name in conf:
        if not ALLOWED_CONF.fullmatch(name):
            raise InvalidInput(
                f"{name} may not be changed by a playbook", hint="it belongs to the profile"
            )
    return conf


def _conf(value: Any) -> str:
    text = str(value)
    return text.lower() if isinstance(value, bool) else text


async def _statements(call: Call, template: str) -> list[SparkStatement]:
    return statements(*await _marked(call, template))


async def _marked(call: Call, template: str) -> tuple[str, list[Marked]]:
    if call.rendering is None:
        return template, []
    return await call.rendering.marked(template)


async def _expected(call: Call) -> list[CheckSpec]:
    """The checks of the step. Their values are parameters."""
    checks = []
    for check in call.config.get("expect") or []:
        sql, on_fail = check.get("sql"), check.get("on_fail", "fail")
        name = check.get("name") or sql
        parsed: list[SparkStatement] = []
        if isinstance(sql, str):
            parsed = expressions(*await _marked(call, sql))
        if len(parsed) != 1 or on_fail not in ON_FAIL:
            raise InvalidInput(
                f"expect {name}: it needs one sql expression, and on_fail is one of {', '.join(ON_FAIL)}"
            )
        (expression,) = parsed
        checks.append(
            {
                "name": name,
                "sql": expression.text,
                "values": expression.values,
                "on_fail": on_fail,
            }
        )
    return checks


# ---- sessions --------------------------------------------------------------------------------------------------------------


def _name(call: Call, lease: int, attempt: int) -> str:
    return f"{call.key}:{lease}:{attempt}"


def _session(name: str, number: int) -> str:
    return str(UUID(derive("spark", name, number)[:32]))


def _earlier(call: Call) -> Iterator[str]:
    """All ids that sessions of lost leases can have. A lost lease made at most as many tries as
    there are now."""
    for lease in range(1, call.identity.lease):
        for attempt in range(1, call.identity.attempt + 1):
            for number in range(1, RESTARTS + 2):
                yield _session(_name(call, lease, attempt), number)


def _parent(call: Call) -> Path:
    """The folder that holds the folders of all commands."""
    folder = call.tables.staging.folder
    if folder is None:
        folder = Path(tempfile.gettempdir()) / f"noetl-{os.getuid()}"
    return folder / outputs.FOLDER


def _place_of(call: Call, session: str) -> Path:
    return _parent(call) / session


def _copying(call: Call) -> Path:
    """The file that records a copy by Spark's writer (`publishing.py`)."""
    return _parent(call).parent / "spark-copies" / call.key[:16]


def _settle(work: SparkRequest) -> None:
    """Finish a commit that the killed process has left pending: no later process may come to do it."""
    path = work.get("output", {}).get("path")
    folder = local_folder(path or "")
    if folder is not None:
        commits.settle(folder)


def _finished(folder: Path) -> SparkAnswer | None:
    """The answer of an earlier lease that has completed its files but not reported them.

    An incomplete folder is removed.
    """
    try:
        manifest = json.loads((folder / "result" / "manifest.json").read_bytes())
        if all(os.path.exists(file["path"]) for file in manifest["files"]):
            return {
                "frames": {"": manifest},
                "single": True,
                "spark": {},
            }
    except (OSError, ValueError):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    return None


# ---- lost servers ----------------------------------------------------------------------------------------------------------


def _ran_out(place: SparkPlace) -> bool:
    """Whether the log of this machine's server reports that it ran out of memory."""
    try:
        return b"OutOfMemoryError" in place.log.read_bytes()
    except OSError:
        return False


def _out_of_memory(place: SparkPlace) -> FailureFields:
    message = (
        "Spark ran out of memory and ended; use more and smaller partitions, or give it more memory "
        f"(NOETL_SPARK_JAVA_OPTIONS=-Xmx…); {place.log} has more"
    )
    return {"code": OUT_OF_MEMORY, "kind": "resource", "message": message}


def _said(error: InvalidInput | Unavailable) -> str:
    return f"{error}; {error.hint}" if error.hint else str(error)
