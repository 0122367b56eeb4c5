-- How long results stay. The log keeps every reference; what goes is the payload, and `expired_at` says since when.

-- What the author of a playbook wishes, see model/reference.py; null where nothing was said.
alter table noetl.result_ref
    add column scope      text check (scope in ('step', 'execution', 'workflow', 'permanent')),
    add column ttl        bigint, -- microseconds
    add column expired_at timestamptz;

-- Everything that a step of an execution has stored, to be kept whatever its lifetime.
create table noetl.result_pin (
    execution_id bigint not null,
    step         text collate "C" not null,
    at           timestamptz not null,
    primary key (execution_id, step)
);

-- Payloads that were put before their report: one whose report never came is an orphan.
create table noetl.result_put (
    ref_id       bigint primary key,
    execution_id bigint not null
);
create index result_put_of_execution on noetl.result_put (execution_id);
insert into noetl.result_put (ref_id, execution_id)
select b.ref_id, split_part(b.uri, '/', 4)::bigint from noetl.result_blob b
where not exists (select from noetl.result_ref r where r.ref_id = b.ref_id) and split_part(b.uri, '/', 5) <> 'log';

-- An execution that has ended is judged when the grace is over, then as `judge_at` says, in microseconds: null never yet; from
-- `forever` on, so long after the retention of now; -1 nothing of it can ever go.
alter table noetl.execution add column judge_at bigint;
create index execution_to_judge on noetl.execution (coalesce(judge_at, ended_at))
    where ended_at is not null and judge_at is distinct from -1;

create function noetl.note_lifetimes(l_ref bigint[], l_scope text[], l_ttl bigint[]) returns boolean language plpgsql as $$
begin
    update noetl.result_ref r set scope = l.scope, ttl = l.ttl
    from unnest(l_ref, l_scope, l_ttl) l (ref, scope, ttl) where r.ref_id = l.ref;
    return true;
end $$;

-- A pin and a judgement wait for each other: what is pinned when this returns, and has not expired by then, never will.
create function noetl.pin_results(p_exec bigint[], p_step text[]) returns void language plpgsql as $$
begin
    perform pg_advisory_xact_lock(1852794997, 4);
    insert into noetl.result_pin (execution_id, step, at)
    select p.exec, p.step, now() from unnest(p_exec, p_step) p (exec, step) on conflict do nothing;
end $$;

-- Of so many executions whose time has come: results that are over expire, orphans go. Nothing goes while an execution of the
-- same family lives: the one that called it, one that it called, one that goes on from it, and so on to their common root.
-- Small payloads are deleted here, large ones by workers, who ask for `orphans`. One server judges at a time.
create function noetl.judge(
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
        (select e.execution_id from noetl.execution e
         where retention is not null and e.ended_at is not null and e.judge_at is distinct from -1
             and coalesce(e.judge_at, e.ended_at) between forever and forever + this - greatest(grace, retention)
         order by coalesce(e.judge_at, e.ended_at) limit how_many)) x;
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
    update noetl.execution e set judge_at = this + greatest(60000000 - grace, 0)
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
    again as (
        update noetl.execution e
        set judge_at = coalesce((select min(case when j.over < forever then greatest(j.over - grace, 0) else j.over end)
                                 from judged j where j.execution_id = e.execution_id
                                     and j.ref_id not in (select g.ref_id from gone g)), -1)
        where e.execution_id = any (free))
    select count(*) into expired from marked;

    with put as (delete from noetl.result_put p where p.execution_id = any (free) returning p.ref_id),
    deleted as (
        delete from noetl.result_blob b using put p
        where b.ref_id = p.ref_id and not exists (select from noetl.result_ref r where r.ref_id = p.ref_id)
        returning b.ref_id)
    select count(*) into swept from deleted;
end $$;
