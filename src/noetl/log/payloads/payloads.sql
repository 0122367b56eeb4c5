-- Small payloads. Each belongs to the execution that its address names, and so to a tenant. `append` and `accept_report` store those that come with a report, in the row of the reference.

-- name: put_payload
-- Returns no row if there is no such execution, or if the address holds a payload already; `read_payload` tells which.
with made as (
    insert into noetl.result_blob (ref_id, uri, payload)
    select :ref_id::bigint, :uri::text, :payload::bytea
    where exists (select from noetl.workload w where w.execution_id = :execution_id and w.tenant = :tenant)
        and not exists (select from noetl.result_ref r where r.ref_id = :ref_id and r.payload is not null)
    on conflict do nothing
    returning ref_id)
insert into noetl.result_put (ref_id, execution_id) select m.ref_id, :execution_id from made m
on conflict do nothing
returning ref_id;

-- name: read_payload
select r.payload from noetl.result_ref r
where r.ref_id = :ref_id and r.uri = :uri and r.tenant = :tenant and r.payload is not null
union all
select b.payload from noetl.result_blob b where b.ref_id = :ref_id and b.uri = :uri
    and exists (select from noetl.workload w where w.execution_id = :execution_id and w.tenant = :tenant);

-- name: find_orphans
-- The addresses of an ended execution that none of its unexpired references names.
select u.uri from unnest(:uris::text[]) as u (uri)
where exists (select from noetl.workload w where w.execution_id = :execution_id and w.tenant = :tenant)
and ((select p.ends from noetl.event_part p where p.execution_id = :execution_id order by p.last_seq desc limit 1)
       or exists (select from noetl.tombstone t where t.execution_id = :execution_id))
and u.uri not in (select r.uri from noetl.result_ref r where r.execution_id = :execution_id and r.expired_at is null);

-- name: find_execution
select execution_id from noetl.workload where execution_id = :execution_id and tenant = :tenant;
