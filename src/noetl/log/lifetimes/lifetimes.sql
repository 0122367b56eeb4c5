-- How long results stay.

-- name: expire_results
select looked, expired, swept from noetl.judge(:grace, :retention, :limit, :most);

-- name: read_lifetimes
select ref_id, scope, ttl, (extract(epoch from expired_at) * 1000000)::bigint as expired_at
from noetl.result_ref where ref_id = any (:refs::bigint[]);

-- name: pin_results
select noetl.pin_results(:executions, :steps);

-- name: unpin_results
-- Results that may expire now are judged again.
with gone as (
    delete from noetl.result_pin p using unnest(:executions::bigint[], :steps::text[]) u (execution_id, step)
    where p.execution_id = u.execution_id and p.step = u.step returning p.execution_id)
update noetl.execution e set judge_at = null from gone g where e.execution_id = g.execution_id;

-- name: list_pinned_steps
select execution_id, step from noetl.result_pin where execution_id = any (:executions::bigint[]) order by execution_id, step;

-- name: read_usage
select r.execution_id, r.tier, count(*) filter (where r.expired_at is null) as count,
       coalesce(sum(r.bytes) filter (where r.expired_at is null), 0)::bigint as bytes,
       count(*) filter (where r.expired_at is not null) as expired
from noetl.result_ref r where r.execution_id = any (:executions::bigint[])
group by r.execution_id, r.tier order by r.execution_id, r.tier;
