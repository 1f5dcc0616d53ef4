//! Directives, declarations and operands. Bodies are parsed in `body`, single instructions in `decode`. Long because
//! PTX has many directives, each of which is read here once.

use std::collections::{HashMap, HashSet};

use super::inst::*;
use super::lexer::{Tok, Token, lex};
use super::lines::Lines;
use super::operand::{Arg, Imm, Name, Width};
use crate::arch::Arch;

use super::{Kernel, Module, Param, Pointer, PtxError, VarSpace, Variable};

pub(super) fn parse(text: &str, device: Arch) -> Result<Module, PtxError> {
    let toks = lex(text)?;
    let mut p = Parser { toks: &toks, pos: 0, lines: Lines::default() };
    let mut module = Unit {
        m: Module {
            functions: Vec::new(),
            variables: Vec::new(),
            kernels: Vec::new(),
            version: (0, 0),
            arch: Arch::Sm61,
            lines: Lines::default(),
        },
        names: HashMap::new(),
        kernels: HashSet::new(),
    };
    p.header(&mut module.m, device)?;
    while p.pos < p.toks.len() {
        p.top_level(&mut module)?;
    }
    module.m.lines = p.lines;
    super::link::link(module.m)
}

pub(super) struct Unit<'a> {
    pub m: Module,
    pub names: HashMap<&'a str, Name>,
    kernels: HashSet<&'a str>,
}

pub(super) struct Parser<'a, 't> {
    pub toks: &'t [Token<'a>],
    pub pos: usize,
    pub lines: Lines,
}

/// `.align 4 .b8 name[12]`
pub(super) struct Decl<'a> {
    pub name: &'a str,
    pub bytes: u64,
    pub element: u64,
    pub align: u64,
    pub unsized_array: bool,
    /// `<n>` after the name, for registers.
    pub count: Option<u32>,
    pub width: Option<Width>,
}

impl Decl<'_> {
    pub fn variable(&self, space: VarSpace, dynamic: bool) -> Variable {
        let (init, relocs) = (Vec::new(), Vec::new());
        Variable {
            name: self.name.to_owned(),
            space,
            bytes: self.bytes,
            align: self.align,
            init,
            relocs,
            dynamic,
        }
    }
}

impl<'a> Parser<'a, '_> {
    pub fn line(&self) -> u32 {
        self.toks.get(self.pos).or(self.toks.last()).map_or(1, |t| t.line)
    }

    pub fn err<T>(&self, reason: impl Into<String>) -> Result<T, PtxError> {
        Err(PtxError::new(self.line(), reason))
    }

    pub fn peek(&self) -> Option<Tok<'a>> {
        self.toks.get(self.pos).map(|t| t.tok)
    }

    pub fn next(&mut self) -> Result<Tok<'a>, PtxError> {
        match self.peek() {
            Some(t) => {
                self.pos += 1;
                Ok(t)
            }
            None => self.err("unexpected end of the text"),
        }
    }

    pub fn eat(&mut self, c: u8) -> bool {
        let hit = self.peek() == Some(Tok::Punct(c));
        self.pos += hit as usize;
        hit
    }

    pub fn eat_word(&mut self, w: &str) -> bool {
        let hit = self.peek() == Some(Tok::Word(w));
        self.pos += hit as usize;
        hit
    }

    pub fn expect(&mut self, c: u8) -> Result<(), PtxError> {
        if self.eat(c) { Ok(()) } else { self.err(format!("`{}` is expected", c as char)) }
    }

    pub fn word(&mut self) -> Result<&'a str, PtxError> {
        match self.peek() {
            Some(Tok::Word(w)) => {
                self.pos += 1;
                Ok(w)
            }
            _ => self.err("a name is expected"),
        }
    }

    pub fn int(&mut self) -> Result<u64, PtxError> {
        match self.peek() {
            Some(Tok::Int(v)) => {
                self.pos += 1;
                Ok(v)
            }
            _ => self.err("an integer is expected"),
        }
    }

    fn header(&mut self, m: &mut Module, device: Arch) -> Result<(), PtxError> {
        if !self.eat_word(".version") {
            return self.err("PTX begins with .version");
        }
        match self.next()? {
            Tok::F64(v) => {
                let tenths = (f64::from_bits(v) * 10.0).round() as u32;
                m.version = (tenths / 10, tenths % 10);
            }
            _ => return self.err(".version needs a number like 6.4"),
        }
        if m.version.0 < 1 || m.version.0 > 8 {
            return self.err(format!(".version {}.{} is not known", m.version.0, m.version.1));
        }
        if !self.eat_word(".target") {
            return self.err(".target is expected after .version");
        }
        loop {
            let t = self.word()?;
            match t.strip_prefix("sm_").map(str::parse::<u32>) {
                Some(Ok(n)) if n <= device.number() => m.arch = m.arch.max(Arch::of_target(n)),
                Some(_) => return self.err(format!(".target {t}: this device is {}", device.name())),
                None if matches!(
                    t,
                    "debug" | "texmode_independent" | "texmode_unified" | "map_f64_to_f32"
                ) => {}
                None => return self.err(format!(".target {t} is not known")),
            }
            if !self.eat(b',') {
                break;
            }
        }
        if self.eat_word(".address_size") && self.int()? != 64 {
            return self.err("only 64-bit addresses are supported");
        }
        Ok(())
    }

    fn top_level(&mut self, u: &mut Unit<'a>) -> Result<(), PtxError> {
        let line = self.line();
        let mut external = false;
        loop {
            let w = match self.next()? {
                Tok::Word(w) => w,
                Tok::Punct(b';') => return Ok(()),
                _ => {
                    self.pos -= 1;
                    return self.err("a directive is expected");
                }
            };
            match w {
                ".visible" | ".weak" | ".common" => {}
                ".extern" => external = true,
                ".entry" => return self.entry(u, line),
                ".func" => return self.func(u, line),
                ".global" | ".const" | ".shared" => return self.variable(u, w, external),
                ".file" => {
                    let number = self.int()?;
                    let path = self.next()?;
                    if let (Ok(number), Tok::Str(path)) = (u32::try_from(number), path) {
                        self.lines.file(number, path);
                    }
                    while self.eat(b',') {
                        self.int()?;
                    }
                    return Ok(());
                }
                ".section" => {
                    self.word()?;
                    self.expect(b'{')?;
                    while !self.eat(b'}') {
                        self.next()?;
                    }
                    return Ok(());
                }
                ".pragma" => return self.pragma(),
                _ => {
                    self.pos -= 1;
                    return self.err(format!("directive `{w}` is not supported"));
                }
            }
        }
    }

    pub fn pragma(&mut self) -> Result<(), PtxError> {
        while !self.eat(b';') {
            self.next()?;
        }
        Ok(())
    }

    /// Declared type, alignment, name and array size, as all variables, parameters and registers have them.
    pub fn decl(&mut self) -> Result<Decl<'a>, PtxError> {
        let mut d =
            Decl { name: "", bytes: 0, element: 0, align: 0, unsized_array: false, count: None, width: None };
        let mut vector = 1;
        let mut pointer = false;
        d.name = loop {
            let w = self.word()?;
            match w {
                ".align" => {
                    let align = self.int()?;
                    if !align.is_power_of_two() || align > 1 << 16 {
                        return self.err("an alignment is a power of two");
                    }
                    // The alignment after .ptr is that of what it points to.
                    if !pointer {
                        d.align = align;
                    }
                }
                ".ptr" => pointer = true,
                ".global" | ".const" | ".shared" | ".local" if pointer => {}
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                ".pred" => d.width = Some(Width::Pred),
                _ if w.starts_with('.') => {
                    let (bytes, width) = match &w[1..] {
                        "b8" | "u8" | "s8" => (1, Width::B16),
                        "b16" | "u16" | "s16" | "f16" => (2, Width::B16),
                        "b32" | "u32" | "s32" | "f32" | "f16x2" => (4, Width::B32),
                        "b64" | "u64" | "s64" | "f64" => (8, Width::B64),
                        _ => {
                            self.pos -= 1;
                            return self.err(format!("`{w}` is not supported in a declaration"));
                        }
                    };
                    d.element = bytes;
                    d.width = Some(width);
                }
                _ => break w,
            }
        };
        if d.width.is_none() {
            return self.err("the declaration has no type");
        }
        let mut count = 1u64;
        if self.eat(b'<') {
            d.count = u32::try_from(self.int()?).ok();
            self.expect(b'>')?;
            if d.count.is_none() {
                return self.err("too many registers");
            }
        }
        while self.eat(b'[') {
            if self.eat(b']') {
                d.unsized_array = true;
                continue;
            }
            count = match count.checked_mul(self.int()?) {
                Some(n) if n <= 1 << 32 => n,
                _ => return self.err("the array is too large"),
            };
            self.expect(b']')?;
        }
        d.bytes = if d.unsized_array { 0 } else { d.element * vector * count };
        d.align = d.align.max(d.element * vector);
        Ok(d)
    }

    /// `.texref name;` or `.surfref name;`, a variable of 8 bytes.
    fn reference(&mut self, u: &mut Unit<'a>, space: VarSpace, external: bool) -> Result<(), PtxError> {
        let name = self.word()?;
        if external || self.peek() != Some(Tok::Punct(b';')) {
            return self.err(format!(
                "`{name}`: references are not external here, no arrays, and have no initialisers"
            ));
        }
        let (element, unsized_array) = (8, false);
        let d = Decl { name, bytes: 8, element, align: 8, unsized_array, count: None, width: None };
        self.module_variable(u, d.variable(space, false), name, Name::Global)
    }

    /// Adds a variable of the module; the declaration's end follows.
    fn module_variable(
        &mut self,
        u: &mut Unit<'a>,
        v: Variable,
        name: &'a str,
        as_name: fn(u32) -> Name,
    ) -> Result<(), PtxError> {
        let id = u.m.variables.len() as u32;
        if u.names.insert(name, as_name(id)).is_some() {
            return self.err(format!("`{name}` is declared twice"));
        }
        u.m.variables.push(v);
        self.expect(b';')
    }

    fn variable(&mut self, u: &mut Unit<'a>, space: &str, external: bool) -> Result<(), PtxError> {
        for (word, reference) in [(".texref", VarSpace::Texture), (".surfref", VarSpace::Surface)] {
            if space == ".global" && self.eat_word(word) {
                return self.reference(u, reference, external);
            }
        }
        let d = self.decl()?;
        let space = match space {
            ".global" => VarSpace::Global,
            ".const" => VarSpace::Const,
            _ => VarSpace::Shared,
        };
        let dynamic = space == VarSpace::Shared && external;
        if external && !dynamic {
            return self.err(format!("`{}` is external, and there is no linker here", d.name));
        }
        let mut v = d.variable(space, dynamic);
        if self.eat(b'=') {
            if space == VarSpace::Shared {
                return self.err("shared variables have no initialisers");
            }
            self.initialiser(u, &d, &mut v)?;
            if d.unsized_array {
                v.bytes = v.init.len() as u64;
            } else if v.init.len() as u64 > v.bytes {
                return self.err("the initialiser is longer than the variable");
            }
        } else if d.unsized_array && !dynamic {
            return self.err("the array has no size");
        }
        let as_name = if space == VarSpace::Shared { Name::Shared } else { Name::Global };
        self.module_variable(u, v, d.name, as_name)
    }

    fn initialiser(&mut self, u: &Unit<'a>, d: &Decl<'a>, v: &mut Variable) -> Result<(), PtxError> {
        let bytes = d.element as usize;
        let braces = self.peek() == Some(Tok::Punct(b'{'));
        let mut depth = 0;
        loop {
            if self.eat(b'{') {
                depth += 1;
                continue;
            }
            if self.eat(b'}') {
                depth -= 1;
                if depth == 0 {
                    return Ok(());
                }
                self.eat(b',');
                continue;
            }
            let negative = self.eat(b'-');
            let value = match self.next()? {
                Tok::Int(n) => {
                    if negative {
                        n.wrapping_neg()
                    } else {
                        n
                    }
                }
                Tok::F32(b) if bytes == 4 => (b ^ (negative as u32) << 31) as u64,
                Tok::F64(b) if bytes == 8 => b ^ (negative as u64) << 63,
                Tok::Word(w) => {
                    let generic = w == "generic" && self.eat(b'(');
                    let name = if generic { self.word()? } else { w };
                    if generic {
                        self.expect(b')')?;
                    }
                    let addend = if self.eat(b'+') { self.int()? as i64 } else { 0 };
                    let pointer = match u.names.get(name) {
                        Some(&Name::Global(target)) => Pointer::Variable(target, addend),
                        Some(&Name::Function(target)) if addend == 0 => Pointer::Function(target),
                        _ => return self.err(format!("`{name}` cannot initialise a variable")),
                    };
                    if bytes != 8 {
                        return self.err("an address has 64 bits");
                    }
                    v.relocs.push((v.init.len(), pointer));
                    0
                }
                _ => return self.err("the initialiser does not fit the type"),
            };
            v.init.extend_from_slice(&value.to_le_bytes()[..bytes]);
            if !braces {
                return Ok(());
            }
            self.eat(b',');
        }
    }

    fn entry(&mut self, u: &mut Unit<'a>, line: u32) -> Result<(), PtxError> {
        let name = self.word()?;
        let mut k =
            Kernel { name: name.to_owned(), line, granule: 4, store_granule: 16, ..Kernel::default() };
        let mut names = Vec::new();
        if self.eat(b'(') {
            while !self.eat(b')') {
                if !self.eat_word(".param") {
                    return self.err("a kernel's parameters are .param");
                }
                let d = self.decl()?;
                let offset = (k.param_bytes as u64).next_multiple_of(d.align.max(1));
                if offset + d.bytes > 4096 {
                    return self.err("more than 4096 bytes of parameters");
                }
                let (bytes, align, offset) = (d.bytes as u32, d.align as u32, offset as u32);
                k.param_bytes = offset + bytes;
                k.params.push(Param { name: d.name.to_owned(), bytes, align, offset });
                names.push((d.name, Name::KernelParam(offset)));
                self.eat(b',');
            }
        }
        loop {
            if self.eat_word(".maxntid") {
                k.max_ntid = Some(self.block_dims(".maxntid")?);
            } else if self.eat_word(".reqntid") {
                k.req_ntid = Some(self.block_dims(".reqntid")?);
            } else if self.eat_word(".minnctapersm") {
                // An SM has at most 32 resident blocks; ptxas ignores a larger number.
                k.min_blocks_per_sm = Some(self.int()?.min(32) as u32);
            } else if self.eat_word(".maxnreg") {
                k.max_registers = Some(self.int()?.min(255) as u32);
            } else if self.eat_word(".pragma") {
                self.pragma()?;
            } else {
                break;
            }
        }
        // A forward declaration says nothing that the definition does not.
        if self.eat(b';') {
            return Ok(());
        }
        if !u.kernels.insert(name) {
            return self.err(format!("kernel `{name}` is defined twice"));
        }
        let f = Function {
            name: name.to_owned(),
            preds: 1,
            granule: 4,
            store_granule: 16,
            defined: true,
            ..Function::default()
        };
        let f = self.body(u, f, true, names)?;
        k.function = u.m.functions.len();
        u.m.functions.push(f);
        u.m.kernels.push(k);
        Ok(())
    }

    /// The dimensions of a block, which has 1 to 1024 threads.
    fn block_dims(&mut self, directive: &str) -> Result<[u32; 3], PtxError> {
        let mut d = [1u32; 3];
        for (i, d) in d.iter_mut().enumerate() {
            if i > 0 && !self.eat(b',') {
                break;
            }
            match self.int()? {
                n @ 1..=1024 => *d = n as u32,
                n => return self.err(format!("{directive} {n}: a block has 1 to 1024 threads")),
            }
        }
        match d.iter().product() {
            1..=1024u32 => Ok(d),
            n => self.err(format!("{directive} of {n} threads: a block has 1 to 1024")),
        }
    }

    fn func(&mut self, u: &mut Unit<'a>, line: u32) -> Result<(), PtxError> {
        let mut f = Function { preds: 1, granule: 4, store_granule: 16, ..Function::default() };
        let mut names = Vec::new();
        let mut returns = Vec::new();
        if self.eat(b'(') {
            self.formals(&mut f, &mut names, &mut returns)?;
        }
        let name = self.word()?;
        f.name = name.to_owned();
        let mut formals = Vec::new();
        if self.eat(b'(') {
            self.formals(&mut f, &mut names, &mut formals)?;
        }
        f.signature = Signature { formals, returns };
        while self.eat_word(".noreturn") {}
        let id = match u.names.get(name) {
            Some(&Name::Function(id)) => {
                let old = &u.m.functions[id as usize];
                if old.signature != f.signature {
                    return Err(PtxError::new(
                        line,
                        format!("`{name}` was declared with other parameters before"),
                    ));
                }
                id
            }
            Some(_) => return Err(PtxError::new(line, format!("`{name}` is declared twice"))),
            None => {
                let id = u.m.functions.len() as u32;
                u.names.insert(name, Name::Function(id));
                u.m.functions.push(f.clone());
                id
            }
        };
        if self.eat(b';') {
            return Ok(());
        }
        if u.m.functions[id as usize].defined {
            return self.err(format!("function `{name}` is defined twice"));
        }
        f.defined = true;
        let f = self.body(u, f, false, names)?;
        u.m.functions[id as usize] = f;
        Ok(())
    }

    pub fn formals(
        &mut self,
        f: &mut Function,
        names: &mut Vec<(&'a str, Name)>,
        out: &mut Vec<(u32, u32)>,
    ) -> Result<(), PtxError> {
        while !self.eat(b')') {
            if !self.eat_word(".param") {
                return self.err("function parameters other than .param are not supported");
            }
            let d = self.decl()?;
            let at = (f.local_bytes as u64).next_multiple_of(d.align.max(1));
            if at + d.bytes > 4096 {
                return self.err("more than 4096 bytes of parameters");
            }
            f.local_bytes = (at + d.bytes) as u32;
            out.push((at as u32, d.bytes as u32));
            names.push((d.name, Name::Local(at as u32)));
            self.eat(b',');
        }
        Ok(())
    }

    /// Operands up to the closing character, which is consumed.
    pub fn args(&mut self, close: u8) -> Result<Vec<Arg<'a>>, PtxError> {
        let mut out = Vec::new();
        if self.eat(close) {
            return Ok(out);
        }
        loop {
            out.push(self.arg()?);
            if self.eat(close) {
                return Ok(out);
            }
            self.expect(b',')?;
        }
    }

    fn arg(&mut self) -> Result<Arg<'a>, PtxError> {
        match self.next()? {
            Tok::Punct(b'{') => {
                // of plain operands: vectors of vectors would be as deep as a file demands
                let mut vector = Vec::new();
                while !self.eat(b'}') {
                    if !vector.is_empty() {
                        self.expect(b',')?;
                    }
                    if self.peek() == Some(Tok::Punct(b'{')) {
                        return self.err("a vector in a vector");
                    }
                    if self.peek() == Some(Tok::Punct(b'[')) {
                        return self.err("brackets in a vector");
                    }
                    vector.push(self.arg()?);
                }
                if self.peek() == Some(Tok::Punct(b'|')) {
                    return self.err("a predicate for memory that is not resident is not supported");
                }
                Ok(Arg::Vector(vector))
            }
            Tok::Punct(b'!') => Ok(Arg::Not(self.word()?)),
            Tok::Punct(b'[') => {
                let base = match self.peek() {
                    Some(Tok::Word(w)) => {
                        self.pos += 1;
                        Some(w)
                    }
                    _ => None,
                };
                if let Some(object) = base
                    && self.eat(b',')
                {
                    return self.object(object);
                }
                let mut offset = if base.is_none() { self.signed()? } else { 0 };
                if self.eat(b'+') || (base.is_some() && self.peek() == Some(Tok::Punct(b'-'))) {
                    offset = self.signed()?;
                }
                self.expect(b']')?;
                Ok(Arg::Address(base, offset))
            }
            Tok::Word(w) => {
                if self.eat(b'|') {
                    return Ok(Arg::Pair(w, self.word()?));
                }
                if self.eat(b'+') || self.peek() == Some(Tok::Punct(b'-')) {
                    return Ok(Arg::Offset(w, self.signed()?));
                }
                Ok(Arg::Word(w))
            }
            Tok::Punct(b'-') | Tok::Int(_) | Tok::F32(_) | Tok::F64(_) => {
                self.pos -= 1;
                let negative = self.eat(b'-');
                if negative && let Some(Tok::Word(w)) = self.peek() {
                    self.pos += 1;
                    return Ok(Arg::Negated(w));
                }
                Ok(Arg::Imm(match (self.next()?, negative) {
                    (Tok::Int(v), false) => Imm::Int(v),
                    (Tok::Int(v), true) => Imm::Int(v.wrapping_neg()),
                    (Tok::F32(v), n) => Imm::F32(v ^ (n as u32) << 31),
                    (Tok::F64(v), n) => Imm::F64(v ^ (n as u64) << 63),
                    _ => return self.err("a number is expected"),
                }))
            }
            _ => {
                self.pos -= 1;
                self.err("an operand is expected")
            }
        }
    }

    /// The coordinates of a texture or surface, up to the bracket; a vector of them has no brackets inside.
    fn object(&mut self, object: &'a str) -> Result<Arg<'a>, PtxError> {
        let mut parts = Vec::new();
        loop {
            if self.peek() == Some(Tok::Punct(b'[')) {
                return self.err("brackets in brackets");
            }
            parts.push(self.arg()?);
            if self.eat(b']') {
                return Ok(Arg::Object(object, parts));
            }
            self.expect(b',')?;
        }
    }

    fn signed(&mut self) -> Result<i64, PtxError> {
        let negative = self.eat(b'-');
        let v = self.int()? as i64;
        Ok(if negative { v.wrapping_neg() } else { v })
    }
}
