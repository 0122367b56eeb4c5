-- State between executions: named values by tenant and playbook path. `value` null: the name was unset, its version goes on.
create table noetl.playbook_state (
    tenant       int not null,
    path         text collate "C" not null,
    name         text collate "C" not null,
    version      bigint not null check (version > 0),
    value        json,
    execution_id bigint, -- that wrote it, with the event's sequence number; null: a person did
    seq          bigint,
    written_by   text,
    at           timestamptz not null,
    primary key (tenant, path, name),
    constraint playbook_state_is_small check (octet_length(value::text) <= 4096)
);

-- The last versions of each name: whoever writes one deletes those that are too old. Event retention does not touch it.
create table noetl.playbook_state_history (
    tenant       int not null,
    path         text collate "C" not null,
    name         text collate "C" not null,
    version      bigint not null,
    value        json,
    execution_id bigint,
    seq          bigint,
    written_by   text,
    at           timestamptz not null,
    primary key (tenant, path, name, version)
);

-- The one lock under which state of a path is compared and written. A row lock would not cover names that have no row yet.
create function noetl.lock_state(in_tenant int, in_path text) returns bigint language sql immutable
as $$ select hashtextextended('state ' || in_tenant || ' ' || in_path, 0) $$;

-- Which parts of a batch cannot write what they want, as {part: {name, version, by}}; {part: {}} if only another part of the same
-- batch stands in the way: it is tried again, since that part may yet leave the batch. Parts that were decided from an older
-- state are passed over: `append` finds them. Locks are taken in the order of `append`: shards first.
create function noetl.check_state(p_exec bigint[], p_shard int[], p_after bigint[], p_tenant int[], writes jsonb)
returns jsonb language plpgsql as $$
declare
    wish record;
    found_version bigint;
    found_by text;
    this_key text;
    earlier jsonb;
    conflicts jsonb := '{}';
    seen jsonb := '{}';
begin
    perform from noetl.execution_shard s where s.shard_id = any (p_shard) order by s.shard_id for no key update;
    perform pg_advisory_xact_lock(l.k) from (
        select distinct noetl.lock_state(p_tenant[w.part], w.path) as k
        from jsonb_to_recordset(writes) as w (part int, path text) order by k) l;
    for wish in
        select * from rows from (jsonb_to_recordset(writes) as (part int, path text, name text, expected bigint))
            with ordinality as w (part, path, name, expected, ord)
        order by w.ord
    loop
        continue when conflicts ? wish.part::text;
        continue when p_after[wish.part] <> coalesce((
            select e.seq from noetl.event e where e.execution_id = p_exec[wish.part] order by e.seq desc limit 1), 0);
        this_key := jsonb_build_array(p_tenant[wish.part], wish.path, wish.name)::text;
        earlier := seen -> this_key;
        if earlier is not null and (earlier ->> 'part')::int <> wish.part then
            conflicts := conflicts || jsonb_build_object(wish.part, '{}'::jsonb);
            continue;
        end if;
        found_version := (earlier ->> 'version')::bigint;
        if found_version is null then
            select s.version, coalesce(s.execution_id::text, s.written_by) into found_version, found_by
            from noetl.playbook_state s
            where s.tenant = p_tenant[wish.part] and s.path = wish.path and s.name = wish.name;
        end if;
        if coalesce(found_version, 0) <> wish.expected then
            conflicts := conflicts || jsonb_build_object(wish.part, jsonb_build_object(
                'name', wish.name, 'version', coalesce(found_version, 0), 'by', found_by));
        else
            seen := seen || jsonb_build_object(this_key, jsonb_build_object(
                'part', wish.part, 'version', wish.expected + 1));
        end if;
    end loop;
    return conflicts;
end $$;

-- Epochs of a batch in which conflicting parts have none, so that `append` leaves them out.
create function noetl.epochs_without(p_epoch bigint[], conflicts jsonb) returns bigint[] language sql immutable
as $$ select array_agg(case when conflicts ? u.ord::text then null else u.epoch end order by u.ord)
      from unnest(p_epoch) with ordinality u (epoch, ord) $$;

-- What the applied parts write, in order; `nth` is the place of the event that reports it among those of its part.
create function noetl.write_state(
    verdict int[], last_seq bigint[], p_exec bigint[], p_count int[], p_tenant int[], kept int, writes jsonb
) returns int language plpgsql as $$
declare
    wish record;
    written int := 0;
begin
    for wish in
        select * from rows from (jsonb_to_recordset(writes) as (
            part int, path text, name text, value text, expected bigint, nth int))
            with ordinality as w (part, path, name, value, expected, nth, ord)
        where verdict[w.part] = 0 order by w.ord
    loop
        perform noetl.store_state(p_tenant[wish.part], wish.path, wish.name, wish.expected + 1, wish.value::json,
                                  p_exec[wish.part], last_seq[wish.part] - p_count[wish.part] + wish.nth, null, kept);
        written := written + 1;
    end loop;
    return written;
end $$;

create function noetl.store_state(
    in_tenant int, in_path text, in_name text, in_version bigint, in_value json, in_exec bigint, in_seq bigint, in_by text,
    kept int
) returns timestamptz language plpgsql as $$
begin
    insert into noetl.playbook_state (tenant, path, name, version, value, execution_id, seq, written_by, at)
    values (in_tenant, in_path, in_name, in_version, in_value, in_exec, in_seq, in_by, now())
    on conflict (tenant, path, name) do update
    set version = excluded.version, value = excluded.value, execution_id = excluded.execution_id, seq = excluded.seq,
        written_by = excluded.written_by, at = excluded.at;
    insert into noetl.playbook_state_history (tenant, path, name, version, value, execution_id, seq, written_by, at)
    values (in_tenant, in_path, in_name, in_version, in_value, in_exec, in_seq, in_by, now());
    delete from noetl.playbook_state_history h
    where h.tenant = in_tenant and h.path = in_path and h.name = in_name and h.version <= in_version - kept;
    return now();
end $$;

-- A write by a person. `version`: the one it got, or with `written` false the one that is there; `full`: too many names.
create function noetl.put_state(
    in_tenant int, in_path text, in_name text, in_value json, expected bigint, in_by text, kept int, most int,
    out written boolean, out is_full boolean, out version bigint, out at timestamptz
) language plpgsql as $$
begin
    perform pg_advisory_xact_lock(noetl.lock_state(in_tenant, in_path));
    version := coalesce((select s.version from noetl.playbook_state s
                         where s.tenant = in_tenant and s.path = in_path and s.name = in_name), 0);
    is_full := version = 0 and most <= (
        select count(*) from noetl.playbook_state s where s.tenant = in_tenant and s.path = in_path);
    written := not is_full and coalesce(expected, version) = version;
    if written then
        version := version + 1;
        at := noetl.store_state(in_tenant, in_path, in_name, version, in_value, null, null, in_by, kept);
    end if;
end $$;
