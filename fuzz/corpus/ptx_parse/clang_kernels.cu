// Simple sm_61 kernels for clang: the device runs PTX that another compiler made (clang 14.0.6).
// clang++ -x cuda --cuda-device-only --cuda-gpu-arch=sm_61 -nocudainc -nocudalib -Xclang -target-feature \
//   -Xclang +ptx64 -O2 -fno-unroll-loops -S clang_kernels.cu -o clang_kernels.ptx
#define KERNEL extern "C" __attribute__((global)) void
#define tid_x __nvvm_read_ptx_sreg_tid_x()
#define bid_x __nvvm_read_ptx_sreg_ctaid_x()
#define ntid_x __nvvm_read_ptx_sreg_ntid_x()

typedef int i32;
typedef unsigned u32;

// y = a x + y
KERNEL saxpy(float *y, const float *x, float a, i32 n) {
  i32 i = bid_x * ntid_x + tid_x;
  if (i < n) y[i] = a * x[i] + y[i];
}

__attribute__((shared)) float tile[16][17];

// out[cols, rows] = in[rows, cols]^T, blocks of 16 x 16 threads
KERNEL transpose(float *out, const float *in, i32 rows, i32 cols) {
  i32 tx = tid_x, ty = __nvvm_read_ptx_sreg_tid_y();
  i32 bx = bid_x, by = __nvvm_read_ptx_sreg_ctaid_y();
  i32 r = by * 16 + ty, c = bx * 16 + tx;
  if (r < rows && c < cols) tile[ty][tx] = in[r * cols + c];
  __nvvm_bar_sync(0);
  i32 ro = bx * 16 + ty, co = by * 16 + tx;
  if (ro < cols && co < rows) out[ro * rows + co] = tile[tx][ty];
}

// counts[v mod 16] += 1; a divergent loop and atomics
KERNEL collatz_histogram(u32 *counts, u32 n) {
  u32 i = bid_x * ntid_x + tid_x;
  if (i >= n) return;
  unsigned long long v = i + 1;
  u32 steps = 0;
  while (v != 1) {
    v = (v & 1) ? 3 * v + 1 : v / 2;
    steps++;
  }
  __nvvm_atom_add_gen_i((int *)&counts[steps % 16], 1);
}

__attribute__((device, noinline)) static double poly(double x, const double *c, i32 n) {
  double r = 0;
  for (i32 i = n - 1; i >= 0; i--) r = r * x + c[i];
  return r;
}

// A call with local memory: y = polynomial of x with coefficients in a local array
KERNEL horner(double *y, const double *x, i32 n) {
  i32 i = bid_x * ntid_x + tid_x;
  double c[8];
  for (i32 k = 0; k < 8; k++) c[k] = 1.0 / (k + 1 + (i & 3));
  if (i < n) y[i] = poly(x[i], c, 5 + (i & 3));
}

// A jump table and narrow integer types
KERNEL opcodes(short *out, const signed char *in, i32 n) {
  i32 i = bid_x * ntid_x + tid_x;
  if (i >= n) return;
  short v = in[i], r;
  switch (i % 7) {
  case 0: r = v + 100; break;
  case 1: r = v * v; break;
  case 2: r = v >> 2; break;
  case 3: r = (short)((unsigned short)v >> 3); break;
  case 4: r = v % 5; break;
  case 5: r = v ^ 0x55; break;
  default: r = -v; break;
  }
  out[i] = r;
}
