-- Seeing inside an execution: its state as of some of its events, and where its rare events are.

-- The fold of an execution up to the event `seq`, which is its `events`th. Any server that has folded so far may write it: the fold is
-- deterministic. `shape` names the structs of `state` and `bands`, which are compressed JSON; a row of another shape is ignored and
-- replaced. `at` is the time of the event, which never falls within an execution.
create table noetl.snapshot (
    execution_id bigint not null,
    seq          bigint not null,
    events       bigint not null,
    at           bigint not null,
    shape        text not null,
    state        bytea not null,
    bands        bytea not null,
    primary key (execution_id, seq)
);
create index snapshot_by_time on noetl.snapshot (execution_id, at);
alter table noetl.snapshot alter column state set storage external, alter column bands set storage external;

-- Which groups of rare events are among the events of a row, as bits (model/event_groups.py). Rows of older versions may hold any.
alter table noetl.event_part add column groups smallint not null default 31;
create index event_part_of_groups on noetl.event_part (execution_id, last_seq) where groups <> 0;

-- `p_ends` has the groups too: bit 0 says whether the execution ends, the others are `groups`.
select noetl.replace_in_function('append', 'insert into noetl.event_part (execution_id, last_seq, epoch, tenant, count, shard, ends, events)',
    'insert into noetl.event_part (execution_id, last_seq, epoch, tenant, count, shard, ends, groups, events)');
select noetl.replace_in_function('append', 'p.ends = 1, p.events', 'p.ends & 1 = 1, p.ends >> 1, p.events');
