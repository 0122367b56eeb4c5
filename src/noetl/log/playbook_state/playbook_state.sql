-- State between executions. Values are written by `append` (the log), and by `put_state` for people.

-- name: read_state
select s.path, s.name, s.version, s.value, s.execution_id, s.seq, s.written_by as by,
       (extract(epoch from s.at) * 1000000)::bigint as at
from noetl.playbook_state s
where s.tenant = :tenant and s.path = :path and (:names::text[] is null or s.name = any (:names))
order by s.name;

-- name: list_state
-- Values of all paths after (path, name), without unset ones.
select s.path, s.name, s.version, s.value, s.execution_id, s.seq, s.written_by as by,
       (extract(epoch from s.at) * 1000000)::bigint as at
from noetl.playbook_state s
where s.tenant = :tenant and (s.path, s.name) > (:path::text, :name::text) and s.value is not null
order by s.path, s.name limit :limit;

-- name: read_history
-- Versions older than `before`, newest first.
select h.path, h.name, h.version, h.value, h.execution_id, h.seq, h.written_by as by,
       (extract(epoch from h.at) * 1000000)::bigint as at
from noetl.playbook_state_history h
where h.tenant = :tenant and h.path = :path and h.name = :name and h.version < :before
order by h.version desc limit :limit;

-- name: put_state
select p.written, p.is_full, p.version
from noetl.put_state(:tenant, :path, :name, :value::text::json, :expected, :by, :kept, :most) p;
