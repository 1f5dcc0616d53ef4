//! `mma` and `ldmatrix`.

use super::super::inst::*;
use super::super::matrix::{LoadMatrix, Mma, Shape};
use super::super::operand::{Arg, Name};
use super::{Decoder, Result, Ty};
use crate::arch::Arch;
use crate::counters::Class;

impl Decoder<'_, '_, '_> {
    pub(super) fn matrix(&mut self) -> Result<()> {
        if !self.take("sync") || !self.take("aligned") {
            return self.err(".sync.aligned is missing");
        }
        if self.base == "ldmatrix" { self.load_matrix() } else { self.product() }
    }

    fn product(&mut self) -> Result<()> {
        let is_wide = self.take("m16n8k8");
        if !is_wide && !self.take("m8n8k4") {
            return self.err("the shapes are m8n8k4 and m16n8k8");
        }
        if is_wide && self.body.target.arch < Arch::Sm75 {
            return self.err("m16n8k8 needs sm_75");
        }
        let mut by_columns = || {
            self.need(|m| ["row", "col"].iter().position(|&l| l == m), "a layout is missing").map(|l| l == 1)
        };
        let (a_by_columns, b_by_columns) = (by_columns()?, by_columns()?);
        let types = [self.ty()?, self.ty()?, self.ty()?, self.ty()?];
        let [Ty::F(d @ (16 | 32)), Ty::F(16), Ty::F(16), Ty::F(c @ (16 | 32))] = types else {
            return self.err("the types are f16 for a and b, f16 or f32 for c and d");
        };
        let fits = if is_wide { c == d && !a_by_columns && b_by_columns } else { c >= d };
        if !fits {
            return self.err("this form does not exist");
        }
        let shape = if is_wide { Shape::M16N8K8 } else { Shape::M8N8K4 { a_by_columns, b_by_columns } };
        let mma = Mma { shape, d_single: d == 32, c_single: c == 32 };
        self.count(4..=4)?;
        let [d, a, b, c] = mma.registers();
        self.i.d = self.registers(0, d, true)?;
        self.i.a = self.registers(1, a, false)?;
        self.i.b = self.registers(2, b, false)?;
        self.i.c = self.registers(3, c, false)?;
        self.i.class = Class::Tensor;
        self.i.op = Op::Mma(mma);
        Ok(())
    }

    fn load_matrix(&mut self) -> Result<()> {
        let sizes = |m: &str| ["x1", "x2", "x4"].iter().position(|&size| size == m).map(|n| 1u8 << n);
        let (true, Some(matrices)) = (self.take("m8n8"), self.first(sizes)) else {
            return self.err("the form is m8n8 with x1, x2 or x4");
        };
        let transposed = self.take("trans");
        if !self.take_one(&["shared", "shared::cta"]) {
            return self.err("matrices are loaded from .shared alone here");
        }
        if self.ty()? != Ty::B(16) {
            return self.err("the type is b16");
        }
        self.count(2..=2)?;
        self.i.d = self.registers(0, matrices.into(), true)?;
        let (row, addr_wide, imm, name) = self.body.address(&self.args[1])?;
        if name.is_some_and(|name| !matches!(name, Name::Shared(_))) {
            return self.err("the variable is not in this space");
        }
        (self.i.a, self.i.imm) = (row, imm);
        self.i.class = Class::LoadShared;
        self.i.op = Op::LoadMatrix(LoadMatrix { matrices, transposed, addr_wide });
        Ok(())
    }

    /// Operand `n`: a vector of `count` registers of 32 bits, as a list.
    fn registers(&mut self, n: usize, count: usize, written: bool) -> Result<Row> {
        let parts = match &self.args[n] {
            Arg::Vector(parts) if parts.len() == count => parts.as_slice(),
            _ => return self.err(format!("operand {} has {count} registers", n + 1)),
        };
        let body = &mut *self.body;
        let rows = parts.iter().map(|p| if written { body.dst(p, 32) } else { body.src(p, 32, true) });
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let at = body.f.lists.len() as Row;
        body.f.lists.extend(rows);
        Ok(at)
    }
}
