// Markdown as models write it, with formulas and code → elements. Text becomes text nodes and nothing else, so that no text can
// become markup.
//
// The time is linear in the text's length, whatever the text: a regular expression here has no two parts that can share a run of
// characters, and what closes a mark is looked for once, not again from each mark (server/tests/markdown.mjs).

import { button, element } from "./element.js";
import { highlight } from "./highlight.js";
import { formula } from "./math.js";

/** Elements for a text. Unfinished constructs, as streams have them, are shown as far as they have come. */
export function render(text) {
  const fragment = document.createDocumentFragment();
  for (const block of blocks(text.replaceAll("\r\n", "\n").split("\n"), 0)) fragment.append(block);
  return fragment;
}

const FENCE = { match: fence, test: (line) => fence(line) !== null };
const HEADING = /^ {0,3}(#{1,6})\s/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)([^]*)$/;
const QUOTE = /^ {0,3}> ?/;
const ROW = /^\s*\|.*\|\s*$/;
const DIVIDER = /^\s*\|(\s*:?-+:?\s*\|)+\s*$/;
const DEPTH = 8; // of lists and quotes in each other

/** The indent, marks and language of a line that opens a block of code. */
function fence(line) {
  const [open, indent, marks] = line.match(/^( {0,3})(`{3,}|~{3,})/) ?? [];
  const info = open && line.slice(open.length);
  return open && !info.includes("`") ? { indent, marks, language: info.trim().split(/\s/, 1)[0] } : null;
}

/** A heading's text, without the marks that may follow it. */
function title(line, marks) {
  const text = line.trim().slice(marks.length).trim();
  let end = text.length;
  while (end > 0 && text[end - 1] === "#") end -= 1;
  return text.slice(0, end).trimEnd();
}

/** Asked for lines from the first to the last: the formula that begins there and stands by itself, if one does. */
function formulas(lines) {
  const next = (isFound) => {
    let found = -1; // it is looked for once
    return (from) => {
      for (found = Math.max(found, from); found < lines.length && !isFound(lines[found]); ) found += 1;
      return found;
    };
  };
  const blank = next((line) => !line.trim());
  const closing = (mark) => [mark, next((line) => line.includes(mark))];
  const marks = new Map([["$$", closing("$$")], ["\\[", closing("\\]")]]);
  return (at) => {
    const line = lines[at].trim();
    const [close, nextClose] = marks.get(line.slice(0, 2)) ?? [];
    if (!close) return null;
    const isWhole = line.indexOf(close, 2) >= 0;
    const last = isWhole ? at : nextClose(at + 1);
    const end = lines[last]?.trim() ?? "";
    if (blank(at) < last || end.indexOf(close, isWhole ? 2 : 0) !== end.length - 2) return null;
    return { source: lines.slice(at, last + 1).join("\n").trim().slice(2, -2), last };
  };
}

function blocks(lines, depth) {
  const found = [];
  const formulaAt = formulas(lines);
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    const code = FENCE.match(line);
    const heading = line.match(HEADING);
    const math = formulaAt(at);
    if (!line.trim()) {
      at += 1;
    } else if (code) {
      const { indent, marks, language } = code;
      const isEnd = (line) => line.trim().startsWith(marks) && !line.trim().slice(marks.length).replaceAll(marks[0], "");
      let end = at + 1;
      while (end < lines.length && !isEnd(lines[end])) end += 1;
      const body = lines.slice(at + 1, end).map((line) => line.replace(new RegExp(`^ {0,${indent.length}}`), ""));
      found.push(codeBlock(body.join("\n"), language));
      at = end + 1;
    } else if (math) {
      found.push(element("div", { className: "math" }, formula(math.source, true)));
      at = math.last + 1;
    } else if (heading) {
      // the page itself has the first two levels
      found.push(element(`h${Math.min(heading[1].length + 2, 6)}`, {}, inline(title(line, heading[1]))));
      at += 1;
    } else if (RULE.test(line)) {
      found.push(element("hr"));
      at += 1;
    } else if (QUOTE.test(line) && depth < DEPTH) {
      let end = at;
      while (end < lines.length && QUOTE.test(lines[end])) end += 1;
      const inside = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
      found.push(element("blockquote", {}, blocks(inside, depth + 1)));
      at = end;
    } else if (ITEM.test(line) && depth < DEPTH) {
      const [list, end] = items(lines, at, depth);
      found.push(list);
      at = end;
    } else if (ROW.test(line) && DIVIDER.test(lines[at + 1] ?? "")) {
      let end = at + 2;
      while (end < lines.length && ROW.test(lines[end])) end += 1;
      found.push(table(lines[at], lines[at + 1], lines.slice(at + 2, end)));
      at = end;
    } else {
      let end = at + 1;
      const isBegin = (at) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((begin) => begin.test(lines[at])) || formulaAt(at);
      while (end < lines.length && lines[end].trim() && !isBegin(end)) end += 1;
      found.push(element("p", {}, inline(lines.slice(at, end).join("\n"))));
      at = end;
    }
  }
  return found;
}

function items(lines, from, depth) {
  const [, indent, mark] = lines[from].match(ITEM);
  const ordered = /\d/.test(mark);
  const list = element(ordered ? "ol" : "ul");
  if (ordered) list.start = parseInt(mark, 10);
  let at = from;
  let full = -1; // the first line from `at` on that is not blank
  let depthOfFull = -1; // its indent; -1 if there is none
  const nextFull = () => {
    if (full >= at) return full;
    for (full = at; full < lines.length && !lines[full].trim(); ) full += 1;
    depthOfFull = lines[full]?.search(/\S/) ?? -1;
    return full;
  };
  while (at < lines.length) {
    const item = lines[at].match(ITEM);
    if (!item || item[1].length > indent.length + 1 || item[1].length < indent.length || /\d/.test(item[2]) !== ordered) break;
    const width = item[1].length + item[2].length + 1;
    const inside = [item[4]];
    at += 1;
    // what is further in, and blank lines before it
    for (; at < lines.length; at += 1) {
      const blank = !lines[at].trim();
      nextFull();
      const deeper = depthOfFull >= Math.min(width, indent.length + 2);
      const lazy = !blank && !ITEM.test(lines[at]) && !FENCE.test(lines[at]) && inside.at(-1).trim();
      if (!deeper && !lazy) break;
      inside.push(lines[at].slice(Math.min(width, Math.max(0, lines[at].search(/\S/)))));
    }
    const children = blocks(inside, depth + 1);
    // one line of text needs no paragraph
    const first = children[0];
    if (first?.tagName === "P") children[0] = [...first.childNodes];
    list.append(element("li", {}, children.flat()));
    // items may have blank lines between them
    const next = nextFull();
    if (next > at && next < lines.length && ITEM.test(lines[next])) at = next;
  }
  return [list, at];
}

function table(head, divider, rows) {
  const cells = (row) => row.trim().slice(1, -1).split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
  const sides = cells(divider).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "middle" : "right") : ""));
  const line = (row, name) => element("tr", {}, cells(row).map((cell, at) => element(name, { className: sides[at] ?? "" }, inline(cell))));
  const body = element("tbody", {}, rows.map((row) => line(row, "td")));
  return element("div", { className: "table" }, element("table", {}, element("thead", {}, line(head, "th")), body));
}

function codeBlock(text, language) {
  const copy = button("Copy code", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Not allowed";
    }
    setTimeout(() => (copy.textContent = "Copy code"), 1500);
  });
  const pre = element("pre", { tabIndex: 0 }, element("code", {}, highlight(text, language)));
  return element("div", { className: "code" }, element("div", {}, element("span", {}, language || "code"), copy), pre);
}

const ESCAPED = /[\\`*_{}[\]()#+\-.!~>|$]/;
const SPACE = /\s/;
const WORD = /\w/;
const isSpace = (char) => char === undefined || SPACE.test(char);

/** Where a text occurs next, from growing positions on: the whole text is searched once. */
function finder(text, mark) {
  let found = -1;
  return (from) => {
    if (found < from) found = text.indexOf(mark, from);
    if (found < 0) found = Infinity;
    return found;
  };
}

/** As `finder`, for a mark that closes: no space is before it. */
function closer(text, mark) {
  const next = finder(text, mark);
  return (from) => {
    let at = next(from);
    while (at !== Infinity && isSpace(text[at - 1])) at = next(at + 1);
    return at;
  };
}

/** For each run of back-ticks where the next one of its length begins. */
function tickRuns(text) {
  const runs = new Map();
  const last = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    runs.set(index, { length: run.length, close: Infinity });
    if (last.has(run.length)) runs.get(last.get(run.length)).close = index;
    last.set(run.length, index);
  }
  return runs;
}

/** The address of a link in brackets that begin at `open`, and their end; null if they are none. */
function target(text, open, nextQuote) {
  let at = open + 1;
  const skipSpace = () => {
    const from = at;
    while (at < text.length && SPACE.test(text[at])) at += 1;
    return at > from;
  };
  skipSpace();
  if (text[at] === "<") at += 1;
  const from = at;
  while (at < text.length && !/[\s<>)]/.test(text[at])) {
    if (text[at] === "(") {
      at += 1;
      while (at < text.length && !/[\s()]/.test(text[at])) at += 1;
      if (text[at] !== ")") return null;
    }
    at += 1;
  }
  const address = text.slice(from, at);
  if (text[at] === ">") at += 1;
  if (skipSpace() && text[at] === '"') {
    const end = nextQuote(at + 1);
    if (end === Infinity || text.slice(at, end).includes("\n")) return null;
    at = end + 1;
    skipSpace();
  }
  return address && text[at] === ")" ? { address, end: at + 1 } : null;
}

/** Text within a block → texts and elements. A mark that is not closed is text. */
function inline(text, depth = 0) {
  if (depth >= DEPTH) return text ? [text] : [];
  const runs = tickRuns(text);
  const [bracket, line, quote, star, underline] = ["]", "\n", '"', "*", "_"].map((mark) => finder(text, mark));
  const closers = { "**": closer(text, "**"), "__": closer(text, "__"), "~~": closer(text, "~~") };
  const formulaEnds = { "\\(": finder(text, "\\)"), "\\[": finder(text, "\\]"), "$$": finder(text, "$$") };
  const dollar = finder(text, "$");
  const targets = new Map(); // many brackets may be closed by one
  const targetAt = (open) => {
    if (!targets.has(open)) targets.set(open, target(text, open, quote));
    return targets.get(open);
  };
  const found = [];
  let from = 0; // the text before it is in `found`
  let at = 0;
  const put = (child, end) => {
    if (at > from) found.push(text.slice(from, at));
    found.push(child);
    from = at = end;
  };
  const within = (name, begin, close, end) => put(element(name, {}, inline(text.slice(begin, close), depth + 1)), end);
  while (at < text.length) {
    const char = text[at];
    const before = at > from ? text[at - 1] : "";
    if (char === "\\" || char === "$") {
      const mark = text.slice(at, at + 2);
      const close = formulaEnds[mark]?.(at + 2) ?? Infinity;
      if (close !== Infinity) {
        put(formula(text.slice(at + 2, close), mark !== "\\("), close + 2);
        continue;
      }
      // between single dollars on one line, if they are no prices
      const end = char === "$" && mark !== "$$" && !isSpace(text[at + 1]) ? dollar(at + 1) : Infinity;
      if (end < line(at) && !/[\s\\]/.test(text[end - 1]) && !/[\w$]/.test(text[end + 1] ?? "") && !WORD.test(before)) {
        put(formula(text.slice(at + 1, end)), end + 1);
        continue;
      }
    }
    if (char === "\\" && ESCAPED.test(text[at + 1] ?? "")) {
      put(text[at + 1], at + 2);
      continue;
    }
    if (char === "`") {
      const { length, close } = runs.get(at) ?? { length: 1, close: Infinity }; // none: an escaped one was the run's first
      if (close !== Infinity) {
        const inside = text.slice(at + length, close);
        put(element("code", {}, inside.trim() || inside), close + length);
      } else at += length;
      continue;
    }
    if (char === "[" || (char === "!" && text[at + 1] === "[")) {
      const open = text.indexOf("[", at);
      const close = bracket(open + 1);
      const found = close < line(open) && text[close + 1] === "(" ? targetAt(close + 1) : null;
      if (found) {
        const label = text.slice(open + 1, close);
        const { address, end } = found;
        put(link(address, label ? inline(label, depth + 1) : [address], text.slice(at, end)), end);
        continue;
      }
    }
    const double = text.slice(at, at + 2);
    if (closers[double] && !isSpace(text[at + 2])) {
      const close = closers[double](at + 3);
      if (close !== Infinity) {
        within(double === "~~" ? "s" : "strong", at + 2, close, close + 2);
        continue;
      }
    }
    if ((char === "*" || char === "_") && before !== char && !WORD.test(before) && text[at + 1] !== char && !isSpace(text[at + 1])) {
      const close = (char === "*" ? star : underline)(at + 1);
      const after = text[close + 1] ?? "";
      const ends = char === "*" ? after !== "*" : !WORD.test(after);
      if (close < line(at) && !isSpace(text[close - 1]) && ends) {
        within("em", at + 1, close, close + 1);
        continue;
      }
    }
    if (char === "h" && (text.startsWith("http://", at) || text.startsWith("https://", at))) {
      const begin = text.indexOf("//", at) + 2;
      let end = begin;
      while (end < text.length && !/[\s<>()]/.test(text[end])) end += 1;
      while (end > begin && /[.,;:!?'"]/.test(text[end - 1])) end -= 1;
      if (end > begin + 1) {
        const address = text.slice(at, end);
        put(link(address, [address], address), end);
        continue;
      }
    }
    at += 1;
  }
  if (from < text.length) found.push(text.slice(from));
  return found;
}

/** A link to a page or a mailbox; any other address stays text. Pictures are not loaded from elsewhere. */
function link(address, children, text) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return text;
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}
