//! Arrays, textures and surfaces of the driver API, as tests make them, and kernels over them.

use super::{call, code, launch_kernel, load_kernel};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use pascaline_virtual_gpu::{Finding, take_findings};

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    pub extent: [usize; 3],
    pub format: c_int,
    pub channels: c_uint,
    pub flags: c_uint,
    pub pad: u32,
}

/// An array of width, height and depth; the error if there is none.
pub fn array3d(
    extent: [usize; 3],
    format: c_int,
    channels: c_uint,
    flags: c_uint,
) -> Result<*mut c_void, u32> {
    let (of, mut array) = (Volume { extent, format, channels, flags, pad: 0 }, std::ptr::null_mut());
    match code!("cuArray3DCreate_v2", (*mut *mut c_void, *const Volume), &mut array, &of) {
        0 => Ok(array),
        code => Err(code),
    }
}

/// `CUDA_MEMCPY3D`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy {
    pub src: CopySide,
    pub dst: CopySide,
    pub extent: [usize; 3],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CopySide {
    pub at: [usize; 3],
    pub lod: usize,
    pub kind: c_int,
    pub host: *mut c_void,
    pub device: u64,
    pub array: *mut c_void,
    pub reserved: *mut c_void,
    pub pitch: usize,
    pub height: usize,
}

pub const NOWHERE: CopySide = CopySide {
    at: [0; 3],
    lod: 0,
    kind: 1,
    host: null_mut(),
    device: 0,
    array: null_mut(),
    reserved: null_mut(),
    pitch: 0,
    height: 0,
};

pub fn host(bytes: &mut [u8], pitch: usize, height: usize) -> CopySide {
    CopySide { host: bytes.as_mut_ptr().cast(), pitch, height, ..NOWHERE }
}

pub fn of(array: *mut c_void, at: [usize; 3]) -> CopySide {
    CopySide { kind: 3, array, at, ..NOWHERE }
}

pub fn copy(src: CopySide, dst: CopySide, extent: [usize; 3]) -> u32 {
    code!("cuMemcpy3D_v2", (*const Copy), &Copy { src, dst, extent })
}

/// An array with these bytes; rows have no padding.
pub fn filled(
    extent: [usize; 3],
    format: c_int,
    channels: c_uint,
    flags: c_uint,
    bytes: &mut [u8],
) -> *mut c_void {
    let array = array3d(extent, format, channels, flags).unwrap();
    let [_, height, depth] = extent.map(|n| n.max(1));
    let row = bytes.len() / height / depth;
    assert_eq!(copy(host(bytes, 0, 0), of(array, [0; 3]), [row, height, depth]), 0);
    array
}

/// The bytes of an array.
pub fn bytes_of(array: *mut c_void, [row, height, depth]: [usize; 3]) -> Vec<u8> {
    let mut bytes = vec![0u8; row * height * depth];
    assert_eq!(copy(of(array, [0; 3]), host(&mut bytes, 0, 0), [row, height, depth]), 0);
    bytes
}

/// `CUDA_RESOURCE_DESC`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resource {
    pub kind: c_int,
    pub pad: u32,
    pub of: [u64; 16],
    pub flags: c_uint,
    pub pad_end: u32,
}

impl Resource {
    pub fn array(array: *mut c_void) -> Self {
        let mut of = [0; 16];
        of[0] = array as u64;
        Self { of, ..Self::default() }
    }

    pub fn linear(at: u64, format: c_int, channels: c_uint, bytes: u64) -> Self {
        let mut of = [0; 16];
        of[..3].copy_from_slice(&[at, format as u64 | u64::from(channels) << 32, bytes]);
        Self { kind: 2, of, ..Self::default() }
    }

    pub fn pitched(at: u64, format: c_int, channels: c_uint, [width, height, pitch]: [u64; 3]) -> Self {
        let mut of = [0; 16];
        of[..5].copy_from_slice(&[at, format as u64 | u64::from(channels) << 32, width, height, pitch]);
        Self { kind: 3, of, ..Self::default() }
    }
}

/// `CUDA_TEXTURE_DESC`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampling {
    pub address: [c_int; 3],
    pub filter: c_int,
    pub flags: c_uint,
    pub anisotropy: c_uint,
    pub mipmap_filter: c_int,
    pub mipmap: [f32; 3],
    pub border: [f32; 4],
    pub reserved: [c_int; 12],
}

/// `CUDA_RESOURCE_VIEW_DESC`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub format: c_int,
    pub pad: u32,
    pub extent: [usize; 3],
    pub levels: [c_uint; 2],
    pub layers: [c_uint; 2],
    pub reserved: [c_uint; 16],
}

pub const AS_INTEGER: c_uint = 1;
pub const NORMALIZED: c_uint = 2;

pub fn texture(resource: Resource, sampling: Sampling, view: Option<View>) -> Result<u64, u32> {
    let mut object = 0;
    let view = view.as_ref().map_or(std::ptr::null(), |view| view as *const View);
    let code = code!(
        "cuTexObjectCreate",
        (*mut u64, *const Resource, *const Sampling, *const View),
        &mut object,
        &resource,
        &sampling,
        view
    );
    if code == 0 { Ok(object) } else { Err(code) }
}

pub fn surface(array: *mut c_void) -> Result<u64, u32> {
    let mut object = 0;
    let code = code!("cuSurfObjectCreate", (*mut u64, *const Resource), &mut object, &Resource::array(array));
    if code == 0 { Ok(object) } else { Err(code) }
}

/// Device memory with these bytes.
pub fn uploaded(bytes: &[u8]) -> u64 {
    let mut at = 0;
    call!("cuMemAlloc_v2", (*mut u64, usize), &mut at, bytes.len().max(1));
    call!("cuMemcpyHtoD_v2", (u64, *const u8, usize), at, bytes.as_ptr(), bytes.len());
    at
}

/// Runs an instruction in a thread for each input, as [`Program`] says. The finding, if there is one.
pub fn run(code: &str, object: u64, inputs: &[[u32; 4]]) -> Result<Vec<[u32; 4]>, Finding> {
    let program = Program::new("", code);
    let results = program.run(object, inputs)?;
    program.unload();
    Ok(results)
}

/// A kernel that runs an instruction in a thread for each input, which is in registers %r0 to %r3. An object's handle is in %rd0,
/// results are left in %r4 to %r7; %r8 to %r15, %h0 to %h3, %rd4 to %rd7 are free.
pub struct Program {
    pub module: *mut c_void,
    function: *mut c_void,
}

impl Program {
    const BLOCK: u32 = 40;

    /// With declarations of its module.
    pub fn new(declarations: &str, code: &str) -> Self {
        let block = Self::BLOCK;
        let text = format!(
            ".version 6.4\n.target sm_61\n.address_size 64
{declarations}
.visible .entry k(.param .u64 object, .param .u64 in, .param .u64 out, .param .u32 n) {{
.reg .b64 %rd<8>; .reg .b32 %r<20>; .reg .b16 %h<4>; .reg .pred %p<2>;
ld.param.u64 %rd0, [object]; ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; ld.param.u32 %r18, [n];
mov.u32 %r16, %ctaid.x; mov.u32 %r17, %tid.x; mad.lo.u32 %r16, %r16, {block}, %r17;
setp.ge.u32 %p0, %r16, %r18;
@%p0 ret;
mul.wide.u32 %rd3, %r16, 16; add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
ld.global.v4.b32 {{%r0, %r1, %r2, %r3}}, [%rd1];
mov.u32 %r4, 0; mov.u32 %r5, 0; mov.u32 %r6, 0; mov.u32 %r7, 0;
{code}
st.global.v4.b32 [%rd2], {{%r4, %r5, %r6, %r7}};
ret;
}}
"
        );
        let (module, function) = load_kernel(&text, "k");
        Self { module, function }
    }

    pub fn unload(self) {
        call!("cuModuleUnload", (*mut c_void), self.module);
    }

    /// Queues the launch; the memory that its results will be in.
    pub fn queue(&self, object: u64, inputs: &[[u32; 4]]) -> Result<u64, u32> {
        let n = inputs.len() as u32;
        let bytes: Vec<u8> = inputs.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        let (input, out) = (uploaded(&bytes), uploaded(&bytes));
        let mut params = [
            (&raw const object).cast_mut().cast::<c_void>(),
            (&raw const input).cast_mut().cast(),
            (&raw const out).cast_mut().cast(),
            (&raw const n).cast_mut().cast(),
        ];
        let code = launch_kernel(
            self.function,
            [n.div_ceil(Self::BLOCK), 1, 1],
            [Self::BLOCK, 1, 1],
            0,
            null_mut(),
            params.as_mut_ptr(),
        );
        if code == 0 { Ok(out) } else { Err(code) }
    }

    /// The results of `n` threads, or the finding, if there is one.
    pub fn finish(out: u64, n: usize) -> Result<Vec<[u32; 4]>, Finding> {
        let synchronized = code!("cuCtxSynchronize", (),);
        if let Some(finding) = take_findings().pop() {
            assert_eq!(synchronized, finding.kind.code());
            return Err(finding);
        }
        let mut words = vec![[0u32; 4]; n];
        call!("cuMemcpyDtoH_v2", (*mut [u32; 4], u64, usize), words.as_mut_ptr(), out, 16 * n);
        Ok(words)
    }

    pub fn run(&self, object: u64, inputs: &[[u32; 4]]) -> Result<Vec<[u32; 4]>, Finding> {
        Self::finish(self.queue(object, inputs).unwrap(), inputs.len())
    }
}
