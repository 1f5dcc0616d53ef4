use cuda_std::KernelParams;

#[derive(KernelParams)]
struct Reordered {
    small: u8,
    large: u64,
}

fn main() {}
