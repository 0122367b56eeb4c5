-- Lists of executions by several statuses, counts of them, and failed items of loops that are found without opening the others.

-- What an execution that has not ended waits for and how far its loop is, as JSON. `waiting`: only a person can end its wait.
alter table noetl.execution add column live text;
alter table noetl.execution add column waiting boolean not null default false;
update noetl.execution set waiting = true, live = '{"waits_for":{"on":"' || status || '"}}' where status in ('paused', 'quarantined');
-- Lists and counts of a path and of roots go status by status. One index for each, as before.
drop index noetl.execution_by_path, noetl.execution_roots;
create index execution_by_path on noetl.execution (tenant, path, status, execution_id);
create index execution_roots on noetl.execution (tenant, status, execution_id) where parent is null;
create index execution_waiting on noetl.execution (tenant, execution_id) where waiting;

-- Which executions retry one.
create index execution_retries on noetl.execution (retry_of, execution_id) where retry_of is not null;

-- A list follows one index, in one lane or several: one for each status, or one for each range of ids. A lane looks at `walked` rows at
-- most, newest first. Bounds and order name all columns of the index, and a walk may not sort: no other index has the order.
create function noetl.open_walk(
    walk text, walked int, in_tenant int, in_status text, in_path text, in_parent bigint, in_low bigint, in_high bigint
) returns refcursor language plpgsql stable set enable_sort = off set enable_incremental_sort = off as $$
declare
    rows refcursor;
begin
    if walk = 'status' then
        open rows no scroll for
        select x.execution_id, x.tenant, x.status, x.path, x.parent, x.started_at, x.waiting, x.error from noetl.execution x
        where (x.tenant, x.status, x.execution_id) >= (in_tenant, in_status, in_low)
            and (x.tenant, x.status, x.execution_id) < (in_tenant, in_status, in_high)
        order by x.tenant desc, x.status desc, x.execution_id desc limit walked;
    elsif walk = 'path' then
        open rows no scroll for
        select x.execution_id, x.tenant, x.status, x.path, x.parent, x.started_at, x.waiting, x.error from noetl.execution x
        where (x.tenant, x.path, x.status, x.execution_id) >= (in_tenant, in_path, in_status, in_low)
            and (x.tenant, x.path, x.status, x.execution_id) < (in_tenant, in_path, in_status, in_high)
        order by x.tenant desc, x.path desc, x.status desc, x.execution_id desc limit walked;
    elsif walk = 'roots' then
        open rows no scroll for
        select x.execution_id, x.tenant, x.status, x.path, x.parent, x.started_at, x.waiting, x.error from noetl.execution x
        where x.parent is null and (x.tenant, x.status, x.execution_id) >= (in_tenant, in_status, in_low)
            and (x.tenant, x.status, x.execution_id) < (in_tenant, in_status, in_high)
        order by x.tenant desc, x.status desc, x.execution_id desc limit walked;
    elsif walk = 'waiting' then
        open rows no scroll for
        select x.execution_id, x.tenant, x.status, x.path, x.parent, x.started_at, x.waiting, x.error from noetl.execution x
        where x.waiting and (x.tenant, x.execution_id) >= (in_tenant, in_low)
            and (x.tenant, x.execution_id) < (in_tenant, in_high)
        order by x.tenant desc, x.execution_id desc limit walked;
    elsif walk = 'parent' then
        open rows no scroll for
        select x.execution_id, x.tenant, x.status, x.path, x.parent, x.started_at, x.waiting, x.error from noetl.execution x
        where x.parent is not null and (x.parent, x.execution_id) >= (in_parent, in_low)
            and (x.parent, x.execution_id) < (in_parent, in_high)
        order by x.parent desc, x.execution_id desc limit walked;
    elsif walk = 'ids' then
        open rows no scroll for
        select x.execution_id, x.tenant, x.status, x.path, x.parent, x.started_at, x.waiting, x.error from noetl.execution x
        where (x.tenant, x.execution_id) >= (in_tenant, in_low)
            and (x.tenant, x.execution_id) < (in_tenant, in_high)
        order by x.tenant desc, x.execution_id desc limit walked;
    end if;
    return rows;
end $$;

-- The ids of a lane that match, `in_limit` at most. `words` are in lower case. A child that its parent does not wait for has no
-- `parent`, but a key.
create function noetl.list_lane(
    walk text, walked int, in_tenant int, in_status text, in_path text, in_parent bigint, in_low bigint, in_high bigint,
    statuses text[], pattern text, since bigint, until bigint, is_waiting boolean, search text, words text[], roots boolean,
    in_limit int
) returns setof bigint language plpgsql stable rows 50 as $$
declare
    rows refcursor := noetl.open_walk(walk, walked, in_tenant, in_status, in_path, in_parent, in_low, in_high);
    x record;
    listed int := 0;
begin
    while listed < in_limit loop
        fetch rows into x;
        exit when not found;
        continue when x.tenant <> in_tenant or x.started_at < since or x.started_at >= until
            or x.status <> all (statuses) or x.path <> in_path or not x.path like pattern
            or in_parent is not null and x.parent is distinct from in_parent
            or is_waiting and not x.waiting;
        continue when search is not null and not starts_with(lower(x.path), search)
            and exists (select from unnest(words) word where strpos(lower(coalesce(x.error, '')), word) = 0);
        continue when roots and (x.parent is not null or exists (
            select from noetl.start_key k where k.execution_id = x.execution_id and starts_with(k.key, 'child:')));
        listed := listed + 1;
        return next x.execution_id;
    end loop;
    close rows;
end $$;

-- How many rows a lane looks at if it does not find enough; and, if there are more, the last of them.
create function noetl.end_lane(
    walk text, walked int, in_tenant int, in_status text, in_path text, in_parent bigint, in_low bigint, in_high bigint,
    out looked int, out last bigint
) language plpgsql stable as $$
declare
    rows refcursor := noetl.open_walk(walk, walked, in_tenant, in_status, in_path, in_parent, in_low, in_high);
    x record;
begin
    move forward (walked - 1) from rows;
    get diagnostics looked = row_count;
    fetch rows into x;
    if found then
        looked := walked;
        last := x.execution_id;
    end if;
    close rows;
end $$;

-- All rows of a lane.
create function noetl.walk_lane(
    walk text, walked int, in_tenant int, in_status text, in_path text, in_low bigint, in_high bigint
) returns table (execution_id bigint, path text, parent bigint) language plpgsql stable
set enable_sort = off set enable_incremental_sort = off as $$
#variable_conflict use_column
begin
    if walk = 'status' then
        return query
        select x.execution_id, x.path, x.parent from noetl.execution x
        where (x.tenant, x.status, x.execution_id) >= (in_tenant, in_status, in_low)
            and (x.tenant, x.status, x.execution_id) < (in_tenant, in_status, in_high)
        order by x.tenant desc, x.status desc, x.execution_id desc limit walked;
    elsif walk = 'path' then
        return query
        select x.execution_id, x.path, x.parent from noetl.execution x
        where (x.tenant, x.path, x.status, x.execution_id) >= (in_tenant, in_path, in_status, in_low)
            and (x.tenant, x.path, x.status, x.execution_id) < (in_tenant, in_path, in_status, in_high)
        order by x.tenant desc, x.path desc, x.status desc, x.execution_id desc limit walked;
    elsif walk = 'roots' then
        return query
        select x.execution_id, x.path, x.parent from noetl.execution x
        where x.parent is null and (x.tenant, x.status, x.execution_id) >= (in_tenant, in_status, in_low)
            and (x.tenant, x.status, x.execution_id) < (in_tenant, in_status, in_high)
        order by x.tenant desc, x.status desc, x.execution_id desc limit walked;
    elsif walk = 'waiting' then
        return query
        select x.execution_id, x.path, x.parent from noetl.execution x
        where x.waiting and (x.tenant, x.execution_id) >= (in_tenant, in_low)
            and (x.tenant, x.execution_id) < (in_tenant, in_high)
        order by x.tenant desc, x.execution_id desc limit walked;
    end if;
end $$;
drop function noetl.list_page;

-- How many items of a part failed; null if it was written before they were counted.
alter table noetl.manifest_part add column failed int;
create index manifest_part_failed on noetl.manifest_part (manifest, first) where failed > 0 or failed is null;

select noetl.replace_in_function('append_more',
    'insert into noetl.manifest_part (manifest, first, count, execution_id, body)
        select m.manifest, m.first, m.count, p_exec[m.part], convert_to(m.body, ''UTF8'')
        from jsonb_to_recordset(more -> ''parts'') as m (part int, manifest text, first bigint, count bigint, body text)
        where verdict[m.part] = 0
        on conflict (manifest, first) do update set count = excluded.count, body = excluded.body;',
    'insert into noetl.manifest_part (manifest, first, count, failed, execution_id, body)
        select m.manifest, m.first, m.count, m.failed, p_exec[m.part], convert_to(m.body, ''UTF8'')
        from jsonb_to_recordset(more -> ''parts'') as m (part int, manifest text, first bigint, count bigint, failed int, body text)
        where verdict[m.part] = 0
        on conflict (manifest, first) do update set count = excluded.count, failed = excluded.failed, body = excluded.body;');
