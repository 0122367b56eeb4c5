-- The rows of executions that people read, and the checkpoint of each shard.

-- name: write_projections
-- Writes the shards that the caller still owns, each up to its checkpoint. A takeover that commits meanwhile does no harm: a row is
-- the fold of the log up to its last_seq, by any owner, and only moves forward. Nothing is written if one row is `ahead`.
with owned as materialized (
    select s.shard_id, least(g.checkpoint, s.last_seq) as seq
    from unnest(:shard::text::int[], :epoch::text::bigint[], :checkpoint::text::bigint[]) g (shard, epoch, checkpoint)
        join noetl.execution_shard s on s.shard_id = g.shard and s.epoch = g.epoch),
given as materialized (
    select * from unnest(:of_shard::text::int[], :exec::text::bigint[], :tenant::text::int[], :path::text::text[],
                         :status::text::text[], :last_seq::text::bigint[], :started_at::text::bigint[],
                         :updated_at::text::bigint[], :ended_at::text::bigint[], :parent::text::bigint[],
                         :retry_of::text::bigint[], :error::text::text[], :steps::text::int[], :recovered::text::int[],
                         :state::bytea[], :state_hash::text::text[])
        x (shard, exec, tenant, path, status, last_seq, started_at, updated_at, ended_at, parent, retry_of, error, steps,
           recovered, state, state_hash)
    where x.shard = any (array(select o.shard_id from owned o))
    order by x.exec),
ahead as materialized (
    select string_agg(x.exec::text, ', ') as executions from given x
    where not exists (select from noetl.event_part e where e.execution_id = x.exec and e.last_seq >= x.last_seq)),
changed as ( -- not by the insert below: it would lock each row first
    update noetl.execution old
    set tenant = x.tenant, path = x.path, status = x.status, last_seq = x.last_seq, started_at = x.started_at,
        updated_at = x.updated_at, ended_at = x.ended_at, parent = x.parent, retry_of = x.retry_of, error = x.error,
        steps = x.steps, recovered = x.recovered, state = x.state, state_hash = x.state_hash
    from given x
    where (select a.executions is null from ahead a) and old.execution_id = x.exec and old.last_seq < x.last_seq),
written as (
    insert into noetl.execution as old (execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, ended_at,
                                        parent, retry_of, error, steps, recovered, state, state_hash)
    select x.exec, x.shard, x.tenant, x.path, x.status, x.last_seq, x.started_at, x.updated_at, x.ended_at, x.parent,
           x.retry_of, x.error, x.steps, x.recovered, x.state, x.state_hash
    from given x
    where (select a.executions is null from ahead a)
        and not exists (select from noetl.execution known where known.execution_id = x.exec)
    order by x.exec
    on conflict (execution_id) do update
    set tenant = excluded.tenant, path = excluded.path, status = excluded.status, last_seq = excluded.last_seq,
        started_at = excluded.started_at, updated_at = excluded.updated_at, ended_at = excluded.ended_at,
        parent = excluded.parent, retry_of = excluded.retry_of, error = excluded.error, steps = excluded.steps,
        recovered = excluded.recovered, state = excluded.state, state_hash = excluded.state_hash
    where old.last_seq < excluded.last_seq),
reached as (
    insert into noetl.checkpoint as old (shard_id, seq, at)
    select o.shard_id, o.seq, now() from owned o where (select a.executions is null from ahead a) order by o.shard_id
    on conflict (shard_id) do update set seq = excluded.seq, at = excluded.at where old.seq < excluded.seq)
select array(select o.shard_id from owned o) as shards, a.executions as ahead from ahead a;

-- name: read_projection
select execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, ended_at, parent, retry_of, error, steps,
       recovered, state, state_hash
from noetl.execution where execution_id = :execution_id;

-- name: list_executions
-- Newest first, a page after the id given, without states. One branch runs: the one with the index that fits the filters best.
-- `floor` is an id made well before `since`: it bounds the walk if few rows or none are that new. A path with wildcards is `pattern`.
with page as (
    (select x.execution_id from noetl.execution x
     where not :roots::bool and :parent::bigint is null and :status::text is null and :path::text is null
         and x.tenant = :tenant and x.execution_id < :before and x.execution_id >= :floor and x.started_at >= :since
         and (:pattern::text is null or x.path like :pattern)
     order by x.execution_id desc limit :limit)
    union all
    (select x.execution_id from noetl.execution x
     where not :roots and :parent is not null
         and x.parent = :parent and x.execution_id < :before and x.execution_id >= :floor and x.tenant = :tenant
         and x.started_at >= :since and (:pattern is null or x.path like :pattern)
         and (:status is null or x.status = :status) and (:path is null or x.path = :path)
     order by x.execution_id desc limit :limit)
    union all
    (select x.execution_id from noetl.execution x
     where not :roots and :parent is null and :path is not null
         and x.tenant = :tenant and x.path = :path and x.execution_id < :before and x.execution_id >= :floor
         and x.started_at >= :since
         and (:status is null or x.status = :status)
     order by x.execution_id desc limit :limit)
    union all
    (select x.execution_id from noetl.execution x
     where not :roots and :parent is null and :path is null and :status is not null
         and x.tenant = :tenant and x.status = :status and x.execution_id < :before and x.execution_id >= :floor
         and x.started_at >= :since and (:pattern is null or x.path like :pattern)
     order by x.execution_id desc limit :limit)
    union all
    (select x.execution_id from noetl.execution x
     where :roots
         and x.tenant = :tenant and x.parent is null and x.execution_id < :before and x.execution_id >= :floor
         and x.started_at >= :since and (:status is null or x.status = :status)
         and (:path is null or x.path = :path) and (:pattern is null or x.path like :pattern)
         and not exists (select from noetl.start_key k
                         where k.execution_id = x.execution_id and starts_with(k.key, 'child:'))
     order by x.execution_id desc limit :limit))
select x.execution_id, x.shard, x.tenant, x.path, x.status, x.last_seq, x.started_at, x.updated_at, x.ended_at, x.parent,
       x.retry_of, x.error, x.steps, x.recovered, null::bytea as state, x.state_hash
from page p join noetl.execution x on x.execution_id = p.execution_id
order by x.execution_id desc;

-- name: count_children
select status, count(*)::int as count from noetl.execution where parent = :parent group by status;

-- name: read_checkpoint
select seq from noetl.checkpoint where shard_id = :shard;
