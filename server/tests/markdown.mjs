// The page's Markdown without a browser: elements as expected, and linear time for adversarial texts.
//
//   node markdown.mjs [MARKDOWN.JS]

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import { resolve } from "node:path";
import { isMainThread } from "node:worker_threads";
import { linear, many as manyOf, motifs, shown } from "./adversary.mjs";

const file = process.argv[2];
const { render } = await import(file ? pathToFileURL(resolve(file)) : new URL("../page/markdown.js", import.meta.url));
const html = (text) => render(text).childNodes.map(shown).join("");

/** Texts of about `size` characters on which parsers that try again are slow. */
function* adversarial(size) {
  const many = manyOf(size);
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
  const marks = ["*", "**", "_", "__", "~~", "[", "![", "[](", "[](a", "[](a \"", "](", "<", "(", "\\", "http://", "> ", "- ", "#", "|", "~", "*a", "a*", "**a", "_a_b", "*a **b ", "[a](b", "`a``b```", "$", "$$", "\\(", "\\[", "\\[\n", "$$\n", "$a", "\\]\n", "$$a\n"];
  const pieces = ["*", "**", "_", "`", "``", "~~", "[", "]", "](", "(", ")", "<", ">", "#", "- ", "1. ", "|", "|-|", "\n", "\n\n", " ", "    ", "a", "http://a", "\\", "\"", "!", "```\n", "~~~", "$", "$$", "\\(", "\\)", "\\[", "\\]"];
  for (const mark of marks) {
    yield many(mark);
    yield many(`${mark} `);
    yield `${many(mark)}x`;
  }
  for (const language of ["rust", "python", "html", "diff"]) {
    for (const inside of ["\"", "'", "/*", "\"\"\"", "<", "<a \"", "\\", "a1", "+", "<!--"]) yield `\`\`\`${language}\n${many(inside)}`;
  }
  yield* motifs(size, pieces, 200);
}

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
    ["a \\(b\\) $c$ \\$d$", "<p>a <math><mi>b</></> <math><mi>c</></> $d$</>"],
    ["$5 and $6, US$7-$8, `$a$`, $ b$", "<p>$5 and $6, US$7-$8, <code>$a$</>, $ b$</>"],
    ["a\n\\[\n- b\n\\]\nc", "<p>a</><div math><math><mo>−</><mi>b</></></><p>c</>"],
    ["$$a$$\n\n- $$\n  b\n  $$", "<div math><math><mi>a</></></><ul><li><div math><math><mi>b</></></></></>"],
    ["a \\[b\\] c, \\(d, $$ e\n\n$$", "<p>a <math><mi>b</></> c, (d, $$ e</><p>$$</>"],
  ]) {
    assert.equal(html(text), expected, text);
  }
  assert.match(html("```text\n*a*\n\n```\nb"), /<span>text<\/>.*<pre><code>\*a\*\n<\/><\/><\/><p>b<\/>$/);
  assert.match(html("| a | b |\n|---|---|\n| c\\|d | *e* |"), /<th>a<\/><th>b<\/>.*<td>c\|d<\/><td><em>e<\/><\/>/);
}

await linear("Markdown", import.meta.url, adversarial, render);
