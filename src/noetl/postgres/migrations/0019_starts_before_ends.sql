-- In `noetl.event_log` a task does not start after it ends. The start is read from the worker's clock and the end from the server's:
-- those of a very short task may be the wrong way round.
create or replace view noetl.event_log as
select e.event_id, e.execution_id, n.event_type, coalesce(e.status, 'ok') as status, coalesce(e.command_id, e.step) as node_id,
       case when n.event_type in ('execution_start', 'execution_completed')
            then (select noetl.readable(s.meta) ->> 'path' from noetl.event s
                  where s.execution_id = e.execution_id and s.dedup_key = 'start')
            else e.step end as node_name,
       case when n.event_type like 'action\_%' then 'task'
            when e.step is null or n.event_type = 'execution_completed' then 'playbook'
            else 'step' end as node_type,
       noetl.readable(e.result) -> 'context' as context,
       case when n.event_type <> 'action_started' then e.result end as result,
       e.meta as metadata,
       case when n.event_type = 'action_started'
            then least(noetl.moment((noetl.readable(e.meta) ->> 'started_at')::bigint), e.at)
            else e.at end as "timestamp",
       e.tenant, e.shard, e.seq
from noetl.event e cross join lateral unnest(noetl.event_log_names(e.event_type, e.meta)) as n (event_type);
