-- Lines that steps printed.

-- name: put_parts
select noetl.put_logs(:execs::bigint[], :steps::text[], :refs::bigint[], :uris::text[], :payloads::bytea[]);

-- name: read_parts
select l.number, b.uri, b.payload from noetl.step_log l join noetl.result_blob b on b.ref_id = l.ref_id
where l.execution_id = :execution_id and l.number > :after and (:step::text is null or l.step = :step)
order by l.number limit :limit;
