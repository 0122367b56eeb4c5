-- The queue. `append` (the log) issues, requeues, parks and finishes commands.

-- name: claim_commands
select body, attempt, journal from noetl.claim(:tenant, :worker, :pools, :limit, :lease);

-- name: renew_leases
-- A command that is to be stopped keeps its lease while its worker stops it. All statements lock rows in this order.
-- A row with a worker is leased; `is not distinct` makes the search use the ids only.
with mine as materialized (
    select c.command_id, (:progress::text[])[array_position(:held::text[], c.command_id || ':' || c.attempt)] as progress
    from noetl.command c
    where c.command_id = any (:commands::text[]) and c.command_id || ':' || c.attempt = any (:held::text[])
        and c.tenant = :tenant and c.worker is not distinct from :worker
    order by c.command_id for no key update)
update noetl.command c set lease_until = now() + :lease::bigint * interval '1 microsecond', progress = m.progress
from mine m where c.command_id = m.command_id
returning c.command_id, c.attempt, c.cancel;

-- name: list_leased_commands
select body, attempt, journal from noetl.command where worker = :worker and tenant = :tenant and status = 'leased'
order by number;

-- name: end_leases
select noetl.lose(:worker, :limit, :tenant) as lost;

-- name: sweep
-- Deletes rows that finished an hour ago; a report for a missing row is stale. Only the first rows in order of issue are read: they
-- finished in nearly that order, and rows that this misses are deleted later.
delete from noetl.command c using (
    select f.command_id, f.changed_at from noetl.command f
    where f.status in ('done', 'dead', 'cancelled') order by f.number limit :limit) old
where c.command_id = old.command_id and old.changed_at <= now() - interval '1 hour';

-- name: find_status
select status, attempt from noetl.command where command_id = :command_id;

-- name: list_commands
-- In order of issue: those that are open, and those that are dead or cancelled.
with page as (
    (select c.number, c.command_id from noetl.command c
     where coalesce(:status::text, 'queued') not in ('done', 'dead', 'cancelled')
         and c.status not in ('done', 'dead', 'cancelled')
         and c.number > :after and c.tenant = :tenant and (:execution_id::bigint is null or c.execution_id = :execution_id)
         and (:status is null or c.status = :status) and (:pool::text is null or c.pool = :pool)
     order by c.number limit :limit)
    union all
    (select c.number, c.command_id from noetl.command c
     where coalesce(:status, 'done') in ('done', 'dead', 'cancelled')
         and c.status in ('done', 'dead', 'cancelled')
         and c.number > :after and c.tenant = :tenant and (:execution_id is null or c.execution_id = :execution_id)
         and (:status is null or c.status = :status) and (:pool is null or c.pool = :pool)
     order by c.number limit :limit))
select c.number, c.command_id, c.execution_id, c.step, c.kind, c.pool, c.status, c.attempt, c.priority,
       (extract(epoch from c.available_at) * 1000000)::bigint as available_at, c.worker,
       (extract(epoch from c.lease_until) * 1000000)::bigint as lease_until, c.cancel as stopping,
       case when c.status = 'leased' then c.progress end as progress
from page p join noetl.command c on c.command_id = p.command_id
order by c.number limit :limit;

-- name: find_commands
select c.number, c.command_id, c.execution_id, c.step, c.kind, c.pool, c.status, c.attempt, c.priority,
       (extract(epoch from c.available_at) * 1000000)::bigint as available_at, c.worker,
       (extract(epoch from c.lease_until) * 1000000)::bigint as lease_until, c.cancel as stopping,
       case when c.status = 'leased' then c.progress end as progress
from noetl.command c where c.command_id = any (:commands::text[]) order by c.number;

-- name: count_commands
select c.pool, c.status, count(*)::int as count from noetl.command c
where c.status not in ('done', 'dead', 'cancelled') and (:tenant::int is null or c.tenant = :tenant)
group by c.pool, c.status order by c.pool, c.status;

-- name: make_partitions
select noetl.make_partitions(:ahead) as made;
