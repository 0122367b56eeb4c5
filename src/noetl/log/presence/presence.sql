-- Workers that were seen recently. Servers have rows of the same table, which the leases write.

-- name: note_worker
insert into noetl.runtime (kind, name, tenant, server, pools, capacity, held, leased_until, renewed_at)
values ('worker', :worker, :tenant, :server, :pools, :free, :held, now() + :lease::bigint * interval '1 microsecond', now())
on conflict (tenant, name) where kind = 'worker' do update
set server = excluded.server, pools = excluded.pools, capacity = excluded.capacity,
    held = excluded.held, leased_until = excluded.leased_until, renewed_at = excluded.renewed_at;

-- name: list_workers
select name as worker, server, tenant, pools, capacity as free, held,
       (extract(epoch from now() - renewed_at) * 1000000)::bigint as age
from noetl.runtime where kind = 'worker' and leased_until > now() and tenant = :tenant order by name collate "C";
