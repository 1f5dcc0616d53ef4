//! Pages of 2 MiB for large tensors in host memory, where the system gives them. A product of one row reads each weight once, and with
//! pages of 4 KiB the processor walks through their tables as often as it fetches a kilobyte or four.

/// Asks for large pages, before the memory is touched. A system that has none leaves everything as it is.
#[cfg(target_os = "linux")]
pub(super) fn ask_for(memory: &mut [u8]) {
    const PAGE: usize = 2 << 20;
    let start = memory.as_mut_ptr();
    let before = start.align_offset(PAGE);
    let whole = memory.len().saturating_sub(before) / PAGE * PAGE;
    if whole > 0 {
        // SAFETY: the range lies inside of `memory`, and the advice changes nothing that it holds.
        unsafe { libc::madvise(start.add(before).cast(), whole, libc::MADV_HUGEPAGE) };
    }
}

/// Other systems choose themselves.
#[cfg(not(target_os = "linux"))]
pub(super) fn ask_for(_memory: &mut [u8]) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use crate::{DType, Device, Tensor};
    use std::fs;

    /// Whether the mapping that holds an address was advised, by the flag `hg` of proc(5).
    fn is_advised(address: usize) -> bool {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((Ok(start), Ok(end))) =
                range.map(|(start, end)| (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16)))
            {
                inside = (start..end).contains(&address);
            } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.split_whitespace().any(|flag| flag == "hg");
            }
        }
        panic!("no mapping holds the address");
    }

    #[test]
    fn large_tensors_are_advised() {
        if !fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap() {
            return eprintln!("not tested: this system has no large pages");
        }
        let x = Tensor::zeros([64 << 20], DType::F32, &Device::Cpu).unwrap();
        let values = x.cpu::<f32>().unwrap();
        assert!(is_advised((&raw const values[32 << 20]).addr()));
    }

    #[test]
    fn short_and_odd_ranges_are_left_alone() {
        let mut bytes = vec![1; (4 << 20) + 3];
        for len in [0, 1, 4095, (2 << 20) - 1, (4 << 20) + 3] {
            super::ask_for(&mut bytes[..len]);
        }
        assert!(bytes.iter().all(|&byte| byte == 1));
    }
}
