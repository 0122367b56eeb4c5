-- Tenants: names and quotas.

-- name: add_tenant
insert into noetl.tenant (name, created_at) values (:name::text, now()) on conflict (name) do nothing
returning tenant, name, max_running, max_queued, max_bytes, (extract(epoch from created_at) * 1000000)::bigint;

-- name: find_tenant
select tenant, name, max_running, max_queued, max_bytes, (extract(epoch from created_at) * 1000000)::bigint
from noetl.tenant where tenant = :tenant::int;

-- name: find_named_tenant
select tenant, name, max_running, max_queued, max_bytes, (extract(epoch from created_at) * 1000000)::bigint
from noetl.tenant where name = :name::text;

-- name: list_tenants
select tenant, name, max_running, max_queued, max_bytes, (extract(epoch from created_at) * 1000000)::bigint
from noetl.tenant order by tenant;

-- name: set_quotas
select noetl.set_quotas(:tenant::int, :running::bigint, :queued::bigint, :bytes::bigint);
