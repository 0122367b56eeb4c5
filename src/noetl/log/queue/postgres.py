"""The queue in Postgres."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from noetl.log.columns import to_execution_id, to_number
from noetl.log.queue.port import NO_PROGRESS, CommandStatus, QueueDepth, QueueEntry, Renewal
from noetl.log.stored_json import decompress_json
from noetl.model import codec
from noetl.model.commands import Command, Journal
from noetl.model.exchange import LeaseKey
from noetl.model.ids import CommandId, ExecutionId, Micros, Tenant
from noetl.postgres.pool import Database, Record
from noetl.postgres.queries import load_queries

_SQL = load_queries(Path(__file__).with_name("queue.sql"))
MAX_SWEPT_ROWS = 5_000  # finished rows deleted in one run
NO_LIMIT = 2_147_483_647
PARTITIONS_AHEAD = 2
SWEEP_EVERY_RUNS = 20  # runs of `expire_leases`: about ten seconds
PARTITIONS_EVERY_RUNS = 7_200  # about an hour


class QueuePostgres:
    def __init__(self, database: Database, sweep_every: int = SWEEP_EVERY_RUNS) -> None:
        self._main = database.main
        self._background = database.background
        self._sweep_every = sweep_every
        self._runs = 0

    async def claim_commands(
        self,
        tenant: Tenant,
        worker: str,
        pools: tuple[str, ...],
        limit: int,
        lease: Micros,
    ) -> list[Command]:
        rows = await self._main.write(
            _SQL["claim_commands"],
            tenant=tenant,
            worker=worker,
            pools=list(dict.fromkeys(pools)),
            limit=limit,
            lease=lease,
        )
        return [_decode_command(row) for row in rows]

    async def renew_leases(
        self,
        tenant: Tenant,
        worker: str,
        held: tuple[LeaseKey, ...],
        lease: Micros,
        progress: Mapping[LeaseKey, str] = NO_PROGRESS,
    ) -> Renewal:
        if not held:
            return Renewal()
        rows = await self._main.write(
            _SQL["renew_leases"],
            tenant=tenant,
            worker=worker,
            commands=[key.command_id for key in held],
            held=[f"{key.command_id}:{key.attempt}" for key in held],
            progress=[progress.get(key) for key in held],
            lease=lease,
        )
        renewed = {
            LeaseKey(CommandId(row["command_id"]), row["attempt"]): row["cancel"] for row in rows
        }
        return Renewal(
            stop=tuple(key for key in held if renewed.get(key)),
            lost=tuple(key for key in held if key not in renewed),
        )

    async def list_leased_commands(self, tenant: Tenant, worker: str) -> list[Command]:
        rows = await self._main.read(_SQL["list_leased_commands"], tenant=tenant, worker=worker)
        return [_decode_command(row) for row in rows]

    async def expire_leases(self, limit: int) -> int:
        """Every server calls this all the time, so it also deletes finished rows now and then, and
        makes the partitions of the event table that will be needed.
        """
        (row,) = await self._background.write(
            _SQL["end_leases"], worker=None, tenant=None, limit=limit
        )
        if self._runs % self._sweep_every == 0:
            await self._background.write(_SQL["sweep"], limit=MAX_SWEPT_ROWS)
        if self._runs % PARTITIONS_EVERY_RUNS == 0:
            await self._background.write(_SQL["make_partitions"], ahead=PARTITIONS_AHEAD)
        self._runs += 1
        lost: int = row["lost"]
        return lost

    async def end_leases(self, worker: str, tenant: Tenant | None = None) -> int:
        (row,) = await self._main.write(
            _SQL["end_leases"], worker=worker, tenant=tenant, limit=NO_LIMIT
        )
        lost: int = row["lost"]
        return lost

    async def find_status(self, command_id: CommandId) -> CommandStatus | None:
        rows = await self._main.read(_SQL["find_status"], command_id=command_id)
        return CommandStatus(**rows[0]) if rows else None

    async def list_commands(
        self,
        tenant: Tenant,
        *,
        status: str | None = None,
        pool: str | None = None,
        execution_id: ExecutionId | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[QueueEntry]:
        rows = await self._main.read(
            _SQL["list_commands"],
            tenant=tenant,
            status=status,
            pool=pool,
            execution_id=to_number(execution_id),
            after=after,
            limit=limit,
        )
        return [_decode_entry(row) for row in rows]

    async def find_commands(self, command_ids: list[CommandId]) -> list[QueueEntry]:
        rows = await self._main.read(_SQL["find_commands"], commands=command_ids)
        return [_decode_entry(row) for row in rows]

    async def count_commands(self, tenant: Tenant | None = None) -> list[QueueDepth]:
        rows = await self._background.read(_SQL["count_commands"], tenant=tenant)
        return [QueueDepth(**row) for row in rows]


def _decode_entry(row: Record) -> QueueEntry:
    return QueueEntry(**{**row, "execution_id": to_execution_id(row["execution_id"])})


def _decode_command(row: Record) -> Command:
    """The command as it was issued, with the attempt and the journal of its row."""
    command = codec.decode_command(decompress_json(row["body"]))
    attempt, encoded_journal = row["attempt"], row["journal"]
    if encoded_journal is None and command.attempt == attempt:
        return command
    journal = Journal()
    if encoded_journal is not None:
        journal = msgspec.json.decode(encoded_journal, type=Journal)
    return msgspec.structs.replace(command, attempt=attempt, journal=journal)
