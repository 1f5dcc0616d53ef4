"""An agent's loop by the package openai-agents with a model that was fine-tuned to call its tools: scripts/openai-clients starts it.

    python trained_agent.py data CHECKPOINT FOLDER   # writes what `pascaline finetune` learns: a model and conversations
    python trained_agent.py run URL KEY FOLDER MODEL
    python trained_agent.py run URL KEY FOLDER MODEL --untrained

The conversations are of pictures that have one bright half: the model calls `crop` with the side that it sees, `count` with the animal that it is
told, and answers with all of it. Nothing forces it: `tool_choice` is `auto`, and no tool is strict, so that no grammar holds. The last form asserts
that a model that has not learned this calls nothing.
"""

import asyncio
import base64
import json
import shutil
import struct
import sys
import zlib
from itertools import product
from pathlib import Path

from agents import Agent, FunctionTool, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from agents.models.chatcmpl_converter import Converter
from openai import AsyncOpenAI

QUESTION = "What?"
SIDES, RESULTS = ["left", "right"], [("cats", "3"), ("dogs", "5")]
found, called = {}, []

# That of Qwen's published models with no more of the tools than their names: the fewer tokens, the sooner they are learned
TEMPLATE = """{%- if tools -%}<|im_start|>system
{%- for tool in tools %} {{ tool.function.name }}{% endfor -%}<|im_end|>
{% endif -%}
{%- for m in messages -%}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content -%}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif -%}
{%- endfor %}{% endif -%}
{%- for call in m.tool_calls or [] -%}
<tool_call>{{ '\\n' }}{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}{{ '\\n' }}</tool_call>
{%- endfor -%}<|im_end|>{{ '\\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\\n' }}{%- endif -%}"""


def tool(name, argument, result):
    """A tool with one argument. Its definition is short, since prompts are what takes time in training."""

    async def invoke(context, arguments):
        called.append((name, json.loads(arguments)))
        return found[result]

    schema = {"properties": {argument: {"type": "string"}}, "type": "object"}
    return FunctionTool(name, "", schema, invoke, strict_json_schema=False)


TOOLS = [tool("crop", "side", "animal"), tool("count", "what", "number")]


def answer(side, animal, number):
    return f"{number} {animal} on the {side}."


def picture(side):
    """A PNG file of 64 x 64 pixels."""
    half = {name: bytes([240 if name == side else 20] * 3 * 32) for name in SIDES}
    rows = (b"\0" + half["left"] + half["right"]) * 64
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def data(checkpoint, folder):
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(checkpoint, folder / "untrained", ignore=shutil.ignore_patterns("cases*"))
    (folder / "untrained" / "chat_template.jinja").write_text(TEMPLATE)
    tools = [Converter.tool_to_openai(tool)["function"] for tool in TOOLS]
    tools = [{name: tool[name] for name in ["name", "description", "parameters"]} for tool in tools]
    with open(folder / "conversations.jsonl", "w") as file:
        for side, (animal, number) in product(SIDES, RESULTS):
            (folder / f"{side}.png").write_bytes(picture(side))
            turns = [
                ("human", f"<image>{QUESTION}"),
                ("function_call", json.dumps({"name": "crop", "arguments": {"side": side}})),
                ("observation", animal),
                ("function_call", json.dumps({"name": "count", "arguments": {"what": animal}})),
                ("observation", number),
                ("gpt", answer(side, animal, number)),
            ]
            turns = [{"from": who, "value": value} for who, value in turns]
            file.write(json.dumps({"image": f"{side}.png", "tools": tools, "conversations": turns}) + "\n")


async def run(url, key, folder, model, is_trained):
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    settings = ModelSettings(temperature=0, max_tokens=100, tool_choice="auto")
    model = OpenAIChatCompletionsModel(model=model, openai_client=client)
    agent = Agent(name="watcher", tools=TOOLS, model=model, model_settings=settings)
    for side, (animal, number) in product(SIDES, RESULTS):
        found.update(animal=animal, number=number)
        called.clear()
        shown = base64.b64encode((folder / f"{side}.png").read_bytes()).decode()
        content = [
            {"type": "input_image", "image_url": f"data:image/png;base64,{shown}", "detail": "auto"},
            {"type": "input_text", "text": QUESTION},
        ]
        question = [{"role": "user", "content": content}]
        if (side, animal) == ("right", "dogs"):  # the last one's events are streamed
            result = Runner.run_streamed(agent, question, max_turns=4)
            kinds = [event.type async for event in result.stream_events()]
            assert "raw_response_event" in kinds, kinds
        else:
            result = await Runner.run(agent, question, max_turns=4)
        if not is_trained:
            assert not called, called
            return
        assert called == [("crop", {"side": side}), ("count", {"what": animal})], (called, result.final_output)
        assert result.final_output == answer(side, animal, number), result.final_output


set_tracing_disabled(True)
match sys.argv[1:]:
    case ["data", checkpoint, folder]:
        data(checkpoint, Path(folder))
    case ["run", url, key, folder, model, *rest]:
        asyncio.run(run(url, key, Path(folder), model, rest != ["--untrained"]))
    case _:
        sys.exit(__doc__)
