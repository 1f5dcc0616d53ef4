//! Lines of the source: in findings, and costs by line.

use pascaline_virtual_gpu::{Config, Fault, FindingKind, Gpu, Launch, LaunchReport, Module};

/// `y[i] = x[i]`, and by the thread 5 a trap in a function, as a compiler writes it: `load` of k.rs is inlined, `fail` is called.
/// The last kernel has no lines.
const PTX: &str = r#"
.version 7.2
.target sm_61
.address_size 64
.func fail() {
  .loc 2 10 3
  trap;
}
.visible .entry k(.param .u64 y, .param .u64 x) {
  .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %rd<6>;
  .loc 1 1 0
  ld.param.u64 %rd1, [y];
  ld.param.u64 %rd2, [x];
  .loc 3 62 5 // inlined_at 1 3 9
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.u64 %rd4, %rd2, %rd3;
  .loc 3 70 1, function_name $L__info_string0, inlined_at 2 30 5
  add.u64 %rd5, %rd1, %rd3;
  .loc 2 30 5, function_name $L__info_string0+4, inlined_at 1 4 7
  .loc 3 71 2, function_name $L__info_string0, inlined_at 2 30 5
  ld.global.u32 %r2, [%rd4];
  .loc 1 5 9
  st.global.u32 [%rd5], %r2;
  setp.eq.u32 %p1, %r1, 5;
  .loc 1 6 13
  @%p1 call fail;
  .loc 1 0 0
  ret;
}
.visible .entry bare() {
  trap;
}
.file 1 "/nowhere/src/k.rs"
.file 2 "/nowhere/src/other.rs"
.file 3 "/rust/library/core/src/ptr.rs"
"#;

fn run(kernel: &str, bytes: u64, written: bool, threads: u32) -> Result<LaunchReport, Box<Fault>> {
    let mut gpu = Gpu::new(Config::default());
    let module = gpu.load(Module::parse(PTX).unwrap()).unwrap();
    let (y, x) = (gpu.alloc(1024).unwrap(), gpu.alloc(bytes).unwrap());
    if written {
        gpu.write(x, &vec![1; bytes as usize]).unwrap();
    }
    let params = [y.to_le_bytes(), x.to_le_bytes()].concat();
    let launch = Launch { grid: [1; 3], block: [threads, 1, 1], dynamic_shared: 0, params: &params };
    gpu.launch(&module, kernel, launch).map_err(Box::new)
}

#[test]
fn findings_name_the_line_and_where_it_was_inlined() {
    let found = run("k", 128, false, 4).unwrap_err();
    let places: Vec<_> = found.source.iter().map(ToString::to_string).collect();
    assert_eq!(
        places,
        ["/rust/library/core/src/ptr.rs:71:2", "/nowhere/src/other.rs:30:5", "/nowhere/src/k.rs:4:7"]
    );
    assert_eq!(found.place().map(ToString::to_string).as_deref(), Some("/nowhere/src/other.rs:30:5"));
    let shown = found.to_string();
    assert!(shown.contains(" at /nowhere/src/other.rs:30:5, PTX line "), "{shown}");
    assert!(shown.ends_with("\n  called at /nowhere/src/k.rs:4:7"), "{shown}");
}

#[test]
fn a_trap_names_the_call_that_leads_to_it() {
    let found = run("k", 128, true, 32).unwrap_err();
    assert_eq!((found.kind, found.thread), (FindingKind::Trap, [5, 0, 0]));
    let places: Vec<_> = found.source.iter().map(|place| (place.line, place.column)).collect();
    assert_eq!(places, [(10, 3), (6, 13)], "{found}");
}

#[test]
fn the_text_of_the_line_is_shown_where_the_file_can_be_read() {
    let text =
        PTX.replace("/nowhere/src/other.rs", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/lines.rs"));
    let module = Module::parse(&text).unwrap();
    let line = 1 + text.lines().position(|line| line.trim() == "trap;").unwrap() as u32;
    let place = &module.source(line)[0];
    assert_eq!(place.text().as_deref(), include_str!("lines.rs").lines().nth(9).map(str::trim));
    assert!(place.to_string().ends_with("tests/all/lines.rs:10:3"));
}

#[test]
fn instructions_without_a_place_have_none() {
    let found = run("bare", 128, true, 32).unwrap_err();
    assert!(found.source.is_empty() && found.line > 0, "{found}");
    assert!(!found.to_string().contains(" at /"), "{found}");
}

#[test]
fn costs_are_summed_by_line() {
    let report = run("k", 16, true, 4).unwrap();
    let lines: Vec<_> = report
        .lines
        .iter()
        .map(|cost| (&*cost.line.file, cost.line.line, cost.warp_instructions, cost.sectors))
        .collect();
    let k = "/nowhere/src/k.rs";
    // line 0, the compiler's own, has none
    assert_eq!(
        lines,
        [(k, 3, 3, 0), (k, 1, 2, 0), (k, 5, 2, 1), ("/nowhere/src/other.rs", 30, 2, 1), (k, 6, 1, 0)]
    );
    let with_lines: u64 = lines.iter().map(|line| line.2).sum();
    assert_eq!(with_lines + 1, report.counters.warp_total());
    let plain: String =
        PTX.lines().filter(|line| !line.trim().starts_with(".loc")).collect::<Vec<_>>().join("\n");
    let plain = plain.lines().filter(|line| !line.starts_with(".file")).collect::<Vec<_>>().join("\n");
    assert!(!Module::parse(&plain).unwrap().has_lines());
}

#[test]
fn wrong_places_are_refused() {
    for (from, to) in [
        ("// inlined_at 1 3 9", "// inlined_at 1 3"),
        ("// inlined_at 1 3 9", ", inlined 1 3 9"),
        (".loc 1 5 9", ".loc 1 5"),
    ] {
        assert!(PTX.contains(from));
        assert!(Module::parse(&PTX.replacen(from, to, 1)).is_err(), "{to}");
    }
    // a comment of the same words elsewhere is a comment
    assert!(Module::parse(&PTX.replace("trap;", "trap; // inlined_at 1 3 9 or so")).is_ok());
}
