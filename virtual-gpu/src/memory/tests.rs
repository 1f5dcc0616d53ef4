//! Limits, addresses and descriptions of device memory.

use super::*;

#[test]
fn limit_bounds_and_reuse() {
    let m = Memory::new(0, 1000, true);
    let a = m.alloc(600).unwrap();
    assert_eq!(a % 512, 0);
    assert_eq!(m.alloc(401), Err(MemoryError::OutOfMemory));
    m.write(a + 10, &[1, 2, 3]).unwrap();
    let mut out = [0; 4];
    m.read(a + 9, &mut out).unwrap();
    assert_eq!(out, [POISON, 1, 2, 3]);
    assert_eq!(m.write(a + 598, &[0; 3]), Err(MemoryError::OutOfBounds));
    assert_eq!(m.free(a + 1), Err(MemoryError::UnknownPointer));
    m.free(a).unwrap();
    assert_eq!(m.free(a), Err(MemoryError::UnknownPointer));
    assert_eq!(m.used(), 0);
    assert_ne!(m.alloc(600).unwrap(), a, "addresses are not used twice");
    assert!(m.describe(a + 5).0, "freed memory is remembered");
}

#[test]
fn addresses_end_with_the_devices_range() {
    let end = FIRST + 4 * SPAN;
    let m = Memory::new(3, 1 << 20, false);
    m.lock().next = end - GUARD - 1024;
    assert_eq!(m.alloc(1025), Err(MemoryError::OutOfMemory));
    assert_eq!(m.alloc(1024), Ok(end - GUARD - 1024));
    assert_eq!(m.alloc(1), Err(MemoryError::OutOfMemory));
}

#[test]
fn addresses_tell_their_device() {
    for (address, device) in [
        (FIRST - 1, None),
        (FIRST, Some(0)),
        (FIRST + SPAN - 1, Some(0)),
        (FIRST + SPAN, Some(1)),
        (FIRST + 8 * SPAN - 1, Some(7)),
        (FIRST + 8 * SPAN, None),
        (SHARED_WINDOW, None),
    ] {
        assert_eq!(device_of(address), device, "0x{address:x}");
    }
}

#[test]
fn bad_addresses_are_described_by_what_is_near() {
    let m = Memory::new(0, 1 << 30, true);
    let freed = m.alloc(600).unwrap();
    let waiting = m.insert(700, false).unwrap().base;
    let live = m.alloc(800).unwrap();
    m.free(freed).unwrap();
    assert_eq!(freed, FIRST);
    const FAR: u64 = 1 << 20;
    for (address, dead, near) in [
        (freed - FAR, false, "near no allocation"),
        (waiting - 1, false, "1 bytes before an allocation of 700 bytes"),
        (freed + 599, true, "599 bytes into a freed allocation of 600 bytes"),
        (freed + 600, false, "4520 bytes before an allocation of 700 bytes"),
        (waiting + 699, true, "699 bytes into an allocation that its stream has not reached or has freed"),
        (waiting + 700, false, "0 bytes past the end of an allocation of 700 bytes"),
        (live + 799, false, "which crosses the end of an allocation of 800 bytes"),
        (live + 800, false, "0 bytes past the end of an allocation of 800 bytes"),
        (live + 800 + FAR - 1, false, "1048575 bytes past the end of an allocation of 800 bytes"),
        (live + 800 + FAR, false, "near no allocation"),
        (waiting - FAR + 1, false, "1048575 bytes before an allocation of 700 bytes"),
        (waiting - FAR, false, "near no allocation"),
    ] {
        assert_eq!(m.describe(address), (dead, near.to_owned()), "0x{address:x}");
    }
}

#[test]
fn memory_is_freed_as_what_it_was_allocated_as() {
    let m = Memory::new(0, 1000, true);
    let (device, pinned) = (m.alloc(8).unwrap(), m.insert_pinned(8, false).unwrap());
    assert_eq!(m.free(pinned.base), Err(MemoryError::UnknownPointer));
    assert_eq!(m.remove(device, Kind::Pinned), Err(MemoryError::UnknownPointer));
    assert_eq!((m.remove(pinned.base, Kind::Pinned), m.free(device)), (Ok(()), Ok(())));
}
