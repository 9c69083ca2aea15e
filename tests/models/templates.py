"""Chat templates that behave as the families' own."""

CHATML = (
    "{%- if messages[0].role != 'system' -%}"
    "{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' -}}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- else -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
LLAMA_3 = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' -}}"
    "{{- message.content | trim + '<|eot_id|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%}"
)
# As LLaVA-1.6 on Mistral: no begin token (the tokenizer adds it), pictures first in their turn.
MISTRAL_LLAVA = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'user' -%}"
    "{{- '[INST] ' -}}"
    "{%- for part in message.content if part.type == 'image' -%}{{- '<image>\n' -}}{%- endfor -%}"
    "{%- for part in message.content if part.type == 'text' -%}{{- part.text -}}{%- endfor -%}"
    "{{- ' [/INST]' -}}"
    "{%- else -%}"
    "{%- if message.role == 'system' -%}{{- '<<SYS>>\n' -}}{%- endif -%}"
    "{%- for part in message.content -%}{{- part.text -}}{%- endfor -%}"
    "{{- '\n<</SYS>>\n\n' if message.role == 'system' else '</s>' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
)
# Said with a space where no picture follows the speaker's name; no begin token of its own.
IDEFICS = (
    "{%- for message in messages -%}"
    "{{- message.role | capitalize -}}"
    "{{- ':' if message.content[0].type == 'image' else ': ' -}}"
    "{%- for part in message.content -%}"
    "{{- '<image>' if part.type == 'image' else part.text -}}"
    "{%- endfor -%}"
    "{{- '<end_of_utterance>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}"
)
VICUNA = (
    "{%- for message in messages -%}"
    "{{- message.role | upper + ': ' -}}"
    "{%- for part in message.content if part.type == 'image' -%}{{- '<image>\n' -}}{%- endfor -%}"
    "{%- for part in message.content if part.type == 'text' -%}"
    "{{- part.text + ' ' -}}{%- endfor -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}"
)
ONEVISION = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + ' ' -}}"
    "{%- for part in message.content if part.type == 'image' -%}{{- '<image>' -}}{%- endfor -%}"
    "{%- for part in message.content if part.type == 'text' -%}"
    "{{- '\n' + part.text -}}{%- endfor -%}"
    "{{- '<|im_end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
INTERNVL = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\n' -}}"
    "{%- for part in message.content -%}"
    "{{- '<IMG_CONTEXT>\n' if part.type == 'image' else part.text -}}"
    "{%- endfor -%}"
    "{{- '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
# Content is text or a list, for the model with pictures and for the one without.
GEMMA = (
    "{{- bos_token -}}"
    "{%- if messages[0].role == 'system' -%}"
    "{%- set first = messages[0].content if messages[0].content is string"
    " else messages[0].content[0].text -%}"
    "{%- set prefix = first + '\n\n' -%}{%- set turns = messages[1:] -%}"
    "{%- else -%}{%- set prefix = '' -%}{%- set turns = messages -%}{%- endif -%}"
    "{%- for message in turns -%}"
    "{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{- raise_exception('Conversation roles must alternate user/assistant') -}}{%- endif -%}"
    "{%- set role = 'model' if message.role == 'assistant' else message.role -%}"
    "{{- '<start_of_turn>' + role + '\n' + (prefix if loop.first else '') -}}"
    "{%- if message.content is string -%}{{- message.content | trim -}}"
    "{%- else -%}{%- for part in message.content -%}"
    "{{- '<start_of_image>' if part.type == 'image' else part.text | trim -}}"
    "{%- endfor -%}{%- endif -%}"
    "{{- '<end_of_turn>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}"
)
MISTRAL = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- set said = message.content if message.content is string else message.content[-1].text -%}"
    "{%- if message.role == 'user' -%}{{- '[INST]' -}}"
    "{%- if message.content is not string -%}"
    "{%- for part in message.content if part.type == 'image' -%}{{- '[IMG]' -}}{%- endfor -%}"
    "{%- endif -%}{{- said + '[/INST]' -}}"
    "{%- elif message.role == 'system' -%}"
    "{{- '[SYSTEM_PROMPT]' + said + '[/SYSTEM_PROMPT]' -}}"
    "{%- else -%}{{- said + '</s>' -}}{%- endif -%}"
    "{%- endfor -%}"
)
GLM = (
    "{{- '[gMASK]<sop>' -}}"
    "{%- for message in messages -%}"
    "{{- '<|' + message.role + '|>\n' -}}"
    "{%- for part in message.content -%}"
    "{{- '<|begin_of_image|><|image|><|end_of_image|>' if part.type == 'image' else part.text -}}"
    "{%- endfor -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>\n' -}}{%- endif -%}"
)
PHI_3 = (
    "{%- for message in messages -%}"
    "{{- '<|' + message.role + '|>\n' + message.content + '<|end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>\n' -}}{%- endif -%}"
)
