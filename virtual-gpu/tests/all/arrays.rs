//! CUDA arrays through the driver API: what can be made, what is refused, and copies.

use crate::common::images::{Copy, CopySide, Volume, array3d, copy, host, of};
use crate::common::{call, code, driver, primary};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

use pascaline_virtual_gpu::{Checks, Config, GTX1080, take_findings};

const U8: c_int = 1;
const F32: c_int = 32;

fn create(extent: [usize; 3], format: c_int, channels: c_uint, flags: c_uint) -> Result<*mut c_void, u32> {
    array3d(extent, format, channels, flags)
}

#[test]
fn extents_and_flags_are_those_of_the_documentation() {
    let _turn = driver(Config::default());
    primary();
    const INVALID: u32 = 1;
    const UNSUPPORTED: u32 = 801;
    let cases: &[([usize; 3], c_int, c_uint, c_uint, u32)] = &[
        ([131_072, 0, 0], U8, 1, 0, 0),
        ([131_073, 0, 0], U8, 1, 0, INVALID),
        ([32_769, 0, 0], U8, 1, 2, INVALID), // a surface is narrower
        ([0, 0, 0], U8, 1, 0, INVALID),
        ([0, 4, 0], U8, 1, 0, INVALID),
        ([4, 65_536, 0], U8, 1, 0, 0),
        ([4, 65_537, 0], U8, 1, 0, INVALID),
        ([4, 0, 3], U8, 1, 0, INVALID), // depth without height, and no layers
        ([2, 3, 16_384], U8, 1, 0, 0),
        ([2, 3, 16_385], U8, 1, 0, 0), // the alternate extents
        ([2, 3, 16_385], U8, 1, 2, INVALID),
        ([2, 3, 32_769], U8, 1, 0, INVALID),
        ([5, 0, 2_048], U8, 1, 1, 0),
        ([5, 0, 2_049], U8, 1, 1, INVALID),
        ([5, 6, 7], U8, 1, 1, 0),
        ([5, 6, 0], U8, 1, 1, INVALID), // no layers
        ([4, 4, 6], U8, 1, 4, 0),
        ([4, 5, 6], U8, 1, 4, INVALID),
        ([4, 4, 5], U8, 1, 4, INVALID),
        ([4, 4, 12], U8, 1, 4, INVALID),
        ([4, 4, 12], U8, 1, 5, 0),
        ([4, 4, 13], U8, 1, 5, INVALID),
        ([4, 4, 2_052], U8, 1, 5, INVALID),
        ([4, 4, 0], U8, 1, 8, 0),
        ([4, 0, 0], U8, 1, 8, INVALID), // gathers are for two dimensions
        ([4, 4, 4], U8, 1, 8, INVALID),
        ([4, 4, 0], U8, 3, 0, INVALID),
        ([4, 4, 0], U8, 0, 0, INVALID),
        ([4, 4, 0], 4, 1, 0, INVALID),
        ([4, 4, 0], 0xb0, 1, 0, UNSUPPORTED), // NV12
        ([4, 4, 0], U8, 1, 16, UNSUPPORTED),  // a depth texture
        ([4, 4, 0], U8, 1, 64, UNSUPPORTED),  // sparse
        ([4, 4, 0], U8, 1, 1 << 20, INVALID),
    ];
    for &(extent, format, channels, flags, want) in cases {
        let made = create(extent, format, channels, flags);
        assert_eq!(made.err().unwrap_or(0), want, "{extent:?} {format} {channels} {flags}");
    }
    for format in [1, 2, 3, 8, 9, 10, 16, 32] {
        for channels in [1, 2, 4] {
            assert!(create([3, 2, 0], format, channels, 0).is_ok(), "{format} {channels}");
        }
    }
    assert_eq!(code!("cuArrayCreate_v2", (*mut *mut c_void, *const c_void), null_mut(), null()), INVALID);
}

#[test]
fn limits_are_attributes_of_the_device() {
    let _turn = driver(Config::default());
    primary();
    let attribute = |n: c_int| {
        let mut value = 0;
        call!("cuDeviceGetAttribute", (*mut c_int, c_int, c_int), &mut value, n, 0);
        value
    };
    // of a Tesla P100
    for (n, want) in [
        (14, 512),
        (21, 131_072),
        (22, 131_072),
        (23, 65_536),
        (26, 16_384),
        (28, 32_768),
        (29, 2_048),
        (43, 2_048),
        (44, 1),
        (46, 32_768),
        (48, 8_192),
        (49, 32_768),
        (51, 32),
        (53, 32_768),
        (54, 2_046),
        (55, 32_768),
        (57, 65_536),
        (60, 16_384),
        (68, 2_046),
        (69, 134_217_728),
        (71, 65_000),
        (72, 2_097_120),
        (73, 0), // no mipmaps
    ] {
        assert_eq!(attribute(n), want, "{n}");
    }
}

#[test]
fn descriptors_tell_what_an_array_was_made_with() {
    let _turn = driver(Config::default());
    primary();
    let array = create([5, 6, 12], F32, 2, 1 | 2).unwrap();
    let mut d3 = Volume::default();
    call!("cuArray3DGetDescriptor_v2", (*mut Volume, *mut c_void), &mut d3, array);
    assert_eq!(d3, Volume { extent: [5, 6, 12], format: F32, channels: 2, flags: 3, pad: 0 });
    let mut d2 = (0usize, 0usize, 0 as c_int, 0 as c_uint);
    call!("cuArrayGetDescriptor_v2", (*mut (usize, usize, c_int, c_uint), *mut c_void), &mut d2, array);
    assert_eq!(d2, (5, 6, F32, 2));

    let (mut free, mut before, mut total) = (0usize, 0usize, 0usize);
    call!("cuMemGetInfo_v2", (*mut usize, *mut usize), &mut before, &mut total);
    call!("cuArrayDestroy", (*mut c_void), array);
    call!("cuMemGetInfo_v2", (*mut usize, *mut usize), &mut free, &mut total);
    assert!(free > before);
    assert_eq!(code!("cuArrayDestroy", (*mut c_void), array), 400);
    assert_eq!(code!("cuArray3DGetDescriptor_v2", (*mut Volume, *mut c_void), &mut d3, array), 400);
    // an array is no address
    assert_eq!(code!("cuMemFree_v2", (u64), create([4, 0, 0], U8, 1, 0).unwrap() as u64), 1);
}

#[test]
fn volumes_go_through_arrays() {
    let _turn = driver(Config::default());
    primary();
    // rows of 3 texels of 4 bytes, which no alignment of rows divides
    let array = create([3, 2, 5], U8, 4, 0).unwrap();
    let mut bytes: Vec<u8> = (0..12 * 2 * 5).collect();
    assert_eq!(copy(host(&mut bytes, 0, 0), of(array, [0; 3]), [12, 2, 5]), 0);
    let mut back = [0xaau8; 4 * 3];
    // texel (1, 1) of slices 2 to 4
    assert_eq!(copy(of(array, [4, 1, 2]), host(&mut back, 4, 1), [4, 1, 3]), 0);
    let want: Vec<u8> = (2..5).flat_map(|z| (0..4).map(move |b| z * 24 + 12 + 4 + b)).collect();
    assert_eq!(back[..], want[..]);

    // from array to array, and past every end
    let other = create([3, 2, 5], U8, 4, 0).unwrap();
    assert_eq!(copy(of(array, [0; 3]), of(other, [0; 3]), [12, 2, 5]), 0);
    let mut whole = [0u8; 120];
    assert_eq!(copy(of(other, [0; 3]), host(&mut whole, 0, 0), [12, 2, 5]), 0);
    assert_eq!(whole[..], bytes[..]);
    for (at, extent) in [
        ([4, 0, 0], [12, 1, 1]),
        ([0, 1, 0], [12, 2, 1]),
        ([0, 0, 4], [12, 2, 2]),
        ([0, 0, 5], [4, 1, 1]),
        ([2, 0, 0], [4, 1, 1]), // inside a texel
        ([0, 0, 0], [6, 1, 1]),
        ([usize::MAX - 3, 0, 0], [4, 1, 1]),
        ([0, usize::MAX, 0], [4, 1, 1]),
    ] {
        assert_eq!(copy(of(array, at), host(&mut whole, 12, 2), extent), 1, "{at:?} {extent:?}");
        assert_eq!(copy(host(&mut bytes, 12, 2), of(other, at), extent), 1, "{at:?} {extent:?}");
    }
    assert_eq!(copy(of(null_mut(), [0; 3]), host(&mut whole, 0, 0), [4, 1, 1]), 400);
    // nothing was copied by what was refused
    assert_eq!(copy(of(other, [0; 3]), host(&mut whole, 0, 0), [12, 2, 5]), 0);
    assert_eq!(whole[..], bytes[..]);
}

#[test]
fn rows_go_through_arrays_of_one_dimension() {
    let _turn = driver(Config::default());
    primary();
    let line = create([7, 0, 0], F32, 1, 0).unwrap();
    let values: Vec<f32> = (0..7).map(|n| n as f32).collect();
    let mut p = 0u64;
    call!("cuMemAlloc_v2", (*mut u64, usize), &mut p, 28);
    call!("cuMemcpyHtoD_v2", (u64, *const f32, usize), p, values.as_ptr(), 28);
    call!("cuMemcpyDtoA_v2", (*mut c_void, usize, u64, usize), line, 0, p, 28);
    call!("cuMemcpyHtoA_v2", (*mut c_void, usize, *const f32, usize), line, 8, [20f32, 30.0].as_ptr(), 8);
    let other = create([7, 0, 0], F32, 1, 0).unwrap();
    call!("cuMemcpyAtoA_v2", (*mut c_void, usize, *mut c_void, usize, usize), other, 0, line, 0, 28);
    let mut back = [0f32; 7];
    call!("cuMemcpyAtoH_v2", (*mut f32, *mut c_void, usize, usize), back.as_mut_ptr(), other, 0, 28);
    assert_eq!(back, [0.0, 1.0, 20.0, 30.0, 4.0, 5.0, 6.0]);
    call!("cuMemcpyAtoD_v2", (u64, *mut c_void, usize, usize), p, other, 12, 16);
    call!("cuMemcpyDtoH_v2", (*mut f32, u64, usize), back.as_mut_ptr(), p, 16);
    assert_eq!(back[..4], [30.0, 4.0, 5.0, 6.0]);

    let stream: *mut c_void = null_mut();
    call!(
        "cuMemcpyHtoAAsync_v2",
        (*mut c_void, usize, *const f32, usize, *mut c_void),
        line,
        0,
        [9f32].as_ptr(),
        4,
        stream
    );
    call!(
        "cuMemcpyAtoHAsync_v2",
        (*mut f32, *mut c_void, usize, usize, *mut c_void),
        back.as_mut_ptr(),
        line,
        0,
        8,
        stream
    );
    call!("cuCtxSynchronize", (),);
    assert_eq!(back[..2], [9.0, 1.0]);

    let to_host = |array, offset: usize, bytes: usize| {
        let mut out = [0f32; 64];
        code!(
            "cuMemcpyAtoH_v2",
            (*mut f32, *mut c_void, usize, usize),
            out.as_mut_ptr(),
            array,
            offset,
            bytes
        )
    };
    assert_eq!(to_host(line, 4, 28), 1);
    assert_eq!(to_host(line, 2, 4), 1);
    assert_eq!(to_host(line, usize::MAX - 3, 8), 1);
    assert_eq!(to_host(create([7, 2, 0], F32, 1, 0).unwrap(), 0, 4), 1); // of two dimensions
    assert_eq!(to_host(8 as *mut c_void, 0, 4), 400);
}

#[test]
fn a_copy_of_an_array_is_no_node_of_a_graph() {
    let _turn = driver(Config::default());
    primary();
    let array = create([4, 2, 0], U8, 1, 0).unwrap();
    let mut bytes = [0u8; 8];
    let copy = Copy { src: host(&mut bytes, 0, 0), dst: of(array, [0; 3]), extent: [4, 2, 1] };
    let (mut graph, mut node, mut context) = (null_mut::<c_void>(), null_mut::<c_void>(), null_mut());
    call!("cuCtxGetCurrent", (*mut *mut c_void), &mut context);
    call!("cuGraphCreate", (*mut *mut c_void, c_uint), &mut graph, 0);
    let added = code!(
        "cuGraphAddMemcpyNode",
        (*mut *mut c_void, *mut c_void, *const *mut c_void, usize, *const Copy, *mut c_void),
        &mut node,
        graph,
        null(),
        0,
        &copy,
        context
    );
    assert_eq!(added, 801);
    let mut stream = null_mut::<c_void>();
    call!("cuStreamCreate", (*mut *mut c_void, c_uint), &mut stream, 1);
    call!("cuStreamBeginCapture_v2", (*mut c_void, c_uint), stream, 0);
    assert_eq!(code!("cuMemcpy3DAsync_v2", (*const Copy, *mut c_void), &copy, stream), 801);
}

#[test]
fn bytes_of_an_array_that_nothing_wrote_stay_unwritten() {
    let _turn = driver(Config { checks: Checks::ALL, ..Config::default() });
    primary();
    let array = create([4, 0, 0], U8, 1, 0).unwrap();
    let mut out = [0u8; 4];
    call!("cuMemcpyAtoH_v2", (*mut u8, *mut c_void, usize, usize), out.as_mut_ptr(), array, 0, 4);
    assert_eq!(out, [pascaline_virtual_gpu::POISON; 4]);
    assert!(take_findings().is_empty());
}

#[test]
fn devices_exchange_arrays() {
    let _turn = driver(Config { others: vec![(&GTX1080, None)], ..Config::default() });
    let contexts = [0, 1].map(|device| {
        let mut context = null_mut::<c_void>();
        call!("cuDevicePrimaryCtxRetain", (*mut *mut c_void, c_int), &mut context, device);
        context
    });
    let arrays = contexts.map(|context| {
        call!("cuCtxSetCurrent", (*mut c_void), context);
        create([4, 2, 3], U8, 1, 0).unwrap()
    });
    let mut bytes: Vec<u8> = (0..24).collect();
    call!("cuCtxSetCurrent", (*mut c_void), contexts[0]);
    assert_eq!(copy(host(&mut bytes, 0, 0), of(arrays[0], [0; 3]), [4, 2, 3]), 0);
    let side = |n: usize| CopySide { reserved: contexts[n], ..of(arrays[n], [0; 3]) };
    let between = Copy { src: side(0), dst: side(1), extent: [4, 2, 3] };
    call!("cuMemcpy3DPeer", (*const Copy), &between);
    call!("cuCtxSynchronize", (),);
    call!("cuCtxSetCurrent", (*mut c_void), contexts[1]);
    let mut back = [0u8; 24];
    assert_eq!(copy(of(arrays[1], [0; 3]), host(&mut back, 0, 0), [4, 2, 3]), 0);
    assert_eq!(back[..], bytes[..]);
    assert!(take_findings().is_empty());
    // an array with a context of the other device
    let wrong = Copy { src: CopySide { reserved: contexts[1], ..side(0) }, ..between };
    assert_eq!(code!("cuMemcpy3DPeer", (*const Copy), &wrong), 1);
}
