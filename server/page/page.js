// The page: a conversation with the model, the list of all, and what the parts have to do with each other.

import { answer, running } from "./answer.js";
import { onChange, store } from "./chats.js";
import * as conversation from "./conversation.js";
import { $, grow, notice } from "./element.js";
import * as pictures from "./pictures.js";
import { describe, isDescribed } from "./settings.js";
import * as sidebar from "./sidebar.js";

const [composer, text, send, stop] = ["composer", "text", "send", "stop"].map($);

/** The address has the open conversation: a reload, and the browser's back and forward, open it again. */
async function openByAddress() {
  const id = location.hash.slice(1);
  if (id === conversation.chat.id) return;
  const found = id ? running.get(id)?.chat ?? await store.load(id) : null;
  if (id !== location.hash.slice(1)) return; // another one was chosen meanwhile
  if (id && !found) {
    history.replaceState(null, "", location.pathname);
    notice("That conversation is not in this browser.");
  }
  conversation.show(found ?? conversation.fresh());
  update();
}

/** Shows whether the open conversation has an answer that comes: it can be stopped then, and nothing else be asked. */
function update() {
  const entry = running.get(conversation.chat.id);
  if (entry) conversation.draw(conversation.chat.turns.at(-1), true);
  send.hidden = Boolean(entry);
  stop.hidden = !entry;
  conversation.setBusy(Boolean(entry));
  sidebar.mark();
}

/** Asks for an answer, or for more of the last one, which is `begun`. */
function ask(begun = null) {
  const { chat } = conversation;
  $("notice").hidden = true;
  if (location.hash !== `#${chat.id}`) history.pushState(null, "", `#${chat.id}`);
  answer(chat, conversation.add, () => {
    update();
    if (!isDescribed && !chat.turns.at(-1).error) describe();
    // the next question, unless the user is elsewhere
    if (chat === conversation.chat && [document.body, stop].includes(document.activeElement)) text.focus({ preventScroll: true });
  }, begun);
  update();
}

const isBusy = () => running.has(conversation.chat.id);

conversation.actions.edit = (turn, words) => {
  if (isBusy()) return;
  conversation.cut(turn);
  conversation.add(conversation.newTurn("user", words, turn.pictures));
  text.focus();
  ask();
};
conversation.actions.again = (turn) => {
  if (isBusy()) return;
  conversation.cut(turn);
  text.focus();
  ask();
};

conversation.actions.goOn = (turn) => {
  if (isBusy() || turn !== conversation.chat.turns.at(-1)) return;
  text.focus();
  ask(turn);
};

composer.addEventListener("submit", (event) => {
  event.preventDefault();
  const words = text.value.trim();
  if (isBusy() || !(words || pictures.count())) return;
  conversation.add(conversation.newTurn("user", words, pictures.take().map(({ id, blob }) => ({ id, blob }))));
  text.value = "";
  grow(text);
  ask();
});
text.addEventListener("input", () => grow(text));
text.addEventListener("keydown", (event) => {
  if (!conversation.sends(event)) return;
  event.preventDefault();
  composer.requestSubmit();
});

const halt = () => running.get(conversation.chat.id)?.controller.abort();
stop.addEventListener("click", halt);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]") && !sidebar.closeDrawer()) halt();
  const key = event.ctrlKey || event.metaKey ? event.key.toLowerCase() : "";
  if (document.querySelector("dialog[open]") || !(key === "k" || (key === "o" && event.shiftKey))) return;
  event.preventDefault();
  if (key === "k") sidebar.goToSearch();
  else $("new").click();
});

for (const id of ["new", "new-here"]) {
  $(id).addEventListener("click", () => {
    sidebar.closeDrawer();
    if (location.hash) location.hash = "";
    text.focus();
  });
}
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  text.focus();
});
addEventListener("hashchange", openByAddress);

// another tab has changed the open conversation
onChange(async (id, changed) => {
  if (changed !== undefined || id !== conversation.chat.id || isBusy() || conversation.isEdited()) return;
  const chat = await store.load(id);
  if (chat && id === conversation.chat.id && !isBusy()) conversation.show(chat);
});

addEventListener("beforeunload", (event) => {
  if (running.size || (!store.lasts && conversation.chat.turns.length)) event.preventDefault();
});

$("unkept").hidden = store.lasts;
await sidebar.refresh();
await openByAddress();
document.body.classList.add("ready");
text.focus();
describe();
