-- Users. A password is never here, only its argon2 hash.

-- name: add_user
insert into noetl.user_account (user_id, grant_id, tenant, name, roles, password_hash, created_by, created_at)
values (:user_id::text, :grant_id::text, :tenant::int, :name::text, :roles::text[], :password_hash::text, :created_by::text, now())
on conflict (name) where issuer is null do nothing
returning user_id, grant_id, tenant, name, issuer, subject, roles, password_hash, created_by,
          (extract(epoch from created_at) * 1000000)::bigint, (extract(epoch from disabled_at) * 1000000)::bigint;

-- name: find_user
select user_id, grant_id, tenant, name, issuer, subject, roles, password_hash, created_by,
       (extract(epoch from created_at) * 1000000)::bigint, (extract(epoch from disabled_at) * 1000000)::bigint
from noetl.user_account where name = :name::text and issuer is null;

-- name: list_users
select user_id, grant_id, tenant, name, issuer, subject, roles, password_hash, created_by,
       (extract(epoch from created_at) * 1000000)::bigint, (extract(epoch from disabled_at) * 1000000)::bigint
from noetl.user_account where tenant = :tenant::int order by name collate "C", user_id collate "C";

-- name: change_user
-- The last column is the grant that the user had before.
with old as materialized (
    select user_id, grant_id from noetl.user_account
    where tenant = :tenant::int and user_id = :user_id::text for update
)
update noetl.user_account as changed
set grant_id = :grant_id::text,
    password_hash = coalesce(:password_hash::text, changed.password_hash),
    roles = coalesce(:roles::text[], changed.roles),
    disabled_at = case when :is_disabled::bool is null then changed.disabled_at
                       when :is_disabled then coalesce(changed.disabled_at, now()) end
from old where changed.user_id = old.user_id
returning changed.user_id, changed.grant_id, changed.tenant, changed.name, changed.issuer, changed.subject, changed.roles,
          changed.password_hash, changed.created_by, (extract(epoch from changed.created_at) * 1000000)::bigint,
          (extract(epoch from changed.disabled_at) * 1000000)::bigint, old.grant_id;

-- name: replace_hash
update noetl.user_account set password_hash = :new_hash::text
where user_id = :user_id::text and password_hash = :old_hash::text;

-- name: add_issued_user
insert into noetl.user_account (user_id, grant_id, tenant, name, issuer, subject, roles, created_by, created_at)
values (:user_id::text, :grant_id::text, :tenant::int, :name::text, :issuer::text, :subject::text, :roles::text[], :issuer, now())
on conflict (issuer, subject) where issuer is not null do nothing;

-- name: change_issued_user
-- The last column is the grant that the user had before. It stays if the roles are the same.
with old as materialized (
    select user_id, grant_id, roles = :roles::text[] as has_same_roles from noetl.user_account
    where issuer = :issuer::text and subject = :subject::text for update
)
update noetl.user_account as changed
set name = :name::text, roles = :roles,
    grant_id = case when old.has_same_roles then old.grant_id else :grant_id::text end
from old where changed.user_id = old.user_id
returning changed.user_id, changed.grant_id, changed.tenant, changed.name, changed.issuer, changed.subject, changed.roles,
          changed.password_hash, changed.created_by, (extract(epoch from changed.created_at) * 1000000)::bigint,
          (extract(epoch from changed.disabled_at) * 1000000)::bigint, old.grant_id;
