//! Runs the command line as a user does.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Output};

/// The program: as `PASCALINE_BIN` says, where cargo built it, or beside this test or in a folder above, where it
/// lies when both were carried to another machine.
fn program() -> PathBuf {
    let name = format!("pascaline{}", env::consts::EXE_SUFFIX);
    let mut places: Vec<PathBuf> = env::var_os("PASCALINE_BIN").map(PathBuf::from).into_iter().collect();
    places.push(env!("CARGO_BIN_EXE_pascaline").into());
    let test = env::current_exe().expect("a running test has a path");
    places.extend(test.ancestors().skip(1).map(|folder| folder.join(&name)));
    let found = places.iter().find(|place| place.is_file());
    found.unwrap_or_else(|| panic!("the program is at none of {places:?}; set PASCALINE_BIN")).clone()
}

/// With these arguments, and without what this machine's environment would change.
pub fn pascaline(arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).env_remove("PASCALINE_DEVICE").env_remove("PTXAS");
    command
}

/// Its output and how it ended.
#[allow(dead_code)] // not all tests run it plainly
pub fn run(arguments: &[&str]) -> Output {
    pascaline(arguments).output().expect("the program starts")
}

/// Its stdout.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Its stderr.
#[allow(dead_code)] // not all tests look at it
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
