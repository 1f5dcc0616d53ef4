// What every part of the page uses: elements, buttons, and words for people who see the page and who hear it.

export const $ = (id) => document.getElementById(id);

/** An element with children, or lists of them; strings become text. */
export function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  for (const child of children.flat()) node.append(child);
  return node;
}

export function button(label, action, properties = {}) {
  const made = element("button", { type: "button", ...properties }, label);
  made.addEventListener("click", action);
  return made;
}

/** Tells screen readers. */
export function say(words) {
  $("said").textContent = "";
  requestAnimationFrame(() => ($("said").textContent = words));
}

/** A sentence above the conversation, with what can be done about it, until it is dismissed or another one comes. */
export function notice(words, ...actions) {
  const close = button("×", () => ($("notice").hidden = true), { ariaLabel: "Dismiss", className: "plain" });
  $("notice").replaceChildren(element("p", {}, words), ...actions, close);
  $("notice").hidden = false;
}

/** Makes a field as high as its text, up to what the style allows. */
export function grow(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}
