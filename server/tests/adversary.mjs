// What the tests of the page's texts share: as much of a document as rendering needs, and linear time for adversarial texts.

import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";

class Element {
  constructor(name) {
    this.tagName = name;
    this.childNodes = [];
  }
  append(...children) {
    for (const child of children) this.childNodes.push(child);
  }
  setAttribute(name, value) {
    this[name] = value;
  }
  addEventListener() {}
}
globalThis.document = {
  createElement: (name) => new Element(name.toUpperCase()),
  createElementNS: (_, name) => new Element(name),
  createDocumentFragment: () => new Element("FRAGMENT"),
};

/** A node as text: its name, address or class, and its children. */
export function shown(node) {
  if (typeof node === "string") return node;
  const more = node.href ?? node.className;
  return `<${node.tagName.toLowerCase()}${more ? ` ${more}` : ""}>${node.childNodes.map(shown).join("")}</>`;
}

/** The text of a node and all within it. */
export const textOf = (node) => (typeof node === "string" ? node : node.childNodes.map(textOf).join(""));

export const many = (size) => (text, of = 1) => text.repeat(Math.ceil(size / of / text.length));

/** The marks and motifs of them at random, always the same, repeated up to about `size` characters. */
export function* motifs(size, pieces, count) {
  const fill = many(size);
  for (const piece of pieces) {
    yield fill(piece);
    yield fill(`${piece} `);
    yield `${fill(piece)}x`;
  }
  let state = 1;
  const random = (below) => (state = (state * 48271) % 2147483647) % below;
  for (let motif = 0; motif < count; motif += 1) {
    const text = Array.from({ length: 1 + random(5) }, () => pieces[random(pieces.length)]).join("");
    yield fill(text);
    yield `${fill(text, 2)}x${fill(pieces[random(pieces.length)], 2)}`;
  }
}

const PATIENCE = 4000; // ms for a text; linear ones take some tens, the others minutes
const SIZE = 50_000;

/**
 * Renders adversarial texts of SIZE characters in a worker with patience for each, and the slowest ones at twice the size, which takes about
 * twice the time. `file` is the test's own: the worker runs it too, and comes here.
 */
export async function linear(name, file, texts, render) {
  if (!isMainThread) {
    if (workerData !== name) return;
    const timed = (text) => {
      const begin = performance.now();
      render(text);
      return performance.now() - begin;
    };
    const slowest = [];
    let at = 0;
    for (const text of texts(SIZE)) {
      parentPort.postMessage({ begins: `${JSON.stringify(text.slice(0, 40))} … ${JSON.stringify(text.slice(-20))}` });
      slowest.push({ at, took: timed(text) });
      slowest.sort((a, b) => b.took - a.took).splice(5);
      at += 1;
    }
    const twice = [...texts(2 * SIZE)];
    for (const { at, took } of slowest) {
      parentPort.postMessage({ begins: `twice ${JSON.stringify(twice[at].slice(0, 40))}` });
      const least = Math.min(...[1, 2, 3].map(() => timed(twice[at])));
      // a quadratic one takes four times as long, if not more
      assert.ok(least < 3 * took + 30, `${least} ms for twice what took ${took} ms: ${JSON.stringify(twice[at].slice(0, 60))}`);
    }
    parentPort.postMessage({ begins: null, count: at, slowest: Math.round(slowest[0].took) });
    return;
  }
  const worker = new Worker(fileURLToPath(file), { argv: process.argv.slice(2), workerData: name });
  let current = "the start";
  await new Promise((done, fail) => {
    const late = () => {
      worker.terminate();
      fail(new Error(`more than ${PATIENCE} ms for ${SIZE} characters: ${current}`));
    };
    let timer = setTimeout(late, PATIENCE);
    worker.on("message", ({ begins, count, slowest }) => {
      clearTimeout(timer);
      if (begins === null) {
        console.log(`${name}: ${count} adversarial texts of ${SIZE} characters, the slowest in ${slowest} ms`);
        return done();
      }
      current = begins;
      timer = setTimeout(late, PATIENCE);
    });
    worker.on("error", fail);
  });
}
