// The API key: asked for when the server answers 401, kept for this tab or, by choice, in this browser; never in an export.

import { $ } from "./element.js";
import { ask } from "./stream.js";

const dialog = $("key-dialog");
const [field, remember] = ["key", "remember-key"].map($);
let key = "";
try {
  key = sessionStorage.getItem("key") ?? localStorage.getItem("key") ?? "";
  remember.checked = localStorage.getItem("key") !== null;
} catch { /* storage may be off; the key lasts as long as the page then */ }

function keep(given) {
  key = given;
  try {
    for (const [storage, isUsed] of [[sessionStorage, !remember.checked], [localStorage, remember.checked]]) {
      if (key && isUsed) storage.setItem("key", key);
      else storage.removeItem("key");
    }
  } catch { /* as above */ }
}

let asking = null; // several requests ask once

/** Asks for a key; whether one was given or taken away. */
export function askForKey(reason) {
  if (asking) return asking;
  $("key-reason").textContent = reason;
  field.value = key;
  dialog.returnValue = "";
  dialog.showModal();
  field.select();
  asking = new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      asking = null;
      const isGiven = dialog.returnValue === "use";
      if (isGiven) keep(field.value.trim());
      field.value = "";
      resolve(isGiven);
    }, { once: true });
  });
  return asking;
}

/** GET or POST with the key. If the server wants another one, the user is asked until there is one or the user gives up. */
export async function request(path, body, signal) {
  for (;;) {
    const used = key;
    try {
      return await ask(path, used, body, signal);
    } catch (error) {
      if (error.status !== 401) throw error;
      // meanwhile another request may have got one
      const isNew = used !== key || await askForKey(used ? "The server refuses this key." : "The server asks for a key.");
      if (signal?.aborted || !isNew) throw error;
    }
  }
}

$("cancel-key").addEventListener("click", () => dialog.close());
