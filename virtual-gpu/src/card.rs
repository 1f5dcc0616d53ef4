//! The cards that the virtual device can simulate.
//!
//! Figures of the GTX 1070 and 1080 Ti: NVIDIA's product pages (boost clock, memory, its speed and width) and its GP104 and GP102
//! whitepapers (multiprocessors, L2). Those of the Tesla V100 and T4: NVIDIA's data sheets and architecture whitepapers, written
//! down from memory.

use crate::arch::Arch;

/// A card's published figures, at boost clock.
#[derive(Debug, PartialEq)]
pub struct Card {
    pub name: &'static str,
    /// Name on the command line and in the environment.
    pub id: &'static str,
    pub arch: Arch,
    pub sms: u32,
    pub boost_mhz: u32,
    /// DRAM bandwidth in GB/s.
    pub bandwidth: f64,
    /// Bytes of device memory.
    pub memory: u64,
    pub l2_bytes: u32,
    pub bus_bits: u32,
    pub memory_mhz: u32,
}

impl Eq for Card {}

pub static MX330: Card = Card {
    name: "GeForce MX330",
    id: "mx330",
    arch: Arch::Sm61,
    sms: 3,
    boost_mhz: 1594,
    bandwidth: 56.0,
    memory: 2 << 30,
    l2_bytes: 512 << 10,
    bus_bits: 64,
    memory_mhz: 3504,
};
pub static GTX1050TI: Card = Card {
    name: "GeForce GTX 1050 Ti",
    id: "gtx1050ti",
    arch: Arch::Sm61,
    sms: 6,
    boost_mhz: 1392,
    bandwidth: 112.0,
    memory: 4 << 30,
    l2_bytes: 1 << 20,
    bus_bits: 128,
    memory_mhz: 3504,
};
pub static GTX1060: Card = Card {
    name: "GeForce GTX 1060 6GB",
    id: "gtx1060",
    arch: Arch::Sm61,
    sms: 10,
    boost_mhz: 1708,
    bandwidth: 192.0,
    memory: 6 << 30,
    l2_bytes: 1536 << 10,
    bus_bits: 192,
    memory_mhz: 4004,
};
pub static GTX1070: Card = Card {
    name: "GeForce GTX 1070",
    id: "gtx1070",
    arch: Arch::Sm61,
    sms: 15,
    boost_mhz: 1683,
    bandwidth: 256.0,
    memory: 8 << 30,
    l2_bytes: 2 << 20,
    bus_bits: 256,
    memory_mhz: 4004,
};
pub static GTX1080: Card = Card {
    name: "GeForce GTX 1080",
    id: "gtx1080",
    arch: Arch::Sm61,
    sms: 20,
    boost_mhz: 1733,
    bandwidth: 320.0,
    memory: 8 << 30,
    l2_bytes: 2 << 20,
    bus_bits: 256,
    memory_mhz: 5005,
};
pub static GTX1080TI: Card = Card {
    name: "GeForce GTX 1080 Ti",
    id: "gtx1080ti",
    arch: Arch::Sm61,
    sms: 28,
    boost_mhz: 1582,
    bandwidth: 484.0,
    memory: 11 << 30,
    l2_bytes: 2816 << 10,
    bus_bits: 352,
    memory_mhz: 5505,
};
pub static P4: Card = Card {
    name: "Tesla P4",
    id: "p4",
    arch: Arch::Sm61,
    sms: 20,
    boost_mhz: 1114,
    bandwidth: 192.0,
    memory: 8 << 30,
    l2_bytes: 2 << 20,
    bus_bits: 256,
    memory_mhz: 3003,
};
pub static P40: Card = Card {
    name: "Tesla P40",
    id: "p40",
    arch: Arch::Sm61,
    sms: 30,
    boost_mhz: 1531,
    bandwidth: 346.0,
    memory: 24 << 30,
    l2_bytes: 3 << 20,
    bus_bits: 384,
    memory_mhz: 3615,
};
/// The SXM2 module with 16 GB.
pub static V100: Card = Card {
    name: "Tesla V100",
    id: "v100",
    arch: Arch::Sm70,
    sms: 80,
    boost_mhz: 1530,
    bandwidth: 900.0,
    memory: 16 << 30,
    l2_bytes: 6 << 20,
    bus_bits: 4096,
    memory_mhz: 877,
};
pub static T4: Card = Card {
    name: "Tesla T4",
    id: "t4",
    arch: Arch::Sm75,
    sms: 40,
    boost_mhz: 1590,
    bandwidth: 320.0,
    memory: 16 << 30,
    l2_bytes: 4 << 20,
    bus_bits: 256,
    memory_mhz: 5001,
};

impl Card {
    /// The cards that estimates and tables are made for: one for each size of memory and chip.
    pub const ALL: [&'static Card; 6] = [&MX330, &GTX1050TI, &GTX1060, &GTX1080, &P4, &P40];
    /// All Pascal cards that have a name.
    pub const KNOWN: [&'static Card; 8] =
        [&MX330, &GTX1050TI, &GTX1060, &GTX1070, &GTX1080, &GTX1080TI, &P4, &P40];
    /// Cards of newer architectures. Kernels run on them; the cost model is that of Pascal.
    pub const NEWER: [&'static Card; 2] = [&V100, &T4];

    /// A Pascal card.
    pub fn by_name(id: &str) -> Option<&'static Card> {
        Self::KNOWN.into_iter().find(|c| c.id == id)
    }

    /// A card of any architecture.
    pub fn of_any_arch(id: &str) -> Option<&'static Card> {
        Self::by_name(id).or_else(|| Self::NEWER.into_iter().find(|c| c.id == id))
    }

    /// FP32 operations per second at boost clock, an FFMA counted as two.
    pub fn fp32_flops(&self) -> f64 {
        2.0 * f64::from(self.arch.fp32_units()) * self.sms as f64 * self.boost_mhz as f64 * 1e6
    }
}

impl Arch {
    /// The card that is simulated if none is named.
    pub fn card(self) -> &'static Card {
        match self {
            Self::Sm61 => &GTX1080,
            Self::Sm70 => &V100,
            Self::Sm75 => &T4,
        }
    }
}
