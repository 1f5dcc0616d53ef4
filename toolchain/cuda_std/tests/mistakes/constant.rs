// More than the 64 KB of constant memory.
cuda_std::constant!(pub TABLE: [f32; 16_385]);

fn main() {}
