-- Executions that no other execution started are found at once, however many children are newer.
create index execution_roots on noetl.execution (tenant, execution_id desc) where parent is null;
create index start_key_of_child on noetl.start_key (execution_id) where starts_with(key, 'child:');
