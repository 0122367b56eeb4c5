-- Who lives. A server's lease connection holds the advisory lock (1852794996, its id): a killed process loses it at once, long
-- before its lease runs out. After a restart of the database nobody holds one; until a row has been renewed since then, its
-- lease alone counts.
create function noetl.living() returns table (runtime_id bigint, kind text, address text) language sql stable as $$
    select r.runtime_id, r.kind, r.address from noetl.runtime r
    where r.leased_until > now()
        and (r.kind <> 'server' or r.renewed_at <= pg_postmaster_start_time() or exists (
            select from pg_locks l
            where l.locktype = 'advisory' and l.classid = 1852794996 and l.objid = r.runtime_id::int8::oid and l.objsubid = 2
                and l.granted and l.database = (select d.oid from pg_database d where d.datname = current_database())))
$$;
