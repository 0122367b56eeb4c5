-- Servers work as a role of their own, which appends events and may not change them. The owner of the schema migrates, makes and
-- drops partitions, and compacts.

-- Grant this role what servers need, and no more. It is repeated after every migration, because a new table has no grants.
-- Rows of events are read and written through `event_part`: no grant of a partition is needed, and none is given.
create function noetl.grant_app_rights(app text) returns void language plpgsql as $$
declare
    -- what only the owner writes, beside the tables of events
    kept_tables constant text[] := array['schema_version', 'cold_file', 'tombstone', 'audit', 'audit_head'];
    found record;
    rights text;
begin
    execute format('grant usage on schema noetl to %I', app);
    execute format('grant usage on all sequences in schema noetl to %I', app);
    for found in
        select c.relname as name, c.relkind as kind from pg_class c
        where c.relnamespace = 'noetl'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
    loop
        rights := case
            when found.kind = 'v' or found.name = any (kept_tables) then 'select'
            when found.name in ('event_part', 'event_key') then 'select, insert'
            else 'select, insert, update, delete' end;
        execute format('revoke all on noetl.%I from %I', found.name, app);
        execute format('grant %s on noetl.%I to %I', rights, found.name, app);
    end loop;
end $$;

-- These run with the rights of the owner: one makes tables, the other appends to a table that its callers cannot write.
alter function noetl.make_partitions(int) security definer set search_path = pg_catalog, pg_temp;
alter function noetl.append_audit(int[], text[], timestamptz) security definer set search_path = pg_catalog, pg_temp;
