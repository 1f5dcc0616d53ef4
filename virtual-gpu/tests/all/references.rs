//! Texture and surface references of modules.

use crate::common::images::{AS_INTEGER, NORMALIZED, Program, array3d, bytes_of, filled, uploaded};
use crate::common::{call, code, driver, primary};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use pascaline_virtual_gpu::{Config, FindingKind};

const U8: c_int = 1;
const F32: c_int = 32;
const INVALID: u32 = 1;
const DECLARATIONS: &str = ".global .texref tex;\n.global .surfref surf;\n.global .u32 plain;";

fn named(symbol: &str, program: &Program, name: &str) -> Result<*mut c_void, u32> {
    let name = CString::new(name).unwrap();
    let mut reference = null_mut();
    let code = code!(
        symbol,
        (*mut *mut c_void, *mut c_void, *const c_char),
        &mut reference,
        program.module,
        name.as_ptr()
    );
    if code == 0 { Ok(reference) } else { Err(code) }
}

fn texture_of(program: &Program) -> *mut c_void {
    named("cuModuleGetTexRef", program, "tex").unwrap()
}

fn set_array(reference: *mut c_void, array: *mut c_void) -> u32 {
    code!("cuTexRefSetArray", (*mut c_void, *mut c_void, c_uint), reference, array, 1)
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

const FETCH: &str = "tex.1d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [tex, {%r0}];";

#[test]
fn a_reference_is_sampled_as_it_is_set() {
    let _turn = driver(Config::default());
    primary();
    for code in [FETCH, "mov.u64 %rd4, tex; tex.1d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [%rd4, {%r0}];"] {
        let program = Program::new(DECLARATIONS, code);
        let reference = texture_of(&program);
        assert_eq!(texture_of(&program), reference);
        let array = filled([2, 0, 0], F32, 1, 0, &mut floats(&[10.0, 20.0]));
        assert_eq!(set_array(reference, array), 0);
        let at = |x: f32| f32::from_bits(program.run(0, &[[x.to_bits(), 0, 0, 0]]).unwrap()[0][0]);
        // the nearest, clamped
        assert_eq!([at(0.9), at(1.0), at(-3.0), at(7.0)], [10.0, 20.0, 10.0, 20.0]);
        call!("cuTexRefSetFilterMode", (*mut c_void, c_int), reference, 1);
        assert_eq!([at(0.75), at(1.0), at(9.0)], [12.5, 15.0, 20.0]);
        call!("cuTexRefSetFlags", (*mut c_void, c_uint), reference, NORMALIZED);
        call!("cuTexRefSetAddressMode", (*mut c_void, c_int, c_int), reference, 0, 0);
        assert_eq!([at(0.5), at(1.25), at(1.0)], [15.0, 10.0, 15.0]);
        call!("cuTexRefSetAddressMode", (*mut c_void, c_int, c_int), reference, 0, 3);
        call!(
            "cuTexRefSetBorderColor",
            (*mut c_void, *const f32),
            reference,
            [-4f32, 0.0, 0.0, 0.0].as_ptr()
        );
        assert_eq!([at(2.0), at(0.0)], [-4.0, 3.0]);

        let (mut mode, mut filter, mut flags, mut color) = (9, 9, 9u32, [0f32; 4]);
        call!("cuTexRefGetAddressMode", (*mut c_int, *mut c_void, c_int), &mut mode, reference, 0);
        call!("cuTexRefGetFilterMode", (*mut c_int, *mut c_void), &mut filter, reference);
        call!("cuTexRefGetFlags", (*mut c_uint, *mut c_void), &mut flags, reference);
        call!("cuTexRefGetBorderColor", (*mut f32, *mut c_void), color.as_mut_ptr(), reference);
        assert_eq!((mode, filter, flags, color[0]), (3, 1, NORMALIZED, -4.0));
        let (mut format, mut channels, mut bound) = (0, 0, null_mut::<c_void>());
        call!(
            "cuTexRefGetFormat",
            (*mut c_int, *mut c_int, *mut c_void),
            &mut format,
            &mut channels,
            reference
        );
        call!("cuTexRefGetArray", (*mut *mut c_void, *mut c_void), &mut bound, reference);
        assert_eq!((format, channels, bound), (F32, 1, array));
        let mut address = 0u64;
        assert_eq!(code!("cuTexRefGetAddress_v2", (*mut u64, *mut c_void), &mut address, reference), INVALID);
        program.unload();
        assert_eq!(set_array(reference, array), INVALID); // of no module
    }
}

#[test]
fn a_launch_keeps_what_was_bound_when_it_was_queued() {
    let _turn = driver(Config { late: true, ..Config::default() });
    primary();
    let program = Program::new(DECLARATIONS, FETCH);
    let reference = texture_of(&program);
    let outs: Vec<u64> = (0..8)
        .map(|n| {
            let array = filled([1, 0, 0], F32, 1, 0, &mut floats(&[n as f32]));
            assert_eq!(set_array(reference, array), 0);
            program.queue(0, &[[0; 4]]).unwrap()
        })
        .collect();
    for (n, out) in outs.into_iter().enumerate() {
        assert_eq!(f32::from_bits(Program::finish(out, 1).unwrap()[0][0]), n as f32);
    }
}

#[test]
fn memory_is_bound_by_its_address() {
    let _turn = driver(Config::default());
    primary();
    let program = Program::new(
        DECLARATIONS,
        "tex.1d.v4.u32.s32 {%r4, %r5, %r6, %r7}, [tex, {%r0}]; txq.width.b32 %r7, [tex];",
    );
    let reference = texture_of(&program);
    let memory = uploaded(&(0..=255).collect::<Vec<u8>>());
    let (mut offset, mut bound) = (9usize, 0u64);
    let set_address = |offset: *mut usize, at: u64, bytes: usize| {
        code!("cuTexRefSetAddress_v2", (*mut usize, *mut c_void, u64, usize), offset, reference, at, bytes)
    };
    assert_eq!(set_address(&mut offset, memory, 8), INVALID); // without a format
    call!("cuTexRefSetFormat", (*mut c_void, c_int, c_int), reference, U8, 2);
    call!("cuTexRefSetFlags", (*mut c_void, c_uint), reference, AS_INTEGER);
    assert_eq!(set_address(null_mut(), memory, 8), 0);
    assert_eq!(program.run(0, &[[3, 0, 0, 0]]).unwrap()[0], [6, 7, 0, 4]);
    // two texels on, which the kernel must add
    assert_eq!(set_address(null_mut(), memory + 4, 8), INVALID);
    assert_eq!(set_address(&mut offset, memory + 4, 8), 0);
    assert_eq!(offset, 4);
    assert_eq!(program.run(0, &[[5, 0, 0, 0], [6, 0, 0, 0]]).unwrap(), [[10, 11, 0, 6], [0, 0, 0, 6]]);
    call!("cuTexRefGetAddress_v2", (*mut u64, *mut c_void), &mut bound, reference);
    assert_eq!(bound, memory);
    assert_eq!(set_address(&mut offset, memory + 1, 8), INVALID); // inside a texel
    assert_eq!(set_address(&mut offset, memory, 258), INVALID); // past the allocation
    program.unload();

    let program = Program::new(DECLARATIONS, "tex.2d.v4.u32.f32 {%r4, %r5, %r6, %r7}, [tex, {%r0, %r1}];");
    let reference = texture_of(&program);
    call!("cuTexRefSetFlags", (*mut c_void, c_uint), reference, AS_INTEGER);
    type Descriptor = (usize, usize, c_int, c_uint);
    let descriptor: Descriptor = (5, 3, U8, 1);
    call!(
        "cuTexRefSetAddress2D_v3",
        (*mut c_void, *const Descriptor, u64, usize),
        reference,
        &descriptor,
        memory,
        64
    );
    let input = [[4.5f32.to_bits(), 2.5f32.to_bits(), 0, 0]];
    assert_eq!(program.run(0, &input).unwrap()[0][0], 2 * 64 + 4);
}

#[test]
fn a_surface_is_bound_too() {
    let _turn = driver(Config::default());
    primary();
    let program =
        Program::new(DECLARATIONS, "sust.b.1d.b32.trap [surf, {%r0}], {%r1}; suq.width.b32 %r4, [surf];");
    let reference = named("cuModuleGetSurfRef", &program, "surf").unwrap();
    let bind = |array, flags| {
        code!("cuSurfRefSetArray", (*mut c_void, *mut c_void, c_uint), reference, array, flags)
    };
    let array = filled([3, 0, 0], 3, 1, 2, &mut [0; 12]);
    assert_eq!(bind(array3d([3, 0, 0], 3, 1, 0).unwrap(), 0), INVALID); // not made for surfaces
    assert_eq!(bind(array, 1), INVALID);
    assert_eq!(bind(array, 0), 0);
    assert_eq!(program.run(0, &[[4, 0x0102_0304, 0, 0]]).unwrap()[0][0], 3);
    assert_eq!(bytes_of(array, [12, 1, 1]), [0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0]);
    let mut bound = null_mut::<c_void>();
    call!("cuSurfRefGetArray", (*mut *mut c_void, *mut c_void), &mut bound, reference);
    assert_eq!(bound, array);
}

#[test]
fn wrong_references_are_errors_or_findings() {
    let start = || {
        let turn = driver(Config::default());
        primary();
        turn
    };
    let turn = start();
    let program = Program::new(DECLARATIONS, FETCH);
    assert_eq!(named("cuModuleGetTexRef", &program, "surf"), Err(500));
    assert_eq!(named("cuModuleGetTexRef", &program, "plain"), Err(500));
    assert_eq!(named("cuModuleGetSurfRef", &program, "tex"), Err(500));
    let name = CString::new("tex").unwrap();
    let (mut at, mut bytes) = (0u64, 0usize);
    let global = code!(
        "cuModuleGetGlobal_v2",
        (*mut u64, *mut usize, *mut c_void, *const c_char),
        &mut at,
        &mut bytes,
        program.module,
        name.as_ptr()
    );
    assert_eq!(global, 500);
    let reference = texture_of(&program);
    let surf = named("cuModuleGetSurfRef", &program, "surf").unwrap();
    let array = filled([2, 0, 0], U8, 1, 2, &mut [1, 2]);
    assert_eq!(set_array(surf, array), INVALID); // of the other kind
    assert_eq!(set_array(null_mut(), array), INVALID);
    assert_eq!(set_array(reference, 8 as *mut c_void), INVALID);
    assert_eq!(code!("cuTexRefSetArray", (*mut c_void, *mut c_void, c_uint), reference, array, 0), INVALID);
    for (symbol, value, want) in [
        ("cuTexRefSetFlags", 4, INVALID),
        ("cuTexRefSetFlags", 16, 801),
        ("cuTexRefSetFilterMode", 2, INVALID),
        ("cuTexRefSetMaxAnisotropy", 2, 801),
        ("cuTexRefSetMaxAnisotropy", 1, 0),
    ] {
        assert_eq!(code!(symbol, (*mut c_void, c_int), reference, value), want, "{symbol} {value}");
    }
    for (of, mode) in [(3, 0), (-1, 0), (0, 4), (0, -1)] {
        let code = code!("cuTexRefSetAddressMode", (*mut c_void, c_int, c_int), reference, of, mode);
        assert_eq!(code, INVALID, "{of} {mode}");
    }
    // a filter of integers
    assert_eq!(set_array(reference, array), 0);
    call!("cuTexRefSetFlags", (*mut c_void, c_uint), reference, AS_INTEGER);
    call!("cuTexRefSetFilterMode", (*mut c_void, c_int), reference, 1);
    assert_eq!(program.queue(0, &[[0; 4]]), Err(INVALID));
    drop(turn);

    for (code, message) in [
        (FETCH, "nothing is bound"),
        ("sust.b.1d.b32.trap [surf, {%r0}], {%r1};", "nothing is bound"),
        ("tex.1d.v4.f32.f32 {%r4, %r5, %r6, %r7}, [plain, {%r0}];", "no live texture"),
    ] {
        let _turn = start();
        let finding = Program::new(DECLARATIONS, code).run(0, &[[0; 4]]).unwrap_err();
        assert_eq!(finding.kind, FindingKind::WrongObject, "{finding}");
        assert!(finding.message.contains(message), "{finding}");
    }
    for (code, message) in [
        (FETCH, "array was destroyed"),
        ("sust.b.1d.b32.trap [tex, {%r0}], {%r1};", "array was destroyed"),
        ("mov.u64 %rd4, tex; sust.b.1d.b8.trap [%rd4, {%r0}], {%h0};", "is a texture object"),
    ] {
        let _turn = start();
        let program = Program::new(DECLARATIONS, &format!("mov.u16 %h0, 0; {code}"));
        let array = filled([2, 0, 0], U8, 1, 2, &mut [1, 2]);
        assert_eq!(set_array(texture_of(&program), array), 0);
        if message.contains("destroyed") {
            call!("cuArrayDestroy", (*mut c_void), array);
        }
        let finding = program.run(0, &[[0; 4]]).unwrap_err();
        assert_eq!(finding.kind, FindingKind::WrongObject, "{finding}");
        assert!(finding.message.contains(message), "{finding}");
    }
}
