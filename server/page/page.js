// The page: a conversation with the model, which is kept in this tab alone.

import { element, render } from "./markdown.js";
import { ServerError, ask, chunks } from "./stream.js";

const $ = (id) => document.getElementById(id);
const [conversation, composer, text, send, stop, said] = ["conversation", "composer", "text", "send", "stop", "said"].map($);
const settings = $("settings");
const fields = settings.querySelector("form").elements;
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "max_tokens"];
const KINDS = ["image/png", "image/jpeg", "image/webp"]; // that the server reads

/** { role, text, pictures: [data URL], article } in order. */
let turns = [];
/** Pictures of the next message. */
let pictures = [];
/** Ends the answer that comes; null if none does. */
let running = null;
let limits = { pictures: 16, pixels: 1 << 24 };

// ---- settings

function loadSettings() {
  let stored = {};
  try {
    stored = JSON.parse(localStorage.getItem("settings")) ?? {};
    fields.key.value = sessionStorage.getItem("key") ?? "";
  } catch { /* storage may be off; settings last as long as the page then */ }
  for (const name of [...NUMBERS, "system"]) fields[name].value = stored[name] ?? "";
}

function storeSettings() {
  const stored = Object.fromEntries([...NUMBERS, "system"].map((name) => [name, fields[name].value]));
  try {
    localStorage.setItem("settings", JSON.stringify(stored));
    sessionStorage.setItem("key", fields.key.value);
  } catch { /* as above */ }
}

function sampling() {
  const given = NUMBERS.filter((name) => fields[name].value !== "" && fields[name].checkValidity());
  return Object.fromEntries(given.map((name) => [name, Number(fields[name].value)]));
}

$("open-settings").addEventListener("click", () => settings.showModal());
settings.addEventListener("change", storeSettings);
settings.addEventListener("close", () => {
  storeSettings();
  describe();
});
$("reset").addEventListener("click", () => {
  for (const name of NUMBERS) fields[name].value = "";
  storeSettings();
});

async function describe() {
  try {
    const { data: [model] } = await (await ask("v1/models", fields.key.value)).json();
    $("model").textContent = model.id;
    document.title = `${model.id} – Pascaline`;
    limits = model.limits;
    for (const name of NUMBERS) fields[name].placeholder = model.defaults[name] ?? fields[name].placeholder;
  } catch (error) {
    say(error.message);
    if (error.status === 401 && !settings.open) {
      settings.showModal();
      fields.key.focus();
    }
  }
}

// ---- pictures

async function addPictures(files) {
  for (const file of files) {
    if (!file.type.startsWith("image/")) {
      say(`${file.name || "That"} is no picture.`);
    } else if (pictures.length >= limits.pictures) {
      say(`A message may have ${limits.pictures} pictures.`);
    } else {
      try {
        pictures.push({ name: file.name || "pasted picture", url: await readable(file) });
      } catch {
        say(`${file.name || "That picture"} can't be read.`);
      }
    }
  }
  showPictures();
}

/** A data URL that the server reads: as it is, or drawn anew where the kind or the size is another. */
async function readable(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, Math.sqrt(limits.pixels / (bitmap.width * bitmap.height)));
  let blob = file;
  if (scale < 1 || !KINDS.includes(file.type)) {
    const canvas = element("canvas", { width: Math.floor(bitmap.width * scale), height: Math.floor(bitmap.height * scale) });
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    blob = await new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject()), "image/jpeg", 0.92));
  }
  bitmap.close();
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = reject;
    reader.readAsDataURL(blob);
  });
}

function showPictures() {
  const list = $("pictures");
  list.hidden = !pictures.length;
  list.replaceChildren(...pictures.map(({ name, url }, at) => {
    const remove = element("button", { type: "button", ariaLabel: `Remove ${name}` }, "×");
    remove.addEventListener("click", () => {
      pictures.splice(at, 1);
      showPictures();
      text.focus();
    });
    return element("li", {}, element("img", { src: url, alt: name }), remove);
  }));
}

for (const id of ["files", "camera"]) {
  $(id).addEventListener("change", async () => {
    await addPictures([...$(id).files]);
    $(id).value = "";
    text.focus();
  });
}
document.addEventListener("paste", (event) => {
  const files = [...(event.clipboardData?.files ?? [])];
  if (!files.length) return;
  event.preventDefault();
  addPictures(files);
});
document.addEventListener("dragover", (event) => {
  if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
  event.preventDefault();
  conversation.classList.add("dropping");
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) conversation.classList.remove("dropping");
});
document.addEventListener("drop", (event) => {
  conversation.classList.remove("dropping");
  const files = [...(event.dataTransfer?.files ?? [])];
  if (!files.length) return;
  event.preventDefault();
  addPictures(files);
});

// ---- the conversation

/** Tells screen readers. */
function say(words) {
  said.textContent = "";
  requestAnimationFrame(() => (said.textContent = words));
}

function atBottom() {
  return conversation.scrollHeight - conversation.scrollTop - conversation.clientHeight < 80;
}

function toBottom() {
  conversation.scrollTop = conversation.scrollHeight;
}

function button(label, action) {
  const made = element("button", { type: "button" }, label);
  made.addEventListener("click", action);
  return made;
}

function addTurn(role, words, shown = []) {
  $("welcome").hidden = true;
  const article = element("article", { className: role });
  article.append(element("h2", { className: role === "user" ? "who hidden" : "who" }, role === "user" ? "You" : "Answer"));
  if (shown.length) {
    article.append(element("div", { className: "shown" }, ...shown.map((src, at) => element("img", { src, alt: `Picture ${at + 1}` }))));
  }
  article.append(element("div", { className: "text" }, role === "user" ? words : render(words)), element("div", { className: "tools" }));
  const turn = { role, text: words, pictures: shown, article };
  conversation.append(article);
  turns.push(turn);
  if (role === "user") article.querySelector(".tools").append(button("Edit", () => edit(turn)));
  toBottom();
  return turn;
}

/** Takes turns away, from this one on. */
function cut(turn) {
  const at = turns.indexOf(turn);
  for (const { article } of turns.splice(at)) article.remove();
}

function edit(turn) {
  if (running || turn.article.querySelector("form")) return;
  const words = turn.article.querySelector(".text");
  const field = element("textarea", { value: turn.text, rows: 1, ariaLabel: "Message" });
  field.addEventListener("input", () => grow(field));
  const form = element("form", {}, field, element("div", { className: "row" }, element("button", { type: "submit" }, "Send"), button("Cancel", close)));
  function close() {
    form.replaceWith(words);
    turn.article.querySelector(".tools button")?.focus();
  }
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    } else if (sends(event)) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running || !(field.value.trim() || turn.pictures.length)) return;
    cut(turn);
    addTurn("user", field.value.trim(), turn.pictures);
    answer();
  });
  words.replaceWith(form);
  grow(field);
  field.focus();
}

/** The conversation as the server takes it. */
function messages() {
  const system = fields.system.value.trim();
  const said = turns.map(({ role, text, pictures }) => {
    if (!pictures.length) return { role, content: text };
    const shown = pictures.map((url) => ({ type: "image_url", image_url: { url } }));
    return { role, content: [...shown, { type: "text", text }] };
  });
  return system ? [{ role: "system", content: system }, ...said] : said;
}

/** Asks for the answer to the last turn. */
async function answer() {
  const body = { messages: messages(), stream: true, stream_options: { include_usage: true }, return_progress: true, ...sampling() };
  const turn = addTurn("assistant", "");
  const [shown, tools] = [".text", ".tools"].map((part) => turn.article.querySelector(part));
  turn.article.classList.add("waiting");
  turn.article.setAttribute("aria-busy", "true");
  busy(new AbortController());
  say("The answer is on its way.");
  const begin = performance.now();
  let [first, last, tokens, reason, frame, failure] = [0, 0, 0, null, 0, null];
  let thought = "";
  const thinking = element("div", {});
  const folded = element("details", { className: "thought" }, element("summary", {}, "Thought"), thinking);
  const draw = () => {
    frame = 0;
    const follow = atBottom();
    if (thought) thinking.replaceChildren(render(thought));
    shown.replaceChildren(...(thought ? [folded] : []), render(turn.text));
    tools.textContent = rate();
    if (follow) toBottom();
  };
  const rate = () => {
    const seconds = (last - first) / 1000;
    const speed = tokens > 1 && seconds > 0 ? `, ${((tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
    return tokens ? `${tokens} tokens${speed}, first after ${((first - begin) / 1000).toFixed(2)} s` : "";
  };
  try {
    const response = await ask("v1/chat/completions", fields.key.value, body, running.signal);
    for await (const chunk of chunks(response)) {
      tokens = chunk.usage?.completion_tokens ?? tokens;
      if (chunk.prompt_progress) {
        const { processed, total } = chunk.prompt_progress;
        if (processed < total) tools.textContent = `${processed} of the prompt's ${total} tokens read`;
        continue;
      }
      const choice = chunk.choices[0];
      if (!choice) continue;
      reason = choice.finish_reason ?? reason;
      last = performance.now();
      first ||= last;
      const { content, reasoning_content: reasoning } = choice.delta;
      if (!content && !reasoning) continue;
      thought += reasoning ?? "";
      turn.text += content ?? "";
      tokens += 1;
      frame ||= requestAnimationFrame(draw);
    }
  } catch (error) {
    if (error.name === "AbortError") reason = "stopped";
    else failure = error instanceof ServerError ? error.message : `This page has a bug: ${error.message}`;
  }
  cancelAnimationFrame(frame);
  draw();
  busy(null);
  turn.article.classList.remove("waiting");
  turn.article.removeAttribute("aria-busy");
  const remark = { length: "cut off at the most tokens", stopped: "stopped" }[reason];
  tools.textContent = [rate(), remark].filter(Boolean).join(", ");
  if (turn.text) tools.append(button("Copy", () => navigator.clipboard?.writeText(turn.text).then(() => say("Copied."), () => say("Copying is not allowed."))));
  tools.append(button(failure ? "Try again" : "Regenerate", () => {
    if (running) return;
    cut(turn);
    answer();
  }));
  if (failure) turn.article.insertBefore(element("p", { className: "error" }, failure), tools);
  say(failure ?? (turn.text || "The answer is empty."));
  if (atBottom()) toBottom();
  text.focus({ preventScroll: true });
}

/** While an answer comes, it can be stopped and nothing else be asked. */
function busy(controller) {
  running = controller;
  send.hidden = Boolean(controller);
  stop.hidden = !controller;
  $("new").disabled = Boolean(controller);
  conversation.querySelectorAll("article .tools button").forEach((tool) => (tool.disabled = Boolean(controller)));
}

stop.addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !settings.open) running?.abort();
});

function sends(event) {
  // on a touch screen Enter is the only way to a new line
  return event.key === "Enter" && !event.shiftKey && !event.isComposing && !matchMedia("(pointer: coarse)").matches;
}

text.addEventListener("keydown", (event) => {
  if (!sends(event)) return;
  event.preventDefault();
  composer.requestSubmit();
});

/** As high as its text, up to what the style allows. */
function grow(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}
text.addEventListener("input", () => grow(text));

composer.addEventListener("submit", (event) => {
  event.preventDefault();
  const words = text.value.trim();
  if (running || !(words || pictures.length)) return;
  addTurn("user", words, pictures.map(({ url }) => url));
  text.value = "";
  pictures = [];
  showPictures();
  grow(text);
  answer();
});

$("new").addEventListener("click", () => {
  for (const { article } of turns.splice(0)) article.remove();
  $("welcome").hidden = false;
  text.focus();
});

// a conversation is in this tab alone
addEventListener("beforeunload", (event) => {
  if (turns.length) event.preventDefault();
});

loadSettings();
describe();
text.focus();
