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

-- The partitions that end before this id and whose executions all have tombstones.
create function noetl.buried_partitions(before bigint) returns table (name text) language sql stable as $$
    select p.name from (
        select c.relname::text as name, coalesce(substring(b.bound from $r$FROM \('(-?\d+)'\)$r$)::bigint, 0) as first,
               substring(b.bound from $r$TO \('(-?\d+)'\)$r$)::bigint as last
        from pg_inherits i join pg_class c on c.oid = i.inhrelid, pg_get_expr(c.relpartbound, c.oid) b (bound)
        where i.inhparent = 'noetl.event'::regclass) p
    where p.last <= before and not exists (
        select from noetl.workload w left join noetl.tombstone t on t.execution_id = w.execution_id
        where w.execution_id >= p.first and w.execution_id < p.last and t.execution_id is null)
    order by p.name
$$;
