"""Chat templates like those of published models, named by the features in use."""

CHATML = """\
{%- if messages[0]['role'] != 'system' -%}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' -}}
    {{- message.content + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

LLAMA_3 = """\
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%%") %}
{%- endif %}
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
{{- "Today: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role != 'ipython' %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'
            + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/...') }}\
{% endif %}\
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}\
{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}\
{% endfor %}\
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}\
"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("Roles must alternate") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- " [INST] " + system_message + "\\n\\n" }}
            {{- message["content"] + " [/INST]" }}
        {%- else %}
            {{- " [INST] " + message["content"] + " [/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- else %}
        {%- continue %}
    {%- endif %}
{%- endfor %}
"""

# {% generation %}, tojson, methods, slices, loop controls, white space as it stands.
FEATURES = """\
{% for message in messages %}
  {% if loop.index > 9 %}{% break %}{% endif %}
  {% if message.role == 'assistant' %}
{% generation %}
{% set inner = 'A' %}{{ inner }}{{ message.content }}{{ eos_token }}
{% endgeneration %}
  {% else %}
    {{ message | tojson }} {{ message.items() | list | length }}
    {{ message | tojson(indent=2, sort_keys=true) }} {{ dict(a=1) | tojson }}
  {% endif %}
{% endfor %}
{{ inner is defined }} {{ messages[::-1][0].content.split(' ')[0] }}
{{ '<é>' | tojson }} {{ dict.fromkeys(['a', 'b'], 1) | tojson }}
{{ documents is none }} {{ add_generation_prompt }} {{ pad_token }} {{ nothing }}
"""

TEMPLATES = {
    "chatml": CHATML,
    "llama_3": LLAMA_3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "features": FEATURES,
}
