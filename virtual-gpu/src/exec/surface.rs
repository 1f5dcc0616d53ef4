//! Surfaces: loads and stores by bytes, which are those of global memory once the address is known.

use super::block::{Block, Check};
use super::global::{self, count_global};
use super::lane::{What, set};
use super::regs::{LANES, lanes};
use super::shape::Count;
use super::texture::{object, same_geometry, same_object, wrong_object};
use super::warp::Warp;
use crate::finding::FindingKind;
use crate::image::Image;
use crate::ptx::inst::{Access, Function, Inst, Order, Row, Space};
use crate::ptx::texture::{Outside, SurfaceAccess, coordinates};
use crate::texture::Object;

/// Byte of the row, row, and slice or layer.
type Coordinates = [i64; 3];

/// A lane's coordinates; the layer is the last.
fn coordinates_of(w: &Warp, rows: &[Row], a: SurfaceAccess, lane: usize) -> Coordinates {
    let mut values = rows.iter().map(|&row| w.regs.row32(row)[lane]);
    let layer = a.geometry.is_layered().then(|| values.next().map_or(0, i64::from));
    let mut at = [0; 3];
    at.iter_mut().zip(values).for_each(|(at, value)| *at = i64::from(value as i32));
    at[2] = layer.unwrap_or(at[2]);
    at
}

/// Whether an access of `bytes` is inside the surface.
fn is_inside(image: &Image, [x, y, z]: Coordinates, bytes: i64) -> bool {
    let [_, height, depth] = image.counts().map(|n| n as i64);
    x >= 0 && x + bytes <= image.row_bytes() as i64 && (0..height).contains(&y) && (0..depth).contains(&z)
}

/// The nearest place of an access inside the surface; `None` where a row is shorter than the access.
fn nearest(image: &Image, [x, y, z]: Coordinates, bytes: i64) -> Option<Coordinates> {
    let [_, height, depth] = image.counts().map(|n| n as i64);
    let last = image.row_bytes() as i64 - bytes;
    let last = (last >= 0).then(|| last - last % bytes)?;
    Some([x.clamp(0, last), y.clamp(0, height - 1), z.clamp(0, depth - 1)])
}

/// `suld` (`load`) and `sust`.
pub(super) fn access(
    b: &mut Block<'_>,
    w: &mut Warp,
    f: &Function,
    (inst, number): (&Inst, usize),
    (a, load): (SurfaceAccess, bool),
    mask: u32,
) -> Check {
    let bytes = i64::from(a.size * a.count);
    let verb = if load { "surface load" } else { "surface store" };
    let what = What { verb, bytes: bytes as u32, line: inst.line, loose: false };
    let coordinate_rows = &f.lists[inst.c as usize..][..coordinates(a.geometry)];
    let handles = *w.regs.row64(inst.a);
    let mut at = [0; LANES];
    let mut inside = 0;
    let mut rest = mask;
    while rest != 0 {
        let (handle, same) = same_object(&handles, rest);
        rest &= !same;
        let named = (handle, same);
        let Object::Surface(image) = object(b, w, inst.line, named)? else {
            let message = format!("0x{handle:x} is a texture object, not a surface");
            return Err(wrong_object(b, w, inst.line, same, message));
        };
        same_geometry(b, w, inst.line, named, (a.geometry, image))?;
        for l in lanes(same) {
            let place = coordinates_of(w, coordinate_rows, a, l);
            let place = match (is_inside(image, place, bytes), a.outside) {
                (true, _) => Some(place),
                (false, Outside::Zero) => None,
                (false, Outside::Clamp) => nearest(image, place, bytes),
                (false, Outside::Trap) => {
                    let [x, y, z] = place;
                    let [_, height, depth] = image.counts();
                    let row = image.row_bytes();
                    let message = format!(
                        "{bytes}-byte {verb} at byte {x} of row {y}, slice or layer {z}, of {depth} with {height} rows of {row} bytes"
                    );
                    let thread = w.id * 32 + l as u32;
                    return Err(b.finding(FindingKind::SurfaceTrap, inst.line, thread, message));
                }
            };
            if let Some([x, y, z]) = place {
                at[l] = image.address(x as u64, y as u64, z as u64);
                inside |= 1 << l;
            }
        }
    }
    let data = if load { &inst.d } else { &inst.b };
    let rows = match a.count {
        1 => std::slice::from_ref(data),
        count => &f.lists[*data as usize..][..count.into()],
    };
    if load {
        for l in lanes(mask & !inside) {
            rows.iter().for_each(|&row| set(w, a.wide, row, l, 0));
        }
    }
    if inside == 0 {
        return Ok(());
    }
    let (size, count, wide) = (a.size, a.count, a.wide);
    let (space, order) = (Space::Global, Order::Relaxed);
    let access = Access {
        space,
        size,
        count,
        signed: false,
        wide,
        addr_wide: true,
        of_call: false,
        strong: false,
        order,
    };
    let facts = b.facts(number, &at, inside, what.bytes, Count::Sectors);
    match load {
        true => global::load(b, w, (rows, access), what, &at, inside, &facts)?,
        false => global::store(b, w, (rows, access), what, &at, inside, &facts)?,
    }
    count_global(b, &at, inside, what.bytes, load, &facts);
    Ok(())
}
