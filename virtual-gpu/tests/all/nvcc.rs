//! PTX as only nvcc writes it: `vprintf`, `%envreg`, structures by value.

use pascaline_virtual_gpu::{Checks, Config, Finding, FindingKind, Gpu, Launch, Module};

const PTX: &str = r#".version 7.8
.target sm_61
.address_size 64
.extern .func  (.param .b32 func_retval0) vprintf
(
.param .b64 vprintf_param_0,
.param .b64 vprintf_param_1
)
;
.global .align 1 .b8 $str[18] = {98, 108, 111, 99, 107, 32, 37, 100, 58, 32, 37, 115, 32, 37, 102, 10, 0, 0};
.global .align 1 .b8 $name[4] = {111, 110, 101, 0};
// out[0]: vprintf's result; prints from lanes 0 and 1, and traps in the second half of the grid
.entry speak(.param .u64 out, .param .u32 trap_from)
{
.local .align 8 .b8 __local_depot0[24];
.reg .b64 %SP; .reg .b64 %SPL; .reg .b32 %r<8>; .reg .b64 %rd<12>; .reg .pred %p<3>;
mov.u64 %SPL, __local_depot0;
cvta.local.u64 %SP, %SPL;
mov.u32 %r1, %tid.x;
setp.gt.u32 %p1, %r1, 1;
@%p1 bra done;
mov.u32 %r2, %ctaid.x;
st.local.u32 [%SPL], %r2;
mov.u64 %rd1, $name;
cvta.global.u64 %rd2, %rd1;
st.local.u64 [%SPL+8], %rd2;
mov.u64 %rd3, 0x3ff8000000000000;
st.local.u64 [%SPL+16], %rd3;
mov.u64 %rd4, $str;
cvta.global.u64 %rd5, %rd4;
{
.reg .b32 temp_param_reg;
.param .b64 param0;
st.param.b64 [param0+0], %rd5;
.param .b64 param1;
st.param.b64 [param1+0], %SP;
.param .b32 retval0;
call.uni (retval0),
vprintf,
(
param0,
param1
);
ld.param.b32 %r3, [retval0+0];
}
ld.param.u64 %rd6, [out];
st.global.u32 [%rd6], %r3;
ld.param.u32 %r4, [trap_from];
setp.lt.u32 %p2, %r2, %r4;
@%p2 bra done;
trap;
done:
ret;
}
// out = a.x + 10 a.z + 100 b + %envreg1, of a structure of three numbers by value
.entry fields(.param .u64 out, .param .align 4 .b8 a[12], .param .align 8 .b8 b[16])
{
.reg .b32 %r<8>; .reg .b64 %rd<4>;
ld.param.u32 %r1, [a];
ld.param.u32 %r2, [a+8];
mad.lo.u32 %r1, %r2, 10, %r1;
ld.param.u64 %rd1, [b+8];
cvt.u32.u64 %r3, %rd1;
mad.lo.u32 %r1, %r3, 100, %r1;
mov.u32 %r4, %envreg1;
add.u32 %r1, %r1, %r4;
ld.param.u64 %rd2, [out];
st.global.u32 [%rd2], %r1;
ret;
}
"#;

fn params(gpu: &mut Gpu, trap_from: u32) -> (u64, Vec<u8>) {
    let out = gpu.alloc(4).unwrap();
    (out, [out.to_le_bytes().as_slice(), &trap_from.to_le_bytes()].concat())
}

fn word(gpu: &Gpu, at: u64) -> u32 {
    let mut bytes = [0; 4];
    gpu.read(at, &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

#[test]
fn vprintf_prints_block_after_block() {
    let mut gpu = Gpu::new(Config { threads: 4, ..Config::default() });
    let module = gpu.load(Module::parse(PTX).unwrap()).unwrap();
    let (out, params) = params(&mut gpu, u32::MAX);
    let launch = Launch { grid: [3, 1, 1], block: [32, 1, 1], dynamic_shared: 0, params: &params };
    gpu.launch(&module, "speak", launch).unwrap();
    let lines = ["block 0: one 1.500000\n"; 2].into_iter();
    let lines = lines.chain(["block 1: one 1.500000\n"; 2]).chain(["block 2: one 1.500000\n"; 2]);
    assert_eq!(gpu.take_printed(), lines.collect::<String>());
    assert_eq!(gpu.take_printed(), "");
    assert_eq!(word(&gpu, out), 3);
}

#[test]
fn what_was_printed_before_a_fault_is_kept() {
    let mut gpu = Gpu::new(Config::default());
    let module = gpu.load(Module::parse(PTX).unwrap()).unwrap();
    let (_, params) = params(&mut gpu, 0);
    let launch = Launch { grid: [1; 3], block: [32, 1, 1], dynamic_shared: 0, params: &params };
    assert_eq!(gpu.launch(&module, "speak", launch).unwrap_err().kind, FindingKind::Trap);
    assert_eq!(gpu.take_printed(), "block 0: one 1.500000\n".repeat(2));
}

#[test]
fn a_launch_prints_a_mebibyte_at_most_and_says_what_is_missing() {
    let mut gpu = Gpu::new(Config::default());
    let module = gpu.load(Module::parse(PTX).unwrap()).unwrap();
    let (_, params) = params(&mut gpu, u32::MAX);
    let launch = Launch { grid: [30_000, 1, 1], block: [32, 1, 1], dynamic_shared: 0, params: &params };
    gpu.launch(&module, "speak", launch).unwrap();
    let text = gpu.take_printed();
    assert!(text.len() <= (1 << 20) + 100, "{}", text.len());
    let all: usize = (0..30_000).map(|block| 2 * format!("block {block}: one 1.500000\n").len()).sum();
    let said = format!("[{} bytes beyond a launch's limit of 1048576 are missing]\n", all - (1 << 20));
    assert!(text.ends_with(&said), "{}", &text[text.len() - 100..]);
    let longest = "block 29999: one 1.500000\n".len();
    assert!(text.len() - said.len() > (1 << 20) - longest, "{}", text.len());
}

/// Prints from local memory at %SP, of which a thread has 48 bytes, where %p1 holds.
fn print(checks: Checks, format: &str, before: &str, after: &str) -> Result<String, Finding> {
    let mut bytes: Vec<String> = format.bytes().map(|byte| byte.to_string()).collect();
    bytes.push("0".to_owned());
    let text = format!(
        ".version 7.8 .target sm_61 .address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.global .align 1 .b8 $f[{}] = {{{}}};
.entry k() {{
.local .align 8 .b8 depot[24]; .reg .b64 %SP; .reg .b64 %SPL; .reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p<3>;
mov.u64 %SPL, depot; cvta.local.u64 %SP, %SPL; mov.u32 %r1, %tid.x; mov.u64 %rd1, $f;
{before}
{{ .param .b32 r; .param .b64 a; .param .b64 b; st.param.b64 [a], %rd1; st.param.b64 [b], %SP;
@%p1 call (r), vprintf, (a, b);
}}
{after}
ret; }}",
        bytes.len(),
        bytes.join(", ")
    );
    let mut gpu = Gpu::new(Config { checks, ..Config::default() });
    let module = gpu.load(Module::parse(&text).unwrap()).unwrap();
    let launch = Launch { grid: [1; 3], block: [40, 1, 1], dynamic_shared: 0, params: &[] };
    gpu.launch(&module, "k", launch)?;
    Ok(gpu.take_printed())
}

#[test]
fn each_thread_prints_its_own_local_memory() {
    for checks in [Checks::ALL, Checks::NONE] {
        let own = "st.local.u32 [%SPL], %r1; setp.lt.u32 %p1, %r1, 34;";
        let numbers: String = (0..34).map(|thread| format!("{thread}\n")).collect();
        assert_eq!(print(checks, "%d\n", own, ""), Ok(numbers));
        // The last eight bytes hold their own address, which is printed from there.
        let last = "add.u64 %SP, %SP, 40; setp.eq.u32 %p1, %r1, 35;";
        assert_eq!(print(checks, "%p", last, ""), Ok("0x1f10000000028".to_owned()));
        let beyond = print(checks, "%p", "add.u64 %SP, %SP, 44; setp.eq.u32 %p1, %r1, 35;", "").unwrap_err();
        assert_eq!((beyond.kind, beyond.line, beyond.thread), (FindingKind::OutOfBounds, 9, [35, 0, 0]));
        assert_eq!(beyond.message, "8-byte read by vprintf at local address 0x30, a thread has 48 bytes");
    }
    let unwritten = print(Checks::ALL, "%d", "setp.eq.u32 %p1, %r1, 35;", "").unwrap_err();
    assert_eq!(
        (unwritten.kind, unwritten.line, unwritten.thread),
        (FindingKind::Uninitialized, 9, [35, 0, 0])
    );
    assert_eq!(unwritten.message, "4-byte read by vprintf at local address 0x0");
    // The result that one thread gets is not another's.
    let after = "setp.ne.u32 %p2, %r1, 0; @%p2 ld.local.u32 %r2, [%SPL];";
    let other = print(Checks::ALL, "-", "setp.eq.u32 %p1, %r1, 0;", after).unwrap_err();
    assert_eq!((other.kind, other.line, other.thread), (FindingKind::Uninitialized, 11, [1, 0, 0]));
}

#[test]
fn structures_by_value_and_environment_registers() {
    let mut gpu = Gpu::new(Config::default());
    let module = gpu.load(Module::parse(PTX).unwrap()).unwrap();
    let out = gpu.alloc(4).unwrap();
    let mut params = out.to_le_bytes().to_vec();
    params.extend([7u32, 8, 9].iter().flat_map(|v| v.to_le_bytes()));
    params.extend([0; 4]); // up to b's alignment
    params.extend([1u64, 5].iter().flat_map(|v| v.to_le_bytes()));
    let launch = Launch { grid: [1; 3], block: [1; 3], dynamic_shared: 0, params: &params };
    gpu.launch(&module, "fields", launch).unwrap();
    assert_eq!(word(&gpu, out), 7 + 90 + 500);
    let none = PTX.replace("%envreg1;", "%envreg32;");
    assert!(Module::parse(&none).unwrap_err().reason.contains("%envreg32"));
}

#[test]
fn only_vprintf_as_it_is_needs_no_definition() {
    let other = PTX
        .replace(".param .b64 vprintf_param_1", ".param .b32 vprintf_param_1")
        .replace("st.param.b64 [param1+0], %SP", "st.param.b32 [param1+0], %r1")
        .replace(".param .b64 param1", ".param .b32 param1");
    assert!(Module::parse(&other).unwrap_err().reason.contains("`vprintf` is called but defined nowhere"));
}

/// An assertion as the compiler writes it, and a structure that is read by an address in a register.
const ASSERTS: &str = r#".version 7.8
.target sm_61
.address_size 64
.extern .func __assertfail
(.param .b64 p0, .param .b64 p1, .param .b32 p2, .param .b64 p3, .param .b64 p4);
.global .align 1 .b8 $text[6] = {120, 32, 60, 32, 50, 0};
.global .align 1 .b8 $file[4] = {97, 46, 99, 0};
.global .align 1 .b8 $function[2] = {102, 0};
// out = a[i]; asserts that i is less than 2
.entry pick(.param .u64 out, .param .align 8 .b8 a[16], .param .u32 i)
{
.reg .b64 %rd<12>; .reg .b32 %r<3>; .reg .pred %p<2>;
ld.param.u32 %r1, [i];
setp.lt.u32 %p1, %r1, 2;
@%p1 bra fine;
mov.u64 %rd1, $text; cvta.global.u64 %rd2, %rd1;
mov.u64 %rd3, $file; cvta.global.u64 %rd4, %rd3;
mov.u64 %rd5, $function; cvta.global.u64 %rd6, %rd5;
{
.param .b64 param0; st.param.b64 [param0], %rd2;
.param .b64 param1; st.param.b64 [param1], %rd4;
.param .b32 param2; st.param.b32 [param2], 7;
.param .b64 param3; st.param.b64 [param3], %rd6;
.param .b64 param4; st.param.b64 [param4], 1;
call.uni __assertfail, (param0, param1, param2, param3, param4);
}
fine:
mov.b64 %rd7, a;
mul.wide.u32 %rd8, %r1, 8;
add.s64 %rd9, %rd7, %rd8;
ld.param.u64 %rd10, [%rd9];
ld.param.u64 %rd11, [out];
st.global.u64 [%rd11], %rd10;
ret;
}
"#;

#[test]
fn an_assertion_names_its_text_and_parameters_have_addresses() {
    let mut gpu = Gpu::new(Config::default());
    let module = gpu.load(Module::parse(ASSERTS).unwrap()).unwrap();
    let out = gpu.alloc(8).unwrap();
    let mut pick = |i: u32| {
        let params =
            [&out.to_le_bytes()[..], &5u64.to_le_bytes(), &6u64.to_le_bytes(), &i.to_le_bytes()].concat();
        let launch = Launch { grid: [1; 3], block: [1; 3], dynamic_shared: 0, params: &params };
        gpu.launch(&module, "pick", launch)?;
        let mut word = [0; 8];
        gpu.read(out, &mut word).unwrap();
        Ok::<_, Finding>(u64::from_le_bytes(word))
    };
    assert_eq!((pick(0).unwrap(), pick(1).unwrap()), (5, 6));
    let found = pick(2).unwrap_err();
    assert_eq!((found.kind, found.kind.code()), (FindingKind::AssertFailed, 710));
    assert_eq!(found.message, "assertion `x < 2` failed in f, a.c:7");
}
