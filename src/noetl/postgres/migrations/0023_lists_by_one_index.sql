-- A list of executions walks one index, however large the table is. Its bounds and its order name all columns of that index, and it may
-- not sort: no other index has the order. With an equality for each column, Postgres took the primary key, which has the order too, once
-- statistics said that most rows fit, and read all executions to find the few of a status or of a path.
-- All columns of an index have one direction, as the comparison of rows needs it.
drop index noetl.execution_listed, noetl.execution_by_status, noetl.execution_by_path, noetl.execution_children, noetl.execution_roots;
create index execution_listed on noetl.execution (tenant, execution_id);
create index execution_by_status on noetl.execution (tenant, status, execution_id);
create index execution_by_path on noetl.execution (tenant, path, execution_id);
create index execution_children on noetl.execution (parent, execution_id) where parent is not null;
create index execution_roots on noetl.execution (tenant, execution_id) where parent is null;

-- The ids of a page, newest first. Of the filters that are given, the first in this order has the index: roots, parent, path, status.
-- Ids begin at `in_floor`, which was made well before `in_since`: it bounds the walk if few rows or none are that new.
create function noetl.list_page(
    in_tenant int, in_roots boolean, in_parent bigint, in_path text, in_pattern text, in_status text, in_since bigint, in_floor bigint,
    in_before bigint, in_limit int
) returns setof bigint language plpgsql stable rows 50 set enable_sort = off set enable_incremental_sort = off as $$
begin
    if in_roots then
        return query
        select x.execution_id from noetl.execution x
        where x.parent is null
            and (x.tenant, x.execution_id) >= (in_tenant, in_floor) and (x.tenant, x.execution_id) < (in_tenant, in_before)
            and x.started_at >= in_since and (in_status is null or x.status = in_status)
            and (in_path is null or x.path = in_path) and (in_pattern is null or x.path like in_pattern)
            and not exists (select from noetl.start_key k
                            where k.execution_id = x.execution_id and starts_with(k.key, 'child:'))
        order by x.tenant desc, x.execution_id desc limit in_limit;
    elsif in_parent is not null then
        return query
        select x.execution_id from noetl.execution x
        where x.parent is not null
            and (x.parent, x.execution_id) >= (in_parent, in_floor) and (x.parent, x.execution_id) < (in_parent, in_before)
            and x.tenant = in_tenant and x.started_at >= in_since and (in_status is null or x.status = in_status)
            and (in_path is null or x.path = in_path) and (in_pattern is null or x.path like in_pattern)
        order by x.parent desc, x.execution_id desc limit in_limit;
    elsif in_path is not null then
        return query
        select x.execution_id from noetl.execution x
        where (x.tenant, x.path, x.execution_id) >= (in_tenant, in_path, in_floor)
            and (x.tenant, x.path, x.execution_id) < (in_tenant, in_path, in_before)
            and x.started_at >= in_since and (in_status is null or x.status = in_status)
        order by x.tenant desc, x.path desc, x.execution_id desc limit in_limit;
    elsif in_status is not null then
        return query
        select x.execution_id from noetl.execution x
        where (x.tenant, x.status, x.execution_id) >= (in_tenant, in_status, in_floor)
            and (x.tenant, x.status, x.execution_id) < (in_tenant, in_status, in_before)
            and x.started_at >= in_since and (in_pattern is null or x.path like in_pattern)
        order by x.tenant desc, x.status desc, x.execution_id desc limit in_limit;
    else
        return query
        select x.execution_id from noetl.execution x
        where (x.tenant, x.execution_id) >= (in_tenant, in_floor) and (x.tenant, x.execution_id) < (in_tenant, in_before)
            and x.started_at >= in_since and (in_pattern is null or x.path like in_pattern)
        order by x.tenant desc, x.execution_id desc limit in_limit;
    end if;
end $$;
