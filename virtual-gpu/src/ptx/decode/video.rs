//! Video instructions: `vadd`, `vadd2`, `vadd4` and their like.

use super::super::inst::*;
use super::super::operand::Arg;
use super::super::video::{Relation, Second, Selectors, Video, VideoOp, WHOLE};
use super::{Decoder, Result, Ty};
use crate::counters::Class;

/// The operation that an opcode without its number of lanes names.
fn operation(name: &str, lanes: u8) -> Option<VideoOp> {
    Some(match name {
        "vadd" => VideoOp::Add,
        "vsub" => VideoOp::Sub,
        "vabsdiff" => VideoOp::AbsDiff,
        "vmin" => VideoOp::Min,
        "vmax" => VideoOp::Max,
        // the comparison is read later
        "vset" => VideoOp::Set(Relation::Eq),
        "vavrg" if lanes > 1 => VideoOp::Avrg,
        "vshl" if lanes == 1 => VideoOp::Shl { clamp: false },
        "vshr" if lanes == 1 => VideoOp::Shr { clamp: false },
        "vmad" if lanes == 1 => VideoOp::Mad,
        _ => return None,
    })
}

/// The digits of a selector, the lowest lane's first, each below `below`.
fn digits(selector: &str, lanes: u8, below: u32) -> Option<Vec<u32>> {
    let digits = selector.strip_prefix(if lanes == 2 { 'h' } else { 'b' })?;
    digits.chars().rev().map(|c| c.to_digit(10).filter(|&d| d < below)).collect()
}

/// A selector of a lane's source, as in [`Selectors`].
fn source(selector: &str, lanes: u8, default: u16) -> Option<u16> {
    if selector.is_empty() {
        return Some(default);
    }
    if lanes > 1 {
        let digits = digits(selector, lanes, 2 * u32::from(lanes))?;
        let whole = digits.len() == usize::from(lanes);
        return whole.then(|| digits.iter().rev().fold(0, |all, &d| all << 4 | d as u16));
    }
    ["b0", "b1", "b2", "b3", "h0", "h1"].iter().position(|s| *s == selector).map(|n| n as u16)
}

/// A mask of the destination's lanes: `.h10`, `.b320`.
fn mask(selector: &str, lanes: u8) -> Option<u8> {
    let digits = digits(selector, lanes, u32::from(lanes))?;
    let ascending = digits.is_sorted_by(|a, b| a < b) && !digits.is_empty();
    ascending.then(|| digits.iter().fold(0, |all, &d| all | 1 << d))
}

impl<'a> Decoder<'a, '_, '_> {
    pub(super) fn video(&mut self) -> Result<()> {
        let (name, lanes) = match self.base.as_bytes().last() {
            Some(b'2') => (&self.base[..self.base.len() - 1], 2),
            Some(b'4') => (&self.base[..self.base.len() - 1], 4),
            _ => (self.base, 1),
        };
        let Some(mut op) = operation(name, lanes) else {
            return self.err("unknown or unsupported instruction");
        };
        let mut d_signed = false;
        if let VideoOp::Set(relation) = &mut op {
            *relation = self.need(Relation::word, "the comparison is missing")?;
        } else {
            d_signed = self.video_sign()?;
        }
        let (a_signed, b_signed) = (self.video_sign()?, self.video_sign()?);
        if let VideoOp::Shl { clamp } | VideoOp::Shr { clamp } = &mut op {
            *clamp = self.take("clamp");
            if b_signed || (!*clamp && !self.take("wrap")) {
                return self.err("the form is .u32 for the shift, and .clamp or .wrap");
            }
        }
        let sat = !matches!(op, VideoOp::Set(_)) && self.take("sat");
        let plus_one = op == VideoOp::Mad && self.take("po");
        let scale = match op {
            VideoOp::Mad if self.take("shr7") => 7,
            VideoOp::Mad if self.take("shr15") => 15,
            _ => 0,
        };
        let second = match op {
            VideoOp::Mad => Second::Merge,
            _ if self.take("add") => Second::Add,
            _ if lanes == 1 && self.take("min") => Second::Min,
            _ if lanes == 1 && self.take("max") => Second::Max,
            _ => Second::Merge,
        };
        if lanes > 1 && sat && second == Second::Add {
            return self.err(".sat and .add exclude each other");
        }
        self.count(3..=4)?;
        let (d, d_select, _) = self.selected(0);
        let (a, a_select, a_negated) = self.selected(1);
        let (b, b_select, b_negated) = self.selected(2);
        let (c, c_select, c_negated) = match self.args.len() {
            4 => self.selected(3),
            _ => (Arg::Word("_"), "", false),
        };
        let any_negated = a_negated || b_negated || c_negated;
        if any_negated && (op != VideoOp::Mad || plus_one) {
            return self.err("only vmad without .po has negated operands");
        }
        if !c_select.is_empty() || (op == VideoOp::Mad && !d_select.is_empty()) {
            return self.err("this operand has no selector");
        }
        let (defaults, default_d) = match lanes {
            1 => ([u16::from(WHOLE); 2], WHOLE),
            2 => ([0x10, 0x32], 3),
            _ => ([0x3210, 0x7654], 15),
        };
        let into = match d_select {
            "" => Some(default_d),
            _ if lanes > 1 => mask(d_select, lanes),
            _ => source(d_select, 1, 0).map(|n| n as u8),
        };
        let (Some(from_a), Some(from_b), Some(into)) =
            (source(a_select, lanes, defaults[0]), source(b_select, lanes, defaults[1]), into)
        else {
            return self.err("this selector does not exist here");
        };
        // a word of its own needs no c; what is merged or added to does
        let needs_c = lanes > 1 || op == VideoOp::Mad || second != Second::Merge || into != WHOLE;
        if needs_c != (self.args.len() == 4) {
            return self.err(if needs_c { "operand c is missing" } else { "operand c has no use" });
        }
        if lanes == 1 && second != Second::Merge && into != WHOLE {
            return self.err("a second operation and a destination's selector exclude each other");
        }
        self.i.class = if lanes == 1 { Class::Video } else { Class::VideoSimd };
        self.i.d = self.body.dst(&d, 32)?;
        self.i.a = self.body.src(&a, 32, false)?;
        self.i.b = self.body.src(&b, 32, false)?;
        self.i.c = if needs_c { self.body.src(&c, 32, false)? } else { self.i.a };
        self.i.op = Op::Video(Video { op, lanes, d_signed, a_signed, b_signed, sat, second });
        self.i.imm = Selectors {
            a: from_a,
            b: from_b,
            d: into,
            negate_product: a_negated != b_negated,
            negate_c: c_negated,
            plus_one,
            scale,
        }
        .pack();
        Ok(())
    }

    /// Consumes `.u32` or `.s32`; whether it is signed.
    fn video_sign(&mut self) -> Result<bool> {
        match self.ty()? {
            Ty::U(32) => Ok(false),
            Ty::S(32) => Ok(true),
            _ => self.err("the types are u32 and s32"),
        }
    }

    /// Operand `n`, its selector, and whether it is negated.
    fn selected(&self, n: usize) -> (Arg<'a>, &'a str, bool) {
        let (word, negated) = match &self.args[n] {
            Arg::Word(word) => (*word, false),
            Arg::Negated(word) => (*word, true),
            other => return (other.clone(), "", false),
        };
        match word.rsplit_once('.') {
            Some((name, selector)) if selector.starts_with(['b', 'h']) => {
                (Arg::Word(name), selector, negated)
            }
            _ => (Arg::Word(word), "", negated),
        }
    }
}
