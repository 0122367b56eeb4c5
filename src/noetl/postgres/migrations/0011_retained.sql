-- An execution whose results end some by their age and some by the retention waits for both: `judge_at` is the time of the first by
-- its age, `retained_at` that of the first by the retention, counted as there from `forever` on. Null where `judge_at` says all.
alter table noetl.execution add column retained_at bigint;
create index execution_to_judge_by_retention on noetl.execution (retained_at) where retained_at is not null;

-- Those that wait for an age only are judged anew: they may have forgotten the retention.
update noetl.execution set judge_at = null where ended_at is not null and judge_at between 0 and (1::bigint << 61) - 1;

-- As it was, but for these two times.
create or replace function noetl.judge(
    grace bigint, retention bigint, how_many int, most int, out looked int, out expired int, out swept int
) language plpgsql as $$
declare
    this constant bigint := (extract(epoch from now()) * 1000000)::bigint;
    forever constant bigint := 1::bigint << 61;
    due bigint[];
    free bigint[];
    family_ended bigint[]; -- when the root of each of `free` ended
begin
    looked := 0;
    expired := 0;
    swept := 0;
    if not pg_try_advisory_xact_lock(1852794997, 4) then
        return;
    end if;
    select array_agg(x.execution_id) into due from (
        (select e.execution_id from noetl.execution e
         where e.ended_at is not null and e.judge_at is distinct from -1 and coalesce(e.judge_at, e.ended_at) <= this - grace
         order by coalesce(e.judge_at, e.ended_at) limit how_many)
        union
        (select y.execution_id from (
            (select e.execution_id, e.judge_at as at from noetl.execution e
             where retention is not null and e.ended_at is not null and e.judge_at is distinct from -1
                 and coalesce(e.judge_at, e.ended_at) between forever and forever + this - greatest(grace, retention)
             order by coalesce(e.judge_at, e.ended_at) limit how_many)
            union all
            (select e.execution_id, e.retained_at from noetl.execution e
             where retention is not null and e.ended_at is not null
                 and e.retained_at between forever and forever + this - greatest(grace, retention)
             order by e.retained_at limit how_many)) y
         order by y.at limit how_many)) x;
    if due is null then
        return;
    end if;
    looked := cardinality(due);

    with recursive up (execution_id, id, above, ended_at) as (
        select e.execution_id, e.execution_id, coalesce(e.parent, e.retry_of), e.ended_at
        from noetl.execution e where e.execution_id = any (due)
        union all
        select u.execution_id, e.execution_id, coalesce(e.parent, e.retry_of), e.ended_at
        from up u join noetl.execution e on e.execution_id = u.above),
    living (id, above) as (
        select e.execution_id, coalesce(e.parent, e.retry_of) from noetl.execution e where e.ended_at is null
        union
        select e.execution_id, coalesce(e.parent, e.retry_of) from living l join noetl.execution e on e.execution_id = l.above),
    needed as (
        select coalesce(l.above, l.id) as root from living l
        where not exists (select from noetl.execution e where e.execution_id = l.above))
    select array_agg(u.execution_id), array_agg(u.ended_at) into free, family_ended from up u
    where not exists (select from noetl.execution e where e.execution_id = u.above)
        and coalesce(u.above, u.id) not in (select n.root from needed n);

    -- Those that a relative may need are looked at again after the grace, or a minute.
    update noetl.execution e set judge_at = this + greatest(60000000 - grace, 0), retained_at = null
    where e.execution_id = any (due) and not e.execution_id = any (coalesce(free, '{}'));

    with judged as materialized (
        select r.ref_id, r.uri, r.execution_id,
               case when r.ttl is not null then (extract(epoch from r.at) * 1000000)::bigint + r.ttl
                    when r.scope = 'step' then 0
                    when r.scope = 'workflow' then forever + f.family_ended
                    else forever + e.ended_at end as over
        from unnest(free, family_ended) f (execution_id, family_ended)
            join noetl.execution e on e.execution_id = f.execution_id
            join noetl.result_ref r on r.execution_id = f.execution_id
        where r.expired_at is null and r.scope is distinct from 'permanent'
            and not exists (select from noetl.result_pin p
                            where p.execution_id = r.execution_id and p.step = split_part(r.uri, '/', 6))),
    gone as materialized (
        select j.ref_id, j.uri from judged j
        where j.over <= this or j.over between forever and forever + this - retention
        order by j.execution_id limit most),
    marked as (update noetl.result_ref r set expired_at = now() from gone g where r.ref_id = g.ref_id returning r.ref_id),
    deleted as (delete from noetl.result_blob b using gone g where b.ref_id = g.ref_id and b.uri = g.uri),
    remaining as (
        select j.execution_id, min(greatest(j.over - grace, 0)) filter (where j.over < forever) as by_age,
               min(j.over) filter (where j.over >= forever) as by_retention
        from judged j where j.ref_id not in (select g.ref_id from gone g) group by j.execution_id),
    again as (
        update noetl.execution e
        set judge_at = coalesce(l.by_age, l.by_retention, -1),
            retained_at = case when l.by_age is not null then l.by_retention end
        from unnest(free) f (execution_id) left join remaining l on l.execution_id = f.execution_id
        where e.execution_id = f.execution_id)
    select count(*) into expired from marked;

    with put as (delete from noetl.result_put p where p.execution_id = any (free) returning p.ref_id),
    deleted as (
        delete from noetl.result_blob b using put p
        where b.ref_id = p.ref_id and not exists (select from noetl.result_ref r where r.ref_id = p.ref_id)
        returning b.ref_id)
    select count(*) into swept from deleted;
end $$;
