//! Thousands of generations in one process, of which many are cancelled or run out of memory: the answers must be those of a
//! fresh process, and the memory must not grow.
//!
//!     cargo run --example soak -- 10000 [SEED]
//!
//! Runs on the virtual GPU with a very small model of random weights. The exit status is 1 if an answer or the memory is wrong.

#[path = "../tests/all/common/small_model.rs"]
mod small_model;

use pascaline::{Device, Error, memory};
use qwen3_vl::generate::user_turn;
use qwen3_vl::preprocess::Picture;
use qwen3_vl::{Options, Prompt, Qwen3Vl, Sampling, Visual};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::collections::BTreeMap;
use std::error::Error as AnyError;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;
use std::{env, fs};

/// Different requests; a generation picks one of them.
const REQUESTS: u64 = 64;
/// Bytes by which the process may grow in its second half: what allocators keep.
const SLACK: usize = 32 << 20;

type Anything<T> = Result<T, Box<dyn AnyError>>;

struct Request {
    prompt: Prompt,
    options: Options,
}

fn below(random: &mut ChaCha8Rng, limit: u64) -> u64 {
    random.next_u64() % limit
}

/// Request number `index`: a random length, up to two pictures of random sizes, and a way to choose tokens.
fn request(model: &Qwen3Vl, seed: u64, index: u64) -> Anything<Request> {
    let random = &mut ChaCha8Rng::seed_from_u64(seed.wrapping_mul(REQUESTS).wrapping_add(index));
    let pictures = below(random, 4).saturating_sub(1);
    let visuals: Vec<_> = (0..pictures)
        .map(|_| {
            let (height, width) = (8 + below(random, 40) as usize, 8 + below(random, 40) as usize);
            let mut pixels = vec![0; height * width * 3];
            random.fill_bytes(&mut pixels);
            Visual::from(Picture { height, width, pixels })
        })
        .collect();
    let words: Vec<_> = (0..=below(random, 10)).map(|_| below(random, 1000).to_string()).collect();
    let prompt = model.processor.prepare(&[user_turn(&visuals, &words.join(" "))], &visuals)?;
    let temperature = if below(random, 2) == 0 { 0.0 } else { 1.0 };
    let options = Options {
        max_new_tokens: 1 + below(random, 6) as usize,
        sampling: Sampling { temperature, seed: index, ..Sampling::GREEDY },
        stop_at_eos: false,
        graph: below(random, 2) == 0,
        ..Options::default()
    };
    Ok(Request { prompt, options })
}

/// The answer to each request, by a process that has answered no other.
fn fresh_answers(folder: &Path, seed: u64) -> Anything<Vec<Vec<u32>>> {
    (0..REQUESTS)
        .map(|index| {
            let output = Command::new(env::current_exe()?)
                .args(["--answer", &seed.to_string(), &index.to_string()])
                .arg(folder)
                .output()?;
            if !output.status.success() {
                return Err(format!("request {index}: {}", String::from_utf8_lossy(&output.stderr)).into());
            }
            let text = String::from_utf8(output.stdout)?;
            Ok(text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
        })
        .collect()
}

/// Resident bytes of this process, where the system reports them.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<usize>().map_or(0, |kib| kib << 10)
}

fn soak(count: u64, seed: u64) -> Anything<()> {
    let folder =
        small_model::write(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/qwen3-vl/tiny")));
    let expected = fresh_answers(folder.path(), seed)?;
    let device = Device::virtual_gpu()?;
    let Device::Cuda(cuda) = &device else { unreachable!("the virtual GPU is a CUDA device") };
    let model = Qwen3Vl::load(folder.path(), &device)?;
    let requests = (0..REQUESTS).map(|index| request(&model, seed, index)).collect::<Anything<Vec<_>>>()?;
    let live = || memory::pool(cuda).map(|pool| pool.statistics().live);
    let (weights, begin, random) = (live()?, Instant::now(), &mut ChaCha8Rng::seed_from_u64(seed));
    let mut ended: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut session, mut early, mut peak) = (model.session()?, 0, 0);
    let check_after = (count / 10).clamp(1, 100);
    for number in 0..count {
        let index = below(random, REQUESTS) as usize;
        let Request { prompt, options } = &requests[index];
        if below(random, 4) == 0 {
            session = model.session()?;
        }
        let cancel_after = if below(random, 5) == 0 { below(random, 8) } else { u64::MAX };
        let refuse = if below(random, 5) == 0 { 1 + below(random, 80) } else { 0 };
        let mut calls = 0;
        let work = || {
            model.generate_from(&mut session, prompt, options, |_| {
                calls += 1;
                if calls > cancel_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
        };
        let how = match memory::refusing(refuse, work).0 {
            Ok(output) if output.ids == expected[index] => "whole answers",
            Ok(output) if calls > cancel_after && expected[index].starts_with(&output.ids) => "cancelled",
            Err(Error::OutOfMemory { .. }) if refuse > 0 => "out of memory",
            other => {
                let wrong = other.map(|output| output.ids);
                return Err(format!("generation {number}: {wrong:?}, expected {:?}", expected[index]).into());
            }
        };
        *ended.entry(how).or_default() += 1;
        if (number + 1) % check_after == 0 || number + 1 == count {
            session = model.session()?;
            memory::pool(cuda)?.trim()?;
            if live()? != weights {
                return Err(format!("generation {number}: {} bytes live, {weights} before", live()?).into());
            }
            peak = peak.max(resident());
            if number < count / 2 {
                early = peak;
            }
        }
    }
    println!("{count} generations in {:.0} s: {ended:?}", begin.elapsed().as_secs_f64());
    println!(
        "device: {weights} bytes live before and after; process: {early} bytes after a half, {peak} at most"
    );
    match peak > early + SLACK {
        true => Err("the process's memory grows".into()),
        false => Ok(()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>();
    let done = match arguments[..] {
        ["--answer", seed, index, folder] => answer(seed, index, folder),
        [count] if number(count).is_ok() => soak(number(count).unwrap_or(0), 0),
        [count, seed] if number(count).is_ok() && number(seed).is_ok() => {
            soak(number(count).unwrap_or(0), number(seed).unwrap_or(0))
        }
        _ => Err("usage: soak COUNT [SEED]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the tokens of one request's answer.
fn answer(seed: &str, index: &str, folder: &str) -> Anything<()> {
    let model = Qwen3Vl::load(folder, &Device::virtual_gpu()?)?;
    let Request { prompt, options } = request(&model, seed.parse()?, index.parse()?)?;
    let output =
        model.generate_from(&mut model.session()?, &prompt, &options, |_| ControlFlow::Continue(()))?;
    println!("{}", output.ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    Ok(())
}
