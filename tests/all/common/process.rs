//! Tests in processes of their own: those that script faults, lose or configure a device, or read books that belong to the
//! process, such as the pool's.

use std::env;
use std::process::Command;

/// Set to the test's name in the process that is its own.
const VARIABLE: &str = "PASCALINE_OWN_PROCESS";

/// First in a test: the rest of it runs in a process of its own. The calling one waits for its end and returns from the test, with
/// the result that is given, if any.
macro_rules! in_own_process {
    ($($result:expr)?) => {
        fn here() {}
        if !crate::common::process::is_own(std::any::type_name_of_val(&here)) {
            return $($result)?;
        }
    };
}
pub(crate) use in_own_process;

/// Whether this process is that of the test in which the function `here` is. If not, starts it and fails if it fails.
pub fn is_own(here: &str) -> bool {
    let path = here.strip_suffix("::here").expect("the function in the test");
    let (_, test) = path.split_once("::").expect("a crate's name and a path in it");
    if env::var_os(VARIABLE).is_some_and(|own| own == test) {
        return true;
    }
    let run = Command::new(env::current_exe().expect("the path of this test"))
        .args([test, "--exact", "--include-ignored", "--nocapture"])
        .env(VARIABLE, test)
        .output()
        .expect("this test, started again");
    let [said, printed] = [&run.stderr, &run.stdout].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(run.status.success() && printed.contains("1 passed"), "{}\n{printed}\n{said}", run.status);
    super::extent::relay(&said);
    false
}
