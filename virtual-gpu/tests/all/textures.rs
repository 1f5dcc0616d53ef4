//! Texture objects: filters and addressing against a naive reference, formats, queries, what is refused, findings.

use crate::common::images::{
    AS_INTEGER, NORMALIZED, Resource, Sampling, View, array3d, filled, run, surface, texture, uploaded,
};
use crate::common::{call, code, driver, primary};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use pascaline_virtual_gpu::{Config, FindingKind, GTX1080, Module, T4};

const U8: c_int = 1;
const F32: c_int = 32;
const WRAP: c_int = 0;
const CLAMP: c_int = 1;
const MIRROR: c_int = 2;
const BORDER: c_int = 3;
const MODES: [c_int; 4] = [WRAP, CLAMP, MIRROR, BORDER];

/// A value of [0, 1) from a seed. Source: Marsaglia 2003, xorshift32.
fn random(seed: &mut u32) -> f32 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;
    (*seed >> 8) as f32 / (1 << 24) as f32
}

/// The texel at a place of the endless grid that a mode makes of a row of `n`; `None` is the border.
fn endless(i: i64, n: i64, mode: c_int) -> Option<usize> {
    Some(match mode {
        WRAP => ((i % n) + n) % n,
        CLAMP => i.max(0).min(n - 1),
        MIRROR => {
            let turn = ((i % (2 * n)) + 2 * n) % (2 * n);
            if turn < n { turn } else { 2 * n - 1 - turn }
        }
        _ if i < 0 || i >= n => return None,
        _ => i,
    } as usize)
}

/// What the guide's formulas give for one channel, in f64.
fn reference(
    texel: &dyn Fn([usize; 3]) -> f64,
    extent: [usize; 3],
    modes: [c_int; 3],
    at: [f64; 3],
    linear: bool,
    border: f64,
) -> f64 {
    let mut sum = 0.0;
    for corner in 0..8 {
        let (mut weight, mut place) = (1.0, [Some(0); 3]);
        for d in 0..3 {
            let second = corner >> d & 1 == 1;
            if extent[d] == 0 || !linear {
                weight *= if second { 0.0 } else { 1.0 };
                let i = if extent[d] == 0 { 0 } else { at[d].floor() as i64 };
                place[d] = endless(i, extent[d].max(1) as i64, modes[d]);
                continue;
            }
            let low = at[d] - 0.5;
            let alpha = ((low - low.floor()) * 256.0).round() / 256.0;
            weight *= if second { alpha } else { 1.0 - alpha };
            place[d] = endless(low.floor() as i64 + i64::from(second), extent[d] as i64, modes[d]);
        }
        let value = match place {
            [Some(x), Some(y), Some(z)] => texel([x, y, z]),
            _ => border,
        };
        sum += if weight == 0.0 { 0.0 } else { weight * value };
    }
    sum
}

#[test]
fn filters_and_modes_are_those_of_the_guide() {
    let _turn = driver(Config::default());
    primary();
    let mut seed = 7;
    let forms = [
        ("1d", "{%r0}", 1, 0),
        ("2d", "{%r0, %r1}", 2, 0),
        ("3d", "{%r0, %r1, %r2, %r2}", 3, 0),
        ("a1d", "{%r3, %r0}", 1, 1),
        ("a2d", "{%r3, %r0, %r1, %r1}", 2, 1),
    ];
    for (geometry, coordinates, dimensions, flags) in forms {
        let code = format!("tex.{geometry}.v4.f32.f32 {{%r4, %r5, %r6, %r7}}, [%rd0, {coordinates}];");
        for n in [1usize, 2, 3, 7] {
            let mut extent = [0; 3];
            extent[..dimensions].copy_from_slice(&[n, n + 1, n + 2][..dimensions]);
            let layers = if flags == 1 { 3 } else { 1 };
            let [width, height, depth] = extent.map(|n| n.max(1));
            // small integers, so that every sum is exact
            let values: Vec<f32> =
                (0..2 * width * height * depth * layers).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
            let mut bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let made = if flags == 1 { [extent[0], extent[1], layers] } else { extent };
            let array = filled(made, F32, 2, flags, &mut bytes);
            for mode in MODES {
                // a second mode, so that dimensions are told apart
                let modes = [mode, MODES[(mode as usize + 1) % 4], mode];
                for (linear, normalized) in [(false, false), (false, true), (true, false), (true, true)] {
                    let sampling = Sampling {
                        address: modes,
                        filter: linear.into(),
                        flags: if normalized { NORMALIZED } else { 0 },
                        border: [5.0, -7.0, 3.0, 9.0],
                        ..Sampling::default()
                    };
                    let object = texture(Resource::array(array), sampling, None).unwrap();
                    let inputs: Vec<[u32; 4]> = (0..70)
                        .map(|i| {
                            let place = [0, 1, 2].map(|d| {
                                let whole = (random(&mut seed) * 4.0 - 1.5) * extent[d].max(1) as f32;
                                if normalized { whole / extent[d].max(1) as f32 } else { whole }
                            });
                            let [x, y, z] = place.map(f32::to_bits);
                            [x, y, z, i % 5]
                        })
                        .collect();
                    let found = run(&code, object, &inputs).unwrap();
                    for (input, found) in inputs.iter().zip(&found) {
                        let layer = if flags == 1 { (input[3] as usize).min(2) } else { 0 };
                        let at = [0, 1, 2].map(|d| {
                            let x = f64::from(f32::from_bits(input[d]));
                            if normalized { x * extent[d].max(1) as f64 } else { x }
                        });
                        // wrap and mirror are for normalised coordinates; otherwise they are clamp
                        let modes = modes.map(|m| if normalized || m == BORDER { m } else { CLAMP });
                        for channel in 0..2 {
                            let texel = |[x, y, z]: [usize; 3]| {
                                f64::from(values[2 * (((layer + z) * height + y) * width + x) + channel])
                            };
                            let border = sampling.border[channel].into();
                            let want = reference(&texel, extent, modes, at, linear, border) as f32;
                            let found = f32::from_bits(found[channel]);
                            assert!(
                                found == want,
                                "{geometry} {n} {modes:?} linear {linear} normalized {normalized} {at:?}: {found} {want}"
                            );
                        }
                        assert_eq!(found[2..], [0, 0]); // channels that it lacks
                    }
                    call!("cuTexObjectDestroy", (u64), object);
                }
            }
            call!("cuArrayDestroy", (*mut c_void), array);
        }
    }
}

#[test]
fn texels_are_read_by_their_format_and_mode() {
    let _turn = driver(Config::default());
    primary();
    let code = "tex.1d.v4.u32.s32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0}];";
    let bits = [0x80u32, 0x7f, 0x01, 0xff, 0x8000, 0x7fff, 0x3c00, 0xc100_0000];
    for (format, bytes) in [(1, 1), (2, 2), (3, 4), (8, 1), (9, 2), (10, 4), (16, 2), (32, 4)] {
        for channels in [1usize, 2, 4] {
            let mut memory = Vec::new();
            for texel in 0..8 {
                for channel in 0..channels {
                    memory.extend(&bits[(texel + channel) % 8].to_le_bytes()[..bytes]);
                }
            }
            let array = filled([8, 0, 0], format, channels as c_uint, 0, &mut memory);
            for flags in [0, AS_INTEGER] {
                let sampling = Sampling { flags, ..Sampling::default() };
                let object = texture(Resource::array(array), sampling, None).unwrap();
                let inputs: Vec<_> = (0..8).map(|x| [x, 0, 0, 0]).collect();
                for (texel, found) in run(code, object, &inputs).unwrap().iter().enumerate() {
                    for (channel, &found) in found.iter().enumerate() {
                        let raw = bits[(texel + channel) % 8];
                        let promoted = |x: f32| x.to_bits();
                        let want = match (format, flags) {
                            _ if channel >= channels => 0,
                            (1, 0) => promoted(raw as u8 as f32 / 255.0),
                            (2, 0) => promoted(raw as u16 as f32 / 65535.0),
                            (8, 0) => promoted((raw as i8 as f32 / 127.0).max(-1.0)),
                            (9, 0) => promoted((raw as i16 as f32 / 32767.0).max(-1.0)),
                            (1, _) => raw & 0xff,
                            (2, _) => raw & 0xffff,
                            (8, _) => raw as i8 as i32 as u32,
                            (9, _) => raw as i16 as i32 as u32,
                            // 1, 0.5 and the like of f16 are those of f32
                            (16, _) => half_to_float(raw as u16),
                            _ => raw,
                        };
                        assert_eq!(
                            found, want,
                            "{format} {channels} {flags} texel {texel} channel {channel}"
                        );
                    }
                }
            }
        }
    }
}

/// By the definition of binary16.
fn half_to_float(bits: u16) -> u32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff) / 1024.0);
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let value = match exponent {
        0 => fraction * 2f64.powi(-14),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => return 0x7fc0_0000 | u32::from(bits & 0x1ff) << 13 | u32::from(bits >> 15) << 31,
        _ => (1.0 + fraction) * 2f64.powi(exponent - 15),
    };
    ((sign * value) as f32).to_bits()
}

#[test]
fn promoted_texels_are_filtered_as_floats() {
    let _turn = driver(Config::default());
    primary();
    let array = filled([2, 0, 0], U8, 1, 0, &mut [51, 255]);
    let sampling = Sampling { filter: 1, address: [CLAMP; 3], ..Sampling::default() };
    let object = texture(Resource::array(array), sampling, None).unwrap();
    let code = "tex.1d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0}];";
    let found = run(code, object, &[[0.75f32.to_bits(), 0, 0, 0]]).unwrap()[0][0];
    assert_eq!(f32::from_bits(found), (0.75 * f64::from(51f32 / 255.0) + 0.25) as f32);
    // a filter of integers does not exist
    let integers = Sampling { flags: AS_INTEGER, ..sampling };
    assert_eq!(texture(Resource::array(array), integers, None), Err(1));
}

#[test]
fn a_filter_reads_what_has_a_weight() {
    let make = || {
        let array = array3d([2, 0, 0], F32, 1, 0).unwrap();
        call!("cuMemcpyHtoA_v2", (*mut c_void, usize, *const f32, usize), array, 0, [3f32].as_ptr(), 4);
        let sampling = Sampling { filter: 1, address: [CLAMP; 3], ..Sampling::default() };
        texture(Resource::array(array), sampling, None).unwrap()
    };
    let code = "tex.1d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0}];";
    let _turn = driver(Config::default());
    primary();
    // the second texel was never written
    assert_eq!(f32::from_bits(run(code, make(), &[[0.5f32.to_bits(), 0, 0, 0]]).unwrap()[0][0]), 3.0);
    let finding = run(code, make(), &[[0.75f32.to_bits(), 0, 0, 0]]).unwrap_err();
    assert_eq!(finding.kind, FindingKind::Uninitialized);
}

#[test]
fn newer_devices_have_textures_too() {
    let _turn = driver(Config { card: &T4, ..Config::default() });
    primary();
    let array = filled([2, 0, 0], U8, 1, 2, &mut [51, 255]);
    let object = texture(Resource::array(array), Sampling::default(), None).unwrap();
    let surface = surface(array).unwrap();
    // lanes that have parted
    let code = format!(
        "mov.u64 %rd4, {surface}; mov.u16 %h0, 0; setp.eq.u32 %p1, %r0, 1; @%p1 bra ODD;
        tex.1d.v4.f32.s32 {{%r4, %r5, %r6, %r7}}, [%rd0, {{%r0}}]; bra.uni END;
        ODD: suld.b.1d.b8.trap %h0, [%rd4, {{%r0}}]; cvt.u32.u16 %r4, %h0;
        END:"
    );
    let found = run(&code, object, &[[0; 4], [1, 0, 0, 0]]).unwrap();
    assert_eq!([found[0][0], found[1][0]], [(51f32 / 255.0).to_bits(), 255]);
}

#[test]
fn a_texels_number_outside_reads_nothing() {
    let _turn = driver(Config::default());
    primary();
    let array = filled([2, 2, 0], F32, 1, 0, &mut [1; 16]);
    let sampling = Sampling { address: [BORDER; 3], border: [5.0; 4], ..Sampling::default() };
    let object = texture(Resource::array(array), sampling, None).unwrap();
    let code = "tex.2d.v4.f32.s32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0, %r1}];";
    let found = run(code, object, &[[1, 1, 0, 0], [2, 0, 0, 0], [0, u32::MAX, 0, 0]]).unwrap();
    assert_eq!([found[0][0], found[1][0], found[2][0]], [0x0101_0101, 0, 0]);
    let code = "tex.2d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0, %r1}];";
    assert_eq!(run(code, object, &[[2f32.to_bits(), 0, 0, 0]]).unwrap()[0][0], 5f32.to_bits());
}

#[test]
fn memory_is_a_texture_too() {
    let _turn = driver(Config::default());
    primary();
    let values: Vec<u8> = (0..7u32).flat_map(|n| (10 * n).to_le_bytes()).collect();
    let line = uploaded(&values);
    // filters and modes are ignored
    let sampling = Sampling { filter: 1, address: [WRAP; 3], ..Sampling::default() };
    let object = texture(Resource::linear(line, 3, 1, 28), sampling, None).unwrap();
    let code = "tex.1d.v4.s32.s32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0}];";
    let inputs = [0, 6, 7, -1, i32::MIN, i32::MAX].map(|x| [x as u32, 0, 0, 0]);
    let found: Vec<_> = run(code, object, &inputs).unwrap().iter().map(|found| found[0]).collect();
    assert_eq!(found, [0, 60, 0, 0, 0, 0]);

    // three rows of 5 texels, 32 bytes apart
    let rows: Vec<u8> = (0..3 * 32).map(|n| if n % 32 < 5 { n / 32 * 10 + n % 32 } else { 99 }).collect();
    let pitched = uploaded(&rows);
    let sampling = Sampling { flags: AS_INTEGER, address: [CLAMP; 3], ..Sampling::default() };
    let object = texture(Resource::pitched(pitched, U8, 1, [5, 3, 32]), sampling, None).unwrap();
    let code = "tex.2d.v4.u32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0, %r1}];";
    let inputs =
        [[0.0f32, 0.0], [4.9, 2.9], [5.0, 1.0], [-3.0, 9.0]].map(|[x, y]| [x.to_bits(), y.to_bits(), 0, 0]);
    let found: Vec<_> = run(code, object, &inputs).unwrap().iter().map(|found| found[0]).collect();
    assert_eq!(found, [0, 24, 14, 20]);
}

#[test]
fn compilers_forms_are_read() {
    let _turn = driver(Config::default());
    primary();
    let mut bytes: Vec<u8> = (0..12u32).flat_map(|n| (n as f32).to_le_bytes()).collect();
    let array = filled([3, 4, 0], F32, 1, 0, &mut bytes);
    let object =
        texture(Resource::array(array), Sampling { address: [CLAMP; 3], ..Sampling::default() }, None)
            .unwrap();
    let input = [[1.5f32.to_bits(), 2.5f32.to_bits(), 0, 0]];
    for code in [
        "tex.2d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0, %r1}];",
        "tex.base.2d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0, %r1}];",
        "tex.2d.v4.f32.f32 {%r4, _, _, _}, [%rd0, {%r0, %r1, %r2, %r3}];",
        "tex.2d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {0f3FC00000, %r1}];",
        "tex.level.2d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0, %r1}], 0f00000000;",
        "tex.grad.2d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0, %r1}], {%r2, %r2}, {%r3, %r3};",
    ] {
        assert_eq!(f32::from_bits(run(code, object, &input).unwrap()[0][0]), 7.0, "{code}");
    }
    // other lanes, with an object of their own
    let other = filled([3, 4, 0], F32, 1, 0, &mut [0; 48]);
    let other = texture(Resource::array(other), Sampling::default(), None).unwrap();
    let code = format!(
        "setp.eq.u32 %p1, %r3, 1; selp.b64 %rd0, {other}, %rd0, %p1;
        @!%p1 tex.2d.v4.f32.f32 {{%r4, %r5, %r6, %r7}}, [%rd0, {{%r0, %r1}}];
        tex.2d.v4.f32.f32 {{%r4, %r5, %r6, %r7}}, [%rd0, {{%r0, %r1}}];"
    );
    let [x, y, ..] = input[0];
    let found = run(&code, object, &[[x, y, 0, 0], [x, y, 0, 1], [x, y, 0, 0]]).unwrap();
    assert_eq!([found[0][0], found[1][0], found[2][0]].map(f32::from_bits), [7.0, 0.0, 7.0]);

    for (code, why) in [
        ("tex.cube.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0, %r1, %r2, %r2}];", "geometries here"),
        ("tex.2d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0}];", "1 coordinates"),
        ("tex.2d.v4.f32.f32 {%r4, %r5, %r6}, [%rd0, {%r0, %r1}];", "four registers"),
        ("tex.2d.v4.f16.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0, %r1}];", "type of texels"),
        ("tex.2d.v2.f16x2.f32 {%r4, %r5}, [%rd0, {%r0, %r1}];", ".v4"),
        ("tex.2d.v4.f32.u32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0, %r1}];", "coordinates are"),
        ("tex.2d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0, %r1}], {%r2, %r2};", "offsets"),
        ("tex.2d.v4.f32.f32 {%r4, %r5, %r6, %r7}|%p1, [%rd0, {%r0, %r1}];", "predicate"),
        ("tex.2d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, %rd0, {%r0, %r1}];", "samplers"),
        ("tex.2d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%r0, {%r0, %r1}];", "32 bits"),
        ("tex.2d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {[%rd0, {%r0}], %r1}];", "brackets"),
        ("tex.2d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, [%rd0, {%r0}]];", "brackets"),
        ("txq.channel_order.b32 %r4, [%rd0];", "attribute"),
        ("suq.filter_mode.b32 %r4, [%rd0];", "attribute"),
        ("tld4.r.1d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0}];", "gathers"),
        ("sust.p.2d.b32.trap [%rd0, {%r0, %r1}], {%r2};", "bytes"),
        ("sured.b.add.2d.u32.trap [%rd0, {%r0, %r1}], %r2;", "loads and stores"),
        ("suld.b.2d.v4.b64.trap {%rd1, %rd2, %rd3, %rd4}, [%rd0, {%r0, %r1}];", "width"),
        ("suld.b.2d.f32.trap {%r4}, [%rd0, {%r0, %r1}];", "b8, b16"),
    ] {
        let text = format!(
            ".version 6.4 .target sm_61 .address_size 64 .visible .entry k() {{
.reg .b64 %rd<8>; .reg .b32 %r<20>; .reg .pred %p<2>; {code} ret; }}"
        );
        let error = Module::parse(&text).expect_err(code);
        assert!(error.reason.contains(why), "{code}: {error}");
    }
    for (declaration, why) in [
        (".global .samplerref s;", ".samplerref"),
        (".global .texref t[2];", "no arrays"),
        (".global .texref t = { filter_mode = linear };", "no initialisers"),
        (".extern .global .texref t;", "not external"),
        (".global .texref t; .global .surfref t;", "twice"),
        (".const .texref t;", ".texref"),
    ] {
        let text = format!(".version 6.4 .target sm_61 .address_size 64 {declaration}");
        let error = Module::parse(&text).expect_err(declaration);
        assert!(error.reason.contains(why), "{declaration}: {error}");
    }
}

#[test]
fn a_gather_takes_a_channel_of_four_texels() {
    let _turn = driver(Config::default());
    primary();
    // texel (x, y) is (10y + x, 100 + 10y + x)
    let mut bytes: Vec<u8> =
        (0..3u8).flat_map(|y| (0..4u8).flat_map(move |x| [10 * y + x, 100 + 10 * y + x])).collect();
    let sampling = Sampling { flags: AS_INTEGER, address: [CLAMP; 3], ..Sampling::default() };
    let array = filled([4, 3, 0], U8, 2, 8, &mut bytes);
    let object = texture(Resource::array(array), sampling, None).unwrap();
    let input = [[2.1f32.to_bits(), 1.7f32.to_bits(), 0, 0], [0.0f32.to_bits(), 3.0f32.to_bits(), 0, 0]];
    for (channel, base) in [("r", 0), ("g", 100)] {
        let code = format!("tld4.{channel}.2d.v4.u32.f32 {{%r4, %r5, %r6, %r7}}, [%rd0, {{%r0, %r1}}];");
        let found = run(&code, object, &input).unwrap();
        assert_eq!(found[0], [21, 22, 12, 11].map(|v| base + v), "{channel}");
        assert_eq!(found[1], [20; 4].map(|v| base + v), "{channel}");
    }
    let plain = filled([4, 3, 0], U8, 2, 0, &mut bytes);
    let object = texture(Resource::array(plain), sampling, None).unwrap();
    let code = "tld4.r.2d.v4.u32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0, %r1}];";
    let finding = run(code, object, &input).unwrap_err();
    assert_eq!(finding.kind, FindingKind::WrongObject);
    assert!(finding.message.contains("CUDA_ARRAY3D_TEXTURE_GATHER"), "{finding}");
}

#[test]
fn queries_tell_what_a_texture_is() {
    let _turn = driver(Config::default());
    primary();
    let sampling =
        Sampling { address: [WRAP, MIRROR, BORDER], filter: 1, flags: NORMALIZED, ..Sampling::default() };
    let volume = texture(Resource::array(array3d([5, 6, 7], F32, 1, 0).unwrap()), sampling, None).unwrap();
    let sampling = Sampling { address: [CLAMP; 3], ..Sampling::default() };
    let layers = texture(Resource::array(array3d([5, 6, 7], F32, 1, 1).unwrap()), sampling, None).unwrap();
    for (query, of_volume, of_layers) in [
        ("width", 5, 5),
        ("height", 6, 6),
        ("depth", 7, 0),
        ("array_size", 0, 7),
        ("normalized_coords", 1, 0),
        ("filter_mode", 1, 0),
        ("addr_mode_0", 0, 3),
        ("addr_mode_1", 1, 3),
        ("addr_mode_2", 4, 3),
        ("num_mipmap_levels", 0, 0),
        ("num_samples", 0, 0),
    ] {
        let code = format!("txq.{query}.b32 %r4, [%rd0];");
        for (object, want) in [(volume, of_volume), (layers, of_layers)] {
            assert_eq!(run(&code, object, &[[0; 4]]).unwrap()[0][0], want, "{query}");
        }
    }
}

#[test]
fn descriptors_are_given_back_and_checked() {
    let _turn = driver(Config::default());
    primary();
    const INVALID: u32 = 1;
    const UNSUPPORTED: u32 = 801;
    let array = array3d([4, 3, 0], U8, 4, 0).unwrap();
    let memory = uploaded(&[0; 4096]);
    let plain = Sampling { address: [CLAMP; 3], ..Sampling::default() };
    let view = View { format: 3, extent: [4, 3, 0], ..View::default() };
    for (resource, view) in [
        (Resource::array(array), None),
        (Resource::array(array), Some(view)),
        (Resource::linear(memory, F32, 2, 4096), None),
        (Resource::pitched(memory, F32, 1, [16, 8, 64]), None),
    ] {
        let sampling = Sampling { border: [1.0, 2.0, 3.0, 4.0], ..plain };
        let object = texture(resource, sampling, view).unwrap();
        let (mut r, mut s, mut v) = (Resource::default(), Sampling::default(), View::default());
        call!("cuTexObjectGetResourceDesc", (*mut Resource, u64), &mut r, object);
        call!("cuTexObjectGetTextureDesc", (*mut Sampling, u64), &mut s, object);
        let code = code!("cuTexObjectGetResourceViewDesc", (*mut View, u64), &mut v, object);
        assert_eq!((r.kind, r.of, r.flags, s), (resource.kind, resource.of, 0, sampling));
        match view {
            Some(view) => assert_eq!((code, View { pad: 0, ..v }), (0, view)),
            None => assert_eq!(code, INVALID),
        }
        call!("cuTexObjectDestroy", (u64), object);
        assert_eq!(code!("cuTexObjectDestroy", (u64), object), INVALID);
        assert_eq!(code!("cuTexObjectGetResourceDesc", (*mut Resource, u64), &mut r, object), INVALID);
    }
    let of = Resource::array(array);
    let pitched = |extent| Resource::pitched(memory, F32, 1, extent);
    let cases: &[(Resource, Sampling, Option<View>, u32)] = &[
        (Resource::array(8 as *mut c_void), plain, None, INVALID),
        (Resource { kind: 1, ..of }, plain, None, UNSUPPORTED),
        (Resource { kind: 4, ..of }, plain, None, INVALID),
        (Resource { flags: 1, ..of }, plain, None, INVALID),
        (Resource::linear(memory + 256, F32, 1, 256), plain, None, INVALID), // not aligned
        (Resource::linear(memory, F32, 1, 4097), plain, None, INVALID),      // past the allocation
        (Resource::linear(memory, F32, 1, 3), plain, None, INVALID),         // no texel
        (Resource::linear(memory, F32, 3, 4096), plain, None, INVALID),
        (Resource::linear(0, F32, 1, 4096), plain, None, INVALID),
        (pitched([16, 8, 48]), plain, None, INVALID), // the pitch is a multiple of 32
        (pitched([16, 8, 32]), plain, None, INVALID), // shorter than a row
        (pitched([16, 65, 64]), plain, None, INVALID),
        (pitched([16, 0, 64]), plain, None, INVALID),
        (of, Sampling { address: [CLAMP, 4, CLAMP], ..plain }, None, INVALID),
        (of, Sampling { filter: 2, ..plain }, None, INVALID),
        (of, Sampling { mipmap_filter: 2, ..plain }, None, INVALID),
        (of, Sampling { flags: 4, ..plain }, None, INVALID),
        (of, Sampling { flags: 0x10, ..plain }, None, UNSUPPORTED), // sRGB
        (of, Sampling { flags: 0x40, ..plain }, None, INVALID),     // seamless, of no cubemap
        (of, Sampling { anisotropy: 16, ..plain }, None, UNSUPPORTED),
        (of, Sampling { flags: 0x20, anisotropy: 1, ..plain }, None, 0),
        (of, plain, Some(View { extent: [4, 4, 0], ..view }), INVALID),
        (of, plain, Some(View { format: 13, ..view }), 0), // the four bytes as one number
        (of, plain, Some(View { format: 14, ..view }), INVALID),
        (of, plain, Some(View { format: 25, ..view }), UNSUPPORTED),
        (of, plain, Some(View { format: 35, ..view }), INVALID),
        (of, plain, Some(View { levels: [0, 1], ..view }), INVALID),
        (of, plain, Some(View { layers: [0, 1], ..view }), INVALID),
        (pitched([16, 8, 64]), plain, Some(View { extent: [16, 8, 0], ..View::default() }), INVALID),
    ];
    for (n, &(resource, sampling, view, want)) in cases.iter().enumerate() {
        assert_eq!(texture(resource, sampling, view).err().unwrap_or(0), want, "case {n}");
    }
}

#[test]
fn a_view_shows_some_layers_in_another_format() {
    let _turn = driver(Config::default());
    primary();
    let mut bytes: Vec<u8> = (0..2 * 3 * 4 * 4).collect();
    let array = filled([2, 3, 4], U8, 4, 1, &mut bytes);
    let sampling = Sampling { flags: AS_INTEGER, address: [CLAMP; 3], ..Sampling::default() };
    let view = View { format: 13, extent: [2, 3, 4], layers: [1, 2], ..View::default() };
    let object = texture(Resource::array(array), sampling, Some(view)).unwrap();
    let code = "tex.a2d.v4.u32.s32 {%r4, %r5, %r6, %r7}, [%rd0, {%r3, %r0, %r1, %r1}];";
    // layer 9 is the last one shown
    let found = run(code, object, &[[0, 0, 0, 0], [1, 2, 0, 1], [1, 2, 0, 9]]).unwrap();
    let word = |n: u32| u32::from_le_bytes([0, 1, 2, 3].map(|b| (4 * n + b) as u8));
    assert_eq!([found[0][0], found[1][0], found[2][0]], [word(6), word(17), word(17)]);
}

#[test]
fn a_wrong_handle_is_a_finding() {
    const FETCH: &str = "tex.2d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0, %r1}];";
    let clamp = Sampling { address: [CLAMP; 3], ..Sampling::default() };
    let object = |flags, extent| {
        texture(Resource::array(filled(extent, U8, 1, flags, &mut [1; 64])), clamp, None).unwrap()
    };
    type Make<'a> = &'a dyn Fn() -> u64;
    let cases: &[(&str, Make<'_>, FindingKind, &str)] = &[
        ("none", &|| 0, FindingKind::WrongObject, "no live texture"),
        ("an address", &|| uploaded(&[0; 16]), FindingKind::WrongObject, "no live texture"),
        (
            "destroyed",
            &|| {
                let object = object(0, [8, 8, 0]);
                call!("cuTexObjectDestroy", (u64), object);
                object
            },
            FindingKind::WrongObject,
            "no live texture",
        ),
        (
            "its array destroyed",
            &|| {
                let array = filled([8, 8, 0], U8, 1, 0, &mut [1; 64]);
                let object = texture(Resource::array(array), clamp, None).unwrap();
                call!("cuArrayDestroy", (*mut c_void), array);
                object
            },
            FindingKind::WrongObject,
            "array was destroyed",
        ),
        (
            "a surface",
            &|| surface(filled([8, 8, 0], U8, 1, 2, &mut [1; 64])).unwrap(),
            FindingKind::WrongObject,
            "is a surface object",
        ),
        ("of one dimension", &|| object(0, [64, 0, 0]), FindingKind::WrongObject, "one dimension"),
        ("of layers", &|| object(1, [4, 4, 4]), FindingKind::WrongObject, "layers of two"),
        (
            "never written",
            &|| texture(Resource::array(array3d([8, 8, 0], U8, 1, 0).unwrap()), clamp, None).unwrap(),
            FindingKind::Uninitialized,
            "texture fetch",
        ),
        (
            "freed memory",
            &|| {
                let memory = uploaded(&[0; 512]);
                let object = texture(Resource::pitched(memory, U8, 1, [8, 8, 64]), clamp, None).unwrap();
                call!("cuMemFree_v2", (u64), memory);
                object
            },
            FindingKind::UseAfterFree,
            "texture fetch",
        ),
    ];
    for (name, make, kind, message) in cases {
        let _turn = driver(Config::default());
        primary();
        let finding = run(FETCH, make(), &[[0; 4]]).expect_err(name);
        assert_eq!(finding.kind, *kind, "{name}: {finding}");
        assert!(finding.message.contains(message), "{name}: {finding}");
        assert!(finding.line > 0, "{name}: {finding}");
    }
}

#[test]
fn an_object_belongs_to_its_device() {
    let _turn = driver(Config { others: vec![(&GTX1080, None)], ..Config::default() });
    let mut context = null_mut::<c_void>();
    call!("cuDevicePrimaryCtxRetain", (*mut *mut c_void, c_int), &mut context, 1);
    call!("cuCtxSetCurrent", (*mut c_void), context);
    let array = filled([8, 8, 0], U8, 1, 0, &mut [1; 64]);
    let sampling = Sampling { address: [CLAMP; 3], ..Sampling::default() };
    let object = texture(Resource::array(array), sampling, None).unwrap();
    let code = "tex.2d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0, %r1}];";
    assert!(run(code, object, &[[0; 4]]).is_ok());
    primary();
    assert_eq!(texture(Resource::array(array), sampling, None), Err(1));
    assert_eq!(run(code, object, &[[0; 4]]).unwrap_err().kind, FindingKind::WrongObject);
}
