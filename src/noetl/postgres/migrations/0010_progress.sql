-- How far the tool of a leased command is, in its own words, as its worker said with the last renewal. It stands in no index:
-- renewing is an update in place as before.
alter table noetl.command add column progress text;
