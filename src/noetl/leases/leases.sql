-- Ownership of shards. Time is the database's; `noetl.living()` lists the living runtimes. A lock lets one server at a time
-- register or claim.

-- name: now
select (extract(epoch from now()) * 1000000)::bigint as micros;

-- name: database_id
-- The moment at which this database was made, and its number in its cluster. Numbers of runtimes count within it.
select (extract(epoch from v.applied_at) * 1000000)::bigint || '/' || d.oid as id
from noetl.schema_version v, pg_database d where v.version = 1 and d.datname = current_database();

-- name: alone
select pg_advisory_xact_lock(1852794997, 3);

-- name: next_runtime
select nextval(pg_get_serial_sequence('noetl.runtime', 'runtime_id')) as runtime_id;

-- name: forget_runtimes
-- Delete rows of servers that are long dead. A shard that still names one is free in any case.
delete from noetl.runtime where leased_until < now() - interval '1 day';

-- name: register
-- Take the first free node number, counted from the runtime's id: a number is reused only after all others.
insert into noetl.runtime (runtime_id, name, address, node, leased_until, renewed_at)
overriding system value
select :runtime_id::bigint, :name, :address, n.node, now() + :lease::bigint * interval '1 microsecond', now()
from (select (:runtime_id::bigint + i) % 1024 as node, i from generate_series(0, 1023) i) n
where not exists (select from noetl.runtime r where r.node = n.node and r.leased_until > now())
order by n.i limit 1
returning node;

-- name: lock
select pg_try_advisory_lock(1852794996, :runtime_id::bigint::int) as locked;

-- name: renew
update noetl.runtime
set leased_until = now() + :lease::bigint * interval '1 microsecond', renewed_at = now()
where runtime_id = :runtime_id and leased_until > now()
returning runtime_id;

-- name: servers
select count(*)::int as servers from noetl.living() l where l.kind = 'server';

-- name: claim
-- Take shards that are free or have a dead owner. The epoch grows, so appends of the former owner are refused. The statement
-- waits for an append that holds the row, so that the new owner reads its events.
with living as materialized (select l.runtime_id from noetl.living() l),
free as materialized (
    select s.shard_id from noetl.execution_shard s
    where not exists (select from living l where l.runtime_id = s.owner)
        and exists (select from living l where l.runtime_id = :runtime_id::bigint)
    order by s.shard_id limit greatest(:limit::int, 0) for update of s),
taken as (
    update noetl.execution_shard s set owner = :runtime_id::bigint, epoch = s.epoch + 1
    from free where s.shard_id = free.shard_id returning s.shard_id, s.epoch)
select shard_id, epoch from taken order by shard_id;

-- name: release
update noetl.execution_shard set owner = null where owner = :runtime_id and shard_id = any (:shards::int[]);

-- name: leave
-- End the lease at once. Otherwise, after a restart of the database, the next server would still count this one and take only
-- half of the shards.
with gone as (
    update noetl.runtime set leased_until = least(leased_until, now()) where runtime_id = :runtime_id::bigint)
update noetl.execution_shard set owner = null where owner = :runtime_id::bigint;

-- name: owners
select s.shard_id, s.epoch, l.runtime_id, l.address
from noetl.execution_shard s left join noetl.living() l on l.runtime_id = s.owner
order by s.shard_id;

-- name: take
insert into noetl.duty as old (name, holder)
select :duty::text, :runtime_id::bigint where exists (select from noetl.living() l where l.runtime_id = :runtime_id)
on conflict (name) do update set holder = excluded.holder
where not exists (select from noetl.living() l where l.runtime_id = old.holder)
    and (old.ran_at is null or old.ran_at <= now() - :every::bigint * interval '1 microsecond')
returning name;

-- name: done
update noetl.duty set holder = null, ran_at = now() where name = :duty and holder = :runtime_id;
