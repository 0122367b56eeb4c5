"""The context of one command: what it reads, what it stores, and the events that may end it."""

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from noetl.model import events as e
from noetl.model.approvals import make_question
from noetl.model.commands import Command
from noetl.model.envelope import Envelope
from noetl.pipeline.environment import Environment, OutgoingEvent, SeededFunctions, SendJournalEntry
from noetl.pipeline.output.result_writer import ResultWriter
from noetl.pipeline.scope.lazy_results import resolve_ctx_links
from noetl.pipeline.scope.names import LoopItem, ScopeWrites, make_keychain_names
from noetl.pipeline.scope.results import ResultReader
from noetl.pipeline.task.run import Pipeline, PipelinePause, SharedPipelineParts
from noetl.playbook import reducers
from noetl.playbook.assignments import full_name, is_state
from noetl.playbook.model import Step
from noetl.playbook.plan import Plan


class CommandContext(Struct, frozen=True):
    """Everything that running one command needs."""

    env: Environment
    plan: Plan
    command: Command
    journal: SendJournalEntry
    payloads: ResultReader
    persist: ResultWriter
    shared: SharedPipelineParts
    claimed_at: int
    started_at: int

    @classmethod
    def for_command(
        cls,
        env: Environment,
        plan: Plan,
        command: Command,
        journal: SendJournalEntry,
        claimed_at: int,
        launch: int,
    ) -> "CommandContext":
        names: dict[str, Any] = {}
        if plan.playbook.keychain:
            names = make_keychain_names(command)
        keychain = env.keychain(
            plan.playbook.keychain,
            env.credentials,
            env.redactor,
            command.step,
            tokens=env.tokens,
            managers=env.managers,
            names=names,
            functions=SeededFunctions(f"{command.command_id}:keychain", env.clock),
        )
        payloads = ResultReader(env.store, env.manifests, keychain, command.execution_id)
        persist = ResultWriter(command, env.store, payloads, launch, env.context_limit)

        async def journal_clean(sent: OutgoingEvent) -> None:
            await journal(env.redact_event(sent))

        step = plan.steps[command.step]
        shared = SharedPipelineParts.from_command(
            env, command, step, plan.workbook, payloads, persist
        )
        return cls(
            env,
            plan,
            command,
            journal_clean,
            payloads,
            persist,
            shared,
            claimed_at,
            env.clock.now(),
        )

    @property
    def step(self) -> Step:
        return self.shared.step

    def make_writes(self) -> ScopeWrites:
        """A place for assignments that starts from the scope of the command.

        Items of a parallel loop may only reduce.
        """
        scope, loop = self.command.scope, self.step.loop
        ctx = {name: resolve_ctx_links(value, self.payloads) for name, value in scope.ctx.items()}
        scratch = {
            name: resolve_ctx_links(value, self.payloads) for name, value in scope.scratch.items()
        }
        if loop is None:
            return ScopeWrites(ctx, scratch, scope.state)
        reduce: dict[str, tuple[str, str]] = {}
        for name, reducer in loop.spec.reduce.items():
            reduce[full_name(name)] = name, str(reducer)
        direct = loop.spec.mode == "sequential" and loop.spec.policy.exec != "spark"
        return ScopeWrites(ctx, scratch, scope.state, reduce, direct=direct)

    def make_pipeline(
        self,
        writes: ScopeWrites,
        *,
        item: LoopItem | None = None,
        journal: SendJournalEntry | None = None,
        behind: int = 0,
    ) -> Pipeline:
        return Pipeline(
            self.shared,
            writes,
            item=item,
            journal=journal,
            behind=behind,
        )

    async def store_gathered(self, label: str, items: e.Items) -> e.Items:
        """The counts as an event carries them: reductions that may be lists or maps go by
        reference."""
        loop = self.step.loop
        if loop is None:
            return items
        gathered: dict[str, Any] = {}
        partial: dict[str, Any] = {}
        for name, part in items.partial.items():
            if _is_gathered(name, str(loop.spec.reduce[name])):
                gathered[name] = part
            else:
                partial[name] = part
        if not gathered:
            return items
        stored = await self.persist.put_value(f"{label}.gathered", gathered)
        return replace(items, partial=partial, gathered=stored)

    # ---- events ----------------------------------------------------------------------------------

    @property
    def event_fields(self) -> dict[str, Any]:
        command = self.command
        return {
            "command_id": command.command_id,
            "attempt": command.attempt,
            "step": command.step,
            "activation": command.activation,
        }

    def completed_event(self, envelope: Envelope, **more: Any) -> e.CommandCompleted:
        return e.CommandCompleted(
            result=envelope,
            **self._ending_fields,
            **more,
        )

    def failed_event(
        self, envelope: Envelope, **more: Any
    ) -> e.CommandFailed | e.ExpressionEvaluated:
        if self.command.kind in ("evaluate", "plan"):
            return self.evaluated_event(error=envelope.error)
        return e.CommandFailed(
            result=envelope,
            **self._ending_fields,
            **more,
        )

    def evaluated_event(self, **more: Any) -> e.ExpressionEvaluated:
        return e.ExpressionEvaluated(
            site=self.command.site or "",
            worker=self.env.worker,
            **self.event_fields,
            **more,
        )

    def parked_event(self, parked: PipelinePause) -> e.CommandParked:
        common = {
            **self.event_fields,
            "worker": self.env.worker,
            "task": parked.task,
            "tries": parked.tries,
        }
        suspend = parked.suspend
        if suspend is None:
            return e.CommandParked(
                reason="retry",
                delay=parked.delay,
                error=parked.failure,
                **common,
            )
        question = make_question(self.env.redactor.redact_value(suspend.question))
        return e.CommandParked(
            reason=suspend.reason,
            until=suspend.until,
            delay=suspend.delay,
            signal=suspend.signal,
            child=suspend.child,
            timeout=suspend.timeout,
            question=question,
            **common,
        )

    @property
    def _ending_fields(self) -> dict[str, Any]:
        times = {"claimed_at": self.claimed_at, "started_at": self.started_at}
        return {
            **self.event_fields,
            "worker": self.env.worker,
            **times,
        }


def _is_gathered(name: str, reducer: str) -> bool:
    """Whether a reduction goes by reference. State is small and stands in events."""
    return reducer in reducers.REFERENCE_REDUCERS and not is_state(name)
