-- Which parts of a batch cannot write what they want, as before; and a path has at most 100 names (MAX_STATE_NAMES): a part that
-- would write one more gets {name, version: 0, is_full: true}, or {} if only names of other parts of the batch stand in the way.
create or replace function noetl.check_state(p_exec bigint[], p_shard int[], p_after bigint[], p_tenant int[], writes jsonb)
returns jsonb language plpgsql as $$
declare
    wish record;
    found_version bigint;
    found_by text;
    this_key text;
    this_path text;
    earlier jsonb;
    is_new boolean;
    stored int;
    new_of_part int;
    new_of_others int;
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
        this_path := jsonb_build_array(p_tenant[wish.part], wish.path)::text;
        this_key := jsonb_build_array(p_tenant[wish.part], wish.path, wish.name)::text;
        earlier := seen -> this_key;
        if earlier is not null and (earlier ->> 'part')::int <> wish.part then
            conflicts := conflicts || jsonb_build_object(wish.part, '{}'::jsonb);
            continue;
        end if;
        is_new := coalesce((earlier ->> 'is_new')::boolean, false);
        found_version := (earlier ->> 'version')::bigint;
        if found_version is null then
            select s.version, coalesce(s.execution_id::text, s.written_by) into found_version, found_by
            from noetl.playbook_state s
            where s.tenant = p_tenant[wish.part] and s.path = wish.path and s.name = wish.name;
            is_new := found_version is null;
        end if;
        if coalesce(found_version, 0) <> wish.expected then
            conflicts := conflicts || jsonb_build_object(wish.part, jsonb_build_object(
                'name', wish.name, 'version', coalesce(found_version, 0), 'by', found_by));
            continue;
        end if;
        if is_new and earlier is null then
            select count(*) into stored from noetl.playbook_state s
            where s.tenant = p_tenant[wish.part] and s.path = wish.path;
            select count(*) filter (where (k.v ->> 'part')::int = wish.part),
                   count(*) filter (where (k.v ->> 'part')::int <> wish.part)
            into new_of_part, new_of_others
            from jsonb_each(seen) as k (key, v) where k.v ->> 'path' = this_path and (k.v ->> 'is_new')::boolean;
            if stored + new_of_part >= 100 then
                conflicts := conflicts || jsonb_build_object(wish.part, jsonb_build_object(
                    'name', wish.name, 'version', 0, 'by', null, 'is_full', true));
                continue;
            elsif stored + new_of_part + new_of_others >= 100 then
                conflicts := conflicts || jsonb_build_object(wish.part, '{}'::jsonb);
                continue;
            end if;
        end if;
        seen := seen || jsonb_build_object(this_key, jsonb_build_object(
            'part', wish.part, 'version', wish.expected + 1, 'path', this_path, 'is_new', is_new));
    end loop;
    return conflicts;
end $$;

-- `noetl.queue` shows commands under the names of older documents. It could be written through: "reset expired leases" would then
-- hand a command to a second worker without a new attempt, and the report of the first one would still be taken.
create function noetl.refuse_queue_write() returns trigger language plpgsql as $$
begin
    raise exception 'noetl.queue is read-only: commands change only with the events that say so'
        using errcode = 'read_only_sql_transaction',
              hint = 'The server takes back leases that ran out by itself, with a new attempt. `noetl doctor` names executions that '
                     'are stuck; `noetl exec cancel` and `noetl exec retry` act on one.';
end $$;

-- The statement is refused, whatever rows it finds. Postgres fires statement triggers of a view only beside one INSTEAD OF each row.
create trigger refuse_statement before insert or update or delete on noetl.queue
    for each statement execute function noetl.refuse_queue_write();
create trigger refuse_row instead of insert or update or delete on noetl.queue
    for each row execute function noetl.refuse_queue_write();
