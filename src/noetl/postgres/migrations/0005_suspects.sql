-- A command that kills its workers takes those beside it along. From the second lost lease on (SUSPECT in model/commands.py)
-- commands are suspects, and a worker holds one suspect at most: the culprit is then alone among them, and it alone loses more.

alter table noetl.command add column lost int not null default 0;
create index command_suspect on noetl.command (priority desc, number) where status = 'queued' and ready and lost >= 2;

create or replace function noetl.claim(in_worker text, pools text[], how_many int, lease bigint)
returns table (body bytea, attempt int, journal bytea) language plpgsql as $$
begin
    if exists (select from noetl.command c where c.status = 'queued' and not c.ready and c.available_at <= now()) then
        update noetl.command c set ready = true
        from (select d.command_id from noetl.command d
              where d.status = 'queued' and not d.ready and d.available_at <= now()
              order by d.available_at limit 1000 for no key update skip locked) due
        where c.command_id = due.command_id;
    end if;
    return query
        with suspect as materialized (
            select c.command_id, c.priority, c.number from noetl.command c
            where c.status = 'queued' and c.ready and c.lost >= 2 and c.pool = any (pools)
                and not exists (select from noetl.command h where h.worker = in_worker and h.status = 'leased' and h.lost >= 2)
            order by c.priority desc, c.number limit least(how_many, 1) for no key update of c skip locked),
        found as materialized (
            select f.command_id, f.priority, f.number
            from unnest(pools) p (pool),
                lateral (select c.command_id, c.priority, c.number from noetl.command c
                         where c.pool = p.pool and c.status = 'queued' and c.ready and c.lost < 2
                         order by c.priority desc, c.number limit how_many for no key update skip locked) f
            order by f.priority desc, f.number limit how_many - (select count(*) from suspect)),
        taken as (
            update noetl.command c
            set status = 'leased', worker = in_worker, lease_until = now() + lease * interval '1 microsecond',
                cancel = false, changed_at = now()
            from (table suspect union all table found) f where c.command_id = f.command_id
            returning c.priority, c.number, c.body, c.attempt, c.journal)
        select t.body, t.attempt, t.journal from taken t order by t.priority desc, t.number;
end $$;

create or replace function noetl.lose(in_worker text, how_many int) returns int language plpgsql as $$
declare
    n int;
begin
    if in_worker is null and not exists (
        select from noetl.command c where c.status = 'leased' and c.lease_until <= now()) then
        return 0;
    end if;
    with gone as materialized (
        select c.command_id, c.worker, c.cancel from noetl.command c
        where c.status = 'leased' and case when in_worker is null then c.lease_until <= now() else c.worker = in_worker end
        order by c.command_id limit how_many for no key update),
    ended as (
        update noetl.command c
        set status = case when g.cancel then 'cancelled' else 'lost' end, worker = null, lease_until = null, cancel = false,
            lost = c.lost + 1, changed_at = now()
        from gone g where c.command_id = g.command_id
        returning c.command_id, c.execution_id, c.shard, c.attempt, g.worker, g.cancel),
    posted as (
        insert into noetl.inbox (shard, execution_id, dedup_key, kind, body, at)
        select e.shard, e.execution_id,
               case when e.cancel then 'stopped:' || e.command_id else 'lost:' || e.command_id || ':' || e.attempt end,
               case when e.cancel then 'stopped' else 'lease.lost' end,
               case when e.cancel then noetl.stopped(e.command_id, e.attempt)
                    else noetl.lease_lost(e.command_id, e.attempt, e.worker) end, now()
        from ended e on conflict (execution_id, dedup_key) do nothing)
    select count(*) into n from ended;
    return n;
end $$;
