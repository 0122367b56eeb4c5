"""The tool `spark`: SQL or Python on a Spark Connect server.

Inputs and outputs are results; their rows pass neither through the worker nor through the log.

Every try has its own Connect session, and the id of the session is computed from the call. So a
worker that takes a command over can end the sessions of earlier leases first, and nothing can begin
in them any more. If an earlier lease has completed its files, they are the result. Rows are written
to a folder of the try; the report that names them is their commit.

The client runs in a process of its own (`spark/client/process.py`), so that user code can be stopped and cannot
harm the worker.
"""

import asyncio
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

from msgspec.structs import replace

from noetl.model.errors import Failure, InvalidInput, Unavailable
from noetl.model.ids import derive_id
from noetl.playbook.validation.code import ALLOWED_CONF
from noetl.playbook.validation.spark import ON_FAIL_CHOICES, find_output_problem
from noetl.results.formats.rowsets import RowSetReader
from noetl.spark import commits
from noetl.spark.messages import (
    CheckSpec,
    ConnectServer,
    FrameManifest,
    OutputSpec,
    ReleaseRequest,
    RunRequest,
    SparkAnswer,
    SparkStatement,
    SparkWork,
    decode_message,
)
from noetl.spark.paths import (
    check_output_path,
    choose_format,
    find_local_folder,
    make_writer_options,
    resolve_path,
)
from noetl.spark.profiles import SparkProfile, find_local_address, parse_profile
from noetl.spark.server.process import SparkServerSettings
from noetl.spark.server.server_start import current_base_period, ensure_spark_server
from noetl.spark.server.server_state import SparkServerState
from noetl.spark.step import folders, loops, outputs, tickets, to_postgres
from noetl.spark.step.client_process import MAX_VALUE_BYTES, SparkClientCrashed, SparkClients
from noetl.spark.step.inputs import NOETL, InputError, SparkInputs
from noetl.spark.step.statements import parse_spark_expressions, parse_spark_sql
from noetl.spark.tasks.secrets import make_secret_answerer
from noetl.template.model import MarkedValue
from noetl.tools.port import Call, Failed, ItemBatches, Looped, Outcome, PartListener, Success
from noetl.tools.postgres.tool import Postgres
from noetl.tools.python.tool import crash_failure
from noetl.tools.sql.statements import SqlError

LOST, OUT_OF_MEMORY = "SPARK_LOST", "SPARK_OUT_OF_MEMORY"
MAX_RESTARTS = 2  # how often a command starts again when its server is lost
T = TypeVar("T")
# Statements that add files to a session: such a session is not a copy of the shared base session.
ADDS_FILES = re.compile(r"\b(add|using)\s+(jar|file|archive)s?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SparkToolSettings:
    home: Path
    profile: str = "local"
    serving: SparkServerSettings = field(default_factory=SparkServerSettings)
    # The most bytes of an input that are downloaded from an object store.
    max_download_bytes: int = 64 << 20


class SparkTool:
    kind = "spark"
    raw = frozenset({"sql", "code", "inputs", "expect"})

    def __init__(self, settings: SparkToolSettings) -> None:
        self._settings = settings
        self._processes = SparkClients()
        self._postgres = Postgres()
        # Sessions by name, so that no id is used twice.
        self._session_counts: Counter[str] = Counter()
        self._has_swept = False

    async def close(self) -> None:
        await self._processes.close()
        await self._postgres.close()

    async def run(self, call: Call) -> Outcome:
        return await _catch_failures(self._run_step(call))

    async def run_loop(
        self,
        call: Call,
        items: RowSetReader | ItemBatches,
        told: PartListener,
    ) -> Looped | Failed:
        return await _catch_failures(self._run_step_loop(call, items, told))

    async def _run_step(self, call: Call) -> Outcome:
        own_folders = self._list_own_folders(call)
        work = await _make_step_work(call, self._read_profile(call), own_folders)
        with ExitStack() as held_folders:
            with folders.make_temporary_folder(_find_parent_folder(call)) as folder:
                async with (
                    self._open_step_inputs(call, folder) as inputs,
                    self._open_ticket(call, inputs.answer_question) as ticket,
                ):
                    formats = {spec.format for spec in inputs.specs.values()}
                    brings = work.brings or NOETL in formats
                    work = replace(work, brings=brings, inputs=inputs.specs, ticket=ticket)
                    answer = await self._run_on_server(call, work, held_folders)
            return await self._make_step_outcome(call, answer)

    async def _run_step_loop(
        self,
        call: Call,
        items: RowSetReader | ItemBatches,
        listener: PartListener,
    ) -> Looped | Failed:
        is_local = self._read_profile(call) == SparkProfile()
        with ExitStack() as held_folders:
            with folders.make_temporary_folder(_find_parent_folder(call)) as folder:
                async with (
                    loops.describe_loop(call, items, folder, here=is_local) as loop,
                    self._open_ticket(call, make_secret_answerer(call)) as ticket,
                ):
                    work = SparkWork(
                        brings=call.config["secret"], loop=replace(loop, ticket=ticket)
                    )
                    watch = loops.watch_reports(Path(loop.reports), listener)
                    watching = asyncio.ensure_future(watch)
                    try:
                        answer = await self._run_on_server(call, work, held_folders)
                    finally:
                        watching.cancel()
                        await asyncio.gather(watching, return_exceptions=True)
            if answer.error is not None:
                return Failed(answer.error)
            assert answer.frames is not None, "a loop gives a frame"
            frame = answer.frames[""]
            for number, shard in enumerate(frame.shards):
                await listener(number, shard)
            value = await asyncio.to_thread(outputs.make_value, call, answer)
            return Looped(value, frame.shards, frame.provenance)

    def _list_own_folders(self, call: Call) -> list[Path]:
        """The folders of this machine in which NoETL keeps its data. Results are beside staging."""
        staging = call.tables.staging.folder
        if staging is None:
            return [self._settings.home]
        return [self._settings.home, staging.parent]

    def _read_profile(self, call: Call) -> SparkProfile:
        return parse_profile(call.config.get("profile") or self._settings.profile)

    def _open_step_inputs(self, call: Call, folder: Path) -> SparkInputs:
        return SparkInputs(
            call,
            self._read_profile(call),
            folder,
            self._postgres,
            self._settings.max_download_bytes,
        )

    @asynccontextmanager
    async def _open_ticket(self, call: Call, answer: tickets.TicketAnswerer) -> AsyncIterator[str]:
        host = await asyncio.to_thread(find_local_address, self._read_profile(call))
        async with tickets.issue_ticket(answer, host) as ticket:
            yield ticket

    async def _run_on_server(
        self, call: Call, work: SparkWork, held_folders: ExitStack
    ) -> SparkAnswer:
        """The answer to a request, from a server that is kept running meanwhile.

        `held_folders` keeps the locks of the folders that hold the files of the answer.
        """
        profile = self._read_profile(call)
        is_ours = profile.url is None
        place = SparkServerState.from_home(self._settings.home)
        used = None
        if is_ours:
            used = await asyncio.to_thread(place.begin_use)
        try:
            for restarts_left in reversed(range(MAX_RESTARTS + 1)):
                url = await asyncio.to_thread(
                    ensure_spark_server,
                    self._settings.home,
                    profile,
                    self._settings.serving,
                )
                server = ConnectServer(url, is_ours)
                answer = await self._run_attempt(call, server, work, held_folders)
                is_lost = answer.error is not None and answer.error.code == LOST
                if not is_lost or not restarts_left:
                    break
                is_second_loss = restarts_left < MAX_RESTARTS
                if is_second_loss and is_ours and _ran_out_of_memory(place):
                    # Lost twice: this command uses the memory, not one beside it.
                    return SparkAnswer(error=_make_memory_failure(place))
                call.log("stderr", "spark: the server was lost; once more")
            return answer
        finally:
            if used is not None:
                place.end_use(used)

    async def _run_attempt(
        self, call: Call, server: ConnectServer, work: SparkWork, held_folders: ExitStack
    ) -> SparkAnswer:
        """Run the request in a new session, after the sessions of earlier leases are ended."""
        earlier = list(_list_earlier_sessions(call))
        if earlier:
            released = await self._release_sessions(server, earlier)
            if released.error is not None:
                return released
        for earlier_session in earlier:
            earlier_folder = _find_session_folder(call, earlier_session)
            held_folders.enter_context(folders.hold_folder(earlier_folder))
            found = _read_finished(earlier_folder)
            if found is None:
                continue
            if not work.output.path:
                return SparkAnswer(frames={"": found}, single=True)
            work = replace(work, staged=found)
        name = _name_session(call, call.identity.lease, call.identity.attempt)
        self._session_counts[name] += 1
        session = _make_session_id(name, self._session_counts[name])
        folder = _find_session_folder(call, session)
        if not self._has_swept:
            self._has_swept = True
            await asyncio.to_thread(folders.sweep_folders, folder.parent)
        base = None if work.brings else _make_session_id("base", current_base_period())
        request = RunRequest(
            server=server,
            work=work,
            session=session,
            base=base,
            key=call.key,
            folder=str(folder),
            copy_record=str(_find_copy_record(call)),
            tags=[f"{call.identity.execution_id}.{call.identity.step}", call.key],
            max_value_bytes=MAX_VALUE_BYTES,
        )
        held_folders.enter_context(folders.hold_folder(folder))
        try:
            answer = await self._processes.run_client(request, call.log, call.progress)
        except (asyncio.CancelledError, SparkClientCrashed):
            await self._end_session(server, session)
            await asyncio.to_thread(_finish_commit_of, work)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if answer.error is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return answer

    async def _release_sessions(
        self,
        server: ConnectServer,
        sessions: list[str],
        *,
        quick: bool = False,
    ) -> SparkAnswer:
        if quick:
            server = replace(server, ours=True)
        return await self._processes.run_client(ReleaseRequest(server, sessions))

    async def _end_session(self, server: ConnectServer, session: str) -> None:
        """End a session, even if this is cancelled: an operation in Spark must not outlive its
        command. If the server does not answer, nothing runs there."""
        release = self._release_sessions(server, [session], quick=True)
        ending = asyncio.ensure_future(release)
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                continue
            except SparkClientCrashed:
                break

    async def _make_step_outcome(self, call: Call, answer: SparkAnswer) -> Outcome:
        if answer.error is not None:
            return Failed(answer.error, sample=answer.sample)
        facts = {"spark": outputs.collect_facts(answer)}
        failed_rows = facts["spark"].get("expect", {})
        for check, failed in failed_rows.items():
            if failed:
                call.log("stderr", f"spark: expect {check}: {failed} rows do not meet it")
        output = call.config.get("output") or {}
        if output.get("kind") == "postgres":
            return await to_postgres.store_in_postgres(call, output, answer, facts)
        return Success(await asyncio.to_thread(outputs.make_value, call, answer), facts)


async def _catch_failures(work: Coroutine[Any, Any, T]) -> T | Failed:
    """The result of the work. Expected exceptions become failures, so that a playbook can route on
    them."""
    try:
        return await work
    except (InputError, SqlError) as error:
        return Failed(error.failure)
    except InvalidInput as error:
        message = _describe_with_hint(error)
        return Failed(Failure(code="SPARK_CONFIG", kind="config", message=message))
    except Unavailable as error:
        code = getattr(error, "code", "SPARK_UNAVAILABLE")
        message = _describe_with_hint(error)
        failure = Failure(code=code, kind="unavailable", message=message, retryable=True)
        return Failed(failure)
    except SparkClientCrashed as error:
        return crash_failure("spark", error.status)


# ---- requests --------------------------------------------------------------------------------------------------------------


async def _make_step_work(call: Call, profile: SparkProfile, own_folders: list[Path]) -> SparkWork:
    """The work that follows from the step's configuration."""
    config = call.config
    work = SparkWork(
        brings=True,
        conf=_read_conf(config),
        expect=await _parse_checks(call),
        output=_prepare_output(config, profile, own_folders),
    )
    if config.get("code") is not None:
        return replace(work, code=config["code"], given=call.input)
    if config.get("sql") is None:
        raise InvalidInput("spark runs sql or code; pipeline and app are not there yet")
    found = await _parse_step_sql(call, config["sql"])
    if not found:
        raise SqlError("SQL_EMPTY", "there is no statement to run")
    brings = any(ADDS_FILES.search(statement.text) for statement in found)
    return replace(work, brings=brings, sql=found)


def _prepare_output(
    config: dict[str, Any],
    profile: SparkProfile,
    own_folders: list[Path],
) -> OutputSpec:
    output = config.get("output") or {}
    problem = find_output_problem(output)
    if problem is not None:
        raise InvalidInput(f"output: {problem.message}", hint=problem.hint)
    spec = OutputSpec(
        mode=output.get("mode"),
        partition_by=output.get("partition_by") or [],
        kind=output.get("kind"),
    )
    if not output.get("path"):
        return spec
    path = resolve_path(str(output["path"]), profile)
    check_output_path(path, own_folders)
    format = choose_format(path, output.get("format"))
    options = make_writer_options(format, output.get("options"))
    return replace(spec, path=path, format=format, options=options)


def _read_conf(config: dict[str, Any]) -> dict[str, str]:
    """The settings of the session. InvalidInput if a playbook may not change one of them."""
    given = config.get("conf") or {}
    conf = {str(name): _conf_to_text(value) for name, value in given.items()}
    for name in conf:
        if not ALLOWED_CONF.fullmatch(name):
            raise InvalidInput(
                f"{name} may not be changed by a playbook", hint="it belongs to the profile"
            )
    return conf


def _conf_to_text(value: Any) -> str:
    text = str(value)
    return text.lower() if isinstance(value, bool) else text


async def _parse_step_sql(call: Call, template: str) -> list[SparkStatement]:
    return parse_spark_sql(*await _render_marked(call, template))


async def _render_marked(call: Call, template: str) -> tuple[str, list[MarkedValue]]:
    if call.rendering is None:
        return template, []
    return await call.rendering.marked(template)


async def _parse_checks(call: Call) -> list[CheckSpec]:
    """The checks of the step. Their values are parameters."""
    checks = []
    for check in call.config.get("expect") or []:
        sql, on_fail = check.get("sql"), check.get("on_fail", "fail")
        name = check.get("name") or sql
        parsed: list[SparkStatement] = []
        if isinstance(sql, str):
            parsed = parse_spark_expressions(*await _render_marked(call, sql))
        if len(parsed) != 1 or on_fail not in ON_FAIL_CHOICES:
            raise InvalidInput(
                f"expect {name}: it needs one sql expression, and on_fail is one of {', '.join(ON_FAIL_CHOICES)}"
            )
        (expression,) = parsed
        checks.append(CheckSpec(name, expression.text, expression.values, on_fail))
    return checks


# ---- sessions --------------------------------------------------------------------------------------------------------------


def _name_session(call: Call, lease: int, attempt: int) -> str:
    return f"{call.key}:{lease}:{attempt}"


def _make_session_id(name: str, number: int) -> str:
    return str(UUID(derive_id("spark", name, number)[:32]))


def _list_earlier_sessions(call: Call) -> Iterator[str]:
    """All ids that sessions of lost leases can have. A lost lease made at most as many tries as
    there are now."""
    for lease in range(1, call.identity.lease):
        for attempt in range(1, call.identity.attempt + 1):
            for number in range(1, MAX_RESTARTS + 2):
                yield _make_session_id(_name_session(call, lease, attempt), number)


def _find_parent_folder(call: Call) -> Path:
    """The folder that holds the folders of all commands."""
    folder = call.tables.staging.folder
    if folder is None:
        folder = Path(tempfile.gettempdir()) / f"noetl-{os.getuid()}"
    return folder / outputs.SESSIONS_FOLDER


def _find_session_folder(call: Call, session: str) -> Path:
    return _find_parent_folder(call) / session


def _find_copy_record(call: Call) -> Path:
    """The file that records a copy by Spark's writer (`publishing.py`)."""
    return _find_parent_folder(call).parent / "spark-copies" / call.key[:16]


def _finish_commit_of(work: SparkWork) -> None:
    """Finish a commit that the killed process has left pending: no later process may come to do it."""
    folder = find_local_folder(work.output.path)
    if folder is not None:
        commits.finish_pending_commits(folder)


def _read_finished(folder: Path) -> FrameManifest | None:
    """The frame of an earlier lease that has completed its files but not reported them.

    An incomplete folder is removed.
    """
    try:
        text = (folder / "result" / "manifest.json").read_bytes()
        manifest = decode_message(text, FrameManifest)
        if all(os.path.exists(file.path) for file in manifest.files):
            return manifest
    except (OSError, ValueError):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    return None


# ---- lost servers ----------------------------------------------------------------------------------------------------------


def _ran_out_of_memory(place: SparkServerState) -> bool:
    """Whether the log of this machine's server reports that it ran out of memory."""
    try:
        return b"OutOfMemoryError" in place.log.read_bytes()
    except OSError:
        return False


def _make_memory_failure(place: SparkServerState) -> Failure:
    message = (
        "Spark ran out of memory and ended; use more and smaller partitions, or give it more memory "
        f"(NOETL_SPARK_JAVA_OPTIONS=-Xmx…); {place.log} has more"
    )
    return Failure(code=OUT_OF_MEMORY, kind="resource", message=message)


def _describe_with_hint(error: InvalidInput | Unavailable) -> str:
    return f"{error}; {error.hint}" if error.hint else str(error)
