// The openai package for Node against a server with the tiny model: scripts/openai-clients starts it.
//
//   node openai_client.mjs URL KEY PICTURE PICTURE

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.cwd(), "/"));
const OpenAI = require("openai");
const { version } = JSON.parse(readFileSync(join(process.cwd(), "node_modules/openai/package.json"), "utf8"));
const [url, key, ...files] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const ask = (content, options) =>
  client.chat.completions.create({ model, messages: [{ role: "user", content }], max_tokens: 12, temperature: 0, ignore_eos: true, ...options });

// text
const answer = await ask("Hello");
const text = answer.choices[0].message.content;
assert.ok(text);
assert.equal(answer.usage.completion_tokens, 12);

// two pictures
const shown = files.slice(0, 2).map((file) => {
  const image_url = { url: `data:image/png;base64,${readFileSync(file).toString("base64")}` };
  return { type: "image_url", image_url };
});
const seen = await ask([...shown, { type: "text", text: "Hello" }]);
assert.ok(seen.usage.prompt_tokens > answer.usage.prompt_tokens);

// streaming, and a stream that is left
let [streamed, usage] = ["", null];
for await (const chunk of await ask("Hello", { stream: true, stream_options: { include_usage: true } })) {
  streamed += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(streamed, text);
assert.equal(usage.completion_tokens, 12);
const left = await ask("Hello", { stream: true, max_tokens: 3000 });
for await (const chunk of left) {
  assert.ok(chunk.choices[0]);
  break;
}
left.controller.abort();

// stop
const random = { temperature: 1, seed: 3, max_tokens: 40 };
const whole = (await ask("Hello", random)).choices[0].message.content;
const stop = whole.slice(whole.length / 2).slice(0, 2);
const ended = (await ask("Hello", { ...random, stop: [stop] })).choices[0];
assert.equal(ended.message.content, whole.slice(0, whole.indexOf(stop)));
assert.equal(ended.finish_reason, "stop");

// json_schema
const schema = {
  type: "object",
  properties: { animal: { enum: ["cat", "dog"] }, wild: { type: "boolean" } },
  required: ["animal", "wild"],
  additionalProperties: false,
};
const response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
const found = JSON.parse((await ask("Which?", { max_tokens: 100, response_format })).choices[0].message.content);
assert.ok(["cat", "dog"].includes(found.animal) && typeof found.wild === "boolean");

// tools, streamed: the call in pieces is the call as a whole
const parameters = { type: "object", properties: { city: { enum: ["Paris", "Rome"] } }, required: ["city"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const calling = { tools, tool_choice: { type: "function", function: { name: "weather" } }, parallel_tool_calls: false, max_tokens: 400, ignore_eos: false };
const called = (await ask("Weather?", calling)).choices[0];
assert.equal(called.finish_reason, "tool_calls");
const call = called.message.tool_calls[0].function;
assert.ok(["Paris", "Rome"].includes(JSON.parse(call.arguments).city));
const deltas = { name: "", arguments: "" };
for await (const chunk of await ask("Weather?", { ...calling, stream: true })) {
  for (const delta of chunk.choices[0]?.delta.tool_calls ?? []) {
    deltas.name += delta.function.name ?? "";
    deltas.arguments += delta.function.arguments ?? "";
  }
}
assert.deepEqual(deltas, { name: call.name, arguments: call.arguments });

// errors
const refused = async (kind, param, promise) => {
  const error = await promise.then(() => null, (error) => error);
  assert.ok(error instanceof kind, `${error}`);
  assert.equal(error.param, param);
};
await refused(OpenAI.BadRequestError, "top_p", ask("Hello", { top_p: 5 }));
await refused(OpenAI.BadRequestError, "messages[0].role", client.chat.completions.create({ model, messages: [{ role: "x", content: "y" }] }));
await refused(OpenAI.AuthenticationError, null, new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 }).models.list());
console.log(`ok  openai ${version} for Node`);
