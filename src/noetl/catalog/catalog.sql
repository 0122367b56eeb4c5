-- Stored playbooks. A path has versions, a version has one text, a content hash names one text for ever.

-- name: alone
select pg_advisory_xact_lock(hashtextextended('catalog ' || :tenant::int || ' ' || :path::text, 0));

-- name: register
insert into noetl.catalog (tenant, path, version, hash, text, at)
select :tenant::int, :path::text,
       1 + coalesce((select c.version from noetl.catalog c where c.tenant = :tenant and c.path = :path
                     order by c.version desc limit 1), 0),
       :hash::text, :text::text, now()
on conflict (tenant, path, hash) do nothing;

-- name: known
select path, version, hash, text from noetl.catalog where tenant = :tenant and path = :path and hash = :hash;

-- name: find
select w.n::int, c.path, c.version, c.hash, c.text
from unnest(:paths::text[], :versions::int[]) with ordinality w (path, version, n),
    lateral (select k.path, k.version, k.hash, k.text from noetl.catalog k
             where k.tenant = :tenant and k.path = w.path and k.version <= coalesce(w.version, 2147483647)
             order by k.version desc limit 1) c
where w.version is null or c.version = w.version;

-- name: by_hash
select path, version, hash, text from noetl.catalog where tenant = :tenant and hash = :hash order by catalog_id limit 1;

-- name: paths
select distinct on (path) path, version, hash, text from noetl.catalog where tenant = :tenant
order by path, version desc;
