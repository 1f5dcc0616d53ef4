//! Modules and their JIT logs, functions, launches, occupancy.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cust_raw::*;

use super::call::{Out, api};
use super::codes::*;
use super::engine::after_enqueue;
use super::entry::enter;
use super::state::{Driver, Function, OnDevice};
use super::work::{KernelLaunch, Work};
use crate::arch::Arch;
use crate::exec::{Launch, check_launch};
use crate::finding::{self, Finding, FindingKind};
use crate::ptx::{Kernel, Module};

/// The log options of a JIT call: the buffers, and where their sizes are given.
#[derive(Default)]
pub(super) struct Logs {
    info: (usize, usize),
    error: (usize, usize),
    /// Where to write how many bytes each log has: whether it is the log of errors, and the address.
    sizes: Vec<(bool, usize)>,
}

impl Logs {
    /// # Safety
    /// `options` and `values` are null or hold `count` entries; buffers given in them have the sizes given.
    pub(super) unsafe fn read(
        count: c_uint,
        options: *const c_int,
        values: *mut *mut c_void,
    ) -> Result<Self, u32> {
        let mut logs = Self::default();
        if count == 0 {
            return Ok(logs);
        }
        if options.is_null() || values.is_null() {
            return Err(INVALID_VALUE);
        }
        for i in 0..count as usize {
            // SAFETY: both arrays hold `count` entries.
            let (option, slot) = unsafe { (options.add(i).read(), values.add(i)) };
            // SAFETY: an entry of the caller's second array, which holds `count`.
            let value = unsafe { slot.read() } as usize;
            match option {
                3 => logs.info.0 = value,
                4 => {
                    logs.info.1 = value as u32 as usize;
                    logs.sizes.push((false, slot as usize));
                }
                5 => logs.error.0 = value,
                6 => {
                    logs.error.1 = value as u32 as usize;
                    logs.sizes.push((true, slot as usize));
                }
                // Hints on registers, optimisation, target and caching have no effect here.
                0..=40 => {}
                _ => return Err(INVALID_VALUE),
            }
        }
        Ok(logs)
    }

    /// The logs for later: clients of the linker free the array of values, though they may not, so nothing is written to it.
    pub(super) fn without_sizes(self) -> Self {
        Self { sizes: Vec::new(), ..self }
    }

    fn takes_info(&self) -> bool {
        self.info.0 != 0 || self.sizes.iter().any(|&(is_error, _)| !is_error)
    }

    /// # Safety
    /// As [`Self::read`].
    pub(super) unsafe fn write(&self, info: &str, error: &str) {
        for (text, (buffer, size)) in [(info, self.info), (error, self.error)] {
            if buffer == 0 || size == 0 {
                continue;
            }
            let n = text.len().min(size - 1);
            // SAFETY: the caller's buffer has `size` bytes; n + 1 of them are written.
            unsafe {
                std::ptr::copy_nonoverlapping(text.as_ptr(), buffer as *mut u8, n);
                (buffer as *mut u8).add(n).write(0);
            }
        }
        for &(is_error, slot) in &self.sizes {
            let n = if is_error { error.len().min(self.error.1) } else { info.len().min(self.info.1) };
            // SAFETY: the caller's array of values, which the driver may overwrite with results.
            unsafe { (slot as *mut *mut c_void).write(n as *mut c_void) };
        }
    }
}

/// The most bytes of PTX whose modules are kept.
const MOST_KEPT: usize = 32 << 20;

/// Modules that were read last, with the architecture they were read for and their text: devices of one process mostly load the same ones.
struct Kept {
    modules: VecDeque<(Arch, Box<str>, Arc<Read>)>,
    bytes: usize,
}

/// A module, and its entry in a JIT log.
pub(super) struct Read {
    pub module: Arc<Module>,
    info: OnceLock<String>,
}

impl Read {
    fn info(&self) -> &str {
        self.info.get_or_init(|| {
            let about = |k: &Kernel| {
                let r = self.module.registers(k);
                format!(
                    "{}: about {r} registers, {} bytes smem, {} bytes lmem\n",
                    k.name, k.shared_bytes, k.local_bytes
                )
            };
            self.module.kernels().iter().map(about).collect()
        })
    }
}

static KEPT: Mutex<Kept> = Mutex::new(Kept { modules: VecDeque::new(), bytes: 0 });

/// Reads a module, or takes the one that was read from the same text.
fn read(text: &str, arch: Arch) -> Result<Arc<Read>, String> {
    let kept = || KEPT.lock().unwrap_or_else(PoisonError::into_inner); // it is whole at each point
    if let Some((.., read)) = kept().modules.iter().find(|(of, from, _)| *of == arch && **from == *text) {
        return Ok(read.clone());
    }
    let module = Module::parse_for(text, arch).map_err(|e| format!("ptxas application ptx input, {e}"))?;
    let read = Arc::new(Read { module: Arc::new(module), info: OnceLock::new() });
    let Kept { modules, bytes } = &mut *kept();
    modules.push_back((arch, text.into(), read.clone()));
    *bytes += text.len();
    while *bytes > MOST_KEPT {
        let Some((_, oldest, _)) = modules.pop_front() else { break };
        *bytes -= oldest.len();
    }
    Ok(read)
}

/// Reads an image for an architecture and writes the logs.
pub(super) fn compile(image: &[u8], logs: Option<&Logs>, arch: Arch) -> Result<Arc<Read>, u32> {
    let text = std::str::from_utf8(image).map_err(|_| "the image is not text".to_owned());
    let read = text.and_then(|text| read(text, arch));
    if let Some(l) = logs {
        let (info, error) = match &read {
            Ok(read) if l.takes_info() => (read.info(), ""),
            Ok(_) => ("", ""),
            Err(log) => ("", log.as_str()),
        };
        // SAFETY: the logs were read from the same call's options.
        unsafe { l.write(info, error) };
    }
    read.map_err(|log| {
        crate::refusal::refuse(&format!("a module: {log}"));
        INVALID_PTX
    })
}

fn load(image: &[u8], logs: Option<&Logs>, out: Out<CUmodule>) -> Answer {
    let d = &mut *enter()?;
    let read = compile(image, logs, d.arch())?;
    let id = load_on(d, &read.module)?;
    out.write(id as CUmodule)
}

/// Loads a module on the current device; gives its handle.
pub(super) fn load_on(d: &mut Driver, module: &Arc<Module>) -> Result<u64, u32> {
    let device = d.current;
    let loaded = d.here().gpu.load(Arc::clone(module)).map_err(memory_code)?;
    let id = d.handle();
    d.modules.insert(id, OnDevice { device, loaded: Arc::new(loaded) });
    Ok(id)
}

/// A new handle of a kernel of a module.
pub(super) fn new_function(d: &mut Driver, module: u64, name: &str) -> Result<u64, u32> {
    let m = Arc::clone(&d.module(module)?.loaded);
    let k = m.module.kernel(name).ok_or(NOT_FOUND)?;
    let id = d.handle();
    let max_dynamic_shared = (48 << 10) - k.dynamic_start;
    d.functions.insert(id, Function { module, kernel: name.to_owned(), max_dynamic_shared });
    Ok(id)
}

/// The answer to an image of machine code.
pub(super) fn machine_code() -> u32 {
    crate::refusal::refuse("a module of machine code (cubin or fat binary): this device runs PTX alone");
    NO_BINARY_FOR_GPU
}

/// The text of a PTX image, or the code that says why it is not one.
///
/// # Safety
/// `image` is null, a NUL-terminated text, or a binary image of at least four bytes.
pub(super) unsafe fn image_text<'a>(image: *const c_void) -> Result<&'a [u8], u32> {
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a text or four bytes: this function's contract. A text shorter than four bytes ends the comparison at its NUL.
    let starts =
        |magic: &[u8]| magic.iter().enumerate().all(|(i, m)| unsafe { *image.cast::<u8>().add(i) } == *m);
    // ELF (cubin), or a fat binary: machine code, which this device cannot run.
    if starts(b"\x7fELF") || starts(&0xba55_ed50u32.to_le_bytes()) || starts(&0x466243b1u32.to_le_bytes()) {
        return Err(machine_code());
    }
    // SAFETY: not a binary image, so a NUL-terminated text: this function's contract.
    Ok(unsafe { CStr::from_ptr(image.cast()) }.to_bytes())
}

/// The PTX in the bytes of a file, which may end in NUL.
pub(super) fn file_text(bytes: &[u8]) -> Result<&[u8], u32> {
    if bytes.starts_with(b"\x7fELF") || bytes.starts_with(&0xba55_ed50u32.to_le_bytes()) {
        return Err(machine_code());
    }
    Ok(bytes.split(|&byte| byte == 0).next().unwrap_or_default())
}

pub(super) fn name_of<'a>(name: *const c_char) -> Result<&'a str, u32> {
    if name.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, so the caller's NUL-terminated text.
    unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)
}

/// A function by its handle; a kernel of a library stands for its function on the current device.
pub(super) fn function(d: &mut Driver, f: CUfunction) -> Result<(&Function, &Kernel), u32> {
    let f = d.resolve(f as u64)?;
    known(d, f)
}

fn known(d: &Driver, f: u64) -> Result<(&Function, &Kernel), u32> {
    let f = d.functions.get(&f).ok_or(INVALID_HANDLE)?;
    // Unloading a module invalidates its functions.
    let k = d.module(f.module)?.loaded.module.kernel(&f.kernel).ok_or(INVALID_HANDLE)?;
    Ok((f, k))
}

/// Registers of a thread, estimated when they are first asked for: most kernels of a module are never launched.
fn registers(d: &Driver, f: &Function, k: &Kernel) -> Result<u32, u32> {
    Ok(d.module(f.module)?.loaded.module.registers(k))
}

/// Threads that a block of the kernel may have.
fn max_threads(registers: u32, k: &Kernel) -> u32 {
    let by_registers = (64 << 10) / (registers.max(1) * 32).next_multiple_of(256) * 32;
    let declared = k.max_ntid.map_or(1024, |n| n.iter().product());
    declared.min(by_registers).min(1024)
}

fn resident_blocks(d: &mut Driver, f: CUfunction, threads: c_int, dynamic: usize) -> Result<u32, u32> {
    let f = d.resolve(f as u64)?;
    let (f, k) = known(d, f)?;
    if threads < 1 {
        return Err(INVALID_VALUE);
    }
    let (shared, registers) = (k.dynamic_start as u64 + dynamic as u64, registers(d, f, k)?);
    if threads as u32 > max_threads(registers, k) || shared > d.most_shared().into() {
        return Ok(0);
    }
    Ok(d.arch().multiprocessor().resident_blocks(threads as u32, registers, shared as u32))
}

/// An attribute of a function, by its number.
pub(super) fn attribute(d: &mut Driver, f: u64, attr: c_int) -> Result<c_int, u32> {
    let f = d.resolve(f)?;
    let (function, k) = known(d, f)?;
    let (major, minor) = d.module(function.module)?.loaded.module.version();
    let v = match attr {
        0 => max_threads(registers(d, function, k)?, k),
        1 => k.shared_bytes,
        2 => k.const_bytes,
        3 => k.local_bytes,
        4 => registers(d, function, k)?,
        5 => major * 10 + minor,
        6 => d.arch().number(),
        7 => 0,
        8 => function.max_dynamic_shared,
        9 => u32::MAX,
        10..=15 => 0, // clusters, which this chip lacks
        _ => return Err(INVALID_VALUE),
    };
    Ok(v as c_int)
}

/// Sets an attribute of a function, by its number.
pub(super) fn set_attribute(d: &mut Driver, f: u64, attr: c_int, value: c_int) -> Answer {
    let f = d.resolve(f)?;
    let (_, k) = known(d, f)?;
    let most = d.most_shared() - k.dynamic_start;
    match attr {
        8 if value >= 0 && value as u32 <= most => {
            if let Some(f) = d.functions.get_mut(&f) {
                f.max_dynamic_shared = value as u32;
            }
            Ok(())
        }
        // A hint: shared memory and L1 are separate on this chip.
        9 if (-1..=100).contains(&value) => Ok(()),
        _ => Err(INVALID_VALUE),
    }
}

fn potential_block_size(
    min_grid: Out<c_int>,
    block: Out<c_int>,
    f: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared: usize,
    limit: c_int,
) -> Answer {
    let d = &mut *enter()?;
    let handle = d.resolve(f as u64)?;
    let (function, k) = known(d, handle)?;
    let most = max_threads(registers(d, function, k)?, k) as c_int;
    let most = if limit > 0 { most.min(limit) } else { most };
    let mut best = (0, 0, 0);
    for threads in (1..=(most as usize).div_ceil(32)).map(|w| (w as c_int * 32).min(most)).rev() {
        // SAFETY: the caller's function, which takes any block size.
        let dynamic = shared_of.map_or(shared, |of| unsafe { of(threads) });
        let blocks = resident_blocks(d, f, threads, dynamic)?;
        let resident = blocks * threads as u32;
        if resident > best.0 {
            best = (resident, threads, blocks);
        }
    }
    let sms = d.gpu().config().card.sms;
    min_grid.write((best.2 * sms) as c_int)?;
    block.write(best.1)
}

/// The parameter block of a launch.
///
/// # Safety
/// `params` is null or holds a pointer to a value for each parameter of the kernel; `extra` is null or a list of options that ends
/// with 0.
unsafe fn parameters(k: &Kernel, params: *mut *mut c_void, extra: *mut *mut c_void) -> Result<Vec<u8>, u32> {
    let mut block = vec![0u8; k.param_bytes as usize];
    if !extra.is_null() {
        if !params.is_null() {
            return Err(INVALID_VALUE);
        }
        let (mut from, mut bytes) = (std::ptr::null::<u8>(), 0);
        for pair in 0.. {
            // SAFETY: the list has not ended.
            let option = unsafe { extra.add(2 * pair).read() } as usize;
            if option == 0 {
                break; // CU_LAUNCH_PARAM_END
            }
            // SAFETY: each option is followed by its value.
            let value = unsafe { extra.add(2 * pair + 1).read() };
            match option {
                1 => from = value.cast(), // CU_LAUNCH_PARAM_BUFFER_POINTER
                // SAFETY: CU_LAUNCH_PARAM_BUFFER_SIZE points to a size.
                2 if !value.is_null() => bytes = unsafe { value.cast::<usize>().read_unaligned() },
                _ => return Err(INVALID_VALUE),
            }
        }
        if (from.is_null() && !block.is_empty()) || bytes < block.len() {
            return Err(INVALID_VALUE);
        }
        if !block.is_empty() {
            // SAFETY: the caller's buffer has `bytes` bytes, which are at least as many.
            unsafe { std::ptr::copy_nonoverlapping(from, block.as_mut_ptr(), block.len()) };
        }
        return Ok(block);
    }
    if params.is_null() && !k.params.is_empty() {
        return Err(INVALID_VALUE);
    }
    for (i, p) in k.params.iter().enumerate() {
        // SAFETY: the caller passes one pointer per parameter of the kernel …
        let from = unsafe { params.add(i).read() };
        if from.is_null() {
            return Err(INVALID_VALUE);
        }
        let to = &mut block[p.offset as usize..][..p.bytes as usize];
        // SAFETY: … each to a value of that parameter's size.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.as_mut_ptr(), to.len()) };
    }
    Ok(block)
}

/// A checked launch, and the device that its kernel is loaded on.
///
/// # Safety
/// As for the parameters of [`parameters`].
pub(super) unsafe fn prepare(
    d: &mut Driver,
    f: CUfunction,
    [grid, threads]: [[u32; 3]; 2],
    shared: u32,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<(KernelLaunch, usize), u32> {
    let (handle, limits) = (f as u64, d.launch_limits()?);
    let f = d.resolve(handle)?;
    let (function, k) = known(d, f)?;
    // SAFETY: this function's contract.
    let block = unsafe { parameters(k, params, extra)? };
    let launch = Launch { grid, block: threads, dynamic_shared: shared, params: &block };
    let total: u64 = threads.iter().map(|&n| n as u64).product();
    let registers = registers(d, function, k)?;
    // more than each block has is for kernels that opted in to it
    let most_dynamic = function.max_dynamic_shared.max((48 << 10) - k.dynamic_start);
    let opted_in = |()| match shared <= most_dynamic {
        true => Ok(()),
        false => Err((
            FindingKind::InvalidLaunch,
            format!("{shared} bytes of dynamic shared memory, the kernel has opted in to {most_dynamic}"),
        )),
    };
    let check = check_launch(k, &launch, d.arch()).and_then(opted_in).and_then(|()| {
        match total <= max_threads(registers, k) as u64 {
            true => Ok(()),
            false => Err((FindingKind::TooManyThreads, format!("{total} threads of {registers} registers"))),
        }
    });
    if let Err((kind, message)) = check {
        let kernel = function.kernel.clone();
        finding::report(Finding::new(kind, kernel, message));
        return Err(kind.code());
    }
    let of = d.module(function.module)?;
    let launch = KernelLaunch {
        function: handle,
        module: Arc::clone(&of.loaded),
        kernel: function.kernel.clone(),
        grid,
        block: threads,
        shared,
        registers,
        params: block,
        cooperative: false,
        references: d.bound_references(&of.loaded)?,
        limits,
    };
    Ok((launch, of.device))
}

/// Queues a launch.
///
/// # Safety
/// As for the parameters of [`parameters`].
pub(super) unsafe fn launch(
    f: CUfunction,
    geometry: [[u32; 3]; 2],
    shared: u32,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
    cooperative: bool,
) -> Answer {
    let mut guard = enter()?;
    let d = &mut *guard;
    // SAFETY: this function's contract.
    let (mut launch, device) = unsafe { prepare(d, f, geometry, shared, params, extra)? };
    launch.cooperative = cooperative;
    if cooperative {
        let [grid, threads] = geometry.map(|n| n.iter().map(|&n| u64::from(n)).product::<u64>());
        let resident = resident_blocks(d, f, threads as c_int, shared as usize)? * d.gpu().config().card.sms;
        if grid > resident.into() {
            return Err(COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    let stream = d.id(stream);
    // a kernel goes to a stream of the device that it is loaded on, whose context is current
    if device != d.current || d.device_of_stream(stream) != d.current {
        let message = format!(
            "loaded on device {device}, launched on a stream of device {} while device {} is current",
            d.device_of_stream(stream),
            d.current
        );
        finding::report(Finding::new(FindingKind::WrongDevice, launch.kernel, message));
        return Err(INVALID_HANDLE);
    }
    let work = Work::Launch(Arc::new(launch));
    if d.stream(stream)?.capture.is_none() {
        d.note_printing(&work);
    }
    d.enqueue(stream, work)?;
    after_enqueue(guard)
}

api! {
    fn cuModuleLoadData(module: *mut CUmodule => Out<CUmodule>, image: *const c_void) {
        // SAFETY: the caller promised the driver API a null pointer or an image.
        load(unsafe { image_text(image)? }, None, module)
    }

    fn cuModuleLoadDataEx(
        module: *mut CUmodule => Out<CUmodule>, image: *const c_void, count: c_uint, options: *mut CUjit_option => *mut c_int,
        values: *mut *mut c_void,
    ) {
        // SAFETY: the caller promised the driver API `count` options and values.
        let logs = unsafe { Logs::read(count, options, values)? };
        // SAFETY: the caller promised the driver API a null pointer or an image.
        load(unsafe { image_text(image)? }, Some(&logs), module)
    }

    fn cuModuleLoad(module: *mut CUmodule => Out<CUmodule>, path: *const c_char) {
        let bytes = std::fs::read(name_of(path)?).map_err(|_| FILE_NOT_FOUND)?;
        load(file_text(&bytes)?, None, module)
    }

    /// Waits for the whole device first, as the driver does.
    fn cuModuleUnload(module: CUmodule) {
        let guard = enter()?;
        let device = guard.current;
        let mut guard = super::engine::run_until(guard, |d| d.is_idle(device))?;
        let d = &mut *guard;
        let m = d.modules.remove(&(module as u64)).ok_or(INVALID_HANDLE)?;
        d.devices[m.device].gpu.unload(&m.loaded).map_err(memory_code)
    }

    fn cuModuleGetFunction(out: *mut CUfunction => Out<CUfunction>, module: CUmodule, name: *const c_char) {
        let d = &mut *enter()?;
        let id = new_function(d, module as u64, name_of(name)?)?;
        out.write(id as CUfunction)
    }

    fn cuModuleGetGlobal_v2(ptr: *mut CUdeviceptr => Out<CUdeviceptr>, bytes: *mut usize => Out<usize>, module: CUmodule, name: *const c_char) {
        let d = &mut *enter()?;
        let (at, size) = d.module(module as u64)?.loaded.global(name_of(name)?).ok_or(NOT_FOUND)?;
        ptr.write_unless_null(at);
        bytes.write_unless_null(size as usize);
        Ok(())
    }

    fn cuFuncGetAttribute(value: *mut c_int => Out<c_int>, attr: CUfunction_attribute => c_int, f: CUfunction) {
        let v = attribute(&mut *enter()?, f as u64, attr)?;
        value.write(v)
    }

    fn cuFuncSetAttribute(f: CUfunction, attr: CUfunction_attribute => c_int, value: c_int) {
        set_attribute(&mut *enter()?, f as u64, attr, value)
    }

    /// A hint that this chip ignores.
    fn cuFuncSetCacheConfig(f: CUfunction, _config: CUfunc_cache => c_int) {
        function(&mut *enter()?, f).map(|_| ())
    }

    /// A hint that this chip ignores.
    fn cuFuncSetSharedMemConfig(f: CUfunction, _config: CUsharedconfig => c_int) {
        function(&mut *enter()?, f).map(|_| ())
    }

    fn cuLaunchKernel(
        f: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void,
    ) {
        // SAFETY: the caller promised the driver API parameters as the kernel has them.
        unsafe { launch(f, [[gx, gy, gz], [bx, by, bz]], shared, stream, params, extra, false) }
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int => Out<c_int>, f: CUfunction, threads: c_int, shared: usize,
    ) {
        let n = resident_blocks(&mut *enter()?, f, threads, shared)?;
        blocks.write(n as c_int)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: *mut c_int => Out<c_int>, f: CUfunction, threads: c_int, shared: usize, _flags: c_uint,
    ) {
        let n = resident_blocks(&mut *enter()?, f, threads, shared)?;
        blocks.write(n as c_int)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        shared: *mut usize => Out<usize>, f: CUfunction, blocks: c_int, threads: c_int,
    ) {
        let d = &mut *enter()?;
        let start = function(d, f)?.1.dynamic_start;
        if blocks < 1 || resident_blocks(d, f, threads, 0)? < blocks as u32 {
            return Err(INVALID_VALUE);
        }
        let each = ((96 << 10) / blocks as u32) & !255;
        shared.write(each.min(48 << 10).saturating_sub(start) as usize)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: *mut c_int => Out<c_int>, block: *mut c_int => Out<c_int>, f: CUfunction, shared_of: CUoccupancyB2DSize, shared: usize,
        limit: c_int,
    ) {
        potential_block_size(grid, block, f, shared_of, shared, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: *mut c_int => Out<c_int>, block: *mut c_int => Out<c_int>, f: CUfunction, shared_of: CUoccupancyB2DSize, shared: usize,
        limit: c_int, _flags: c_uint,
    ) {
        potential_block_size(grid, block, f, shared_of, shared, limit)
    }
}
