//! `mma` and `ldmatrix` against naive products of random matrices. The fragments are written down once more here, from the PTX ISA
//! document, as tables of which element a lane holds.

use crate::common::threads_on;
use half::f16;
use pascaline_virtual_gpu::{Arch, Checks, FindingKind};

/// Random numbers that f16 holds, small enough that sums of products are exact in f32.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 40) % 65) as f32 / 8.0 - 4.0
    }
}

/// (product, row, column) of a lane's element.
type Fragment = fn(u32, u32) -> (u32, u32, u32);

fn quad(lane: u32) -> u32 {
    lane % 16 / 4
}

fn high(lane: u32) -> u32 {
    4 * (lane / 16)
}

const A_ROW: Fragment = |lane, i| (quad(lane), lane % 4 + high(lane), i);
const A_COL: Fragment = |lane, i| (quad(lane), i + high(lane), lane % 4);
const B_ROW: Fragment = |lane, i| (quad(lane), lane % 4, i + high(lane));
const B_COL: Fragment = |lane, i| (quad(lane), i, lane % 4 + high(lane));
const C_HALF: Fragment = |lane, i| (quad(lane), lane % 4 + high(lane), i);
const C_SINGLE: Fragment =
    |lane, i| (quad(lane), (lane & 1) + (i & 2) + high(lane), (i & 4) + (lane & 2) + (i & 1));
const WIDE_A: Fragment = |lane, i| (0, lane / 4 + if i < 2 { 0 } else { 8 }, lane % 4 * 2 + (i & 1));
const WIDE_B: Fragment = |lane, i| (0, lane % 4 * 2 + i, lane / 4);

/// A form of `mma`.
struct Form {
    name: String,
    arch: Arch,
    /// Fragments of a, b, c, d with their elements per lane.
    fragments: [(Fragment, u32); 4],
    singles: [bool; 4],
    depth: u32,
}

/// Matrices by product, row and column.
type Matrices = Vec<[[f32; 16]; 16]>;

impl Form {
    fn m8n8k4(a_by_columns: bool, b_by_columns: bool, d_single: bool, c_single: bool) -> Self {
        let layout = |by_columns| if by_columns { "col" } else { "row" };
        let ty = |single| if single { "f32" } else { "f16" };
        let c = |single| if single { (C_SINGLE, 8) } else { (C_HALF, 8) };
        let (a, b) = (layout(a_by_columns), layout(b_by_columns));
        Self {
            name: format!("m8n8k4.{a}.{b}.{}.f16.f16.{}", ty(d_single), ty(c_single)),
            arch: Arch::Sm70,
            fragments: [
                (if a_by_columns { A_COL } else { A_ROW }, 4),
                (if b_by_columns { B_COL } else { B_ROW }, 4),
                c(c_single),
                c(d_single),
            ],
            singles: [false, false, c_single, d_single],
            depth: 4,
        }
    }

    fn m16n8k8(single: bool) -> Self {
        let ty = if single { "f32" } else { "f16" };
        Self {
            name: format!("m16n8k8.row.col.{ty}.f16.f16.{ty}"),
            arch: Arch::Sm75,
            fragments: [(WIDE_A, 4), (WIDE_B, 2), (WIDE_A, 4), (WIDE_A, 4)],
            singles: [false, false, single, single],
            depth: 8,
        }
    }

    fn registers(&self, n: usize) -> u32 {
        self.fragments[n].1 / if self.singles[n] { 1 } else { 2 }
    }

    /// The words of register `r` of matrix `n`, by lane.
    fn words(&self, n: usize, r: u32, m: &Matrices) -> Vec<u32> {
        let (fragment, _) = self.fragments[n];
        let at = |lane, i| {
            let (product, row, column) = fragment(lane, i);
            m[product as usize][row as usize][column as usize]
        };
        let half = |x: f32| u32::from(f16::from_f32(x).to_bits());
        let word = |lane| match self.singles[n] {
            true => at(lane, r).to_bits(),
            false => half(at(lane, 2 * r)) | half(at(lane, 2 * r + 1)) << 16,
        };
        (0..32).map(word).collect()
    }

    /// Runs the instruction once for each register of d.
    fn run(&self, inputs: [&Matrices; 3]) -> Vec<Vec<u32>> {
        let mut code = String::new();
        let mut list = [const { String::new() }; 4];
        for (n, list) in list.iter_mut().enumerate() {
            let names: Vec<_> = (0..self.registers(n)).map(|r| format!("%m{n}_{r}")).collect();
            code += &format!(".reg .b32 {};\n", names.join(", "));
            *list = format!("{{{}}}", names.join(", "));
        }
        for (n, matrices) in inputs.into_iter().enumerate() {
            for r in 0..self.registers(n) {
                code += &format!("mov.b32 %m{n}_{r}, 0;\n");
                for (lane, word) in self.words(n, r, matrices).into_iter().enumerate() {
                    code += &format!("setp.eq.u32 %p1, %r1, {lane}; @%p1 mov.b32 %m{n}_{r}, {word:#x};\n");
                }
            }
        }
        let [a, b, c, d] = list;
        code += &format!("mma.sync.aligned.{} {d}, {a}, {b}, {c};\n", self.name);
        let of = |r| format!("{code} mov.b32 %r0, %m3_{r};");
        (0..self.registers(3)).map(|r| threads_on(self.arch, &of(r), 32, Checks::ALL).unwrap()).collect()
    }
}

fn random(seed: u64) -> Matrices {
    let mut random = Random(seed);
    (0..4).map(|_| std::array::from_fn(|_| std::array::from_fn(|_| random.next()))).collect()
}

fn product(depth: u32, a: &Matrices, b: &Matrices, c: &Matrices) -> Matrices {
    let mut d = c.clone();
    for (n, d) in d.iter_mut().enumerate() {
        for (row, d) in d.iter_mut().enumerate() {
            for (column, d) in d.iter_mut().enumerate() {
                *d += (0..depth as usize).map(|k| a[n][row][k] * b[n][k][column]).sum::<f32>();
            }
        }
    }
    d
}

#[test]
fn products_are_those_of_the_matrices() {
    let mut forms = vec![Form::m16n8k8(false), Form::m16n8k8(true)];
    for layout in 0..4 {
        for (d, c) in [(false, false), (false, true), (true, true)] {
            forms.push(Form::m8n8k4(layout & 1 != 0, layout & 2 != 0, d, c));
        }
    }
    let [a, b, c] = [1, 2, 3].map(random);
    for form in &forms {
        let d = product(form.depth, &a, &b, &c);
        let want: Vec<_> = (0..form.registers(3)).map(|r| form.words(3, r, &d)).collect();
        let got = form.run([&a, &b, &c]);
        assert_eq!(got, want, "{}", form.name);
        // the reference sees a single wrong element
        let mut wrong = a.clone();
        wrong[0][5][2] += 1.0;
        assert_ne!(form.run([&wrong, &b, &c]), want, "{}", form.name);
    }
}

/// c, then k from 0 on: 2^24 + 1 is 2^24 in f32, and a sum from the other end differs.
#[test]
fn sums_are_in_f32_from_the_first_k_on() {
    let zero = || random(0).iter().map(|_| [[0.0; 16]; 16]).collect::<Matrices>();
    let (mut a, mut b, mut c) = (zero(), zero(), zero());
    a[0][0][..4].copy_from_slice(&[1.0, 1.0, -4096.0, 0.5]);
    for k in 0..4 {
        b[0][k][0] = [1.0, 1.0, 4096.0, 1.0][k];
    }
    c[0][0][0] = 16777216.0;
    for form in [Form::m8n8k4(false, true, true, true), Form::m16n8k8(true)] {
        let d = form.run([&a, &b, &c]);
        assert_eq!(f32::from_bits(d[0][0]), 0.5, "{}", form.name);
    }
}

#[test]
fn ldmatrix_gives_each_lane_its_elements() {
    // element e of shared memory is e; row r of the matrices begins at element 8·(31 - r)
    let fill = "mov.u32 %r2, s; shl.b32 %r3, %r1, 4; add.u32 %r3, %r3, %r2; shl.b32 %r4, %r1, 3; mov.u32 %r5, 0;
        F: cvt.u16.u32 %h1, %r4; st.shared.u16 [%r3], %h1; add.u32 %r3, %r3, 2; add.u32 %r4, %r4, 1; add.u32 %r5, %r5, 1;
        setp.lt.u32 %p1, %r5, 8; @%p1 bra F; bar.sync 0;
        sub.u32 %r3, 31, %r1; shl.b32 %r3, %r3, 4; add.u32 %r3, %r3, %r2;";
    for (size, matrices) in [("x1", 1), ("x2", 2), ("x4", 4)] {
        for trans in ["", ".trans"] {
            let list: Vec<_> = (0..matrices).map(|n| format!("%r{}", 10 + n)).collect();
            let list = list.join(", ");
            for n in 0..matrices {
                let code = format!(
                    "{fill} ldmatrix.sync.aligned.m8n8.{size}{trans}.shared.b16 {{{list}}}, [%r3]; mov.u32 %r0, %r{};",
                    10 + n
                );
                let got = threads_on(Arch::Sm75, &code, 32, Checks::ALL).unwrap();
                let element = |row: u32, column: u32| 8 * (31 - (8 * n + row)) + column;
                let want = (0..32).map(|lane| {
                    let (major, minor) = (lane / 4, lane % 4 * 2);
                    match trans {
                        "" => element(major, minor) | element(major, minor + 1) << 16,
                        _ => element(minor, major) | element(minor + 1, major) << 16,
                    }
                });
                assert_eq!(got, want.collect::<Vec<_>>(), "{size}{trans} {n}");
            }
        }
    }
}

#[test]
fn wrong_uses_are_found() {
    let load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r3];";
    let zero =
        "mov.u32 %r2, s; shl.b32 %r3, %r1, 4; add.u32 %r3, %r3, %r2; st.shared.v4.u32 [%r3], {0, 0, 0, 0};";
    for (code, threads, kind) in [
        (format!("{zero} bar.sync 0; {load}"), 16, FindingKind::NotConverged),
        (format!("{zero} bar.sync 0; add.u32 %r3, %r3, 8; {load}"), 32, FindingKind::Misaligned),
        (format!("{zero} bar.sync 0; add.u32 %r3, %r3, 4096; {load}"), 32, FindingKind::OutOfBounds),
        (format!("{zero} bar.sync 0; add.u32 %r3, %r3, 512; {load}"), 32, FindingKind::Uninitialized),
        (format!("{zero} xor.b32 %r3, %r3, 16; {load}"), 32, FindingKind::SharedRace),
        (
            format!(
                "{zero} bar.sync 0; st.shared.v4.u32 [%r3], {{1, 1, 1, 1}}; xor.b32 %r3, %r3, 512; {load}"
            ),
            64,
            FindingKind::SharedRace,
        ),
    ] {
        let finding = threads_on(Arch::Sm75, &code, threads, Checks::ALL).expect_err(&code);
        assert_eq!(finding.kind, kind, "{code}: {finding}");
    }
}
