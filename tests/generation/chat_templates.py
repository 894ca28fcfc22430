"""Templates of the kinds that models come with, and conversations for them; all written for these tests."""

from __future__ import annotations

from typing import Any

from tests.generation.text_models import CHATML

TEMPLATES = {
    "chatml": CHATML,
    "chatml_with_a_default_system": """
{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content | trim) + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "headers_and_a_date": """
{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = "26 Jul 2024" %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|header|>system<|end_header|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{% endif %}
{{- "Today: " + date_string + "\\n\\n" + system_message + eos_token }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|header|>' + message['role'] + '<|end_header|>\\n\\n'+ message['content'] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header|>assistant<|end_header|>\\n\\n' }}{%- endif %}
""",
    "instructions_in_brackets": """
{%- if messages[0]['role'] == 'system' -%}
    {%- set first = messages[0]['content'] + '\\n\\n' -%}{%- set rest = messages[1:] -%}
{%- else -%}
    {%- set first = '' -%}{%- set rest = messages -%}
{%- endif -%}
{{ bos_token }}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Roles must alternate: user, assistant, user, …') }}
    {%- endif -%}
    {%- if message['role'] == 'user' -%}
        {{ '[INST] ' + (first if loop.first else '') + message['content'].strip() + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' -%}
        {{ ' ' + message['content'] | trim + ' ' + eos_token }}
    {%- endif -%}
{%- endfor -%}
""",
    "loops_and_marks": """
{% for message in messages %}
    {% if message.role == 'skip' %}{% continue %}{% endif %}
    {% if loop.index > 3 %}{% break %}{% endif %}
    {% if message.role == 'assistant' %}
        {%- generation %}
    {{ message.content }}{{ eos_token }}
        {%- endgeneration -%}
    {% else %}
    {{ message | tojson }} {{ {'b': ['<&>', 1.5, none], 'a': message.content} | tojson(indent=2) }}
    {% endif %}
{% endfor %}
{{ pad_token is defined }} {{ documents }} {{ messages | length }}
{% set ns = namespace(count=0) %}{% for m in messages %}{% set ns.count = ns.count + 1 %}{% endfor %}{{ ns.count }}
""",
    "the_year": "{{ strftime_now('%Y') }} {{ messages[-1]['content'] }}",
}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "question": [{"role": "user", "content": "  What is <b>this</b>?\n"}],
    "system": [{"role": "system", "content": "Bé brief."}, {"role": "user", "content": "Why?"}],
    "turns": [
        {"role": "user", "content": "Hi 🙂"},
        {"role": "assistant", "content": "Hello \"you\" & 'me'"},
        {"role": "user", "content": "日本?"},
    ],
}
