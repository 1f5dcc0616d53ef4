//! The device without the driver API: memory and modules, and what a launch counts.

use std::collections::BTreeSet;

use pascaline_virtual_gpu::{Checks, Config, FindingKind, Gpu, Launch, LaunchReport, MemoryError, Module};

const HEAD: &str = ".version 6.4 .target sm_61 .address_size 64\n";

fn read<const N: usize>(gpu: &Gpu, at: u64) -> [u32; N] {
    std::array::from_fn(|i| {
        let mut word = [0; 4];
        gpu.read(at + 4 * i as u64, &mut word).unwrap();
        u32::from_le_bytes(word)
    })
}

#[test]
fn variables_live_as_long_as_their_module() {
    let text = format!(
        "{HEAD}.visible .shared .align 4 .b8 tile[64];
        .visible .global .align 8 .u64 first = 7;
        .visible .global .align 8 .u64 links[3] = {{1, first+4, generic(first)}};
        .visible .global .align 4 .u32 last[2] = {{8, 9}};
        .visible .entry k() {{ .reg .b32 %r; mov.u32 %r, tile; ret; }}"
    );
    let mut gpu = Gpu::new(Config::default());
    let other = gpu.alloc(100).unwrap();
    let module = gpu.load(Module::parse(&text).unwrap()).unwrap();
    assert_eq!(gpu.used(), 100 + 8 + 24 + 8);
    assert_eq!((module.global("tile"), module.global("none")), (None, None));
    let global = |name| module.global(name).unwrap();
    let (first, links, last) = (global("first"), global("links"), global("last"));
    assert_eq!([first.1, links.1, last.1], [8, 24, 8]);
    assert_eq!((read(&gpu, first.0), read(&gpu, last.0)), ([7, 0], [8, 9]));
    let mut words = [0; 24];
    gpu.read(links.0, &mut words).unwrap();
    assert_eq!(
        words,
        [1u64.to_le_bytes(), (first.0 + 4).to_le_bytes(), first.0.to_le_bytes()].as_flattened()
    );
    gpu.unload(&module).unwrap();
    assert_eq!(gpu.used(), 100);
    assert_eq!(gpu.unload(&module), Err(MemoryError::UnknownPointer));
    gpu.free(other).unwrap();
    assert_eq!(gpu.used(), 0);
}

/// A kernel with a pointer, of which `code` makes something of its own.
fn kernel(code: &str) -> Module {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 p) {{ .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .pred %p<3>;
        ld.param.u64 %rd1, [p]; mov.u32 %r1, %ctaid.x; mad.wide.u32 %rd2, %r1, 4, %rd1;\n{code}\nret; }}"
    );
    Module::parse(&text).unwrap()
}

#[test]
fn blocks_know_their_launch_and_their_sm() {
    let mut gpu = Gpu::new(Config { threads: 1, ..Config::default() });
    let p = gpu.alloc(45 * 4).unwrap();
    let place = "mov.u32 %r2, %ctaid.y; mad.lo.u32 %r1, %r2, 3, %r1; mov.u32 %r2, %ctaid.z; mad.lo.u32 %r1, %r2, 9, %r1;";
    let sm = "mad.wide.u32 %rd2, %r1, 4, %rd1; mov.u32 %r2, %smid; st.global.u32 [%rd2], %r2;";
    let module = gpu.load(kernel(&format!("{place}{sm}"))).unwrap();
    let launch = Launch { grid: [3, 3, 5], block: [1; 3], dynamic_shared: 0, params: &p.to_le_bytes() };
    gpu.launch(&module, "k", launch).unwrap();
    assert_eq!(read::<45>(&gpu, p), std::array::from_fn(|block| block as u32 % 20), "a GTX 1080 has 20");
    let module = gpu.load(kernel("mov.u32 %r2, %gridid; st.global.u32 [%rd2], %r2;")).unwrap();
    for number in [2, 3] {
        gpu.launch(&module, "k", Launch { grid: [1; 3], ..launch }).unwrap();
        assert_eq!(read(&gpu, p), [number], "launches are counted");
    }
}

#[test]
fn the_seed_varies_the_order_of_warps() {
    let last = |seed| {
        let checks = Checks { races: false, ..Checks::ALL };
        let mut gpu = Gpu::new(Config { seed, checks, ..Config::default() });
        let p = gpu.alloc(4).unwrap();
        let module = gpu.load(kernel("mov.u32 %r2, %warpid; st.global.u32 [%rd1], %r2;")).unwrap();
        let launch = Launch { grid: [1; 3], block: [256, 1, 1], dynamic_shared: 0, params: &p.to_le_bytes() };
        gpu.launch(&module, "k", launch).unwrap();
        read::<1>(&gpu, p)[0]
    };
    let winners: BTreeSet<u32> = (0..32).map(last).collect();
    assert!(winners.len() > 4, "{winners:?}");
    assert_eq!(last(5), last(5));
}

fn launch(config: Config, bytes: u64, module: Module, dynamic_shared: u32, threads: u32) -> LaunchReport {
    let mut gpu = Gpu::new(config);
    let (p, module) = (gpu.alloc(bytes).unwrap(), gpu.load(module).unwrap());
    let launch = Launch { grid: [1; 3], block: [threads, 1, 1], dynamic_shared, params: &p.to_le_bytes() };
    gpu.launch(&module, "k", launch).unwrap()
}

#[test]
fn reports_have_the_shared_memory_and_the_sectors_of_any_buffer() {
    let shared =
        kernel(".extern .shared .align 16 .b8 d[]; .shared .b8 s[1000]; mov.u32 %r1, d; mov.u32 %r2, s;");
    assert_eq!(launch(Config::default(), 4, shared, 24, 1).shared_bytes, 1008 + 24);
    let word = kernel("st.global.u32 [%rd1], 1;");
    assert_eq!(launch(Config::default(), 4, word, 0, 32).counters.distinct_sectors, 1);
    let all = "mov.u32 %r2, %tid.x; mad.wide.u32 %rd2, %r2, 32, %rd1; st.global.u32 [%rd2], 1;";
    assert_eq!(launch(Config::default(), 32 << 10, kernel(all), 0, 1024).counters.distinct_sectors, 1024);
    // Lanes of one request in two buffers, one of which is the module's.
    let two = format!(
        "{HEAD}.global .align 4 .u32 own[256]; .visible .entry k(.param .u64 p) {{ .reg .b64 %rd<4>; .reg .b32 %r<3>; .reg .pred %p;
        ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mov.u64 %rd2, own; and.b32 %r2, %r1, 1; setp.eq.u32 %p, %r2, 1;
        selp.b64 %rd1, %rd1, %rd2, %p; mad.wide.u32 %rd1, %r1, 32, %rd1; st.global.u32 [%rd1], 1; ret; }}"
    );
    let c = launch(Config::default(), 1024, Module::parse(&two).unwrap(), 0, 32).counters;
    assert_eq!((c.global_stores.units, c.distinct_sectors), (32, 32));
}

/// Limits are the most that is allowed, to the instruction.
#[test]
fn limits_are_exact() {
    let code = "mov.u32 %r2, 0; L: add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 9; @%p1 bra L;";
    let free = launch(Config::default(), 4, kernel(code), 0, 64);
    let spent = 32 * free.counters.warp_total();
    assert_eq!(spent, 32 * 2 * (4 + 3 * 9 + 1));
    let fault = |launch_limit, instruction_limit| {
        let mut gpu = Gpu::new(Config { launch_limit, instruction_limit, ..Config::default() });
        let module = gpu.load(kernel(code)).unwrap();
        let launch = Launch { grid: [1; 3], block: [64, 1, 1], dynamic_shared: 0, params: &[0; 8] };
        gpu.launch(&module, "k", launch).err().map(|f| {
            assert_eq!(f.kind, FindingKind::Timeout, "{f}");
            (f.line, f.message)
        })
    };
    let start = Config::BLOCK_COST;
    assert_eq!(fault(start + spent, spent), None);
    let costs = |limit| format!("the launch costs more than {limit} thread instructions");
    assert_eq!(fault(start + spent - 1, spent), Some((2, costs(start + spent - 1))));
    assert_eq!(fault(start, spent), Some((2, costs(start))));
    let message = "1 blocks cost more than 16383 thread instructions, 16384 each for their start";
    assert_eq!(fault(start - 1, spent), Some((0, message.to_owned())));
    let message = format!("the block has executed {} thread instructions", spent - 1);
    assert_eq!(fault(start + spent, spent - 1), Some((2, message)));
}

/// The error of a text, which is read on a thread with no more stack than threads have, and in some seconds.
fn refused(text: &str) -> String {
    let since = std::time::Instant::now();
    let reason = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        thread.spawn_scoped(scope, || Module::parse(text).map(drop)).unwrap().join().unwrap()
    });
    assert!(since.elapsed().as_secs() < 30, "{:?}", since.elapsed());
    reason.expect_err("it is refused").to_string()
}

/// Functions of which each calls the next, `times` times.
fn chain(functions: usize, times: usize) -> String {
    let calls = |i: usize| format!("call f{i};\n").repeat(times);
    let mut text = format!("{HEAD}.func f0() {{ ret; }}\n");
    for i in 1..functions {
        text += &format!(".func f{i}() {{ {} ret; }}\n", calls(i - 1));
    }
    text + &format!(".visible .entry k() {{ {} ret; }}\n", calls(functions - 1))
}

#[test]
fn calls_are_followed_without_recursion_to_a_limit() {
    assert!(refused(&chain(100_000, 1)).contains("more than 256 deep"));
    assert!(refused(&chain(256, 1)).contains("more than 256 deep"));
    Module::parse(&chain(255, 1)).unwrap();
    // two calls of each by each are 2^200 ways, and 200 functions
    Module::parse(&chain(200, 2)).unwrap();
    let own = format!(
        "{HEAD}.func f();\n.func g() {{ call f; ret; }}\n.func f() {{ call g; ret; }}\n.visible .entry k() {{ call f; ret; }}"
    );
    Module::parse(&own).unwrap();
    let missing = format!("{HEAD}.func f();\n.visible .entry k() {{ call f; ret; }}");
    assert!(refused(&missing).contains("function `f` is called but defined nowhere"));
    let local = |i: usize| {
        format!(
            ".func f{i}() {{ .local .b8 l[262144]; {} ret; }}\n",
            if i > 0 { format!("call f{};", i - 1) } else { String::new() }
        )
    };
    let deep = format!("{HEAD}{}{}{}.visible .entry k() {{ call f2; ret; }}", local(0), local(1), local(2));
    assert!(refused(&deep).contains("more than 524288 bytes of local memory"));
    Module::parse(&deep.replace("call f2", "call f1")).unwrap();
}

#[test]
fn many_kernels_take_linear_time() {
    let since = std::time::Instant::now();
    let kernels: String =
        (0..120_000).map(|i| format!(".shared .b8 s{i}[4];\n.visible .entry k{i}() {{ ret; }}\n")).collect();
    let module = Module::parse(&format!("{HEAD}{kernels}")).unwrap();
    assert_eq!(module.kernels().len(), 120_000);
    // less than a second; all kernels, functions and variables for each kernel took more than a minute
    assert!(since.elapsed().as_secs() < 30, "{:?}", since.elapsed());
    let again = format!("{HEAD}{kernels}.visible .entry k7() {{ ret; }}");
    assert!(refused(&again).contains("`k7` is defined twice"));
    let all: String = (0..5000).map(|i| format!(".func f{i}() {{ ret; }}\n")).collect();
    let calls: String = (0..5000).map(|i| format!("call f{i};")).collect();
    let first = format!(".func all() {{ {calls} ret; }}\n");
    let kernels: String =
        (0..5000).map(|i| format!(".visible .entry k{i}() {{ call all; ret; }}\n")).collect();
    assert!(refused(&format!("{HEAD}{all}{first}{kernels}")).contains("call too many functions"));
}

#[test]
fn what_a_text_nests_and_declares_has_limits() {
    let inside = |body: &str| format!("{HEAD}.visible .entry k() {{ {body} ret; }}");
    assert!(refused(&inside(&"{".repeat(100_000))).contains("nested more than 64 deep"));
    Module::parse(&inside(&format!("{}{}", "{".repeat(64), "}".repeat(64)))).unwrap();
    let vectors = format!(".reg .b64 %d; mov.b64 %d, {};", "{".repeat(100_000));
    assert!(refused(&inside(&vectors)).contains("a vector in a vector"));
    let global = |bytes: u64| format!("{HEAD}.global .b8 g[{bytes}];\n.visible .entry k() {{ ret; }}");
    assert!(refused(&global(1 << 32)).contains("at most 1073741824"));
    assert!(refused(&global((1 << 30) + 1)).contains("at most 1073741824"));
    Module::parse(&global(1 << 30)).unwrap();
    // of several MiB, zero after its initialiser
    let mut gpu = Gpu::new(Config::default());
    let text = format!("{HEAD}.global .b8 g[3000001] = {{7}};\n.visible .entry k() {{ ret; }}");
    let module = gpu.load(Module::parse(&text).unwrap()).unwrap();
    let (at, bytes) = module.global("g").unwrap();
    let mut found = vec![1; bytes as usize];
    gpu.read(at, &mut found).unwrap();
    assert!(found[0] == 7 && found[1..].iter().all(|&byte| byte == 0));
}
