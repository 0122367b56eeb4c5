-- The audit trail: a chain of entries per tenant. The table of this name was never written to.
drop table noetl.audit;

create table noetl.audit (
    tenant int not null,
    seq    bigint not null check (seq > 0),
    at     timestamptz not null,
    entry  text not null, -- JSON: the very text that is summed
    hash   bytea not null check (octet_length(hash) = 32),
    primary key (tenant, seq)
);

-- The last entry of each chain. Its row is locked while entries are appended: a chain has no forks, and removed entries at its
-- end show.
create table noetl.audit_head (
    tenant int primary key,
    seq    bigint not null,
    hash   bytea not null
);

-- Append entries in their order, each to the chain of its tenant. Heads are locked in the order of tenants, so that two calls
-- never wait for each other. A time may be a little before that of the entry before it: `seq` is the order.
create function noetl.append_audit(a_tenant int[], a_entry text[], a_at timestamptz) returns void language plpgsql as $$
declare
    chain int;
    entry_text text;
    last_seq bigint;
    last_hash bytea;
    micros text := (extract(epoch from a_at) * 1000000)::bigint::text;
begin
    for chain in select distinct t.tenant from unnest(a_tenant) t (tenant) order by t.tenant loop
        insert into noetl.audit_head (tenant, seq, hash) values (chain, 0, decode(repeat('00', 32), 'hex'))
        on conflict (tenant) do nothing;
        select h.seq, h.hash into last_seq, last_hash from noetl.audit_head h where h.tenant = chain for update;
        for entry_text in
            select n.entry from unnest(a_tenant, a_entry) with ordinality n (tenant, entry, place)
            where n.tenant = chain order by n.place
        loop
            last_seq := last_seq + 1;
            last_hash := sha256(convert_to(
                concat_ws(E'\n', chain, last_seq, micros, encode(last_hash, 'hex'), entry_text), 'UTF8'));
            insert into noetl.audit (tenant, seq, at, entry, hash) values (chain, last_seq, a_at, entry_text, last_hash);
        end loop;
        update noetl.audit_head h set seq = last_seq, hash = last_hash where h.tenant = chain;
    end loop;
end $$;
