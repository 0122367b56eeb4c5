-- How much a tenant uses. `append`, `accept` and `judge` keep the sum of bytes.

-- name: measure_usage
select (select count(*) from (select from noetl.execution e
                              where e.tenant = :tenant and e.status = any (:statuses::text[]) limit :most_running) r) as running,
       (select count(*) from (select from noetl.command c
                              where c.tenant = :tenant and c.status = 'queued' and c.ready limit :most_queued) q) as queued,
       (select coalesce(sum(b.bytes), 0)::bigint from noetl.tenant_bytes b where b.tenant = :tenant) as bytes,
       array(select s.execution_id from unnest(:started::bigint[]) s (execution_id)
             where not exists (select from noetl.execution e where e.execution_id = s.execution_id)) as unseen;
