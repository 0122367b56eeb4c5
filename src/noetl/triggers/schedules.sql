-- Schedules: what people said of one, and what has become of it. Times come and go as microseconds.

-- name: put
-- In place of one of this name: what has become of it stays.
insert into noetl.schedule as s (tenant, name, path, version, rule, workload, catch_up, overlap, next_at, created_at, changed_at)
values (:tenant::int, :name::text, :path::text, :version::int, :rule::text::json, :payload::text::json, :catch_up::text, :overlap::text,
        timestamptz 'epoch' + :next_at::bigint * interval '1 microsecond', now(), now())
on conflict (tenant, name) do update
set path = excluded.path, version = excluded.version, rule = excluded.rule, workload = excluded.workload,
    catch_up = excluded.catch_up, overlap = excluded.overlap, next_at = excluded.next_at, error = null,
    changed_at = excluded.changed_at, revision = s.revision + 1
returning s.name;

-- name: stored
select tenant, name, path, version, rule, workload, catch_up, overlap, schedule_id, paused,
       (extract(epoch from next_at) * 1000000)::bigint, waiting, skipped, (extract(epoch from last_at) * 1000000)::bigint,
       last_execution, error, revision, (extract(epoch from created_at) * 1000000)::bigint,
       (extract(epoch from changed_at) * 1000000)::bigint
from noetl.schedule where tenant = :tenant and name > :after order by name limit :limit;

-- name: find
select tenant, name, path, version, rule, workload, catch_up, overlap, schedule_id, paused,
       (extract(epoch from next_at) * 1000000)::bigint, waiting, skipped, (extract(epoch from last_at) * 1000000)::bigint,
       last_execution, error, revision, (extract(epoch from created_at) * 1000000)::bigint,
       (extract(epoch from changed_at) * 1000000)::bigint
from noetl.schedule where tenant = :tenant and name = :name;

-- name: pause
update noetl.schedule set paused = true, changed_at = now(), revision = revision + 1
where tenant = :tenant and name = :name returning name;

-- name: resume
update noetl.schedule
set paused = false, next_at = timestamptz 'epoch' + :next_at::bigint * interval '1 microsecond', changed_at = now(),
    revision = revision + 1
where tenant = :tenant and name = :name returning name;

-- name: delete
delete from noetl.schedule where tenant = :tenant and name = :name returning name;

-- name: due
-- An execution that retention has removed has ended.
with candidate as (
    select c.schedule_id from noetl.schedule c where not c.paused and c.next_at <= now()
    union
    select c.schedule_id from noetl.schedule c where not c.paused and c.waiting <> '{}')
select tenant, name, path, version, rule, workload, catch_up, overlap, s.schedule_id, paused,
       (extract(epoch from next_at) * 1000000)::bigint, waiting, skipped, (extract(epoch from last_at) * 1000000)::bigint,
       last_execution, error, revision, (extract(epoch from created_at) * 1000000)::bigint,
       (extract(epoch from changed_at) * 1000000)::bigint, (extract(epoch from now()) * 1000000)::bigint as now, l.busy
from candidate c join noetl.schedule s on s.schedule_id = c.schedule_id,
    lateral (select exists (select from noetl.workload w where w.execution_id = s.last_execution)
                    and not coalesce((select p.ends from noetl.event_part p
                                      where p.execution_id = s.last_execution order by p.last_seq desc limit 1), false)
                    and not exists (select from noetl.tombstone t where t.execution_id = s.last_execution) as busy) l
where s.next_at <= now() or not l.busy
order by coalesce(s.next_at, timestamptz 'epoch'), s.schedule_id limit :limit;

-- name: move
-- One transaction: the schedule moves on, and what it starts is written. Whoever comes second finds another revision.
with moved as (
    update noetl.schedule
    set next_at = timestamptz 'epoch' + :next_at::bigint * interval '1 microsecond', waiting = :waiting::bigint[],
        skipped = :skipped, last_at = timestamptz 'epoch' + :last_at::bigint * interval '1 microsecond',
        last_execution = :last_execution, error = :error, revision = revision + 1
    where schedule_id = :schedule_id and revision = :revision
    returning schedule_id)
select (select count(*)::int from moved) as moved,
       array(select noetl.start(u.execution_id, u.shard, u.tenant, u.key, u.playbook, u.workload::json, u.body)
             from moved, unnest(:executions::bigint[], :shards::int[], :tenants::int[], :keys::text[], :playbooks::text[],
                                :workloads::text[], :bodies::bytea[])
                 u (execution_id, shard, tenant, key, playbook, workload, body)) as started;
