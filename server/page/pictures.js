// Pictures and videos of the next message, chosen, dropped, pasted or taken, as files that the server reads; and text files, which become
// part of what is written.

import { $, button, element, grow, notice, say } from "./element.js";
import { limits } from "./settings.js";

/** That the server reads, and that a conversation may have. */
export const KINDS = ["image/png", "image/jpeg", "image/webp", "video/mp4", "video/webm", "video/quicktime", "video/x-matroska"];
const MOST_TEXT = 256 << 10; // bytes

/** { id, name, blob } of the next message. */
let pictures = [];

/** 128 random bits; `randomUUID` is only there over https and on this machine. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (word) => word.toString(16).padStart(8, "0")).join("");
}

export const isVideo = ({ type }) => type.startsWith("video/");

/** An `img` of a picture, or a `video`. */
export function shown({ blob }, alt) {
  const url = URL.createObjectURL(blob);
  if (isVideo(blob)) return element("video", { src: url, ariaLabel: alt, controls: true, muted: true, preload: "metadata" });
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

function refuse(words) {
  notice(words);
  say(words);
}

/** Writes a text file behind what is written. */
async function addText(file) {
  const name = file.name || "That";
  if (file.size > MOST_TEXT) return refuse(`${name} is neither a picture, a video nor a text of up to ${MOST_TEXT >> 10} KiB.`);
  let words = "\0";
  try {
    words = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch { /* it is refused below */ }
  if (words.includes("\0")) return refuse(`${name} is neither a picture, a video nor a text in UTF-8.`);
  const fence = "`".repeat(Math.max(3, ...(words.match(/`+/g) ?? []).map((run) => run.length + 1)));
  const [field, before] = [$("text"), $("text").value.trimEnd()];
  field.value = `${before}${before && "\n\n"}${name}:\n${fence}\n${words.trimEnd()}\n${fence}\n`;
  grow(field);
  say(`${name} is in the message.`);
}

async function add(files) {
  for (const file of files) {
    if (!/^(image|video)\//.test(file.type)) {
      await addText(file);
    } else if (pictures.length >= limits.pictures) {
      refuse(`A message may have ${limits.pictures} pictures and videos.`);
    } else if (isVideo(file) && (!KINDS.includes(file.type) || file.size > limits.body * 0.7)) {
      refuse(`${file.name} is no MP4, WebM, MOV or MKV file of up to ${(limits.body * 0.7) >> 20} MiB.`);
    } else {
      try {
        const blob = isVideo(file) ? file : await readable(file);
        pictures.push({ id: newId(), name: file.name || "pasted picture", blob });
      } catch {
        refuse(`${file.name || "That picture"} can't be read.`);
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
