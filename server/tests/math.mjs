// The page's formulas and code without a browser: as expected, no text is lost or becomes markup, and linear time for adversarial texts.
//
//   node math.mjs

import assert from "node:assert/strict";
import { isMainThread } from "node:worker_threads";
import { linear, many as manyOf, motifs, shown, textOf } from "./adversary.mjs";
import { highlight } from "../page/highlight.js";
import { formula } from "../page/math.js";

const math = (source) => formula(source).childNodes.map(shown).join("");
const code = (text, language) => highlight(text, language).map(shown).join("");

const PIECES = [
  "{", "}", "[", "]", "^", "_", "'", "&", "\\\\", "\\\\[", "\\frac", "\\sqrt", "\\sqrt[", "\\left(", "\\right)", "\\left", "\\right", "\\middle|", "\\begin{matrix}",
  "\\end{matrix}", "\\begin", "\\end", "\\begin{array}{", "\\text{", "\\text", "\\sum_", "\\int^", "\\hat", "\\mathbb", "\\operatorname*", "\\substack{", "\\limits", "\\not",
  "\\overbrace", "\\foo", "\\", "\\big", "\\binom", "x", "1", "1.", ".", " ", "<b>", "𝕏", "\\{", "|",
];
const QUOTES = ['"', "'", "`", '"""', "'''", "\\", "/*", "*/", "//", "#", "--", "--[[", "<!--", "-->", "<", "</", ">", "a", "a-", "1", "1.", "\n", " ", "@", "𝕏"];
const LANGUAGES = ["rust", "python", "js", "html", "css", "lua", "sql", "diff", "toml"];

function* formulas(size) {
  const many = manyOf(size);
  for (const [open, close] of [["{", "}"], ["\\frac{", "}{b}"], ["x^{", "}"], ["\\left(", "\\right)"], ["\\begin{matrix}", "\\end{matrix}"], ["\\sqrt[", "]{a}"]]) {
    yield `${many(open, 2)}a${many(close, 2)}`;
  }
  yield* motifs(size, PIECES, 100);
}

function* codes(size) {
  let at = 0;
  for (const text of motifs(size, QUOTES, 100)) {
    yield `${LANGUAGES[at % LANGUAGES.length]}\n${text}`;
    at += 1;
  }
}

if (isMainThread) {
  for (const [source, expected] of [
    ["x^2_i + 10.5", "<msubsup><mi>x</><mi>i</><mn>2</></><mo>+</><mn>10.5</>"],
    ["x^23", "<msup><mi>x</><mn>2</></><mn>3</>"],
    ["\\frac12", "<mfrac><mn>1</><mn>2</></>"],
    ["\\frac{a+b}{\\sqrt[3]{c}}", "<mfrac><mrow><mi>a</><mo>+</><mi>b</></><mroot><mi>c</><mn>3</></></>"],
    ["\\sum_{i=1}^n \\alpha_i", "<munderover><mo>∑</><mrow><mi>i</><mo>=</><mn>1</></><mi>n</></><msub><mi>α</><mi>i</></>"],
    ["\\int_0^\\infty", "<msubsup><mo>∫</><mn>0</><mi>∞</></>"],
    ["\\lim_{x\\to0}", "<munder><mo>lim</><mrow><mi>x</><mo>→</><mn>0</></></>"],
    ["f''^2", "<msup><mi>f</><mrow><mo>′′</><mn>2</></></>"],
    ["\\left(a\\middle|b\\right]", "<mrow><mo>(</><mi>a</><mo>|</><mi>b</><mo>]</></>"],
    ["\\left.a\\right\\}", "<mrow><mi>a</><mo>}</></>"],
    ["\\begin{pmatrix}a&b\\\\c&d\\\\\\end{pmatrix}", "<mrow><mo>(</><mtable><mtr><mtd><mi>a</></><mtd><mi>b</></></><mtr><mtd><mi>c</></><mtd><mi>d</></></></><mo>)</></>"],
    ["\\begin{array}{cc}a&b\\end{array}", "<mtable><mtr><mtd><mi>a</></><mtd><mi>b</></></></>"],
    ["a\\\\[2pt]b", "<mtable><mtr><mtd><mi>a</></></><mtr><mtd><mi>b</></></></>"],
    ["\\text{if } \\mathbb{R}\\mathbf{x}", "<mtext>if\u00a0</><mi>ℝ</><mi>𝐱</>"],
    ["\\hat x \\operatorname{rank}A", "<mover><mi>x</><mo>^</></><mo>rank</><mi>A</>"],
    ["\\foo{a}\\begin{b}", "<mtext>\\foo</><mi>a</><mtext>\\begin{b}</>"],
    ["a}^_\\right", "<mi>a</><msubsup><mtext>}</><mrow></><mrow></></><mtext>\\right</>"],
    ["<b>&amp;", "<mtable><mtr><mtd><mo><</><mi>b</><mo>></></><mtd><mi>a</><mi>m</><mi>p</><mo>;</></></></>"],
    ["\\", "<mtext>\\</>"],
    ["\\constructor\\toString", "<mtext>\\constructor</><mtext>\\toString</>"],
    ["", ""],
  ]) {
    assert.equal(math(source), expected, source);
  }
  for (const [language, text, expected] of [
    ["rust", "let x = 'a'; // b\nf::<'a>(\"\\\"c\", 0x1f)", "<span keyword>let</> x = <span string>'a'</>; <span comment>// b</>\nf::<'a>(<span string>\"\\\"c\"</>, <span number>0x1f</>)"],
    ["python", "def f(a1):\n  '''x\n#'''  # y", "<span keyword>def</> f(a1):\n  <span string>'''x\n#'''</>  <span comment># y</>"],
    ["js", "const a = `\n`; /* b", "<span keyword>const</> a = <span string>`\n`</>; <span comment>/* b</>"],
    ["html", "<a href=\"b\">it's</a><!-- c -->", "<<span keyword>a</> href=<span string>\"b\"</>>it's</<span keyword>a</>><span comment><!-- c --></>"],
    ["sh", "echo $# a#b 'c", "<span keyword>echo</> $# a#b <span string>'c</>"],
    ["SQL", "Select 'a' -- b", "<span keyword>Select</> <span string>'a'</> <span comment>-- b</>"],
    ["diff", "@@ a\n+b\n-c\n d", "<span keyword>@@ a\n</><span added>+b\n</><span removed>-c\n</> d"],
    ["css", "@media { a-b: 1px }", "<span keyword>@media</> { a-b: <span number>1px</> }"],
    ["", "let x = 1", "let x = 1"],
    ["constructor", "let x = 1", "let x = 1"],
  ]) {
    assert.equal(code(text, language), expected, text);
  }
  // whatever the text, all of it is shown
  let count = 0;
  for (const text of codes(200)) {
    const [language, ...lines] = text.split("\n");
    assert.equal(highlight(lines.join("\n"), language).map(textOf).join(""), lines.join("\n"));
    count += 1;
  }
  // letters and digits of formulas are all there, in order, unless a command or a script takes another place
  const plain = PIECES.filter((piece) => !/[\\&^_']/.test(piece));
  for (const text of motifs(200, plain, 300)) {
    assert.equal(textOf(formula(text)).replaceAll(/[\s\u00a0{}]/g, ""), text.replaceAll(/[\s{}]/g, ""), text);
    count += 1;
  }
  console.log(`Formulas and code: ${count} texts are shown whole`);
}

await linear("Formulas", import.meta.url, formulas, (text) => formula(text));
await linear("Code", import.meta.url, codes, (text) => highlight(text.slice(text.indexOf("\n") + 1), text.slice(0, text.indexOf("\n"))));
