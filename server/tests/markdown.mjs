// The page's Markdown without a browser: elements as expected, and linear time for adversarial texts.
//
//   node markdown.mjs [MARKDOWN.JS]

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import { resolve } from "node:path";
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";

const file = isMainThread ? process.argv[2] : workerData;
const url = file ? pathToFileURL(resolve(file)) : new URL("../page/markdown.js", import.meta.url);

/** As much of a document as the Markdown needs. */
class Element {
  constructor(name) {
    this.tagName = name.toUpperCase();
    this.childNodes = [];
  }
  append(...children) {
    for (const child of children) this.childNodes.push(child);
  }
  addEventListener() {}
}
globalThis.document = { createElement: (name) => new Element(name), createDocumentFragment: () => new Element("fragment") };
const { render } = await import(url);

const shown = (node) => (typeof node === "string" ? node : `<${node.tagName.toLowerCase()}${node.href ? ` ${node.href}` : ""}>${node.childNodes.map(shown).join("")}</>`);
const html = (text) => render(text).childNodes.map(shown).join("");

/** Texts of about `size` characters on which parsers that try again are slow. */
function* adversarial(size) {
  const many = (text, of = 1) => text.repeat(Math.ceil(size / of / text.length));
  yield `# a${many(" ")}b`;
  yield `# a${many(" #")}b`;
  yield `# ${many("#")}b`;
  yield many("`");
  yield `${many("`")}a`;
  yield `a${many("`", 2)} ${many("`", 4)}`;
  yield `\`\`\`${many(" ")}\``;
  yield `${many("~")}\``;
  for (let runs = "", length = 1; runs.length < size; length += 1) {
    runs += `${"`".repeat(length)} `;
    if (runs.length >= size) yield runs;
  }
  yield `- a\n${many("\n")}`;
  yield `- a\n${many("\n", 2)}${many(" ", 2)}b`;
  yield many("- a\n\n");
  yield many("1. a\n   b\n\n");
  yield `- ${many(" ", 2)}x\u2028y`;
  yield `${many("[")}](${many("a")}`;
  yield `${many("[", 2)}](a "${many("b", 2)}`;
  yield `|${many("-|")}\n|${many(":-")}`;
  yield `${many("http://.", 2)}`;
  for (const line of ["a", "# a", "> a", "- a", "|a|", "***", "```", "\t-"]) yield many(`${line}\n`);
  for (const mark of ["*", "**", "_", "__", "~~", "[", "![", "[](", "[](a", "[](a \"", "](", "<", "(", "\\", "http://", "> ", "- ", "#", "|", "~", "*a", "a*", "**a", "_a_b", "*a **b ", "[a](b", "`a``b```"]) {
    yield many(mark);
    yield many(`${mark} `);
    yield `${many(mark)}x`;
  }
  // motifs at random, always the same
  let state = 1;
  const random = (below) => (state = (state * 48271) % 2147483647) % below;
  const pieces = ["*", "**", "_", "`", "``", "~~", "[", "]", "](", "(", ")", "<", ">", "#", "- ", "1. ", "|", "|-|", "\n", "\n\n", " ", "    ", "a", "http://a", "\\", "\"", "!", "```\n", "~~~"];
  for (let motif = 0; motif < 300; motif += 1) {
    const text = Array.from({ length: 1 + random(5) }, () => pieces[random(pieces.length)]).join("");
    yield many(text);
    yield `${many(text, 2)}x${many(pieces[random(pieces.length)], 2)}`;
  }
}

const PATIENCE = 4000; // ms for a text; linear ones take some tens, the others minutes
const SIZE = 50_000;

if (isMainThread) {
  for (const [text, expected] of [
    ["# a #", "<h3>a</>"],
    ["## b ##  ", "<h4>b</>"],
    ["#c", "<p>#c</>"],
    ["a `b` ``c`d`` `e", "<p>a <code>b</> <code>c`d</> `e</>"],
    ["\\*a\\* *b* **c *d* e** ~~f~~ _g_ h_i_j", "<p>*a* <em>b</> <strong>c <em>d</> e</> <s>f</> <em>g</> h_i_j</>"],
    ["2 * 3 * 4, **a", "<p>2 * 3 * 4, **a</>"],
    ["[a](https://x.example/(b)c \"t\") ![](http://y.example)", "<p><a https://x.example/(b)c>a</> <a http://y.example>http://y.example</></>"],
    ["[a](javascript:alert(1)) [b]( [c]", "<p>[a](javascript:alert(1)) [b]( [c]</>"],
    ["see http://a.example/b?c=d. (http://e.example)", "<p>see <a http://a.example/b?c=d>http://a.example/b?c=d</>. (<a http://e.example>http://e.example</>)</>"],
    ["<b>x</b> &amp;", "<p><b>x</b> &amp;</>"],
    ["- a\n- b\n\n  c\n\n- d", "<ul><li>a</><li>b<p>c</></><li>d</></>"],
    ["1. a\n   - b\n2. c", "<ol><li>a<ul><li>b</></></><li>c</></>"],
    ["> a\n> > b", "<blockquote><p>a</><blockquote><p>b</></></>"],
    ["***\na\nb", "<hr></><p>a\nb</>"],
  ]) {
    assert.equal(html(text), expected, text);
  }
  assert.match(html("```js\n*a*\n\n```\nb"), /<span>js<\/>.*<pre><code>\*a\*\n<\/><\/><\/><p>b<\/>$/);
  assert.match(html("| a | b |\n|---|---|\n| c\\|d | *e* |"), /<th>a<\/><th>b<\/>.*<td>c\|d<\/><td><em>e<\/><\/>/);

  const worker = new Worker(new URL(import.meta.url), { workerData: file });
  let [count, slowest, current] = [0, 0, "the start"];
  await new Promise((done, fail) => {
    const late = () => {
      worker.terminate();
      fail(new Error(`more than ${PATIENCE} ms for ${SIZE} characters: ${current}`));
    };
    let timer = setTimeout(late, PATIENCE);
    worker.on("message", ({ begins, took }) => {
      clearTimeout(timer);
      if (begins === null) return done();
      [count, slowest, current] = [count + 1, Math.max(slowest, took), begins];
      timer = setTimeout(late, PATIENCE);
    });
    worker.on("error", fail);
  });
  console.log(`Markdown: ${count} adversarial texts of ${SIZE} characters, the slowest in ${slowest} ms`);
} else {
  let took = 0;
  for (const text of adversarial(SIZE)) {
    parentPort.postMessage({ begins: `${JSON.stringify(text.slice(0, 40))} … ${JSON.stringify(text.slice(-20))}`, took });
    const begin = Date.now();
    render(text);
    took = Date.now() - begin;
  }
  parentPort.postMessage({ begins: null });
}
