-- Snapshots of executions that ended long ago are deleted. One that somebody looks at is written again, and stays as long again.
alter table noetl.snapshot add column written_at timestamptz not null default now();
create index snapshot_by_writing on noetl.snapshot (written_at);
