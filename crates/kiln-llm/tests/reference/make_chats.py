"""Writes chats.json: texts that transformers makes of conversations, by templates in the manner of known models.

usage: python make_chats.py        (needs `pip install transformers`)
"""
import json, pathlib
from transformers.utils.chat_template_utils import render_jinja_template

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

HEADERS = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{#- A comment that must not show. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

THINKING = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and reasoning_content %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

TURNS = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
"""

INST = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- elif message["role"] == "assistant" and message.content %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
"""

MACROS = """{%- macro render_type(spec) -%}
    {%- if spec.type == 'array' -%}{{ render_type(spec['items']) }}[]{%- elif spec.enum -%}{{ spec.enum | map('tojson') | join(' | ') }}{%- else -%}{{ spec.type | default('any', true) | upper }}{%- endif -%}
{%- endmacro -%}
{%- for tool in tools or [] %}
type {{ tool.function.name }} = (_: {
{%- for name, spec in tool.function.parameters.properties.items() %}
{{ name }}{{ '' if name in (tool.function.parameters.required or []) else '?' }}: {{ render_type(spec) }},{% if not loop.last %}{{ '\\n' }}{% endif %}
{%- endfor %}
}) => any;
{%- endfor %}
{%- set counts = namespace(turns=0) %}
{%- for message in messages if message.role in ['user', 'assistant'] %}
{%- set counts.turns = counts.turns + 1 %}
{{ '%s|%d' | format(message.role, counts.turns) }} {{ message.content | replace('\\n', ' ') | title if message.content is string else message.content | map(attribute='text') | select | join('+') }}
{%- endfor %}
{{ messages | map(attribute='role') | unique | sort | join(',') }} {{ messages | rejectattr('role', 'equalto', 'user') | list | length }} {{ (messages | last).role }} {{ [3, 1, 2] | max }} {{ 7 // 2 }} {{ 2 ** 3 }} {{ "%.2f" | format(1.5) }} {{ 'a' ~ 1 ~ none }} {{ true }} {{ 1.0 }} {{ [1, 'b', none, true] }} {{ {'k': 'v'} }}
{%- generation %}marked{% endgeneration %}
"""

TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather of a \"place\" – now", "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "unit": {"type": "string", "enum": ["°C", "°F"]}, "days": {"type": "array", "items": {"type": "integer"}}}, "required": ["place"]}}},
    {"type": "function", "function": {"name": "add", "description": "a + b", "parameters": {"type": "object", "properties": {"b": {"type": "number"}, "a": {"type": "number", "default": 1.5}}, "required": []}}},
]
HELLO = [{"role": "user", "content": "Hello!\nWho are you? "}]
LONG = [
    {"role": "system", "content": " Be brief. "}, {"role": "user", "content": "What is 1 < 2 & \"so on\"?"},
    {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nTrue."}, {"role": "user", "content": "Danke schön 😀"},
]
CALLS = [
    {"role": "user", "content": "Weather in Zürich?"},
    {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"place": "Zürich", "days": [1, 2], "exact": None, "far": False}}}]},
    {"role": "tool", "name": "weather", "content": "{\"sky\": \"grau\"}"},
    {"role": "assistant", "content": "<think>\nit is grey\n</think>\n\nGrey."},
]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "One "}, {"type": "image"}, {"type": "text", "text": " two"}]}]
TALKS = {"hello": HELLO, "long": LONG, "calls": CALLS, "parts": PARTS}
TEMPLATES = {"chatml": CHATML, "headers": HEADERS, "thinking": THINKING, "turns": TURNS, "inst": INST, "macros": MACROS}
MORE = dict(bos_token="<s>", eos_token="</s>")

cases = []
for kind, template in TEMPLATES.items():
    for talk, messages in TALKS.items():
        for tools in (None, TOOLS):
            for extra in ({}, {"enable_thinking": False}):
                if extra and kind != "thinking":
                    continue
                for answer in (True, False):
                    try:
                        texts, _ = render_jinja_template([messages], tools=tools, chat_template=template, add_generation_prompt=answer, **MORE, **extra)
                        text = texts[0]
                    except Exception:
                        text = None
                    cases.append(dict(template=kind, talk=talk, tools=tools is not None, answer=answer, more=extra, text=text))
out = dict(templates=TEMPLATES, talks=TALKS, tools=TOOLS, cases=cases)
pathlib.Path(__file__).with_name("chats.json").write_text(json.dumps(out, ensure_ascii=False, indent=0) + "\n")
print(len(cases), "cases,", sum(case["text"] is None for case in cases), "refused")
