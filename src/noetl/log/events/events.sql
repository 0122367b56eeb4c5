-- The log. Statements that write several tables are functions of the schema (migrations).

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

-- name: read_events
-- The events, or the path of the file they were moved to.
(select shard, seq, epoch, meta, result, null::text as path from noetl.event
 where execution_id = :execution_id and seq > :after order by seq limit :limit)
union all
select null, null, null, null, null, f.path from noetl.tombstone t join noetl.cold_file f on f.file_id = t.file_id
where t.execution_id = :execution_id and t.last_seq > :after;

-- name: read_named_events
select e.execution_id, e.shard, e.seq, e.epoch, e.meta, e.result
from unnest(:executions::bigint[], :keys::text[]) n (execution_id, key)
    join noetl.event e on e.execution_id = n.execution_id and e.dedup_key = n.key;

-- name: cold_files
select path from noetl.cold_file order by file_id desc limit :limit;

-- name: moved
-- The files that hold the events of these executions.
select t.execution_id, f.path from noetl.tombstone t join noetl.cold_file f on f.file_id = t.file_id
where t.execution_id = any (:executions::bigint[]);

-- name: follow_shard
-- Readers see no gaps: the numbers of a shard are assigned under the lock of its row, which is held until the commit.
select execution_id, seq, epoch, meta, result from noetl.event
where shard = :shard and seq > :after order by seq limit :limit;

-- name: read_changes
-- One row per execution, not per event.
select e.shard, max(e.seq) as seq, e.execution_id, count(*) as events
from unnest(:shards::text::int[], :after::text::bigint[]) s (shard, after),
    lateral (select f.shard, f.seq, f.execution_id from noetl.event f
             where f.shard = s.shard and f.seq > s.after order by f.seq limit :limit) e
group by e.shard, e.execution_id
order by e.shard, max(e.seq);

-- name: read_manifest
select body from noetl.manifest_part where manifest = :manifest order by first;

-- name: read_last_seq
(select seq from noetl.event where execution_id = :execution_id order by seq desc limit 1)
union all
select last_seq from noetl.tombstone where execution_id = :execution_id;

-- name: read_pinned_executions
select execution_id, tenant, playbook, data from noetl.workload where execution_id = any (:executions::bigint[]);

-- name: list_pinned_playbooks
select distinct playbook from noetl.workload order by playbook;

-- name: find_tenant
select tenant from noetl.workload where execution_id = :execution_id;
