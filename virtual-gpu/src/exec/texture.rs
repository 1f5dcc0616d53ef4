//! Textures: fetches, gathers and queries. A texel is loaded as any other memory, with all checks, one load for each texel of a filter.

use super::block::{Block, Check};
use super::global::{count_global, read};
use super::lane::What;
use super::regs::{LANES, lanes};
use super::shape::Count;
use super::warp::Warp;
use crate::finding::{Finding, FindingKind};
use crate::image::{Geometry, Image};
use crate::ptx::inst::{Function, Inst};
use crate::ptx::texture::{Fetch, Query, coordinates};
use crate::texture::{AddressMode, Object, Taps, Texture};

/// The order of a gather's texels by the bits of (y, x): counter-clockwise from the lower left.
const GATHERED: [usize; 4] = [0b10, 0b11, 0b01, 0b00];

/// The lanes of `mask` that name the same object as the first of them, with its handle.
pub(super) fn same_object(handles: &[u64; LANES], mask: u32) -> (u64, u32) {
    let handle = handles[(mask.trailing_zeros() % 32) as usize];
    (handle, lanes(mask).filter(|&l| handles[l] == handle).fold(0, |same, l| same | 1 << l))
}

/// The finding of lanes whose handle is not that of an object that they may use so.
#[cold]
pub(super) fn wrong_object(b: &Block<'_>, w: &Warp, line: u32, mask: u32, message: String) -> Box<Finding> {
    b.finding(FindingKind::WrongObject, line, w.id * 32 + mask.trailing_zeros() % 32, message)
}

/// The object of a handle.
pub(super) fn object<'j>(
    b: &Block<'j>,
    w: &Warp,
    line: u32,
    (handle, mask): (u64, u32),
) -> Check<&'j Object> {
    let message = match b.job.objects.get(&handle) {
        Some(Object::WithoutArray) => format!("0x{handle:x} is an object whose array was destroyed"),
        Some(Object::Unbound) => format!("0x{handle:x} is a reference to which nothing is bound"),
        Some(object) => return Ok(object),
        None => format!("0x{handle:x} is no live texture or surface object of this device"),
    };
    Err(wrong_object(b, w, line, mask, message))
}

/// That an instruction's geometry is its object's.
pub(super) fn same_geometry(
    b: &Block<'_>,
    w: &Warp,
    line: u32,
    (handle, mask): (u64, u32),
    (wanted, image): (Geometry, &Image),
) -> Check {
    if wanted == image.geometry {
        return Ok(());
    }
    let (wanted, has) = (wanted.name(), image.geometry.name());
    let message = format!("0x{handle:x} has {has}, the instruction is for {wanted}");
    Err(wrong_object(b, w, line, mask, message))
}

/// `tex` and `tld4`.
pub(super) fn fetch(
    b: &mut Block<'_>,
    w: &mut Warp,
    f: &Function,
    (inst, number): (&Inst, usize),
    fetch: Fetch,
    mask: u32,
) -> Check {
    let handles = *w.regs.row64(inst.a);
    let mut rest = mask;
    while rest != 0 {
        let (handle, same) = same_object(&handles, rest);
        rest &= !same;
        let named = (handle, same);
        let Object::Texture(texture) = object(b, w, inst.line, named)? else {
            let message = format!("0x{handle:x} is a surface object, not a texture");
            return Err(wrong_object(b, w, inst.line, same, message));
        };
        same_geometry(b, w, inst.line, named, (fetch.geometry, &texture.image))?;
        if fetch.gather.is_some() && !texture.for_gathers {
            let message =
                format!("0x{handle:x} is of an array that was made without CUDA_ARRAY3D_TEXTURE_GATHER");
            return Err(wrong_object(b, w, inst.line, same, message));
        }
        sample(b, w, f, (inst, number), fetch, texture, same)?;
    }
    Ok(())
}

/// The place of a lane's sample: for each dimension the texels and their weights, and the layer.
struct Place {
    taps: [Taps; 3],
    layer: u64,
}

const ONE: Taps = Taps { texels: [Some(0); 2], weight: 0.0 };

impl Place {
    fn of_lane(
        w: &Warp,
        rows: &[u32],
        fetch: Fetch,
        texture: &Texture,
        neighbours: bool,
        lane: usize,
    ) -> Self {
        let mut values = rows.iter().map(|&row| w.regs.row32(row)[lane]);
        let layer = match fetch.geometry.is_layered() {
            true => texture.layer(values.next().unwrap_or(0)),
            false => 0,
        };
        let mut taps = [ONE; 3];
        for (dimension, (taps, bits)) in taps.iter_mut().zip(values).enumerate() {
            *taps = match fetch.integer {
                true => Taps { texels: [texture.texel(dimension, bits as i32); 2], weight: 0.0 },
                false => texture.taps(dimension, f32::from_bits(bits), neighbours),
            };
        }
        Self { taps, layer }
    }

    /// The address of texel `n` of a filter, whose bits say which neighbour of each dimension it is; `None` for the border.
    fn address(&self, image: &Image, n: usize) -> Option<u64> {
        let [x, y, z] = [0, 1, 2].map(|dimension| self.taps[dimension].texels[n >> dimension & 1]);
        let slice = if image.geometry.is_layered() { self.layer } else { z? };
        Some(image.address(x? * image.format.bytes(), y?, slice))
    }

    fn weight(&self, n: usize) -> f64 {
        let of = |dimension: usize| {
            let weight = self.taps[dimension].weight;
            if n >> dimension & 1 == 1 { weight } else { 1.0 - weight }
        };
        of(0) * of(1) * of(2)
    }
}

/// Samples a texture for the lanes of `mask`.
fn sample(
    b: &mut Block<'_>,
    w: &mut Warp,
    f: &Function,
    (inst, number): (&Inst, usize),
    fetch: Fetch,
    texture: &Texture,
    mask: u32,
) -> Check {
    let image = &texture.image;
    let bytes = image.format.bytes() as u32;
    let what = What { verb: "texture fetch", bytes, line: inst.line, loose: false };
    let rows = &f.lists[inst.c as usize..][..coordinates(fetch.geometry)];
    let filters = texture.linear && !fetch.integer && fetch.gather.is_none();
    let neighbours = filters || fetch.gather.is_some();
    let places: [Option<Place>; LANES] = std::array::from_fn(|l| {
        (mask >> l & 1 == 1).then(|| Place::of_lane(w, rows, fetch, texture, neighbours, l))
    });
    let mut sums = [[0f64; 4]; LANES];
    let mut results = [[0u32; 4]; LANES];
    for n in 0..if neighbours { 1 << fetch.geometry.dimensions() } else { 1 } {
        let mut at = [0; LANES];
        let mut inside = 0;
        for l in lanes(mask) {
            let Some(place) = &places[l] else { continue };
            // a texel without weight need not have been written
            if filters && place.weight(n) == 0.0 {
                continue;
            }
            let texel = place.address(image, n);
            let texel = match texel {
                Some(address) => {
                    (at[l], inside) = (address, inside | 1 << l);
                    Some(read(b, w, what, l, address)?)
                }
                None => None,
            };
            let channel = |channel: usize| match &texel {
                Some(texel) => texture.channel(texel, channel),
                // a texel's number outside of the texture
                None if fetch.integer => 0,
                None => texture.border_channel(channel),
            };
            if let Some(gathered) = fetch.gather {
                let part = GATHERED.iter().position(|&texel| texel == n).unwrap_or(0);
                results[l][part] = channel(gathered.into());
            } else if filters {
                for (k, sum) in sums[l].iter_mut().enumerate() {
                    *sum += place.weight(n) * f64::from(f32::from_bits(channel(k)));
                }
            } else {
                results[l] = [0, 1, 2, 3].map(channel);
            }
        }
        if inside != 0 {
            let facts = b.facts(number, &at, inside, bytes, Count::Sectors);
            count_global(b, &at, inside, bytes, true, &facts);
        }
    }
    for (k, &row) in f.lists[inst.d as usize..][..4].iter().enumerate() {
        let d = w.regs.row32_mut(row);
        for l in lanes(mask) {
            d[l] = if filters { (sums[l][k] as f32).to_bits() } else { results[l][k] };
        }
    }
    Ok(())
}

/// `txq` and `suq`.
pub(super) fn query(
    b: &Block<'_>,
    w: &mut Warp,
    inst: &Inst,
    query: Query,
    surface: bool,
    mask: u32,
) -> Check {
    let handles = *w.regs.row64(inst.a);
    let mut rest = mask;
    while rest != 0 {
        let (handle, same) = same_object(&handles, rest);
        rest &= !same;
        let (image, texture) = match object(b, w, inst.line, (handle, same))? {
            Object::Texture(texture) if !surface => (&texture.image, Some(texture)),
            Object::Surface(image) if surface => (image, None),
            _ => {
                let (is, wanted) = if surface { ("texture", "surface") } else { ("surface", "texture") };
                let message = format!("0x{handle:x} is a {is} object, not a {wanted}");
                return Err(wrong_object(b, w, inst.line, same, message));
            }
        };
        let [width, height, depth] = image.extent.map(|n| n as u32);
        let layered = image.geometry.is_layered();
        // enum { wrap, mirror, clamp_ogl, clamp_to_edge, clamp_to_border }
        let mode = |dimension: usize| match texture.map(|texture| texture.address[dimension]) {
            Some(AddressMode::Wrap) | None => 0,
            Some(AddressMode::Mirror) => 1,
            Some(AddressMode::Clamp) => 3,
            Some(AddressMode::Border) => 4,
        };
        let value = match query {
            Query::Width => width,
            Query::Height => height,
            Query::Depth => {
                if layered {
                    0
                } else {
                    depth
                }
            }
            Query::ArraySize => {
                if layered {
                    depth
                } else {
                    0
                }
            }
            Query::NormalizedCoords => texture.is_some_and(|texture| texture.normalized).into(),
            Query::FilterMode => texture.is_some_and(|texture| texture.linear).into(),
            Query::AddressMode0 => mode(0),
            Query::AddressMode1 => mode(1),
            Query::AddressMode2 => mode(2),
            // no mipmaps and no samples, and arrays are not linear memory
            Query::MipmapLevels | Query::Samples | Query::MemoryLayout => 0,
        };
        for l in lanes(same) {
            w.regs.row32_mut(inst.d)[l] = value;
        }
    }
    Ok(())
}
