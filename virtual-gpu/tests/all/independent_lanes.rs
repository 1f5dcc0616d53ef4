//! Lanes of a warp that are scheduled on their own, from sm_70 on.

use crate::common::{threads_on, threads_with};
use pascaline_virtual_gpu::{Arch, Checks, FindingKind};

fn on_volta(code: &str, threads: u32) -> Vec<u32> {
    threads_on(Arch::Sm70, code, threads, Checks::ALL).unwrap_or_else(|e| panic!("{code}: {e}"))
}

/// A lane leaves the loop with the lock, and the others spin until it has given it back: behind the place where they meet.
const LOCK: &str = "
SPIN: atom.acquire.gpu.global.cas.b32 %r2, [%rd1], 0, 1; setp.ne.u32 %p1, %r2, 0; @%p1 bra SPIN;
ld.volatile.global.u32 %r3, [%rd1+4]; add.u32 %r3, %r3, 1; st.volatile.global.u32 [%rd1+4], %r3;
mov.u32 %r0, %r3;
atom.release.gpu.global.exch.b32 %r2, [%rd1], 0;";

#[test]
fn a_lock_between_lanes_of_a_warp_is_had_by_each() {
    for threads in [2, 32, 80] {
        let mut order = on_volta(LOCK, threads);
        order.sort_unstable();
        assert_eq!(order, (1..=threads).collect::<Vec<_>>());
    }
    // before Volta the one that has the lock waits for those that spin
    let before = LOCK.replace(".acquire.gpu", "").replace(".release.gpu", "");
    let finding = threads_on(Arch::Sm61, &before, 2, Checks::ALL).unwrap_err();
    assert_eq!(finding.kind, FindingKind::Timeout);
}

#[test]
fn sides_of_a_branch_may_wait_for_each_other() {
    let flag = "setp.lt.u32 %p1, %r1, 16; @%p1 bra LOW;
        WAIT: nanosleep.u32 20; ld.acquire.cta.global.u32 %r2, [%rd1]; setp.eq.u32 %p2, %r2, 0; @%p2 bra WAIT; mov.u32 %r0, %r2; bra END;
        LOW: st.release.cta.global.u32 [%rd1], 7; mov.u32 %r0, 1;
        END:";
    let want: Vec<u32> = (0..32).map(|l| if l < 16 { 1 } else { 7 }).collect();
    assert_eq!(on_volta(flag, 32), want);
    let other_way = flag.replace("setp.lt", "setp.ge");
    let want: Vec<u32> = (0..32).map(|l| if l >= 16 { 1 } else { 7 }).collect();
    assert_eq!(on_volta(&other_way, 32), want);
}

#[test]
fn diverged_lanes_meet_where_their_mask_says() {
    // one instruction, at which each half names its own lanes
    let sides = "and.b32 %r5, %r1, 16; add.u32 %r5, %r5, 1;
        setp.lt.u32 %p1, %r1, 16; mov.u32 %r3, 0xffff; @%p1 bra SAME; shl.b32 %r3, %r3, 16; mov.u32 %r4, 0;
        LOOP: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, %r1; @%p2 bra LOOP;
        SAME: shfl.sync.idx.b32 %r0, %r1, %r5, 31, %r3;";
    assert_eq!(on_volta(sides, 32), (0..32).map(|l| if l < 16 { 1 } else { 17 }).collect::<Vec<_>>());
    // of a loop from which lanes part one by one, all come to the vote together, and count as one
    let uneven = "mov.u32 %r4, 0;
        LOOP: add.u32 %r4, %r4, 1; mul.lo.u32 %r5, %r1, 1000; setp.lt.u32 %p2, %r4, %r5; @%p2 bra LOOP;
        setp.ge.u32 %p1, %r1, 30; vote.sync.ballot.b32 %r2, %p1, -1; activemask.b32 %r3; and.b32 %r0, %r2, %r3;";
    assert_eq!(on_volta(uneven, 32), [0xc000_0000; 32]);
    // warp barriers of two sides: each of its own lanes
    let halves = "setp.lt.u32 %p1, %r1, 16; @%p1 bra LOW; bar.warp.sync 0xffff0000; mov.u32 %r0, 2; bra END;
        LOW: bar.warp.sync 0xffff; mov.u32 %r0, 1; END: bar.warp.sync -1; bar.sync 0;";
    assert_eq!(on_volta(halves, 32), (0..32).map(|l| if l < 16 { 1 } else { 2 }).collect::<Vec<_>>());
    // lanes that have exited are not waited for
    let gone = "setp.gt.u32 %p1, %r1, 3; mov.u32 %r0, 9; @%p1 st.global.u32 [%out], %r0; @%p1 ret; vote.sync.ballot.b32 %r0, 1, -1;";
    assert_eq!(on_volta(gone, 32)[..5], [15, 15, 15, 15, 9]);
}

/// Waits that only another path can end, through a call and with lanes that exit meanwhile.
#[test]
fn a_lane_that_exits_ends_the_wait_for_it() {
    let code = "setp.eq.u32 %p1, %r1, 0; @%p1 bra LAST; vote.sync.ballot.b32 %r0, 1, -1; bra END;
        LAST: mov.u32 %r4, 0; LOOP: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 9000; @%p2 bra LOOP; st.global.u32 [%out], 5; exit; END:";
    let got = on_volta(code, 32);
    assert_eq!((got[0], &got[1..]), (5, &[0xffff_fffe; 31][..]));
}

/// One waits for a flag, the other sets it; the constants of the two are in the same registers.
const FUNCTIONS: &str = "
.func (.param .b32 r) wait_for(.param .b64 p) {
.reg .b64 %a; .reg .b32 %v, %w; .reg .pred %q; ld.param.b64 %a, [p];
L: ld.acquire.gpu.global.u32 %v, [%a]; setp.eq.u32 %q, %v, 0; @%q bra L;
mul.lo.u32 %w, %v, 1000; add.u32 %w, %w, 77; st.param.b32 [r], %w; ret;
}
.func (.param .b32 r) give(.param .b64 p) {
.reg .b64 %a; .reg .b32 %v, %w; .reg .pred %q; ld.param.b64 %a, [p];
mov.u32 %w, 12345; setp.eq.u32 %q, %w, 12345; @%q st.release.gpu.global.u32 [%a], 5;
add.u32 %w, %w, 23; st.param.b32 [r], %w; ret;
}
.func (.param .b32 r) early(.param .b64 p, .param .b32 odd) {
.reg .b64 %a; .reg .b32 %v, %w; .reg .pred %q; ld.param.b64 %a, [p]; ld.param.b32 %v, [odd];
setp.ne.u32 %q, %v, 0; @%q st.param.b32 [r], 1; @%q ret;
L: ld.acquire.gpu.global.u32 %v, [%a]; setp.eq.u32 %q, %v, 0; @%q bra L;
add.u32 %w, %v, 1; st.param.b32 [r], %w; ret;
}";

#[test]
fn lanes_wait_for_each_other_in_functions() {
    let run = |code: &str| threads_with(FUNCTIONS, Arch::Sm70, code, 32, Checks::ALL).unwrap();
    for (low, high, waits) in [("wait_for", "give", 0..16), ("give", "wait_for", 16..32)] {
        let code = format!(
            ".param .b64 p; .param .b32 q; st.param.b64 [p], %rd1; setp.lt.u32 %p1, %r1, 16; @%p1 bra A;
            call.uni (q), {high}, (p); bra B; A: call.uni (q), {low}, (p);
            B: ld.param.b32 %r2, [q]; vote.sync.ballot.b32 %r3, 1, -1; not.b32 %r3, %r3; add.u32 %r0, %r2, %r3;"
        );
        let want: Vec<u32> = (0..32).map(|l| if waits.contains(&l) { 5077 } else { 12368 }).collect();
        assert_eq!(run(&code), want);
    }
    // those that return first go on without the others, which wait for what they do then
    let code = ".param .b64 p; .param .b32 o; .param .b32 q; and.b32 %r2, %r1, 1; st.param.b64 [p], %rd1; st.param.b32 [o], %r2;
        call.uni (q), early, (p, o); ld.param.b32 %r0, [q];
        setp.ne.u32 %p1, %r2, 0; @%p1 st.release.gpu.global.u32 [%rd1], 6; bar.sync 0;";
    assert_eq!(run(code), (0..32).map(|l| if l % 2 == 1 { 1 } else { 7 }).collect::<Vec<_>>());
}

#[test]
fn lanes_that_never_meet_are_found() {
    for (code, kind, word) in [
        (
            "setp.lt.u32 %p1, %r1, 16; @%p1 bra LOW; shfl.sync.idx.b32 %r0, %r1, 0, 31, -1; bra END; LOW: bar.warp.sync -1; END:",
            FindingKind::NotConverged,
            "which waits elsewhere",
        ),
        (
            "setp.lt.u32 %p1, %r1, 16; @%p1 bar.sync 0; @!%p1 bar.sync 0;",
            FindingKind::BarrierDivergence,
            "of the same warp is not at this barrier",
        ),
        (
            "vote.sync.ballot.b32 %r0, 1, 0xffff;",
            FindingKind::NotConverged,
            "does not name the executing lane 16",
        ),
        (
            "mov.u32 %r2, s; setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [%r2], 5; ld.shared.u32 %r0, [%r2];",
            FindingKind::SharedRace,
            "in the same warp with no sync_warp between",
        ),
    ] {
        let finding = threads_on(Arch::Sm70, code, 32, Checks::ALL).expect_err(code);
        assert_eq!(finding.kind, kind, "{code}: {finding}");
        assert!(finding.message.contains(word), "{code}: {finding}");
    }
    let synced = "mov.u32 %r2, s; setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [%r2], 5; bar.warp.sync -1; ld.shared.u32 %r0, [%r2];";
    assert_eq!(on_volta(synced, 32), [5; 32]);
}
