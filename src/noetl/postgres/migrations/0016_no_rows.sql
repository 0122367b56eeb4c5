-- No rows in events. The context of an envelope holds scalars; `columns` is a list of them; tools fill maps of facts, without lists;
-- a selection has a scalar for its value. Lists and maps of a payload are references. `has_rows` in model/envelope.py says the same.
-- \u0000 is replaced by another character of the same length: jsonb cannot hold it. A path that is not there is no finding: it
-- gives null, and `is true` reads that as false. One function, so that the text is read once.
create function noetl.is_envelope(result json) returns boolean language plpgsql immutable parallel safe as $$
declare
    whole constant jsonb := replace(result::text, '\u0000', '\u0001')::jsonb;
    context constant jsonb := whole -> 'context';
begin
    if jsonb_typeof(whole) <> 'object' or whole - '{status,reference,parent_ref,context,error,meta}'::text[] <> '{}'::jsonb then
        return false;
    end if;
    return context is null or jsonb_typeof(context) = 'object' and not (
        jsonb_path_exists(context - '{http,pg,py,spark,stats,results,selections}'::text[],
                          'strict $.* ? (@.type() == "object")', '{}', true) is true
        or jsonb_path_exists(context - 'columns', 'strict $.** ? (@.type() == "array")', '{}', true) is true
        or context ? 'columns' and
            jsonb_path_exists(context, 'strict $.columns[*] ? (@.type() == "object" || @.type() == "array")', '{}', true) is true
        or context ? 'selections' and
            jsonb_path_exists(context, 'lax $.selections.*.value ? (@.type() == "object")', '{}', true) is true);
end $$;

-- Not valid: what older versions have recorded stays as it is. Every new row is checked.
alter table noetl.event drop constraint event_result_is_an_envelope;
alter table noetl.event add constraint event_result_is_an_envelope check (
    result is null or octet_length(result::text) <= 8192 and noetl.is_envelope(result)) not valid;

-- Partitions without a row are as if they were made now.
do $$
declare
    partition regclass;
    is_empty boolean;
begin
    for partition in select inhrelid from pg_inherits where inhparent = 'noetl.event'::regclass loop
        execute format('select not exists (select from %s)', partition) into is_empty;
        if is_empty then
            execute format('alter table %s validate constraint event_result_is_an_envelope', partition);
        end if;
    end loop;
end $$;
