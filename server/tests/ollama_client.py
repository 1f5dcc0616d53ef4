"""The ollama package for Python against a server with the tiny model: scripts/openai-clients starts it.

    python ollama_client.py URL KEY PICTURE
"""

import importlib.metadata
import json
import sys

import ollama

url, key, file = sys.argv[1:4]
client = ollama.Client(host=url, headers={"Authorization": f"Bearer {key}"})
options = {"num_predict": 12, "temperature": 0, "ignore_eos": True}
hello = [{"role": "user", "content": "Hello"}]

# list, show
model = client.list().models[0].model
shown = client.show(model)
assert {"completion", "tools", "vision"} <= set(shown.capabilities), shown
assert shown.modelinfo["general.architecture"] and shown.details.parameter_size
assert client.ps().models[0].model == model

# chat
answer = client.chat(model, hello, options=options)
text = answer.message.content
assert text and answer.done and answer.done_reason == "length", answer
assert answer.eval_count == 12 and answer.prompt_eval_count > 0 and answer.total_duration >= answer.eval_duration
parts = list(client.chat(model, hello, options=options, stream=True))
assert "".join(part.message.content for part in parts) == text
assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True] and parts[-1].eval_count == 12
seen = client.chat(model, [{"role": "user", "content": "Hello", "images": [file]}], options=options)
assert seen.prompt_eval_count > answer.prompt_eval_count

# generate
whole = client.generate(model, "Hello", options=options)
assert whole.response == text and whole.done_reason == "length"
assert "".join(part.response for part in client.generate(model, "Hello", options=options, stream=True)) == text
assert client.generate(model, "Hello", images=[file], options=options).response == seen.message.content

# a schema
schema = {
    "type": "object",
    "properties": {"animal": {"enum": ["cat", "dog"]}},
    "required": ["animal"],
    "additionalProperties": False,
}
found = json.loads(client.chat(model, hello, format=schema, options={"num_predict": 100}).message.content)
assert found["animal"] in ("cat", "dog")


# tools: a Python function, and a history with its call
def weather(city: str) -> str:
    """Tells the weather.

    Args:
      city: A town
    """
    return "sunny"


told = client.chat(model, hello, tools=[weather], options=options)
assert told.prompt_eval_count > answer.prompt_eval_count, "the model is told of it"
call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
history = [*hello, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": weather("Rome"), "tool_name": "weather"}]
after = client.chat(model, history, tools=[weather], options=options)
assert after.prompt_eval_count > told.prompt_eval_count and after.eval_count == 12

# errors
for status, make in [
    (400, lambda: client.chat(model, hello, options={"temperature": -1})),
    (400, lambda: client.chat(model, hello, options={"mirostat": 1})),
    (401, lambda: ollama.Client(host=url).list()),
]:
    try:
        make()
    except ollama.ResponseError as error:
        assert error.status_code == status and error.error, error
    else:
        raise AssertionError(f"no status {status}")
print(f"ok  ollama {importlib.metadata.version('ollama')} for Python")
