"""Templates of thinking models, one for each way in which they treat thinking; written for these tests."""

from __future__ import annotations

# Qwen 3: opens nothing, strips earlier thinking, says so in front of the last reply, knows enable_thinking.
SWITCHED = """
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
  {%- set content, reasoning = m.content, '' %}
  {%- if m.role == 'assistant' and '</think>' in content %}
    {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
    {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
  {%- endif %}
  {%- if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or reasoning) %}
    {{- '<|turn|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content + '<|end|>\\n' }}
  {%- else %}
    {{- '<|turn|>' + m.role + '\\n' + content + '<|end|>\\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|turn|>assistant\\n' }}
  {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""

# Its later thinking models: the generation prompt has opened the block.
OPENED = SWITCHED.replace("{%- if enable_thinking is defined", "{{- '<think>\\n' }}{%- if false and x is defined")

# DeepSeek R1, distilled: strips by cutting, opens the block.
CUT = """
{{- bos_token }}
{%- for m in messages %}
  {%- if m.role == 'assistant' %}
    {%- set content = m.content.split('</think>')[-1] if '</think>' in m.content else m.content %}
    {{- '<|turn|>' + content + '<|end|>' }}
  {%- else %}{{- m.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|turn|><think>\\n' }}{% endif %}"""

# SmolLM 3: keeps thinking in the history, tells the mode in front of everything.
KEPT = """
{%- set mode = '/no_think' if enable_thinking is defined and not enable_thinking else '/think' %}
{{- '<|turn|>system\\nReasoning Mode: ' + mode + '<|end|>\\n' }}
{%- for m in messages %}
  {%- if m.role == 'assistant' and mode == '/no_think' %}
    {{- '<|turn|>assistant\\n<think>\\n\\n</think>\\n' + m.content.lstrip('\\n') + '<|end|>\\n' }}
  {%- else %}{{- '<|turn|>' + m.role + '\\n' + m.content + '<|end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|turn|>assistant\\n' }}{% if mode == '/no_think' %}{{ '<think>\\n\\n</think>\\n' }}{% endif %}
{%- endif %}"""

# Magistral: other marks.
BRACKETED = """
{%- for m in messages %}
  {%- set content = m.content %}
  {%- if m.role == 'assistant' and '[/THINK]' in content %}{% set content = content.split('[/THINK]')[-1] %}{% endif %}
  {{- '<|turn|>' + m.role + '\\n' + content + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{% endif %}"""

PLAIN = """
{%- for m in messages %}{{ '<|turn|>' + m.role + '\\n' + m.content + '<|end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{% endif %}"""

THINKING = {"switched": SWITCHED, "opened": OPENED, "cut": CUT, "kept": KEPT, "bracketed": BRACKETED}
