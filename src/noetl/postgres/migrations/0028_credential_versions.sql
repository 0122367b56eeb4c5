-- The encryption of a credential authenticates its version, so an older value that is put back under its name does not open.
-- Versions are never used twice, also not after a credential was deleted. 0: sealed before there were versions.
create sequence noetl.credential_version_seq;
alter table noetl.credential add column version bigint not null default 0;
