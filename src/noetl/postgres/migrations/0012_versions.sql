-- The text registered last is the latest version, also when an earlier version has the same text.
alter table noetl.catalog drop constraint catalog_tenant_path_hash_key;
