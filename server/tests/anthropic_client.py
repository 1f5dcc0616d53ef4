"""The anthropic package for Python against a server with the tiny model: scripts/openai-clients starts it.

    python anthropic_client.py URL KEY PICTURE
"""

import base64
import sys

import anthropic

url, key, file = sys.argv[1:4]
GREEDY = {"temperature": 0}  # of the interface, and no argument of the package from 2.0 on
client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)


def ask(content, extra_body={}, **options):
    options = {"model": "tiny", "max_tokens": 12} | options
    return client.messages.create(messages=[{"role": "user", "content": content}], extra_body=GREEDY | extra_body, **options)


def joined(message):
    return "".join(block.text for block in message.content if block.type == "text")


# text
answer = ask("Hello", system="Be brief.", extra_body={"ignore_eos": True})
text = joined(answer)
assert text and answer.role == "assistant" and answer.stop_reason == "max_tokens", answer
assert answer.usage.output_tokens == 12 and answer.usage.input_tokens > 0
raw = client.messages.with_raw_response.create(model="tiny", max_tokens=1, messages=[{"role": "user", "content": "Hello"}])
assert raw.headers["x-request-id"].startswith("req_") and answer._request_id.startswith("req_")
prompt = client.messages.count_tokens(model="tiny", system="Be brief.", messages=[{"role": "user", "content": "Hello"}])
assert prompt.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens

# a picture
with open(file, "rb") as picture:
    data = base64.b64encode(picture.read()).decode()
source = {"type": "base64", "media_type": "image/png", "data": data}
seen = ask([{"type": "image", "source": source}, {"type": "text", "text": "Hello"}])
alone = client.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": "Hello"}])
assert seen.usage.input_tokens + seen.usage.cache_read_input_tokens > alone.input_tokens

# streaming
with client.messages.stream(model="tiny", max_tokens=12, system="Be brief.", extra_body=GREEDY | {"ignore_eos": True},
                            messages=[{"role": "user", "content": "Hello"}]) as stream:
    assert "".join(stream.text_stream) == text
    whole = stream.get_final_message()
assert joined(whole) == text and whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 12

# tools: a call, its pieces in a stream, its result
weather = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
tools = {"tools": [weather], "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}, "max_tokens": 400}
called = ask("What is the weather?", **tools)
call = called.content[-1]
assert called.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "weather", called
assert call.input["city"] in ("Paris", "Rome") and 1 <= call.input["days"] <= 9
with client.messages.stream(model="tiny", extra_body=GREEDY, messages=[{"role": "user", "content": "What is the weather?"}], **tools) as stream:
    pieces = [event.partial_json for event in stream if event.type == "input_json"]
    again = stream.get_final_message().content[-1]
assert pieces and (again.name, again.input) == (call.name, call.input)
result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
after = client.messages.create(model="tiny", max_tokens=12, tools=[weather], extra_body=GREEDY | {"ignore_eos": True}, messages=[
    {"role": "user", "content": "What is the weather?"},
    {"role": "assistant", "content": called.content},
    {"role": "user", "content": [result]},
])
assert after.usage.output_tokens == 12 and after.usage.input_tokens + after.usage.cache_read_input_tokens > prompt.input_tokens

# errors
for kind, make in [
    (anthropic.BadRequestError, lambda: ask("Hello", extra_body={"temperature": -1})),
    (anthropic.BadRequestError, lambda: ask([{"type": "image", "source": source | {"data": "AAAA"}}])),
    (anthropic.AuthenticationError, lambda: client.with_options(api_key="wrong").messages.create(
        model="tiny", max_tokens=1, messages=[{"role": "user", "content": "Hello"}])),
]:
    try:
        make()
    except kind as error:
        assert error.body["error"]["message"], error.body
    else:
        raise AssertionError(f"no {kind.__name__}")
print(f"ok  anthropic {anthropic.__version__} for Python")
