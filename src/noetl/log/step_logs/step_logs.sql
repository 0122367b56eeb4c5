-- Lines that steps printed.

-- name: put_parts
select noetl.put_logs(:tenant, :execs::bigint[], :steps::text[], :refs::bigint[], :uris::text[], :payloads::bytea[]);

-- name: read_last_number
select coalesce(max(number), 0)::bigint as number from noetl.step_log where execution_id = :execution_id;

-- name: read_parts
-- The address of a part has its command: …/log/<step>/<command>-<attempt>-<part>.
select l.number, b.uri, b.payload from noetl.step_log l join noetl.result_blob b on b.ref_id = l.ref_id
where l.execution_id = :execution_id and l.number > :after and (:step::text is null or l.step = :step)
    and (:command::text is null or strpos(b.uri, '/' || :command || '-') > 0)
order by l.number limit :limit;

-- name: read_last_parts
select l.number, b.uri, b.payload from noetl.step_log l join noetl.result_blob b on b.ref_id = l.ref_id
where l.execution_id = :execution_id and (:step::text is null or l.step = :step)
    and (:command::text is null or strpos(b.uri, '/' || :command || '-') > 0)
order by l.number desc limit :limit;
