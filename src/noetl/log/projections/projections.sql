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
                         :live::text::text[], :waiting::text::bool[], :state::bytea[], :state_hash::text::text[])
        x (shard, exec, tenant, path, status, last_seq, started_at, updated_at, ended_at, parent, retry_of, error, steps,
           recovered, live, waiting, state, state_hash)
    where x.shard = any (array(select o.shard_id from owned o))
    order by x.exec),
ahead as materialized (
    select string_agg(x.exec::text, ', ') as executions from given x
    where not exists (select from noetl.event_part e where e.execution_id = x.exec and e.last_seq >= x.last_seq)),
changed as ( -- not by the insert below: it would lock each row first
    update noetl.execution old
    set tenant = x.tenant, path = x.path, status = x.status, last_seq = x.last_seq, started_at = x.started_at,
        updated_at = x.updated_at, ended_at = x.ended_at, parent = x.parent, retry_of = x.retry_of, error = x.error,
        steps = x.steps, recovered = x.recovered, live = x.live, waiting = x.waiting, state = x.state,
        state_hash = x.state_hash
    from given x
    where (select a.executions is null from ahead a) and old.execution_id = x.exec and old.last_seq < x.last_seq),
written as (
    insert into noetl.execution as old (execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, ended_at,
                                        parent, retry_of, error, steps, recovered, live, waiting, state, state_hash)
    select x.exec, x.shard, x.tenant, x.path, x.status, x.last_seq, x.started_at, x.updated_at, x.ended_at, x.parent,
           x.retry_of, x.error, x.steps, x.recovered, x.live, x.waiting, x.state, x.state_hash
    from given x
    where (select a.executions is null from ahead a)
        and not exists (select from noetl.execution known where known.execution_id = x.exec)
    order by x.exec
    on conflict (execution_id) do update
    set tenant = excluded.tenant, path = excluded.path, status = excluded.status, last_seq = excluded.last_seq,
        started_at = excluded.started_at, updated_at = excluded.updated_at, ended_at = excluded.ended_at,
        parent = excluded.parent, retry_of = excluded.retry_of, error = excluded.error, steps = excluded.steps,
        recovered = excluded.recovered, live = excluded.live, waiting = excluded.waiting, state = excluded.state,
        state_hash = excluded.state_hash
    where old.last_seq < excluded.last_seq),
reached as (
    insert into noetl.checkpoint as old (shard_id, seq, at)
    select o.shard_id, o.seq, now() from owned o where (select a.executions is null from ahead a) order by o.shard_id
    on conflict (shard_id) do update set seq = excluded.seq, at = excluded.at where old.seq < excluded.seq)
select array(select o.shard_id from owned o) as shards, a.executions as ahead from ahead a;

-- name: read_projection
select execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, ended_at, parent, retry_of, error, steps,
       recovered, live, waiting, state, state_hash
from noetl.execution where execution_id = :execution_id;

-- name: list_executions
-- Newest first, a page after the id given, without states. `floor` and `ceiling` are ids: the window of the filter, wider at its
-- beginning. A path with wildcards is `pattern`.
select x.execution_id, x.shard, x.tenant, x.path, x.status, x.last_seq, x.started_at, x.updated_at, x.ended_at, x.parent,
       x.retry_of, x.error, x.steps, x.recovered, x.live, x.waiting, null::bytea as state, x.state_hash
from (
    select p.execution_id
    from unnest(:lane_status::text[], :lane_low::bigint[], :lane_high::bigint[]) lane (status, low, high)
        cross join lateral noetl.list_lane(
            :walk, :walked, :tenant, lane.status, :path, :parent, greatest(lane.low, :floor), least(lane.high, :ceiling),
            :statuses, :pattern, :since, :until, :waiting, :text, :words, :roots, :limit) p (execution_id)
    order by p.execution_id desc limit :limit) p
    join noetl.execution x on x.execution_id = p.execution_id
order by x.execution_id desc;

-- name: find_walk_end
select coalesce(sum(e.looked), 0)::int as looked_at, max(e.last) as last
from unnest(:lane_status::text[], :lane_low::bigint[], :lane_high::bigint[]) lane (status, low, high)
    cross join lateral noetl.end_lane(
        :walk, :walked, :tenant, lane.status, :path, :parent, greatest(lane.low, :floor), least(lane.high, :ceiling)) e;

-- name: count_executions
-- At most `walked` rows of each status; `looked` says whether there may be more. `waiting` is counted like a status.
select lane.status, e.found, e.looked
from unnest(:lane_status::text[]) lane (status)
cross join lateral (
    select count(*)::int as looked,
           count(*) filter (where (:pattern::text is null or v.path like :pattern)
                                and (:path::text is null or v.path = :path)
                                and (not :roots::bool or v.parent is null and not exists (
                                        select from noetl.start_key k
                                        where k.execution_id = v.execution_id and starts_with(k.key, 'child:'))))::int as found
    from noetl.walk_lane(case lane.status when 'waiting' then 'waiting' else :walk::text end, :walked, :tenant, lane.status,
                         :path, :floor, :ceiling) v) e;

-- name: make_histogram
-- The newest `walked` rows by status and bucket. `back` is the id of the oldest row that is counted, if there may be older ones.
with walked as materialized (
    select lane.status, v.execution_id,
           (:pattern::text is null or v.path like :pattern)
           and (not :roots::bool or v.parent is null and not exists (
                   select from noetl.start_key k
                   where k.execution_id = v.execution_id and starts_with(k.key, 'child:'))) as matches
    from unnest(:lane_status::text[]) lane (status)
        cross join lateral noetl.walk_lane(:walk::text, :walked, :tenant, lane.status, :path, :floor, :ceiling) v),
cut as materialized (
    select max(l.last_id) as id
    from (select min(w.execution_id) as last_id from walked w group by w.status having count(*) = :walked) l),
shown as materialized (
    select w.status, w.execution_id from walked w
    where w.matches and w.execution_id >= coalesce((select c.id from cut c), 0)
    order by w.execution_id desc limit :walked),
edge as materialized (
    select greatest((select c.id from cut c), case when count(*) = :walked then min(s.execution_id) end) as back,
           min(s.execution_id) as oldest
    from shown s),
frame as materialized (
    select e.back, f.start_ms, greatest(1, ceil((:end_ms - f.start_ms) / :buckets::float8))::bigint as width_ms
    from edge e, lateral (
        select least(:end_ms::bigint - 1,
                     case when e.back is null and :start_ms::bigint is not null then :start_ms
                          else (coalesce(e.back, e.oldest, 0) >> 22) + 1735689600000 end) as start_ms) f)
select f.back, f.start_ms, f.width_ms, b.status, b.bucket, b.found
from frame f left join lateral (
    select s.status, (((s.execution_id >> 22) + 1735689600000 - f.start_ms) / f.width_ms)::int as bucket, count(*)::int as found
    from shown s group by 1, 2) b on true;

-- name: list_retries
select r.execution_id from noetl.execution r where r.retry_of = :execution_id order by r.execution_id desc limit :limit;

-- name: count_children
select status, count(*)::int as count from noetl.execution where parent = :parent group by status;

-- name: read_checkpoint
select seq from noetl.checkpoint where shard_id = :shard;
