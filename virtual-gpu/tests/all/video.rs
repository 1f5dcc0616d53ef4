//! PTX's video instructions against a reference of their own: every operation with types, selectors, masks, saturation and second
//! operations, over edge values.

use pascaline_virtual_gpu::{Config, Gpu, Launch, Module};

const EDGES: [u32; 12] = [
    0,
    1,
    31,
    33,
    0x7f80_ff01,
    0x8000_7fff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x0180_7ffe,
    0xfe81_00c3,
    0x1234_fedc,
];
const THIRD: [u32; 4] = [0, 0x8123_4567, 0xffff_fff0, 0x7fff_fffe];

/// All triples of edge values.
fn triples() -> Vec<[u32; 3]> {
    let mut all = Vec::new();
    for a in EDGES {
        for b in EDGES {
            all.extend(THIRD.map(|c| [a, b, c]));
        }
    }
    all
}

/// What each line of code, which reads %a, %b, %c and writes %d, gives for each triple.
fn run(lines: &[String]) -> Vec<Vec<u32>> {
    let inputs = triples();
    let code: String = lines
        .iter()
        .enumerate()
        .map(|(n, line)| format!("{line}\nst.global.u32 [%out+{}], %d;\n", 4 * n))
        .collect();
    let text = format!(
        ".version 6.4
.target sm_61
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out) {{
.reg .b64 %in, %out, %w; .reg .b32 %a, %b, %c, %d, %i, %t, %n;
ld.param.u64 %in, [in]; ld.param.u64 %out, [out];
mov.u32 %i, %ctaid.x; mov.u32 %n, %ntid.x; mov.u32 %t, %tid.x; mad.lo.u32 %i, %i, %n, %t;
mul.wide.u32 %w, %i, 12; add.u64 %in, %in, %w;
mul.wide.u32 %w, %i, {}; add.u64 %out, %out, %w;
ld.global.u32 %a, [%in]; ld.global.u32 %b, [%in+4]; ld.global.u32 %c, [%in+8];
{code}ret;
}}
",
        4 * lines.len()
    );
    let mut gpu = Gpu::new(Config { threads: 1, ..Config::default() });
    let module = gpu.load(Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))).unwrap();
    let bytes: Vec<u8> = inputs.iter().flatten().flat_map(|v| v.to_le_bytes()).collect();
    let from = gpu.alloc(bytes.len() as u64).unwrap();
    gpu.write(from, &bytes).unwrap();
    let mut results = vec![0u8; 4 * lines.len() * inputs.len()];
    let to = gpu.alloc(results.len() as u64).unwrap();
    let params: Vec<u8> = [from, to].iter().flat_map(|v| v.to_le_bytes()).collect();
    let block = 64;
    assert_eq!(inputs.len() % block, 0);
    let grid = [(inputs.len() / block) as u32, 1, 1];
    gpu.launch(
        &module,
        "k",
        Launch { grid, block: [block as u32, 1, 1], dynamic_shared: 0, params: &params },
    )
    .unwrap();
    gpu.read(to, &mut results).unwrap();
    let words: Vec<u32> =
        results.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    words.chunks(lines.len()).map(<[u32]>::to_vec).collect()
}

/// A line of code and its reference, of a, b and c.
type Form = (String, Box<dyn Fn(u32, u32, u32) -> u32>);

/// Runs forms with their references. Stops at the first that differs.
fn compare(forms: &[Form]) {
    assert!(!forms.is_empty());
    for part in forms.chunks(200) {
        let lines: Vec<String> = part.iter().map(|(line, _)| line.clone()).collect();
        for ([a, b, c], got) in triples().into_iter().zip(run(&lines)) {
            for ((line, reference), got) in part.iter().zip(got) {
                let want = reference(a, b, c);
                assert_eq!(got, want, "{line} a {a:#x} b {b:#x} c {c:#x}: {got:#x}, expected {want:#x}");
            }
        }
    }
}

/// Byte or half `part` ("b2", "h0", "" for all) of x, as a number.
fn pick(x: u32, part: &str, signed: bool) -> i64 {
    let bytes = x.to_le_bytes();
    match (part.split_at_checked(1), signed) {
        (Some(("b", n)), false) => bytes[n.parse::<usize>().unwrap()] as i64,
        (Some(("b", n)), true) => bytes[n.parse::<usize>().unwrap()] as i8 as i64,
        (Some((_, n)), _) => {
            let n: usize = n.parse().unwrap();
            let half = u16::from_le_bytes([bytes[2 * n], bytes[2 * n + 1]]);
            if signed { half as i16 as i64 } else { half as i64 }
        }
        (None, true) => x as i32 as i64,
        (None, false) => x as i64,
    }
}

/// The range of a type of this many bits.
fn clamp(v: i64, bits: u32, signed: bool) -> i64 {
    let (least, most) = match (bits, signed) {
        (8, true) => (i8::MIN as i64, i8::MAX as i64),
        (8, false) => (0, u8::MAX as i64),
        (16, true) => (i16::MIN as i64, i16::MAX as i64),
        (16, false) => (0, u16::MAX as i64),
        (_, true) => (i32::MIN as i64, i32::MAX as i64),
        (_, false) => (0, u32::MAX as i64),
    };
    if v < least {
        least
    } else if v > most {
        most
    } else {
        v
    }
}

fn binary(name: &str, x: i64, y: i64) -> i64 {
    match name {
        "vadd" => x + y,
        "vsub" => x - y,
        "vabsdiff" if x > y => x - y,
        "vabsdiff" => y - x,
        "vmin" if x < y => x,
        "vmin" => y,
        "vmax" if x > y => x,
        "vmax" => y,
        // to the nearest, a half away from zero's negative side: upwards unless the sum is negative
        "vavrg" if x + y < 0 => (x + y).div_euclid(2),
        "vavrg" => (x + y + 1) / 2,
        "eq" => (x == y) as i64,
        "ne" => (x != y) as i64,
        "lt" => (x < y) as i64,
        "le" => (x <= y) as i64,
        "gt" => (x > y) as i64,
        "ge" => (x >= y) as i64,
        _ => panic!("{name}"),
    }
}

/// d with the destination's part replaced, or the second operation.
fn finish(t: i64, part: &str, second: &str, c: u32, signed: bool) -> u32 {
    let third = pick(c, "", signed);
    match second {
        "add" => return (t + third) as u32,
        "min" => return if t < third { t } else { third } as u32,
        "max" => return if t > third { t } else { third } as u32,
        _ => {}
    }
    let mut bytes = c.to_le_bytes();
    match part.split_at_checked(1) {
        Some(("b", n)) => bytes[n.parse::<usize>().unwrap()] = t as u8,
        Some((_, n)) => {
            let at = 2 * n.parse::<usize>().unwrap();
            bytes[at..at + 2].copy_from_slice(&(t as u16).to_le_bytes());
        }
        None => return t as u32,
    }
    u32::from_le_bytes(bytes)
}

fn bits(part: &str) -> u32 {
    match part.as_bytes().first() {
        Some(b'b') => 8,
        Some(_) => 16,
        None => 32,
    }
}

fn dot(word: &str) -> String {
    if word.is_empty() { String::new() } else { format!(".{word}") }
}

const TYPES: [(&str, bool); 2] = [("u32", false), ("s32", true)];
const PARTS: [&str; 7] = ["", "b0", "b1", "b2", "b3", "h0", "h1"];
/// (the destination's part, the second operation)
const ENDS: [(&str, &str); 8] =
    [("", ""), ("", "add"), ("", "min"), ("", "max"), ("b0", ""), ("b3", ""), ("h0", ""), ("h1", "")];

fn pairs_of_types() -> impl Iterator<Item = ((&'static str, bool), (&'static str, bool))> {
    TYPES.into_iter().flat_map(|a| TYPES.map(|b| (a, b)))
}

/// Operand c, which there is only if something of it is kept or used.
fn third(into: &str, second: &str) -> &'static str {
    if (into, second) == ("", "") { "" } else { ", %c" }
}

#[test]
fn of_one_word() {
    let mut forms: Vec<Form> = Vec::new();
    let names = ["vadd", "vsub", "vabsdiff", "vmin", "vmax", "eq", "ne", "lt", "le", "gt", "ge"];
    let mut n = 0;
    for name in names {
        let set = name.len() == 2;
        for (dt, ds) in TYPES.into_iter().skip(set as usize) {
            for ((at, a_signed), (bt, b_signed)) in pairs_of_types() {
                for (into, second) in ENDS {
                    for sat in [false, true] {
                        if set && sat {
                            continue;
                        }
                        // the parts of the sources in turn: each with each in the course of the table
                        let (pa, pb) = (PARTS[n % 7], PARTS[n / 7 % 7]);
                        n += 1;
                        let c = third(into, second);
                        let types =
                            if set { format!(".{at}.{bt}.{name}") } else { format!(".{dt}.{at}.{bt}") };
                        let line = format!(
                            "{}{types}{}{} %d{}, %a{}, %b{}{c};",
                            if set { "vset" } else { name },
                            if sat { ".sat" } else { "" },
                            dot(second),
                            dot(into),
                            dot(pa),
                            dot(pb)
                        );
                        let d_signed = ds && !set;
                        let reference = move |a, b, c| {
                            let mut t = binary(name, pick(a, pa, a_signed), pick(b, pb, b_signed));
                            if sat {
                                t = clamp(t, bits(into), d_signed);
                            }
                            finish(t, into, second, c, d_signed)
                        };
                        forms.push((line, Box::new(reference)));
                    }
                }
            }
        }
    }
    compare(&forms);
}

#[test]
fn shifts() {
    let mut forms: Vec<Form> = Vec::new();
    for left in [true, false] {
        for ((dt, d_signed), (at, a_signed)) in pairs_of_types() {
            for (into, second) in ENDS {
                for (n, (sat, wrap)) in
                    [(false, false), (false, true), (true, false), (true, true)].into_iter().enumerate()
                {
                    let (pa, pb) = (PARTS[(n * 3 + bits(into) as usize) % 7], ["", "b0", "h0"][n % 3]);
                    let c = third(into, second);
                    let line = format!(
                        "{}.{dt}.{at}.u32{}.{}{} %d{}, %a{}, %b{}{c};",
                        if left { "vshl" } else { "vshr" },
                        if sat { ".sat" } else { "" },
                        if wrap { "wrap" } else { "clamp" },
                        dot(second),
                        dot(into),
                        dot(pa),
                        dot(pb)
                    );
                    let reference = move |a, b, c| {
                        let by = pick(b, pb, false);
                        let by = if wrap { by % 32 } else { by.min(32) };
                        let power = 1i128 << by;
                        let x = pick(a, pa, a_signed) as i128;
                        let wide = if left { x * power } else { x.div_euclid(power) };
                        // bits that the 64-bit reference lacks can only saturate
                        let t = if sat {
                            clamp(wide.clamp(i64::MIN as i128, i64::MAX as i128) as i64, bits(into), d_signed)
                        } else {
                            wide as i64
                        };
                        if !sat && matches!(second, "min" | "max") {
                            let third = pick(c, "", d_signed) as i128;
                            return if second == "min" { wide.min(third) } else { wide.max(third) } as u32;
                        }
                        if second == "add" {
                            return (t as u32).wrapping_add(c);
                        }
                        finish(t, into, second, c, d_signed)
                    };
                    forms.push((line, Box::new(reference)));
                }
            }
        }
    }
    compare(&forms);
}

#[test]
fn multiply_add() {
    let mut forms: Vec<Form> = Vec::new();
    let mut n = 0;
    for ((at, a_signed), (bt, b_signed)) in pairs_of_types() {
        for (na, nb, nc, po) in [
            ("", "", "", false),
            ("-", "", "", false),
            ("", "-", "", false),
            ("-", "-", "", false),
            ("", "", "-", false),
            ("", "", "", true),
        ] {
            for sat in [false, true] {
                for scale in [0, 7, 15] {
                    let (pa, pb) = (PARTS[n % 7], PARTS[n / 2 % 7]);
                    n += 1;
                    let line = format!(
                        "vmad.s32.{at}.{bt}{}{}{} %d, {na}%a{}, {nb}%b{}, {nc}%c;",
                        if po { ".po" } else { "" },
                        if sat { ".sat" } else { "" },
                        if scale > 0 { format!(".shr{scale}") } else { String::new() },
                        dot(pa),
                        dot(pb)
                    );
                    let reference = move |a, b, c| {
                        let negate = na != nb;
                        let middle = a_signed || b_signed || negate;
                        let signed = middle || nc == "-";
                        let product = pick(a, pa, a_signed) as i128 * pick(b, pb, b_signed) as i128;
                        let mut sum = if negate { -product } else { product };
                        let third = pick(c, "", middle) as i128;
                        sum += if nc == "-" { -third } else { third };
                        sum += po as i128;
                        let t = sum.div_euclid(1 << scale);
                        if sat {
                            clamp(t.clamp(i64::MIN as i128, i64::MAX as i128) as i64, 32, signed) as u32
                        } else {
                            t as u32
                        }
                    };
                    forms.push((line, Box::new(reference)));
                }
            }
        }
    }
    compare(&forms);
}

/// (mask, selector of a, selector of b) of two lanes and of four; "" for the default.
const SELECT2: [(&str, &str, &str); 4] =
    [("", "", ""), ("h0", "h13", "h20"), ("h1", "h32", "h11"), ("h10", "h01", "h23")];
const SELECT4: [(&str, &str, &str); 5] = [
    ("", "", ""),
    ("b0", "b7531", "b0246"),
    ("b31", "b0123", "b4567"),
    ("b210", "b6677", "b1100"),
    ("b3210", "b3333", "b7654"),
];

#[test]
fn of_lanes() {
    let mut forms: Vec<Form> = Vec::new();
    let names = ["vadd", "vsub", "vabsdiff", "vmin", "vmax", "vavrg", "eq", "ne", "lt", "le", "gt", "ge"];
    for lanes in [2usize, 4] {
        let (letter, full, from_a, from_b) =
            if lanes == 2 { ("h", "10", "10", "32") } else { ("b", "3210", "3210", "7654") };
        for name in names {
            let set = name.len() == 2;
            for (dt, ds) in TYPES.into_iter().skip(set as usize) {
                for ((at, a_signed), (bt, b_signed)) in pairs_of_types() {
                    for end in ["", ".sat", ".add"] {
                        if set && end == ".sat" {
                            continue;
                        }
                        for (mask, sa, sb) in if lanes == 2 { &SELECT2[..] } else { &SELECT4[..] } {
                            let types =
                                if set { format!("{at}.{bt}.{name}") } else { format!("{dt}.{at}.{bt}") };
                            let line = format!(
                                "{}{lanes}.{types}{end} %d{}, %a{}, %b{}, %c;",
                                if set { "vset" } else { name },
                                dot(mask),
                                dot(sa),
                                dot(sb)
                            );
                            let strip =
                                |s: &'static str, default| if s.is_empty() { default } else { &s[1..] };
                            let (mask, sa, sb) = (strip(mask, full), strip(sa, from_a), strip(sb, from_b));
                            let width = 32 / lanes as u32;
                            let d_signed = ds && !set;
                            let reference = move |a: u32, b: u32, c: u32| {
                                let value = |selector: &str, lane: usize, signed| {
                                    let digit = selector.as_bytes()[lanes - 1 - lane] - b'0';
                                    let (word, n) = if usize::from(digit) < lanes {
                                        (a, usize::from(digit))
                                    } else {
                                        (b, usize::from(digit) - lanes)
                                    };
                                    pick(word, &format!("{letter}{n}"), signed)
                                };
                                let (mut sum, mut merged) = (c as i64, c);
                                for lane in 0..lanes {
                                    if !mask.contains(&lane.to_string()) {
                                        continue;
                                    }
                                    let mut t =
                                        binary(name, value(sa, lane, a_signed), value(sb, lane, b_signed));
                                    if end == ".sat" {
                                        t = clamp(t, width, d_signed);
                                    }
                                    sum += t;
                                    merged = finish(t, &format!("{letter}{lane}"), "", merged, false);
                                }
                                if end == ".add" { sum as u32 } else { merged }
                            };
                            forms.push((line, Box::new(reference)));
                        }
                    }
                }
            }
        }
    }
    compare(&forms);
}

#[test]
fn forms_that_do_not_exist_are_refused() {
    for line in [
        "vadd.u32.u32 %d, %a, %b;",
        "vadd.u16.u32.u32 %d, %a, %b;",
        "vadd.u32.u32.u32 %d, %a, %b, %c;",
        "vadd.u32.u32.u32 %d.b0, %a, %b;",
        "vadd.u32.u32.u32.add %d.b0, %a, %b, %c;",
        "vadd.u32.u32.u32 %d, %a.b4, %b;",
        "vadd.u32.u32.u32 %d, -%a, %b;",
        "vavrg.u32.u32.u32 %d, %a, %b;",
        "vshl.u32.u32.s32.wrap %d, %a, %b;",
        "vshl.u32.u32.u32 %d, %a, %b;",
        "vmad.u32.u32.u32.po %d, -%a, %b, %c;",
        "vmad.u32.u32.u32 %d, %a, %b;",
        "vset.u32.u32.ltu %d, %a, %b;",
        "vadd2.u32.u32.u32 %d, %a, %b;",
        "vadd2.u32.u32.u32.sat.add %d, %a, %b, %c;",
        "vadd2.u32.u32.u32 %d.h01, %a, %b, %c;",
        "vadd2.u32.u32.u32 %d, %a.h14, %b, %c;",
        "vadd4.u32.u32.u32 %d, %a.b321, %b, %c;",
        "vadd4.u32.u32.u32.min %d, %a, %b, %c;",
        "vadd3.u32.u32.u32 %d, %a, %b, %c;",
        "add.u32 %d, -%a, %b;",
    ] {
        let text = format!(
            ".version 6.4\n.target sm_61\n.address_size 64\n.visible .entry k() {{ .reg .b32 %a, %b, %c, %d;\n{line}\nret; }}\n"
        );
        let error = Module::parse(&text).err().unwrap_or_else(|| panic!("{line} was taken"));
        assert_eq!(error.line, 5, "{line}: {error}");
    }
}
