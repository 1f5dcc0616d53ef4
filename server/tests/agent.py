"""An agent's loop by the package openai-agents against a server with the tiny model: scripts/openai-clients starts it.

    python agent.py URL KEY PICTURE

The model's weights are random, so it calls nothing by itself: each turn's `tool_choice` says which tool it calls, a grammar makes the call one that
fits the tool's schema, and the last turn has none. The loop is the package's own: it sends the picture and the tools, runs each call, and sends
its result back.
"""

import asyncio
import base64
import sys
from dataclasses import replace
from typing import Literal

import openai
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

url, key, file = sys.argv[1:]
set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
called = []


@function_tool
def crop(side: Literal["left", "right"]) -> str:
    """Shows a half of the picture."""
    called.append(("crop", side))
    return f"the {side} half is grey"


@function_tool
def count(what: Literal["cats", "dogs"], at_least: Literal[1, 2]) -> str:
    """Counts animals in the picture."""
    called.append(("count", what, at_least))
    return f"3 {what}"


class Turns(OpenAIChatCompletionsModel):
    """Says of each turn which tool it calls."""

    turns = ["crop", "count", "none"]

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.asked = []

    async def get_response(self, system_instructions, input, model_settings, *args, **options):
        choice = self.turns[len(self.asked)]
        self.asked.append(input)
        settings = replace(model_settings, tool_choice=choice, **({"max_tokens": 16} if choice == "none" else {}))
        return await super().get_response(system_instructions, input, settings, *args, **options)


async def main():
    name = (await client.models.list()).data[0].id
    model = Turns(model=name, openai_client=client)
    settings = ModelSettings(temperature=0, max_tokens=400, parallel_tool_calls=False)
    agent = Agent(name="watcher", instructions="Be brief.", tools=[crop, count], model=model, model_settings=settings)
    with open(file, "rb") as picture:
        shown = f"data:image/png;base64,{base64.b64encode(picture.read()).decode()}"
    content = [{"type": "input_image", "image_url": shown, "detail": "auto"}, {"type": "input_text", "text": "What is there?"}]
    result = await Runner.run(agent, [{"role": "user", "content": content}], max_turns=4)
    assert [call[0] for call in called] == ["crop", "count"], called
    assert len(model.asked) == 3
    # the last turn has both calls and their results
    kinds = [item.get("type") for item in model.asked[-1]]
    assert kinds.count("function_call") == 2 and kinds.count("function_call_output") == 2, kinds
    outputs = [item["output"] for item in model.asked[-1] if item.get("type") == "function_call_output"]
    assert outputs == [f"the {called[0][1]} half is grey", f"3 {called[1][1]}"], outputs
    assert isinstance(result.final_output, str) and result.final_output


asyncio.run(main())
