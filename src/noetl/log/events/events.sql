-- The log. Statements that write several tables are functions of the schema (migrations).

-- name: append
-- Arrays are passed as text, except arrays of bytes. Parts that write state are compared first, under locks held until the commit.
select a.verdict, a.place, a.last_seq, a.inbox_part, a.inbox_shard, n.noted, c.conflicts::text as conflicts, w.written
from (select :lease::bigint as lease,
             :p_exec::text::bigint[] as exec, :p_shard::text::int[] as shard, :p_epoch::text::bigint[] as epoch,
             :p_after::text::bigint[] as after, :p_tenant::text::int[] as tenant, :p_count::text::int[] as count,
             :p_marks::text::int[] as marks, :p_events::text::json[] as events) p,
    lateral (select case when :more::jsonb ? 'states' then
        noetl.check_state(p.exec, p.shard, p.after, p.tenant, :more -> 'states') end as conflicts) c,
    lateral noetl.append(
    p.lease, p.exec, p.shard,
    case when c.conflicts is null then p.epoch else noetl.epochs_without(p.epoch, c.conflicts) end,
    p.after, p.tenant, p.count, p.marks, p.events,
    :k_part::text::int[], :k_nth::text::int[], :k_key::text::text[],
    :t_part::text::int[], :t_command::text::text[], :t_attempt::text::int[],
    :i_part::text::int[], :i_id::text::bigint[],
    :m_part::text::int[], :m_command::text::text[], :m_status::text::text[],
    :c_part::text::int[], :c_command::text::text[], :c_step::text::text[], :c_kind::text::text[], :c_pool::text::text[],
    :c_priority::text::int[], :c_status::text::text[], :c_attempt::text::int[], :c_available::text::bigint[],
    :c_worker::text::text[], :c_body,
    :r_part::text::int[], :r_id::text::bigint[], :r_tier::text::text[], :r_uri::text::text[], :r_sha256::text::text[],
    :r_bytes::text::bigint[], :r_rows::text::bigint[], :r_format::text::text[], :r_parent::text::bigint[],
    :r_inputs::text::text[], :r_payload,
    :more) a,
    lateral (select case when :more::jsonb ? 'lifetimes' then (
        select noetl.note_lifetimes(array_agg(l.ref), array_agg(l.scope), array_agg(l.ttl))
        from jsonb_to_recordset(:more -> 'lifetimes') as l (part int, ref bigint, scope text, ttl bigint)
        where a.verdict[l.part] = 0) end as noted) n,
    lateral (select case when :more::jsonb ? 'states' then
        noetl.write_state(a.verdict, a.last_seq, p.exec, p.count, p.tenant, :kept_versions, :more -> 'states') end as written) w;

-- name: read_events
-- The parts with events after a sequence number, or the path of the file they were moved to.
(select shard, last_seq, epoch, events, null::text as path from noetl.event_part
 where execution_id = :execution_id and last_seq > :after order by last_seq limit :limit)
union all
select null, null, null, null, f.path from noetl.tombstone t join noetl.cold_file f on f.file_id = t.file_id
where t.execution_id = :execution_id and t.last_seq > :after;

-- name: read_events_between
-- As `read_events`, up to the part that holds the sequence number `upto`.
(select shard, last_seq, epoch, events, null::text as path from noetl.event_part
 where execution_id = :execution_id and last_seq > :after
     and last_seq <= coalesce((select min(p.last_seq) from noetl.event_part p
                               where p.execution_id = :execution_id and p.last_seq >= :upto), :upto::bigint)
 order by last_seq limit :limit)
union all
select null, null, null, null, f.path from noetl.tombstone t join noetl.cold_file f on f.file_id = t.file_id
where t.execution_id = :execution_id;

-- name: read_parts_before
-- The part that holds a sequence number, and the parts before it, newest first; or the file they were moved to.
(select shard, last_seq, epoch, events, null::text as path from noetl.event_part
 where execution_id = :execution_id and last_seq >= :before order by last_seq limit 1)
union all
(select shard, last_seq, epoch, events, null from noetl.event_part
 where execution_id = :execution_id and last_seq < :before order by last_seq desc limit :limit)
union all
select null, null, null, null, f.path from noetl.tombstone t join noetl.cold_file f on f.file_id = t.file_id
where t.execution_id = :execution_id;

-- name: read_grouped_parts
-- Parts after a sequence number with events of these groups, and the first part of the execution; or the file they were moved to.
-- `groups <> 0` names the partial index.
(select shard, last_seq, epoch, events, null::text as path from noetl.event_part
 where execution_id = :execution_id and last_seq > :after and groups <> 0 and groups & :groups::int <> 0
 order by last_seq limit :limit)
union all
(select shard, last_seq, epoch, events, null from noetl.event_part where execution_id = :execution_id order by last_seq limit 1)
union all
(select shard, last_seq, epoch, events, null from noetl.event_part where execution_id = :execution_id order by last_seq desc limit 1)
union all
select null, null, null, null, f.path from noetl.tombstone t join noetl.cold_file f on f.file_id = t.file_id
where t.execution_id = :execution_id;

-- name: read_grouped_parts_before
-- As `read_grouped_parts`, for the parts that begin before a sequence number, newest first.
(select shard, last_seq, epoch, events, null::text as path from noetl.event_part
 where execution_id = :execution_id and groups <> 0 and groups & :groups::int <> 0 and last_seq - count + 1 < :before
     and last_seq <= coalesce((select min(p.last_seq) from noetl.event_part p
                               where p.execution_id = :execution_id and p.last_seq >= :before), :before::bigint)
 order by last_seq desc limit :limit)
union all
(select shard, last_seq, epoch, events, null from noetl.event_part where execution_id = :execution_id order by last_seq limit 1)
union all
(select shard, last_seq, epoch, events, null from noetl.event_part where execution_id = :execution_id order by last_seq desc limit 1)
union all
select null, null, null, null, f.path from noetl.tombstone t join noetl.cold_file f on f.file_id = t.file_id
where t.execution_id = :execution_id;

-- name: count_events
-- The number of events in each range (after, upto], and the file if they were moved. Only the parts at the ends may count in part.
select coalesce(c.count, 0)::bigint as count,
       (select f.path from noetl.tombstone t join noetl.cold_file f on f.file_id = t.file_id
        where t.execution_id = :execution_id) as path
from unnest(:after::bigint[], :upto::bigint[]) with ordinality r (after, upto, ord),
    lateral (select coalesce((select min(p.last_seq) from noetl.event_part p
                              where p.execution_id = :execution_id and p.last_seq >= r.upto), r.upto) as seq) l,
    lateral (select sum(greatest(least(p.count, p.last_seq - r.after) - greatest(p.last_seq - r.upto, 0), 0)) as count
             from noetl.event_part p
             where p.execution_id = :execution_id and p.last_seq > r.after and p.last_seq <= l.seq) c
order by r.ord;

-- name: read_recorded_parts
-- The parts that recorded these references, each once.
select p.execution_id, p.shard, p.last_seq, p.epoch, p.events, r.refs
from (select x.execution_id, x.part_seq, array_agg(x.ref_id) as refs from noetl.result_ref x
      where x.ref_id = any (:refs::bigint[]) and x.part_seq is not null group by x.execution_id, x.part_seq) r
    join noetl.event_part p on p.execution_id = r.execution_id and p.last_seq = r.part_seq;

-- name: search_parts
-- The parts of executions in which a text occurs. It reads all events of them.
select p.execution_id, p.shard, p.last_seq, p.epoch, p.events
from unnest(:executions::bigint[]) n (execution_id) join noetl.event_part p on p.execution_id = n.execution_id
where exists (select from unnest(:texts::text[]) t (text) where strpos(p.events::text, t.text) > 0);

-- name: cold_files
select path from noetl.cold_file order by file_id desc limit :limit;

-- name: moved
-- The files that hold the events of these executions.
select t.execution_id, f.path from noetl.tombstone t join noetl.cold_file f on f.file_id = t.file_id
where t.execution_id = any (:executions::bigint[]);

-- name: follow_shard
-- Readers see no gaps: the numbers of a shard are assigned under the lock of its row, which is held until the commit.
select execution_id, shard, last_seq, epoch, events from noetl.event_part
where shard = :shard and last_seq > :after order by last_seq limit :limit;

-- name: read_changes
-- One row per execution, not per append.
select e.shard, max(e.last_seq) as seq, e.execution_id, sum(e.count) as events
from unnest(:shards::text::int[], :after::text::bigint[]) s (shard, after),
    lateral (select f.shard, f.last_seq, f.execution_id, least(f.count, f.last_seq - s.after) as count from noetl.event_part f
             where f.shard = s.shard and f.last_seq > s.after order by f.last_seq limit :limit) e
group by e.shard, e.execution_id
order by e.shard, max(e.last_seq);

-- name: read_manifest
select body from noetl.manifest_part where manifest = :manifest
    and exists (select from noetl.manifest m where m.manifest = :manifest and m.tenant = :tenant)
order by first;

-- name: read_manifest_page
select body from noetl.manifest_part where manifest = :manifest and first > :after
    and exists (select from noetl.manifest m where m.manifest = :manifest and m.tenant = :tenant)
order by first limit :limit;

-- name: find_parts_before
select body from noetl.manifest_part where manifest = :manifest and first <= :position
    and exists (select from noetl.manifest m where m.manifest = :manifest and m.tenant = :tenant)
order by first desc limit :limit;

-- name: find_failed_parts
-- Parts that were written before failed items were counted have null.
select body from noetl.manifest_part
where manifest = :manifest and first > :after and (failed > 0 or failed is null)
    and exists (select from noetl.manifest m where m.manifest = :manifest and m.tenant = :tenant)
order by first limit :limit;

-- name: read_last_seq
(select last_seq as seq from noetl.event_part where execution_id = :execution_id order by last_seq desc limit 1)
union all
select last_seq from noetl.tombstone where execution_id = :execution_id;

-- name: read_pinned_executions
select execution_id, tenant, playbook, data from noetl.workload where execution_id = any (:executions::bigint[]);

-- name: list_pinned_playbooks
select distinct tenant, playbook from noetl.workload order by tenant, playbook;

-- name: find_children
select key, execution_id from noetl.start_key where tenant = :tenant and key = any (:keys::text[]);

-- name: find_tenant
select tenant from noetl.workload where execution_id = :execution_id;
