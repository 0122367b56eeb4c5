-- Hooks: one row per name.

-- name: put
insert into noetl.hook (tenant, name, path, version, into_key, secret, signature_header, key_header, created_at, changed_at)
values (:tenant::int, :name::text, :path::text, :version::int, :into::text, :secret::text, :signature_header::text,
        :key_header::text, now(), now())
on conflict (tenant, name) do update
set path = excluded.path, version = excluded.version, into_key = excluded.into_key, secret = excluded.secret,
    signature_header = excluded.signature_header, key_header = excluded.key_header, changed_at = excluded.changed_at
returning tenant, name, path, version, into_key, secret, signature_header, key_header, hook_id,
          (extract(epoch from created_at) * 1000000)::bigint, (extract(epoch from changed_at) * 1000000)::bigint;

-- name: find
select tenant, name, path, version, into_key, secret, signature_header, key_header, hook_id,
       (extract(epoch from created_at) * 1000000)::bigint, (extract(epoch from changed_at) * 1000000)::bigint
from noetl.hook where tenant = :tenant and name = :name;

-- name: stored
select tenant, name, path, version, into_key, secret, signature_header, key_header, hook_id,
       (extract(epoch from created_at) * 1000000)::bigint, (extract(epoch from changed_at) * 1000000)::bigint
from noetl.hook where tenant = :tenant and name > :after order by name limit :limit;

-- name: delete
delete from noetl.hook where tenant = :tenant and name = :name returning name;
