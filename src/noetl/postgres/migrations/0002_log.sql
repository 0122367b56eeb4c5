-- The writing side of the log: one call, one transaction, one round trip. log/postgres.py calls these and nobody else does.
-- Rows arrive as arrays (`p_` parts, `e_` events, `t_` leases a report must hold, `i_` inbox rows consumed, `m_` commands that
-- end or park, `c_` commands issued, `r_` references); what a step seldom needs comes as JSON in `more`. `…_part` is the
-- number of the part a row belongs to, from 1. Locks are taken in one order everywhere: shard rows by number, command rows
-- by id, then whatever is inserted.

-- Stable, as adding to a timestamp is: otherwise it is called instead of inlined.
create function noetl.moment(micros bigint) returns timestamptz language sql stable parallel safe
as $$ select timestamptz 'epoch' + micros * interval '1 microsecond' $$;

-- Verdicts: 0 stays, 1 the shard is another owner's, 2 known, 3 stale attempt (`place`: which of t_), 4 known key (which of e_).
-- With check_keys every key is looked up first. Without it the unique index speaks, the transaction is gone, and the caller
-- comes again with it: a key that is there although the state was the last one is rare.
create function noetl.append(
    lease bigint, check_keys boolean,
    p_exec bigint[], p_shard int[], p_epoch bigint[], p_after bigint[], p_tenant int[], p_count int[],
    e_part int[], e_nth int[], e_type text[], e_step text[], e_command text[], e_attempt int[], e_status text[],
    e_result json[], e_meta json[], e_key text[], e_at bigint[],
    t_part int[], t_command text[], t_attempt int[],
    i_part int[], i_id bigint[],
    m_part int[], m_command text[], m_status text[],
    c_part int[], c_command text[], c_step text[], c_kind text[], c_pool text[], c_priority int[], c_status text[], c_attempt int[],
    c_available bigint[], c_worker text[], c_body bytea[],
    r_part int[], r_id bigint[], r_tier text[], r_uri text[], r_sha256 text[], r_bytes bigint[], r_rows bigint[],
    r_format text[], r_parent bigint[], r_payload bytea[],
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

    -- Every check below runs after the locks, in a statement of its own: its snapshot sees what the locks waited for.
    select array_agg(case when s.epoch is distinct from p.epoch then 1 when coalesce(x.seq, 0) <> p.after then 2 else 0 end
                     order by p.ord),
           array_agg(null::int), array_agg(p.after order by p.ord)
    into verdict, place, last_seq
    from unnest(p_exec, p_shard, p_epoch, p_after) with ordinality p (exec, shard, epoch, after, ord)
    left join noetl.execution_shard s on s.shard_id = p.shard
    left join lateral (select e.seq from noetl.event e where e.execution_id = p.exec order by e.seq desc limit 1) x on true;

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
    if check_keys then
        for bad in
            select e.part, min(e.ord) as ord
            from (select u.*, row_number() over (partition by u.part, u.key order by u.ord) as nth
                  from unnest(e_part, e_key) with ordinality u (part, key, ord)) e
            where verdict[e.part] = 0
                and (e.nth > 1 or exists (select from noetl.event x
                                          where x.execution_id = p_exec[e.part] and x.dedup_key = e.key))
            group by e.part
        loop
            verdict[bad.part] := 4;
            place[bad.part] := bad.ord;
        end loop;
    end if;

    if cardinality(i_part) > 0 then
        delete from noetl.inbox x using unnest(i_part, i_id) i (part, id)
        where verdict[i.part] = 0 and x.inbox_id = i.id;
    end if;
    if cardinality(e_part) > 0 then
        with p as (
            select u.ord, u.shard, u.n, sum(u.n) over (partition by u.shard order by u.ord) as upto
            from unnest(p_shard, p_count) with ordinality u (shard, n, ord) where verdict[u.ord] = 0 and u.n > 0),
        grown as (
            update noetl.execution_shard s set last_seq = s.last_seq + g.n
            from (select p.shard, sum(p.n) as n from p group by p.shard) g
            where s.shard_id = g.shard returning s.shard_id, s.last_seq - g.n as base)
        select array_agg(coalesce(grown.base + p.upto, last_seq[o.ord]) order by o.ord) into last_seq
        from generate_subscripts(p_exec, 1) o (ord) left join p on p.ord = o.ord left join grown on grown.shard_id = p.shard;

        insert into noetl.event (shard, seq, epoch, tenant, execution_id, event_type, step, command_id, attempt, status,
                                 result, meta, dedup_key, at)
        select p_shard[e.part], last_seq[e.part] - p_count[e.part] + e.nth, p_epoch[e.part], p_tenant[e.part], p_exec[e.part],
               e.type, e.step, e.command, e.attempt, e.status, e.result, e.meta, e.key, noetl.moment(e.at)
        from unnest(e_part, e_nth, e_type, e_step, e_command, e_attempt, e_status, e_result, e_meta, e_key, e_at)
            e (part, nth, type, step, command, attempt, status, result, meta, key, at)
        where verdict[e.part] = 0;
    end if;
    if more is not null then
        select x.inbox_part, x.inbox_shard into inbox_part, inbox_shard
        from noetl.append_more(lease, verdict, p_exec, p_shard, p_tenant, more) x;
    end if;
    if cardinality(m_part) > 0 then
        update noetl.command c -- whoever is over is never sent again: what it carried goes
        set status = m.status, worker = null, lease_until = null, cancel = false, changed_at = now(),
            body = case when m.status = 'parked' then c.body else '{}' end
        from unnest(m_part, m_command, m_status) m (part, command, status)
        where verdict[m.part] = 0 and c.command_id = m.command and c.status not in ('done', 'dead', 'cancelled');
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
        where verdict[c.part] = 0
        order by c.ord;
    end if;
    if cardinality(r_part) > 0 then
        with r as materialized (
            select u.*, p_exec[u.part] as exec, p_tenant[u.part] as tenant
            from unnest(r_part, r_id, r_tier, r_uri, r_sha256, r_bytes, r_rows, r_format, r_parent, r_payload)
                u (part, id, tier, uri, sha256, bytes, rows, format, parent, payload)
            where verdict[u.part] = 0),
        noted as (
            insert into noetl.result_ref (ref_id, tenant, execution_id, tier, uri, sha256, bytes, rows, format, parent_ref_id, at)
            select r.id, r.tenant, r.exec, r.tier, r.uri, r.sha256, r.bytes, r.rows, r.format, r.parent, now() from r
            on conflict do nothing)
        insert into noetl.result_blob (ref_id, uri, payload) select r.id, r.uri, r.payload from r where r.payload is not null
        on conflict do nothing;
    end if;
end $$;

-- What a part seldom brings. Messages that got a new row come back as (part, shard of the inbox).
create function noetl.append_more(
    lease bigint, verdict int[], p_exec bigint[], p_shard int[], p_tenant int[], more jsonb,
    out inbox_part int[], out inbox_shard int[]
) language plpgsql as $$
declare
    wish record;
    told record;
    missing text;
begin
    inbox_part := '{}';
    inbox_shard := '{}';
    if more ?| '{fired,clear,set}' then -- those that fired are consumed, then what the decisions left of each
        delete from noetl.timer x
        using (select * from jsonb_to_recordset(more -> 'fired') as (part int, timer text)
               union all select * from jsonb_to_recordset(more -> 'clear') as (part int, timer text)) t
        where verdict[t.part] = 0 and x.execution_id = p_exec[t.part] and x.timer_id = t.timer;
        insert into noetl.timer (execution_id, timer_id, shard, due)
        select p_exec[t.part], t.timer, p_shard[t.part], noetl.moment(t.due)
        from jsonb_to_recordset(more -> 'set') as t (part int, timer text, due bigint) where verdict[t.part] = 0
        on conflict (execution_id, timer_id) do update set due = excluded.due;
    end if;
    if more ? 'requeues' then
        select string_agg(q.command, ', ') into missing
        from jsonb_to_recordset(more -> 'requeues') as q (part int, command text)
        where verdict[q.part] = 0 and not exists (
            select from noetl.command c where c.command_id = q.command and c.status not in ('done', 'dead', 'cancelled'));
        if missing is not null then
            raise exception 'command % is over and cannot be queued again', missing;
        end if;
    end if;
    if more ?| '{stops,moves}' then -- stops before what came after them; `moves` were parked and then stopped
        update noetl.command c set cancel = true
        from jsonb_to_recordset(more -> 'stops') as s (part int, command text)
        where verdict[s.part] = 0 and c.command_id = s.command and c.worker is not null; -- leased, found by its id
        with ended as (
            update noetl.command c
            set status = 'cancelled', worker = null, lease_until = null, cancel = false, changed_at = now()
            from (select part, command, true as held from jsonb_to_recordset(more -> 'stops') as (part int, command text)
                  union all
                  select part, command, false from jsonb_to_recordset(more -> 'moves') as (part int, command text)) s
            where verdict[s.part] = 0 and c.command_id = s.command
                and case when s.held then c.status in ('queued', 'parked', 'lost')
                         else c.status not in ('done', 'dead', 'cancelled') end
            returning s.part, c.command_id, c.attempt, c.execution_id, c.shard),
        posted as (
            insert into noetl.inbox (shard, execution_id, dedup_key, kind, body, at)
            select e.shard, e.execution_id, 'stopped:' || e.command_id, 'stopped', noetl.stopped(e.command_id, e.attempt), now()
            from ended e on conflict (execution_id, dedup_key) do nothing returning execution_id, shard)
        select array_agg(e.part) as parts, array_agg(e.shard) as shards into told
        from (select distinct part, execution_id, shard from ended) e
        where exists (select from posted p where p.execution_id = e.execution_id);
        inbox_part := inbox_part || told.parts;
        inbox_shard := inbox_shard || told.shards;
    end if;
    if more ? 'requeues' then
        update noetl.command c
        set status = case when given then 'leased' else q.status end, attempt = q.attempt,
            journal = convert_to(q.journal, 'UTF8'), available_at = a.available, ready = r.ready,
            worker = case when given then q.worker end,
            lease_until = case when given then now() + lease * interval '1 microsecond' end, cancel = false, changed_at = now()
        from jsonb_to_recordset(more -> 'requeues')
                as q (part int, command text, attempt int, journal text, micros bigint, status text, worker text),
            lateral (select noetl.moment(q.micros) as available) a,
            lateral (select coalesce(a.available <= now(), true) as ready) r,
            lateral (select q.worker is not null and q.status = 'queued' and r.ready as given) g
        where verdict[q.part] = 0 and c.command_id = q.command;
    end if;
    if more ? 'handoffs' then
        update noetl.command c
        set status = 'leased', worker = h.worker, lease_until = now() + lease * interval '1 microsecond', changed_at = now()
        from jsonb_to_recordset(more -> 'handoffs') as h (part int, command text, worker text)
        where verdict[h.part] = 0 and c.command_id = h.command and c.status = 'queued'
            and coalesce(c.available_at <= now(), true);
    end if;
    if more ? 'children' then -- the first to use the parent's key is the one
        with asked as materialized (
            select * from rows from (jsonb_to_recordset(more -> 'children') as (
                part int, key text, exec bigint, shard int, tenant int, playbook text, workload text, start text,
                parent bigint, parent_shard int, notice_key text, notice text)) with ordinality
                as c (part, key, exec, shard, tenant, playbook, workload, start, parent, parent_shard, notice_key, notice, ord)
            where verdict[c.part] = 0),
        keyed as (
            insert into noetl.start_key (tenant, key, execution_id, at)
            select c.tenant, c.key, c.exec, now() from asked c order by c.key on conflict do nothing
            returning key, execution_id),
        mine as materialized (
            select c.* from asked c
            where exists (select from keyed k where k.key = c.key and k.execution_id = c.exec)
                or exists (select from noetl.start_key k
                           where k.tenant = c.tenant and k.key = c.key and k.execution_id = c.exec)),
        pinned as (
            insert into noetl.workload (execution_id, tenant, playbook, data)
            select c.exec, c.tenant, c.playbook, c.workload::json from mine c on conflict do nothing returning execution_id),
        posted as (
            insert into noetl.inbox (shard, execution_id, dedup_key, kind, body, at)
            select m.shard, m.exec, m.key, m.kind, convert_to(m.body, 'UTF8'), now()
            from (select c.shard, c.exec, 'start' as key, 'start' as kind, c.start as body, 2 * c.ord as ord
                  from mine c join pinned p on p.execution_id = c.exec
                  union all
                  select c.parent_shard, c.parent, c.notice_key, 'notice', c.notice, 2 * c.ord + 1 from mine c) m
            order by m.ord on conflict (execution_id, dedup_key) do nothing returning execution_id, dedup_key)
        select array_agg(x.part) as parts, array_agg(x.shard) as shards into told
        from (select c.part, c.shard from mine c
              union all
              select c.part, c.parent_shard from mine c join posted p
                  on p.execution_id = c.parent and p.dedup_key = c.notice_key) x;
        inbox_part := inbox_part || told.parts;
        inbox_shard := inbox_shard || told.shards;
    end if;
    if more ? 'sends' then
        with sent as materialized (
            select * from rows from (jsonb_to_recordset(more -> 'sends') as (
                part int, exec bigint, shard int, kind text, key text, command text, body text)) with ordinality
                as s (part, exec, shard, kind, key, command, body, ord)
            where verdict[s.part] = 0),
        posted as (
            insert into noetl.inbox (shard, execution_id, dedup_key, kind, command_id, body, at)
            select s.shard, s.exec, s.key, s.kind, s.command, convert_to(s.body, 'UTF8'), now() from sent s order by s.ord
            on conflict (execution_id, dedup_key) do nothing returning execution_id, dedup_key)
        select array_agg(s.part) as parts, array_agg(s.shard) as shards into told
        from (select distinct on (s.exec, s.key) s.part, s.shard, s.exec, s.key from sent s order by s.exec, s.key, s.ord) s
        where exists (select from posted p where p.execution_id = s.exec and p.dedup_key = s.key);
        inbox_part := inbox_part || told.parts;
        inbox_shard := inbox_shard || told.shards;
    end if;
    if more ? 'admissions' then -- one wish after the other; all of their locks first, in one order
        perform pg_advisory_xact_lock(l.k) from (
            select distinct hashtextextended('admission ' || p_tenant[w.part] || ' ' || w.path, 0) as k
            from jsonb_to_recordset(more -> 'admissions') as w (part int, path text) where verdict[w.part] = 0 order by k) l;
        for wish in
            select * from rows from (jsonb_to_recordset(more -> 'admissions') as (part int, path text, places int))
                with ordinality as w (part, path, places, ord)
            where verdict[w.part] = 0 order by w.ord
        loop
            if wish.places is null then
                delete from noetl.admission a
                where a.tenant = p_tenant[wish.part] and a.path = wish.path and a.execution_id = p_exec[wish.part];
            else
                insert into noetl.admission (tenant, path, execution_id, shard, places, active)
                values (p_tenant[wish.part], wish.path, p_exec[wish.part], p_shard[wish.part], wish.places, false)
                on conflict do nothing;
            end if;
            select array_agg(wish.part) as parts, array_agg(x) as shards into told
            from noetl.admit(p_tenant[wish.part], wish.path) x;
            inbox_part := inbox_part || told.parts;
            inbox_shard := inbox_shard || told.shards;
        end loop;
    end if;
    if more ? 'parts' then
        insert into noetl.manifest (manifest, execution_id, tenant, at)
        select distinct on (m.manifest) m.manifest, p_exec[m.part], p_tenant[m.part], now()
        from jsonb_to_recordset(more -> 'parts') as m (part int, manifest text) where verdict[m.part] = 0
        order by m.manifest on conflict do nothing;
        insert into noetl.manifest_part (manifest, first, count, execution_id, body)
        select m.manifest, m.first, m.count, p_exec[m.part], convert_to(m.body, 'UTF8')
        from jsonb_to_recordset(more -> 'parts') as m (part int, manifest text, first bigint, count bigint, body text)
        where verdict[m.part] = 0
        on conflict (manifest, first) do update set count = excluded.count, body = excluded.body;
    end if;
    if more ? 'inputs' then
        insert into noetl.result_input (ref_id, input_id)
        select r.ref, r.input from jsonb_to_recordset(more -> 'inputs') as r (part int, ref bigint, input bigint)
        where verdict[r.part] = 0 on conflict do nothing;
    end if;
end $$;

-- The one that waits longest goes first; it never stands behind one that asked later with a higher limit.
create function noetl.admit(for_tenant int, for_path text) returns setof int language plpgsql as $$
declare
    next record;
    busy int := (select count(*) from noetl.admission a where a.tenant = for_tenant and a.path = for_path and a.active);
begin
    loop
        select a.execution_id, a.shard, a.places into next from noetl.admission a
        where a.tenant = for_tenant and a.path = for_path and not a.active order by a.number limit 1;
        exit when not found or busy >= next.places;
        update noetl.admission a set active = true
        where a.tenant = for_tenant and a.path = for_path and a.execution_id = next.execution_id;
        busy := busy + 1;
        insert into noetl.inbox (shard, execution_id, dedup_key, kind, body, at)
        values (next.shard, next.execution_id, 'admitted', 'admitted', '{"type":"admitted"}', now())
        on conflict (execution_id, dedup_key) do nothing;
        if found then
            return next next.shard;
        end if;
    end loop;
end $$;

create function noetl.stopped(command_id text, attempt int) returns bytea language sql immutable
as $$ select convert_to(json_build_object('type', 'stopped', 'command_id', command_id, 'attempt', attempt)::text, 'UTF8') $$;

create function noetl.lease_lost(command_id text, attempt int, worker text) returns bytea language sql immutable
as $$ select convert_to(json_build_object(
    'type', 'lease.lost', 'command_id', command_id, 'attempt', attempt, 'worker', worker)::text, 'UTF8') $$;

-- ---- anyone ----------------------------------------------------------------------------------------------------------------

-- The execution that the key names. A start whose execution is pinned already starts nothing.
create function noetl.start(
    in_exec bigint, in_shard int, in_tenant int, in_key text, in_playbook text, in_workload json, in_body bytea
) returns bigint language plpgsql as $$
declare
    known bigint;
begin
    if in_key is not null then
        insert into noetl.start_key (tenant, key, execution_id, at) values (in_tenant, in_key, in_exec, now())
        on conflict do nothing;
        select k.execution_id into strict known from noetl.start_key k where k.tenant = in_tenant and k.key = in_key;
        if known <> in_exec then
            return known;
        end if;
    end if;
    insert into noetl.workload (execution_id, tenant, playbook, data) values (in_exec, in_tenant, in_playbook, in_workload)
    on conflict do nothing;
    if found then
        insert into noetl.inbox (shard, execution_id, dedup_key, kind, body, at)
        values (in_shard, in_exec, 'start', 'start', in_body, now()) on conflict (execution_id, dedup_key) do nothing;
    end if;
    return in_exec;
end $$;

-- A report at a server that does not own the execution. References are stored here; the inbox row goes on without them.
create function noetl.accept(
    in_exec bigint, in_command text, in_attempt int, event_key text, report_key text, ends boolean, in_body bytea,
    r_id bigint[], r_tier text[], r_uri text[], r_sha256 text[], r_bytes bigint[], r_rows bigint[], r_format text[],
    r_parent bigint[], r_payload bytea[], ri_ref bigint[], ri_input bigint[]
) returns boolean language plpgsql as $$
declare
    held record;
begin
    select c.status, c.shard, c.tenant into held from noetl.command c
    where c.command_id = in_command and c.attempt = in_attempt and c.execution_id = in_exec for no key update;
    if not found then
        return false;
    end if;
    if exists (select from noetl.event e where e.execution_id = in_exec and e.dedup_key = event_key)
        or exists (select from noetl.inbox i where i.execution_id = in_exec and i.dedup_key = report_key) then
        return true;
    end if;
    if held.status <> 'leased' then
        return false;
    end if;
    insert into noetl.result_ref (ref_id, tenant, execution_id, tier, uri, sha256, bytes, rows, format, parent_ref_id, at)
    select r.id, held.tenant, in_exec, r.tier, r.uri, r.sha256, r.bytes, r.rows, r.format, r.parent, now()
    from unnest(r_id, r_tier, r_uri, r_sha256, r_bytes, r_rows, r_format, r_parent)
        r (id, tier, uri, sha256, bytes, rows, format, parent)
    on conflict do nothing;
    insert into noetl.result_blob (ref_id, uri, payload)
    select r.id, r.uri, r.payload from unnest(r_id, r_uri, r_payload) r (id, uri, payload) where r.payload is not null
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

-- ---- the queue -------------------------------------------------------------------------------------------------------------

-- Highest priority first, then the order of issue. Rows that others are about to take are passed over.
create function noetl.claim(in_worker text, pools text[], how_many int, lease bigint)
returns table (body bytea, attempt int, journal bytea) language plpgsql as $$
begin
    if exists (select from noetl.command c where c.status = 'queued' and not c.ready and c.available_at <= now()) then
        update noetl.command c set ready = true
        from (select d.command_id from noetl.command d
              where d.status = 'queued' and not d.ready and d.available_at <= now()
              order by d.available_at limit 1000 for no key update skip locked) due
        where c.command_id = due.command_id;
    end if;
    return query
        with found as materialized (
            select f.command_id, f.priority, f.number
            from unnest(pools) p (pool),
                lateral (select c.command_id, c.priority, c.number from noetl.command c
                         where c.pool = p.pool and c.status = 'queued' and c.ready
                         order by c.priority desc, c.number limit how_many for no key update skip locked) f
            order by f.priority desc, f.number limit how_many),
        taken as (
            update noetl.command c
            set status = 'leased', worker = in_worker, lease_until = now() + lease * interval '1 microsecond',
                cancel = false, changed_at = now()
            from found f where c.command_id = f.command_id
            returning c.priority, c.number, c.body, c.attempt, c.journal)
        select t.body, t.attempt, t.journal from taken t order by t.priority desc, t.number;
end $$;

-- Leases that ran out, or every lease of a worker that is gone: to be stopped anyway means stopped, else the owner decides.
create function noetl.lose(in_worker text, how_many int) returns int language plpgsql as $$
declare
    n int;
begin
    if in_worker is null and not exists (
        select from noetl.command c where c.status = 'leased' and c.lease_until <= now()) then
        return 0;
    end if;
    with gone as materialized (
        select c.command_id, c.worker, c.cancel from noetl.command c
        where c.status = 'leased' and case when in_worker is null then c.lease_until <= now() else c.worker = in_worker end
        order by c.command_id limit how_many for no key update),
    ended as (
        update noetl.command c
        set status = case when g.cancel then 'cancelled' else 'lost' end, worker = null, lease_until = null, cancel = false,
            changed_at = now()
        from gone g where c.command_id = g.command_id
        returning c.command_id, c.execution_id, c.shard, c.attempt, g.worker, g.cancel),
    posted as (
        insert into noetl.inbox (shard, execution_id, dedup_key, kind, body, at)
        select e.shard, e.execution_id,
               case when e.cancel then 'stopped:' || e.command_id else 'lost:' || e.command_id || ':' || e.attempt end,
               case when e.cancel then 'stopped' else 'lease.lost' end,
               case when e.cancel then noetl.stopped(e.command_id, e.attempt)
                    else noetl.lease_lost(e.command_id, e.attempt, e.worker) end, now()
        from ended e on conflict (execution_id, dedup_key) do nothing)
    select count(*) into n from ended;
    return n;
end $$;

-- ---- projections -----------------------------------------------------------------------------------------------------------

-- False: another owner. A takeover that commits while this runs changes nothing: a row is the fold of the log up to its
-- last_seq, whoever folds it, and goes forward only.
create function noetl.project(
    in_shard int, in_epoch bigint, in_checkpoint bigint,
    x_exec bigint[], x_tenant int[], x_path text[], x_status text[], x_last_seq bigint[], x_started_at bigint[],
    x_updated_at bigint[], x_ended_at bigint[], x_parent bigint[], x_retry_of bigint[], x_error text[], x_steps int[],
    x_state bytea[], x_state_hash text[]
) returns boolean language plpgsql as $$
declare
    upto bigint;
    ahead text;
begin
    select s.last_seq into upto from noetl.execution_shard s where s.shard_id = in_shard and s.epoch = in_epoch;
    if not found then
        return false;
    end if;
    select string_agg(x.exec::text, ', ') into ahead from unnest(x_exec, x_last_seq) x (exec, seq)
    where not exists (select from noetl.event e where e.execution_id = x.exec and e.seq >= x.seq);
    if ahead is not null then
        raise exception 'projection of % is ahead of the log', ahead;
    end if;
    insert into noetl.execution as old (execution_id, shard, tenant, path, status, last_seq, started_at, updated_at, ended_at,
                                        parent, retry_of, error, steps, state, state_hash)
    select x.exec, in_shard, x.tenant, x.path, x.status, x.last_seq, x.started_at, x.updated_at, x.ended_at, x.parent,
           x.retry_of, x.error, x.steps, x.state, x.state_hash
    from unnest(x_exec, x_tenant, x_path, x_status, x_last_seq, x_started_at, x_updated_at, x_ended_at, x_parent, x_retry_of,
                x_error, x_steps, x_state, x_state_hash)
        x (exec, tenant, path, status, last_seq, started_at, updated_at, ended_at, parent, retry_of, error, steps, state,
           state_hash)
    order by x.exec
    on conflict (execution_id) do update
    set tenant = excluded.tenant, path = excluded.path, status = excluded.status, last_seq = excluded.last_seq,
        started_at = excluded.started_at, updated_at = excluded.updated_at, ended_at = excluded.ended_at,
        parent = excluded.parent, retry_of = excluded.retry_of, error = excluded.error, steps = excluded.steps,
        state = excluded.state, state_hash = excluded.state_hash
    where old.last_seq < excluded.last_seq;
    insert into noetl.checkpoint as old (shard_id, seq, at) values (in_shard, least(in_checkpoint, upto), now())
    on conflict (shard_id) do update set seq = excluded.seq, at = excluded.at where old.seq < excluded.seq;
    return true;
end $$;
