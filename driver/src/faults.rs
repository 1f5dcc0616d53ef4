//! Scripted faults and call counts, for tests and for whole processes, on either backend.
//!
//! A script is a list of rules separated by commas. It is given to [`script`], or to a whole process in the
//! environment variable `PASCALINE_FAULTS`.
//!
//! ```text
//! rule     = function [ "#" device ] ":" call "=" code [ "@sync" ] [ "!sticky" ]
//! function = a driver function, with or without its version suffix   cuMemAllocAsync, cuMemFree, cuMemFree_v2
//! device   = only calls while a context of this device is current    0, 1
//! call     = which of its calls, from 1; with "+", all from then on   3, 1+
//! code     = a result code other than 0                               2
//! ```
//!
//! Without a suffix the call itself answers the code and does not reach the backend. With `@sync` the call goes
//! through, and the next call that waits for the device (a synchronise, a query, a synchronous copy, `cuMemFree`)
//! answers the code, as the fault of a kernel does. With `!sticky` every later call that needs a live context
//! answers it too, as after a device fault; no such call reaches the backend any more. A rule with a device concerns that
//! device alone: its calls are counted, wait, and stay faulted by themselves.
//!
//! `cuMemAllocAsync:3=2,cuStreamSynchronize:1=700!sticky,cuLaunchKernel#1:5=719@sync`
//!
//! Calls are counted over all threads, from when the script was set. While neither a script is set nor calls are
//! counted, all this costs a driver call one relaxed load.

use std::ffi::{c_int, c_void};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::{env, mem, ptr};

use crate::backend;
use crate::table::{self, Function, Reach};

/// A rule that can't be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault rule \"{rule}\": {reason} (a rule reads FUNCTION[#DEVICE]:CALL=CODE[@sync][!sticky])")]
pub struct ScriptError {
    /// The rule as written.
    pub rule: String,
    /// Why it can't be parsed.
    pub reason: &'static str,
}

/// Replaces the current script and clears the faults that it raised. On an error nothing changes.
pub fn script(rules: &str) -> Result<(), ScriptError> {
    let rules = parse(rules)?;
    let mut state = lock();
    state.rules = rules;
    state.pending.clear();
    state.sticky.clear();
    state.publish();
    Ok(())
}

/// Removes the current script, including a sticky fault.
pub fn clear() {
    let mut state = lock();
    *state = State { counting: state.counting, ..State::default() };
    state.publish();
}

/// Switches the counting of calls on, from zero, or off.
pub fn count_calls(on: bool) {
    let mut state = lock();
    table::functions().for_each(|function| function.calls.store(0, Ordering::Relaxed));
    state.counting = on;
    state.publish();
}

/// How often `function` (spelled as in a rule) was called since [`count_calls`], calls with scripted faults included.
///
/// # Panics
/// When the driver seam has no such function: a count of a misspelt name would be 0 and prove nothing.
pub fn calls(function: &str) -> u64 {
    match table::find(function) {
        Some(function) => function.calls.load(Ordering::Relaxed),
        None => panic!("the driver seam has no function \"{function}\""),
    }
}

/// The functions that were called since [`count_calls`] and how often, in the order of the table.
pub fn counts() -> Vec<(&'static str, u64)> {
    let counts = table::functions().map(|function| (function.name, function.calls.load(Ordering::Relaxed)));
    counts.filter(|&(_, calls)| calls > 0).collect()
}

#[derive(Clone, Copy)]
struct Fault {
    /// The device that the rule applies to; `None`: all.
    device: Option<c_int>,
    code: u32,
    sticky: bool,
}

impl Fault {
    /// Whether the rule applies to a call while a context of `device` is current.
    fn concerns(&self, device: Option<c_int>) -> bool {
        self.device.is_none() || self.device == device
    }
}

struct Rule {
    function: &'static Function,
    call: u64,
    and_later: bool,
    fault: Fault,
    at_sync: bool,
    seen: u64,
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    /// Faults that were raised and are not yet reported.
    pending: Vec<Fault>,
    /// Faults that every call with a live context returns from now on.
    sticky: Vec<Fault>,
    counting: bool,
}

static ACTIVE: AtomicBool = AtomicBool::new(false);
static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    let mut state = State::default();
    if let Some(rules) = env::var_os("PASCALINE_FAULTS") {
        state.rules = parse(&rules.to_string_lossy()).unwrap_or_else(|error| {
            // A run that ignores the script would seem to pass, so no driver starts with an invalid one.
            // `eprintln!` panics where stderr can't be written
            let _ = writeln!(io::stderr(), "PASCALINE_FAULTS: {error}; cuInit will fail");
            parse("cuInit:1+=1").unwrap_or_default()
        });
    }
    state.publish();
    Mutex::new(state)
});

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether calls must consult [`before`].
#[inline(always)]
pub(crate) fn active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// The code that this call of `function` returns instead of the backend's, if any. Every function's first call
/// asks, which is how the environment's script comes into force.
pub(crate) fn before(function: &'static Function) -> Option<u32> {
    lock().before(function)
}

impl State {
    fn publish(&self) {
        let active = self.counting || !self.rules.is_empty();
        ACTIVE.store(active, Ordering::Relaxed);
    }

    fn before(&mut self, function: &'static Function) -> Option<u32> {
        if self.counting {
            function.calls.fetch_add(1, Ordering::Relaxed);
        }
        // Asked only where a rule names a device: the question is a driver call of its own.
        let names_one = self.rules.iter().any(|rule| rule.fault.device.is_some());
        let device = if names_one { current_device() } else { None };
        let mut now = None;
        if function.reach == Reach::Waits
            && let Some(at) = self.pending.iter().position(|fault| fault.concerns(device))
        {
            now = Some(self.pending.swap_remove(at));
        }
        for rule in self.rules.iter_mut().filter(|rule| ptr::eq(rule.function, function)) {
            if !rule.fault.concerns(device) {
                continue;
            }
            rule.seen += 1;
            if rule.seen == rule.call || (rule.and_later && rule.seen > rule.call) {
                match rule.at_sync {
                    false => _ = now.get_or_insert(rule.fault),
                    true if self.pending.iter().any(|fault| fault.device == rule.fault.device) => {}
                    true => self.pending.push(rule.fault),
                }
            }
        }
        let lasting = self.sticky.iter().find(|fault| fault.concerns(device));
        if let Some(fault) = lasting.filter(|_| function.reach != Reach::Host) {
            return Some(fault.code);
        }
        let fault = now?;
        if fault.sticky {
            self.sticky.push(fault);
        }
        Some(fault.code)
    }
}

/// The device of the calling thread's current context; `None` without one. Asks the backend itself: a question by the
/// exported function would be counted, and come here again.
fn current_device() -> Option<c_int> {
    let ask = backend::address_of("cuCtxGetDevice").ok()?;
    let mut device = 0;
    // SAFETY: the driver API declares `CUresult cuCtxGetDevice(CUdevice *)`; the code is taken as a plain integer, and
    // `device` is read only if it was written.
    let code = unsafe {
        let ask = mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> u32>(ask);
        ask(&mut device)
    };
    (code == 0).then_some(device)
}

fn parse(rules: &str) -> Result<Vec<Rule>, ScriptError> {
    rules.split(',').map(str::trim).filter(|rule| !rule.is_empty()).map(parse_rule).collect()
}

fn parse_rule(text: &str) -> Result<Rule, ScriptError> {
    let wrong = |reason| ScriptError { rule: text.to_string(), reason };
    let (rest, sticky) = strip(text, "!sticky");
    let (rest, at_sync) = strip(rest, "@sync");
    let (function, rest) = rest.split_once(':').ok_or_else(|| wrong("there is no \":\""))?;
    let (call, code) = rest.split_once('=').ok_or_else(|| wrong("there is no \"=\""))?;
    let (call, and_later) = strip(call, "+");
    let (function, device) = match function.split_once('#') {
        None => (function, None),
        Some((function, device)) => {
            let device = device.parse().ok().filter(|&device: &c_int| device >= 0);
            (function, Some(device.ok_or_else(|| wrong("the device is not a number from 0"))?))
        }
    };
    let function = table::find(function).ok_or_else(|| wrong("the driver seam has no such function"))?;
    let call = call.parse().ok().filter(|&call| call > 0);
    let call = call.ok_or_else(|| wrong("the call is not a number from 1"))?;
    let code = code.parse().ok().filter(|&code| code > 0);
    let code = code.ok_or_else(|| wrong("the code is not a number from 1"))?;
    Ok(Rule { function, call, and_later, fault: Fault { device, code, sticky }, at_sync, seen: 0 })
}

fn strip<'a>(text: &'a str, suffix: &str) -> (&'a str, bool) {
    text.strip_suffix(suffix).map_or((text, false), |rest| (rest, true))
}
