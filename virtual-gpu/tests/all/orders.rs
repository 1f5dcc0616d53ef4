//! What releases and acquires order, for the race checks of sm_70.

use crate::common::threads_on;
use pascaline_virtual_gpu::{Arch, Checks, FindingKind};

/// The first warp stores data and then a flag; the second waits for the flag and loads the data. A fence that follows
/// the wait is behind `|`.
fn exchange(store_flag: &str, load_flag: &str) -> Result<Vec<u32>, FindingKind> {
    let (load_flag, after) = load_flag.split_once('|').unwrap_or((load_flag, ""));
    let code = format!(
        "mov.u32 %r2, s; setp.ne.u32 %p0, %r1, 0; @!%p0 st.shared.u32 [%r2], 0; bar.sync 0;
        setp.ge.u32 %p1, %r1, 32; @%p1 bra SECOND; @%p0 bra END;
        st.shared.u32 [%r2+64], 41; {store_flag} bra END;
        SECOND: {load_flag} setp.eq.u32 %p2, %r3, 0; @%p2 bra SECOND; {after} ld.shared.u32 %r0, [%r2+64];
        END:"
    );
    threads_on(Arch::Sm70, &code, 64, Checks::ALL).map_err(|finding| finding.kind)
}

#[test]
fn a_release_and_an_acquire_order_what_is_around_them() {
    let right = Ok([vec![0; 32], vec![41; 32]].concat());
    for (store, load) in [
        ("st.release.cta.shared.u32 [%r2], 1;", "ld.acquire.cta.shared.u32 %r3, [%r2];"),
        ("red.release.cta.shared.add.u32 [%r2], 1;", "ld.acquire.cta.shared.u32 %r3, [%r2];"),
        ("st.release.gpu.shared.u32 [%r2], 1;", "atom.acquire.gpu.shared.or.b32 %r3, [%r2], 0;"),
        (
            "fence.acq_rel.cta; st.relaxed.cta.shared.u32 [%r2], 1;",
            "ld.relaxed.cta.shared.u32 %r3, [%r2];|fence.acq_rel.cta;",
        ),
        ("st.release.cta.global.u32 [%rd1], 1;", "ld.acquire.cta.global.u32 %r3, [%rd1];"),
    ] {
        assert_eq!(exchange(store, load), right, "{store} {load}");
    }
    for (store, load) in [
        ("st.relaxed.cta.shared.u32 [%r2], 1;", "ld.acquire.cta.shared.u32 %r3, [%r2];"),
        ("st.release.cta.shared.u32 [%r2], 1;", "ld.relaxed.cta.shared.u32 %r3, [%r2];"),
        (
            "st.relaxed.cta.shared.u32 [%r2], 1; fence.acq_rel.cta;",
            "ld.relaxed.cta.shared.u32 %r3, [%r2];|fence.acq_rel.cta;",
        ),
        ("st.shared.u32 [%r2], 1;", "ld.acquire.cta.shared.u32 %r3, [%r2];"),
        (
            "st.release.cta.global.u32 [%rd1+4], 1; st.relaxed.cta.global.u32 [%rd1], 1;",
            "ld.acquire.cta.global.u32 %r3, [%rd1];",
        ),
    ] {
        assert_eq!(exchange(store, load), Err(FindingKind::SharedRace), "{store} {load}");
    }
}
