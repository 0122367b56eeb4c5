-- Stored credentials. `data` arrives encrypted; one row per name.

-- name: put
insert into noetl.credential (tenant, name, kind, data, created_at, changed_at)
values (:tenant::int, :name::text, :kind::text, :data::bytea, now(), now())
on conflict (tenant, name) do update set kind = excluded.kind, data = excluded.data, changed_at = excluded.changed_at
returning name, kind, data, (extract(epoch from created_at) * 1000000)::bigint, (extract(epoch from changed_at) * 1000000)::bigint;

-- name: find
select name, kind, data, (extract(epoch from created_at) * 1000000)::bigint, (extract(epoch from changed_at) * 1000000)::bigint
from noetl.credential where tenant = :tenant and name = :name;

-- name: stored
select name, kind, data, (extract(epoch from created_at) * 1000000)::bigint, (extract(epoch from changed_at) * 1000000)::bigint
from noetl.credential where tenant = :tenant order by name collate "C";

-- name: delete
delete from noetl.credential where tenant = :tenant and name = :name returning name;
