-- Stored credentials. `data` arrives encrypted; one row per name.

-- name: reserve_version
select nextval('noetl.credential_version_seq');

-- name: put
-- Of two at the same time the one with the later version stays.
insert into noetl.credential as c (tenant, name, kind, data, version, created_at, changed_at)
values (:tenant::int, :name::text, :kind::text, :data::bytea, :version::bigint, now(), now())
on conflict (tenant, name) do update
set (kind, data, version, changed_at) = (
    select n.kind, n.data, n.version, n.changed_at
    from (values (c.kind, c.data, c.version, c.changed_at), (excluded.kind, excluded.data, excluded.version, excluded.changed_at))
        n (kind, data, version, changed_at)
    order by n.version desc limit 1)
returning name, kind, data, version, (extract(epoch from created_at) * 1000000)::bigint, (extract(epoch from changed_at) * 1000000)::bigint;

-- name: reseal
-- The same value sealed otherwise, if nobody has replaced it since it was read.
update noetl.credential set data = :data::bytea, version = :version::bigint
where tenant = :tenant::int and name = :name::text and data = :before::bytea returning name;

-- name: find
select name, kind, data, version, (extract(epoch from created_at) * 1000000)::bigint, (extract(epoch from changed_at) * 1000000)::bigint
from noetl.credential where tenant = :tenant and name = :name;

-- name: stored
select name, kind, data, version, (extract(epoch from created_at) * 1000000)::bigint, (extract(epoch from changed_at) * 1000000)::bigint
from noetl.credential where tenant = :tenant order by name collate "C";

-- name: delete
delete from noetl.credential where tenant = :tenant and name = :name returning name;
