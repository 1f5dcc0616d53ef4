//! The process in which cells run: it reads one cell a line and answers with its outcome.
//!
//! A fault of the device is permanent in a process. A worker that has had one ends, and another replaces it.

use pascaline::cuda::{self, CudaDevice};
use pascaline::memory::adaptor::Limit;
use pascaline::memory::{self, CudaTimeline, DeviceBuffer, MemoryPool, PlainMemory, StreamHandle};
use pascaline::{DType, Device, Error, Result, Tensor, ops};
use pascaline_driver::faults;
use qwen3_vl::{LoadOptions, Options, Prompt, Qwen3Vl, Session};
use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// The library's work during which the fault occurs.
pub const PHASES: [&str; 9] =
    ["start", "load", "load_streamed", "prefill", "decode", "replay", "streamed", "pool", "plain"];

/// Names the folder of the model to a process that is a worker.
pub const VARIABLE: &str = "PASCALINE_FAULT_MATRIX_MODEL";

/// Lines of a worker's answers begin with this; the test harness prints others.
pub const ANSWER: &str = "answer: ";

/// The outcome of a cell whose phase made fewer calls than before.
pub const NOT_REACHED: &str = "not reached";

/// Whether a worker goes on after this answer: nothing of the cell is left.
pub fn is_whole(answer: &str) -> bool {
    let outcome = answer.split('\t').next().unwrap_or_default();
    matches!(outcome, "right" | "driver" | "memory" | NOT_REACHED)
}

/// Reads `PHASE` or `PHASE RULE`, where a rule is one of [`faults`], and answers, until a fault of the device ends it:
/// the calls of each function in the phase, or the outcome.
pub fn main(folder: &Path) {
    let mut scene = None;
    for line in io::stdin().lock().lines().map_while(|line| line.ok()) {
        let (phase, rule) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match rule {
            "" => calls(phase, folder, &mut scene),
            rule => cell(phase, rule, folder, &mut scene),
        };
        let _ = writeln!(io::stdout(), "{ANSWER}{answer}");
        if phase == "start" || !(rule.is_empty() || is_whole(&answer)) {
            break;
        }
    }
}

fn calls(phase: &str, folder: &Path, scene: &mut Option<Scene>) -> String {
    prepare(phase, folder, scene);
    let ran = run(phase, scene, || faults::count_calls(true));
    let counts: Vec<_> = faults::counts().iter().map(|(name, calls)| format!("{name}={calls}")).collect();
    faults::count_calls(false);
    ran.expect("no fault is scripted");
    counts.join(" ")
}

/// Runs a phase with the fault in it, and then everything that must still work.
fn cell(phase: &str, rule: &str, folder: &Path, scene: &mut Option<Scene>) -> String {
    prepare(phase, folder, scene);
    let expected = scene.as_ref().and_then(|scene| scene.expected.get(phase).cloned());
    let before = scene.as_ref().map(Scene::bytes);
    let arm = || {
        faults::count_calls(true);
        faults::script(rule).expect("a rule");
    };
    let mut found = run(phase, scene, arm);
    // A fault that waits for a synchronisation must not wait for the next cell's.
    if let (Ok(_), Some(scene)) = (&found, &*scene)
        && let Err(error) = scene.device.synchronize()
    {
        found = Err(error);
    }
    let (function, rest) = rule.split_once(':').expect("FUNCTION:CALL");
    let call: u64 = rest.split('=').next().and_then(|call| call.parse().ok()).expect("a call");
    if faults::calls(function) < call {
        faults::clear();
        return format!("{NOT_REACHED}\t");
    }
    let code = rest.split(['=', '@', '!']).nth(1).and_then(|code| code.parse().ok()).expect("a code");
    // a fault that shows elsewhere is named after the call that shows it
    let call = (!rest.contains(['@', '!'])).then(|| function.trim_end_matches("_v2"));
    let outcome = match &found {
        Ok(found) if expected.as_ref().is_none_or(|expected| expected == found) => "right",
        Ok(_) => "wrong",
        Err(Error::OutOfMemory { .. }) => "memory",
        Err(Error::Driver { call: named, code: told, .. })
            if *told == code && call.is_none_or(|call| call == *named) =>
        {
            "driver"
        }
        Err(Error::ModuleLoad { code: told, .. }) if *told == code => "module",
        Err(Error::NoDevice { .. }) => "no-device",
        Err(Error::DeviceLost { code: told, .. }) if *told == code => "lost",
        Err(_) => "another error",
    };
    faults::clear();
    let (then, detail) = match cuda::is_lost() {
        true => after_loss(phase, code, scene),
        false => after_error(phase, &expected, before, scene),
    };
    let outcome =
        if outcome == "lost" { then.trim_start_matches('-').into() } else { format!("{outcome}{then}") };
    format!("{outcome}\t{found:?}; {detail}")
}

/// The same work once more, and the memory: "" if all is well.
fn after_error(
    phase: &str,
    expected: &Option<Vec<u32>>,
    before: Option<usize>,
    scene: &Option<Scene>,
) -> (&'static str, String) {
    let again = run(phase, scene, || ());
    if !matches!((&again, expected), (Ok(again), Some(expected)) if again == expected)
        && !matches!((&again, expected), (Ok(_), None))
    {
        return ("-gone", format!("then {again:?}"));
    }
    let after = scene.as_ref().map(Scene::bytes);
    let suffix = if after > before { "-short" } else { "" };
    (suffix, format!("bytes in use {before:?}, then {after:?}"))
}

/// Checks that everything fails with the first fault, that no driver call is made, and that memory is released: "-lost" if so.
fn after_loss(phase: &str, code: u32, scene: &mut Option<Scene>) -> (&'static str, String) {
    faults::count_calls(true);
    let again = run(phase, scene, || ());
    let lost = matches!(&again, Err(Error::DeviceLost { code: told, .. }) if *told == code);
    let pool = scene.as_ref().and_then(|scene| memory::pool(&scene.device).ok());
    drop(scene.take());
    let (live, calls) = (pool.map_or(0, |pool| pool.statistics().live), faults::counts());
    let suffix = match (lost && calls.is_empty(), live) {
        (true, 0) => "-lost",
        (true, _) => "-lost-keeping",
        (false, _) => "-and then it goes on",
    };
    (suffix, format!("then {again:?}, calls {calls:?}, {live} bytes live"))
}

unsafe extern "C" {
    fn cuCtxSynchronize() -> u32;
}

/// A device with two models on it, and a prompt.
struct Scene {
    device: CudaDevice,
    folder: PathBuf,
    resident: Qwen3Vl,
    /// Loaded when its phase is first run.
    streamed: Option<Qwen3Vl>,
    prompt: Prompt,
    /// The results of the phases that have run, without a fault.
    expected: HashMap<String, Vec<u32>>,
}

/// Runs the phase once without a fault: kernels are loaded and pinned memory is taken once in a process.
fn prepare(phase: &str, folder: &Path, scene: &mut Option<Scene>) {
    if phase == "start" {
        return;
    }
    let scene = scene.get_or_insert_with(|| Scene::new(folder).expect("no fault is scripted"));
    if phase == "streamed" && scene.streamed.is_none() {
        let device = Device::Cuda(scene.device.clone());
        scene.streamed = Some(load(folder, &device, Some(0)).expect("no fault is scripted"));
    }
    if !scene.expected.contains_key(phase) {
        let expected = scene.run(phase, || ()).expect("no fault is scripted");
        scene.expected.insert(phase.to_owned(), expected);
    }
}

fn run(phase: &str, scene: &Option<Scene>, arm: impl FnOnce()) -> Result<Vec<u32>> {
    match scene {
        Some(scene) => scene.run(phase, arm),
        None => start(arm),
    }
}

/// A device from nothing, and the first kernel on it.
fn start(arm: impl FnOnce()) -> Result<Vec<u32>> {
    arm();
    let device = Device::virtual_gpu()?;
    let x = Tensor::from_slice(&[1f32, 2.0, 3.0], [3], &device)?;
    let sum = ops::add(&x, &x)?.to_vec::<f32>()?;
    device.synchronize()?; // a fault at the last wait of the above shows here
    Ok(sum.into_iter().map(f32::to_bits).collect())
}

fn load(folder: &Path, device: &Device, gpu_layers: Option<usize>) -> Result<Qwen3Vl> {
    let options = LoadOptions { dtype: DType::F32, gpu_layers, ..LoadOptions::for_device(device) };
    Qwen3Vl::load_with(folder, device, options, |_| {})
}

impl Scene {
    fn new(folder: &Path) -> Result<Self> {
        let gpu = Device::virtual_gpu()?;
        let resident = load(folder, &gpu, None)?;
        let ids = vec![5, 90, 17];
        let positions = resident.processor.positions(&ids, [].into_iter())?;
        let prompt = Prompt { ids, positions, patches: Vec::new() };
        let Device::Cuda(device) = gpu else { unreachable!("the virtual GPU is a CUDA device") };
        let (folder, expected) = (folder.to_owned(), HashMap::new());
        Ok(Self { device, folder, resident, streamed: None, prompt, expected })
    }

    /// Bytes in use on the device when all unused memory has been returned.
    fn bytes(&self) -> usize {
        let pool = memory::pool(&self.device).expect("it was made before");
        // memory goes back in the order of a stream, and that of a stream that has just gone only when its work is done
        for _ in 0..2 {
            pool.trim().expect("no fault is scripted");
            // SAFETY: the device is open, so a context is current on this thread.
            assert_eq!(unsafe { cuCtxSynchronize() }, 0);
        }
        let (free, total) = self.device.memory_info().expect("no fault is scripted");
        total - free
    }

    /// Runs a phase. `arm` is called when it begins.
    fn run(&self, phase: &str, arm: impl FnOnce()) -> Result<Vec<u32>> {
        let device = Device::Cuda(self.device.clone());
        match phase {
            "load" | "load_streamed" => {
                arm();
                let model = load(&self.folder, &device, (phase == "load_streamed").then_some(1))?;
                let ids = self.answer(&model, 1, false, || ())?;
                drop(model);
                memory::pool(&self.device)?.trim()?;
                Ok(ids)
            }
            "prefill" => {
                arm();
                self.answer(&self.resident, 1, false, || ())
            }
            "decode" => self.answer(&self.resident, 3, false, arm),
            "replay" => self.answer(&self.resident, 4, true, arm),
            "streamed" => self.answer(self.streamed.as_ref().expect("loaded"), 3, false, arm),
            "pool" => {
                arm();
                self.grow_and_trim()
            }
            "plain" => {
                arm();
                self.grow_and_trim_plain()
            }
            other => panic!("there is no phase {other}"),
        }
    }

    /// `arm` is called with the first token.
    fn answer(&self, model: &Qwen3Vl, tokens: usize, graph: bool, arm: impl FnOnce()) -> Result<Vec<u32>> {
        let options = Options { max_new_tokens: tokens, stop_at_eos: false, graph, ..Options::default() };
        let (mut session, mut arm, mut calls): (Session, _, _) = (model.session()?, Some(arm), 0);
        let output = model.generate_from(&mut session, &self.prompt, &options, |_| {
            calls += 1; // the first is before the prompt
            if calls == 2 {
                arm.take().into_iter().for_each(|arm| arm());
            }
            ControlFlow::Continue(())
        })?;
        Ok(output.ids)
    }

    /// Memory of the device's pool: grown for two streams, handed from one to the other, and given back.
    fn grow_and_trim(&self) -> Result<Vec<u32>> {
        const BYTES: usize = 3 << 20;
        let other = self.device.with_new_stream()?;
        let mut first = DeviceBuffer::uninitialized(&self.device, BYTES)?;
        first.fill(7)?;
        let mut second = DeviceBuffer::uninitialized(&other, BYTES)?;
        second.copy_from(0, &first, 0, BYTES)?;
        drop(first);
        memory::pool(&self.device)?.trim()?;
        let third = DeviceBuffer::uninitialized(&self.device, BYTES)?;
        let mut bytes = [0; 8];
        second.download(BYTES - 8, &mut bytes)?;
        drop((second, third, other));
        memory::pool(&self.device)?.trim()?;
        Ok(bytes.map(u32::from).to_vec())
    }

    /// As above, by `cuMemAlloc` and `cuMemFree`, in a pool of its own that a limit makes hand memory over.
    fn grow_and_trim_plain(&self) -> Result<Vec<u32>> {
        const BYTES: usize = 3 << 20;
        let (service, other) = (self.device.with_new_stream()?, self.device.with_new_stream()?);
        let upstream = Limit::new(PlainMemory::new(&self.device), 8 << 20);
        let pool = MemoryPool::new(CudaTimeline::new(&service), upstream, StreamHandle::new(&service));
        let take = |device: &CudaDevice| -> Result<_> {
            let address = pool.allocate(BYTES, &StreamHandle::new(device))?;
            let pool = &pool;
            // SAFETY: allocated above for this value alone, and no work uses it.
            Ok(Taken(move || unsafe { pool.free(address, BYTES) }.expect("it is live")))
        };
        let (first, second) = (take(&self.device)?, take(&other)?);
        drop(first);
        let third = take(&other)?;
        drop((second, third));
        pool.trim()?;
        pool.audit().expect("consistent accounting");
        Ok(Vec::new())
    }
}

/// Memory that goes back when it is dropped.
struct Taken<F: FnMut()>(F);

impl<F: FnMut()> Drop for Taken<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
