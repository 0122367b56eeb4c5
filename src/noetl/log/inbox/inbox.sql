-- The inbox and the timers. Statements that write several tables are functions of the schema (migrations).

-- name: read_messages
-- Oldest first over all shards: the oldest of each, merged. The append that consumes a row deletes it, so no position is stored.
select i.inbox_id, i.shard, i.execution_id, i.body
from unnest(:shards::text::int[]) s (shard),
    lateral (select x.inbox_id, x.shard, x.execution_id, x.body from noetl.inbox x
             where x.shard = s.shard and (x.execution_id <> all (:skip::bigint[]) or x.kind = 'release')
             order by x.inbox_id limit :limit) i
order by i.inbox_id limit :limit;

-- name: read_due_timers
select t.execution_id, t.timer_id
from unnest(:shards::text::int[]) s (shard),
    lateral (select x.due, x.execution_id, x.timer_id from noetl.timer x
             where x.shard = s.shard and x.due <= now() order by x.due, x.execution_id, x.timer_id limit :limit) t
order by t.due, t.execution_id, t.timer_id limit :limit;

-- name: find_next_timer
select (extract(epoch from min(t.due)) * 1000000)::bigint as due
from unnest(:shards::text::int[]) s (shard),
    lateral (select x.due from noetl.timer x where x.shard = s.shard order by x.due limit 1) t;

-- name: start_execution
-- Keys are written in one order, so that two servers that start the same executions do not deadlock.
select s.n, noetl.start(s.execution_id, s.shard, s.tenant, s.key, s.playbook, s.workload::json, s.body) as execution_id
from (
    select * from unnest(:execution_id::bigint[], :shard::int[], :tenant::int[], :key::text[], :playbook::text[],
                         :workload::text[], :body::bytea[])
        with ordinality u (execution_id, shard, tenant, key, playbook, workload, body, n)
    order by u.tenant, u.key, u.n) s;

-- name: find_started
select execution_id from noetl.start_key where tenant = :tenant and key = :key;

-- name: post_message
insert into noetl.inbox (shard, execution_id, dedup_key, kind, command_id, body, at)
select :shard::int, :execution_id::bigint, :key::text, :kind::text, :command_id::text, :body::bytea, now()
where not exists (select from noetl.event_key k where k.execution_id = :execution_id and k.key = :key)
on conflict (execution_id, dedup_key) do nothing
returning inbox_id;

-- name: accept_report
select a.accepted,
       case when a.accepted and :l_ref::bigint[] <> '{}' then
           noetl.note_lifetimes(:l_ref, :l_scope, :l_ttl) end
from noetl.accept(:tenant, :execution_id, :command_id, :attempt, :event_key, :report_key, :ends, :body, :r_id, :r_tier, :r_uri,
                  :r_sha256, :r_size, :r_rows, :r_format, :r_parent, :r_inputs, :r_payload) a (accepted);

-- name: find_message
select (select k.seq from noetl.event_key k where k.execution_id = :execution_id and k.key = :key) as seq,
       exists (select from noetl.inbox i where i.execution_id = :execution_id and i.dedup_key = :key) as waiting;
