-- The view of the older documents has their names of events: their queries find what they ask for.

-- The names that an event has in `noetl.event_log`; its own when the older documents have none. As in server/api/shapes.py.
-- An end that says when its tool started also stands for that start.
create function noetl.event_log_names(event_type text, meta json) returns text[] language sql immutable parallel safe
as $$
select case event_type
    when 'playbook.initialized' then array['execution_start']
    when 'playbook.completed' then array['execution_completed']
    when 'playbook.failed' then array['execution_completed']
    when 'execution.cancelled' then array['execution_completed']
    when 'command.completed' then
        case when noetl.readable(meta) ->> 'started_at' is null then array['action_completed']
             else array['action_started', 'action_completed'] end
    when 'command.failed' then
        case when noetl.readable(meta) ->> 'started_at' is null then array['action_error']
             else array['action_started', 'action_error'] end
    when 'command.dead' then array['action_error']
    when 'step.exit' then array['result']
    when 'loop.started' then array['loop_started']
    when 'loop.done' then array['loop_completed']
    else array[event_type]
end $$;

-- Of an execution's start and end, the node is its playbook. `start` is the key of the first event of an execution.
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
            then noetl.moment((noetl.readable(e.meta) ->> 'started_at')::bigint)
            else e.at end as "timestamp",
       e.tenant, e.shard, e.seq
from noetl.event e cross join lateral unnest(noetl.event_log_names(e.event_type, e.meta)) as n (event_type);
