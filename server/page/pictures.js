// Pictures: those of the next message, chosen, dropped, pasted or taken, as files that the server reads.

import { $, button, element, say } from "./element.js";
import { limits } from "./settings.js";

/** That the server reads, and that a conversation may have. */
export const KINDS = ["image/png", "image/jpeg", "image/webp"];

/** { id, name, blob } of the next message. */
let pictures = [];

/** 128 random bits; `randomUUID` is only there over https and on this machine. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (word) => word.toString(16).padStart(8, "0")).join("");
}

/** An `img` of a picture. */
export function shown({ blob }, alt) {
  const url = URL.createObjectURL(blob);
  const image = element("img", { src: url, alt });
  // it needs the address only until it is loaded
  for (const end of ["load", "error"]) image.addEventListener(end, () => URL.revokeObjectURL(url));
  return image;
}

export function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** Takes the next message's pictures. */
export function take() {
  const taken = pictures;
  pictures = [];
  show();
  return taken;
}

export const count = () => pictures.length;

/** As it is, or drawn anew where the kind or the size is another than the server takes. */
async function readable(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, Math.sqrt(limits.pixels / (bitmap.width * bitmap.height)));
  let blob = new Blob([file], { type: file.type });
  if (scale < 1 || !KINDS.includes(file.type)) {
    const canvas = element("canvas", { width: Math.floor(bitmap.width * scale), height: Math.floor(bitmap.height * scale) });
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    blob = await new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject()), "image/jpeg", 0.92));
  }
  bitmap.close();
  return blob;
}

async function add(files) {
  for (const file of files) {
    if (!file.type.startsWith("image/")) {
      say(`${file.name || "That"} is no picture.`);
    } else if (pictures.length >= limits.pictures) {
      say(`A message may have ${limits.pictures} pictures.`);
    } else {
      try {
        const blob = await readable(file);
        pictures.push({ id: newId(), name: file.name || "pasted picture", blob });
      } catch {
        say(`${file.name || "That picture"} can't be read.`);
      }
    }
  }
  show();
}

function show() {
  const list = $("pictures");
  list.hidden = !pictures.length;
  list.replaceChildren(...pictures.map((picture, at) => {
    const remove = button("×", () => {
      pictures.splice(at, 1);
      show();
      $("text").focus();
    }, { ariaLabel: `Remove ${picture.name}` });
    return element("li", {}, shown(picture, picture.name), remove);
  }));
}

for (const id of ["files", "camera"]) {
  $(id).addEventListener("change", async () => {
    await add([...$(id).files]);
    $(id).value = "";
    $("text").focus();
  });
}

/** Takes the files of an event, if it has some. */
function takeFiles(event, transfer) {
  const files = [...(transfer?.files ?? [])];
  if (!files.length || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  add(files);
}
document.addEventListener("paste", (event) => takeFiles(event, event.clipboardData));
document.addEventListener("dragover", (event) => {
  if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
  event.preventDefault();
  $("conversation").classList.add("dropping");
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) $("conversation").classList.remove("dropping");
});
document.addEventListener("drop", (event) => {
  $("conversation").classList.remove("dropping");
  takeFiles(event, event.dataTransfer);
});
