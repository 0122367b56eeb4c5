-- Executions that ended long ago: their events are in files, and here is where. See docs/jobs.md.

-- A file of whole executions, in the order of their ids. `path` is relative to the lake.
create table noetl.cold_file (
    file_id bigint generated always as identity primary key,
    path    text collate "C" not null unique,
    bytes   bigint not null,
    events  bigint not null,
    sha256  text not null,
    at      timestamptz not null
);

-- Written in the transaction that removes the events: an execution is in the log or here, never both, never neither.
create table noetl.tombstone (
    execution_id bigint primary key,
    file_id      bigint not null references noetl.cold_file,
    events       bigint not null,
    last_seq     bigint not null,
    sha256       text not null, -- of its events, see noetl.event_text
    at           timestamptz not null
);
create index tombstone_of_file on noetl.tombstone (file_id);

-- An event as the text that its checksum is made of.
create function noetl.event_text(e noetl.event) returns text language sql stable parallel safe as $$
    select concat_ws(chr(31), e.shard, e.seq, e.epoch, e.tenant, e.execution_id, e.event_type, coalesce(e.step, chr(30)),
                     coalesce(e.command_id, chr(30)), coalesce(e.attempt::text, chr(30)), coalesce(e.status, chr(30)),
                     coalesce(e.result::text, chr(30)), e.meta::text, e.dedup_key,
                     (extract(epoch from e.at) * 1000000)::bigint)
$$;

-- Of an execution that has a tombstone this is the last event: whoever decides from nothing is told to look again, and what
-- still reaches it can be refused.
do $$
declare
    found text := pg_get_functiondef((select p.oid from pg_proc p
                                      where p.proname = 'append' and p.pronamespace = 'noetl'::regnamespace));
    changed text := replace(found, 'coalesce(x.seq, 0) <> p.after',
        'coalesce(x.seq, (select t.last_seq from noetl.tombstone t where t.execution_id = p.exec), 0) <> p.after');
begin
    if changed = found then
        raise exception 'noetl.append is not as it was';
    end if;
    execute changed;
end $$;

-- The partitions that hold nothing but what may go: every execution of theirs has a tombstone, and they end before this id.
create function noetl.empty_partitions(before bigint) returns table (name text) language plpgsql as $$
declare
    part record;
    there boolean;
begin
    for part in
        select c.relname::text as relname, coalesce(substring(b.bound from $r$FROM \('(-?\d+)'\)$r$)::bigint, 0) as first,
               substring(b.bound from $r$TO \('(-?\d+)'\)$r$)::bigint as last
        from pg_inherits i join pg_class c on c.oid = i.inhrelid, pg_get_expr(c.relpartbound, c.oid) b (bound)
        where i.inhparent = 'noetl.event'::regclass order by 1
    loop
        continue when part.last is null or part.last > before;
        execute format('select exists (select from noetl.%I)', part.relname) into there;
        continue when there or exists (
            select from noetl.workload w where w.execution_id >= part.first and w.execution_id < part.last
                and not exists (select from noetl.tombstone t where t.execution_id = w.execution_id));
        name := part.relname;
        return next;
    end loop;
end $$;
