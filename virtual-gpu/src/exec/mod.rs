//! Runs a launch: blocks over CPU threads, warps in lockstep.

mod access;
mod alu;
mod alu_float;
mod atomic;
mod bit_fields;
mod block;
mod carried;
mod cvt;
mod exchange;
mod float;
mod global;
mod global_races;
mod independent;
mod job;
mod lane;
mod line_costs;
mod matrix;
mod order;
mod pointer_call;
mod print;
mod races;
mod regs;
mod remote_reads;
mod schedule;
mod scratch;
mod shape;
mod shared_arrays;
mod sparse;
mod step;
mod surface;
mod texture;
mod traffic;
mod video;
mod warp;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::arch::Arch;
use crate::config::Config;
use crate::counters::Counters;
use crate::finding::{Fault, Finding, FindingKind};
use crate::memory::{Allocation, CODE, CODE_SPAN, CODE_STEP, Memory, MemoryError, WRITTEN};
use crate::ptx::{Kernel, Module, Pointer, VarSpace};
use crate::texture::Objects;
use alu::Fast;
use block::Block;
use global_races::GlobalRaces;
use job::Job;
pub(crate) use job::LaunchLimits;
pub use line_costs::LineCost;
pub(crate) use remote_reads::RemoteReads;
use shared_arrays::SharedArrays;

/// Counts and geometry of a launch.
#[derive(Clone, Debug)]
pub struct LaunchReport {
    pub kernel: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Static plus dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Whether it is a node of a graph, whose launch costs less.
    pub in_graph: bool,
    pub counters: Counters,
    /// By line of the source, the most instructions first; empty for PTX without lines.
    pub lines: Vec<LineCost>,
}

/// Geometry and arguments of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: u32,
    /// The parameter block, laid out as [`Kernel::params`] says.
    pub params: &'a [u8],
}

/// The parts of a launch through the driver API besides its geometry: other devices' memory, and the work that it must follow.
pub(crate) struct LaunchContext {
    /// Live memory of other devices that this one may access.
    pub peers: Vec<Arc<Allocation>>,
    /// The number that stores write into the shadow of their bytes.
    pub writer: u8,
    /// Writers on other devices that the launch has not waited for; `None` with one device.
    pub unordered: Option<Box<[bool; 256]>>,
    /// Records what the launch reads of memory that other devices may write; `None` with one device.
    pub remote: Option<Arc<RemoteReads>>,
    /// Whether all blocks are resident at once, so that they may wait for each other.
    pub cooperative: bool,
    /// The device's textures and surfaces.
    pub objects: Objects,
    pub limits: LaunchLimits,
}

/// Bytes of the memory at which the blocks of a cooperative launch wait: its size and the barrier's word. Source:
/// cooperative_groups/details/driver_abi.h of CUDA 12.4.
const WORKSPACE: [u8; 8] = [8, 0, 0, 0, 0, 0, 0, 0];

impl LaunchContext {
    /// For a process with one device.
    pub const fn single_device() -> Self {
        Self {
            peers: Vec::new(),
            writer: WRITTEN,
            unordered: None,
            remote: None,
            cooperative: false,
            objects: Objects::new(),
            limits: LaunchLimits::DEFAULT,
        }
    }
}

/// A module whose variables are allocated in a device's memory.
#[derive(Debug)]
pub struct LoadedModule {
    pub module: Arc<Module>,
    /// Address of each variable, 0 for shared ones.
    pub(crate) addresses: Vec<u64>,
    /// Address of the first function.
    pub(crate) code: u64,
}

impl LoadedModule {
    /// Address and size of a global or constant variable.
    pub fn global(&self, name: &str) -> Option<(u64, u64)> {
        self.variable(name, &[VarSpace::Global, VarSpace::Const])
    }

    /// Address and size of a variable of one of these spaces.
    pub(crate) fn variable(&self, name: &str, spaces: &[VarSpace]) -> Option<(u64, u64)> {
        let i = self.module.variables.iter().position(|v| v.name == name && spaces.contains(&v.space))?;
        Some((self.addresses[i], self.module.variables[i].bytes))
    }

    /// The addresses of its texture and surface references.
    pub(crate) fn references(&self) -> impl Iterator<Item = u64> {
        let variables = self.module.variables.iter().zip(&self.addresses);
        let is_reference = |space| matches!(space, VarSpace::Texture | VarSpace::Surface);
        variables.filter(move |(v, _)| is_reference(v.space)).map(|(_, &at)| at)
    }
}

/// Bytes of a variable that are zeroed at a time.
const ZEROES: u64 = 1 << 20;

/// A virtual GPU without the driver API: memory, modules, launches.
///
/// ```
/// use pascaline_virtual_gpu::{Config, Gpu, Launch, Module};
/// let ptx = ".version 6.4 .target sm_61 .address_size 64
/// .visible .entry double(.param .u64 x) {
///   .reg .b64 %rd<3>; .reg .b32 %r<3>;
///   ld.param.u64 %rd1, [x];
///   mov.u32 %r1, %tid.x;
///   mad.wide.u32 %rd2, %r1, 4, %rd1;
///   ld.global.u32 %r2, [%rd2];
///   add.u32 %r2, %r2, %r2;
///   st.global.u32 [%rd2], %r2;
///   ret;
/// }";
/// let mut gpu = Gpu::new(Config::default());
/// let module = gpu.load(Module::parse(ptx).unwrap()).unwrap();
/// let x = gpu.alloc(8).unwrap();
/// gpu.write(x, &[1, 0, 0, 0, 21, 0, 0, 0]).unwrap();
/// let launch = Launch { grid: [1; 3], block: [2, 1, 1], dynamic_shared: 0, params: &x.to_le_bytes() };
/// gpu.launch(&module, "double", launch).unwrap();
/// let mut out = [0; 8];
/// gpu.read(x, &mut out).unwrap();
/// assert_eq!(out, [2, 0, 0, 0, 42, 0, 0, 0]);
/// ```
pub struct Gpu {
    pub(crate) memory: Memory,
    config: Config,
    launches: u64,
    /// Address of the next module's functions: none is used twice.
    code: u64,
    printed: String,
}

impl Gpu {
    pub fn new(config: Config) -> Self {
        Self::numbered(0, config)
    }

    /// Device number `device`, whose memory has addresses of its own.
    pub(crate) fn numbered(device: usize, config: Config) -> Self {
        let memory = Memory::new(device, config.memory(), config.checks.uninitialized);
        let code = CODE + CODE_SPAN * device as u64;
        Self { memory, config, launches: 0, code, printed: String::new() }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Allocates device memory; the address is a multiple of 512.
    pub fn alloc(&mut self, bytes: u64) -> Result<u64, MemoryError> {
        self.memory.alloc(bytes)
    }

    pub fn free(&mut self, address: u64) -> Result<(), MemoryError> {
        self.memory.free(address)
    }

    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.write(address, bytes)
    }

    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(address, bytes)
    }

    /// Bytes of device memory in use.
    pub fn used(&self) -> u64 {
        self.memory.used()
    }

    /// Allocates a module's variables and writes their initial values.
    pub fn load(&mut self, module: impl Into<Arc<Module>>) -> Result<LoadedModule, MemoryError> {
        let module = module.into();
        let mut addresses = Vec::new();
        for v in &module.variables {
            let shared = v.space == VarSpace::Shared;
            addresses.push(if shared { 0 } else { self.memory.alloc(v.bytes.max(1))? });
        }
        for (v, &at) in module.variables.iter().zip(&addresses).filter(|(v, _)| v.space != VarSpace::Shared) {
            let mut bytes = v.init.clone();
            for &(offset, pointer) in &v.relocs {
                let value = match pointer {
                    Pointer::Variable(v, addend) => addresses[v as usize].wrapping_add(addend as u64),
                    Pointer::Function(f) => self.code + CODE_STEP * u64::from(f),
                };
                bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
            }
            self.memory.write(at, &bytes)?;
            let zeroes = vec![0; ZEROES.min(v.bytes) as usize];
            for from in (bytes.len() as u64..v.bytes).step_by(zeroes.len().max(1)) {
                let n = (v.bytes - from).min(zeroes.len() as u64) as usize;
                self.memory.write(at + from, &zeroes[..n])?;
            }
        }
        let code = self.code;
        self.code += CODE_STEP * module.functions.len() as u64;
        Ok(LoadedModule { module, addresses, code })
    }

    pub fn unload(&mut self, loaded: &LoadedModule) -> Result<(), MemoryError> {
        loaded.addresses.iter().filter(|&&a| a != 0).try_for_each(|&a| self.memory.free(a))
    }

    /// Runs a kernel to its end.
    pub fn launch(
        &mut self,
        loaded: &LoadedModule,
        kernel: &str,
        launch: Launch<'_>,
    ) -> Result<LaunchReport, Fault> {
        self.launch_in(loaded, kernel, launch, LaunchContext::single_device())
    }

    pub(crate) fn launch_in(
        &mut self,
        loaded: &LoadedModule,
        kernel: &str,
        launch: Launch<'_>,
        context: LaunchContext,
    ) -> Result<LaunchReport, Fault> {
        let invalid = |kind, message: String| Finding::new(kind, kernel, message);
        let Some(k) = loaded.module.kernel(kernel) else {
            return Err(invalid(FindingKind::InvalidLaunch, "no such kernel in the module".to_owned()));
        };
        check_launch(k, &launch, self.config.card.arch).map_err(|(kind, message)| invalid(kind, message))?;
        self.launches += 1;
        let workspace = if context.cooperative { self.memory.alloc(WORKSPACE.len() as u64) } else { Ok(0) };
        let no_memory =
            |_| invalid(FindingKind::InvalidLaunch, "no memory for the grid's barrier".to_owned());
        let workspace = workspace.map_err(no_memory)?;
        if context.cooperative {
            self.memory.write(workspace, &WORKSPACE).map_err(no_memory)?;
        }
        let mut job = Job::new(self, loaded, k, &launch, context, workspace);
        let result = job.run();
        let printed = job.printed();
        self.printed += &printed;
        if workspace != 0 {
            self.memory.free(workspace).map_err(no_memory)?;
        }
        result
    }

    /// Takes what kernels have printed (`vprintf`), also those that had a fault. A launch may print 1 MiB.
    pub fn take_printed(&mut self) -> String {
        std::mem::take(&mut self.printed)
    }
}

/// Checks a launch against the limits of the device and the kernel's directives.
pub(crate) fn check_launch(k: &Kernel, l: &Launch<'_>, arch: Arch) -> Result<(), (FindingKind, String)> {
    let invalid = |m: String| Err((FindingKind::InvalidLaunch, m));
    let threads: u64 = l.block.iter().map(|&n| n as u64).product();
    let ([gx, gy, gz], [bx, by, bz]) = (l.grid, l.block);
    if gx == 0 || gy == 0 || gz == 0 || gx > 0x7fff_ffff || gy > 65535 || gz > 65535 {
        return invalid(format!("grid ({gx},{gy},{gz}): 1 to 2^31-1, 65535, 65535 are allowed"));
    }
    if threads == 0 || threads > 1024 || bx > 1024 || by > 1024 || bz > 64 {
        return invalid(format!("block ({bx},{by},{bz}): at most 1024 threads, and 64 in z"));
    }
    if l.params.len() < k.param_bytes as usize {
        return invalid(format!("{} bytes of parameters, the kernel has {}", l.params.len(), k.param_bytes));
    }
    let shared = k.dynamic_start as u64 + l.dynamic_shared as u64;
    let most = arch.multiprocessor().shared_bytes_per_block;
    if shared > most.into() {
        return invalid(format!("{shared} bytes of shared memory, a block has at most {most}"));
    }
    if let Some(max) = k.max_ntid
        && threads > max.iter().map(|&n| n as u64).product()
    {
        return Err((
            FindingKind::TooManyThreads,
            format!("{threads} threads, the kernel's .maxntid is ({},{},{})", max[0], max[1], max[2]),
        ));
    }
    if let Some(req) = k.req_ntid
        && req != l.block
    {
        return invalid(format!(
            "block ({bx},{by},{bz}), the kernel's .reqntid is ({},{},{})",
            req[0], req[1], req[2]
        ));
    }
    Ok(())
}

impl<'a> Job<'a> {
    fn new(
        gpu: &'a Gpu,
        loaded: &'a LoadedModule,
        kernel: &'a Kernel,
        l: &Launch<'a>,
        context: LaunchContext,
        workspace: u64,
    ) -> Self {
        let LaunchContext { peers, writer, unordered, remote, cooperative, objects, limits } = context;
        let mut snapshot = gpu.memory.snapshot();
        if !peers.is_empty() {
            snapshot.live.extend(peers);
            snapshot.live.sort_by_key(|a| a.base);
        }
        let mut job = Self {
            functions: &loaded.module.functions,
            instructions: loaded.module.functions.iter().map(|f| f.code.len()).sum(),
            starts: (loaded.module.functions.iter())
                .scan(0, |end, f| Some(std::mem::replace(end, *end + f.code.len())))
                .collect(),
            has_lines: loaded.module.has_lines(),
            kernel,
            lines: &loaded.module.lines,
            memory: &gpu.memory,
            touched: snapshot.live.iter().map(|_| OnceLock::new()).collect(),
            snapshot,
            config: &gpu.config,
            fast: Fast::detect(),
            grid: l.grid,
            block: l.block,
            dynamic_shared: l.dynamic_shared,
            params: l.params,
            globals: &loaded.addresses,
            code: loaded.code,
            shared_arrays: SharedArrays::new(kernel, &loaded.module.variables, l.dynamic_shared),
            global_races: None,
            launch_id: gpu.launches,
            writer,
            unordered,
            remote,
            cooperative,
            objects,
            limits,
            independent: gpu.config.card.arch.independent_lanes(),
            orders: gpu.config.card.arch.independent_lanes() && gpu.config.checks.races,
            workspace,
            next: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            spent: AtomicU64::new(0),
            fault: Mutex::new(None),
            printed: Mutex::new(Vec::new()),
            printed_bytes: AtomicUsize::new(0),
        };
        if gpu.config.checks.races {
            let (allocations, granule) = (job.snapshot.live.len(), kernel.store_granule);
            job.global_races = GlobalRaces::new(allocations, job.blocks(), granule, kernel.line);
        }
        job
    }

    /// The text of all blocks in their order.
    fn printed(&mut self) -> String {
        let mut texts = std::mem::take(self.printed.get_mut().unwrap_or_else(|e| e.into_inner()));
        texts.sort_by_key(|&(block, _)| block);
        let bytes: Vec<u8> = texts.into_iter().flat_map(|(_, text)| text).collect();
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        let limit = self.limits.printed;
        let lost = self.printed_bytes.get_mut().saturating_sub(limit);
        if lost > 0 {
            text += &format!("[{lost} bytes beyond a launch's limit of {limit} are missing]\n");
        }
        text
    }

    fn run(&mut self) -> Result<LaunchReport, Fault> {
        // Own threads instead of a shared pool: a launch may come from inside a pool's job, and waiting there
        // would let that thread start another job that launches while this launch holds the device.
        // The first block runs alone; its cost decides how many threads are worth starting.
        let (blocks, limit) = (self.blocks(), self.config.launch_limit);
        if blocks.saturating_mul(Config::BLOCK_COST) > limit {
            let message = format!(
                "{blocks} blocks cost more than {limit} thread instructions, {} each for their start",
                Config::BLOCK_COST
            );
            return Err(Finding::new(FindingKind::Timeout, &self.kernel.name, message));
        }
        let mut runner = Block::new(self);
        let workers = if self.cooperative {
            blocks // each of them with a thread of its own, so that it may wait for any other
        } else {
            self.work(&mut runner, 1);
            let rest = blocks - 1;
            (self.config.threads as u64)
                .min(rest)
                .min(1 + rest.saturating_mul(runner.counters.warp_total()) / 4096)
        };
        if workers <= 1 {
            self.work(&mut runner, u64::MAX);
        }
        let Block { mut counters, mut costs, .. } = runner;
        if workers > 1 {
            let parts = std::thread::scope(|s| {
                let job = &*self;
                let handles: Vec<_> = (0..workers)
                    .map(|_| {
                        s.spawn(move || {
                            let mut runner = Block::new(job);
                            job.work(&mut runner, u64::MAX);
                            (runner.counters, runner.costs)
                        })
                    })
                    .collect();
                handles.into_iter().map(|h| h.join()).collect::<Vec<_>>()
            });
            for p in parts {
                match p {
                    Ok((c, more)) => {
                        counters += &c;
                        costs.iter_mut().zip(more).for_each(|(sum, cost)| *sum += cost);
                    }
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        }
        if let Some((_, f)) = self.fault.get_mut().unwrap_or_else(|e| e.into_inner()).take() {
            return Err(f);
        }
        let (kernel, grid, block) = (self.kernel.name.clone(), self.grid, self.block);
        let shared_bytes = self.shared_bytes();
        let lines = line_costs::by_line(self.functions, self.lines, &costs);
        Ok(LaunchReport { kernel, grid, block, shared_bytes, in_graph: false, counters, lines })
    }

    /// Takes up to `limit` blocks in order and runs them. In order, so that a block which waits for an
    /// earlier one (a chain through global memory) always finds it running or done.
    fn work<'j>(&'j self, runner: &mut Block<'j>, limit: u64) {
        for _ in 0..limit {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            if n >= self.blocks() {
                break;
            }
            if let Err(finding) = runner.run(n) {
                self.stop.store(true, Ordering::Relaxed);
                let mut fault = self.fault.lock().unwrap_or_else(|e| e.into_inner());
                if fault.as_ref().is_none_or(|(at, _)| n < *at) {
                    *fault = Some((n, *finding));
                }
            }
        }
    }
}
