//! cuBLAS, opened at run time if the machine has it: the comparison for matrix products.
//!
//! Constants and signatures are those of `cublas_api.h` (11.0 to 13.x); in version 10 and older the compute type has other
//! values.

use super::failure::{Failure, loader_error};
use libloading::Library;
use pascaline::cuda::CudaDevice;
use pascaline::{DType, Error, Result, Tensor, TensorMut, f16};
use pascaline_testing::Gemm;
use std::ffi::{c_int, c_longlong, c_void};
use std::path::{Path, PathBuf};
use std::{env, fs, mem, ptr};

const SUCCESS: c_int = 0;
const OP_N: c_int = 0;
const OP_T: c_int = 1;
/// Computes in the requested precision: no TF32 for f32 products.
const DEFAULT_MATH: c_int = 0;
const R_32F: c_int = 0;
const R_16F: c_int = 2;
const COMPUTE_32F: c_int = 68;
const GEMM_DEFAULT: c_int = -1;

/// The library's file names by major version, newest first. A library that is too new for the GPU refuses to create a
/// handle; then the next one is tried.
#[cfg(not(windows))]
const NAMES: &[&str] = &["libcublas.so.13", "libcublas.so.12", "libcublas.so.11"];
#[cfg(windows)]
const NAMES: &[&str] = &["cublas64_13.dll", "cublas64_12.dll", "cublas64_11.dll"];

type Create = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type OnHandle = unsafe extern "C" fn(*mut c_void) -> c_int;
type GetVersion = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;
type SetStream = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type SetMathMode = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
#[rustfmt::skip]
type Sgemm = unsafe extern "C" fn(
    *mut c_void, c_int, c_int, c_int, c_int, c_int, *const f32,
    u64, c_int, u64, c_int, *const f32, u64, c_int,
) -> c_int;
#[rustfmt::skip]
type GemmEx = unsafe extern "C" fn(
    *mut c_void, c_int, c_int, c_int, c_int, c_int, *const f32,
    u64, c_int, c_int, u64, c_int, c_int, *const f32, u64, c_int, c_int,
    c_int, c_int,
) -> c_int;
#[rustfmt::skip]
type GemmStridedBatchedEx = unsafe extern "C" fn(
    *mut c_void, c_int, c_int, c_int, c_int, c_int, *const f32,
    u64, c_int, c_int, c_longlong, u64, c_int, c_int, c_longlong, *const f32, u64, c_int, c_int, c_longlong,
    c_int, c_int, c_int,
) -> c_int;

/// A cuBLAS handle on one device and stream.
pub(super) struct Cublas {
    handle: *mut c_void,
    destroy: OnHandle,
    sgemm: Sgemm,
    gemm_ex: GemmEx,
    gemm_strided_batched_ex: GemmStridedBatchedEx,
    device: CudaDevice,
    /// As the library reports it: 120805 for 12.8.5.
    version: c_int,
    path: PathBuf,
}

impl Cublas {
    /// Opens the first cuBLAS that works on `device`; the error says what was tried and what to do.
    pub fn open(device: &CudaDevice) -> Result<Self, Failure> {
        device.bind()?;
        let mut refused = Vec::new();
        for path in candidates() {
            match Self::open_at(&path, device) {
                Ok(cublas) => return Ok(cublas),
                Err(reason) => {
                    let name = path.to_string_lossy();
                    let reason = loader_error(&name, &reason);
                    // The loader's error for a plain name only means that the library is not installed.
                    if path.is_absolute() || !reason.starts_with("cannot open") {
                        refused.push(format!("{name}: {reason}"));
                    }
                }
            }
        }
        if refused.is_empty() {
            let names = NAMES.join(", ");
            refused.push(format!(
                "looked for {names} where the loader looks, in CUDA's folders and among Python packages"
            ));
        }
        Err(Failure::Failed(format!(
            "no usable cuBLAS ({}); install one that knows this GPU (for Pascal 11 or 12: `pip install \
             nvidia-cublas-cu12`) or name its file in PASCALINE_CUBLAS",
            refused.join("; ")
        )))
    }

    fn open_at(path: &Path, device: &CudaDevice) -> Result<Self, String> {
        let short = |error: libloading::Error| error.to_string();
        // cuBLAS needs cublasLt of its own version, which the loader may not find in the same folder; once loaded it is
        // found by name. It stays loaded, as cuBLAS would keep it.
        if let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) {
            let sibling = folder.join(name.replacen("cublas", "cublasLt", 1));
            if sibling.is_file() {
                // SAFETY: NVIDIA's library, which the user has installed; its load-time code is trusted by that.
                unsafe { Library::new(&sibling) }.map(mem::forget).map_err(short)?;
            }
        }
        // SAFETY: NVIDIA's library, which the user has installed; its load-time code is trusted by that.
        let library = unsafe { Library::new(path) }.map_err(short)?;
        // SAFETY: the types are those of these functions in cublas_api.h since version 11.
        let (create, destroy, get_version, set_stream, set_math_mode) = unsafe {
            (
                *library.get::<Create>(b"cublasCreate_v2").map_err(short)?,
                *library.get::<OnHandle>(b"cublasDestroy_v2").map_err(short)?,
                *library.get::<GetVersion>(b"cublasGetVersion_v2").map_err(short)?,
                *library.get::<SetStream>(b"cublasSetStream_v2").map_err(short)?,
                *library.get::<SetMathMode>(b"cublasSetMathMode").map_err(short)?,
            )
        };
        // SAFETY: the types are those of these functions in cublas_api.h since version 11.
        let (sgemm, gemm_ex, gemm_strided_batched_ex) = unsafe {
            (
                *library.get::<Sgemm>(b"cublasSgemm_v2").map_err(short)?,
                *library.get::<GemmEx>(b"cublasGemmEx").map_err(short)?,
                *library.get::<GemmStridedBatchedEx>(b"cublasGemmStridedBatchedEx").map_err(short)?,
            )
        };
        let mut handle = ptr::null_mut();
        // SAFETY: `open` has made the device's context current; `handle` is written before it is used.
        let status = unsafe { create(&mut handle) };
        mem::forget(library); // never unloaded: it may have started threads, and the functions point into it
        if status != SUCCESS {
            return Err(format!(
                "it does not work on {} ({})",
                device.properties().name,
                status_name(status)
            ));
        }
        let mut cublas = Self {
            handle,
            destroy,
            sgemm,
            gemm_ex,
            gemm_strided_batched_ex,
            device: device.clone(),
            version: 0,
            path: path.to_owned(),
        };
        // SAFETY: the handle lives, the stream lives as long as `device`, `version` is a valid place.
        let status = unsafe {
            [
                get_version(handle, &mut cublas.version),
                set_stream(handle, device.stream().raw().cast()),
                set_math_mode(handle, DEFAULT_MATH),
            ]
        };
        match status.into_iter().find(|&status| status != SUCCESS) {
            Some(status) => Err(format!("it refuses the stream ({})", status_name(status))),
            None => Ok(cublas),
        }
    }

    /// Version and file, for people.
    pub fn line(&self) -> String {
        let version = self.version;
        let (major, minor, patch) = (version / 10000, version / 100 % 100, version % 100);
        format!("cuBLAS {major}.{minor}.{patch} ({})", self.path.display())
    }

    /// Queues the product.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a product beyond cuBLAS's 32-bit sizes, for other element types, or with the
    /// library's own refusal.
    pub fn gemm(&self, gemm: &Gemm, y: TensorMut, x: &Tensor, w: &Tensor) -> Result<()> {
        self.device.bind()?;
        let Gemm { transpose_x, transpose_w, batch, m, n, k, dtype } = *gemm;
        let refuse = |reason: String| Error::Unsupported {
            op: "cuBLAS",
            argument: "product",
            value: format!("{gemm:?}"),
            reason,
        };
        let fits = y.shape().elements() == batch * m * n
            && x.shape().elements() == batch * m * k
            && w.shape().elements() == batch * k * n
            && [y.dtype(), x.dtype(), w.dtype()] == [dtype; 3];
        if !(fits && y.is_contiguous() && x.is_contiguous() && w.is_contiguous()) {
            return Err(refuse("the tensors are not what the case says".into()));
        }
        let size = |size: usize| c_int::try_from(size).map_err(|_| refuse("it has 32-bit sizes".into()));
        // cuBLAS is column-major: it sees a row-major matrix as its transpose. So it computes yᵀ [n, m] = op(w)ᵀ · op(x)ᵀ,
        // and our transposed operands are its plain ones.
        let (op_w, ld_w) = if transpose_w { (OP_T, size(k)?) } else { (OP_N, size(n)?) };
        let (op_x, ld_x) = if transpose_x { (OP_T, size(m)?) } else { (OP_N, size(k)?) };
        let (ld_y, m_, n_, k_) = (size(n)?, size(m)?, size(n)?, size(k)?);
        let kind = match dtype {
            DType::F32 => R_32F,
            DType::F16 => R_16F,
            DType::U32 => return Err(refuse("it multiplies only floating-point numbers".into())),
        };
        let (h, one, zero) = (self.handle, &1.0f32, &0.0f32);
        let (y, x, w) = match dtype {
            DType::F16 => {
                (y.device_address::<f16>()?, x.device_address::<f16>()?, w.device_address::<f16>()?)
            }
            _ => (y.device_address::<f32>()?, x.device_address::<f32>()?, w.device_address::<f32>()?),
        };
        // SAFETY: the handle lives and its context is current. The three tensors are contiguous, of the element type
        // and of the sizes passed (checked above), on this device's stream; `y` overlaps nothing.
        let status = unsafe {
            match (dtype, batch) {
                (DType::F32, 1) => {
                    (self.sgemm)(h, op_w, op_x, n_, m_, k_, one, w, ld_w, x, ld_x, zero, y, ld_y)
                }
                #[rustfmt::skip]
                (_, 1) => (self.gemm_ex)(
                    h, op_w, op_x, n_, m_, k_, one, w, kind, ld_w, x, kind, ld_x, zero, y, kind, ld_y,
                    COMPUTE_32F, GEMM_DEFAULT,
                ),
                #[rustfmt::skip]
                _ => (self.gemm_strided_batched_ex)(
                    h, op_w, op_x, n_, m_, k_, one, w, kind, ld_w, (k * n) as i64, x, kind, ld_x, (m * k) as i64,
                    zero, y, kind, ld_y, (m * n) as i64, size(batch)?, COMPUTE_32F, GEMM_DEFAULT,
                ),
            }
        };
        if status == SUCCESS { Ok(()) } else { Err(refuse(status_name(status))) }
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        if !pascaline::cuda::is_lost() && self.device.bind().is_ok() {
            // SAFETY: created by `open_at` and destroyed once, and the library stays loaded.
            unsafe { (self.destroy)(self.handle) };
        }
    }
}

/// The status's name in cublas_api.h.
fn status_name(status: c_int) -> String {
    let name = match status {
        1 => "not initialized",
        3 => "allocation failed",
        7 => "invalid value",
        8 => "architecture mismatch",
        11 => "mapping error",
        13 => "execution failed",
        14 => "internal error",
        15 => "not supported",
        _ => "unknown status",
    };
    format!("{name}, {status}")
}

/// Paths to try for cuBLAS, in order: only the file that `PASCALINE_CUBLAS` names, if set; where the loader looks; CUDA's
/// folders; Python packages, since PyTorch includes it.
fn candidates() -> Vec<PathBuf> {
    if let Some(path) = env::var_os("PASCALINE_CUBLAS").filter(|path| !path.is_empty()) {
        return vec![path.into()];
    }
    let mut candidates: Vec<PathBuf> = NAMES.iter().map(PathBuf::from).collect();
    let mut folders = Vec::new();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(root) = env::var_os(variable).map(PathBuf::from) {
            folders.extend([root.join("lib64"), root.join("bin")]);
        }
    }
    for version in subfolders(Path::new("/usr/local"), "cuda") {
        folders.push(version.join("lib64"));
    }
    let mut pythons = Vec::new();
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        pythons.extend(env::var_os(variable).map(|root| PathBuf::from(root).join("lib")));
    }
    pythons.extend(env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/lib")));
    pythons.extend(["/usr/local/lib", "/usr/lib"].map(PathBuf::from));
    for python in pythons.iter().flat_map(|lib| subfolders(lib, "python3")) {
        for packages in ["site-packages", "dist-packages"] {
            let nvidia = python.join(packages).join("nvidia");
            folders.extend(["cu13/lib", "cublas/lib"].map(|library| nvidia.join(library)));
        }
    }
    candidates.extend(
        folders
            .iter()
            .flat_map(|folder| NAMES.iter().map(|name| folder.join(name)))
            .filter(|path| path.is_file()),
    );
    candidates
}

fn subfolders(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    let mut paths: Vec<_> = paths.map(|entry| entry.path()).collect();
    paths.sort();
    paths.reverse(); // newer versions first
    paths
}
