-- Paths are listed in the order of their letters, on every server; a text is found by its hash whoever registered it.
alter table noetl.catalog alter column path type text collate "C";
create index catalog_content on noetl.catalog (hash, catalog_id);
