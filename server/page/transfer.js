// Conversations as a JSON file and back. A file is checked as a whole before anything of it is used.

import { KINDS, dataUrl, isVideo, newId } from "./pictures.js";

const FORMAT = "pascaline-conversations";
const VERSION = 1;

/** A file with conversations; their pictures are data URLs. It has nothing of the settings or the key. */
export async function written(chats) {
  const parts = [];
  for (const chat of chats) {
    const turns = [];
    for (const turn of chat.turns) {
      turns.push({ ...turn, pictures: await Promise.all(turn.pictures.map(({ blob }) => dataUrl(blob))) });
    }
    parts.push(`${parts.length ? ",\n" : ""}${JSON.stringify({ ...chat, turns })}`);
  }
  return new Blob([`{"format":"${FORMAT}","version":${VERSION},"conversations":[\n`, ...parts, "\n]}\n"], { type: "application/json" });
}

/** What is wrong with a file, in words for the user. */
export class BadFile extends Error {}

function need(isTrue, what) {
  if (!isTrue) throw new BadFile(what);
}

const isText = (value) => typeof value === "string";
const isTime = (value) => Number.isFinite(value) && value >= 0 && value < 8.64e15;

/** The conversations of a file's text. */
export async function read(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new BadFile("It is no JSON.");
  }
  need(file?.format === FORMAT && Array.isArray(file.conversations), "It is no export of this page.");
  need(file.version === VERSION, `It is of version ${file.version}, and this page reads version ${VERSION}.`);
  const chats = [];
  for (const [at, chat] of file.conversations.entries()) chats.push(await conversation(chat, `Conversation ${at + 1}`));
  need(new Set(chats.map(({ id }) => id)).size === chats.length, "Two conversations have one id.");
  return chats;
}

async function conversation(chat, where) {
  need(chat && isText(chat.id) && /^[0-9a-f]{32}$/.test(chat.id), `${where} has no id.`);
  need(isText(chat.title) && chat.title.length <= 1000, `${where} has no title.`);
  need(isTime(chat.created) && isTime(chat.changed), `${where} has no times.`);
  need(Array.isArray(chat.turns) && chat.turns.length > 0, `${where} has no messages.`);
  const turns = [];
  for (const [at, found] of chat.turns.entries()) turns.push(await turn(found, `${where}, message ${at + 1},`));
  const { id, title, created, changed } = chat;
  return { id, title, created, changed, turns };
}

async function turn(found, where) {
  need(found && ["user", "assistant"].includes(found.role), `${where} has no role.`);
  const { role, text, thought = "", calls = [], note = "", error = "", isCut = false, pictures = [] } = found;
  need([text, thought, note, error].every(isText), `${where} has no text.`);
  need(Array.isArray(calls) && calls.every((call) => call && isText(call.name) && isText(call.arguments)), `${where} has wrong calls.`);
  need(Array.isArray(pictures), `${where} has wrong pictures.`);
  const read = [];
  for (const picture of pictures) read.push({ id: newId(), blob: await blob(picture, where) });
  return { role, text, thought, calls: calls.map(({ name, arguments: given }) => ({ name, arguments: given })), note, error, isCut: isCut === true, pictures: read };
}

/** A picture of a data URL, if it is one that can be shown. */
async function blob(url, where) {
  const [head, data] = isText(url) ? url.split(",", 2) : [];
  const type = KINDS.find((kind) => head === `data:${kind};base64`);
  try {
    const made = new Blob([Uint8Array.from(atob(data), (char) => char.charCodeAt(0))], { type });
    if (!type) throw new BadFile();
    if (!isVideo(made)) (await createImageBitmap(made)).close();
    return made;
  } catch {
    throw new BadFile(`${where} has a picture that can't be read.`);
  }
}
