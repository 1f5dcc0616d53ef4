// Markdown as models write it → elements. Text becomes text nodes and nothing else, so that no text can become markup.

/** An element with children; strings become text. */
export function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

/** Elements for a text. Unfinished constructs, as streams have them, are shown as far as they have come. */
export function render(text) {
  const fragment = document.createDocumentFragment();
  fragment.append(...blocks(text.replaceAll("\r\n", "\n").split("\n"), 0));
  return fragment;
}

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const ROW = /^\s*\|.*\|\s*$/;
const DIVIDER = /^\s*\|(\s*:?-+:?\s*\|)+\s*$/;
const DEPTH = 8; // of lists and quotes in each other

function blocks(lines, depth) {
  const found = [];
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    const fence = line.match(FENCE);
    const heading = line.match(HEADING);
    if (!line.trim()) {
      at += 1;
    } else if (fence) {
      const [, indent, marks, info] = fence;
      const isEnd = (line) => line.trim().startsWith(marks) && !line.trim().slice(marks.length).replaceAll(marks[0], "");
      let end = at + 1;
      while (end < lines.length && !isEnd(lines[end])) end += 1;
      const body = lines.slice(at + 1, end).map((line) => line.replace(new RegExp(`^ {0,${indent.length}}`), ""));
      found.push(code(body.join("\n"), info.trim().split(/\s/)[0]));
      at = end + 1;
    } else if (heading) {
      // the page itself has the first two levels
      found.push(element(`h${Math.min(heading[1].length + 2, 6)}`, {}, ...inline(heading[2])));
      at += 1;
    } else if (RULE.test(line)) {
      found.push(element("hr"));
      at += 1;
    } else if (QUOTE.test(line) && depth < DEPTH) {
      let end = at;
      while (end < lines.length && QUOTE.test(lines[end])) end += 1;
      const inside = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
      found.push(element("blockquote", {}, ...blocks(inside, depth + 1)));
      at = end;
    } else if (ITEM.test(line) && depth < DEPTH) {
      const [list, end] = items(lines, at, depth);
      found.push(list);
      at = end;
    } else if (ROW.test(line) && DIVIDER.test(lines[at + 1] ?? "")) {
      let end = at + 2;
      while (end < lines.length && ROW.test(lines[end])) end += 1;
      found.push(table(lines[at], lines.slice(at + 2, end)));
      at = end;
    } else {
      let end = at + 1;
      while (end < lines.length && lines[end].trim() && ![FENCE, HEADING, RULE, QUOTE, ITEM].some((begin) => begin.test(lines[end]))) end += 1;
      found.push(element("p", {}, ...inline(lines.slice(at, end).join("\n"))));
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
  while (at < lines.length) {
    const item = lines[at].match(ITEM);
    if (!item || item[1].length > indent.length + 1 || item[1].length < indent.length || /\d/.test(item[2]) !== ordered) break;
    const width = item[1].length + item[2].length + 1;
    const inside = [item[4]];
    at += 1;
    // what is further in, and blank lines before it
    for (; at < lines.length; at += 1) {
      const blank = !lines[at].trim();
      const next = blank ? lines.slice(at).find((line) => line.trim()) : lines[at];
      const deeper = next !== undefined && next.search(/\S/) >= Math.min(width, indent.length + 2);
      const lazy = !blank && !ITEM.test(lines[at]) && !FENCE.test(lines[at]) && inside.at(-1).trim();
      if (!deeper && !lazy) break;
      inside.push(lines[at].slice(Math.min(width, Math.max(0, lines[at].search(/\S/)))));
    }
    const children = blocks(inside, depth + 1);
    // one line of text needs no paragraph
    const first = children[0];
    if (first?.tagName === "P") children.splice(0, 1, ...first.childNodes);
    list.append(element("li", {}, ...children));
    // items may have blank lines between them
    const next = lines.findIndex((line, index) => index >= at && line.trim());
    if (next > at && ITEM.test(lines[next])) at = next;
  }
  return [list, at];
}

function table(head, rows) {
  const cells = (row) => row.trim().slice(1, -1).split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
  const line = (row, name) => element("tr", {}, ...cells(row).map((cell) => element(name, {}, ...inline(cell))));
  const body = element("tbody", {}, ...rows.map((row) => line(row, "td")));
  return element("div", { className: "table" }, element("table", {}, element("thead", {}, line(head, "th")), body));
}

function code(text, language) {
  const copy = element("button", { type: "button" }, "Copy code");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Not allowed";
    }
    setTimeout(() => (copy.textContent = "Copy code"), 1500);
  });
  const pre = element("pre", { tabIndex: 0 }, element("code", {}, text));
  return element("div", { className: "code" }, element("div", {}, element("span", {}, language || "code"), copy), pre);
}

// Each alternative begins at a mark; what has no end is text. Lengths are bounded, as each mark without an end is looked for one.
const INLINE = new RegExp([
  String.raw`\\([\\${"`"}*_{}[\]()#+\-.!~>|])`, // 1 escaped
  String.raw`(${"`"}+)([\s\S]{0,2000}?[^${"`"}])\2(?!${"`"})`, // 2 marks, 3 code
  String.raw`!?\[([^\]\n]{0,500})\]\(\s*<?((?:[^\s()<>]|\([^\s()]*\))+)>?(?:\s+"[^"\n]*")?\s*\)`, // 4 label, 5 address
  String.raw`(\*\*|__)(?=\S)([\s\S]{0,2000}?\S)\6`, // 6 marks, 7 strong
  String.raw`~~(?=\S)([\s\S]{0,2000}?\S)~~`, // 8 struck
  String.raw`(?<![\w*])\*(?=[^\s*])([^*\n]{0,2000}[^\s*])\*(?!\*)`, // 9 emphasis
  String.raw`(?<![\w_])_(?=[^\s_])([^_\n]{0,2000}[^\s_])_(?![\w_])`, // 10 emphasis
  String.raw`(https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"])`, // 11 bare address
].join("|"));

function inline(text, depth = 0) {
  const found = [];
  let rest = text;
  while (rest) {
    const match = depth < DEPTH && rest.match(INLINE);
    if (!match) break;
    if (match.index) found.push(rest.slice(0, match.index));
    const [all, escaped, , tick, label, address, , strong, struck, star, underline, bare] = match;
    const within = (name, inside) => element(name, {}, ...inline(inside, depth + 1));
    if (escaped !== undefined) found.push(escaped);
    else if (tick !== undefined) found.push(element("code", {}, tick.trim() || tick));
    else if (address !== undefined) found.push(link(address, label ? inline(label, depth + 1) : [address], all));
    else if (strong !== undefined) found.push(within("strong", strong));
    else if (struck !== undefined) found.push(within("s", struck));
    else if (bare !== undefined) found.push(link(bare, [bare], all));
    else found.push(within("em", star ?? underline));
    rest = rest.slice(match.index + all.length);
  }
  if (rest) found.push(rest);
  return found;
}

/** A link to a page or a mailbox; any other address stays text. Pictures are not loaded from elsewhere. */
function link(address, children, text) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return text;
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}
