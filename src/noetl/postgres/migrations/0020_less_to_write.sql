-- Rows that nobody reads are not written.

-- Nothing asks which results were made from one: lineage is followed the other way.
drop index noetl.result_input_used_by;
drop index noetl.result_ref_children;

-- A table of commands that are not done needs no index for those: it is short.
drop index noetl.command_open;

-- A small payload that comes with its reference is stored with it; `result_blob` has those that were put before their report.
-- Payloads come compressed or are too small for it.
alter table noetl.result_ref add column payload bytea;
alter table noetl.result_ref alter column payload set storage external;

-- Parts of functions are replaced; a part that is not found is an error.
create function noetl.replace_in_function(name text, part text, replacement text) returns void language plpgsql as $$
declare
    found text := pg_get_functiondef((select p.oid from pg_proc p
                                      where p.proname = name and p.pronamespace = 'noetl'::regnamespace));
begin
    if strpos(found, part) = 0 then
        raise exception 'noetl.% is not as it was', name;
    end if;
    execute replace(found, part, replacement);
end $$;

select noetl.replace_in_function('judge', 'set expired_at = now() from gone g', 'set expired_at = now(), payload = null from gone g');

-- A command that is done is deleted in the append that ends it: its events say how it ended. Dead and cancelled ones stay for an
-- hour, for people to look at.
select noetl.replace_in_function('append', $part$    if cardinality(m_part) > 0 then
        update noetl.command c$part$, $part$    if 'done' = any (m_status) then
        delete from noetl.command c using unnest(m_part, m_command, m_status) m (part, command, status)
        where m.status = 'done' and verdict[m.part] = 0 and c.command_id = m.command
            and c.status not in ('done', 'dead', 'cancelled');
    end if;
    if 'done' <> any (m_status) then
        update noetl.command c$part$);
select noetl.replace_in_function('append',
    $part$where verdict[m.part] = 0 and c.command_id = m.command and c.status not in$part$,
    $part$where m.status <> 'done' and verdict[m.part] = 0 and c.command_id = m.command and c.status not in$part$);
select noetl.replace_in_function('append', 'where verdict[c.part] = 0
        order by c.ord', 'where verdict[c.part] = 0 and c.status <> ''done''
        order by c.ord');
select noetl.replace_in_function('append_more', $part$    if more ? 'handoffs' then$part$, $part$    if more ? 'requeues' then
        delete from noetl.command c using jsonb_to_recordset(more -> 'requeues') as q (part int, command text, status text)
        where q.status = 'done' and verdict[q.part] = 0 and c.command_id = q.command;
    end if;
    if more ? 'handoffs' then$part$);

-- References: no speculative inserts. Whoever records references of a command holds the lock of its row, so that nobody records
-- the same ones meanwhile; those that are there already are found by their id.
select noetl.replace_in_function('append', $part$            select u.*, p_exec[u.part] as exec$part$,
                                           $part$            select distinct on (u.id) u.*, p_exec[u.part] as exec$part$);
select noetl.replace_in_function('append', $part$            where verdict[u.part] = 0),
        noted as ($part$, $part$            where verdict[u.part] = 0 order by u.id, u.part),
        noted as ($part$);
select noetl.replace_in_function('append', $part$order by u.id, u.part),
        noted as (
            insert into noetl.result_ref (ref_id, tenant, execution_id, tier, uri, sha256, bytes, rows, format, parent_ref_id, at)
            select r.id, r.tenant, r.exec, r.tier, r.uri, r.sha256, r.bytes, r.rows, r.format, r.parent, now() from r
            on conflict do nothing)
        insert into noetl.result_blob (ref_id, uri, payload) select r.id, r.uri, r.payload from r where r.payload is not null
        on conflict do nothing;$part$, $part$order by u.id, u.part)
        insert into noetl.result_ref (ref_id, tenant, execution_id, tier, uri, sha256, bytes, rows, format, parent_ref_id, payload, at)
        select r.id, r.tenant, r.exec, r.tier, r.uri, r.sha256, r.bytes, r.rows, r.format, r.parent, r.payload, now() from r
        where not exists (select from noetl.result_ref x where x.ref_id = r.id);$part$);

-- A report at a server that does not own the execution, as before. The row of a command that is done is gone: whether the report
-- is the one that was recorded, its event says. The attempt is compared: the key of an end does not name it.
create or replace function noetl.accept(
    in_exec bigint, in_command text, in_attempt int, event_key text, report_key text, ends boolean, in_body bytea,
    r_id bigint[], r_tier text[], r_uri text[], r_sha256 text[], r_bytes bigint[], r_rows bigint[], r_format text[],
    r_parent bigint[], r_payload bytea[], ri_ref bigint[], ri_input bigint[]
) returns boolean language plpgsql as $$
declare
    held record;
begin
    select c.status, c.shard, c.tenant, c.attempt into held from noetl.command c
    where c.command_id = in_command and c.execution_id = in_exec for no key update;
    if not found then
        return exists (select from noetl.event e
                       where e.execution_id = in_exec and e.dedup_key = event_key and e.attempt = in_attempt);
    end if;
    if held.attempt <> in_attempt then
        return false;
    end if;
    if exists (select from noetl.event e where e.execution_id = in_exec and e.dedup_key = event_key)
        or exists (select from noetl.inbox i where i.execution_id = in_exec and i.dedup_key = report_key) then
        return true;
    end if;
    if held.status <> 'leased' then
        return false;
    end if;
    insert into noetl.result_ref (ref_id, tenant, execution_id, tier, uri, sha256, bytes, rows, format, parent_ref_id, payload, at)
    select r.id, held.tenant, in_exec, r.tier, r.uri, r.sha256, r.bytes, r.rows, r.format, r.parent, r.payload, now()
    from unnest(r_id, r_tier, r_uri, r_sha256, r_bytes, r_rows, r_format, r_parent, r_payload)
        r (id, tier, uri, sha256, bytes, rows, format, parent, payload)
    on conflict do nothing;
    insert into noetl.result_input (ref_id, input_id)
    select r.ref, r.input from unnest(ri_ref, ri_input) r (ref, input) on conflict do nothing;
    insert into noetl.inbox (shard, execution_id, dedup_key, kind, command_id, body, at)
    values (held.shard, in_exec, report_key, 'report', in_command, in_body, now());
    if ends then
        update noetl.command c
        set status = 'reported', worker = null, lease_until = null, cancel = false, changed_at = now()
        where c.command_id = in_command;
    end if;
    return true;
end $$;

-- Commands in the queue and, for queries of older documents, those that are done, from the events that issued them.
create or replace view noetl.queue as
select number as id, execution_id, step as node_id, kind as action, convert_from(body, 'UTF8')::json as context, status, priority,
       attempt as attempts, 5 as max_attempts, coalesce(available_at, issued_at) as available_at, lease_until,
       worker as worker_id, case when status = 'leased' then changed_at end as last_heartbeat, issued_at as created_at,
       changed_at as updated_at, tenant, command_id
from noetl.command
union all
select e.event_id, e.execution_id, e.step, noetl.readable(e.meta) ->> 'kind', '{}'::json, 'done', 0, null::int, 5, e.at,
       null::timestamptz, null::text, null::timestamptz, e.at, e.at, e.tenant, e.command_id
from noetl.event e
where e.event_type = 'command.issued' and not exists (select from noetl.command c where c.command_id = e.command_id);
