// Conversations: in IndexedDB, or in memory where the browser refuses it.
//
// A conversation is { id, title, created, changed, turns }; times are milliseconds, and the title is empty unless the user has given one.
// A turn is { role, text, pictures: [{ id, blob }], thought, calls: [{ name, arguments }], note, error, isCut }; the last says that the answer
// can go on. In the database a turn has only the ids of its pictures, which have a table of their own: a text that grows does not write them
// again.

const TABLES = ["conversations", "pictures"];

const result = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
const end = (transaction) => new Promise((resolve, reject) => {
  transaction.oncomplete = () => resolve();
  transaction.onabort = () => reject(transaction.error);
});

/** The title that the user has given, or the first line of the first message. */
export function titleOf({ title, turns }) {
  const first = turns[0]?.text.trim().split("\n", 1)[0] ?? "";
  return title || (first.length > 80 ? `${first.slice(0, 80)}…` : first) || "Pictures";
}

const picturesOf = ({ turns }) => turns.flatMap(({ pictures }) => pictures);
const withoutPictures = (chat) => ({ ...chat, turns: chat.turns.map((turn) => ({ ...turn, pictures: turn.pictures.map(({ id }) => id) })) });

/** Opens the browser's database; `lasts` says whether there is one. */
export async function open() {
  try {
    const request = indexedDB.open("pascaline", 1);
    request.onupgradeneeded = () => TABLES.forEach((name) => request.result.createObjectStore(name));
    const database = await result(request);
    database.onversionchange = () => database.close();
    return new Database(database);
  } catch {
    return new Memory();
  }
}

class Database {
  lasts = true;

  constructor(database) {
    this.database = database;
  }

  /** All conversations without their pictures, the newest first. */
  async list() {
    const chats = await result(this.database.transaction("conversations").objectStore("conversations").getAll());
    return chats.sort((a, b) => b.changed - a.changed);
  }

  /** A conversation with its pictures; null if there is none. */
  async load(id) {
    const transaction = this.database.transaction(TABLES);
    const [chats, pictures] = TABLES.map((name) => transaction.objectStore(name));
    const chat = await result(chats.get(id));
    if (!chat) return null;
    const blobs = new Map();
    await Promise.all(picturesOf(chat).map(async (id) => blobs.set(id, await result(pictures.get(id)))));
    const found = (ids) => ids.filter((id) => blobs.get(id)).map((id) => ({ id, blob: blobs.get(id) }));
    return { ...chat, turns: chat.turns.map((turn) => ({ ...turn, pictures: found(turn.pictures) })) };
  }

  /** Writes conversations, all or none. Pictures that they had and have no longer are deleted. */
  async save(...saved) {
    const transaction = this.database.transaction(TABLES, "readwrite");
    const [chats, pictures] = TABLES.map((name) => transaction.objectStore(name));
    for (const chat of saved) {
      const before = chats.get(chat.id);
      before.onsuccess = () => {
        const old = new Set(before.result ? picturesOf(before.result) : []);
        const now = new Map(picturesOf(chat).map(({ id, blob }) => [id, blob]));
        for (const [id, blob] of now) if (!old.has(id)) pictures.put(blob, id);
        for (const id of old) if (!now.has(id)) pictures.delete(id);
        chats.put(withoutPictures(chat), chat.id);
      };
    }
    await end(transaction);
  }

  async remove(id) {
    const transaction = this.database.transaction(TABLES, "readwrite");
    const [chats, pictures] = TABLES.map((name) => transaction.objectStore(name));
    const before = chats.get(id);
    before.onsuccess = () => {
      for (const picture of before.result ? picturesOf(before.result) : []) pictures.delete(picture);
      chats.delete(id);
    };
    await end(transaction);
  }
}

class Memory {
  lasts = false;
  chats = new Map();

  async list() {
    return [...this.chats.values()].map(withoutPictures).sort((a, b) => b.changed - a.changed);
  }

  async load(id) {
    return this.chats.has(id) ? structuredClone(this.chats.get(id)) : null;
  }

  async save(...saved) {
    for (const chat of saved) this.chats.set(chat.id, structuredClone(chat));
  }

  async remove(id) {
    this.chats.delete(id);
  }
}
