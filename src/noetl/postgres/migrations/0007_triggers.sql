-- Schedules: what has become of one. `revision` grows with every change, so that of several servers one moves it on.
alter table noetl.schedule
    alter column name type text collate "C",
    add column waiting        bigint[] not null default '{}', -- slots, in microseconds
    add column skipped        bigint not null default 0,
    add column last_at        timestamptz,
    add column last_execution bigint,
    add column error          text,
    add column revision       bigint not null default 0,
    add column created_at     timestamptz not null default now();
create index schedule_waiting on noetl.schedule (schedule_id) where waiting <> '{}' and not paused;

-- Hooks: a call from outside starts a playbook. The secret is a stored credential, by name.
create table noetl.hook (
    hook_id          bigint generated always as identity primary key,
    tenant           int not null,
    name             text collate "C" not null,
    path             text not null,
    version          int,
    into_key         text,
    secret           text,
    signature_header text,
    key_header       text,
    created_at       timestamptz not null,
    changed_at       timestamptz not null,
    unique (tenant, name)
);
