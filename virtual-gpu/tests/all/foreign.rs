//! PTX of another compiler: clang's, in `tests/ptx/` beside its source.

use pascaline_virtual_gpu::{Config, Gpu, Launch, LoadedModule, Module};

struct Bench {
    gpu: Gpu,
    module: LoadedModule,
}

impl Bench {
    fn new() -> Self {
        let mut gpu = Gpu::new(Config::default());
        let module = Module::parse(include_str!("../ptx/clang_kernels.ptx")).unwrap();
        let module = gpu.load(module).unwrap();
        Self { gpu, module }
    }

    fn upload<T: bytemuck::NoUninit>(&mut self, v: &[T]) -> u64 {
        let bytes: &[u8] = bytemuck::cast_slice(v);
        let at = self.gpu.alloc(bytes.len() as u64).unwrap();
        self.gpu.write(at, bytes).unwrap();
        at
    }

    fn download<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(&self, at: u64, n: usize) -> Vec<T> {
        let mut v = vec![T::zeroed(); n];
        self.gpu.read(at, bytemuck::cast_slice_mut(&mut v)).unwrap();
        v
    }

    fn launch(&mut self, kernel: &str, grid: [u32; 3], block: [u32; 3], params: &[&[u8]]) {
        let k = self.module.module.kernel(kernel).unwrap();
        let mut bytes = vec![0; k.param_bytes as usize];
        for (p, v) in k.params.iter().zip(params) {
            bytes[p.offset as usize..][..p.bytes as usize].copy_from_slice(v);
        }
        let launch = Launch { grid, block, dynamic_shared: 0, params: &bytes };
        self.gpu.launch(&self.module, kernel, launch).unwrap();
    }
}

#[test]
fn saxpy() {
    let mut b = Bench::new();
    let n = 1000i32;
    let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.5).collect();
    let y: Vec<f32> = (0..n).map(|i| 100.0 - i as f32).collect();
    let (dx, dy) = (b.upload(&x), b.upload(&y));
    let a = 3.25f32;
    b.launch(
        "saxpy",
        [4, 1, 1],
        [256, 1, 1],
        &[&dy.to_le_bytes(), &dx.to_le_bytes(), &a.to_le_bytes(), &n.to_le_bytes()],
    );
    let out: Vec<f32> = b.download(dy, n as usize);
    for i in 0..n as usize {
        assert_eq!(out[i], a.mul_add(x[i], y[i]));
    }
}

#[test]
fn transpose_through_shared_memory() {
    let mut b = Bench::new();
    let (rows, cols) = (48usize, 32usize);
    let x: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
    let (dx, out) = (b.upload(&x), b.gpu.alloc((rows * cols * 4) as u64).unwrap());
    let dims = [(rows as i32).to_le_bytes(), (cols as i32).to_le_bytes()];
    b.launch(
        "transpose",
        [2, 3, 1],
        [16, 16, 1],
        &[&out.to_le_bytes(), &dx.to_le_bytes(), &dims[0], &dims[1]],
    );
    let y: Vec<f32> = b.download(out, rows * cols);
    for r in 0..rows {
        for c in 0..cols {
            assert_eq!(y[c * rows + r], x[r * cols + c]);
        }
    }
}

#[test]
fn divergent_loop_and_atomics() {
    let mut b = Bench::new();
    let n = 500u32;
    let counts = b.upload(&[0u32; 16]);
    b.launch("collatz_histogram", [4, 1, 1], [128, 1, 1], &[&counts.to_le_bytes(), &n.to_le_bytes()]);
    let mut want = [0u32; 16];
    for i in 1..=n as u64 {
        let (mut v, mut steps) = (i, 0);
        while v != 1 {
            v = if v % 2 == 1 { 3 * v + 1 } else { v / 2 };
            steps += 1;
        }
        want[steps % 16] += 1;
    }
    assert_eq!(b.download::<u32>(counts, 16), want);
}

#[test]
fn function_call_with_local_memory() {
    let mut b = Bench::new();
    let n = 64i32;
    let x: Vec<f64> = (0..n).map(|i| i as f64 / 7.0 - 3.0).collect();
    let (dx, dy) = (b.upload(&x), b.gpu.alloc(8 * n as u64).unwrap());
    b.launch("horner", [1, 1, 1], [64, 1, 1], &[&dy.to_le_bytes(), &dx.to_le_bytes(), &n.to_le_bytes()]);
    let y: Vec<f64> = b.download(dy, n as usize);
    for i in 0..n as usize {
        let want =
            (0..5 + (i & 3)).rev().fold(0.0, |r: f64, k| r.mul_add(x[i], 1.0 / (k + 1 + (i & 3)) as f64));
        assert!((y[i] - want).abs() <= want.abs() * 1e-15, "{i}: {} {want}", y[i]);
    }
}

#[test]
fn jump_table_and_narrow_integers() {
    let mut b = Bench::new();
    let n = 256usize;
    let x: Vec<i8> = (0..n).map(|i| (i * 7) as i8).collect();
    let (dx, out) = (b.upload(&x), b.gpu.alloc(2 * n as u64).unwrap());
    b.launch(
        "opcodes",
        [2, 1, 1],
        [128, 1, 1],
        &[&out.to_le_bytes(), &dx.to_le_bytes(), &(n as i32).to_le_bytes()],
    );
    let y: Vec<i16> = b.download(out, n);
    for i in 0..n {
        let v = x[i] as i16;
        let want = match i % 7 {
            0 => v + 100,
            1 => v.wrapping_mul(v),
            2 => v >> 2,
            3 => ((v as u16) >> 3) as i16,
            4 => v % 5,
            5 => v ^ 0x55,
            _ => -v,
        };
        assert_eq!(y[i], want, "element {i}");
    }
}
