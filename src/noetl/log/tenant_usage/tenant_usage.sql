-- How much a tenant uses. `append`, `accept` and `judge` keep the sum of bytes of tenants with a quota for them.

-- name: measure_usage
select (select count(*) from (select from noetl.execution e
                              where e.tenant = :tenant and e.status = any (:statuses::text[]) limit :most_running) r) as running,
       (select count(*) from (select from noetl.command c
                              where c.tenant = :tenant and c.status = 'queued' and c.ready limit :most_queued) q) as queued,
       case when noetl.counts_bytes(array[:tenant::int])
            then (select coalesce(sum(b.bytes), 0) from noetl.tenant_bytes b where b.tenant = :tenant)
            when :sums_bytes::boolean
            then (select coalesce(sum(r.bytes), 0) from noetl.result_ref r where r.tenant = :tenant and r.expired_at is null)
            else 0 end::bigint as bytes,
       array(select s.execution_id from unnest(:started::bigint[]) s (execution_id)
             where not exists (select from noetl.execution e where e.execution_id = s.execution_id)) as unseen;
