-- Users: those with a password, and those whom another issuer (OpenID Connect) vouches for.
-- The sessions of a user have the `grant_id` as their parent. Another grant ends them all.
create table noetl.user_account (
    user_id text primary key,
    tenant int not null,
    name text not null,
    issuer text,
    subject text,
    roles text[] not null,
    password_hash text,
    grant_id text not null unique,
    created_by text not null,
    created_at timestamptz not null,
    disabled_at timestamptz,
    check ((issuer is null) = (subject is null)),
    check ((issuer is null) = (password_hash is not null))
);
-- A user signs in without naming a tenant, so a name is taken for all of them.
create unique index user_account_name on noetl.user_account (name) where issuer is null;
create unique index user_account_subject on noetl.user_account (issuer, subject) where issuer is not null;
create index user_account_listed on noetl.user_account (tenant, name);
