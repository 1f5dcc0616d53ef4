//! The linker of PTX: several texts become one, which loads as a module. Machine code is refused.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use cust_raw::*;

use super::call::{Out, api};
use super::codes::*;
use super::entry::enter;
use super::launch::{Logs, compile, file_text, machine_code, name_of};

/// `CU_JIT_INPUT_PTX`
const PTX: c_int = 1;

/// A linker: where its logs go, and the PTX so far.
struct Linker {
    logs: Logs,
    text: Vec<u8>,
}

static LINKERS: LazyLock<Mutex<HashMap<u64, Linker>>> = LazyLock::new(Mutex::default);

fn linkers() -> MutexGuard<'static, HashMap<u64, Linker>> {
    LINKERS.lock().unwrap_or_else(PoisonError::into_inner) // it is whole at each point
}

/// Adds a text. After the first its own header goes: a module has one.
fn add(state: CUlinkState, text: &[u8]) -> Answer {
    let text = std::str::from_utf8(text).map_err(|_| INVALID_PTX)?;
    drop(enter()?);
    let mut linkers = linkers();
    let link = linkers.get_mut(&(state as u64)).ok_or(INVALID_HANDLE)?;
    let is_header = |line: &str| {
        [".version", ".target", ".address_size"].iter().any(|word| line.trim_start().starts_with(word))
    };
    let is_first = link.text.is_empty();
    for line in text.lines().filter(|line| is_first || !is_header(line)) {
        link.text.extend_from_slice(line.as_bytes());
        link.text.push(b'\n');
    }
    Ok(())
}

fn check_type(kind: c_int) -> Answer {
    match kind {
        PTX => Ok(()),
        0..=5 => Err(machine_code()),
        _ => Err(INVALID_VALUE),
    }
}

api! {
    fn cuLinkCreate_v2(
        count: c_uint, options: *mut CUjit_option => *mut c_int, values: *mut *mut c_void, state: *mut CUlinkState => Out<CUlinkState>,
    ) {
        // SAFETY: the caller promised the driver API `count` options and values.
        let logs = unsafe { Logs::read(count, options, values)? }.without_sizes();
        let id = enter()?.handle();
        linkers().insert(id, Linker { logs, text: Vec::new() });
        state.write(id as CUlinkState)
    }

    fn cuLinkAddData_v2(
        state: CUlinkState, kind: CUjitInputType => c_int, data: *mut c_void, size: usize, _name: *const c_char, _count: c_uint,
        _options: *mut CUjit_option => *mut c_int, _values: *mut *mut c_void,
    ) {
        check_type(kind)?;
        if data.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so the caller's data of `size` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
        add(state, file_text(bytes)?)
    }

    fn cuLinkAddFile_v2(
        state: CUlinkState, kind: CUjitInputType => c_int, path: *const c_char, _count: c_uint, _options: *mut CUjit_option => *mut c_int,
        _values: *mut *mut c_void,
    ) {
        check_type(kind)?;
        let bytes = std::fs::read(name_of(path)?).map_err(|_| FILE_NOT_FOUND)?;
        add(state, file_text(&bytes)?)
    }

    /// The image is the PTX itself; it lives as long as the linker.
    fn cuLinkComplete(state: CUlinkState, image: *mut *mut c_void => Out<*mut c_void>, size: *mut usize => Out<usize>) {
        let arch = enter()?.arch();
        let mut linkers = linkers();
        let link = linkers.get_mut(&(state as u64)).ok_or(INVALID_HANDLE)?;
        compile(&link.text, Some(&link.logs), arch)?;
        if link.text.last() != Some(&0) {
            link.text.push(0);
        }
        image.write(link.text.as_mut_ptr().cast())?;
        size.write_unless_null(link.text.len());
        Ok(())
    }

    fn cuLinkDestroy(state: CUlinkState) {
        linkers().remove(&(state as u64)).map(|_| ()).ok_or(INVALID_HANDLE)
    }
}
