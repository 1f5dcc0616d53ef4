//! The seam over a table of functions defined here: the values that cross it, and scripted faults.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};

use cust_raw::*;

use crate::{Backend, Failure, backend, faults, last_failure, last_raw_code, select};

/// A result for which `CUresult` has no value.
const CONTAINED: u32 = 226;

thread_local! {
    /// The device whose context is current, to the backend of these tests.
    static CURRENT: Cell<c_int> = const { Cell::new(0) };
}

/// The functions that the backend of these tests has.
pub(crate) fn virtual_symbol(name: &str) -> Option<*const c_void> {
    extern "C" fn accepts_flags(_: u32) -> u32 {
        0
    }
    extern "C" fn accepts_two(_: usize, _: usize) -> u32 {
        0
    }
    extern "C" fn echoes_attribute(value: &mut c_int, attribute: u32, _device: c_int) -> u32 {
        *value = attribute as c_int;
        0
    }
    extern "C" fn allocates(ptr: &mut u64, bytes: usize) -> u32 {
        *ptr = 256 * bytes as u64;
        0
    }
    extern "C" fn gives_the_current_device(device: &mut c_int) -> u32 {
        *device = CURRENT.get();
        0
    }
    extern "C" fn answers_an_unlisted_code(_: usize, _: usize) -> u32 {
        CONTAINED
    }
    extern "C" fn answers_invalid_handle(_: usize, _: usize) -> u32 {
        400
    }
    Some(match name {
        "cuInit" => accepts_flags as *const c_void,
        "cuCtxGetDevice" => gives_the_current_device as *const c_void,
        "cuDeviceGetAttribute" => echoes_attribute as *const c_void,
        "cuMemAlloc_v2" => allocates as *const c_void,
        "cuEventRecord" | "cuStreamSynchronize" | "cuMemFree_v2" | "cuMemPoolTrimTo" => {
            accepts_two as *const c_void
        }
        "cuMemGetInfo_v2" => answers_an_unlisted_code as *const c_void,
        "cuStreamGetFlags" => answers_invalid_handle as *const c_void,
        _ => return None,
    })
}

/// The seam on the table above, without faults. Script and counts belong to the process: one test at a time.
fn seam() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(select(Backend::Virtual), Ok(()));
    faults::clear();
    faults::count_calls(false);
    guard
}

fn init() -> u32 {
    // SAFETY: no pointer crosses.
    unsafe { cuInit(0) as u32 }
}

fn synchronize() -> u32 {
    // SAFETY: the table's function ignores the handle.
    unsafe { cuStreamSynchronize(ptr::null_mut()) as u32 }
}

fn record() -> u32 {
    // SAFETY: the table's function ignores the handles.
    unsafe { cuEventRecord(ptr::null_mut(), ptr::null_mut()) as u32 }
}

fn free() -> u32 {
    // SAFETY: the table's function ignores the address.
    unsafe { cuMemFree_v2(0) as u32 }
}

#[test]
fn arguments_and_results_cross_unchanged() {
    let _seam = seam();
    let mut ptr = 0;
    // SAFETY: `ptr` outlives the call.
    assert_eq!(unsafe { cuMemAlloc_v2(&mut ptr, 3) }, CUresult::CUDA_SUCCESS);
    assert_eq!(ptr, 768);
    // SAFETY: the table's function reads neither argument.
    let code = unsafe { cuStreamGetFlags(ptr::null_mut(), ptr::null_mut()) };
    assert_eq!(code, CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(last_failure(), Some(Failure { function: "cuStreamGetFlags", code: 400 }));
}

#[test]
fn attributes_newer_than_the_bindings_cross() {
    mod wide {
        use std::ffi::c_int;
        unsafe extern "C" {
            pub fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> u32;
        }
    }
    let _seam = seam();
    let mut value = 0;
    // SAFETY: `value` outlives the call; the forwarder takes any attribute number.
    assert_eq!(unsafe { wide::cuDeviceGetAttribute(&mut value, 141, 0) }, 0);
    assert_eq!(value, 141);
}

#[test]
fn an_unlisted_code_becomes_unknown_and_is_kept() {
    let _seam = seam();
    // SAFETY: the table's function reads neither argument.
    let code = unsafe { cuMemGetInfo_v2(ptr::null_mut(), ptr::null_mut()) };
    assert_eq!(code, CUresult::CUDA_ERROR_UNKNOWN);
    assert_eq!(last_raw_code(), CONTAINED);
    assert_eq!(init(), 0);
    assert_eq!(last_failure(), Some(Failure { function: "cuMemGetInfo_v2", code: CONTAINED }));
    let other_thread = std::thread::spawn(last_raw_code).join();
    assert_eq!(other_thread.ok(), Some(0), "the record is this thread's");
}

#[test]
fn a_function_that_the_backend_lacks_is_not_supported() {
    let _seam = seam();
    for _ in 0..2 {
        // SAFETY: the call does not leave the seam.
        assert_eq!(unsafe { cuCtxSynchronize() }, CUresult::CUDA_ERROR_NOT_SUPPORTED);
        assert_eq!(last_failure(), Some(Failure { function: "cuCtxSynchronize", code: 801 }));
    }
}

#[test]
fn every_code_has_a_name_and_a_text() {
    mod wide {
        use std::ffi::c_char;
        unsafe extern "C" {
            pub fn cuGetErrorString(error: u32, text: *mut *const c_char) -> u32;
            pub fn cuGetErrorName(error: u32, name: *mut *const c_char) -> u32;
        }
    }
    for code in (0..1100).chain([u32::MAX]) {
        for describe in [wide::cuGetErrorString, wide::cuGetErrorName] {
            let mut text = ptr::null();
            // SAFETY: `text` outlives the call; the forwarder takes any code.
            assert_eq!(unsafe { describe(code, &mut text) }, 0, "code {code}");
            assert!(!text.is_null(), "code {code}");
            // SAFETY: the seam gives out static C strings, and this one is not null.
            assert!(!unsafe { CStr::from_ptr(text) }.is_empty(), "code {code}");
        }
    }
    // SAFETY: a null pointer is answered, not written to.
    assert_eq!(unsafe { wide::cuGetErrorString(2, ptr::null_mut()) }, 1);
    assert_eq!(crate::code_name(700), "CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_eq!(crate::code_name(CONTAINED), "CUDA_ERROR_CONTAINED");
    assert_eq!(crate::code_text(77_777), "unknown error");
}

#[test]
fn first_calls_from_many_threads_agree() {
    let _seam = seam();
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                for _ in 0..100 {
                    // SAFETY: the table's function ignores the pool.
                    assert_eq!(unsafe { cuMemPoolTrimTo(ptr::null_mut(), 0) }, CUresult::CUDA_SUCCESS);
                    // SAFETY: the call does not leave the seam.
                    let missing = unsafe { cuMemPoolDestroy(ptr::null_mut()) };
                    assert_eq!(missing, CUresult::CUDA_ERROR_NOT_SUPPORTED);
                }
            });
        }
    });
}

#[test]
fn the_backend_stays_once_it_is_chosen() {
    let _seam = seam();
    assert_eq!(backend(), Some(Backend::Virtual));
    assert_eq!(select(Backend::Virtual), Ok(()));
    assert_eq!(select(Backend::Real), Err(crate::AlreadySelected(Backend::Virtual)));
}

#[test]
fn a_fault_fires_at_its_call_and_only_there() {
    let _seam = seam();
    assert_eq!(faults::script("cuEventRecord:3=2"), Ok(()));
    assert_eq!([record(), record(), record(), record()], [0, 0, 2, 0]);
    assert_eq!(last_failure(), Some(Failure { function: "cuEventRecord", code: 2 }));
    assert_eq!(faults::script("cuEventRecord:2+=46, cuInit:1=100"), Ok(()));
    assert_eq!([record(), record(), record(), init(), init()], [0, 999, 999, 100, 0]);
    faults::clear();
    assert_eq!(record(), 0);
}

#[test]
fn a_fault_fires_where_the_backend_lacks_the_function() {
    let _seam = seam();
    assert_eq!(faults::script("cuCtxSynchronize:1=702"), Ok(()));
    // SAFETY: the calls do not leave the seam.
    assert_eq!(unsafe { [cuCtxSynchronize() as u32, cuCtxSynchronize() as u32] }, [702, 801]);
}

#[test]
fn a_faulted_call_does_not_reach_the_backend() {
    let _seam = seam();
    assert_eq!(faults::script("cuMemAlloc:1=2"), Ok(()));
    let mut ptr = 7;
    // SAFETY: `ptr` outlives the call.
    assert_eq!(unsafe { cuMemAlloc_v2(&mut ptr, 1) }, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(ptr, 7);
}

#[test]
fn a_deferred_fault_shows_at_the_next_wait() {
    let _seam = seam();
    assert_eq!(faults::script("cuEventRecord:2=719@sync"), Ok(()));
    assert_eq!([record(), synchronize()], [0, 0], "nothing is due yet");
    assert_eq!([record(), record(), init()], [0, 0, 0], "the call itself goes through");
    assert_eq!([free(), synchronize()], [719, 0], "cuMemFree waits for the device, so it reports, once");
}

#[test]
fn a_sticky_fault_takes_the_device_away() {
    let _seam = seam();
    assert_eq!(faults::script("cuStreamSynchronize:1=700!sticky"), Ok(()));
    assert_eq!(record(), 0);
    assert_eq!([synchronize(), record(), synchronize(), free()], [700; 4]);
    assert_eq!(init(), 0, "calls that the host alone answers still work");
    assert_eq!(faults::script("cuEventRecord:1=716@sync!sticky"), Ok(()), "a new script starts afresh");
    assert_eq!([record(), record(), synchronize(), record()], [0, 0, 716, 716]);
    faults::clear();
    assert_eq!(record(), 0);
}

#[test]
fn a_fault_of_one_device_leaves_the_others_alone() {
    let _seam = seam();
    let on = |device, call: fn() -> u32| {
        CURRENT.set(device);
        call()
    };
    assert_eq!(faults::script("cuEventRecord#1:2=719@sync!sticky, cuMemFree#0:1=1"), Ok(()));
    assert_eq!(
        [on(0, record), on(0, record), on(0, record), on(1, record)],
        [0; 4],
        "calls count for their device"
    );
    assert_eq!([on(1, record), on(0, synchronize), on(1, synchronize)], [0, 0, 719], "and so do waits");
    assert_eq!([on(1, record), on(1, free), on(0, record), on(0, free)], [719, 719, 0, 1]);
    assert_eq!(faults::script("cuStreamSynchronize#1:1=700!sticky,cuStreamSynchronize:2=1"), Ok(()));
    assert_eq!([on(0, synchronize), on(0, synchronize), on(1, synchronize), on(1, init)], [0, 1, 700, 0]);
    CURRENT.set(0);
    for wrong in ["cuInit#:1=1", "cuInit#x:1=1", "cuInit#-1:1=1", "#1:1=1"] {
        assert!(faults::script(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_script_that_cannot_be_read_changes_nothing() {
    let _seam = seam();
    assert_eq!(faults::script("cuInit:1+=3"), Ok(()));
    for (rule, reason) in [
        ("cuInit", "there is no \":\""),
        ("cuInit:1", "there is no \"=\""),
        ("cuInvented:1=2", "the driver seam has no such function"),
        ("cuInit:0=2", "the call is not a number from 1"),
        ("cuInit:x=2", "the call is not a number from 1"),
        ("cuInit:1=0", "the code is not a number from 1"),
        ("cuInit:1=2!sticky@sync", "the code is not a number from 1"),
    ] {
        let error = faults::script(&format!("cuInit:9=9,{rule}")).err();
        assert_eq!(error, Some(faults::ScriptError { rule: rule.to_string(), reason }));
    }
    assert_eq!(init(), 3);
}

#[test]
fn calls_are_counted_while_asked_for() {
    let _seam = seam();
    record();
    assert_eq!(faults::calls("cuEventRecord"), 0);
    faults::count_calls(true);
    assert_eq!(faults::script("cuMemFree:1=1"), Ok(()));
    record();
    record();
    free();
    assert_eq!(faults::calls("cuEventRecord"), 2);
    assert_eq!(faults::calls("cuMemFree"), 1, "a call with a scripted fault counts");
    assert_eq!(faults::calls("cuMemFree_v2"), 1);
    faults::clear();
    record();
    assert_eq!(faults::calls("cuEventRecord"), 3, "taking the script away leaves the counts");
    faults::count_calls(false);
    record();
    assert_eq!(faults::calls("cuEventRecord"), 0);
}
