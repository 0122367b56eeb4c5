-- How many failures an execution has recovered from. Rows of before count none, as the events of before do not say it.
alter table noetl.execution add column recovered int not null default 0;
