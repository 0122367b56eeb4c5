-- The log and the queue. Statements that write several tables are functions of the schema (migrations); all others are here.

-- name: append
-- Arrays are passed as text, except arrays of bytes. Parts that write state are compared first, under locks held until the commit.
select a.verdict, a.place, a.last_seq, a.inbox_part, a.inbox_shard, n.noted, c.conflicts::text as conflicts, w.written
from (select :lease::bigint as lease, :check_keys::boolean as check_keys,
             :p_exec::text::bigint[] as exec, :p_shard::text::int[] as shard, :p_epoch::text::bigint[] as epoch,
             :p_after::text::bigint[] as after, :p_tenant::text::int[] as tenant, :p_count::text::int[] as count) p,
    lateral (select case when :more::jsonb ? 'states' then
        noetl.check_state(p.exec, p.shard, p.after, p.tenant, :more -> 'states') end as conflicts) c,
    lateral noetl.append(
    p.lease, p.check_keys, p.exec, p.shard,
    case when c.conflicts is null then p.epoch else noetl.epochs_without(p.epoch, c.conflicts) end,
    p.after, p.tenant, p.count,
    :e_part::text::int[], :e_nth::text::int[], :e_type::text::text[], :e_step::text::text[], :e_command::text::text[],
    :e_attempt::text::int[], :e_status::text::text[], :e_result::text::json[], :e_meta::text::json[],
    :e_key::text::text[], :e_at::text::bigint[],
    :t_part::text::int[], :t_command::text::text[], :t_attempt::text::int[],
    :i_part::text::int[], :i_id::text::bigint[],
    :m_part::text::int[], :m_command::text::text[], :m_status::text::text[],
    :c_part::text::int[], :c_command::text::text[], :c_step::text::text[], :c_kind::text::text[], :c_pool::text::text[],
    :c_priority::text::int[], :c_status::text::text[], :c_attempt::text::int[], :c_available::text::bigint[],
    :c_worker::text::text[], :c_body,
    :r_part::text::int[], :r_id::text::bigint[], :r_tier::text::text[], :r_uri::text::text[], :r_sha256::text::text[],
    :r_bytes::text::bigint[], :r_rows::text::bigint[], :r_format::text::text[], :r_parent::text::bigint[], :r_payload,
    :more) a,
    lateral (select case when :more::jsonb ? 'lifetimes' then (
        select noetl.note_lifetimes(array_agg(l.ref), array_agg(l.scope), array_agg(l.ttl))
        from jsonb_to_recordset(:more -> 'lifetimes') as l (part int, ref bigint, scope text, ttl bigint)
        where a.verdict[l.part] = 0) end as noted) n,
    lateral (select case when :more::jsonb ? 'states' then
        noetl.write_state(a.verdict, a.last_seq, p.exec, p.count, p.tenant, :kept_versions, :more -> 'states') end as written) w;

-- name: inbox
-- Oldest first over all shards: the oldest of each, merged. The append that consumes a row deletes it, so no position is stored.
select i.inbox_id, i.shard, i.execution_id, i.body
from unnest(:shards::text::int[]) s (shard),
    lateral (select x.inbox_id, x.shard, x.execution_id, x.body from noetl.inbox x
             where x.shard = s.shard and (x.execution_id <> all (:skip::bigint[]) or x.kind = 'release')
             order by x.inbox_id limit :limit) i
order by i.inbox_id limit :limit;

-- name: due_timers
select t.execution_id, t.timer_id
from unnest(:shards::text::int[]) s (shard),
    lateral (select x.due, x.execution_id, x.timer_id from noetl.timer x
             where x.shard = s.shard and x.due <= now() order by x.due, x.execution_id, x.timer_id limit :limit) t
order by t.due, t.execution_id, t.timer_id limit :limit;

-- name: project
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
                         :state::text::text[], :state_hash::text::text[])
        x (shard, exec, tenant, path, status, last_seq, started_at, updated_at, ended_at, parent, retry_of, error, steps,
           recovered, state, state_hash)
    where x.shard = any (array(select o.shard_id from owned o))),
ahead as materialized (
    select string_agg(x.exec::text, ', ') as executions from given x
    where not exists (select from noetl.event e where e.execution_id = x.exec and e.seq >= x.last_seq)),
written as (
    insert into noetl.execution as old (execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, ended_at,
                                        parent, retry_of, error, steps, recovered, state, state_hash)
    select x.exec, x.shard, x.tenant, x.path, x.status, x.last_seq, x.started_at, x.updated_at, x.ended_at, x.parent,
           x.retry_of, x.error, x.steps, x.recovered, convert_to(x.state, 'UTF8'), x.state_hash
    from given x where (select a.executions is null from ahead a)
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

-- name: start
-- Keys are written in one order, so that two servers that start the same executions do not deadlock.
select s.n, noetl.start(s.execution_id, s.shard, s.tenant, s.key, s.playbook, s.workload::json, s.body) as execution_id
from (
    select * from unnest(:execution_id::bigint[], :shard::int[], :tenant::int[], :key::text[], :playbook::text[],
                         :workload::text[], :body::bytea[])
        with ordinality u (execution_id, shard, tenant, key, playbook, workload, body, n)
    order by u.tenant, u.key, u.n) s;

-- name: post
insert into noetl.inbox (shard, execution_id, dedup_key, kind, command_id, body, at)
select :shard::int, :execution_id::bigint, :key::text, :kind::text, :command_id::text, :body::bytea, now()
where not exists (select from noetl.event e where e.execution_id = :execution_id and e.dedup_key = :key)
on conflict (execution_id, dedup_key) do nothing
returning inbox_id;

-- name: accept
select a.accepted,
       case when a.accepted and :l_ref::bigint[] <> '{}' then
           noetl.note_lifetimes(:l_ref, :l_scope, :l_ttl) end
from noetl.accept(:execution_id, :command_id, :attempt, :event_key, :report_key, :ends, :body, :r_id, :r_tier, :r_uri,
                  :r_sha256, :r_bytes, :r_rows, :r_format, :r_parent, :r_payload, :ri_ref, :ri_input) a (accepted);

-- name: events
-- The events, or the path of the file they were moved to.
(select shard, seq, epoch, meta, result, null::text as path from noetl.event
 where execution_id = :execution_id and seq > :after order by seq limit :limit)
union all
select null, null, null, null, null, f.path from noetl.tombstone t join noetl.cold_file f on f.file_id = t.file_id
where t.execution_id = :execution_id and t.last_seq > :after;

-- name: named_events
select e.execution_id, e.shard, e.seq, e.epoch, e.meta, e.result
from unnest(:executions::bigint[], :keys::text[]) n (execution_id, key)
    join noetl.event e on e.execution_id = n.execution_id and e.dedup_key = n.key;

-- name: cold_files
select path from noetl.cold_file order by file_id desc limit :limit;

-- name: moved
-- The files that hold the events of these executions.
select t.execution_id, f.path from noetl.tombstone t join noetl.cold_file f on f.file_id = t.file_id
where t.execution_id = any (:executions::bigint[]);

-- name: follow
-- Readers see no gaps: the numbers of a shard are assigned under the lock of its row, which is held until the commit.
select execution_id, seq, epoch, meta, result from noetl.event
where shard = :shard and seq > :after order by seq limit :limit;

-- name: changes
-- One row per execution, not per event.
select e.shard, max(e.seq) as seq, e.execution_id, count(*) as events
from unnest(:shards::text::int[], :after::text::bigint[]) s (shard, after),
    lateral (select f.shard, f.seq, f.execution_id from noetl.event f
             where f.shard = s.shard and f.seq > s.after order by f.seq limit :limit) e
group by e.shard, e.execution_id
order by e.shard, max(e.seq);

-- name: parts
select body from noetl.manifest_part where manifest = :manifest order by first;

-- name: last_seq
(select seq from noetl.event where execution_id = :execution_id order by seq desc limit 1)
union all
select last_seq from noetl.tombstone where execution_id = :execution_id;

-- name: pins
select execution_id, tenant, playbook, data from noetl.workload where execution_id = any (:executions::bigint[]);

-- name: pinned_playbooks
select distinct playbook from noetl.workload order by playbook;

-- name: projection
select execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, ended_at, parent, retry_of, error, steps,
       recovered, state, state_hash
from noetl.execution where execution_id = :execution_id;

-- name: projections
select execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, ended_at, parent, retry_of, error, steps,
       recovered, state, state_hash
from noetl.execution where tenant = :tenant order by execution_id desc limit :limit;

-- name: executions
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

-- name: child_counts
select status, count(*)::int from noetl.execution where parent = :parent group by status;

-- name: tenant_of
select tenant from noetl.workload where execution_id = :execution_id;

-- name: received
select (select e.seq from noetl.event e where e.execution_id = :execution_id and e.dedup_key = :key) as seq,
       exists (select from noetl.inbox i where i.execution_id = :execution_id and i.dedup_key = :key) as waiting;

-- name: checkpoint
select seq from noetl.checkpoint where shard_id = :shard;

-- name: live
-- Executions without a terminal event: those projected as not ended, and those changed since.
select l.execution_id from (
    select x.execution_id from noetl.execution x where x.shard = :shard and x.ended_at is null
    union
    select e.execution_id from noetl.event e
    where e.shard = :shard and e.seq > coalesce((select c.seq from noetl.checkpoint c where c.shard_id = :shard), 0)) l
where (select t.seq from noetl.event t where t.execution_id = l.execution_id and t.dedup_key = 'terminal') is null
order by l.execution_id;

-- name: put_blob
-- Returns no row if there is no such execution, or if the address holds a payload already; `blob` tells which.
with made as (
    insert into noetl.result_blob (ref_id, uri, payload)
    select :ref_id::bigint, :uri::text, :payload::bytea
    where exists (select from noetl.workload w where w.execution_id = :execution_id)
    on conflict do nothing
    returning ref_id)
insert into noetl.result_put (ref_id, execution_id) select m.ref_id, :execution_id from made m
on conflict do nothing
returning ref_id;

-- name: blob
select payload from noetl.result_blob where ref_id = :ref_id and uri = :uri;

-- name: orphans
-- The addresses of an ended execution that none of its unexpired references names.
select u.uri from unnest(:uris::text[]) as u (uri)
where (exists (select from noetl.event t where t.execution_id = :execution_id and t.dedup_key = 'terminal')
       or exists (select from noetl.tombstone t where t.execution_id = :execution_id))
and u.uri not in (select r.uri from noetl.result_ref r where r.execution_id = :execution_id and r.expired_at is null);

-- name: judge
select looked, expired, swept from noetl.judge(:grace, :retention, :limit, :most);

-- name: lives
select ref_id, scope, ttl, (extract(epoch from expired_at) * 1000000)::bigint as expired_at
from noetl.result_ref where ref_id = any (:refs::bigint[]);

-- name: pin_results
select noetl.pin_results(:executions, :steps);

-- name: unpin_results
-- Results that may expire now are judged again.
with gone as (
    delete from noetl.result_pin p using unnest(:executions::bigint[], :steps::text[]) u (execution_id, step)
    where p.execution_id = u.execution_id and p.step = u.step returning p.execution_id)
update noetl.execution e set judge_at = null from gone g where e.execution_id = g.execution_id;

-- name: pinned_results
select execution_id, step from noetl.result_pin where execution_id = any (:executions::bigint[]) order by execution_id, step;

-- name: usage
select r.execution_id, r.tier, count(*) filter (where r.expired_at is null) as count,
       coalesce(sum(r.bytes) filter (where r.expired_at is null), 0)::bigint as bytes,
       count(*) filter (where r.expired_at is not null) as expired
from noetl.result_ref r where r.execution_id = any (:executions::bigint[])
group by r.execution_id, r.tier order by r.execution_id, r.tier;

-- name: lineage
-- Breadth first: each round of the recursion is one step back; a reference met twice in a round counts once. The depth ends a
-- cycle. Rounds are computed as they are read, so the limit ends a walk over a graph that is too large.
with recursive walked (ref_id, depth) as (
    select u.ref_id, 0 from unnest(:roots::bigint[]) u (ref_id)
    union
    select m.ref_id, w.depth + 1
    from walked w join noetl.result_ref r on r.ref_id = w.ref_id and r.tenant = :tenant,
        lateral (select r.parent_ref_id where r.parent_ref_id is not null
                 union all
                 select i.input_id from noetl.result_input i where i.ref_id = w.ref_id) m (ref_id)
    where w.depth < :depth),
met as (select ref_id, depth from walked limit :most),
near as (select m.ref_id, min(m.depth) as depth from met m group by m.ref_id)
select n.depth, r.ref_id, r.tier, r.uri, r.bytes, r.rows, r.format, r.sha256, r.parent_ref_id,
       array(select i.input_id from noetl.result_input i where i.ref_id = n.ref_id order by i.input_id) as inputs,
       (extract(epoch from r.at) * 1000000)::bigint as at,
       (extract(epoch from r.expired_at) * 1000000)::bigint as expired_at
from near n join noetl.result_ref r on r.ref_id = n.ref_id and r.tenant = :tenant
where (n.depth, n.ref_id) > (:after_depth::int, :after_ref::bigint)
order by n.depth, n.ref_id limit :limit;

-- name: put_logs
select noetl.put_logs(:execs::bigint[], :steps::text[], :refs::bigint[], :uris::text[], :payloads::bytea[]);

-- name: logs
select l.number, b.uri, b.payload from noetl.step_log l join noetl.result_blob b on b.ref_id = l.ref_id
where l.execution_id = :execution_id and l.number > :after and (:step::text is null or l.step = :step)
order by l.number limit :limit;

-- name: claim
select body, attempt, journal from noetl.claim(:worker, :pools, :limit, :lease);

-- name: renew
-- A command that is to be stopped keeps its lease while its worker stops it. All statements lock rows in this order.
-- A row with a worker is leased; `is not distinct` makes the search use the ids only.
with mine as materialized (
    select c.command_id, (:progress::text[])[array_position(:held::text[], c.command_id || ':' || c.attempt)] as progress
    from noetl.command c
    where c.command_id = any (:commands::text[]) and c.command_id || ':' || c.attempt = any (:held::text[])
        and c.worker is not distinct from :worker
    order by c.command_id for no key update)
update noetl.command c set lease_until = now() + :lease::bigint * interval '1 microsecond', progress = m.progress
from mine m where c.command_id = m.command_id
returning c.command_id, c.attempt, c.cancel;

-- name: leased
select body, attempt, journal from noetl.command where worker = :worker and status = 'leased' order by number;

-- name: lose
select noetl.lose(:worker, :limit) as lost;

-- name: sweep
-- Deletes rows that finished an hour ago; a report for a missing row is stale. Only the first rows in order of issue are read: they
-- finished in nearly that order, and rows that this misses are deleted later.
delete from noetl.command c using (
    select f.command_id, f.changed_at from noetl.command f
    where f.status in ('done', 'dead', 'cancelled') order by f.number limit :limit) old
where c.command_id = old.command_id and old.changed_at <= now() - interval '1 hour';

-- name: command_status
select status, attempt from noetl.command where command_id = :command_id;

-- name: queue
-- In order of issue. The commands of an execution are found by its events, others by the indexes of open and finished rows.
with page as (
    (select c.number, c.command_id from noetl.command c
     where :execution_id::bigint is null and coalesce(:status::text, 'queued') not in ('done', 'dead', 'cancelled')
         and c.status not in ('done', 'dead', 'cancelled')
         and c.number > :after and c.tenant = :tenant
         and (:status is null or c.status = :status) and (:pool::text is null or c.pool = :pool)
     order by c.number limit :limit)
    union all
    (select c.number, c.command_id from noetl.command c
     where :execution_id is null and coalesce(:status, 'done') in ('done', 'dead', 'cancelled')
         and c.status in ('done', 'dead', 'cancelled')
         and c.number > :after and c.tenant = :tenant
         and (:status is null or c.status = :status) and (:pool is null or c.pool = :pool)
     order by c.number limit :limit)
    union all
    (select c.number, c.command_id
     from (select distinct e.command_id from noetl.event e
           where e.execution_id = :execution_id and e.event_type = 'command.issued') i
         join noetl.command c on c.command_id = i.command_id
     where :execution_id is not null and c.number > :after and c.tenant = :tenant
         and (:status is null or c.status = :status) and (:pool is null or c.pool = :pool)
     order by c.number limit :limit))
select c.number, c.command_id, c.execution_id, c.step, c.kind, c.pool, c.status, c.attempt, c.priority,
       (extract(epoch from c.available_at) * 1000000)::bigint as available_at, c.worker,
       (extract(epoch from c.lease_until) * 1000000)::bigint as lease_until, c.cancel as stopping,
       case when c.status = 'leased' then c.progress end as progress
from page p join noetl.command c on c.command_id = p.command_id
order by c.number limit :limit;

-- name: depths
select c.pool, c.status, count(*)::int as count from noetl.command c
where c.status not in ('done', 'dead', 'cancelled') and (:tenant::int is null or c.tenant = :tenant)
group by c.pool, c.status order by c.pool, c.status;

-- name: note_worker
insert into noetl.runtime (kind, name, tenant, server, pools, capacity, held, leased_until, renewed_at)
values ('worker', :worker, :tenant, :server, :pools, :free, :held, now() + :lease::bigint * interval '1 microsecond', now())
on conflict (name) where kind = 'worker' do update
set tenant = excluded.tenant, server = excluded.server, pools = excluded.pools, capacity = excluded.capacity,
    held = excluded.held, leased_until = excluded.leased_until, renewed_at = excluded.renewed_at;

-- name: workers
select name as worker, server, tenant, pools, capacity as free, held,
       (extract(epoch from now() - renewed_at) * 1000000)::bigint as age
from noetl.runtime where kind = 'worker' and leased_until > now() and tenant = :tenant order by name collate "C";

-- name: make_partitions
select noetl.make_partitions(:ahead) as made;
