"""The openai package for Python against a server with the tiny model: scripts/openai-clients starts it.

    python openai_client.py URL KEY PICTURE PICTURE
"""

import base64
import json
import sys

import openai

url, key, *files = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
model = client.models.list().data[0].id


def ask(content, **options):
    options = {"max_tokens": 12, "temperature": 0, "extra_body": {"ignore_eos": True}} | options
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": content}], **options)


def shown(file):
    with open(file, "rb") as picture:
        data = base64.b64encode(picture.read()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def refused(kind, param, make):
    try:
        make()
    except kind as error:
        assert error.param == param, (error.param, param)
        assert error.body["message"], error.body
    else:
        raise AssertionError(f"{param} is accepted")


# text
answer = ask("Hello")
text = answer.choices[0].message.content
assert text and answer.choices[0].finish_reason == "length"
assert answer.usage.completion_tokens == 12 and answer.usage.total_tokens == answer.usage.prompt_tokens + 12
assert ask("Hello").choices[0].message.content == text

# two pictures
pictures = [shown(file) for file in files[:2]]
seen = ask([*pictures, {"type": "text", "text": "Hello"}])
assert seen.usage.prompt_tokens > answer.usage.prompt_tokens
assert seen.choices[0].message.content

# streaming
pieces, usage, reason = [], None, None
for chunk in ask("Hello", stream=True, stream_options={"include_usage": True}):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        pieces.append(choice.delta.content or "")
        reason = choice.finish_reason or reason
assert "".join(pieces) == text and reason == "length" and usage == answer.usage.model_copy(
    update={"prompt_tokens_details": usage.prompt_tokens_details})
with client.chat.completions.stream(model=model, messages=[{"role": "user", "content": "Hello"}], max_tokens=12, temperature=0,
                                    extra_body={"ignore_eos": True}) as stream:
    assert "".join(event.delta for event in stream if event.type == "content.delta") == text

# stop
whole = ask("Hello", temperature=1, seed=3, max_tokens=40).choices[0].message.content
stop = whole[len(whole) // 2:][:2]
ended = ask("Hello", temperature=1, seed=3, max_tokens=40, stop=stop).choices[0]
assert ended.message.content == whole[:whole.index(stop)] and ended.finish_reason == "stop"

# choices and probabilities
several = ask("Hello", temperature=1, seed=3, n=3, logprobs=True, top_logprobs=2)
assert [choice.index for choice in several.choices] == [0, 1, 2]
assert len({choice.message.content for choice in several.choices}) == 3
for choice in several.choices:
    assert len(choice.logprobs.content) == 12
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in choice.logprobs.content)

# json_schema
schema = {
    "type": "object",
    "properties": {"animal": {"enum": ["cat", "dog"]}, "wild": {"type": "boolean"}},
    "required": ["animal", "wild"],
    "additionalProperties": False,
}
format = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
found = json.loads(ask("Which?", max_tokens=100, response_format=format).choices[0].message.content)
assert found.keys() == {"animal", "wild"} and found["animal"] in ("cat", "dog") and isinstance(found["wild"], bool)

# tools: a call, its pieces in a stream, its result
parameters = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
weather = {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": parameters}}
tools = {"tools": [weather], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 400, "extra_body": {}}
called = ask("What is the weather?", **tools).choices[0]
[call] = called.message.tool_calls
arguments = json.loads(call.function.arguments)
assert called.finish_reason == "tool_calls" and call.function.name == "weather" and arguments["city"] in ("Paris", "Rome")
name, pieces, reason = "", "", None
for chunk in ask("What is the weather?", stream=True, **tools):
    for choice in chunk.choices:
        reason = choice.finish_reason or reason
        for delta in choice.delta.tool_calls or []:
            assert delta.index == 0
            name += delta.function.name or ""
            pieces += delta.function.arguments or ""
assert (name, json.loads(pieces), reason) == ("weather", arguments, "tool_calls")
after = client.chat.completions.create(model=model, max_tokens=12, temperature=0, tools=[weather], extra_body={"ignore_eos": True}, messages=[
    {"role": "user", "content": "What is the weather?"},
    called.message,
    {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
])
assert after.usage.completion_tokens == 12 and after._request_id

# completions
completion = client.completions.create(model=model, prompt=["The", "A"], max_tokens=3, extra_body={"ignore_eos": True})
assert len(completion.choices) == 2 and completion.usage.completion_tokens == 6
assert "".join(part.choices[0].text for part in client.completions.create(
    model=model, prompt="The", max_tokens=3, stream=True, extra_body={"ignore_eos": True})) == completion.choices[0].text

# errors
refused(openai.BadRequestError, "temperature", lambda: ask("Hello", temperature=-1))
refused(openai.BadRequestError, "messages[0].content", lambda: ask(5))
refused(openai.BadRequestError, "max_tokens", lambda: ask("Hello", max_tokens=-1))
refused(openai.BadRequestError, "messages[0].content[0].image_url.url",
        lambda: ask([{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}]))
refused(openai.NotFoundError, None, lambda: client.models.retrieve("none"))
refused(openai.AuthenticationError, None, lambda: client.with_options(api_key="wrong").models.list())
print(f"ok  openai {openai.__version__} for Python")
