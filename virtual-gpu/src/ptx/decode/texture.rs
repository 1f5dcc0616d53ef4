//! Textures and surfaces: `tex`, `tld4`, `txq`, `suld`, `sust`, `suq`, of objects whose 64-bit handle is in a register.

use super::super::inst::*;
use super::super::operand::Arg;
use super::super::texture::{Fetch, Outside, Query, SurfaceAccess, coordinates};
use super::{Decoder, Result, Ty};
use crate::counters::Class;
use crate::image::Geometry;

fn geometry(word: &str) -> Option<Geometry> {
    Some(match word {
        "1d" => Geometry::D1,
        "2d" => Geometry::D2,
        "3d" => Geometry::D3,
        "a1d" => Geometry::A1d,
        "a2d" => Geometry::A2d,
        _ => return None,
    })
}

impl Decoder<'_, '_, '_> {
    pub(super) fn texture(&mut self) -> Result<()> {
        match self.base {
            "tex" => self.fetch(),
            "tld4" => self.gather(),
            "txq" | "suq" => self.query(),
            _ => self.surface(),
        }
    }

    fn geometry(&mut self) -> Result<Geometry> {
        self.need(geometry, "the geometries here are 1d, 2d, 3d, a1d and a2d")
    }

    fn fetch(&mut self) -> Result<()> {
        // a texture here has one level, which is the one of any level of detail
        let more = if self.take("level") {
            1
        } else if self.take("grad") {
            2
        } else {
            self.take("base");
            0
        };
        let geometry = self.geometry()?;
        if !self.take("v4") {
            return self.err("textures give four registers here: .v4");
        }
        let (texels, coordinates) = (self.ty()?, self.ty()?);
        if !matches!(texels, Ty::F(32) | Ty::S(32) | Ty::U(32)) {
            return self.err("the type of texels is f32, s32 or u32 here");
        }
        let integer = match coordinates {
            Ty::F(32) => false,
            Ty::S(32) => true,
            _ => return self.err("coordinates are f32 or s32"),
        };
        if self.args.len() != 2 + more {
            return self.err("offsets of coordinates and comparisons of depth are not supported");
        }
        match more {
            1 => drop(self.body.src(&self.args[2], 32, !integer)?),
            2 => (2..4).try_for_each(|n| self.partials(n, geometry))?,
            _ => {}
        }
        self.fetch_of(Fetch { geometry, integer, gather: None })
    }

    /// Operand `n`: a vector of derivatives.
    fn partials(&mut self, n: usize, geometry: Geometry) -> Result<()> {
        let least = geometry.dimensions();
        match &self.args[n] {
            Arg::Vector(parts) if (least..=4).contains(&parts.len()) => {
                parts.iter().try_for_each(|part| self.body.src(part, 32, true).map(drop))
            }
            part if least == 1 => self.body.src(part, 32, true).map(drop),
            _ => self.err(format!("operand {} has {least} derivatives", n + 1)),
        }
    }

    fn gather(&mut self) -> Result<()> {
        let channel =
            self.need(|m| ["r", "g", "b", "a"].iter().position(|&c| c == m), "the channel is missing")?;
        let geometry = self.geometry()?;
        if !matches!(geometry, Geometry::D2 | Geometry::A2d) || !self.take("v4") {
            return self.err("gathers are of 2d and a2d, and give .v4");
        }
        if !matches!(self.ty()?, Ty::F(32) | Ty::S(32) | Ty::U(32)) || self.ty()? != Ty::F(32) {
            return self.err("the types are f32, s32 or u32 of texels, and f32 of coordinates");
        }
        if self.args.len() != 2 {
            return self.err("offsets of coordinates and comparisons of depth are not supported");
        }
        self.fetch_of(Fetch { geometry, integer: false, gather: Some(channel as u8) })
    }

    /// The operands that all fetches have.
    fn fetch_of(&mut self, fetch: Fetch) -> Result<()> {
        let Arg::Vector(parts) = &self.args[0] else {
            return self.err("the destination has four registers");
        };
        if parts.len() != 4 {
            return self.err("the destination has four registers");
        }
        let body = &mut *self.body;
        let rows = parts.iter().map(|part| body.dst(part, 32)).collect::<Result<Vec<_>>>()?;
        self.i.d = self.list(&rows);
        self.object(1, fetch.geometry, !fetch.integer)?;
        self.i.class = Class::LoadGlobal;
        self.i.op = Op::Fetch(fetch);
        Ok(())
    }

    fn list(&mut self, rows: &[Row]) -> Row {
        let lists = &mut self.body.f.lists;
        let at = lists.len() as Row;
        lists.extend(rows);
        at
    }

    /// Operand `n`: `[handle, coordinates]`. More coordinates than the geometry has are ignored.
    fn object(&mut self, n: usize, geometry: Geometry, float: bool) -> Result<()> {
        let Arg::Object(handle, parts) = &self.args[n] else {
            return self.err("an object and its coordinates in brackets are expected here");
        };
        let parts = match parts.as_slice() {
            [Arg::Vector(parts)] => parts.as_slice(),
            [_] => parts.as_slice(),
            _ => return self.err("samplers of their own are not supported"),
        };
        let count = coordinates(geometry);
        if parts.len() < count || parts.len() > 4 {
            return self.err(format!("{} coordinates, this geometry has {count}", parts.len()));
        }
        self.i.a = self.body.src(&Arg::Word(handle), 64, false)?;
        let mut rows = Vec::new();
        for (n, part) in parts.iter().enumerate() {
            let is_layer = n == 0 && geometry.is_layered();
            rows.push(self.body.src(part, 32, float && !is_layer)?);
        }
        self.i.c = self.list(&rows[..count]);
        Ok(())
    }

    fn query(&mut self) -> Result<()> {
        let query = self.need(Query::word, "this attribute is not supported")?;
        let of_texture = !matches!(query, Query::MemoryLayout);
        let of_surface = matches!(
            query,
            Query::Width | Query::Height | Query::Depth | Query::ArraySize | Query::MemoryLayout
        );
        let surface = self.base == "suq";
        if !(if surface { of_surface } else { of_texture }) {
            return self.err("this attribute is not supported");
        }
        self.b32()?;
        self.count(2..=2)?;
        self.dst(32)?;
        let Arg::Address(Some(handle), 0) = self.args[1] else {
            return self.err("an object in brackets is expected here");
        };
        self.i.a = self.body.src(&Arg::Word(handle), 64, false)?;
        self.i.class = Class::Int;
        self.i.op = Op::Query { query, surface };
        Ok(())
    }

    fn surface(&mut self) -> Result<()> {
        let load = self.base == "suld";
        if !self.take("b") {
            return self.err("surfaces are accessed by bytes here: .b");
        }
        let geometry = self.geometry()?;
        let hints: &[&str] = if load { &["ca", "cg", "cs", "cv"] } else { &["wb", "cg", "cs", "wt"] };
        self.take_one(hints);
        let outside = self.first(Outside::word).unwrap_or(Outside::Trap);
        let vectors = |s: &str| [("v2", 2), ("v4", 4)].into_iter().find(|v| v.0 == s).map(|v| v.1);
        let count: u32 = self.first(vectors).unwrap_or(1);
        let Ty::B(bits) = self.ty()? else { return self.err("the type is b8, b16, b32 or b64") };
        if bits * count > 128 {
            return self.err("this width does not exist");
        }
        self.count(2..=2)?;
        let args = self.args;
        let (data, object) = if load { (&args[0], 1) } else { (&args[1], 0) };
        let parts = match data {
            Arg::Vector(parts) if parts.len() == count as usize => parts.as_slice(),
            data if count == 1 && !matches!(data, Arg::Vector(_)) => std::slice::from_ref(data),
            _ => return self.err("the vector's length is not the instruction's"),
        };
        let body = &mut *self.body;
        let rows =
            parts.iter().map(|p| if load { body.dst_any(p, bits) } else { body.src_any(p, bits, false) });
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let wide = rows[0].1;
        if rows.iter().any(|row| row.1 != wide) {
            return self.err("the vector's registers have different widths");
        }
        self.object(object, geometry, false)?;
        let rows: Vec<Row> = rows.iter().map(|row| row.0).collect();
        let register = if count == 1 { rows[0] } else { self.list(&rows) };
        let (size, count) = ((bits / 8) as u8, count as u8);
        let access = SurfaceAccess { geometry, outside, size, count, wide };
        if load {
            (self.i.d, self.i.op, self.i.class) = (register, Op::SurfaceLoad(access), Class::LoadGlobal);
        } else {
            (self.i.b, self.i.op, self.i.class) = (register, Op::SurfaceStore(access), Class::StoreGlobal);
            let granule = &mut self.body.f.store_granule;
            *granule = (*granule).min(size * count);
        }
        Ok(())
    }
}
