//! Launch contracts: what a kernel's launch must look like, written once beside the kernel.

/// How a kernel is launched. Host, tests and reports read it; the builder's `.maxntid` comes from the same constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSpec {
    /// The symbol in the PTX.
    pub name: &'static str,
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Blocks per SM that the compiler leaves registers for; zero where it is free to choose.
    pub min_blocks: u32,
    /// Bytes of static shared memory.
    pub shared_bytes: u32,
    /// Shuffle instructions in the finished PTX. A test compares: if the compiler copied one into the two arms of a
    /// divergent branch, which is undefined on sm_61, there are more.
    pub shuffles: u32,
}

impl KernelSpec {
    /// A kernel of one-dimensional blocks without shared memory; the setters say what differs.
    pub const fn new(name: &'static str, threads: u32) -> Self {
        Self { name, block: [threads, 1, 1], min_blocks: 0, shared_bytes: 0, shuffles: 0 }
    }

    /// Two-dimensional blocks.
    pub const fn block_2d(mut self, x: u32, y: u32) -> Self {
        self.block = [x, y, 1];
        self
    }

    /// The same kernel in blocks of fewer threads, where its contract allows that.
    pub const fn of_threads(mut self, threads: u32) -> Self {
        self.block = [threads, 1, 1];
        self
    }

    /// As the second argument of `launch_bounds`.
    pub const fn min_blocks(mut self, blocks: u32) -> Self {
        self.min_blocks = blocks;
        self
    }

    /// Bytes of static shared memory that the kernel declares.
    pub const fn shared_bytes(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// Shuffle instructions that the kernel comes to, loops unrolled.
    pub const fn shuffles(mut self, count: u32) -> Self {
        self.shuffles = count;
        self
    }

    /// Threads in a block.
    pub const fn threads(&self) -> u32 {
        self.block[0] * self.block[1] * self.block[2]
    }
}
