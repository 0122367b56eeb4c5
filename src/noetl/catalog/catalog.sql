-- Stored playbooks. A path has versions, a version has one text, a content hash names one text for ever. Several versions of a
-- path may have the same text: a roll-back is a new version.

-- name: alone
select pg_advisory_xact_lock(hashtextextended('catalog ' || :tenant::int || ' ' || :path::text, 0));

-- name: register
-- Adds a version unless the latest one has this text. The caller holds the lock of the path.
insert into noetl.catalog (tenant, path, version, hash, text, at)
select :tenant::int, :path::text, 1 + coalesce(l.version, 0), :hash::text, :text::text, now()
from (select 1) one left join lateral (
    select c.version, c.hash from noetl.catalog c
    where c.tenant = :tenant and c.path = :path order by c.version desc limit 1) l on true
where l.hash is distinct from :hash
returning path, version, hash, text;

-- name: find
select w.n::int, c.path, c.version, c.hash, c.text
from unnest(:tenants::int[], :paths::text[], :versions::int[]) with ordinality w (tenant, path, version, n),
    lateral (select k.path, k.version, k.hash, k.text from noetl.catalog k
             where k.tenant = w.tenant and k.path = w.path and k.version <= coalesce(w.version, 2147483647)
             order by k.version desc limit 1) c
where w.version is null or c.version = w.version;

-- name: by_hash
select path, version, hash, text from noetl.catalog where tenant = :tenant and hash = :hash order by catalog_id desc limit 1;

-- name: by_content
select path, version, hash, text from noetl.catalog where hash = :hash order by catalog_id desc limit 1;

-- name: latest
-- Go from path to path by the index, so that the number of versions does not matter.
with recursive named as (
    (select c.path, c.version, 1 as n from noetl.catalog c
     where c.tenant = :tenant and c.path > :after and c.path >= :prefix order by c.path, c.version desc limit 1)
    union all
    select f.path, f.version, p.n + 1 from named p, lateral (
        select c.path, c.version from noetl.catalog c
        where c.tenant = :tenant and c.path > p.path order by c.path, c.version desc limit 1) f
    where p.n < :limit::int and starts_with(p.path, :prefix))
select c.path, c.version, c.hash, c.text
from named n join noetl.catalog c on c.tenant = :tenant and c.path = n.path and c.version = n.version
where starts_with(n.path, :prefix) and :limit > 0
order by n.n;

-- name: versions
select path, version, hash, text from noetl.catalog
where tenant = :tenant and path = :path and version < coalesce(:before::int, 2147483647)
order by version desc limit :limit;
