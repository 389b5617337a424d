"""Templates render as the reference implementation renders them: Jinja's plain sandbox, set up as Hugging Face does.

The templates are ours, in the manner of those that models bring; each construct met in the wild stands in one of them.
"""

from __future__ import annotations

import datetime
import json
from typing import Any

import jinja2
import pytest
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference.errors import TemplateError
from inference.tokenizer.dates import strftime_of
from inference.tokenizer.sandbox import Sandbox

DAY = datetime.date(2025, 3, 7)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Current weather <of> a "city" & country',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"type": "function", "function": {"name": "now", "description": "", "parameters": None}},
]
CONVERSATION = [
    {"role": "system", "content": " Be kind.\n"},
    {"role": "user", "content": "  hello\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi! "},
    {"role": "user", "content": "Und Grüße, 世界 <b>&amp;</b>?"},
    {"role": "assistant", "content": "a\n\n\nb"},
    {"role": "user", "content": ""},
]

# ruff: noqa: E501
TEMPLATES = {
    "loop controls": """
{%- for m in messages %}
  {%- if m.role == 'system' %}{% continue %}{% endif %}
  {%- if loop.index > 4 %}{% break %}{% endif %}
  [{{ loop.index0 }}/{{ loop.length }} {{ loop.revindex }} {{ loop.first }} {{ loop.last }}] {{ m.content }}
{%- else %}
  nothing
{%- endfor %}
{% for x in [] %}{{ x }}{% else %}empty{% endfor %}""",
    "namespace": """
{%- set ns = namespace(system='', turns=0, seen=[]) -%}
{%- for m in messages -%}
  {%- if m['role'] == 'system' -%}{%- set ns.system = ns.system + m['content'] -%}
  {%- else -%}{%- set ns.turns = ns.turns + 1 -%}{%- set ns.seen = ns.seen + [m.role] -%}{%- endif -%}
{%- endfor -%}
{{ ns.system | trim }}|{{ ns.turns }}|{{ ns.seen | unique | join('+') }}""",
    "trim and white space": """
    {% for m in messages %}
    {{- m.content | trim }}
    {% if m.role == 'user' -%}
      user
    {%- endif %}

    {% endfor %}
""",
    "dates": """
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{{- "Today Date: " + date_string }} {{ strftime_now('%A, %B %d, %Y') }} {{ strftime_now('%Y-%m-%d') }} {{
strftime_now('%y%j %a 100%%') }} {{ strftime_now('%Y年%m月%d日') }}""",
    "generation prompt": """
{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{{ '\\n' }}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>
{%- if enable_thinking is defined and enable_thinking is false %}<think>\\n\\n</think>{% endif %}
{%- else %}{{ eos_token }}{% endif %}""",
    "thinking": """
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
  {%- set index = (messages|length - 1) - loop.index0 %}
  {%- if ns.multi_step and message.role == "user" and message.content is string and not (
        message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
    {%- set ns.multi_step = false %}{%- set ns.last = index %}
  {%- endif %}
{%- endfor %}
{%- for message in messages %}
  {%- set content = message.content if message.content is string else '' %}
  {%- set reasoning = '' %}
  {%- if message.reasoning_content is string %}{%- set reasoning = message.reasoning_content %}
  {%- elif '</think>' in content %}
    {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
    {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
  {%- endif %}
  {%- if message.role == 'assistant' and loop.index0 > ns.last %}
    {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
  {%- else %}{{- message.role ~ ':' ~ content ~ '\\n' }}{% endif %}
{%- endfor %}""",
    "tools": """
{%- if tools is not none and tools %}
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- set f = tool.function %}
- {{ f.name }}{% if f.description %}: {{ f.description }}{% endif %}
{{ f.parameters | tojson(indent=2) }}
{%- for name, spec in (f.parameters or {}).get('properties', {}).items() %} {{ name }}:{{ spec.type }}
{%- if name in f.parameters.required %}*{% endif %}{% endfor %}
{%- endfor %}
</tools>
{%- endif %}
{%- set tools = tools or [] %}
{{ tools | map(attribute='function') | map(attribute='name') | list | tojson }}
{{ tools | selectattr('function.description') | list | length }}{% for t in tools %}{{ t.keys() | join(',') }}{% endfor %}
{{ {'b': [1, 2.5, none, true], 'a': 'é'} | tojson(sort_keys=true, separators=(',', ':')) }}""",
    "macros": """
{%- macro tag(name, inner='', mark='|') -%}<{{ mark }}{{ name }}{{ mark }}>{{ inner }}{{ caller() if caller }}{%- endmacro %}
{%- macro turn(message) %}{{ tag(message.role, message.content, mark='#') }}{{ '\\n' }}{% endmacro %}
{%- for m in messages %}{{ turn(m) }}{% endfor %}{% call tag('x') %}in{% endcall %}""",
    "tests": """
{{ a is defined }} {{ messages is defined }} {{ tools is none }} {{ messages[0].content is string }}
{{ messages is iterable }} {{ messages[0] is mapping }} {{ 3 is odd }} {{ 4 is divisibleby 2 }} {{ 1 is number }}
{{ messages[0].tool_calls is not defined }} {{ messages[0]['tool_calls'] is undefined }} {{ true is true }}
{{ 'system' in messages[0].role }} {{ 'tool_calls' in messages[0] }} {{ messages is not string }} {{ none is none }}
{{ (messages | first).role == 'system' and not messages[1].role == 'system' }} {{ 'x' is in ['x'] }} {{ 'a' is lower }}""",
    "slices": """
{%- set system, rest = '', messages %}
{%- if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% endif %}
{%- for m in rest[-3:] | reverse %}{{ loop.index }}{{ m.role }} {% endfor %}
{{- messages[-1].role }} {{ 'abcdef'[1:-1] }} {{ 'abc'[::-1] }} {{ rest[0:2] | length }} {{ (rest | reverse | list)[0].role }}
{{- messages[1:][::2] | map(attribute='role') | join(' ') }}""",
    "neighbours": """
{%- for m in messages %}
{{- loop.previtem.role if loop.previtem is defined else 'first' }}<{{ m.role }}>{{ loop.nextitem.role if loop.nextitem is defined else 'last' }}
{%- if loop.previtem and loop.previtem.role == m.role %}{{ raise_exception('twice') }}{% endif %}
{%- if loop.changed(m.role) %}!{% endif %}{{ loop.cycle('a', 'b') }}
{% endfor %}""",
    "text methods": """
{%- set t = messages[2].content %}
{{ t.strip() }}|{{ t.split('\\n') | length }}|{{ t.replace('h', 'H') }}|{{ t.upper() }}|{{ 'a,b,,c'.split(',', 1) }}
{{ t.find('Hi') }}|{{ t.startswith('<think>') }}|{{ t.rstrip().endswith('!') }}|{{ 'ab c'.title() }}|{{ 'x'.join(['1', '2']) }}
{{ 'a\\nb'.splitlines() }}|{{ 'k=v=w'.partition('=') }}|{{ 'k=v=w'.rpartition('=') }}|{{ 'abab'.count('ab') }}|{{ '12'.isdigit() }}
{{ 'prefix-x'.removeprefix('prefix-') }}|{{ 'Ab'.lower() }}|{{ 'ab'.capitalize() }}|{{ 'a b c'.rsplit(' ', 1) }}""",
    "filters": """
{{ messages | map(attribute='role') | list }} {{ messages | rejectattr('role', 'equalto', 'system') | list | length }}
{{ 'a b' | replace(' ', '_') | upper }} {{ nothing | default('d') }} {{ '' | default('e', true) }} {{ [3, 1, 2] | sort | join }}
{{ {'b': 1, 'a': 2} | dictsort }} {{ {'a': 1} | items | list }} {{ [1, 2, 3] | sum }} {{ [1, 5] | max }} {{ '7' | int + 1 }}
{{ '1.5' | float }} {{ 'abc' | first }}{{ 'abc' | last }}{{ 'abc' | length }} {{ 'x' | string ~ 1 }} {{ -3 | abs }}
{{ 'line\\nline' | indent(2) }} {{ 'line\\nline' | indent(4, true) }} {{ '<b>' | safe }} {{ 'ab' | list }}""",
    "arithmetic": """
{{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 5 }} {{ 7 / 2 }} {{ 1 + 2 * 3 - -1 }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ 'a' ~ 1 ~ none }}
{{ 1 < 2 <= 2 }} {{ 'x' if false }} {{ 'y' if 1 > 2 else 'z' }} {{ not true or (false and true) }} {{ 3 == 3.0 }}
{{ {'k': 'v'}['k'] }} {{ (1, 2)[1] }} {{ [[1, 2], [3]][0][1] }} {{ dict(a=1).a }} {{ range(2, 7, 2) | list }}""",
    "captures": """
{%- set header %}[{{ messages[0].role }}]{% endset %}{{ header }}{{ header | length }}
{% filter upper %}loud {{ messages[1].content | trim }}{% endfilter %}
{% with x = 1, y = 2 %}{{ x + y }}{% endwith %}{# a comment {{ 1 / 0 }} #}
{% raw %}{{ not rendered }}{% endraw %}
{% if true %}

   kept
   {% endif %}
  {% set z = joiner(', ') %}{% for m in messages %}{{ z() }}{{ m.role }}{% endfor %}""",
    "declarations": """
{%- macro argument(value, quotes=True) -%}
  {%- if value is string -%}{{- '"' + value + '"' if quotes else value -}}
  {%- elif value is boolean -%}{{- 'true' if value else 'false' -}}
  {%- elif value is mapping -%}
    {{- '{' -}}{%- set ns = namespace(found=false) -%}
    {%- for key, item in value | dictsort -%}
      {%- if ns.found %},{% endif -%}{%- set ns.found = true -%}{{- key -}}:{{- argument(item, quotes=quotes) -}}
    {%- endfor -%}{{- '}' -}}
  {%- elif value is sequence -%}[{%- for item in value -%}{{- argument(item) }}{{ ', ' if not loop.last }}{%- endfor -%}]
  {%- else -%}{{- value -}}{%- endif -%}
{%- endmacro -%}
{%- for tool in tools or [] -%}declare {{ argument(tool['function']) | trim }};{%- endfor -%}
{{- argument({'a': [1, none, true, 'x'], 'b': {'c': 2.5, 'd': []}}, quotes=False) }}
{%- for message in messages -%}
  {%- set before = namespace(role=None, found=false) -%}
  {%- for j in range(loop.index0 - 1, -1, -1) -%}
    {%- if not before.found and messages[j]['role'] != 'tool' -%}
      {%- set before.role = messages[j]['role'] -%}{%- set before.found = true -%}
    {%- endif -%}
  {%- endfor -%}
  {%- set kind, index = ('even', loop.index0) if loop.index0 is even else ('odd', loop.index0 * 10) %}
{{ before.role }}/{{ message['role'] }}/{{ kind }}{{ index }}/{{ message.get('tool_calls') | default('none', true) }}
  {%- set parts = namespace(result='') -%}
  {%- for part in message.content.split('</think>') -%}
    {%- set parts.result = parts.result + (part.split('<think>')[0] if '<think>' in part else part) -%}
  {%- endfor %}({{ parts.result | trim }})
{%- endfor %}
{{ ['string', 'null'] | map('upper') | list }} {{ {'k': 1} | items | list }} {{ messages | map(attribute='content') | map('length') | sum }}
{%- if messages[0]['role'] in ['system', 'developer'] %} first{% endif %} {{ '{:' ~ '}' }} {{ messages | length > 3 }}""",
    "alternation": """
{%- for m in messages if m.role != 'system' %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- if m.role == 'user' %}{{ bos_token if loop.first }}[INST] {{ m.content.strip() }} [/INST]
{%- elif m.role == 'assistant' %} {{ m.content.strip() }} {{ eos_token }}{% endif %}
{%- endfor %}""",
}  # fmt: skip


def reference(source: str) -> jinja2.Template:
    """As transformers.utils.chat_template_utils sets it up."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
               sort_keys: bool = False) -> str:  # fmt: skip
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = DAY.strftime
    return environment.from_string(source)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
def test_templates_render_as_in_the_reference(name: str, add_generation_prompt: bool, tools: Any) -> None:
    sandbox = Sandbox(TEMPLATES[name])
    variables = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_generation_prompt": add_generation_prompt,
        "tools": tools,
        "documents": None,
    }
    for size in range(3, len(CONVERSATION) + 1):
        messages = CONVERSATION[:size]
        expected = reference(TEMPLATES[name]).render(messages=messages, **variables)
        assert sandbox.render(messages, variables | {"strftime_now": strftime_of(DAY)}) == expected


def test_a_refusal_is_the_reference_s_refusal_with_its_line() -> None:
    sandbox = Sandbox(TEMPLATES["alternation"])
    twice = [CONVERSATION[1], CONVERSATION[1]]
    with pytest.raises(TemplateError, match="roles must alternate") as caught:
        sandbox.render(twice, {"eos_token": "</s>"})
    assert caught.value.line == 3
    with pytest.raises(jinja2.TemplateError, match="roles must alternate"):
        reference(TEMPLATES["alternation"]).render(messages=twice, eos_token="</s>")


# --- dates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "directive", ["d", "e", "m", "y", "Y", "j", "a", "A", "b", "B", "F", "H", "I", "M", "S", "p", "%"]
)
def test_every_directive_is_written_as_by_python(directive: str) -> None:
    sandbox = Sandbox("{{ strftime_now('<%" + directive + ">') }}")
    for offset in range(0, 800, 13):
        day = DAY + datetime.timedelta(days=offset)
        moment = datetime.datetime.combine(day, datetime.time.min)
        assert sandbox.render([], {"strftime_now": strftime_of(day)}) == moment.strftime(f"<%{directive}>")


def test_a_minus_takes_the_zeros_away() -> None:
    shown = Sandbox("{{ strftime_now('%-d.%-m.%Y') }}").render([], {"strftime_now": strftime_of(DAY)})
    assert shown == "7.3.2025"


@pytest.mark.parametrize("pattern", ["'%999999999d'", "'%Q'", "'%'", "'%c'", "'%Z'", "3", "none", "'a' * 9999"])
def test_a_date_in_a_strange_form_is_refused(pattern: str) -> None:
    with pytest.raises(TemplateError):
        Sandbox("{{ strftime_now(" + pattern + ") }}").render([], {"strftime_now": strftime_of(DAY)})
