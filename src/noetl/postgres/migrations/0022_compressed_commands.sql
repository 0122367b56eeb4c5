-- Bodies of commands are compressed by the server (log/stored_json.py): SQL cannot read them. In `noetl.queue`, `context` is empty then.
create or replace view noetl.queue as
select number as id, execution_id, step as node_id, kind as action,
       case when get_byte(body, 0) = ascii('{') then convert_from(body, 'UTF8') else '{}' end::json as context, status, priority,
       attempt as attempts, 5 as max_attempts, coalesce(available_at, issued_at) as available_at, lease_until,
       worker as worker_id, case when status = 'leased' then changed_at end as last_heartbeat, issued_at as created_at,
       changed_at as updated_at, tenant, command_id
from noetl.command
union all
select e.event_id, e.execution_id, e.step, noetl.readable(e.meta) ->> 'kind', '{}'::json, 'done', 0, null::int, 5, e.at,
       null::timestamptz, null::text, null::timestamptz, e.at, e.at, e.tenant, e.command_id
from noetl.event e
where e.event_type = 'command.issued' and not exists (select from noetl.command c where c.command_id = e.command_id);
