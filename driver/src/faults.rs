//! Scripted faults and call counts, for tests and for whole processes, on either backend.
//!
//! A script is a list of rules separated by commas. It is given to [`script`], or to a whole process in the
//! environment variable `PASCALINE_FAULTS`.
//!
//! ```text
//! rule     = function ":" call "=" code [ "@sync" ] [ "!sticky" ]
//! function = a driver function, with or without its version suffix   cuMemAllocAsync, cuMemFree, cuMemFree_v2
//! call     = which of its calls, from 1; with "+", all from then on   3, 1+
//! code     = a result code other than 0                               2
//! ```
//!
//! Without a suffix the call itself answers the code and does not reach the backend. With `@sync` the call goes
//! through, and the next call that waits for the device (a synchronise, a query, a synchronous copy, `cuMemFree`)
//! answers the code, as the fault of a kernel does. With `!sticky` every later call that needs a live context
//! answers it too, as after a device fault; no such call reaches the backend any more.
//!
//! `cuMemAllocAsync:3=2,cuStreamSynchronize:1=700!sticky,cuLaunchKernel:5=719@sync`
//!
//! Calls are counted over all threads, from when the script was set. While neither a script is set nor calls are
//! counted, all this costs a driver call one relaxed load.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::{env, ptr};

use crate::table::{self, Function, Reach};

/// A rule that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault rule \"{rule}\": {reason} (a rule reads FUNCTION:CALL=CODE[@sync][!sticky])")]
pub struct ScriptError {
    /// The rule as written.
    pub rule: String,
    /// Why it cannot be read.
    pub reason: &'static str,
}

/// Replaces the script in force and clears the faults that it raised. On an error nothing changes.
pub fn script(rules: &str) -> Result<(), ScriptError> {
    let rules = parse(rules)?;
    let mut state = lock();
    state.rules = rules;
    state.pending = None;
    state.sticky = None;
    state.publish();
    Ok(())
}

/// Removes the script in force, a sticky fault included.
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
    code: u32,
    sticky: bool,
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
    /// A fault that was raised and not yet reported.
    pending: Option<Fault>,
    /// The code that every call with a live context answers from now on.
    sticky: Option<u32>,
    counting: bool,
}

static ACTIVE: AtomicBool = AtomicBool::new(false);
static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    let mut state = State::default();
    if let Some(rules) = env::var_os("PASCALINE_FAULTS") {
        state.rules = parse(&rules.to_string_lossy()).unwrap_or_else(|error| {
            // Ignoring the script would make the run look good, so no driver starts under it.
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

/// Whether calls have to ask [`before`].
#[inline(always)]
pub(crate) fn active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// The code that this call of `function` answers in place of the backend's, if any. Every function's first call
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
        let mut now = None;
        if function.reach == Reach::Waits {
            now = self.pending.take();
        }
        for rule in self.rules.iter_mut().filter(|rule| ptr::eq(rule.function, function)) {
            rule.seen += 1;
            if rule.seen == rule.call || (rule.and_later && rule.seen > rule.call) {
                let due = if rule.at_sync { &mut self.pending } else { &mut now };
                due.get_or_insert(rule.fault);
            }
        }
        if let Some(code) = self.sticky.filter(|_| function.reach != Reach::Host) {
            return Some(code);
        }
        let fault = now?;
        if fault.sticky {
            self.sticky = Some(fault.code);
        }
        Some(fault.code)
    }
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
    let function = table::find(function).ok_or_else(|| wrong("the driver seam has no such function"))?;
    let call = call.parse().ok().filter(|&call| call > 0);
    let call = call.ok_or_else(|| wrong("the call is not a number from 1"))?;
    let code = code.parse().ok().filter(|&code| code > 0);
    let code = code.ok_or_else(|| wrong("the code is not a number from 1"))?;
    Ok(Rule { function, call, and_later, fault: Fault { code, sticky }, at_sync, seen: 0 })
}

fn strip<'a>(text: &'a str, suffix: &str) -> (&'a str, bool) {
    text.strip_suffix(suffix).map_or((text, false), |rest| (rest, true))
}
