// The store of this page, and keeping conversations in it: tabs of one browser tell each other what has changed.

import { notice } from "./element.js";
import { open } from "./store.js";

export const store = await open();

const others = new BroadcastChannel("conversations");
const listeners = [];

/** Calls back with the id, and the conversation or null where one is removed; and with another tab's id alone. */
export function onChange(listener) {
  listeners.push(listener);
}

function tell(id, chat) {
  for (const listener of listeners) listener(id, chat);
  others.postMessage(id);
}
others.addEventListener("message", ({ data: id }) => {
  for (const listener of listeners) listener(id, undefined);
});

/** Saves conversations, all or none; whether it went well. */
export async function keep(...chats) {
  try {
    await store.save(...chats);
  } catch (error) {
    const why = error?.name === "QuotaExceededError" ? "there is no more room for this page. Export or delete some" : error?.message ?? "it does not say why";
    notice(`The browser has not kept the conversation: ${why}.`);
    return false;
  }
  for (const chat of chats) tell(chat.id, chat);
  return true;
}

export async function remove(id) {
  await store.remove(id);
  tell(id, null);
}
