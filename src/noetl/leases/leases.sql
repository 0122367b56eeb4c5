-- Ownership. Time is the database's; `noetl.living()` says who lives. Whoever registers or claims does so alone.

-- name: now
select (extract(epoch from now()) * 1000000)::bigint as micros;

-- name: alone
select pg_advisory_xact_lock(1852794997, 3);

-- name: next_runtime
select nextval(pg_get_serial_sequence('noetl.runtime', 'runtime_id')) as runtime_id;

-- name: forget_runtimes
-- Rows long dead go; a shard that still names one is free either way.
delete from noetl.runtime where leased_until < now() - interval '1 day';

-- name: register
-- The first free node number from the row's own on: one is used again only when every other has been.
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
-- Free shards or those of a dead owner; the epoch grows, so a late former owner is refused. An append that holds the row is
-- waited for: whatever it writes stands in the log before the new owner reads it.
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
-- A lease left to run out would count: after a restart of the database its lock says nothing, and whoever comes next would take
-- half of the shards only.
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
