//! The account of host memory that requests are charged to: for bodies, parsed fields, files, and prompts with their
//! patches.
//!
//! A request is charged before it takes memory, by what its headers say that it will take, and refused if that is not
//! there. Nothing waits for memory, so nothing can wait in a circle. The last eighth is for light requests: whatever the
//! heavy ones hold, a short question has room.

use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most bytes of a light charge; less in a small account.
const LIGHT: usize = 4 << 20;
/// A light charge is at most this share of the account.
const LIGHT_SHARE: usize = 512;
/// The share of the account that heavy charges leave free.
const RESERVE: usize = 8;

/// The memory that requests may take together if nobody states another: a quarter of what is available now.
pub fn default_memory() -> usize {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).ok()?;
        let value =
            text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())?;
        let (number, unit) = value.strip_suffix(" kB").map_or((&*value, 1), |number| (number, 1 << 10));
        number.parse::<usize>().ok()?.checked_mul(unit)
    };
    let available = field("/proc/meminfo", "MemAvailable:");
    // a container may have less than the machine
    let allowed = field("/sys/fs/cgroup/memory.max", "")
        .map(|most| most.saturating_sub(field("/sys/fs/cgroup/memory.current", "").unwrap_or(0)));
    let least = [available, allowed].into_iter().flatten().min().unwrap_or(4 << 30);
    (least / 4).max(128 << 20)
}

/// Host memory for requests.
#[derive(Debug)]
pub(crate) struct Account {
    total: usize,
    used: Mutex<usize>,
}

/// Why memory is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// One request may never have as much.
    Never { needed: usize, most: usize },
    /// Other requests have it.
    Now { needed: usize },
}

impl Account {
    pub fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { total, used: Mutex::new(0) })
    }

    /// A charge of nothing yet.
    pub fn open(self: &Arc<Self>) -> Charge {
        Charge { account: Arc::clone(self), bytes: 0 }
    }

    /// Its state, as Prometheus reads it.
    pub fn metrics(&self) -> String {
        const NAME: &str = "pascaline_request_memory_bytes";
        let (total, used) = (self.total, *self.used());
        format!(
            "# HELP {NAME} Host memory that requests may take, and that is charged to them.\n# TYPE {NAME} gauge\n\
             {NAME}{{state=\"total\"}} {total}\n{NAME}{{state=\"used\"}} {used}\n"
        )
    }

    fn used(&self) -> MutexGuard<'_, usize> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most bytes of a light charge.
    fn light(&self) -> usize {
        LIGHT.min(self.total / LIGHT_SHARE)
    }
}

/// The bytes of a request. They are free again when it is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

impl Charge {
    /// Charges more bytes, or none of them.
    pub(crate) fn grow(&mut self, more: usize) -> Result<(), Full> {
        let account = &self.account;
        let needed = self.bytes.saturating_add(more);
        let for_heavy = account.total - account.total / RESERVE;
        if needed > for_heavy {
            return Err(Full::Never { needed, most: for_heavy });
        }
        let most = if needed > account.light() { for_heavy } else { account.total };
        let mut used = account.used();
        if used.saturating_add(more) > most {
            return Err(Full::Now { needed });
        }
        *used += more;
        self.bytes = needed;
        Ok(())
    }

    /// Returns all bytes but these.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        *self.account.used() -= self.bytes - bytes;
        self.bytes = bytes;
    }

    /// Returns this many bytes.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        self.shrink_to(self.bytes.saturating_sub(bytes));
    }

    /// Becomes this many bytes.
    pub(crate) fn settle(&mut self, bytes: usize) -> Result<(), Full> {
        self.grow(bytes.saturating_sub(self.bytes))?;
        self.shrink_to(bytes);
        Ok(())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it is small beside the account.
    pub(crate) fn is_light(&self) -> bool {
        self.bytes <= self.account.light()
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_never_exceed_the_account_and_are_returned() {
        let account = Account::new(800 << 20);
        let mut heavy: Vec<Charge> = (0..8).map(|_| account.open()).collect();
        for charge in &mut heavy[..7] {
            assert_eq!(charge.grow(100 << 20), Ok(()));
        }
        assert_eq!(
            heavy[7].grow(2 << 20),
            Err(Full::Now { needed: 2 << 20 }),
            "the last eighth is for light ones"
        );
        let mut light: Vec<Charge> = (0..100).map(|_| account.open()).collect();
        for charge in &mut light {
            assert_eq!(charge.grow(1 << 20), Ok(()));
        }
        assert_eq!(*account.used(), 800 << 20);
        assert_eq!(account.open().grow(1), Err(Full::Now { needed: 1 }));
        light[0].shrink_to(10);
        assert_eq!(*account.used(), (799 << 20) + 10);
        drop((heavy, light));
        assert_eq!(*account.used(), 0);
        let (needed, most) = (701 << 20, 700 << 20);
        assert_eq!(account.open().grow(needed), Err(Full::Never { needed, most }));
        assert_eq!(*account.used(), 0);
        assert!(matches!(account.open().grow(usize::MAX), Err(Full::Never { .. })));
    }

    #[test]
    fn the_default_is_a_part_of_the_machines_memory() {
        let memory = default_memory();
        assert!((128 << 20..1 << 42).contains(&memory), "{memory}");
    }
}
