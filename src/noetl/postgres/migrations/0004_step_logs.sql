-- What steps print. The lines are payloads of the result store (`result_blob`); here is in which order they came.

-- `number` counts the parts of an execution in the order of their commits, see `put_logs`: whoever has read one has read all
-- below it.
create table noetl.step_log (
    execution_id bigint not null,
    number       bigint not null,
    step         text not null,
    ref_id       bigint not null,
    primary key (execution_id, number)
);

-- A part that stands there already stays as it is; one of an execution that is not there is passed over. Writers of one
-- execution come one after the other, so numbers are given in the order of commits and without gaps.
create function noetl.put_logs(l_exec bigint[], l_step text[], l_ref bigint[], l_uri text[], l_payload bytea[])
returns void language plpgsql as $$
begin
    perform pg_advisory_xact_lock(l.k) from (
        select distinct hashtextextended('logs ' || u.exec, 0) as k from unnest(l_exec) u (exec) order by k) l;
    with stored as (
        insert into noetl.result_blob (ref_id, uri, payload)
        select l.ref, l.uri, l.payload from unnest(l_exec, l_ref, l_uri, l_payload) l (exec, ref, uri, payload)
        where exists (select from noetl.workload w where w.execution_id = l.exec)
        on conflict do nothing returning ref_id)
    insert into noetl.step_log (execution_id, number, step, ref_id)
    select l.exec,
           coalesce((select max(b.number) from noetl.step_log b where b.execution_id = l.exec), 0)
               + row_number() over (partition by l.exec order by l.ord),
           l.step, l.ref
    from unnest(l_exec, l_step, l_ref) with ordinality l (exec, step, ref, ord)
    where l.ref in (select s.ref_id from stored s);
end $$;
