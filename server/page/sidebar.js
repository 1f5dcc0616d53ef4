// The list of conversations: found by their titles and texts, renamed, deleted, written to a file and read from one. On a narrow screen it
// is a drawer.

import { running } from "./answer.js";
import { keep, onChange, remove, store } from "./chats.js";
import * as conversation from "./conversation.js";
import { $, button, element, notice, say } from "./element.js";
import { newId } from "./pictures.js";
import { titleOf } from "./store.js";
import { BadFile, read, written } from "./transfer.js";

const [sidebar, list, search, menu, scrim] = ["sidebar", "chats", "search", "menu", "scrim"].map($);
const SNIPPET = 40; // characters before what was found

/** { chat, item, link, title, snippet, more, actions } of each conversation, by its id: how it is stored, and its elements. */
const entries = new Map();

/** The conversation as it is now, with its pictures. */
export async function find(id) {
  return id === conversation.chat.id ? conversation.chat : running.get(id)?.chat ?? store.load(id);
}

// ---- the list

function addEntry(chat) {
  const entry = { chat, title: element("span", { className: "title" }), snippet: element("small"), item: element("li") };
  entry.link = element("a", { href: `#${chat.id}` }, entry.title, entry.snippet);
  const download = () => {
    fold(entry, true);
    entry.more.focus();
    save([chat.id]);
  };
  const actions = [button("Rename", () => rename(entry)), button("Export", download), button("Delete", () => discard(entry))];
  entry.actions = element("div", { className: "actions", hidden: true }, actions);
  entry.more = button("⋯", () => fold(entry, !entry.actions.hidden), { className: "plain more", ariaExpanded: "false" });
  entry.item.append(element("div", { className: "entry" }, entry.link, entry.more), entry.actions);
  entry.link.addEventListener("click", () => closeDrawer());
  entries.set(chat.id, entry);
}

function fold(entry, isFolded) {
  entry.actions.hidden = isFolded;
  entry.more.ariaExpanded = String(!isFolded);
}

const newestFirst = () => [...entries.values()].sort((a, b) => b.chat.changed - a.chat.changed);

/** Shows the conversations that have what is looked for, the newest first. */
function draw() {
  const wanted = search.value.trim().toLowerCase();
  const sorted = newestFirst();
  let count = 0;
  for (const { chat, item, link, title, snippet, more } of sorted) {
    const name = titleOf(chat);
    if (title.textContent !== name) title.textContent = link.title = name;
    more.ariaLabel = `Rename, export or delete ${name}`;
    link.ariaCurrent = chat.id === conversation.chat.id ? "page" : null;
    const found = wanted ? findIn(chat, wanted) : "";
    item.hidden = found === null;
    snippet.replaceChildren(...(found || []));
    count += item.hidden ? 0 : 1;
  }
  $("found").textContent = wanted ? `${count || "No"} ${count === 1 ? "conversation has" : "conversations have"} it.` : entries.size ? "" : "No conversations yet.";
  // elements are moved only if they must: what is moved loses the focus
  const items = sorted.map(({ item }) => item);
  if (items.some((item, at) => item !== list.children[at]) || items.length !== list.children.length) {
    const focused = list.contains(document.activeElement) ? document.activeElement : null;
    list.replaceChildren(...items);
    focused?.focus({ preventScroll: true });
  }
  $("export").disabled = !entries.size;
}

/** The part of a text where the wanted one is, empty if the title has it; null if neither does. */
function findIn(chat, wanted) {
  if (titleOf(chat).toLowerCase().includes(wanted)) return "";
  for (const { text } of chat.turns) {
    const at = text.toLowerCase().indexOf(wanted);
    if (at < 0) continue;
    const end = at + wanted.length;
    return [at > SNIPPET ? "…" : "", text.slice(Math.max(0, at - SNIPPET), at), element("mark", {}, text.slice(at, end)), text.slice(end, end + 2 * SNIPPET)];
  }
  return null;
}

export async function refresh() {
  const chats = await store.list();
  const ids = new Set(chats.map(({ id }) => id));
  for (const id of entries.keys()) if (!ids.has(id)) entries.delete(id);
  for (const chat of chats) put(chat);
  draw();
}

function put(chat) {
  if (entries.has(chat.id)) entries.get(chat.id).chat = chat;
  else addEntry(chat);
}

onChange((id, chat) => {
  if (chat === undefined) return refresh();
  if (chat) put(chat);
  else entries.delete(id);
  return draw();
});
search.addEventListener("input", draw);

/** Marks the open conversation. */
export const mark = draw;

// ---- rename and delete

function rename(entry) {
  const before = titleOf(entry.chat);
  const field = element("input", { value: before, maxLength: 200, ariaLabel: "Title" });
  const form = element("form", {}, field);
  let isDone = false;
  const end = async (title) => {
    if (isDone) return;
    isDone = true;
    form.replaceWith(entry.link);
    fold(entry, true);
    entry.more.focus();
    if (title === null || title === before) return;
    const chat = await find(entry.chat.id);
    if (!chat) return;
    chat.title = title;
    await keep(chat);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    end(field.value.trim());
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    end(null);
  });
  field.addEventListener("blur", () => end(field.value.trim()));
  entry.link.replaceWith(form);
  field.select();
}

/** Deletes a conversation, which can be undone as long as the page is open and nothing else is said. */
async function discard(entry) {
  const { id } = entry.chat;
  const title = titleOf(entry.chat);
  const next = entry.item.nextElementSibling ?? entry.item.previousElementSibling;
  const answer = running.get(id);
  if (answer) {
    answer.isRemoved = true;
    answer.controller.abort();
  }
  const chat = await find(id);
  if (!chat) return;
  // bytes of their own: those of the database may go with it
  const turns = await Promise.all(chat.turns.map(async (turn) => ({
    ...turn,
    pictures: await Promise.all(turn.pictures.map(async ({ id, blob }) => ({ id, blob: new Blob([await blob.arrayBuffer()], { type: blob.type }) }))),
  })));
  await remove(id);
  const wasOpen = id === conversation.chat.id;
  if (wasOpen) location.hash = "";
  notice(`“${title}” is deleted.`, button("Undo", async () => {
    $("notice").hidden = true;
    if (!await keep({ ...chat, turns })) return;
    say("It is back.");
    if (wasOpen) location.hash = id;
    entries.get(id)?.link.focus();
  }));
  (next?.querySelector("a") ?? search).focus();
}

// ---- files

/** Writes conversations to a file, which the browser downloads. */
async function save(ids) {
  const chats = (await Promise.all(ids.map(find))).filter(Boolean);
  const url = URL.createObjectURL(await written(chats));
  const name = chats.length === 1 ? titleOf(chats[0]).replaceAll(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 40) || "conversation" : "conversations";
  element("a", { href: url, download: `${name}-${new Date().toISOString().slice(0, 10)}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Reads a file. A conversation that is here already, as old as it is there, is not read again. */
async function load(file) {
  try {
    const chats = await read(await file.text());
    const isHere = ({ id, changed }) => entries.get(id)?.chat.changed === changed;
    const others = chats.filter((chat) => !isHere(chat)).map((chat) => (entries.has(chat.id) ? { ...chat, id: newId() } : chat));
    if (others.length && !await keep(...others)) return;
    const here = chats.length - others.length;
    notice(`${others.length} ${others.length === 1 ? "conversation is" : "conversations are"} imported${here ? `, ${here} ${here === 1 ? "was" : "were"} here already` : ""}.`);
  } catch (error) {
    const why = error instanceof BadFile ? error.message : "It can't be read.";
    notice(`${file.name} is not imported, and nothing has changed. ${why}`);
  }
}

$("export").addEventListener("click", () => save(newestFirst().map(({ chat }) => chat.id)));
$("import").addEventListener("change", async () => {
  const [file] = $("import").files;
  if (file) await load(file);
  $("import").value = "";
});

// ---- the drawer

function openDrawer() {
  sidebar.classList.add("open");
  scrim.hidden = false;
  menu.ariaExpanded = "true";
  $("column").inert = true;
  $("close-menu").focus();
}

/** Whether it was open. */
export function closeDrawer() {
  if (!sidebar.classList.contains("open")) return false;
  sidebar.classList.remove("open");
  scrim.hidden = true;
  menu.ariaExpanded = "false";
  $("column").inert = false;
  menu.focus();
  return true;
}

/** Goes to the field that searches. */
export function goToSearch() {
  if (getComputedStyle(sidebar).visibility === "hidden") openDrawer();
  search.focus();
}

menu.addEventListener("click", openDrawer);
scrim.addEventListener("click", closeDrawer);
$("close-menu").addEventListener("click", closeDrawer);
matchMedia("(min-width: 56rem)").addEventListener("change", closeDrawer);
