//! Which cards the devices simulate, and which checks run on them.

use crate::arch::Arch;
use crate::card::Card;
use crate::memory::MAX_DEVICES;

/// Which checks run besides those that always do (bounds, alignment, use after free, launch limits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Reads of global, shared and local memory never written.
    pub uninitialized: bool,
    /// Races in shared memory between barriers, and in global memory without barriers and fences.
    pub races: bool,
    /// Barriers not reached by all, shuffles and votes without convergence.
    pub convergence: bool,
}

impl Checks {
    pub const ALL: Checks = Checks { uninitialized: true, races: true, convergence: true };
    pub const NONE: Checks = Checks { uninitialized: false, races: false, convergence: false };
}

/// Configuration of the virtual device.
///
/// [`Config::from_env`] reads these variables; one that is not set keeps its default.
///
/// | variable | values | default |
/// |---|---|---|
/// | `PASCALINE_VIRTUAL_CARD` | `mx330`, `gtx1050ti`, `gtx1060`, `gtx1070`, `gtx1080`, `gtx1080ti`, `p4`, `p40`, `v100`, `t4` | the architecture's: `gtx1080`, `v100`, `t4` |
/// | `PASCALINE_VIRTUAL_ARCH` | `sm_61`, `sm_70`, `sm_75`: the architecture of all devices | the card's |
/// | `PASCALINE_VIRTUAL_DEVICES` | names of cards, separated by commas: one device for each | one, of `CARD` |
/// | `PASCALINE_VIRTUAL_PEERS` | `1` or `0`: devices may reach each other's memory | `1` |
/// | `PASCALINE_VIRTUAL_CHECKS` | `all`, `none`, or some of `uninitialized,races,convergence`; `uninit` is short for the first | `all` |
/// | `PASCALINE_VIRTUAL_LOCKSTEP` | `1`: lanes of a warp may rely on lockstep, as on sm_61; `0`: `races` also finds a lane that reads from shared memory what another lane stored without a warp barrier | `1` |
/// | `PASCALINE_VIRTUAL_SEED` | integer: order of streams and warps | `1` |
/// | `PASCALINE_VIRTUAL_MEMORY` | bytes of device memory: one number for all devices, or one for each, separated by commas | the card's |
/// | `PASCALINE_VIRTUAL_POOLS` | `1` or `0`: stream-ordered memory pools | `1` |
/// | `PASCALINE_VIRTUAL_LATE` | `1`: a stream runs only when something waits for it; `0`: at once | `1` |
/// | `PASCALINE_VIRTUAL_TRAFFIC` | `1` or `0`: count sectors and bank conflicts | `1` |
/// | `PASCALINE_VIRTUAL_THREADS` | CPU threads that run blocks | all |
/// | `PASCALINE_VIRTUAL_LIMIT` | thread instructions per block before a time-out | `2^36` |
/// | `PASCALINE_VIRTUAL_LAUNCH_LIMIT` | thread instructions per launch before a time-out; a block counts 2^14 at least | `2^40` |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub card: &'static Card,
    /// The driver API's devices after the first, of the same architecture: their cards and bytes of memory (`None`: the card's).
    pub others: Vec<(&'static Card, Option<u64>)>,
    /// Whether devices may reach each other's memory.
    pub peers: bool,
    pub checks: Checks,
    /// Whether lanes of a warp may rely on lockstep, as on sm_61. If not, [`Checks::races`] also finds a lane that reads from shared
    /// memory what another lane of its warp stored without a warp barrier: compilers, and sm_70 and later, do not promise the order. On devices of these lanes never may.
    pub lockstep: bool,
    /// Seeds the interleaving of streams and the order of a block's warps.
    pub seed: u64,
    /// Device memory in bytes; `None`: the card's.
    pub memory_limit: Option<u64>,
    /// Whether `cuMemAllocAsync` and pools exist.
    pub pools: bool,
    /// Work on a stream runs only when something waits for it.
    pub late: bool,
    /// Count 32-byte sectors and bank conflicts, which costs time.
    pub traffic: bool,
    /// A launch through the driver API that differs from an earlier one only in the addresses of its memory is not run:
    /// its report has that one's counts, and its results are missing. For estimates of work that repeats itself, such as a
    /// model's layers.
    pub once: bool,
    /// Launches through the driver API are checked and not run: they leave no results and no reports. For measuring how
    /// much memory a program needs: without [`Checks::uninitialized`], device memory that nothing writes takes none of the host's.
    pub skip: bool,
    /// CPU threads that run blocks.
    pub threads: usize,
    /// Thread instructions that one block may execute before the launch counts as timed out.
    pub instruction_limit: u64,
    /// Thread instructions that a launch may execute before it counts as timed out; a block counts for
    /// [`BLOCK_COST`](Self::BLOCK_COST) more.
    pub launch_limit: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            card: &crate::card::GTX1080,
            others: Vec::new(),
            peers: true,
            checks: Checks::ALL,
            lockstep: true,
            seed: 1,
            memory_limit: None,
            pools: true,
            late: true,
            traffic: true,
            once: false,
            skip: false,
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            instruction_limit: 1 << 36,
            launch_limit: 1 << 40,
        }
    }
}

impl Config {
    /// The cost of starting a block, in thread instructions.
    pub const BLOCK_COST: u64 = 1 << 14;

    /// The default, changed by the environment. An invalid value is an error that names it.
    pub fn from_env() -> Result<Self, String> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut c = Self::default();
        let var = |name: &str| get(&format!("PASCALINE_VIRTUAL_{name}"));
        let bad = |name: &str, v: &str| format!("PASCALINE_VIRTUAL_{name}={v} is not a valid value");
        let int = |name: &str| match var(name) {
            None => Ok(None),
            Some(v) => v.parse::<u64>().map(Some).map_err(|_| bad(name, &v)),
        };
        let flag = |name: &str, default: bool| match var(name).as_deref() {
            None => Ok(default),
            Some("1") => Ok(true),
            Some("0") => Ok(false),
            Some(v) => Err(bad(name, v)),
        };
        let arch = match var("ARCH") {
            None => None,
            Some(v) => Some(Arch::by_name(&v).ok_or_else(|| bad("ARCH", &v))?),
        };
        if let Some(v) = var("CARD") {
            c.card = Card::of_any_arch(&v).ok_or_else(|| bad("CARD", &v))?;
        } else if let Some(arch) = arch {
            c.card = arch.card();
        }
        let numbers: Option<Vec<u64>> = match var("MEMORY") {
            None => None,
            Some(v) => {
                Some(v.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| bad("MEMORY", &v))?)
            }
        };
        // a single number applies to all devices
        let memory = |device: usize| {
            numbers.as_ref().and_then(|all| all.get(if all.len() == 1 { 0 } else { device })).copied()
        };
        c.memory_limit = memory(0);
        if let Some(v) = var("DEVICES") {
            if var("CARD").is_some() {
                return Err("PASCALINE_VIRTUAL_CARD and PASCALINE_VIRTUAL_DEVICES both name cards".to_owned());
            }
            let cards: Option<Vec<_>> = v.split(',').map(|id| Card::of_any_arch(id.trim())).collect();
            let cards = cards.filter(|cards| cards.len() <= MAX_DEVICES).ok_or_else(|| bad("DEVICES", &v))?;
            c.card = cards[0]; // splitting gives one part at least
            let others = cards.iter().enumerate().skip(1);
            c.others = others.map(|(device, card)| (*card, memory(device))).collect();
        }
        let cards = std::iter::once(c.card).chain(c.others.iter().map(|&(card, _)| card));
        let wanted = arch.unwrap_or(c.card.arch);
        if let Some(other) = cards.into_iter().find(|card| card.arch != wanted) {
            let (card, of) = (other.id, other.arch.name());
            return Err(match arch {
                Some(arch) => format!("PASCALINE_VIRTUAL_ARCH={}, and the card {card} is {of}", arch.name()),
                None => format!(
                    "PASCALINE_VIRTUAL_DEVICES names cards of {} and, with {card}, of {of}",
                    wanted.name()
                ),
            });
        }
        if let Some(all) = numbers.as_ref().filter(|all| all.len() > 1 && all.len() != c.devices()) {
            return Err(format!(
                "PASCALINE_VIRTUAL_MEMORY has {} numbers for {} devices",
                all.len(),
                c.devices()
            ));
        }
        c.peers = flag("PEERS", c.peers)?;
        if let Some(v) = var("CHECKS") {
            c.checks = match v.as_str() {
                "all" => Checks::ALL,
                "none" => Checks::NONE,
                list => {
                    let mut checks = Checks::NONE;
                    for name in list.split(',') {
                        match name {
                            "uninitialized" | "uninit" => checks.uninitialized = true,
                            "races" => checks.races = true,
                            "convergence" => checks.convergence = true,
                            _ => return Err(bad("CHECKS", &v)),
                        }
                    }
                    checks
                }
            };
        }
        c.seed = int("SEED")?.unwrap_or(c.seed);
        c.pools = flag("POOLS", c.pools)?;
        c.late = flag("LATE", c.late)?;
        c.lockstep = flag("LOCKSTEP", c.lockstep)?;
        c.traffic = flag("TRAFFIC", c.traffic)?;
        if let Some(n) = int("THREADS")? {
            c.threads = n.clamp(1, 1024) as usize;
        }
        c.instruction_limit = int("LIMIT")?.unwrap_or(c.instruction_limit);
        c.launch_limit = int("LAUNCH_LIMIT")?.unwrap_or(c.launch_limit);
        Ok(c)
    }

    /// How many devices the driver API has.
    pub fn devices(&self) -> usize {
        1 + self.others.len()
    }

    /// The configuration of one device alone.
    pub(crate) fn of_device(&self, device: usize) -> Self {
        let (card, memory_limit) = match device.checked_sub(1) {
            None => (self.card, self.memory_limit),
            Some(other) => self.others[other],
        };
        Self { card, memory_limit, others: Vec::new(), ..self.clone() }
    }

    /// Device memory in bytes.
    pub fn memory(&self) -> u64 {
        self.memory_limit.unwrap_or(self.card.memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_is_read_and_checked() {
        let get = |pairs: &'static [(&str, &str)]| {
            Config::from_variables(|n| pairs.iter().find(|p| p.0 == n).map(|p| p.1.to_owned()))
        };
        let c = get(&[
            ("PASCALINE_VIRTUAL_CARD", "p40"),
            ("PASCALINE_VIRTUAL_CHECKS", "races"),
            ("PASCALINE_VIRTUAL_POOLS", "0"),
            ("PASCALINE_VIRTUAL_MEMORY", "4096"),
        ])
        .unwrap();
        assert_eq!(c.card.name, "Tesla P40");
        assert!(c.checks.races && !c.checks.uninitialized && !c.pools);
        assert_eq!(c.memory(), 4096);
        let short = get(&[("PASCALINE_VIRTUAL_CHECKS", "races,uninit")]).unwrap().checks;
        assert_eq!(short, Checks { uninitialized: true, races: true, convergence: false });
        assert!(get(&[("PASCALINE_VIRTUAL_CHECKS", "races,un")]).unwrap_err().contains("races,un"));
        assert!(get(&[("PASCALINE_VIRTUAL_CARD", "a100")]).unwrap_err().contains("a100"));
        assert!(get(&[("PASCALINE_VIRTUAL_SEED", "x")]).is_err());
    }

    #[test]
    fn an_architecture_has_a_card_and_cards_have_an_architecture() {
        let get = |pairs: &[(&str, &str)]| {
            Config::from_variables(|n| pairs.iter().find(|p| n.ends_with(p.0)).map(|p| p.1.to_owned()))
        };
        for (arch, card) in [("sm_61", "gtx1080"), ("sm_70", "v100"), ("sm_75", "t4")] {
            assert_eq!(get(&[("_ARCH", arch)]).unwrap().card.id, card);
            assert_eq!(get(&[("_CARD", card)]).unwrap().card.arch.name(), arch);
        }
        assert_eq!(get(&[("_ARCH", "sm_61"), ("_CARD", "p4")]).unwrap().card.id, "p4");
        assert_eq!(get(&[("_ARCH", "sm_75"), ("_DEVICES", "t4,t4")]).unwrap().devices(), 2);
        let contradiction = get(&[("_ARCH", "sm_70"), ("_CARD", "p4")]).unwrap_err();
        assert_eq!(contradiction, "PASCALINE_VIRTUAL_ARCH=sm_70, and the card p4 is sm_61");
        assert!(get(&[("_ARCH", "sm_70"), ("_DEVICES", "v100,t4")]).unwrap_err().contains("t4 is sm_75"));
        assert!(get(&[("_DEVICES", "v100,p4")]).unwrap_err().contains("sm_70 and, with p4, of sm_61"));
        assert!(get(&[("_ARCH", "sm_80")]).unwrap_err().contains("PASCALINE_VIRTUAL_ARCH=sm_80"));
    }

    #[test]
    fn several_devices_are_named_with_their_memory() {
        let get = |pairs: &'static [(&str, &str)]| {
            Config::from_variables(|n| pairs.iter().find(|p| p.0 == n).map(|p| p.1.to_owned()))
        };
        const DEVICES: (&str, &str) = ("PASCALINE_VIRTUAL_DEVICES", "mx330, p40,gtx1080");
        let c = get(&[DEVICES]).unwrap();
        let names = |c: &Config| (0..c.devices()).map(|n| c.of_device(n).card.id).collect::<Vec<_>>();
        assert_eq!(names(&c), ["mx330", "p40", "gtx1080"]);
        assert_eq!(c.of_device(1).memory(), 24 << 30);
        let each = get(&[DEVICES, ("PASCALINE_VIRTUAL_MEMORY", "10,20,30")]).unwrap();
        assert_eq!((0..3).map(|n| each.of_device(n).memory()).collect::<Vec<_>>(), [10, 20, 30]);
        let all = get(&[DEVICES, ("PASCALINE_VIRTUAL_MEMORY", "10")]).unwrap();
        assert_eq!((0..3).map(|n| all.of_device(n).memory()).collect::<Vec<_>>(), [10, 10, 10]);
        assert!(get(&[DEVICES, ("PASCALINE_VIRTUAL_MEMORY", "10,20")]).unwrap_err().contains("3 devices"));
        assert!(get(&[DEVICES, ("PASCALINE_VIRTUAL_CARD", "p4")]).unwrap_err().contains("both"));
        for wrong in ["", "mx330,", "mx330,h200", "p4,p4,p4,p4,p4,p4,p4,p4,p4"] {
            let pairs = [("PASCALINE_VIRTUAL_DEVICES", wrong)];
            let read = Config::from_variables(|n| pairs.iter().find(|p| p.0 == n).map(|p| p.1.to_owned()));
            assert!(read.unwrap_err().contains("DEVICES"), "{wrong}");
        }
    }
}
