//! The exported functions. Each is a jump through a table, as it must pass on arguments whose types it does not know.
//!
//! Registers by the System V ABI for x86-64: integer arguments in rdi, rsi, rdx, rcx, r8, r9 and on the stack; rax and r11 are free.
//! No function of the driver API takes a variable number of arguments, which would need rax.

use std::arch::naked_asm;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::lookup::{Function, function};
use crate::names::every_function;
use crate::record;

/// Where each function jumps to.
static FIRST: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(ptr::null_mut()) }; NAMES.len()];
/// Where a function whose null stream is the thread's own goes on to.
static SECOND: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(ptr::null_mut()) }; NAMES.len()];

macro_rules! export {
    ($($name:ident)*) => {
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        enum Index { $($name),* }

        /// All names, in the order of the tables.
        pub(crate) static NAMES: &[&str] = &[$(stringify!($name)),*];

        /// The address of an exported function.
        pub(crate) fn exported(index: usize) -> *const c_void {
            static ADDRESSES: &[unsafe extern "C" fn()] = &[$($name),*];
            ADDRESSES[index] as *const c_void
        }

        $(
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            #[allow(non_snake_case)]
            unsafe extern "C" fn $name() {
                naked_asm!("mov eax, {index}", "jmp {go}", index = const Index::$name as u32, go = sym go)
            }
        )*
    };
}
every_function!(export);

/// Jumps to the function whose number is in rax.
#[unsafe(naked)]
unsafe extern "C" fn go() {
    naked_asm!("lea r11, [rip + {first}]", "jmp qword ptr [r11 + 8*rax]", first = sym FIRST)
}

/// Calls [`missing`] with the number in rax.
#[unsafe(naked)]
unsafe extern "C" fn go_missing() {
    naked_asm!("mov edi, eax", "jmp {missing}", missing = sym missing)
}

extern "C" fn missing(index: u32) -> u32 {
    const NOT_SUPPORTED: u32 = 801;
    record::refused(NAMES.get(index as usize).unwrap_or(&"a function"));
    NOT_SUPPORTED
}

/// Says that the null stream is the thread's own and goes on; the arguments stay as they are.
#[unsafe(naked)]
unsafe extern "C" fn go_per_thread() {
    naked_asm!(
        "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
        "call {say}",
        "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
        "lea r11, [rip + {second}]",
        "jmp qword ptr [r11 + 8*rax]",
        say = sym null_stream_is_per_thread,
        second = sym SECOND,
    )
}

extern "C" fn null_stream_is_per_thread() {
    pascaline_virtual_gpu::null_stream_is_per_thread();
}

/// Fills the tables.
pub(crate) fn fill() {
    for (index, name) in NAMES.iter().enumerate() {
        let (first, second) = match function(name) {
            Some(Function { address, per_thread: false }) => (address, ptr::null()),
            Some(Function { address, per_thread: true }) => (go_per_thread as *const c_void, address),
            None => (go_missing as *const c_void, ptr::null()),
        };
        SECOND[index].store(second.cast_mut(), Ordering::Relaxed);
        FIRST[index].store(first.cast_mut(), Ordering::Release);
    }
}
