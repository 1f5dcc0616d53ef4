//! Function bodies: statements, local declarations, scopes and labels.

use std::collections::HashMap;

use super::flow;
use super::inst::*;
use super::lexer::Tok;
use super::lines::Place;
use super::operand::{Arg, Body, Name, Scope, Target};
use super::parser::{Parser, Unit};
use super::{Module, PtxError, VarSpace, Variable};
use crate::counters::Class;

/// How deep blocks of statements may be nested. Names and labels are looked for in each.
const MAX_SCOPES: usize = 64;

impl<'a> Parser<'a, '_> {
    pub(super) fn body(
        &mut self,
        u: &mut Unit<'a>,
        f: Function,
        entry: bool,
        params: Vec<(&'a str, Name)>,
    ) -> Result<Function, PtxError> {
        let Unit { m, names, .. } = u;
        let Module { functions, variables, arch, version, .. } = m;
        let mut b = Body::new(f, names, entry, Target { arch: *arch, version: *version });
        b.line = self.line();
        self.lines.function(b.line);
        for (name, n) in params {
            b.declare(name, n)?;
        }
        self.expect(b'{')?;
        while !b.scopes.is_empty() {
            b.line = self.line();
            self.statement(&mut b, variables, functions)?;
        }
        let mut f = b.f;
        let op = if entry { Op::Exit } else { Op::Ret };
        f.code.push(Inst::new(op, Class::Control, NONE, self.toks[self.pos - 1].line));
        f.reconverge = flow::reconvergence(&f);
        Ok(f)
    }

    fn statement(
        &mut self,
        b: &mut Body<'a, '_>,
        variables: &mut Vec<Variable>,
        functions: &[Function],
    ) -> Result<(), PtxError> {
        let mut guard = NONE;
        match self.next()? {
            Tok::Punct(b'{') => {
                if b.scopes.len() > MAX_SCOPES {
                    return self.err(format!("blocks are nested more than {MAX_SCOPES} deep"));
                }
                b.scopes.push(Scope::default());
                return Ok(());
            }
            Tok::Punct(b'}') => return close_scope(b),
            Tok::Punct(b';') => return Ok(()),
            Tok::Punct(b'@') => {
                let neg = self.eat(b'!');
                let p = self.word()?;
                guard = b.pred(&if neg { Arg::Not(p) } else { Arg::Word(p) })?;
            }
            Tok::Word(w) if w.starts_with('.') => return self.local_directive(b, variables, w),
            Tok::Word(label) if self.peek() == Some(Tok::Punct(b':')) => {
                self.pos += 1;
                if self.eat_word(".branchtargets") {
                    let mut list = vec![self.word()?];
                    while self.eat(b',') {
                        list.push(self.word()?);
                    }
                    b.scope().tables.insert(label, list);
                    return self.expect(b';');
                }
                if let Some(prototype) = self.prototype(b.module_names, functions)? {
                    b.scope().prototypes.insert(label, prototype);
                    return self.expect(b';');
                }
                let at = b.f.code.len() as u32;
                if b.scope().labels.insert(label, at).is_some() {
                    return self.err(format!("label `{label}` is defined twice"));
                }
                return Ok(());
            }
            Tok::Word(_) => self.pos -= 1,
            _ => {
                self.pos -= 1;
                return self.err("an instruction is expected");
            }
        }
        b.line = self.line();
        let opcode = self.word()?;
        if opcode == "call" || opcode == "call.uni" {
            let mut rets = Vec::new();
            if self.eat(b'(') {
                rets = self.args(b')')?;
                self.expect(b',')?;
            }
            let callee = self.word()?;
            let (mut args, mut prototype) = (Vec::new(), None);
            let mut more = self.eat(b',');
            if more && self.eat(b'(') {
                args = self.args(b')')?;
                more = self.eat(b',');
            }
            if more {
                prototype = Some(self.word()?);
            }
            self.expect(b';')?;
            return b.call(guard, &rets, (callee, prototype), &args, functions);
        }
        b.admit(opcode)?;
        let args = self.args(b';')?;
        b.instruction(guard, opcode, &args)
    }

    /// The prototype after a label, if there is one.
    fn prototype(
        &mut self,
        names: &HashMap<&'a str, Name>,
        functions: &[Function],
    ) -> Result<Option<Prototype>, PtxError> {
        let mut prototype = Prototype::default();
        if self.eat_word(".callprototype") {
            // laid out as a function's own
            let (mut layout, mut unnamed) = (Function::default(), Vec::new());
            let Signature { formals, returns } = &mut prototype.signature;
            if self.eat(b'(') {
                self.formals(&mut layout, &mut unnamed, returns)?;
            }
            self.word()?;
            if self.eat(b'(') {
                self.formals(&mut layout, &mut unnamed, formals)?;
            }
            while self.eat_word(".noreturn") {}
        } else if self.eat_word(".calltargets") {
            loop {
                let name = self.word()?;
                let Some(&Name::Function(id)) = names.get(name) else {
                    return self.err(format!("`{name}` is not a declared function"));
                };
                let signature = &functions[id as usize].signature;
                if prototype.targets.is_empty() {
                    prototype.signature = signature.clone();
                } else if prototype.signature != *signature {
                    return self.err(format!("`{name}` has other parameters than the targets before it"));
                }
                prototype.targets.push(id);
                if !self.eat(b',') {
                    break;
                }
            }
        } else {
            return Ok(None);
        }
        Ok(Some(prototype))
    }

    fn local_directive(
        &mut self,
        b: &mut Body<'a, '_>,
        variables: &mut Vec<Variable>,
        w: &str,
    ) -> Result<(), PtxError> {
        match w {
            ".reg" => {
                let mut d = self.decl()?;
                loop {
                    let Some(width) = d.width else { return self.err("the register has no type") };
                    match d.count {
                        Some(n) => b.declare_regs(d.name, n, width)?,
                        None => {
                            let row = b.new_row(width);
                            b.declare(d.name, Name::Reg(row, width))?;
                        }
                    }
                    if !self.eat(b',') {
                        return self.expect(b';');
                    }
                    d.name = self.word()?;
                    d.count = None;
                    if self.eat(b'<') {
                        d.count = u32::try_from(self.int()?).ok();
                        self.expect(b'>')?;
                    }
                }
            }
            ".local" | ".param" => {
                let d = self.decl()?;
                let at = b.alloc_local(d.bytes, d.align)?;
                b.declare(d.name, Name::Local(at))?;
                self.expect(b';')
            }
            ".extern" | ".shared" => {
                let dynamic = w == ".extern";
                if dynamic && !self.eat_word(".shared") {
                    return self.err("only shared variables may be external here");
                }
                let d = self.decl()?;
                if d.unsized_array != dynamic {
                    return self.err("an external array has no size, any other has one");
                }
                let id = variables.len() as u32;
                variables.push(d.variable(VarSpace::Shared, dynamic));
                b.declare(d.name, Name::Shared(id))?;
                self.expect(b';')
            }
            ".loc" => self.loc(),
            ".pragma" => self.pragma(),
            _ => self.err(format!("directive `{w}` is not supported here")),
        }
    }

    /// `.loc file line column`, and where the place was inlined.
    fn loc(&mut self) -> Result<(), PtxError> {
        let ptx_line = self.toks[self.pos - 1].line;
        let place = self.place()?;
        let mut callers = Vec::new();
        if let Some(Tok::InlinedAt(places)) = self.peek() {
            self.pos += 1;
            for place in places.split(',') {
                let mut numbers = place.split_whitespace().map(str::parse);
                let (Some(Ok(file)), Some(Ok(line)), Some(Ok(column)), None) =
                    (numbers.next(), numbers.next(), numbers.next(), numbers.next())
                else {
                    return Err(PtxError::new(ptx_line, "a place is a file, a line and a column"));
                };
                callers.push((file, line, column));
            }
        }
        while self.eat(b',') {
            match self.word()? {
                "function_name" => {
                    self.word()?;
                    if self.eat(b'+') {
                        self.int()?;
                    }
                }
                "inlined_at" => callers.push(self.place()?),
                _ => return self.err("function_name or inlined_at is expected"),
            }
        }
        self.lines.loc(ptx_line, place, callers);
        Ok(())
    }

    fn place(&mut self) -> Result<Place, PtxError> {
        let mut number = || self.int().map(|n| u32::try_from(n).unwrap_or(0));
        Ok((number()?, number()?, number()?))
    }
}

fn close_scope(b: &mut Body<'_, '_>) -> Result<(), PtxError> {
    let Some(s) = b.scopes.pop() else { return Ok(()) };
    for (at, table, line) in s.pending_tables {
        let Some(list) = s.tables.get(table) else {
            match b.scopes.last_mut() {
                Some(parent) => {
                    parent.pending_tables.push((at, table, line));
                    continue;
                }
                None => return Err(PtxError::new(line, format!("branch table `{table}` is not defined"))),
            }
        };
        let start = b.f.lists.len();
        b.f.code[at].b = start as u32;
        b.f.code[at].imm = list.len() as i64;
        for (n, label) in list.iter().enumerate() {
            let Some(&target) = s.labels.get(label) else {
                return Err(PtxError::new(line, format!("label `{label}` is not defined")));
            };
            debug_assert_eq!(b.f.lists.len(), start + n);
            b.f.lists.push(target);
        }
    }
    for (at, label, line) in s.pending {
        match (s.labels.get(label), b.scopes.last_mut()) {
            (Some(&target), _) => b.f.code[at].imm = target as i64,
            (None, Some(parent)) => parent.pending.push((at, label, line)),
            (None, None) => return Err(PtxError::new(line, format!("label `{label}` is not defined"))),
        }
    }
    Ok(())
}
