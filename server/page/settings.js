// Settings: the theme, the system message, tools and sampling. They are kept in this browser; an empty field is as the server says.

import { $, say } from "./element.js";
import { askForKey, request } from "./key.js";

const dialog = $("settings");
const fields = dialog.querySelector("form").elements;
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "max_tokens"];
const KEPT = [...NUMBERS, "system", "tools", "model"];

/** Of the model: pictures and videos of a message, pixels of a picture, bytes of a request. */
export let limits = { pictures: 16, pixels: 1 << 24, body: 32 << 20 };

function load() {
  let stored = {};
  try {
    stored = JSON.parse(localStorage.getItem("settings")) ?? {};
  } catch { /* storage may be off; settings last as long as the page then */ }
  if (stored.model) fields.model.replaceChildren(new Option(stored.model)); // until the server has told of its models
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
  const model = fields.model.options.length > 1 && { model: fields.model.value };
  return { ...model, ...Object.fromEntries(numbers.map((name) => [name, Number(fields[name].value)])), ...(tools.length && { tools }) };
}

export function systemMessage() {
  return fields.system.value.trim();
}

/** Whether the server has told of its model. */
export let isDescribed = false;

/** Asks the server for its models, and for the name, limits and defaults of the chosen one, or the first. Of several, one that is not loaded has only a name. */
export async function describe() {
  try {
    const { data } = await (await request("v1/models")).json();
    const model = data.find(({ id }) => id === fields.model.value) ?? data[0];
    fields.model.replaceChildren(...data.map(({ id }) => new Option(id)));
    fields.model.value = model.id;
    fields.model.parentElement.hidden = data.length < 2;
    $("model").textContent = model.id;
    document.title = `${model.id} – Pascaline`;
    limits = model.limits ?? limits;
    isDescribed = true;
    for (const name of NUMBERS) fields[name].placeholder = model.defaults?.[name] ?? fields[name].placeholder;
  } catch (error) {
    say(error.message);
  }
}

$("open-settings").addEventListener("click", () => dialog.showModal());
$("open-key").addEventListener("click", async () => {
  if (await askForKey("An empty key is forgotten.")) describe();
});
fields.tools.addEventListener("input", check);
fields.model.addEventListener("change", describe);
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
