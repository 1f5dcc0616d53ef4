// An answer: asked for with the whole conversation, drawn while it comes, kept every few seconds and at its end.

import { keep } from "./chats.js";
import { draw, newTurn } from "./conversation.js";
import { say } from "./element.js";
import { request } from "./key.js";
import { dataUrl, isVideo } from "./pictures.js";
import { given, systemMessage } from "./settings.js";
import { ServerError, chunks } from "./stream.js";

const KEPT_EVERY = 2000; // ms
/** What is said of how an answer has ended; other ends are said as they are named. */
const ENDS = { stop: "", tool_calls: "", length: "cut off at the most tokens" };
/** Of fewer tokens or less time the speed would be noise. */
const MEASURED = { tokens: 16, seconds: 0.2 };

/** { chat, controller, isRemoved } of the answers that come, by the conversation's id. */
export const running = new Map();

/** The conversation as the server takes it; `begun` is an answer that goes on. */
async function messages(turns, begun) {
  const said = turns.filter((turn) => turn.role === "user" || turn.text || turn.calls.length || turn === begun).map(async (turn) => {
    const { role, text, pictures, calls } = turn;
    if (turn === begun) return { role, content: text || null, reasoning_content: turn.thought };
    if (calls.length) {
      const tool_calls = calls.map((call, at) => ({ id: `call_${at}`, type: "function", function: call }));
      return { role, content: text || null, tool_calls };
    }
    if (!pictures.length) return { role, content: text };
    const shown = pictures.map(async ({ blob }) => {
      const kind = isVideo(blob) ? "video_url" : "image_url";
      return { type: kind, [kind]: { url: await dataUrl(blob) } };
    });
    return { role, content: [...(await Promise.all(shown)), { type: "text", text }] };
  });
  const system = systemMessage();
  return [...(system ? [{ role: "system", content: system }] : []), ...(await Promise.all(said))];
}

/** How an answer comes along, in words. */
class Pace {
  begin = performance.now();
  first = 0;
  last = 0;
  tokens = 0;

  tick() {
    this.last = performance.now();
    this.first ||= this.last;
  }

  toString() {
    const seconds = (this.last - this.first) / 1000;
    const isMeasured = this.tokens >= MEASURED.tokens && seconds >= MEASURED.seconds;
    const speed = isMeasured ? `, ${((this.tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
    return this.tokens ? `${this.tokens} tokens${speed}, first after ${((this.first - this.begin) / 1000).toFixed(2)} s` : "";
  }
}

/** Adds a piece of an answer to its turn; whether there was something in it. */
function take(turn, { content, reasoning_content: reasoning, tool_calls: calls = [] }) {
  turn.thought += reasoning ?? "";
  turn.text += content ?? "";
  for (const { index, function: { name = "", arguments: piece = "" } } of calls) {
    turn.calls[index] ??= { name: "", arguments: "" };
    turn.calls[index].name += name;
    turn.calls[index].arguments += piece;
  }
  return Boolean(content || reasoning || calls.length);
}

/** Asks for the answer to a conversation's last turn, which `add` shows; or for more of it, if that turn is `begun`. */
export async function answer(chat, add, onEnd, begun = null) {
  const asked = [...chat.turns];
  const turn = begun ?? newTurn("assistant");
  const controller = new AbortController();
  const entry = { chat, controller, isRemoved: false };
  const pace = new Pace();
  let end = "interrupted"; // as it is kept until there is another one
  running.set(chat.id, entry);
  if (begun) turn.error = "";
  else add(turn);
  draw(turn, true);
  say("The answer is on its way.");

  const note = () => [String(pace), ENDS[end] ?? end].filter(Boolean).join(", ");
  const isCut = () => !["stop", "tool_calls"].includes(end) && Boolean(turn.text || turn.thought) && !turn.calls.length;
  let kept = 0;
  const save = async () => {
    if (entry.isRemoved) return;
    kept = performance.now();
    chat.changed = Date.now();
    await keep({ ...chat, turns: chat.turns.map((each) => (each === turn ? { ...turn, note: note(), isCut: isCut() } : each)) });
  };
  let [frame, pause] = [0, 16];
  const redraw = () => {
    const from = performance.now();
    turn.note = String(pace);
    draw(turn, true);
    frame = 0;
    pause = Math.max(16, 4 * (performance.now() - from)); // a long answer is drawn less often
  };
  const receive = async () => {
    const body = { messages: await messages(asked, begun), continue_final_message: Boolean(begun), stream: true, stream_options: { include_usage: true }, return_progress: true, ...given() };
    for await (const chunk of chunks(await request("v1/chat/completions", body, controller.signal))) {
      pace.tokens = chunk.usage?.completion_tokens ?? pace.tokens;
      if (chunk.prompt_progress) {
        const { processed, total } = chunk.prompt_progress;
        turn.note = processed < total ? `${processed} of the prompt's ${total} tokens read` : "";
        draw(turn, true);
        continue;
      }
      const [choice] = chunk.choices;
      if (!choice) continue;
      end = choice.finish_reason ?? end;
      pace.tick();
      if (!take(turn, choice.delta)) continue;
      pace.tokens += 1;
      frame ||= setTimeout(redraw, pause);
      if (pace.last - kept > KEPT_EVERY) save();
    }
  };

  save();
  try {
    await receive();
  } catch (error) {
    end = error.name === "AbortError" ? "stopped" : "";
    if (!end) turn.error = error instanceof ServerError ? error.message : `This page has a bug: ${error.message}`;
  }
  clearTimeout(frame);
  [turn.note, turn.isCut] = [note(), isCut()];
  running.delete(chat.id);
  draw(turn);
  say(turn.error || turn.text || (turn.calls.length ? "The answer is a call." : "The answer is empty."));
  onEnd();
  await save();
}
