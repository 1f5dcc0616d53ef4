//! Sectors of global requests and wavefronts of shared ones.

use super::regs::{LANES, each};

/// Distinct 32-byte sectors that the lanes of a request touch. `bytes` per lane, naturally aligned.
pub(super) fn sectors(addresses: &[u64; LANES], mask: u32, bytes: u32) -> u32 {
    debug_assert!(bytes <= 32);
    let mut count = 0;
    let mut last = u64::MAX;
    let mut rest = mask;
    while rest != 0 {
        let l = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        let s = addresses[l] >> 5;
        if s != last {
            if last != u64::MAX && s < last {
                return sorted_sectors(addresses, mask);
            }
            count += 1;
            last = s;
        }
    }
    count
}

fn sorted_sectors(addresses: &[u64; LANES], mask: u32) -> u32 {
    let mut s = [0u64; LANES];
    let mut n = 0;
    for (l, &a) in addresses.iter().enumerate() {
        if mask >> l & 1 != 0 {
            s[n] = a >> 5;
            n += 1;
        }
    }
    s[..n].sort_unstable();
    1 + s[..n].windows(2).filter(|w| w[0] != w[1]).count() as u32
}

/// Wavefronts of a shared request and how many of them are bank conflicts.
///
/// The model: 32 banks of 4 bytes; lanes that read the same word share it. A 4- or 8-byte request is served
/// for the whole warp, a 16-byte one for each half. One wavefront delivers at most one word per bank; those
/// beyond what the number of distinct words needs are conflicts.
pub(super) fn wavefronts(offsets: &[u64; LANES], mask: u32, bytes: u32) -> (u32, u32) {
    let words = (bytes / 4).max(1);
    let halves: &[u32] = if words == 4 { &[0xffff, 0xffff_0000] } else { &[u32::MAX] };
    let (mut waves, mut conflicts) = (0, 0);
    for half in halves {
        let mask = mask & half;
        if mask == 0 {
            continue;
        }
        if span(offsets, mask).saturating_add(bytes.into()) <= 128 {
            // 32 consecutive words: no bank twice.
            waves += 1;
            continue;
        }
        // seen[bank] lists the bank's words so far; a lane has at most one in each.
        let mut seen = [[0u16; LANES]; 32];
        let mut count = [0u8; 32];
        let mut distinct = 0;
        let mut rest = mask;
        let mut previous = u64::MAX;
        while rest != 0 {
            let l = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            if offsets[l] == previous {
                continue;
            }
            previous = offsets[l];
            let first = (offsets[l] / 4) as u16;
            for k in 0..words as u16 {
                let w = first.wrapping_add(k); // addresses that no block has are counted before they are refused
                let b = (w % 32) as usize;
                let n = count[b] as usize;
                if !seen[b][..n].contains(&w) {
                    seen[b][n] = w;
                    count[b] += 1;
                    distinct += 1;
                }
            }
        }
        let worst = count.iter().copied().max().unwrap_or(0) as u32;
        waves += worst;
        conflicts += worst - u32::div_ceil(distinct, 32);
    }
    (waves, conflicts)
}

/// [`wavefronts`] of lanes that have different addresses, aligned to `bytes`: 4, 8, or 16 of one half of the warp.
#[inline(always)]
pub(super) fn aligned(offsets: &[u64; LANES], mask: u32, bytes: u32) -> (u32, u32) {
    let shift = bytes.trailing_zeros();
    // lanes by banks
    let mut count = [0u8; 32];
    each(mask, |l| count[(offsets[l] >> shift) as usize & ((128 >> shift) - 1)] += 1);
    let worst = u32::from(count.iter().copied().max().unwrap_or(0));
    (worst, worst - u32::div_ceil(mask.count_ones() * bytes, 128))
}

/// Distance between the lowest and the highest address.
fn span(offsets: &[u64; LANES], mask: u32) -> u64 {
    let (mut least, mut most) = (u64::MAX, 0);
    for (l, &o) in offsets.iter().enumerate() {
        if mask >> l & 1 != 0 {
            least = least.min(o);
            most = most.max(o);
        }
    }
    most - least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_lanes(f: impl Fn(u64) -> u64) -> [u64; LANES] {
        std::array::from_fn(|l| f(l as u64))
    }

    #[test]
    fn sectors_of_usual_patterns() {
        assert_eq!(sectors(&of_lanes(|l| 4 * l), u32::MAX, 4), 4);
        assert_eq!(sectors(&of_lanes(|l| 16 * l), u32::MAX, 16), 16);
        assert_eq!(sectors(&of_lanes(|l| 128 * l), u32::MAX, 4), 32);
        assert_eq!(sectors(&of_lanes(|l| 4 * (31 - l)), u32::MAX, 4), 4);
        assert_eq!(sectors(&of_lanes(|_| 64), 0xff, 4), 1);
        assert_eq!(sectors(&of_lanes(|l| 128 * (31 - l)), 0xffff, 4), 16);
    }

    #[test]
    fn wavefronts_of_usual_patterns() {
        assert_eq!(wavefronts(&of_lanes(|l| 4 * l), u32::MAX, 4), (1, 0));
        assert_eq!(wavefronts(&of_lanes(|l| 128 * l), u32::MAX, 4), (32, 31));
        assert_eq!(wavefronts(&of_lanes(|l| 8 * l), u32::MAX, 4), (2, 1));
        assert_eq!(wavefronts(&of_lanes(|_| 40), u32::MAX, 4), (1, 0));
        assert_eq!(wavefronts(&of_lanes(|l| 8 * l), u32::MAX, 8), (2, 0));
        assert_eq!(wavefronts(&of_lanes(|l| 16 * l), u32::MAX, 16), (4, 0));
        assert_eq!(wavefronts(&of_lanes(|l| 16 * (l % 8)), u32::MAX, 16), (2, 0));
        assert_eq!(wavefronts(&of_lanes(|l| 128 * l), 0b11, 1), (2, 1));
    }

    #[test]
    fn aligned_accesses_to_different_addresses_have_the_same_wavefronts() {
        for n in 0..200u64 {
            for (bytes, mask) in [(4, u32::MAX), (8, 0xffff_0fff), (16, 0xffff), (16, 0x7ff1_0000)] {
                // an odd factor keeps addresses apart; the others make conflicts of all kinds
                let at = of_lanes(|l| (l * (2 * n + 1) % 64 * (1 << (n % 5)) + n) * u64::from(bytes));
                assert_eq!(aligned(&at, mask, bytes), wavefronts(&at, mask, bytes), "{n} {bytes} {mask:x}");
            }
        }
    }
}
