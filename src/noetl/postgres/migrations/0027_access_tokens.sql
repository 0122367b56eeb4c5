-- Tokens of callers, sessions of browsers, and links that open a session once. The text of a token is not stored, only its sum.
create table noetl.access_token (
    token_id text primary key,
    tenant int not null,
    kind text not null check (kind in ('api', 'session', 'link')),
    name text not null,
    roles text[] not null,
    pools text[],
    digest bytea not null unique,
    created_by text not null,
    parent_id text,
    created_at timestamptz not null,
    expires_at timestamptz,
    revoked_at timestamptz
);
create index access_token_listed on noetl.access_token (tenant, created_at desc) where kind = 'api';
create index access_token_parent on noetl.access_token (parent_id) where parent_id is not null;
