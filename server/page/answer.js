// An answer: asked for with the whole conversation, drawn while it comes, kept every few seconds and at its end.

import { keep } from "./chats.js";
import { draw, newTurn } from "./conversation.js";
import { say } from "./element.js";
import { request } from "./key.js";
import { dataUrl } from "./pictures.js";
import { given, systemMessage } from "./settings.js";
import { ServerError, chunks } from "./stream.js";

const KEPT_EVERY = 2000; // ms
/** Of fewer tokens or less time the speed would be noise. */
const MEASURED = { tokens: 16, seconds: 0.2 };

/** { chat, controller, isRemoved } of the answers that come, by the conversation's id. */
export const running = new Map();

/** The conversation as the server takes it. */
async function messages(turns) {
  const said = turns.filter(({ role, text, calls }) => role === "user" || text || calls.length).map(async ({ role, text, pictures, calls }) => {
    if (calls.length) {
      const tool_calls = calls.map((call, at) => ({ id: `call_${at}`, type: "function", function: call }));
      return { role, content: text || null, tool_calls };
    }
    if (!pictures.length) return { role, content: text };
    const shown = pictures.map(async ({ blob }) => ({ type: "image_url", image_url: { url: await dataUrl(blob) } }));
    return { role, content: [...(await Promise.all(shown)), { type: "text", text }] };
  });
  const system = systemMessage();
  return [...(system ? [{ role: "system", content: system }] : []), ...(await Promise.all(said))];
}

/** Asks for the answer to a conversation's last turn; `add` shows the answer's turn. */
export async function answer(chat, add, onEnd) {
  const asked = [...chat.turns];
  const turn = newTurn("assistant");
  const controller = new AbortController();
  const entry = { chat, controller, isRemoved: false };
  running.set(chat.id, entry);
  add(turn);
  draw(turn, true);
  say("The answer is on its way.");
  const begin = performance.now();
  let [first, last, tokens, reason, frame, kept] = [0, 0, 0, "interrupted", 0, 0];
  const rate = () => {
    const seconds = (last - first) / 1000;
    const isMeasured = tokens >= MEASURED.tokens && seconds >= MEASURED.seconds;
    const speed = isMeasured ? `, ${((tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
    return tokens ? `${tokens} tokens${speed}, first after ${((first - begin) / 1000).toFixed(2)} s` : "";
  };
  const note = () => [rate(), { length: "cut off at the most tokens" }[reason] ?? (reason === "stop" || reason === "tool_calls" ? "" : reason)].filter(Boolean).join(", ");
  const save = async () => {
    if (entry.isRemoved) return;
    kept = performance.now();
    chat.changed = Date.now();
    await keep({ ...chat, turns: chat.turns.map((each) => (each === turn ? { ...turn, note: note() } : each)) });
  };
  const redraw = () => {
    const from = performance.now();
    turn.note = rate();
    draw(turn, true);
    // a long answer is drawn less often
    frame = 0;
    pause = Math.max(16, 4 * (performance.now() - from));
  };
  let pause = 16;
  save();
  try {
    const body = { messages: await messages(asked), stream: true, stream_options: { include_usage: true }, return_progress: true, ...given() };
    const response = await request("v1/chat/completions", body, controller.signal);
    for await (const chunk of chunks(response)) {
      tokens = chunk.usage?.completion_tokens ?? tokens;
      if (chunk.prompt_progress) {
        const { processed, total } = chunk.prompt_progress;
        turn.note = processed < total ? `${processed} of the prompt's ${total} tokens read` : "";
        draw(turn, true);
        continue;
      }
      const choice = chunk.choices[0];
      if (!choice) continue;
      reason = choice.finish_reason ?? reason;
      last = performance.now();
      first ||= last;
      const { content, reasoning_content: reasoning, tool_calls: calls = [] } = choice.delta;
      for (const { index, function: { name = "", arguments: piece = "" } } of calls) {
        turn.calls[index] ??= { name: "", arguments: "" };
        turn.calls[index].name += name;
        turn.calls[index].arguments += piece;
      }
      if (!content && !reasoning && !calls.length) continue;
      turn.thought += reasoning ?? "";
      turn.text += content ?? "";
      tokens += 1;
      frame ||= setTimeout(redraw, pause);
      if (last - kept > KEPT_EVERY) save();
    }
    if (reason === "interrupted") reason = "stop";
  } catch (error) {
    if (error.name === "AbortError") reason = "stopped";
    else {
      reason = "";
      turn.error = error instanceof ServerError ? error.message : `This page has a bug: ${error.message}`;
    }
  }
  clearTimeout(frame);
  turn.note = note();
  running.delete(chat.id);
  draw(turn);
  say(turn.error || turn.text || (turn.calls.length ? "The answer is a call." : "The answer is empty."));
  onEnd();
  await save();
}
