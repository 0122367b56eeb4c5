-- Where results come from. References of older versions have their inputs in `result_input`.

-- name: trace_references
-- Breadth first: each round of the recursion is one step back; a reference met twice in a round counts once. The depth ends a
-- cycle. Rounds are computed as they are read, so the limit ends a walk over a graph that is too large.
with recursive walked (ref_id, depth) as (
    select u.ref_id, 0 from unnest(:roots::bigint[]) u (ref_id)
    union
    select m.ref_id, w.depth + 1
    from walked w join noetl.result_ref r on r.ref_id = w.ref_id and r.tenant = :tenant,
        lateral (select r.parent_ref_id where r.parent_ref_id is not null
                 union all
                 select unnest(r.inputs)
                 union all
                 select i.input_id from noetl.result_input i where i.ref_id = w.ref_id) m (ref_id)
    where w.depth < :depth),
met as (select ref_id, depth from walked limit :most),
near as (select m.ref_id, min(m.depth) as depth from met m group by m.ref_id)
select n.depth, r.ref_id, r.tier, r.uri, r.bytes, r.rows, r.format, r.sha256, r.parent_ref_id,
       array(select unnest(r.inputs) as input_id
             union
             select i.input_id from noetl.result_input i where i.ref_id = n.ref_id order by input_id) as inputs,
       (extract(epoch from r.at) * 1000000)::bigint as at,
       (extract(epoch from r.expired_at) * 1000000)::bigint as expired_at
from near n join noetl.result_ref r on r.ref_id = n.ref_id and r.tenant = :tenant
where (n.depth, n.ref_id) > (:after_depth::int, :after_ref::bigint)
order by n.depth, n.ref_id limit :limit;
