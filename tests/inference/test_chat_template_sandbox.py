"""A chat template can neither reach outside, nor run for ever, nor fill the memory; its errors name their line."""

from __future__ import annotations

import re
import tracemalloc
from contextlib import suppress

import pytest
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference.errors import TemplateError
from inference.tokenizer.sandbox import Sandbox
from tests.patience import soon_done

MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Hi there!"}]


def render(source: str, messages: list[dict[str, str]] | None = None, **variables: object) -> str:
    return Sandbox(source).render(MESSAGES if messages is None else messages, variables)


DOUBLING = "{% set ns = namespace(s='a') %}{% for i in range(40) %}{% set ns.s = ns.s {op} ns.s %}{% endfor %}"
SHARING = "{% set ns = namespace(x=[]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"

BOMBS = {
    # the table of measured facts
    "one long range": "{% for i in range(10**9) %}{% endfor %}",
    "nested ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "text times a number": "{{ 'a' * 10**9 }}",
    "a number times text": "{{ 10**9 * 'a' }}",
    "doubling by +": DOUBLING.replace("{op}", "+"),
    "doubling by ~": DOUBLING.replace("{op}", "~"),
    "center": "{{ 'a' | center(900000000) }}",
    "format by filter": "{{ '%0900000000d' | format(1) }}",
    "format by operator": "{{ '%0900000000d' % 1 }}",
    "format by method": "{{ '{:900000000}'.format(1) }}",
    "format_map by method": "{{ '{x:900000000}'.format_map({'x': 1}) }}",
    "join of a range": "{{ range(99999) | join('a' * 10000) }}",
    "indent": "{{ 'a\n' * 1000 | indent(900000) }}",
    "wordwrap": "{{ 'a b' | wordwrap(1, wrapstring='a' * 1000000) }}",
    "xmlattr": "{{ {'a': 'b'} | xmlattr }}",
    "tojson with indent": "{{ [[[1]]] | tojson(indent=100000000) }}",
    "lipsum": "{{ lipsum(n=100000) }}",
    # the same kinds by other ways
    "constant folded by the compiler": "{% set x = 'a' * 10**9 %}",
    "power of powers": "{{ 10**10**10**10**10 }}",
    "squaring": "{% set n = namespace(x=10) %}{% for i in range(40) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "shifted precision": "{{ 1.5 | round(10**9, 'ceil') }}",
    "list times a number": "{{ ([0] * 10**9) | length }}",
    "doubling a list": DOUBLING.replace("{op}", "+").replace("'a'", "[1]"),
    "doubling a tuple": "{% set n = namespace(x=({'a': 1}.items() | list)[0]) %}{% for i in range(40) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "batch": "{{ [1] | batch(900000000, 'x') | list }}",
    "slice": "{{ [1] | slice(900000000) | list }}",
    "replace by filter": "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "replace by method": "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "replace of nothing": "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
    "join by method": "{{ ('a' * 100000).join(range(99999)) }}",
    "padding by method": "{{ 'a'.ljust(900000000) }}",
    "tabs by method": "{{ '\t'.expandtabs(900000000) }}",
    "bytes of a number": "{{ (1).to_bytes(900000000) }}",
    "printing what holds itself": SHARING + "{{ ns.x }}",
    "comparing what holds itself": SHARING + "{{ ns.x == ns.x[0] }}",
    "testing what holds itself": SHARING + "{{ ns.x is eq(ns.x[0]) }}",
    "searching what holds itself": SHARING + "{{ ns.x[0] in [ns.x] }}",
    "json of what holds itself": SHARING + "{{ ns.x | tojson }}",
    "text of what holds itself": SHARING + "{{ ns.x | string | length }}",
    "sorting what holds itself": SHARING + "{{ [ns.x, ns.x] | sort }}",
    "hashing what holds itself": SHARING.replace("[ns.x, ns.x]", "(ns.x, ns.x)") + "{{ {ns.x: 1} }}",
    "macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(40) }}",
    "macro that calls itself for ever": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "block that calls itself": "{% block b %}{{ self.b() }}{{ self.b() }}{% endblock %}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "much work in each pass": "{% for i in range(90000) %}" + "{% set x = i + 1 %}" * 1000 + "{% endfor %}",
    "a filtered loop": "{% set r = range(9999) %}{% for i in r %}{% for j in r if false %}{% endfor %}{% endfor %}",
    "a loop over map": "{% set r = range(9999) %}{% for i in r %}{{ r | map('string') | list | length }}{% endfor %}",
    "slices": "{% set s = 'a' * 200000 %}{% for i in range(90000) %}{% set x = s[1:] %}{% endfor %}",
    "searches": "{% set s = 'a' * 200000 %}{% for i in range(90000) %}{% set x = 'b' in s %}{% endfor %}",
    "long output": "{% for i in range(9000) %}{{ 'a' * 1000 }}{% endfor %}",
    "long literal output": "{% for i in range(90000) %}" + "a" * 10000 + "{% endfor %}",
    "long captured output": "{% set x %}{% for i in range(9000) %}{{ 'a' * 1000 }}{% endfor %}{% endset %}",
    "splitting": "{% set n = namespace(x=[]) %}{% set s = 'a ' * 100000 %}"
    "{% for i in range(1000) %}{% set n.x = [n.x, s.split(' ')] %}{% endfor %}",
    # found by trying: each took seconds, or all the memory
    "printing namespaces that share": SHARING.replace("[ns.x, ns.x]", "namespace(a=ns.x, b=ns.x)") + "{{ ns.x }}",
    "printing a namespace in itself": "{% set n = namespace() %}{% set n.x = n %}{{ n }}",
    "a long way of attributes": "{% set n = namespace() %}{% set n.x = n %}"
    "{{ ([n] * 2000) | map(attribute=('x.' * 20000) ~ 'x') | list | length }}",
    "a long way to sort by": "{% set n = namespace() %}{% set n.x = n %}"
    "{{ ([n] * 2000) | sort(false, false, ('x.' * 20000) ~ 'x') | length }}",
    "summing lists": "{{ ('a' * 60000) | list | map('list') | sum(start=[]) | length }}",
    "separators of json": "{{ range(20000) | tojson(separators=('a' * 50000, 'b')) | length }}",
    "json deep down": "{% set n = namespace(x=range(100000)) %}"
    "{% for i in range(99) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x | tojson(indent=8) | length }}",
    "searching from the right": "{% for i in range(9) %}{{ ('a' * 260000).rfind('ab' ~ 'a' * 130000) }}{% endfor %}",
    "splitting from the right": "{% for i in range(9) %}{{ ('a' * 260000).rsplit('ab' ~ 'a' * 130000) }}{% endfor %}",
    "stripping": "{% for i in range(9) %}{% set x = ('a' * 260000).strip('b' * 250000 ~ 'a') %}{% endfor %}",
    "trimming": "{% for i in range(9) %}{% set x = ('a' * 260000) | trim('b' * 250000 ~ 'a') %}{% endfor %}",
    "testing for lower case": "{% set s = 'a' * 260000 %}{% for i in range(90000) %}{{ s is lower }}{% endfor %}",
    "indenting": "{{ ('a\n' * 100000) | indent(8) }}",
    "views of dicts that share": SHARING.replace("[ns.x, ns.x]", "{'a': ns.x, 'b': ns.x}.items()") + "{{ ns.x }}",
    "values of dicts that share": SHARING.replace("[ns.x, ns.x]", "{'a': ns.x, 'b': ns.x}.values()")
    + "{{ ns.x ~ '' }}",
    "tuples as keys": "{% set n = namespace(x=1) %}"
    "{% for i in range(40) %}{% set n.x = ({n.x: n.x}.items() | list)[0] %}{% endfor %}",
    "a tuple as an index": "{% set n = namespace(x=1) %}{% for i in range(15) %}"
    "{% set n.x = ({n.x: n.x}.items() | list)[0] %}{% endfor %}{% for i in range(9999) %}{% set y = {}[n.x] %}{% endfor %}",
    "a tuple to join by": "{% set n = namespace(x=1) %}{% for i in range(15) %}"
    "{% set n.x = ({n.x: n.x}.items() | list)[0] %}{% endfor %}{{ ([{}] * 9999) | join(attribute=n.x) }}",
    "a long integer from text": "{% set n, m = ('f' * 200000) | int(base=16), ('f' * 100000) | int(base=16) %}"
    "{% for i in range(9999) %}{% set x = n // m %}{% endfor %}",
    "long integers by map": "{% set n = ['f' * 200000] | map('int', 0, 16) | first %}"
    "{% for i in range(9999) %}{% if n is divisibleby 7 %}{% endif %}{% endfor %}",
    "a long integer spelled out": "{% set n = " + "9" * 4000 + " %}"
    "{% for i in range(9999) %}{% set x = n // 3 %}{% endfor %}",
    "printing long integers": "{{ [2 ** 4000] * 90000 }}",
    "a charge below nothing": "{{ [-10**9] | map('<enter>', -10**9) | list }}{% for i in range(10**7) %}{% endfor %}",
    "a loop below nothing": "{{ [[1]] | map('<loop>', -10**9) | map('list') | list }}"
    "{% for i in range(10**7) %}{% endfor %}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_stopped_before_it_takes_long(name: str) -> None:
    with soon_done(), pytest.raises(TemplateError):
        render(BOMBS[name])


HUNGRY = re.compile("doubling|join|replace|splitting|long|slices|json|separators|views|values|printing")
QUICK = {"doubling by +", "join of a range", "printing what holds itself"}  # counting every byte takes its time


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in BOMBS
        if HUNGRY.fullmatch(name.split()[0])
    ],
)
def test_a_bomb_is_stopped_before_it_fills_the_memory(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError):
            render(BOMBS[name])
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


ESCAPES = {
    "class": "{{ ''.__class__ }}",
    "class by item": "{{ ''['__class__'] }}",
    "class by filter": "{{ '' | attr('__class__') }}",
    "map over attributes": "{{ [''] | map(attribute='__class__') | first }}",
    "function globals": "{{ raise_exception.__globals__ }}",
    "macro internals": "{% macro m() %}{% endmacro %}{{ m._func }}",
    "namespace internals": "{{ namespace(a=1).__class__ }}",
    "loop internals": "{% for i in [1] %}{{ loop._iterator }}{% endfor %}",
    "changing the messages": "{% set x = messages.append(1) %}",
    "changing a message": "{% set x = messages[0].update({'content': 'x'}) %}",
    "include": "{% include 'other' %}",
    "import": "{% import 'other' as o %}",
    "extends": "{% extends 'other' %}",
    "the budget": "{{ budget.work }}",
    "calling a string": "{{ 'a'() }}",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_nothing_outside_can_be_reached(name: str) -> None:
    try:
        assert render(ESCAPES[name]) == ""  # what may not be read prints as nothing ...
    except TemplateError:
        return
    with pytest.raises(TemplateError):  # ... and can not be used
        render(ESCAPES[name].replace(" }}", ".more.more }}"))


def test_the_messages_are_as_they_were() -> None:
    before = [dict(message) for message in MESSAGES]
    render("{% for m in messages %}{% set x = m.content ~ 'y' %}{{ x }}{% endfor %}")
    assert before == MESSAGES


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("a\nb\n{{ 1 / 0 }}", 3),
        ("{% if x %}\n\n{% endfor %}", 3),
        ("\n{{ raise_exception('roles must alternate') }}", 2),
        ("\n\n\n{{ messages[0].nothing.more }}", 4),
        ("\n{% for i in range(10**9) %}{% endfor %}", 2),
        ("{{ 'a' | nosuchfilter }}", 1),
        ("\n{% macro f(x) %}\n{{ x + 1 }}\n{% endmacro %}\n{{ f('a') }}", 3),
        ("\n\n{{ '%d' % 1 }}", 3),
    ],
)
def test_an_error_names_the_line(source: str, line: int) -> None:
    with pytest.raises(TemplateError) as caught:
        render(source)
    assert caught.value.line == line


def test_a_template_says_itself_why_it_refuses() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_there_is_no_clock_in_a_prompt_unless_a_day_is_handed_in() -> None:
    asking = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}26 Jul 2024{% endif %}"
    assert render(asking) == "26 Jul 2024"
    with pytest.raises(TemplateError, match="strftime_now"):
        render("{{ strftime_now('%Y') }}")


def test_a_template_of_a_megabyte_is_refused_unread() -> None:
    with pytest.raises(TemplateError, match="characters"):
        Sandbox("a" * (1 << 20))


# Each is parsed, and compiled, in a time that grows faster than its length.
CONVOLUTED = {
    "many branches": "{% if a %}" + "{% elif b %}" * 4000 + "{% endif %}",
    "many names": "".join(f"{{% if a %}}{{% set x{i} = 1 %}}{{% endif %}}" for i in range(1600)),
    "many operands": "{{ a" + "~a" * 30000 + " }}",
    "many comparisons": "{{ 1" + "<2" * 30000 + " }}",
    "many blocks": "".join(f"{{% block b{i} %}}{{% set a{i} = 1 %}}{{% endblock %}}" for i in range(1200)),
}


@pytest.mark.parametrize("name", CONVOLUTED)
def test_a_template_is_refused_before_compiling_it_takes_long(name: str) -> None:
    source = CONVOLUTED[name]
    assert len(source) < 1 << 16
    with soon_done(), suppress(TemplateError):
        Sandbox(source)


def test_whatever_a_template_does_wrong_is_an_error_of_the_template() -> None:
    with pytest.raises(TemplateError, match="at least one item"):
        render("{{ cycler() }}")


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(TemplateError):
        render("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")
    with pytest.raises(TemplateError):
        render("{% for i in [1] %}" * 60 + "{% endfor %}" * 60)


# Pieces of the templates of real models; the plain sandbox is the reference.
# ruff: noqa: E501
ORDINARY = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'"
    " + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama 2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set sys = messages[0]"
    "['content'] %}{% else %}{% set loop_messages = messages %}{% set sys = false %}{% endif %}"
    "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('must alternate') }}{% endif %}{% if loop.index0 == 0 and sys != false %}"
    "{% set content = '<<SYS>>\n' + sys + '\n<</SYS>>\n\n' + message['content'] %}{% else %}"
    "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content | trim + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + content | trim + ' ' + eos_token }}{% endif %}{% endfor %}",
    "llama 3": "{{- bos_token }}\n{%- if custom_tools is defined %}\n    {%- set tools = custom_tools %}\n{%- endif %}\n"
    "{%- if not tools is defined %}\n    {%- set tools = none %}\n{%- endif %}\n"
    "{%- for message in messages %}\n    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' "
    "in message) %}\n        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | "
    "trim + '<|eot_id|>' }}\n    {%- endif %}\n{%- endfor %}",
    "thinking": "{%- for message in messages %}{%- set content = message.content %}{%- if '</think>' in content %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}{{- content }}"
    "{%- if loop.last or (not loop.last and loop.index0 > 0) %}!{% endif %}{%- endfor %}",
    "reversed": "{%- set ns = namespace(multi=true, last=messages|length - 1) %}{%- for message in messages[::-1] %}"
    "{%- set index = (messages|length - 1) - loop.index0 %}{%- if ns.multi and message.role == 'user' and message.content "
    "is string and not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}"
    "{%- set ns.multi = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}{{ ns.last }}",
    "filters": "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | map(attribute='role') "
    "| join(', ') }}{{ {'b': 1, 'a': [true, none, 'é<']} | tojson }}{{ [3, 1] | tojson(indent=2) }}{{ 'ab' | upper }}"
    "{{ nothing | default('x') }}{{ messages[0].items() | list }}{{ (messages | first).role }}{{ ['a', 'b'] | last }}"
    "{{ 'a,b'.split(',') }}{{ 'x' ~ 1 ~ none }}{{ 2 ** 3 % 5 }}{{ [1, 2] + [3] }}{{ 'ab' * 2 }}{{ (1, 2) | list }}",
    "macros": "{% macro show(m, mark='*') %}{{ mark }}{{ m.content }}{{ caller() if caller }}{% endmacro %}"
    "{% call show(messages[0]) %}inner{% endcall %}{{ show(messages[1], mark='-') }}",
    "loop controls": "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.role }}{% endfor %}"
    "{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% else %}none{% endfor %}"
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{{ loop.length }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "blocks": "{% block a %}x{{ messages[0].role }}{% endblock %}{% filter upper %}abc{% endfilter %}"
    "{% set cap %}{{ messages[0].role }}!{% endset %}{{ cap }}{% for x in nothing %}{% endfor %}\n  {% if true %}\n y\n {% endif %}\n",
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_templates_render_as_in_the_plain_sandbox(name: str) -> None:
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    plain.filters["tojson"] = lambda value, indent=None: __import__("json").dumps(
        value, ensure_ascii=False, indent=indent
    )
    plain.globals["raise_exception"] = lambda message: pytest.fail(message)
    conversation = [
        {"role": "user", "content": "  hello\n"},
        {"role": "assistant", "content": "<think>\nhm</think>\n\nHi!"},
        {"role": "user", "content": "<tool>x</tool>"},
    ]
    variables = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
    expected = plain.from_string(ORDINARY[name]).render(messages=conversation, **variables)
    assert render(ORDINARY[name], conversation, **variables) == expected


def test_generation_marks_are_only_their_body() -> None:
    assert render("{% generation %}{{ messages[1].content }}{% endgeneration %}!") == "Hi there!!"


def test_a_long_conversation_stays_within_the_budget() -> None:
    messages = [{"role": "user", "content": "x" * 1000}, {"role": "assistant", "content": "y" * 4000}] * 2000
    for name in ("chatml", "llama 3", "thinking", "reversed"):
        assert render(ORDINARY[name], messages, bos_token="<s>", eos_token="</s>")
