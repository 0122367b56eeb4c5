-- Tokens, sessions and links. The text of a token is never here, only its sum.

-- name: add_token
-- A token with the same sum stays as it is. Expired sessions and links are deleted on the way, and tokens that were revoked
-- long ago.
with swept as (
    delete from noetl.access_token
    where (kind <> 'api' and (expires_at <= now() or revoked_at is not null))
       or (revoked_at <= now() - :retention_s::int * interval '1 second' and created_by <> :home_creator::text)
), added as (
    insert into noetl.access_token (token_id, tenant, kind, name, roles, pools, digest, created_by, parent_id, created_at, expires_at)
    values (:token_id::text, :tenant::int, :kind::text, :name::text, :roles::text[], :pools::text[], :digest::bytea,
            :created_by::text, :parent_id::text, now(), now() + :lifetime_s::int * interval '1 second')
    on conflict (digest) do nothing
    returning *
)
select token_id, tenant, kind, name, roles, pools, created_by, parent_id, (extract(epoch from created_at) * 1000000)::bigint,
       (extract(epoch from expires_at) * 1000000)::bigint, (extract(epoch from revoked_at) * 1000000)::bigint,
       revoked_at is null and (expires_at is null or expires_at > now())
from (select * from added union all select * from noetl.access_token where digest = :digest) as known limit 1;

-- name: find_token
-- A session or link is valid for as long as the token that opened it, or the grant of the user who did.
select token_id, tenant, kind, name, roles, pools, created_by, parent_id, (extract(epoch from created_at) * 1000000)::bigint,
       (extract(epoch from expires_at) * 1000000)::bigint, (extract(epoch from revoked_at) * 1000000)::bigint,
       revoked_at is null and (expires_at is null or expires_at > now())
       and not exists (select from noetl.access_token as parent where parent.token_id = found.parent_id
                       and (parent.revoked_at is not null or parent.expires_at <= now()))
       and (found.parent_id is null or found.parent_id not like 'user.%' or exists (
            select from noetl.user_account as owner where owner.grant_id = found.parent_id and owner.disabled_at is null))
from noetl.access_token as found where digest = :digest::bytea;

-- name: take_link
delete from noetl.access_token as link
where digest = :digest::bytea and kind = 'link' and revoked_at is null and (expires_at is null or expires_at > now())
  and not exists (select from noetl.access_token as parent where parent.token_id = link.parent_id
                  and (parent.revoked_at is not null or parent.expires_at <= now()))
  and (link.parent_id is null or link.parent_id not like 'user.%' or exists (
       select from noetl.user_account as owner where owner.grant_id = link.parent_id and owner.disabled_at is null))
returning token_id, tenant, kind, name, roles, pools, created_by, parent_id, (extract(epoch from created_at) * 1000000)::bigint,
          (extract(epoch from expires_at) * 1000000)::bigint, (extract(epoch from revoked_at) * 1000000)::bigint, true;

-- name: list_tokens
select token_id, tenant, kind, name, roles, pools, created_by, parent_id, (extract(epoch from created_at) * 1000000)::bigint,
       (extract(epoch from expires_at) * 1000000)::bigint, (extract(epoch from revoked_at) * 1000000)::bigint,
       revoked_at is null and (expires_at is null or expires_at > now())
from noetl.access_token where tenant = :tenant::int and kind = 'api' order by created_at desc, token_id;

-- name: revoke_token
with revoked as (
    update noetl.access_token set revoked_at = coalesce(revoked_at, now())
    where tenant = :tenant::int and (token_id = :token_id::text or parent_id = :token_id)
      and exists (select from noetl.access_token as named
                  where named.token_id = :token_id and named.tenant = :tenant and named.kind = :kind::text)
    returning *
)
select token_id, tenant, kind, name, roles, pools, created_by, parent_id, (extract(epoch from created_at) * 1000000)::bigint,
       (extract(epoch from expires_at) * 1000000)::bigint, (extract(epoch from revoked_at) * 1000000)::bigint, false
from revoked where token_id = :token_id;
