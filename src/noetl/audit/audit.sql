-- The audit trail: entries are appended by a function that holds the head of the chain, and never changed.

-- name: append_entries
select noetl.append_audit(:tenants::int[], :texts::text[], now());

-- name: read_chain
-- Entries and head in one statement, so that both are of one moment. A row without an entry carries the head alone.
select e.seq, (extract(epoch from e.at) * 1000000)::bigint as at, e.entry, encode(e.hash, 'hex') as hash,
       h.seq as head_seq, encode(h.hash, 'hex') as head_hash
from (select :tenant::int as tenant) t
left join noetl.audit_head h on h.tenant = t.tenant
left join lateral (select a.seq, a.at, a.entry, a.hash from noetl.audit a
                   where a.tenant = t.tenant and a.seq > :after::bigint order by a.seq limit :limit::int) e on true
order by e.seq;

-- name: list_entries
select a.seq, (extract(epoch from a.at) * 1000000)::bigint as at, a.entry, encode(a.hash, 'hex') as hash
from noetl.audit a
where a.tenant = :tenant::int and (:before::bigint is null or a.seq < :before)
  and (:operation::text is null or :operation in (a.entry::json ->> 'operation', split_part(a.entry::json ->> 'operation', '.', 1)))
  and (:by::text is null or a.entry::json ->> 'by' = :by)
  and (:outcome::text is null or coalesce(a.entry::json ->> 'outcome', 'allowed') = :outcome)
order by a.seq desc limit :limit::int;
