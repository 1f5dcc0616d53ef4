//! The architectures that a device can have, and their limits.
//!
//! Limits: the table of compute capabilities in NVIDIA's CUDA C++ Programming Guide, written down from memory.

use pascaline_occupancy::Multiprocessor;

/// An architecture, ordered by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// Pascal.
    Sm61,
    /// Volta.
    Sm70,
    /// Turing.
    Sm75,
}

impl Arch {
    pub const ALL: [Self; 3] = [Self::Sm61, Self::Sm70, Self::Sm75];

    /// As PTX and the command line spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sm61 => "sm_61",
            Self::Sm70 => "sm_70",
            Self::Sm75 => "sm_75",
        }
    }

    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|arch| arch.name() == name)
    }

    /// The compute capability, its major and minor numbers.
    pub fn capability(self) -> (u32, u32) {
        match self {
            Self::Sm61 => (6, 1),
            Self::Sm70 => (7, 0),
            Self::Sm75 => (7, 5),
        }
    }

    /// The number in a `.target`: 61.
    pub(crate) fn number(self) -> u32 {
        let (major, minor) = self.capability();
        10 * major + minor
    }

    /// The newest architecture whose instructions PTX for a target may use.
    pub(crate) fn of_target(number: u32) -> Self {
        Self::ALL.into_iter().rev().find(|arch| arch.number() <= number).unwrap_or(Self::Sm61)
    }

    /// Whether lanes of a warp are scheduled on their own, and meet only where they are told to.
    pub(crate) fn independent_lanes(self) -> bool {
        self >= Self::Sm70
    }

    /// Resources of a multiprocessor; a block's shared memory is the most that a kernel may opt in to.
    pub const fn multiprocessor(self) -> Multiprocessor {
        match self {
            Self::Sm61 => Multiprocessor::SM_61,
            Self::Sm70 => Multiprocessor { shared_bytes_per_block: 96 << 10, ..Multiprocessor::SM_61 },
            Self::Sm75 => Multiprocessor {
                warps: 32,
                blocks: 16,
                shared_bytes: 64 << 10,
                shared_bytes_per_block: 64 << 10,
                ..Multiprocessor::SM_61
            },
        }
    }

    /// FP32 units of a multiprocessor.
    pub(crate) fn fp32_units(self) -> u32 {
        if self == Self::Sm61 { 128 } else { 64 }
    }

    /// How many times as fast f32 arithmetic is as f64 arithmetic.
    #[cfg(feature = "driver-api")]
    pub(crate) fn single_to_double(self) -> u32 {
        if self == Self::Sm70 { 2 } else { 32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_the_instructions_of_the_newest_architecture_before_them() {
        for (target, arch) in [(20, "sm_61"), (62, "sm_61"), (70, "sm_70"), (72, "sm_70"), (75, "sm_75")] {
            assert_eq!(Arch::of_target(target).name(), arch);
        }
    }

    #[test]
    fn each_names_a_card_of_its_own() {
        for arch in Arch::ALL {
            assert_eq!(arch.card().arch, arch);
            assert_eq!(Arch::by_name(arch.name()), Some(arch));
        }
        assert_eq!(Arch::by_name("sm_80"), None);
    }
}
