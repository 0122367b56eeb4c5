-- Folds of executions as of some of their events.

-- name: put_snapshots
insert into noetl.snapshot as old (execution_id, seq, events, at, shape, state, bands, written_at)
select n.*, now() from unnest(:execs::bigint[], :seqs::bigint[], :events::bigint[], :ats::bigint[], :shapes::text[],
                              :states::bytea[], :bands::bytea[]) n
on conflict (execution_id, seq) do update
set events = excluded.events, at = excluded.at, shape = excluded.shape, state = excluded.state, bands = excluded.bands,
    written_at = now()
where old.shape <> excluded.shape;

-- name: read_snapshot
select seq, events, at, state, bands from noetl.snapshot
where execution_id = :execution_id and shape = :shape and seq <= :seq order by seq desc limit 1;

-- name: find_positions
select s.seq, s.events, s.at
from unnest(:seqs::bigint[]) with ordinality n (seq, ord)
    left join lateral (select s.seq, s.events, s.at from noetl.snapshot s
                       where s.execution_id = :execution_id and s.shape = :shape and s.seq <= n.seq
                       order by s.seq desc limit 1) s on true
order by n.ord;

-- name: find_position_by_number
select seq, events, at from noetl.snapshot
where execution_id = :execution_id and shape = :shape and events <= :number order by events desc limit 1;

-- name: find_position_by_time
select seq, events, at from noetl.snapshot
where execution_id = :execution_id and shape = :shape and at < :before order by at desc, seq desc limit 1;

-- name: delete_old_snapshots
-- The oldest first. Snapshots of executions that have not ended stay, and are passed over.
with old as materialized (
    select s.execution_id, s.seq from noetl.snapshot s join noetl.execution e on e.execution_id = s.execution_id
    where s.written_at <= now() - :age::bigint * interval '1 microsecond'
        and e.ended_at <= (extract(epoch from now()) * 1000000)::bigint - :age::bigint
    order by s.written_at limit :limit),
gone as (
    delete from noetl.snapshot s using old o where s.execution_id = o.execution_id and s.seq = o.seq returning s.seq)
select count(*)::int as deleted from gone;
