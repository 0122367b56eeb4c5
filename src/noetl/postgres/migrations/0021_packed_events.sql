-- One row for all events of an execution that one append writes, instead of one for each: docs/decisions/0027 says why. Events are
-- read by SQL as before, in the view `noetl.event`.

-- `events` is an array with an element for each event: [key, meta, result], the result only if there is one. An event is `meta` with
-- `result` put back into it, byte for byte as it was decided. The sequence numbers of a row are consecutive: the nth event has
-- `last_seq - count + n`. They are given under the lock of the shard's row, which is held until the commit: whoever reads (shard,
-- last_seq) in order sees no gap and misses nothing. `ends`: one of the events is the end of the execution.
create table noetl.event_part (
    execution_id bigint not null,
    last_seq     bigint not null,
    epoch        bigint not null,
    tenant       int not null,
    count        int not null,
    shard        smallint not null,
    ends         boolean not null,
    events       json not null
) partition by range (execution_id);
alter table noetl.event_part alter column events set storage main; -- compressed where it is; partitions set how small
create unique index event_part_of_execution on noetl.event_part (execution_id, last_seq);
create index event_part_of_shard on noetl.event_part (shard, last_seq);

-- Keys of events that repeat a wish or a fact from elsewhere, and that the state of an execution does not remember
-- (`KeyedEvent` in model/events.py): here a repeat is recognised. All others are refused by `after` of their append.
drop index noetl.event_key; -- of the table that goes; its name is used again
create table noetl.event_key (
    execution_id bigint not null,
    key          text collate "C" not null,
    seq          bigint not null,
    primary key (execution_id, key)
);

-- `part_seq`: `last_seq` of the events that were recorded with it; null where it is not known. `inputs` as `result_input`, which keeps
-- the rows of older versions.
alter table noetl.result_ref add column part_seq bigint, add column inputs bigint[];

-- ---- the events that are there -------------------------------------------------------------------------------------------------

alter table noetl.event rename to old_event;
do $$
declare
    old record;
begin
    for old in
        select c.relname as name, pg_get_expr(c.relpartbound, c.oid) as bound
        from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = 'noetl.old_event'::regclass
    loop
        execute format('alter table noetl.%I rename to %I', old.name, 'old_' || old.name);
        execute format('create table noetl.%I (like noetl.event_part including all) with (toast_tuple_target = 128)', old.name);
        execute format($insert$
            insert into noetl.%I (execution_id, last_seq, epoch, tenant, count, shard, ends, events)
            select g.execution_id, max(g.seq), g.epoch, g.tenant, count(*), g.shard, bool_or(g.dedup_key = 'terminal'),
                   ('[' || string_agg('[' || to_json(g.dedup_key) || ',' || g.meta || coalesce(',' || g.result, '') || ']', ','
                                      order by g.seq) || ']')::json
            from (select i.*, (row_number() over (partition by i.execution_id, i.epoch, i.island order by i.seq) - 1) / 64 as page
                  from (select e.*, e.seq - row_number() over (partition by e.execution_id, e.epoch order by e.seq) as island
                        from noetl.%I e) i) g
            group by g.execution_id, g.epoch, g.tenant, g.shard, g.island, g.page
            order by max(g.seq)$insert$, old.name, 'old_' || old.name);
        execute format('alter table noetl.event_part attach partition noetl.%I %s', old.name, old.bound);
    end loop;
end $$;
insert into noetl.event_key (execution_id, key, seq)
select e.execution_id, e.dedup_key, e.seq from noetl.old_event e
where e.event_type in ('signal.received', 'playbook.paused', 'playbook.resumed', 'execution.released', 'execution.cancelling',
                       'execution.quarantined', 'child.started', 'child.ended', 'command.claimed', 'command.started',
                       'state.conflict');

-- The rule of `is_envelope`, for a value that has been read already.
create function noetl.is_envelope(whole jsonb) returns boolean language plpgsql immutable parallel safe as $$
declare
    context constant jsonb := whole -> 'context';
begin
    if jsonb_typeof(whole) <> 'object' or whole - '{status,reference,parent_ref,context,error,meta}'::text[] <> '{}'::jsonb then
        return false;
    end if;
    return context is null or jsonb_typeof(context) = 'object' and not (
        jsonb_path_exists(context - '{http,pg,py,spark,stats,results,selections}'::text[],
                          'strict $.* ? (@.type() == "object")', '{}', true) is true
        or jsonb_path_exists(context - 'columns', 'strict $.** ? (@.type() == "array")', '{}', true) is true
        or context ? 'columns' and
            jsonb_path_exists(context, 'strict $.columns[*] ? (@.type() == "object" || @.type() == "array")', '{}', true) is true
        or context ? 'selections' and
            jsonb_path_exists(context, 'lax $.selections.*.value ? (@.type() == "object")', '{}', true) is true);
end $$;
create or replace function noetl.is_envelope(result json) returns boolean language sql immutable parallel safe
as $$ select noetl.is_envelope(replace(result::text, '\u0000', '\u0001')::jsonb) $$;

-- No payload in an event: of every element, the result is an envelope without rows, and both halves are small. The text is read once;
-- sizes are looked at only if one of them can be too large.
create function noetl.holds_no_payload(events json) returns boolean language plpgsql immutable parallel safe as $$
declare
    result jsonb;
begin
    if octet_length(events::text) > 8192 and exists (
        select from json_array_elements(events) e, lateral (select array(select h.value from json_array_elements(e.value) h) as half) h
        where octet_length(h.half[2]::text) > 16384 or octet_length(h.half[3]::text) > 8192) then
        return false;
    end if;
    for result in
        select e.value -> 2 from jsonb_array_elements(replace(events::text, '\u0000', '\u0001')::jsonb) e where e.value -> 2 is not null
    loop
        if not noetl.is_envelope(result) then
            return false;
        end if;
    end loop;
    return true;
end $$;

-- Not valid: what older versions have recorded stays as it is. Every new row is checked. Partitions without a row are as if they were
-- made now.
alter table noetl.event_part add constraint event_holds_no_payload check (noetl.holds_no_payload(events)) not valid;
do $$
declare
    partition regclass;
    is_empty boolean;
begin
    for partition in select inhrelid from pg_inherits where inhparent = 'noetl.event_part'::regclass loop
        execute format('select not exists (select from %s)', partition) into is_empty;
        if is_empty then
            execute format('alter table %s validate constraint event_holds_no_payload', partition);
        end if;
    end loop;
end $$;

-- ---- views ---------------------------------------------------------------------------------------------------------------------

drop view noetl.queue;
drop view noetl.event_log;
drop view noetl.projection_checkpoint;
drop function noetl.event_text;
drop function noetl.project; -- nothing has called it for long
drop table noetl.old_event;

-- One row per event. The columns beside `meta` and `result` are read from them. Arrays are taken apart by `json_array_elements`: the
-- operators of json refuse \u0000, wherever it stands. `part_seq` finds the rows of a shard after a sequence
-- number: with `part_seq > n and seq > n`, only those are unpacked.
create view noetl.event as
select p.shard, p.last_seq - p.count + e.nth as seq, p.epoch, p.tenant, (p.last_seq - p.count + e.nth) * 1024 + p.shard as event_id,
       p.execution_id, m.type as event_type, nullif(m.step, '') as step, m.command_id collate "C" as command_id, m.attempt,
       noetl.readable(h.half[3]) ->> 'status' as status, h.half[3] as result, h.half[2] as meta,
       (h.half[1] #>> '{}') collate "C" as dedup_key, noetl.moment(coalesce(m.at, 0)) as at, p.last_seq as part_seq
from noetl.event_part p
    cross join lateral json_array_elements(p.events) with ordinality as e (event, nth)
    cross join lateral (select array(select x.value from json_array_elements(e.event) x) as half offset 0) h -- once, not per column
    cross join lateral json_to_record(noetl.readable(h.half[2]))
        as m (type text, step text, command_id text, attempt int, at bigint);

-- An event as the text that its checksum is made of.
create function noetl.event_text(e noetl.event) returns text language sql stable parallel safe as $$
    select concat_ws(chr(31), e.shard, e.seq, e.epoch, e.tenant, e.execution_id, e.event_type, coalesce(e.step, chr(30)),
                     coalesce(e.command_id, chr(30)), coalesce(e.attempt::text, chr(30)), coalesce(e.status, chr(30)),
                     coalesce(e.result::text, chr(30)), e.meta::text, e.dedup_key,
                     (extract(epoch from e.at) * 1000000)::bigint)
$$;

-- As before, but for where the path comes from: the first event of an execution is its start.
create view noetl.event_log as
select e.event_id, e.execution_id, n.event_type, coalesce(e.status, 'ok') as status, coalesce(e.command_id, e.step) as node_id,
       case when n.event_type in ('execution_start', 'execution_completed')
            then (select noetl.readable(p.events) -> 0 -> 1 ->> 'path' from noetl.event_part p
                  where p.execution_id = e.execution_id order by p.last_seq limit 1)
            else e.step end as node_name,
       case when n.event_type like 'action\_%' then 'task'
            when e.step is null or n.event_type = 'execution_completed' then 'playbook'
            else 'step' end as node_type,
       noetl.readable(e.result) -> 'context' as context,
       case when n.event_type <> 'action_started' then e.result end as result,
       e.meta as metadata,
       case when n.event_type = 'action_started'
            then least(noetl.moment((noetl.readable(e.meta) ->> 'started_at')::bigint), e.at)
            else e.at end as "timestamp",
       e.tenant, e.shard, e.seq
from noetl.event e cross join lateral unnest(noetl.event_log_names(e.event_type, e.meta)) as n (event_type);

create view noetl.projection_checkpoint as
select s.shard_id, coalesce(c.seq, 0) * 1024 + s.shard_id as last_projected_event_id, c.at as last_projected_at,
       coalesce((select (extract(epoch from now() - noetl.moment((noetl.readable(p.events) -> 0 -> 1 ->> 'at')::bigint)) * 1000)::bigint
                 from noetl.event_part p
                 where p.shard = s.shard_id and p.last_seq > coalesce(c.seq, 0) order by p.last_seq limit 1), 0) as lag_ms
from noetl.execution_shard s left join noetl.checkpoint c on c.shard_id = s.shard_id;

create view noetl.queue as
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
create trigger refuse_statement before insert or update or delete on noetl.queue
    for each statement execute function noetl.refuse_queue_write();
create trigger refuse_row instead of insert or update or delete on noetl.queue
    for each row execute function noetl.refuse_queue_write();

-- ---- partitions ----------------------------------------------------------------------------------------------------------------

-- The partitions of now and of the next two spans. Attached, not created in place: that would lock out every append.
create or replace function noetl.make_partitions(ahead int) returns int language plpgsql as $$
declare
    width constant bigint := noetl.partition_width();
    span int := ((extract(epoch from now()) * 1000 - 1735689600000)::bigint << 22) / width;
    newest int;
    name text;
    made int := 0;
begin
    perform pg_advisory_xact_lock(1852794997, 2);
    select max(right(c.relname, 4)::int) into newest from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'noetl.event_part'::regclass and c.relname <> 'event_past';
    if newest is null then -- ids older than this database
        create table noetl.event_past (like noetl.event_part including all) with (toast_tuple_target = 128);
        execute format('alter table noetl.event_part attach partition noetl.event_past for values from (minvalue) to (%s)',
                       span * width);
        made := 1;
    end if;
    for number in coalesce(newest + 1, span) .. span + ahead loop
        name := 'event_' || lpad(number::text, 4, '0');
        execute format('create table noetl.%I (like noetl.event_part including all) with (toast_tuple_target = 128)', name);
        execute format('alter table noetl.event_part attach partition noetl.%I for values from (%s) to (%s)',
                       name, number * width, (number + 1) * width);
        made := made + 1;
    end loop;
    return made;
end $$;
select noetl.replace_in_function('buried_partitions', '''noetl.event''::regclass', '''noetl.event_part''::regclass');

-- ---- writing -------------------------------------------------------------------------------------------------------------------

select noetl.replace_in_function('check_state',
    'select e.seq from noetl.event e where e.execution_id = p_exec[wish.part] order by e.seq desc limit 1',
    'select e.last_seq from noetl.event_part e where e.execution_id = p_exec[wish.part] order by e.last_seq desc limit 1');

-- Rows arrive as arrays (`p_` parts with their events, `k_` keys of their events, `t_` leases a report must hold, `i_` inbox rows
-- consumed, `m_` commands that end or park, `c_` commands issued, `r_` references); what a step seldom needs comes as JSON in `more`.
-- `…_part` is the number of the part a row belongs to, from 1. Locks are taken in one order everywhere: shard rows by number, command
-- rows by id, then whatever is inserted.
-- Verdicts: 0 stays, 1 the shard is another owner's, 2 known, 3 stale attempt (`place`: which of t_), 4 known key (which of k_).
drop function noetl.append;
create function noetl.append(
    lease bigint,
    p_exec bigint[], p_shard int[], p_epoch bigint[], p_after bigint[], p_tenant int[], p_count int[], p_ends int[], p_events json[],
    k_part int[], k_nth int[], k_key text[],
    t_part int[], t_command text[], t_attempt int[],
    i_part int[], i_id bigint[],
    m_part int[], m_command text[], m_status text[],
    c_part int[], c_command text[], c_step text[], c_kind text[], c_pool text[], c_priority int[], c_status text[], c_attempt int[],
    c_available bigint[], c_worker text[], c_body bytea[],
    r_part int[], r_id bigint[], r_tier text[], r_uri text[], r_sha256 text[], r_bytes bigint[], r_rows bigint[],
    r_format text[], r_parent bigint[], r_inputs text[], r_payload bytea[],
    more jsonb,
    out verdict int[], out place int[], out last_seq bigint[], out inbox_part int[], out inbox_shard int[]
) language plpgsql as $$
declare
    touched text[] := t_command || m_command;
    bad record;
begin
    perform from noetl.execution_shard s where s.shard_id = any (p_shard) order by s.shard_id for no key update;
    if more is not null then
        select touched || coalesce(array_agg(x.command), '{}') into touched from (
            select command from jsonb_to_recordset(more -> 'stops') as (command text)
            union all select command from jsonb_to_recordset(more -> 'moves') as (command text)
            union all select command from jsonb_to_recordset(more -> 'requeues') as (command text)
            union all select command from jsonb_to_recordset(more -> 'handoffs') as (command text)) x;
    end if;
    if cardinality(touched) > 0 then
        perform from noetl.command c where c.command_id = any (touched) order by c.command_id for no key update;
    end if;

    -- Every check below runs after the locks, in a statement of its own: its snapshot sees what the locks waited for. An execution
    -- that has a tombstone ended long ago: whoever decides from nothing is told to look again.
    select array_agg(case when s.epoch is distinct from p.epoch then 1
                          when coalesce(x.seq, (select t.last_seq from noetl.tombstone t where t.execution_id = p.exec), 0) <> p.after
                          then 2 else 0 end
                     order by p.ord),
           array_agg(null::int), array_agg(p.after order by p.ord)
    into verdict, place, last_seq
    from unnest(p_exec, p_shard, p_epoch, p_after) with ordinality p (exec, shard, epoch, after, ord)
    left join noetl.execution_shard s on s.shard_id = p.shard
    left join lateral (select e.last_seq as seq from noetl.event_part e
                       where e.execution_id = p.exec order by e.last_seq desc limit 1) x on true;

    if cardinality(t_part) > 0 then
        for bad in
            select distinct on (t.part) t.part, t.ord, c.attempt is null as gone
            from unnest(t_part, t_command, t_attempt) with ordinality t (part, command, attempt, ord)
            left join noetl.command c
                on c.command_id = t.command and c.attempt = t.attempt and c.status in ('leased', 'reported')
            where verdict[t.part] = 0
                and (c.attempt is null or c.status = 'reported'
                     or exists (select from noetl.inbox i where i.command_id = t.command))
            order by t.part, t.ord
        loop
            verdict[bad.part] := case when bad.gone then 3 else 2 end;
            place[bad.part] := bad.ord;
        end loop;
    end if;
    if cardinality(i_part) > 0 then
        for bad in
            select distinct i.part from unnest(i_part, i_id) i (part, id)
            where verdict[i.part] = 0
                and not exists (select from noetl.inbox x where x.inbox_id = i.id and x.shard = p_shard[i.part])
        loop
            verdict[bad.part] := 2;
        end loop;
    end if;
    if more is not null then
        for bad in
            select distinct f.part from jsonb_to_recordset(more -> 'fired') as f (part int, timer text)
            where verdict[f.part] = 0
                and not exists (select from noetl.timer x where x.execution_id = p_exec[f.part] and x.timer_id = f.timer)
        loop
            verdict[bad.part] := 2;
        end loop;
    end if;
    if cardinality(k_part) > 0 then
        for bad in
            select k.part, min(k.ord) as ord
            from (select u.*, row_number() over (partition by u.part, u.key order by u.ord) as turn
                  from unnest(k_part, k_key) with ordinality u (part, key, ord)) k
            where verdict[k.part] = 0
                and (k.turn > 1 or exists (select from noetl.event_key x where x.execution_id = p_exec[k.part] and x.key = k.key))
            group by k.part
        loop
            verdict[bad.part] := 4;
            place[bad.part] := bad.ord;
        end loop;
    end if;

    if cardinality(i_part) > 0 then
        delete from noetl.inbox x using unnest(i_part, i_id) i (part, id)
        where verdict[i.part] = 0 and x.inbox_id = i.id;
    end if;
    if 0 < any (p_count) then
        with p as (
            select u.ord, u.shard, u.n, sum(u.n) over (partition by u.shard order by u.ord) as upto
            from unnest(p_shard, p_count) with ordinality u (shard, n, ord) where verdict[u.ord] = 0 and u.n > 0),
        grown as (
            update noetl.execution_shard s set last_seq = s.last_seq + g.n
            from (select p.shard, sum(p.n) as n from p group by p.shard) g
            where s.shard_id = g.shard returning s.shard_id, s.last_seq - g.n as base)
        select array_agg(coalesce(grown.base + p.upto, last_seq[o.ord]) order by o.ord) into last_seq
        from generate_subscripts(p_exec, 1) o (ord) left join p on p.ord = o.ord left join grown on grown.shard_id = p.shard;

        insert into noetl.event_part (execution_id, last_seq, epoch, tenant, count, shard, ends, events)
        select p.exec, last_seq[p.ord], p.epoch, p.tenant, p.n, p.shard, p.ends = 1, p.events
        from unnest(p_exec, p_shard, p_epoch, p_tenant, p_count, p_ends, p_events)
            with ordinality p (exec, shard, epoch, tenant, n, ends, events, ord)
        where verdict[p.ord] = 0 and p.n > 0;
    end if;
    if cardinality(k_part) > 0 then
        insert into noetl.event_key (execution_id, key, seq)
        select p_exec[k.part], k.key, last_seq[k.part] - p_count[k.part] + k.nth
        from unnest(k_part, k_nth, k_key) k (part, nth, key) where verdict[k.part] = 0;
    end if;
    if more is not null then
        select x.inbox_part, x.inbox_shard into inbox_part, inbox_shard
        from noetl.append_more(lease, verdict, p_exec, p_shard, p_tenant, more) x;
    end if;
    if 'done' = any (m_status) then
        delete from noetl.command c using unnest(m_part, m_command, m_status) m (part, command, status)
        where m.status = 'done' and verdict[m.part] = 0 and c.command_id = m.command
            and c.status not in ('done', 'dead', 'cancelled');
    end if;
    if 'done' <> any (m_status) then
        update noetl.command c -- whoever is over is never sent again: what it carried goes
        set status = m.status, worker = null, lease_until = null, cancel = false, changed_at = now(),
            body = case when m.status = 'parked' then c.body else '{}' end
        from unnest(m_part, m_command, m_status) m (part, command, status)
        where m.status <> 'done' and verdict[m.part] = 0 and c.command_id = m.command
            and c.status not in ('done', 'dead', 'cancelled');
    end if;
    if cardinality(c_part) > 0 then
        insert into noetl.command (command_id, execution_id, shard, tenant, step, kind, pool, priority, status, attempt,
                                   available_at, ready, worker, lease_until, body, issued_at, changed_at)
        select c.command, p_exec[c.part], p_shard[c.part], p_tenant[c.part], c.step, c.kind, c.pool, c.priority,
               case when given then 'leased' else c.status end, c.attempt, available, ready,
               case when given then c.worker end, case when given then now() + lease * interval '1 microsecond' end,
               c.body, now(), now()
        from unnest(c_part, c_command, c_step, c_kind, c_pool, c_priority, c_status, c_attempt, c_available, c_worker, c_body)
            with ordinality c (part, command, step, kind, pool, priority, status, attempt, micros, worker, body, ord),
            lateral (select noetl.moment(c.micros) as available) a,
            lateral (select coalesce(a.available <= now(), true) as ready) r,
            lateral (select c.worker is not null and c.status = 'queued' and r.ready as given) g
        where verdict[c.part] = 0 and c.status <> 'done'
        order by c.ord;
    end if;
    -- Whoever records references of a command holds the lock of its row, so that nobody records the same ones meanwhile.
    if cardinality(r_part) > 0 then
        with r as materialized (
            select distinct on (u.id) u.*, p_exec[u.part] as exec, p_tenant[u.part] as tenant
            from unnest(r_part, r_id, r_tier, r_uri, r_sha256, r_bytes, r_rows, r_format, r_parent, r_inputs, r_payload)
                u (part, id, tier, uri, sha256, bytes, rows, format, parent, inputs, payload)
            where verdict[u.part] = 0 order by u.id, u.part)
        insert into noetl.result_ref (ref_id, tenant, execution_id, tier, uri, sha256, bytes, rows, format, parent_ref_id,
                                      part_seq, inputs, payload, at)
        select r.id, r.tenant, r.exec, r.tier, r.uri, r.sha256, r.bytes, r.rows, r.format, r.parent,
               case when p_count[r.part] > 0 then last_seq[r.part] end, r.inputs::bigint[], r.payload, now() from r
        where not exists (select from noetl.result_ref x where x.ref_id = r.id);
    end if;
end $$;

-- Whether the log has the event that an attempt of a command has reported. It reads all events of the execution that name the command:
-- only a report of a command that nobody holds asks this.
create function noetl.is_reported(in_exec bigint, in_command text, in_attempt int, event_key text) returns boolean
language sql stable as $$
    select exists (select from noetl.event_part p, lateral json_array_elements(noetl.readable(p.events)) e (event)
                   where p.execution_id = in_exec and strpos(p.events::text, in_command) > 0
                       and e.event ->> 0 = event_key and e.event -> 1 ->> 'attempt' = in_attempt::text)
$$;

-- A report at a server that does not own the execution. References are stored here; the inbox row goes on without them. The row of a
-- command that is done is gone: whether the report is the one that was recorded, its event says. The attempt is compared: the key of
-- an end does not name it. A repeated entry of a journal is recognised by the owner.
drop function noetl.accept;
create function noetl.accept(
    in_exec bigint, in_command text, in_attempt int, event_key text, report_key text, ends boolean, in_body bytea,
    r_id bigint[], r_tier text[], r_uri text[], r_sha256 text[], r_bytes bigint[], r_rows bigint[], r_format text[],
    r_parent bigint[], r_inputs text[], r_payload bytea[]
) returns boolean language plpgsql as $$
declare
    held record;
begin
    select c.status, c.shard, c.tenant, c.attempt into held from noetl.command c
    where c.command_id = in_command and c.execution_id = in_exec for no key update;
    if not found then
        return noetl.is_reported(in_exec, in_command, in_attempt, event_key);
    end if;
    if held.attempt <> in_attempt then
        return false;
    end if;
    if exists (select from noetl.event_key k where k.execution_id = in_exec and k.key = event_key)
        or exists (select from noetl.inbox i where i.execution_id = in_exec and i.dedup_key = report_key) then
        return true;
    end if;
    if held.status <> 'leased' then
        return noetl.is_reported(in_exec, in_command, in_attempt, event_key);
    end if;
    insert into noetl.result_ref (ref_id, tenant, execution_id, tier, uri, sha256, bytes, rows, format, parent_ref_id, inputs,
                                  payload, at)
    select r.id, held.tenant, in_exec, r.tier, r.uri, r.sha256, r.bytes, r.rows, r.format, r.parent, r.inputs::bigint[], r.payload,
           now()
    from unnest(r_id, r_tier, r_uri, r_sha256, r_bytes, r_rows, r_format, r_parent, r_inputs, r_payload)
        r (id, tier, uri, sha256, bytes, rows, format, parent, inputs, payload)
    on conflict do nothing;
    insert into noetl.inbox (shard, execution_id, dedup_key, kind, command_id, body, at)
    values (held.shard, in_exec, report_key, 'report', in_command, in_body, now());
    if ends then
        update noetl.command c
        set status = 'reported', worker = null, lease_until = null, cancel = false, changed_at = now()
        where c.command_id = in_command;
    end if;
    return true;
end $$;
