// Settings: the theme, the system message, tools and sampling. They are kept in this browser; an empty field is as the server says.

import { $, say } from "./element.js";
import { askForKey, request } from "./key.js";

const dialog = $("settings");
const fields = dialog.querySelector("form").elements;
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "max_tokens"];
const KEPT = [...NUMBERS, "system", "tools"];

/** Of the model: pictures of a message, pixels of a picture. */
export let limits = { pictures: 16, pixels: 1 << 24 };

function load() {
  let stored = {};
  try {
    stored = JSON.parse(localStorage.getItem("settings")) ?? {};
  } catch { /* storage may be off; settings last as long as the page then */ }
  for (const name of KEPT) fields[name].value = stored[name] ?? "";
  fields.theme.value = document.documentElement.dataset.theme;
  check();
}

function store() {
  document.documentElement.dataset.theme = fields.theme.value;
  try {
    localStorage.setItem("theme", fields.theme.value);
    localStorage.setItem("settings", JSON.stringify(Object.fromEntries(KEPT.map((name) => [name, fields[name].value]))));
  } catch { /* as above */ }
}

/** The functions of the tools' field: a list as OpenAI has it; null if it is none. */
function functions() {
  try {
    const list = JSON.parse(fields.tools.value.trim() || "[]");
    return Array.isArray(list) ? list : null;
  } catch {
    return null;
  }
}

function check() {
  fields.tools.setCustomValidity(functions() ? "" : "This is no JSON list.");
}

/** The fields of a request that are given. */
export function given() {
  const numbers = NUMBERS.filter((name) => fields[name].value !== "" && fields[name].checkValidity());
  const tools = functions() ?? [];
  return { ...Object.fromEntries(numbers.map((name) => [name, Number(fields[name].value)])), ...(tools.length && { tools }) };
}

export function systemMessage() {
  return fields.system.value.trim();
}

/** Whether the server has told of its model. */
export let isDescribed = false;

/** Asks the server for the model's name, limits and defaults. */
export async function describe() {
  try {
    const { data: [model] } = await (await request("v1/models")).json();
    $("model").textContent = model.id;
    document.title = `${model.id} – Pascaline`;
    limits = model.limits;
    isDescribed = true;
    for (const name of NUMBERS) fields[name].placeholder = model.defaults[name] ?? fields[name].placeholder;
  } catch (error) {
    say(error.message);
  }
}

$("open-settings").addEventListener("click", () => dialog.showModal());
$("open-key").addEventListener("click", async () => {
  if (await askForKey("An empty key is forgotten.")) describe();
});
fields.tools.addEventListener("input", check);
dialog.addEventListener("change", store);
dialog.addEventListener("close", store);
$("reset").addEventListener("click", () => {
  for (const name of NUMBERS) fields[name].value = "";
  store();
});
addEventListener("storage", ({ key, newValue }) => {
  if (key !== "theme") return;
  document.documentElement.dataset.theme = fields.theme.value = newValue ?? "";
});
load();
