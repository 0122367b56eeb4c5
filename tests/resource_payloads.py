"""Templates that ask for far too much work or memory. Each one is refused, or is done soon.

The first come from a review that froze one worker after the other with them.
"""

from collections.abc import Iterator

HAN = "'\\u4e00'"  # one character beyond Latin: texts of it take two bytes a character
DOUBLED_LIST = "{% set a = [1, 1] %}" + "{% set a = a + a %}" * 60
NESTED_PAIRS = "{% set a = [1, 1] %}" + "{% set a = [a, a] %}" * 60
DOUBLED_TEXT = "{% set a = 'xy' %}" + "{% set a = a ~ a %}" * 60
MANY_TEXTS = "{% set t = 'x' * 1000000 %}{% set a = [t ~ 1, t ~ 2, t ~ 3, t ~ 4] * 2000 %}"
LONG_TEXT = "{% set t = 'ab ' * 5000000 %}"
LONG_WIDE_TEXT = "{% set t = '\\u4e00\\u0436 ' * 1500000 %}"
MANY_NUMBERS = "{% set a = range(1500000) %}"
MANY_ROWS = "{% set a = [{'k': 'a', 'v': 1}, {'k': 'B', 'v': 2}] * 400000 %}"
MANY_WORDS = "{% set a = ('w,' * 700000).split(',') %}"
NEST = 90


def _list_review_payloads() -> Iterator[str]:
    yield f"{{{{ ({HAN} * 2000000) | trim('\\u4e01' * 2000000 ~ {HAN}) | length }}}}"
    yield f"{{{{ ({HAN} * 2000000).strip('\\u4e01' * 2000000 ~ {HAN}) | length }}}}"
    yield f"{{{{ ({HAN} * 2000000).lstrip('\\u4e01' * 200000 ~ {HAN}) | length }}}}"
    yield f"{{{{ ({HAN} * 2000000).rstrip('\\u4e01' * 200000 ~ {HAN}) | length }}}}"
    yield "".join(f"{{% set r{n} = range(9000000) %}}" for n in range(5)) + "{{ r0 | length }}"
    yield "".join(f"{{% set r{n} = range(900000) %}}" for n in range(90)) + "{{ r0 | length }}"
    yield DOUBLED_LIST + "{{ a | length }}"
    yield NESTED_PAIRS + "{{ a }}"
    yield "{{ [" + "1," * 499_990 + "] }}"
    yield "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}"


def _list_searches() -> Iterator[str]:
    for question in (
        "(t ~ 5) in a",
        "a.index(t ~ 5)",
        "a.count(t ~ 5)",
        "(t ~ 5) not in a",
        "a is in([a])",
        "a | select('eq', t ~ 5) | list | length",
        "a | reject('in', [t ~ 5, t ~ 6]) | list | length",
        "a | unique | list | length",
        "a | sort | length",
        "a | min | length",
        "a | max | length",
        "a == (a + [])",
        "a | join(t) | length",
        "a | groupby(0) | length",
        "a | map('upper') | list | length",
        "a | map('trim', 'xyz') | list | length",
        "a | tojson | length",
        "[a, a, a] | string | length",
    ):
        yield MANY_TEXTS + "{{ " + question + " }}"
    yield NESTED_PAIRS + "{{ a == a }}"
    yield NESTED_PAIRS + "{{ a in [a, a] }}"
    yield NESTED_PAIRS + "{{ [a].count(a) }}"
    yield NESTED_PAIRS + "{{ a | tojson | length }}"
    yield NESTED_PAIRS + "{{ a * 3 }}"
    yield "{% set a = [[1, 2, 3]] * 300000 %}{% for i in range(100000) %}{{ [1, 2, 4] in a }}{% endfor %}"
    yield "{% set t = 'x' * 9000000 %}{% set u = 'x' * 9000000 %}" + "{{ t == u }}" * 3000
    yield "{% set t = 'x' * 9000000 %}{% set u = 'x' * 9000000 %}" + "{{ t <= u }}" * 3000
    yield "{% set t = 'ab' * 4000000 %}" + "{{ ('ab' * 300000 ~ 'c') in t }}" * 1000
    yield "{% set t = 'ab' * 4000000 %}" + "{{ t.find('ab' * 300000 ~ 'c') }}" * 1000
    yield "{% set t = 'ab' * 4000000 %}" + "{{ t.count('ab' * 30 ~ 'c') }}" * 1000


def _list_texts() -> Iterator[str]:
    for change in (
        "t | upper",
        "t | lower",
        "t | title",
        "t | capitalize",
        "t.title()",
        "t | trim",
        "t | wordcount",
        "t | urlencode",
        "t | list",
        "t | reverse",
        "t | split",
        "t | split(' ')",
        "t.split('b')",
        "t.splitlines()",
        "t | replace('a', 'bcd')",
        "t | replace('ab ', 'x')",
        "t | replace('', '-')",
        "t | indent(100, true)",
        "t | truncate(4000000)",
        "t | tojson",
        "t | sha256",
        "t | b64encode",
        "t | b64encode | b64decode",
        "t | identifier",
        "t[::-1]",
        "t[::2]",
        "t * 3",
        "t ~ t ~ t",
        "[t, t, t] | join(t)",
        "t.zfill(16000000)",
        "t.isalpha()",
        "t is lower",
        "t | fromjson",
        "t | int",
        "t | float",
        "t | sort",
        "t | unique",
        "t | batch(2)",
    ):
        yield LONG_TEXT + "{{ " + change + " }}"
        yield LONG_WIDE_TEXT + "{{ " + change + " | string | length }}"
    yield DOUBLED_TEXT + "{{ a | length }}"
    yield "{{ 'x' * 300000000 }}"
    yield "{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}"
    yield "{{ ('[' * 8000000) | fromjson }}"
    yield "{{ ('[' ~ '[],' * 3000000 ~ '0]') | fromjson | length }}"
    yield "{{ ('[' ~ '{},' * 3000000 ~ '0]') | fromjson | length }}"
    yield "{{ ('[' ~ '1,' * 7000000 ~ '0]') | fromjson | length }}"
    yield "{{ ['\\x00' * 4000000] | tojson | length }}"
    yield "{{ ('\\n' * 3000000) | indent(8, true, true) | length }}"
    yield "{{ ('a.' * 3000000) | title | length }}"
    yield "{{ ('\\u0390' * 3000000) | upper | length }}"


def _list_collections() -> Iterator[str]:
    for change in (
        "a | sum",
        "a | sort | length",
        "a | sort(reverse=true) | length",
        "a | map('string') | list | length",
        "a | map('abs') | map('string') | map('length') | sum",
        "a | select('odd') | list | length",
        "a | batch(1) | length",
        "a | slice(1500000) | length",
        "a | join(',') | length",
        "a | tojson | length",
        "a | tojson(8) | length",
        "a | unique | length",
        "(a + a + a) | length",
        "a[::-1] | length",
        "(a * 100) | length",
        "a | reverse | list | length",
        "a | max",
        "a == a[:]",
        "-1 in a",
    ):
        yield MANY_NUMBERS + "{{ " + change + " }}"
    for change in (
        "a | map(attribute='v') | sum",
        "a | sum('v')",
        "a | sort(attribute='k') | length",
        "a | groupby('k') | length",
        "a | unique(attribute='k') | length",
        "a | unique | length",
        "a | selectattr('v', 'gt', 1) | list | length",
        "a | map('items') | list | length",
        "a | map('tojson') | list | length",
        "a | map('dictsort') | list | length",
        "a | tojson | fromjson | length",
        "a | tojson(4) | length",
        "{'k': 'z', 'v': 3} in a",
        "a == (a + [])",
    ):
        yield MANY_ROWS + "{{ " + change + " }}"
    yield MANY_WORDS + "{{ a | map('upper') | map('lower') | join }}"
    yield MANY_WORDS + "{{ a | sort | join }}"
    yield "{% for i in range(2000000) %}{{ i }}{% endfor %}"
    yield "{% for i in range(1000) %}{% for j in range(1000) %}{{ loop.index * i }}{% endfor %}{% endfor %}"
    yield "{% for i in range(90000) %}{{ [uuid(), random(), now()] | length }}{% endfor %}"
    yield "{% for i in range(1000000) if i is odd %}{{ i | string | int | float | round(2) }}{% endfor %}"
    yield "{% set a = range(100000) | map('string') | list %}{% for i in a %}{{ i in a }}{% endfor %}"


def _list_numbers() -> Iterator[str]:
    yield "{{ 10 ** 10 ** 8 }}"
    yield "{{ (10 ** 10 ** 8) | string | length }}"
    yield "{{ 2 ** (2 ** 62) }}"
    yield "{{ 9223372036854775807 * 9223372036854775807 }}"
    yield "{{ ('9' * 400) | int }}"
    yield "{{ ('9' * 4000000) | int }}"
    yield "{{ ('9' * 4000000) | float }}"
    yield "{{ " + "9" * 4200 + " }}"
    yield "{{ " + "9" * 900_000 + " }}"
    yield "{{ 1e308 * 1e308 }}"
    yield "{{ [0] * 9223372036854775807 }}"
    yield "{{ 'a' * 9223372036854775807 }}"
    yield "{{ range(-9223372036854775807, 9223372036854775807) }}"


def _list_sources() -> Iterator[str]:
    yield "{{ 1 }}" * 140_000
    yield "{{ " + " + ".join(["1"] * 200_000) + " }}"
    yield "{{ [" + "1," * 4_000 + "]" + "[0]" * NEST + " }}"
    yield "{{ x" + ".y" * 400_000 + " }}"
    yield "{{ " + "not " * 200_000 + "1 }}"
    yield "{% if 1 %}" * 50_000 + "{% endif %}" * 50_000
    yield "{% for i in a %}" * NEST + "{{ i }}" * 3_000 + "{% endfor %}" * NEST
    yield "{{ '" + "\\x41" * 200_000 + "' }}"
    yield "{{ x | " + "a" * 900_000 + " }}"
    yield "{{ " + "a" * 900_000 + "() }}"
    yield "{{ {" + ",".join(f"'k{n}': {n}" for n in range(60_000)) + "} }}"
    yield "{# " + "x" * 900_000 + " #}{{ 1 }}"
    yield "{{ 1 }}" + "{" * 900_000
    yield "{% raw %}" + "{%  " * 200_000
    yield "{{ 1 " + " " * 900_000 + "}}"
    yield "{{ x[" * 30 + "1," * 2_000 + "]" * 30 + " }}"
    yield "{{ '" + "'" * 300_000
    yield "{{ 1" + "_1" * 400_000 + " }}"
    yield "{{ 1" + "|upper" * 5_000 + " }}"
    yield "{{ a" + " if a else a" * 3_000 + " }}"
    yield "{{ (" + "x.y[1] | default('') ~ " * 1_000 + "1) }}"


PAYLOADS = [
    *_list_review_payloads(),
    *_list_searches(),
    *_list_texts(),
    *_list_collections(),
    *_list_numbers(),
    *_list_sources(),
]
