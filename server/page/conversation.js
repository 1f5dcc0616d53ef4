// The open conversation: its turns as articles, with what can be done with each.

import { $, button, element, grow, notice, say } from "./element.js";
import { highlight } from "./highlight.js";
import { render } from "./markdown.js";
import { stretch } from "./math.js";
import { newId, shown } from "./pictures.js";

const main = $("conversation");

/** As store.js describes it. */
export let chat = fresh();
/** What the buttons of a turn do: `edit` gets a turn and its new text, `again` and `goOn` an answer's turn. */
export const actions = { edit: null, again: null, goOn: null };
/** The parts of each turn's article. */
const articles = new Map();

export function fresh() {
  return { id: newId(), title: "", created: Date.now(), changed: Date.now(), turns: [] };
}

export const newTurn = (role, text = "", pictures = []) => ({ role, text, pictures, thought: "", calls: [], note: "", error: "", isCut: false });

/** Opens a conversation at its end; the open one, if another tab has changed it, where it was. */
export function show(next) {
  const top = next.id === chat.id && !atBottom() ? main.scrollTop : Infinity;
  for (const { article } of articles.values()) article.remove();
  articles.clear();
  chat = next;
  $("welcome").hidden = chat.turns.length > 0;
  for (const turn of chat.turns) addArticle(turn);
  main.scrollTop = Math.min(top, main.scrollHeight);
}

export function add(turn) {
  chat.turns.push(turn);
  $("welcome").hidden = true;
  addArticle(turn);
  toBottom();
}

/** Takes turns away, from this one on. */
export function cut(turn) {
  for (const gone of chat.turns.splice(chat.turns.indexOf(turn))) {
    articles.get(gone)?.article.remove();
    articles.delete(gone);
  }
}

export function isEdited() {
  return Boolean(main.querySelector("article form"));
}

/** While an answer comes, nothing else is asked. */
export function setBusy(isBusy) {
  for (const tool of main.querySelectorAll("article .tools button")) tool.disabled = isBusy;
}

/** Whether the user has not scrolled away from the end. */
let isAtEnd = true;
main.addEventListener("scroll", () => (isAtEnd = atBottom()));

function atBottom() {
  return main.scrollHeight - main.scrollTop - main.clientHeight < 80;
}

function toBottom() {
  main.scrollTop = main.scrollHeight;
}

function addArticle(turn) {
  const isUser = turn.role === "user";
  const part = (name, className) => element(name, { className });
  const parts = {
    article: part("article", turn.role),
    thought: part("div", "written"), text: part("div", "text written"), calls: part("div", "calls"), error: part("p", "error"), note: part("p", "note"), tools: part("div", "tools"),
    folded: part("details", "thought"),
    drawn: {},
  };
  parts.folded.append(element("summary", {}, "Thought"), parts.thought);
  parts.article.append(element("h2", { className: isUser ? "who hidden" : "who" }, isUser ? "You" : "Answer"));
  if (turn.pictures.length) {
    const images = turn.pictures.map((picture, at) => shown(picture, `Picture ${at + 1}`));
    // only then its height is known
    for (const image of images) for (const event of ["load", "loadedmetadata"]) image.addEventListener(event, () => isAtEnd && toBottom());
    parts.article.append(element("div", { className: "shown" }, images));
  }
  parts.article.append(...(isUser ? [] : [parts.folded]), parts.text, parts.calls, parts.error, parts.note, parts.tools);
  parts.tools.append(button("Copy", () => copy(turn.text)));
  if (isUser) parts.tools.append(button("Edit", () => edit(turn)));
  else parts.tools.append(button("Continue", () => actions.goOn(turn), { className: "go-on" }), button("Regenerate", () => actions.again(turn)));
  articles.set(turn, parts);
  main.append(parts.article);
  draw(turn);
}

/** Draws what has changed of a turn, if it is of the open conversation. */
export function draw(turn, isWaiting = false) {
  const parts = articles.get(turn);
  if (!parts) return;
  const { article, drawn } = parts;
  const follow = atBottom();
  const once = (name, value, put) => {
    if (drawn[name] !== value) put(value);
    drawn[name] = value;
  };
  once("thought", turn.thought, (thought) => parts.thought.replaceChildren(render(thought)));
  once("text", turn.text, (text) => parts.text.replaceChildren(turn.role === "user" ? text : render(text)));
  once("calls", JSON.stringify(turn.calls), () => parts.calls.replaceChildren(...turn.calls.map(call)));
  once("note", turn.note, (note) => (parts.note.textContent = note));
  once("error", turn.error, (error) => (parts.error.textContent = error));
  parts.folded.hidden = !turn.thought;
  parts.text.hidden = !turn.text && !isWaiting;
  parts.error.hidden = !turn.error;
  parts.note.hidden = !turn.note;
  if (turn.role === "assistant") {
    const [copies, goesOn, again] = parts.tools.children;
    copies.hidden = !turn.text;
    goesOn.hidden = !turn.isCut;
    again.textContent = turn.error ? "Try again" : "Regenerate";
  }
  article.classList.toggle("waiting", isWaiting);
  article.classList.toggle("failed", Boolean(turn.error));
  article.ariaBusy = isWaiting ? "true" : null;
  stretch(article);
  if (!isWaiting) reachable(article);
  if (follow) toBottom();
}

/** A call of a tool: its name, and its arguments one to a line. */
function call({ name, arguments: given }) {
  let text = given;
  try {
    text = JSON.stringify(JSON.parse(given), null, 2);
  } catch { /* it is shown as it is */ }
  const pre = element("pre", { tabIndex: 0 }, element("code", {}, highlight(text, "json")));
  return element("div", { className: "code call" }, element("div", {}, element("span", {}, "Call of ", element("b", {}, name))), pre);
}

/** What is wider than its place can be scrolled by the keyboard. */
function reachable(within) {
  for (const box of within.querySelectorAll(".table, .math")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("resize", () => reachable(main));

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    notice("The browser does not let this page copy.");
  }
}

function edit(turn) {
  const { article, text, tools } = articles.get(turn);
  if (article.querySelector("form")) return;
  const field = element("textarea", { value: turn.text, rows: 1, ariaLabel: "Message" });
  field.addEventListener("input", () => grow(field));
  const form = element("form", {}, field, element("div", { className: "row" }, element("button", { type: "submit" }, "Send"), button("Cancel", close)));
  function close() {
    form.replaceWith(text);
    tools.lastChild.focus();
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
    if (field.value.trim() || turn.pictures.length) actions.edit(turn, field.value.trim());
  });
  text.replaceWith(form);
  grow(field);
  field.focus();
}

/** Whether a key sends what is written: on a touch screen Enter is the only way to a new line. */
export function sends(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing && !matchMedia("(pointer: coarse)").matches;
}
