//! Occupancy: how many blocks of a kernel are resident on a multiprocessor.
//!
//! The one calculation of it, for the virtual driver, the cost model and the host's choice of block sizes. The limits
//! of a GPU are its device attributes; the allocation units are those of NVIDIA's occupancy calculator. Registers are
//! allocated per warp in units of 256, from the register file of one partition, so a partition holds a whole number
//! of warps. Shared memory is allocated per block in units of 256 bytes (128 from compute capability 8.0 on, where
//! the system reserves a KiB of each block's).

/// The resources of a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiprocessor {
    /// Resident warps at most.
    pub warps: u32,
    /// Resident blocks at most.
    pub blocks: u32,
    /// 32-bit registers.
    pub registers: u32,
    /// Partitions with a scheduler and a register file of their own.
    pub parts: u32,
    /// Bytes of shared memory.
    pub shared_bytes: u32,
    /// Bytes of it that one block may use.
    pub shared_bytes_per_block: u32,
    /// Bytes of it that the system reserves in each block.
    pub shared_bytes_reserved: u32,
    /// Shared memory is allocated in multiples of this.
    pub shared_unit: u32,
}

const WARP: u32 = 32;
const MAX_THREADS_PER_BLOCK: u32 = 1024;
const MAX_REGISTERS_PER_THREAD: u32 = 255;
const REGISTER_UNIT: u32 = 256;

impl Multiprocessor {
    /// Compute capability 6.1.
    pub const SM_61: Self = Self {
        warps: 64,
        blocks: 32,
        registers: 64 << 10,
        parts: 4,
        shared_bytes: 96 << 10,
        shared_bytes_per_block: 48 << 10,
        shared_bytes_reserved: 0,
        shared_unit: 256,
    };

    /// Resident blocks; 0 if the kernel can't be launched so. `registers` are those of a thread, `shared_bytes`
    /// those of a block.
    pub const fn resident_blocks(&self, threads: u32, registers: u32, shared_bytes: u32) -> u32 {
        if threads == 0 || threads > MAX_THREADS_PER_BLOCK || registers > MAX_REGISTERS_PER_THREAD {
            return 0;
        }
        if shared_bytes > self.shared_bytes_per_block {
            return 0;
        }
        let warps = threads.div_ceil(WARP);
        let mut blocks = least(self.blocks, self.warps / warps);
        if registers > 0 {
            let per_warp = (registers * WARP).next_multiple_of(REGISTER_UNIT);
            blocks = least(blocks, self.registers / self.parts / per_warp * self.parts / warps);
        }
        let shared = (shared_bytes + self.shared_bytes_reserved).next_multiple_of(self.shared_unit);
        if let Some(by_shared) = self.shared_bytes.checked_div(shared) {
            blocks = least(blocks, by_shared);
        }
        blocks
    }

    /// The share of the warps that the [resident blocks](Self::resident_blocks) fill.
    pub fn occupancy(&self, threads: u32, registers: u32, shared_bytes: u32) -> f64 {
        let warps = self.resident_blocks(threads, registers, shared_bytes) * threads.div_ceil(WARP);
        f64::from(warps) / f64::from(self.warps)
    }
}

const fn least(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_of_sm_61() {
        // threads, registers, shared bytes → blocks, worked by hand from the guide's limits
        for (threads, registers, shared, blocks) in [
            (32, 16, 0, 32),     // blocks
            (1024, 32, 0, 2),    // warps and registers
            (1024, 33, 0, 1),    // 33 · 32 rounds up to 1280: 12 warps a part, 48 in all
            (256, 128, 0, 2),    // 4096 a warp: 4 a part
            (256, 255, 0, 1),    // 8192 a warp: 2 a part
            (512, 255, 0, 0),    // 16 warps don't fit
            (64, 88, 0, 10),     // 2816 a warp: 5 a part, 20 in all, and not 65536 / 2816 = 23
            (256, 32, 16384, 6), // shared
            (256, 32, 49152, 2), // shared, the most a block may have
            (256, 32, 49153, 0),
            (128, 32, 1, 16), // one byte takes 256: the warps decide
            (33, 0, 0, 32),   // two warps
            (0, 16, 0, 0),
            (1025, 16, 0, 0),
        ] {
            let found = Multiprocessor::SM_61.resident_blocks(threads, registers, shared);
            assert_eq!(found, blocks, "{threads} threads, {registers} registers, {shared} bytes");
        }
        assert_eq!(Multiprocessor::SM_61.occupancy(256, 128, 0), 0.25);
    }

    /// NVIDIA's occupancy spreadsheet writes the registers' limit differently: the file of the whole multiprocessor by
    /// warps, rounded down to its warp allocation granularity, 4 for 6.1.
    #[test]
    fn the_limit_by_registers_is_the_spreadsheets() {
        for registers in 1..=255u32 {
            let warps = 65536 / (registers * 32).next_multiple_of(256) / 4 * 4;
            for threads in (32..=1024).step_by(32) {
                let spreadsheet = (warps / (threads / 32)).min(64 / (threads / 32)).min(32);
                let ours = Multiprocessor::SM_61.resident_blocks(threads, registers, 0);
                assert_eq!(ours, spreadsheet, "{threads} threads, {registers} registers");
            }
        }
    }

    #[test]
    fn newer_gpus_keep_a_kibibyte_of_each_block() {
        let hopper = Multiprocessor {
            shared_bytes: 228 << 10,
            shared_bytes_reserved: 1 << 10,
            shared_unit: 128,
            ..Multiprocessor::SM_61
        };
        assert_eq!(hopper.resident_blocks(32, 16, 48 << 10), 4, "49 KiB each");
        assert_eq!(hopper.resident_blocks(32, 16, 7 << 10), 28);
    }
}
