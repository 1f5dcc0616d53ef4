// LaTeX as models write it → MathML. A command that is not known is shown as its source, and text is never markup.
//
// The time is linear in the formula's length: every token is taken once, and nesting beyond DEPTH is shown flat
// (server/tests/math.mjs).

const MATHML = "http://www.w3.org/1998/Math/MathML";
const DEPTH = 32;
const TOKEN = /\\(?:[a-zA-Z]+|[^])|\s+|[^]/gu;

/** The `math` element of a formula's source, without the marks around it. */
export function formula(source, isBlock = false) {
  const parser = new Parser(source);
  return node("math", isBlock ? { display: "block", alttext: source } : { alttext: source }, ...parser.all());
}

let isPlain = null; // whether the font has no tables for mathematics

/** Scales marks that are to be as large as what they enclose, where the browser's fonts can't make them so. */
export function stretch(within) {
  if (isPlain === null) {
    const mark = fence("(");
    const math = node("math", {}, node("mrow", {}, mark, node("mspace", { height: "5em" })));
    document.body.append(math);
    isPlain = mark.getBoundingClientRect().height < 0.8 * math.getBoundingClientRect().height;
    math.remove();
    document.documentElement.classList.toggle("plain-math", isPlain);
  }
  if (!isPlain) return;
  const size = (box) => box.getBoundingClientRect();
  const marks = [...within.querySelectorAll("mo[stretchy=true]")].filter(({ style }) => !style.transform);
  // all is measured before anything is changed
  const scales = marks.map((mark) => {
    const [own, whole] = [size(mark), size(mark.parentNode)];
    if (!own.width || !own.height) return "";
    if (!mark.hasAttribute("fence")) return `scaleX(${Math.max(1, whole.width / own.width)})`;
    const toCentre = (whole.top + whole.bottom - own.top - own.bottom) / 2;
    return `translateY(${toCentre}px) scaleY(${Math.max(1, whole.height / own.height)})`;
  });
  marks.forEach((mark, at) => (mark.style.transform = scales[at]));
}

function node(name, attributes = {}, ...children) {
  const made = document.createElementNS(MATHML, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const one = (nodes) => (nodes.length === 1 ? nodes[0] : node("mrow", {}, ...nodes));
const space = (width) => node("mspace", { width });
const words = (text) => node("mtext", {}, text.replaceAll(/\s/g, "\u00a0")); // other spaces collapse at the ends
const operator = (text, attributes) => node("mo", attributes, text);
const fence = (text) => operator(text, { stretchy: "true", fence: "true" });
/** Pairs of a name and its sign. */
const signs = (text) => new Map(text.trim().split(/\s+/).map((word, at, all) => [`\\${word}`, all[at + 1]]).filter((_, at) => at % 2 === 0));
const names = (text) => new Set(text.split(" ").map((name) => `\\${name}`));

const LETTERS = signs(`
  alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ mu μ nu ν xi ξ
  omicron ο pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω
  Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω
  infty ∞ partial ∂ nabla ∇ hbar ℏ ell ℓ Re ℜ Im ℑ aleph ℵ wp ℘ imath ı jmath ȷ emptyset ∅ varnothing ∅ angle ∠ triangle △ square □
  blacksquare ■ degree ° prime ′ top ⊤ bot ⊥ checkmark ✓ ldots … dots … dotsc … cdots ⋯ dotsb ⋯ vdots ⋮ ddots ⋱
  % % # # & & $ $ _ _`);
const UPRIGHT = /[Α-Ω∞∇∅ℜℑ%#&$_…⋯⋮⋱°]/u;
const OPERATORS = signs(`
  pm ± mp ∓ times × div ÷ cdot ⋅ ast ∗ star ⋆ circ ∘ bullet ∙ oplus ⊕ ominus ⊖ otimes ⊗ oslash ⊘ odot ⊙ dagger † ddagger ‡
  cap ∩ cup ∪ uplus ⊎ sqcap ⊓ sqcup ⊔ vee ∨ lor ∨ wedge ∧ land ∧ setminus ∖ wr ≀
  le ≤ leq ≤ ge ≥ geq ≥ leqslant ⩽ geqslant ⩾ ne ≠ neq ≠ ll ≪ gg ≫ equiv ≡ sim ∼ simeq ≃ approx ≈ cong ≅ propto ∝ asymp ≍ doteq ≐
  prec ≺ succ ≻ preceq ⪯ succeq ⪰ subset ⊂ supset ⊃ subseteq ⊆ supseteq ⊇ subsetneq ⊊ supsetneq ⊋ in ∈ ni ∋ notin ∉
  vdash ⊢ dashv ⊣ models ⊨ perp ⊥ parallel ∥ nparallel ∦ mid ∣ nmid ∤
  to → rightarrow → gets ← leftarrow ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐ Leftrightarrow ⇔ implies ⟹ impliedby ⟸ iff ⟺
  longrightarrow ⟶ longleftarrow ⟵ Longrightarrow ⟹ Longleftarrow ⟸ mapsto ↦ longmapsto ⟼ uparrow ↑ downarrow ↓ updownarrow ↕
  nearrow ↗ searrow ↘ swarrow ↙ nwarrow ↖ rightharpoonup ⇀ rightleftharpoons ⇌ hookrightarrow ↪ leadsto ⇝
  forall ∀ exists ∃ nexists ∄ neg ¬ lnot ¬ therefore ∴ because ∵ colon :`);
const DELIMITERS = signs(`
  { { } } | ‖ lbrace { rbrace } lbrack [ rbrack ] langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉
  vert | lvert | rvert | Vert ‖ lVert ‖ rVert ‖ backslash \\`);
const SUMS = signs("sum ∑ prod ∏ coprod ∐ bigcup ⋃ bigcap ⋂ bigoplus ⨁ bigotimes ⨂ bigvee ⋁ bigwedge ⋀ bigsqcup ⨆");
const INTEGRALS = signs("int ∫ iint ∬ iiint ∭ oint ∮");
const FUNCTIONS = names("sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan log ln lg exp arg deg dim ker hom");
const LIMITS = names("lim limsup liminf max min sup inf det gcd Pr argmax argmin");
const BRACES = signs("overbrace ⏞ underbrace ⏟");
const OVER = signs("hat ^ widehat ^ check ˇ bar ¯ overline ¯ vec → overrightarrow → overleftarrow ← dot ˙ ddot ¨ tilde ~ widetilde ~ acute ´ grave `");
const STRETCHED = names("widehat overline overrightarrow overleftarrow widetilde overbrace");
const SPACES = new Map([["\\,", "0.167em"], ["\\:", "0.222em"], ["\\>", "0.222em"], ["\\;", "0.278em"], ["\\!", "-0.167em"], ["\\ ", "0.3em"], ["~", "0.3em"], ["\\quad", "1em"], ["\\qquad", "2em"]]);
const SIZES = new Map(["big", "Big", "bigg", "Bigg"].flatMap((name, at) => ["", "l", "r", "m"].map((side) => [`\\${name}${side}`, `${1.2 + 0.6 * at}em`])));
const TEXTS = names("text textrm textbf textit textsf texttt textnormal mbox hbox");
const FONTS = new Map([["\\mathrm", "rm"], ["\\mathbf", "bf"], ["\\mathbb", "bb"], ["\\mathcal", "cal"], ["\\mathscr", "cal"], ["\\mathfrak", "frak"], ["\\mathsf", "sf"], ["\\mathtt", "tt"], ["\\mathit", null], ["\\mathnormal", null]]);
const IGNORED = names("displaystyle textstyle scriptstyle scriptscriptstyle hline nonumber notag limits nolimits relax left. right.");
/** Marks around a table, and how its cells stand. */
const TABLES = {
  matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"], vmatrix: ["|", "|"], Vmatrix: ["‖", "‖"], smallmatrix: ["", ""],
  cases: ["{", "", "left"], array: ["", ""], aligned: ["", "", "pairs"], align: ["", "", "pairs"], split: ["", "", "pairs"],
  alignat: ["", "", "pairs"], alignedat: ["", "", "pairs"], eqnarray: ["", "", "pairs"], gathered: ["", "", "lines"], gather: ["", "", "lines"], equation: ["", "", "lines"], multline: ["", "", "lines"],
};
const WITH_COLUMNS = new Set(["array", "alignat", "alignedat"]);

/** Where the letters A, a and 0 of a font begin, and the letters that Unicode has elsewhere. */
const ALPHABETS = {
  bf: [0x1d400, 0x1d41a, 0x1d7ce, ""],
  bb: [0x1d538, 0x1d552, 0x1d7d8, "Cℂ Hℍ Nℕ Pℙ Qℚ Rℝ Zℤ"],
  cal: [0x1d49c, 0x1d4b6, 0, "Bℬ Eℰ Fℱ Hℋ Iℐ Lℒ Mℳ Rℛ eℯ gℊ oℴ"],
  frak: [0x1d504, 0x1d51e, 0, "Cℭ Hℌ Iℑ Rℜ Zℨ"],
  sf: [0x1d5a0, 0x1d5ba, 0x1d7e2, ""],
  tt: [0x1d670, 0x1d68a, 0x1d7f6, ""],
};

function inFont(char, font) {
  const [upper, lower, digit, elsewhere] = ALPHABETS[font] ?? [0, 0, 0, ""];
  const found = elsewhere.indexOf(char);
  if (found >= 0) return elsewhere[found + 1];
  const [begin, from] = /[A-Z]/.test(char) ? [upper, "A"] : /[a-z]/.test(char) ? [lower, "a"] : [digit, "0"];
  return begin ? String.fromCodePoint(begin + char.charCodeAt(0) - from.charCodeAt(0)) : char;
}

/** What a command with arguments becomes. */
const COMMANDS = {
  frac: (parser) => node("mfrac", {}, parser.argument(), parser.argument()),
  dfrac: (parser) => node("mstyle", { displaystyle: "true" }, COMMANDS.frac(parser)),
  tfrac: (parser) => node("mstyle", { displaystyle: "false" }, COMMANDS.frac(parser)),
  cfrac: (parser) => COMMANDS.dfrac(parser),
  binom: (parser) => node("mrow", {}, fence("("), node("mfrac", { linethickness: "0" }, parser.argument(), parser.argument()), fence(")")),
  sqrt: (parser) => {
    const index = parser.option();
    return index ? node("mroot", {}, parser.argument(), index) : node("msqrt", {}, parser.argument());
  },
  underline: (parser) => node("munder", {}, parser.argument(), operator("_", { stretchy: "true" })),
  overset: (parser) => {
    const over = parser.argument();
    return node("mover", {}, parser.argument(), over);
  },
  stackrel: (parser) => COMMANDS.overset(parser),
  underset: (parser) => {
    const under = parser.argument();
    return node("munder", {}, parser.argument(), under);
  },
  xrightarrow: (parser) => node("mover", {}, operator("→", { stretchy: "true" }), parser.argument()),
  xleftarrow: (parser) => node("mover", {}, operator("←", { stretchy: "true" }), parser.argument()),
  operatorname: (parser) => {
    if (parser.peek() === "*") parser.at += 1;
    return parser.name(parser.raw());
  },
  boldsymbol: (parser) => node("mrow", { class: "bold" }, parser.argument()),
  bm: (parser) => COMMANDS.boldsymbol(parser),
  boxed: (parser) => node("mrow", { class: "boxed" }, parser.argument()),
  phantom: (parser) => node("mphantom", {}, parser.argument()),
  tag: (parser) => node("mrow", {}, space("2em"), words(`(${parser.raw()})`)),
  pmod: (parser) => node("mrow", {}, space("0.6em"), operator("(", { stretchy: "false" }), words("mod "), parser.argument(), operator(")", { stretchy: "false" })),
  bmod: () => operator("mod"),
  mod: () => node("mrow", {}, space("0.6em"), words("mod ")),
  not: (parser) => {
    const made = parser.argument();
    if (made.childNodes.length === 1) made.append("\u0338");
    return made;
  },
  substack: (parser) => {
    if (parser.peek() !== "{") return parser.argument();
    parser.at += 1;
    const table = grid(parser.rows("}"), "lines");
    parser.skip("}");
    return table;
  },
  left: (parser) => parser.fenced(),
  begin: (parser) => parser.table(),
};

function grid(rows, cells) {
  const row = (cells) => node("mtr", {}, ...cells.map((nodes) => node("mtd", {}, ...nodes)));
  const isLines = cells === "pairs" || cells === "lines";
  return node("mtable", { ...(cells && { class: cells }), ...(isLines && { displaystyle: "true" }) }, ...rows.map(row));
}

class Parser {
  constructor(source) {
    this.tokens = source.match(TOKEN) ?? [];
    this.at = 0;
    this.depth = 0;
    this.font = null;
  }

  /** The next token that is no space. */
  peek() {
    while (/^\s/.test(this.tokens[this.at] ?? "")) this.at += 1;
    return this.tokens[this.at];
  }

  skip(token) {
    if (this.peek() === token) this.at += 1;
  }

  /** The nodes of the whole formula. */
  all() {
    const rows = this.rows(undefined);
    if (rows.length === 1 && rows[0].length === 1) return rows[0][0];
    return [grid(rows, rows.some(({ length }) => length > 1) ? "pairs" : "lines")];
  }

  /** Rows of cells of nodes up to a token, which is not taken. */
  rows(end) {
    const ends = new Set(["&", "\\\\", "\\cr", end]);
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(this.row(ends));
      const token = this.peek();
      if (token === undefined || token === end) break;
      this.at += 1;
      if (token === "&") continue;
      // the distance to the next line, as in \\[2pt]
      const close = this.tokens[this.at] === "[" ? this.tokens.slice(this.at, this.at + 12).indexOf("]") : -1;
      if (close > 0) this.at += close + 1;
      rows.push([]);
    }
    const last = rows.at(-1);
    if (rows.length > 1 && last.length === 1 && !last[0].length) rows.pop();
    return rows;
  }

  row(ends) {
    const found = [];
    for (let token = this.peek(); token !== undefined && !ends.has(token); token = this.peek()) found.push(this.scripted());
    return found;
  }

  /** An atom with what stands above and below it. */
  scripted() {
    const token = this.peek();
    const isNamed = token === "\\operatorname" && this.tokens[this.at + 1] === "*";
    let isBeyond = isNamed || SUMS.has(token) || LIMITS.has(token) || BRACES.has(token);
    const base = /^\d/.test(token) ? this.number() : this.atom();
    let [under, over, primes] = [null, null, ""];
    for (;;) {
      const mark = this.peek();
      if (mark === "\\limits" || mark === "\\nolimits") {
        isBeyond = mark === "\\limits";
        if (isBeyond && base.tagName === "mo") base.setAttribute("movablelimits", "false");
      } else if (mark === "'" && !over) primes += "′";
      else if (mark !== "^" && mark !== "_" || (mark === "^" ? over : under)) break;
      this.at += 1;
      if (mark === "^") over = this.argument();
      else if (mark === "_") under = this.argument();
    }
    if (primes) over = one([operator(primes), ...(over ? [over] : [])]);
    if (under && over) return node(isBeyond ? "munderover" : "msubsup", {}, base, under, over);
    if (under) return node(isBeyond ? "munder" : "msub", {}, base, under);
    if (over) return node(isBeyond ? "mover" : "msup", {}, base, over);
    return base;
  }

  number() {
    let digits = "";
    const isNext = () => {
      const [token = "", next = ""] = [this.tokens[this.at], this.tokens[this.at + 1]];
      return /^\d/.test(token) || (token === "." && /^\d/.test(next));
    };
    while (isNext()) {
      digits += this.tokens[this.at];
      this.at += 1;
    }
    return node("mn", {}, [...digits].map((digit) => inFont(digit, this.font)).join(""));
  }

  /** One node: a group, or the next atom. */
  argument() {
    const token = this.peek();
    if (token === undefined || ["^", "_", "'", "&", "}", "\\\\", "\\end", "\\right"].includes(token)) return node("mrow");
    return this.atom();
  }

  /** A node in square brackets; null without them. */
  option() {
    if (this.peek() !== "[") return null;
    this.at += 1;
    const nodes = this.row(new Set(["]", "}"]));
    this.skip("]");
    return one(nodes);
  }

  /** The source of a group, or of one token. */
  raw() {
    let text = "";
    if (this.peek() !== "{") {
      text = this.tokens[this.at] ?? "";
      this.at += 1;
      return text;
    }
    for (let open = 0; this.at < this.tokens.length; ) {
      const token = this.tokens[this.at];
      this.at += 1;
      open += token === "{" ? 1 : token === "}" ? -1 : 0;
      if (open === 0) break;
      if (token !== "{" && token !== "}") text += /^\\[^a-zA-Z]/.test(token) ? token.slice(1) : token;
    }
    return text;
  }

  atom() {
    const token = this.peek();
    // a script without a base
    if (token === "^" || token === "_" || token === "'") return node("mrow");
    this.at += 1;
    if (this.depth >= DEPTH) return words(token);
    this.depth += 1;
    const made = token === "{" ? this.group() : token.length > 1 && token[0] === "\\" ? this.command(token) : this.character(token);
    this.depth -= 1;
    return made;
  }

  group() {
    const nodes = this.row(new Set(["}"]));
    this.skip("}");
    return one(nodes);
  }

  character(token) {
    if (/^[a-zA-Z]/.test(token)) return this.letter(token);
    if (/^\d/.test(token)) return node("mn", {}, inFont(token, this.font));
    if (token === "-") return operator("−");
    if (token === "*") return operator("∗");
    if (token === "|") return operator("|", { stretchy: "false", lspace: "0", rspace: "0" });
    if (/^[()[\]]/.test(token)) return operator(token, { stretchy: "false" });
    if (token === "~") return space(SPACES.get(token));
    if (/^[+=<>/,;:!?.]/.test(token)) return operator(token);
    return /^\p{L}/u.test(token) ? node("mi", {}, token) : words(token);
  }

  letter(letter) {
    return node("mi", this.font === "rm" ? { mathvariant: "normal" } : {}, inFont(letter, this.font));
  }

  name(text) {
    return operator(text, { lspace: "0.1em", rspace: this.peek() === "(" ? "0" : "0.167em", movablelimits: "true" });
  }

  command(token) {
    const name = token.slice(1);
    if (LETTERS.has(token)) return node("mi", UPRIGHT.test(LETTERS.get(token)) ? { mathvariant: "normal" } : {}, LETTERS.get(token));
    if (OPERATORS.has(token)) return operator(OPERATORS.get(token));
    if (DELIMITERS.has(token)) return operator(DELIMITERS.get(token), { stretchy: "false" });
    if (SUMS.has(token)) return operator(SUMS.get(token), { class: "sum", movablelimits: "true" });
    if (INTEGRALS.has(token)) return operator(INTEGRALS.get(token), { class: "sum" });
    if (FUNCTIONS.has(token) || LIMITS.has(token)) return this.name(name.replace(/^(lim|arg)(?=...)/, "$1\u2009"));
    if (SPACES.has(token)) return space(SPACES.get(token));
    if (SIZES.has(token)) return operator(this.delimiter(), { stretchy: "true", minsize: SIZES.get(token), maxsize: SIZES.get(token) });
    if (TEXTS.has(token)) return words(this.raw());
    if (IGNORED.has(token)) return node("mrow");
    if (BRACES.has(token)) return node(name === "overbrace" ? "mover" : "munder", {}, this.argument(), operator(BRACES.get(token), { stretchy: "true" }));
    if (OVER.has(token)) return node("mover", { accent: "true" }, this.argument(), operator(OVER.get(token), { stretchy: String(STRETCHED.has(token)) }));
    if (FONTS.has(token)) {
      const before = this.font;
      this.font = FONTS.get(token);
      const made = this.argument();
      this.font = before;
      return made;
    }
    return Object.hasOwn(COMMANDS, name) ? COMMANDS[name](this) : words(token);
  }

  delimiter() {
    const token = this.peek();
    if (token === undefined) return "";
    this.at += 1;
    return { ".": "", "<": "⟨", ">": "⟩" }[token] ?? DELIMITERS.get(token) ?? OPERATORS.get(token) ?? token;
  }

  /** From \left's mark to \right's; between them \middle's. */
  fenced() {
    const marked = () => {
      const mark = this.delimiter();
      return mark ? [fence(mark)] : [];
    };
    const nodes = marked();
    const ends = new Set(["\\middle", "\\right"]);
    for (;;) {
      nodes.push(...this.row(ends));
      const token = this.peek();
      if (token === undefined) break;
      this.at += 1;
      nodes.push(...marked());
      if (token === "\\right") break;
    }
    return node("mrow", {}, ...nodes);
  }

  table() {
    const name = this.raw().trim();
    const plain = name.replace("*", "");
    if (!Object.hasOwn(TABLES, plain)) return words(`\\begin{${name}}`);
    if (WITH_COLUMNS.has(plain)) this.raw();
    const [open, close, cells] = TABLES[plain];
    const made = grid(this.rows("\\end"), cells);
    if (this.peek() === "\\end") {
      this.at += 1;
      this.raw();
    }
    if (!open && !close) return made;
    return node("mrow", {}, fence(open), made, ...(close ? [fence(close)] : []));
  }
}
