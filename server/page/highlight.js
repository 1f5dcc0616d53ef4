// Code → texts and spans with the classes `comment`, `string`, `number`, `keyword`, `added` and `removed`.
//
// The time is linear: each token is taken once, and one that is not closed ends with its line or with the text
// (server/tests/highlight.mjs).

import { element } from "./element.js";

const C = { line: ["//"], block: [["/*", "*/"]], strings: ['"', "'"] };
const HASH = { line: ["#"], block: [], strings: ['"', "'"] };
const C_WORDS = "break case const continue default do else enum extern for goto if inline return sizeof static struct switch typedef union volatile while void int char short long float double signed unsigned bool true false";
const OBJECT_WORDS = "abstract as base break case catch class const continue default do else enum extends false final finally for if implements import in instanceof int interface internal is new null override package private protected public return sealed static super switch this throw throws true try using var virtual void volatile while boolean byte char double float long short string";

const LANGUAGES = {
  c: { ...C, words: C_WORDS },
  cpp: { ...C, words: `${C_WORDS} auto catch class concept consteval constexpr constinit delete explicit export friend mutable namespace new noexcept nullptr operator override private protected public requires template this throw try typename using virtual __global__ __device__ __shared__ __host__` },
  java: { ...C, words: OBJECT_WORDS },
  csharp: { ...C, words: `${OBJECT_WORDS} async await decimal delegate event foreach get lock namespace object out params readonly record ref set struct where yield` },
  kotlin: { ...C, strings: ['"""', '"', "'"], words: `${OBJECT_WORDS} companion data fun object typealias val when lateinit suspend` },
  swift: { ...C, strings: ['"""', '"'], words: "as async await break case catch class continue default defer do else enum extension false fileprivate for func guard if import in init inout internal is let nil private protocol public return self static struct subscript super switch throw throws true try typealias var where while" },
  go: { ...C, strings: ['"', "'", "`"], words: "break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var true false nil int string bool byte error float64 int64" },
  rust: { ...C, strings: ['"'], char: /'(?:\\[^\n']{1,10}|[^\\'\n])'/uy, words: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type union unsafe use where while" },
  javascript: { ...C, strings: ["`", '"', "'"], words: "as async await break case catch class const continue debugger declare default delete do else enum export extends false finally for from function get if implements import in instanceof interface keyof let namespace new null of private protected public readonly return satisfies set static super switch this throw true try type typeof undefined var void while with yield" },
  php: { ...C, line: ["//", "#"], words: `${OBJECT_WORDS} array and echo elseif endif endforeach fn foreach function global isset list match namespace or print require require_once self trait unset use yield` },
  json: { ...C, strings: ['"'], words: "true false null" },
  css: { line: [], block: C.block, strings: ['"', "'"], words: "@media @import @keyframes @font-face @supports @layer @container !important" },
  python: { ...HASH, strings: ['"""', "'''", '"', "'"], words: "and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return True try while with yield self" },
  ruby: { ...HASH, words: "alias and begin break case class def defined do else elsif end ensure false for if in module next nil not or redo rescue retry return self super then true undef unless until when while yield require attr_accessor" },
  shell: { ...HASH, words: "if then else elif fi for while until do done case esac in function return local export set unset source alias cd echo exit sudo" },
  yaml: { ...HASH, words: "true false null yes no on off" },
  toml: { ...HASH, strings: ['"""', "'''", '"', "'"], words: "true false" },
  make: { ...HASH, words: "if else fi for do done then FROM RUN COPY ADD CMD ENTRYPOINT WORKDIR ENV ARG EXPOSE USER VOLUME ifeq ifneq endif include" },
  sql: { line: ["--"], block: C.block, strings: ["'", '"'], anyCase: true, words: "add all alter and as asc between by case check column constraint create cross database default delete desc distinct drop else end exists false foreign from full group having if in index inner insert into is join key left like limit not null offset on or order outer primary references right select set table then true union unique update using values view when where with" },
  lua: { line: ["--"], block: [["--[[", "]]"]], strings: ['"', "'"], words: "and break do else elseif end false for function goto if in local nil not or repeat return then true until while" },
  markup: { line: [], block: [["<!--", "-->"]], strings: ['"', "'"], words: "", isMarkup: true },
};
const ALSO = {
  h: "c", "c++": "cpp", cc: "cpp", hpp: "cpp", cuda: "cpp", cu: "cpp", metal: "cpp", glsl: "cpp", "c#": "csharp", cs: "csharp", kt: "kotlin", golang: "go", rs: "rust",
  js: "javascript", mjs: "javascript", jsx: "javascript", ts: "javascript", tsx: "javascript", typescript: "javascript", jsonc: "json", json5: "json", scss: "css", less: "css",
  py: "python", python3: "python", rb: "ruby", sh: "shell", bash: "shell", zsh: "shell", console: "shell", yml: "yaml", ini: "toml", makefile: "make", dockerfile: "make",
  html: "markup", xml: "markup", svg: "markup", vue: "markup",
};

const WORD = /[@!]?[\p{L}_$][\p{L}\p{N}_$]*(?:-[\p{L}]+)*/uy;
const PLAIN_WORD = /[\p{L}_$][\p{L}\p{N}_$]*/uy;
const NUMBER = /\d[\w.]*/y;

/** Texts and spans of a text in a language; the text alone if the language is not known. */
export function highlight(text, name) {
  const key = name.toLowerCase();
  if (key === "diff" || key === "patch") return diff(text);
  const language = LANGUAGES[Object.hasOwn(ALSO, key) ? ALSO[key] : key];
  return Object.hasOwn(LANGUAGES, key) || Object.hasOwn(ALSO, key) ? tokens(text, language) : [text];
}

const span = (className, text) => element("span", { className }, text);

function diff(text) {
  const kind = (line) => (line.startsWith("@@") ? "keyword" : { "+": "added", "-": "removed" }[line[0]]);
  return text.split(/(?<=\n)/).map((line) => (kind(line) ? span(kind(line), line) : line));
}

function tokens(text, language) {
  language.set ??= new Set(language.words.split(" "));
  const found = [];
  let from = 0; // the text before it is in `found`
  let at = 0;
  let isInTag = false;
  const put = (className, end) => {
    if (at > from) found.push(text.slice(from, at));
    found.push(span(className, text.slice(at, end)));
    from = at = end;
  };
  const match = (pattern) => {
    pattern.lastIndex = at;
    return pattern.exec(text)?.[0];
  };
  const after = (mark, begin) => {
    const end = text.indexOf(mark, begin);
    return end < 0 ? text.length : end + mark.length;
  };
  while (at < text.length) {
    const char = text[at];
    const block = language.block.find(([open]) => text.startsWith(open, at));
    if (block) {
      put("comment", after(block[1], at + block[0].length));
      continue;
    }
    // in a shell and its like a # within a word is no comment
    if (language.line.some((mark) => text.startsWith(mark, at) && (mark !== "#" || at === 0 || /\s/.test(text[at - 1])))) {
      const end = text.indexOf("\n", at);
      put("comment", end < 0 ? text.length : end);
      continue;
    }
    const quote = (!language.isMarkup || isInTag) && language.strings.find((mark) => text.startsWith(mark, at));
    if (quote) {
      put("string", stringEnd(text, at + quote.length, quote));
      continue;
    }
    const literal = language.char && char === "'" && match(language.char);
    if (literal) {
      put("string", at + literal.length);
      continue;
    }
    if (language.isMarkup && (char === "<" || char === ">")) {
      isInTag = char === "<";
      at += text[at + 1] === "/" ? 2 : 1;
      const tag = isInTag && match(WORD);
      if (tag) put("keyword", at + tag.length);
      continue;
    }
    const number = match(NUMBER);
    if (number) {
      put("number", at + number.length);
      continue;
    }
    const word = match(language === LANGUAGES.css ? WORD : PLAIN_WORD);
    if (word && language.set.has(language.anyCase ? word.toLowerCase() : word)) put("keyword", at + word.length);
    else at += word?.length ?? 1;
  }
  if (from < text.length) found.push(text.slice(from));
  return found;
}

/** Where a string ends: at its quote, or with the line unless it may have several. */
function stringEnd(text, begin, quote) {
  const isLong = quote.length > 1 || quote === "`";
  for (let at = begin; at < text.length; at += 1) {
    if (text[at] === "\\") at += 1;
    else if (text.startsWith(quote, at)) return at + quote.length;
    else if (text[at] === "\n" && !isLong) return at;
  }
  return text.length;
}
