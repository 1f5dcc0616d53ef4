//! Surface objects: loads and stores by bytes, what is outside of a surface, findings.

use crate::common::images::{Resource, Sampling, array3d, bytes_of, filled, run, surface, texture};
use crate::common::{call, code, driver, primary};
use std::ffi::{c_int, c_uint, c_void};

use pascaline_virtual_gpu::{Checks, Config, FindingKind};

const U8: c_int = 1;
const SURFACE: c_uint = 2;
const LAYERED: c_uint = 1;

#[test]
fn bytes_go_through_surfaces_of_all_geometries() {
    let _turn = driver(Config::default());
    primary();
    let forms = [
        ("1d", "{%r0}", 1, 0),
        ("2d", "{%r0, %r1}", 2, 0),
        ("3d", "{%r0, %r1, %r2, %r2}", 3, 0),
        ("a1d", "{%r3, %r0}", 1, LAYERED),
        ("a2d", "{%r3, %r0, %r1, %r1}", 2, LAYERED),
    ];
    // the value is made of the byte's place; each width leaves its own bytes
    let widths = [
        (1, "b8", "cvt.u16.u32 %h0, %r8;", "%h0", "cvt.u32.u16 %r4, %h0;"),
        (2, "b16", "cvt.u16.u32 %h0, %r8;", "%h0", "cvt.u32.u16 %r4, %h0;"),
        (4, "b32", "", "%r8", "mov.u32 %r4, %r8;"),
        (8, "b64", "mov.b64 %rd4, {%r8, %r9};", "%rd4", "mov.b64 {%r4, %r5}, %rd4;"),
        (8, "v2.b32", "", "{%r8, %r9}", "mov.u32 %r4, %r8; mov.u32 %r5, %r9;"),
        (
            16,
            "v4.b32",
            "",
            "{%r8, %r9, %r10, %r11}",
            "mov.u32 %r4, %r8; mov.u32 %r5, %r9; mov.u32 %r6, %r10; mov.u32 %r7, %r11;",
        ),
        (
            16,
            "v2.b64",
            "mov.b64 %rd4, {%r8, %r9}; mov.b64 %rd5, {%r10, %r11};",
            "{%rd4, %rd5}",
            "mov.b64 {%r4, %r5}, %rd4; mov.b64 {%r6, %r7}, %rd5;",
        ),
    ];
    for (geometry, coordinates, dimensions, flags) in forms {
        for (bytes, width, before, data, after) in widths {
            for n in [1usize, 3, 7] {
                let mut extent = [0; 3];
                extent[..dimensions].copy_from_slice(&[n, n + 1, n + 2][..dimensions]);
                if flags == LAYERED {
                    extent[2] = 3;
                }
                let [_, height, depth] = extent.map(|n| n.max(1));
                // texels of as many bytes as an access
                let (format, channels) =
                    [(U8, 1), (U8, 2), (U8, 4), (3, 2), (3, 4)][(bytes as u32).trailing_zeros() as usize];
                let array = array3d(extent, format, channels, flags | SURFACE).unwrap();
                let object = surface(array).unwrap();
                let mut inputs = Vec::new();
                for z in 0..depth {
                    for y in 0..height {
                        for x in 0..n {
                            let [x, y, z] = [x * bytes, y, z].map(|n| n as u32);
                            inputs.push([x, y, z, z]);
                        }
                    }
                }
                let make =
                    "mad.lo.u32 %r8, %r2, 40, %r1; mad.lo.u32 %r8, %r8, 1000, %r0; add.u32 %r9, %r8, 7;
                    xor.b32 %r10, %r8, -1; mul.lo.u32 %r11, %r8, 3;";
                let store =
                    format!("{make} {before} sust.b.{geometry}.{width}.trap [%rd0, {coordinates}], {data};");
                run(&store, object, &inputs).unwrap();
                let load = format!("suld.b.{geometry}.{width}.trap {data}, [%rd0, {coordinates}]; {after}");
                let found = run(&load, object, &inputs).unwrap();
                let memory = bytes_of(array, [n * bytes, height, depth]);
                for ([x, y, z, _], found) in inputs.iter().zip(&found) {
                    let v = (z * 40 + y) * 1000 + x;
                    let words = [v, v + 7, !v, v.wrapping_mul(3)];
                    let want: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).take(bytes).collect();
                    let [x, y, z] = [*x, *y, *z].map(|n| n as usize);
                    let at = (z * height + y) * n * bytes + x;
                    assert_eq!(memory[at..at + bytes], want[..], "{geometry} {width} {n}: stored");
                    let found: Vec<u8> = found.iter().flat_map(|w| w.to_le_bytes()).collect();
                    assert_eq!(found[..bytes], want[..], "{geometry} {width} {n}: loaded");
                    assert!(found[bytes..].iter().all(|&b| b == 0));
                }
                call!("cuSurfObjectDestroy", (u64), object);
                call!("cuArrayDestroy", (*mut c_void), array);
            }
        }
    }
}

/// Places outside of a surface of 3 x 2 x 2 words, and the nearest ones inside: byte, row, slice.
const OUTSIDE: [([i32; 3], [usize; 3]); 8] = [
    ([-4, 0, 0], [0, 0, 0]),
    ([12, 1, 1], [8, 1, 1]),
    ([10, 1, 0], [8, 1, 0]), // half outside
    ([4, -1, 0], [4, 0, 0]),
    ([4, 2, 1], [4, 1, 1]),
    ([0, 0, 2], [0, 0, 1]),
    ([0, 1, -9], [0, 1, 0]),
    ([i32::MIN, i32::MAX, i32::MAX], [0, 1, 1]),
];

fn words() -> Vec<u8> {
    (0..12u32).flat_map(|n| (100 + n).to_le_bytes()).collect()
}

#[test]
fn outside_is_trapped_clamped_or_zero() {
    const AT: &str = "[%rd0, {%r0, %r1, %r2, %r2}]";
    for (geometry, flags) in [("3d", 0), ("a2d", LAYERED)] {
        let at = if flags == LAYERED { "[%rd0, {%r2, %r0, %r1, %r1}]" } else { AT };
        for (place, nearest) in OUTSIDE {
            let _turn = driver(Config::default());
            primary();
            // a layer is an unsigned number
            let nearest =
                if flags == LAYERED && place[2] < 0 { [nearest[0], nearest[1], 1] } else { nearest };
            let array = filled([3, 2, 2], 3, 1, flags | SURFACE, &mut words());
            let object = surface(array).unwrap();
            let input = [[place[0] as u32, place[1] as u32, place[2] as u32, 0]];
            let word = nearest[0] / 4 + 3 * (nearest[1] + 2 * nearest[2]);
            let load = |outside: &str| {
                run(&format!("mov.u32 %r4, 9; suld.b.{geometry}.b32.{outside} %r4, {at};"), object, &input)
            };
            let store = |outside: &str| {
                run(
                    &format!("mov.u32 %r8, 7; sust.b.{geometry}.b32.{outside} {at}, {{%r8}};"),
                    object,
                    &input,
                )
            };
            assert_eq!(load("zero").unwrap()[0][0], 0, "{place:?}");
            assert_eq!(load("clamp").unwrap()[0][0], 100 + word as u32, "{place:?}");
            store("zero").unwrap();
            assert_eq!(bytes_of(array, [12, 2, 2]), words(), "{place:?}");
            store("clamp").unwrap();
            let mut want = words();
            want[4 * word..4 * word + 4].copy_from_slice(&7u32.to_le_bytes());
            assert_eq!(bytes_of(array, [12, 2, 2]), want, "{place:?}");
            let finding = store("trap").unwrap_err();
            assert_eq!((finding.kind, finding.kind.code()), (FindingKind::SurfaceTrap, 719), "{place:?}");
            assert!(finding.message.starts_with("4-byte surface store at byte "), "{finding}");
        }
    }
    let _turn = driver(Config::default());
    primary();
    let object = surface(filled([3, 2, 2], 3, 1, SURFACE, &mut words())).unwrap();
    // a trap is what is meant if nothing is said
    let finding = run(&format!("suld.b.3d.b32 {{%r4}}, {AT};"), object, &[[12, 0, 0, 0]]).unwrap_err();
    assert_eq!(finding.kind, FindingKind::SurfaceTrap);
}

#[test]
fn an_access_wider_than_a_row_has_no_place() {
    let _turn = driver(Config::default());
    primary();
    let array = filled([3, 0, 0], U8, 1, SURFACE, &mut [1, 2, 3]);
    let object = surface(array).unwrap();
    let code = "mov.u32 %r8, -1; sust.b.1d.b32.clamp [%rd0, {%r0}], {%r8}; suld.b.1d.b32.clamp {%r4}, [%rd0, {%r0}];";
    assert_eq!(run(code, object, &[[0; 4]]).unwrap()[0][0], 0);
    assert_eq!(bytes_of(array, [3, 1, 1]), [1, 2, 3]);
    // the nearest place is aligned: the first eight of twelve bytes
    let words = filled([3, 0, 0], 3, 1, SURFACE, &mut (0..12).collect::<Vec<u8>>());
    let code = "suld.b.1d.v2.b32.clamp {%r4, %r5}, [%rd0, {%r0}];";
    let found = run(code, surface(words).unwrap(), &[[40, 0, 0, 0]]).unwrap()[0];
    assert_eq!(found[..2], [0x0302_0100, 0x0706_0504]);
}

#[test]
fn surfaces_have_the_checks_of_memory() {
    let start = |checks| {
        let turn = driver(Config { checks, ..Config::default() });
        primary();
        turn
    };
    let _turn = start(Checks::ALL);
    let object = surface(array3d([8, 0, 0], 3, 1, SURFACE).unwrap()).unwrap();
    let load = "suld.b.1d.b32.trap {%r4}, [%rd0, {%r0}];";
    let finding = run(load, object, &[[4, 0, 0, 0]]).unwrap_err();
    assert_eq!(finding.kind, FindingKind::Uninitialized);
    assert!(finding.message.contains("surface load"), "{finding}");
    drop(_turn);

    let _turn = start(Checks::ALL);
    let object = surface(filled([8, 0, 0], 3, 1, SURFACE, &mut [0; 32])).unwrap();
    assert_eq!(run(load, object, &[[2, 0, 0, 0]]).unwrap_err().kind, FindingKind::Misaligned);
    drop(_turn);

    // two blocks store different values to one word
    let _turn = start(Checks::ALL);
    let object = surface(filled([8, 0, 0], 3, 1, SURFACE, &mut [0; 32])).unwrap();
    let inputs: Vec<[u32; 4]> = (0..80).map(|n| [0, n, 0, 0]).collect();
    let store = "mov.u32 %r8, %ctaid.x; add.u32 %r8, %r8, 1; sust.b.1d.b32.trap [%rd0, {%r0}], {%r8};";
    assert_eq!(run(store, object, &inputs).unwrap_err().kind, FindingKind::GlobalRace);
    drop(_turn);

    // neighbours' bytes are theirs
    let _turn = start(Checks::ALL);
    let array = filled([80, 0, 0], U8, 1, SURFACE, &mut [0; 80]);
    let inputs: Vec<[u32; 4]> = (0..80).map(|n| [n, 0, 0, 0]).collect();
    let bytes = "cvt.u16.u32 %h0, %r16; sust.b.1d.b8.trap [%rd0, {%r0}], {%h0};";
    run(bytes, surface(array).unwrap(), &inputs).unwrap();
    assert_eq!(bytes_of(array, [80, 1, 1]), (0..80).collect::<Vec<u8>>());
    drop(_turn);

    // a texture reads what another block stores through a surface
    let _turn = start(Checks::ALL);
    let array = filled([8, 0, 0], 3, 1, SURFACE, &mut [0; 32]);
    let object = surface(array).unwrap();
    let texture = texture(Resource::array(array), Sampling::default(), None).unwrap();
    let code = format!(
        "mov.u32 %r9, %ctaid.x; setp.eq.u32 %p1, %r9, 0; mov.u32 %r8, 1; mov.u64 %rd4, {texture};
        @%p1 sust.b.1d.b32.trap [%rd0, {{%r0}}], {{%r8}};
        @!%p1 tex.1d.v4.u32.s32 {{%r4, %r5, %r6, %r7}}, [%rd4, {{%r0}}];"
    );
    let inputs = vec![[0; 4]; 80];
    assert_eq!(run(&code, object, &inputs).unwrap_err().kind, FindingKind::GlobalRace);
    drop(_turn);

    // in a later launch it sees what was stored
    let _turn = start(Checks::ALL);
    let array = filled([8, 0, 0], 3, 1, SURFACE, &mut [0; 32]);
    let (object, seen) = (
        surface(array).unwrap(),
        crate::common::images::texture(Resource::array(array), Sampling::default(), None).unwrap(),
    );
    run("sust.b.1d.b32.trap [%rd0, {%r0}], {%r1};", object, &[[8, 55, 0, 0]]).unwrap();
    let found = run("tex.1d.v4.u32.s32 {%r4, %r5, %r6, %r7}, [%rd0, {%r0}];", seen, &[[2, 0, 0, 0]]).unwrap();
    assert_eq!(found[0][0], 55);
}

#[test]
fn a_wrong_surface_is_a_finding_or_an_error() {
    let start = || {
        let turn = driver(Config::default());
        primary();
        turn
    };
    let turn = start();
    // an array that was not made for surfaces, and memory
    let plain = array3d([8, 8, 0], U8, 1, 0).unwrap();
    assert_eq!(surface(plain), Err(1));
    assert_eq!(surface(std::ptr::null_mut()), Err(1));
    let mut object = 0u64;
    let memory = crate::common::images::uploaded(&[0; 512]);
    let linear = Resource::linear(memory, U8, 1, 512);
    assert_eq!(code!("cuSurfObjectCreate", (*mut u64, *const Resource), &mut object, &linear), 1);
    let array = array3d([8, 8, 0], U8, 1, SURFACE).unwrap();
    let object = surface(array).unwrap();
    let mut of = Resource::default();
    call!("cuSurfObjectGetResourceDesc", (*mut Resource, u64), &mut of, object);
    assert_eq!((of.kind, of.of[0]), (0, array as u64));
    // objects of one kind are none of the other
    assert_eq!(code!("cuTexObjectDestroy", (u64), object), 1);
    assert_eq!(code!("cuTexObjectGetResourceDesc", (*mut Resource, u64), &mut of, object), 1);
    for (query, want) in [("width", 8), ("height", 8), ("depth", 0), ("array_size", 0), ("memory_layout", 0)]
    {
        let found = run(&format!("suq.{query}.b32 %r4, [%rd0];"), object, &[[0; 4]]).unwrap();
        assert_eq!(found[0][0], want, "{query}");
    }
    call!("cuSurfObjectDestroy", (u64), object);
    assert_eq!(code!("cuSurfObjectDestroy", (u64), object), 1);
    drop(turn);

    let store = "sust.b.2d.b8.trap [%rd0, {%r0, %r1}], {%h0};";
    type Make<'a> = &'a dyn Fn() -> u64;
    let cases: [(&str, Make<'_>); 4] = [
        ("no live", &|| 7),
        ("array was destroyed", &|| {
            let array = array3d([8, 8, 0], U8, 1, SURFACE).unwrap();
            let object = surface(array).unwrap();
            call!("cuArrayDestroy", (*mut c_void), array);
            object
        }),
        ("is a texture object", &|| {
            let array = array3d([8, 8, 0], U8, 1, SURFACE).unwrap();
            texture(Resource::array(array), Sampling::default(), None).unwrap()
        }),
        ("one dimension", &|| surface(array3d([8, 0, 0], U8, 1, SURFACE).unwrap()).unwrap()),
    ];
    for (message, make) in cases {
        let _turn = start();
        let finding = run(&format!("mov.u16 %h0, 1; {store}"), make(), &[[0; 4]]).unwrap_err();
        assert_eq!(finding.kind, FindingKind::WrongObject, "{finding}");
        assert!(finding.message.contains(message), "{finding}");
    }
}
