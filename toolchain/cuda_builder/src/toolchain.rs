//! Which compiler builds the GPU crate: this build's own, or another of rustup's toolchains.

use crate::target::{self, TARGET};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The command to suggest where no compiler will do: it installs the one that compiles Pascaline's own kernels.
const INSTALL: &str = "rustup toolchain install 1.95.0 --profile minimal --component rust-src";

/// The first rustc that compiles `cuda_std`, which has the same `rust-version` as this crate.
const OLDEST: (u32, u32) = (1, 95);

/// The sources of `core` below a sysroot.
const CORE_SOURCES: &str = "lib/rustlib/src/rust/library/core/src/lib.rs";

/// A compiler that generates code for the GPU, and its cargo.
#[derive(Clone, Debug)]
pub(crate) struct Toolchain {
    /// rustup's name for it; `None` for this build's own.
    pub name: Option<String>,
    /// `1.95.0`
    pub version: String,
    pub cargo: OsString,
    pub rustc: OsString,
    pub sysroot: PathBuf,
    pub core: Core,
    /// The target in rustc's JSON, if the compiler's own description of it excludes the architecture.
    pub description: Option<String>,
}

impl Toolchain {
    /// The oldest PTX ISA version that it writes. From 1.97 on, rustc's architectures bring 7.0; one that it excludes does not.
    pub fn oldest_isa(&self) -> (u32, u32) {
        let lists_none_before_70 = self.description.is_none() && number(&self.version) >= (1, 97);
        if lists_none_before_70 { (7, 0) } else { (3, 2) }
    }
}

/// Where `core` for the GPU comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Core {
    /// `rust-src`: compiled along with the crate.
    Sources,
    /// A compiled `core` in the sysroot (rustup's target component).
    Compiled,
}

/// Why a compiler can't build the GPU crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// It could not be run.
    #[error("does not start ({0})")]
    NotStarted(String),
    /// It is older than `cuda_std` needs.
    #[error("is older than {}.{}", OLDEST.0, OLDEST.1)]
    TooOld,
    /// It has no NVPTX back end, or one that has dropped the architecture.
    #[error("does not compile for {0}")]
    NoArchitecture(String),
    /// It knows the architecture, but has no `core` to compile for the GPU.
    #[error("lacks the sources of `core`")]
    NoCore,
}

/// No compiler of this machine can build the GPU crate; [`Display`](fmt::Display) says what to install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoToolchain {
    /// Each compiler that was tried, this build's own first, and why it can't be used.
    pub tried: Vec<(String, Unusable)>,
    /// The command that installs what is missing.
    pub remedy: String,
}

impl fmt::Display for NoToolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, reason) in &self.tried {
            write!(f, "{name} {reason}; ")?;
        }
        f.write_str(&self.remedy)
    }
}

impl std::error::Error for NoToolchain {}

/// The programs to run.
pub(crate) struct Programs {
    pub cargo: OsString,
    pub rustc: OsString,
    pub rustup: OsString,
}

impl Programs {
    /// The programs of the build that runs this script.
    pub fn of_this_build() -> Self {
        let program = |variable, name: &str| env::var_os(variable).unwrap_or_else(|| name.into());
        Self { cargo: program("CARGO", "cargo"), rustc: program("RUSTC", "rustc"), rustup: "rustup".into() }
    }

    /// A toolchain that compiles for `arch`: this build's own if it can, else the oldest one of rustup's that lists the
    /// architecture, which is the nearest to what `cuda_std` is tested with, else the oldest that can be told of it.
    pub fn find(&self, arch: &str) -> Search {
        let mut search = Search { found: None, tried: Vec::new(), watch: Vec::new(), remedy: String::new() };
        let own = match probe(None, self.cargo.clone(), self.rustc.clone(), arch) {
            Ok(toolchain) => {
                search.take(toolchain);
                return search;
            }
            Err(failure) => failure,
        };
        let own_sysroot = own.sysroot.clone();
        search.note(own);

        let names = self.rustup_toolchains();
        let mut usable = Vec::new();
        let mut only_lacks_core = Vec::new();
        for name in names.iter().flatten() {
            let Ok(sysroot) = self.rustup_sysroot(name) else { continue };
            let program = |name| sysroot.join("bin").join(format!("{name}{}", env::consts::EXE_SUFFIX));
            let is_own = own_sysroot.as_ref() == Some(&sysroot);
            match probe(Some(name), program("cargo").into(), program("rustc").into(), arch) {
                Ok(toolchain) => usable.push(toolchain),
                Err(failure) => {
                    if failure.reason == Unusable::NoCore {
                        only_lacks_core.insert(if is_own { 0 } else { only_lacks_core.len() }, name);
                    }
                    if !is_own {
                        search.note(failure);
                    }
                }
            }
        }
        // rustup changes this folder when it installs a toolchain; to watch all of `toolchains` would take seconds.
        search
            .watch
            .extend(self.rustup_home().map(|home| home.join("update-hashes")).filter(|path| path.is_dir()));
        usable.sort_by_key(|toolchain| (toolchain.description.is_some(), number(&toolchain.version)));
        if let Some(toolchain) = usable.into_iter().next() {
            search.take(toolchain);
            return search;
        }
        search.remedy = match (only_lacks_core.first(), &names) {
            (Some(name), _) => format!("`rustup component add rust-src --toolchain {name}` installs them"),
            (None, Some(_)) => format!("`{INSTALL}` installs a compiler that does"),
            (None, None) => format!("install rustup from https://rustup.rs, then run `{INSTALL}`"),
        };
        search
    }

    /// The names of the toolchains that rustup has; `None` without rustup.
    fn rustup_toolchains(&self) -> Option<Vec<String>> {
        let list = stdout(Command::new(&self.rustup).args(["toolchain", "list"])).ok()?;
        // "1.95.0-x86_64-unknown-linux-gnu (active, default)"
        let name = |line: &str| line.split(" (").next().unwrap_or(line).trim().to_owned();
        Some(list.lines().filter(|line| !line.starts_with("no installed")).map(name).collect())
    }

    fn rustup_sysroot(&self, toolchain: &str) -> Result<PathBuf, String> {
        let mut rustc = Command::new(&self.rustup);
        stdout(rustc.args(["run", toolchain, "rustc", "--print", "sysroot"])).map(PathBuf::from)
    }

    fn rustup_home(&self) -> Option<PathBuf> {
        stdout(Command::new(&self.rustup).args(["show", "home"])).ok().map(PathBuf::from)
    }
}

/// The result of a search for a compiler.
pub(crate) struct Search {
    found: Option<Toolchain>,
    tried: Vec<(String, Unusable)>,
    remedy: String,
    /// Existing paths that change when the result may change.
    pub watch: Vec<PathBuf>,
}

impl Search {
    fn take(&mut self, toolchain: Toolchain) {
        self.watch.push(nearest_existing(&toolchain.sysroot.join(CORE_SOURCES)));
        self.found = Some(toolchain);
    }

    fn note(&mut self, failure: Failure) {
        if let (Some(sysroot), Unusable::NoCore) = (&failure.sysroot, &failure.reason) {
            self.watch.push(nearest_existing(&sysroot.join(CORE_SOURCES)));
        }
        self.tried.push((failure.description, failure.reason));
    }

    /// The toolchain, and why this build's own is not the one (if so), or why there is none.
    pub fn result(self) -> Result<(Toolchain, Option<String>), NoToolchain> {
        let Self { found, tried, remedy, .. } = self;
        let why = tried.first().map(|(name, reason)| format!("{name} {reason}"));
        found.map(|toolchain| (toolchain, why)).ok_or(NoToolchain { tried, remedy })
    }
}

/// A compiler that can't be used.
struct Failure {
    description: String,
    sysroot: Option<PathBuf>,
    reason: Unusable,
}

fn probe(name: Option<&str>, cargo: OsString, rustc: OsString, arch: &str) -> Result<Toolchain, Failure> {
    let mut description = match name {
        Some(name) => format!("toolchain {name}"),
        None => "rustc".to_owned(),
    };
    let ask = |arguments: &[&str]| stdout(Command::new(&rustc).args(arguments));
    let version = match ask(&["-vV"]) {
        Ok(text) => text.lines().find_map(|line| line.strip_prefix("release: ").map(str::to_owned)),
        Err(error) => {
            return Err(Failure { description, sysroot: None, reason: Unusable::NotStarted(error) });
        }
    };
    let version = version.unwrap_or_else(|| "of unknown version".to_owned());
    match name {
        Some(_) => description.push_str(&format!(" (rustc {version})")),
        None => description.push_str(&format!(" {version}")),
    }
    let sysroot = ask(&["--print", "sysroot"]).map(PathBuf::from);
    let fail = |reason| Failure { description: description.clone(), sysroot: sysroot.clone().ok(), reason };
    let sysroot = match &sysroot {
        Ok(path) => path.clone(),
        Err(error) => return Err(fail(Unusable::NotStarted(error.clone()))),
    };
    if number(&version) < OLDEST {
        return Err(fail(Unusable::TooOld));
    }
    let cpus = ask(&["--print", "target-cpus", "--target", TARGET]).unwrap_or_default();
    let description = if cpus.lines().any(|line| line.split_whitespace().next() == Some(arch)) {
        None
    } else {
        let described = target::describing(&rustc, arch);
        Some(described.ok_or_else(|| fail(Unusable::NoArchitecture(arch.to_owned())))?)
    };
    let core = find_core(&sysroot).ok_or_else(|| fail(Unusable::NoCore))?;
    if description.is_some() && core == Core::Compiled {
        return Err(fail(Unusable::NoCore)); // it is compiled for an architecture that the compiler lists
    }
    Ok(Toolchain { name: name.map(str::to_owned), version, cargo, rustc, sysroot, core, description })
}

fn find_core(sysroot: &Path) -> Option<Core> {
    // The standard library's manifest names `core`; without its sources cargo fails late, with an unrelated error.
    if sysroot.join(CORE_SOURCES).is_file() {
        return Some(Core::Sources);
    }
    let is_core = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with("libcore-");
    let compiled = fs::read_dir(sysroot.join("lib/rustlib").join(TARGET).join("lib"));
    compiled.is_ok_and(|entries| entries.flatten().any(is_core)).then_some(Core::Compiled)
}

/// `1.96.0-nightly` → (1, 96); zeros if it has another form.
fn number(version: &str) -> (u32, u32) {
    let mut parts = version.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// The path itself, or the nearest folder above it that exists: cargo treats a missing path as always changed, and a
/// folder as changed when something appears in it.
fn nearest_existing(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_path_buf()
}

/// A program's stdout, or why it has none.
fn stdout(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(text.lines().find(|line| !line.trim().is_empty()).unwrap_or("it failed without a message").to_owned())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// One test at a time: a script can't be started while another thread's child process still has it open for writing.
    static TURN: Mutex<()> = Mutex::new(());

    const SM_61: &str = "sm_60\n    sm_61  - This is the default\n    sm_70";
    const SM_70: &str = "    sm_70\n    sm_75";

    /// A simulated machine. Each compiler is a sysroot with a `bin/rustc`, a script that answers as a real one does.
    struct Machine {
        root: PathBuf,
        _turn: MutexGuard<'static, ()>,
    }

    impl Machine {
        fn new(test: &str) -> Self {
            let root = env::temp_dir().join(format!("cuda_builder-{}-{test}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            let machine = Self { root, _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner) };
            fs::create_dir_all(machine.root.join("home/update-hashes")).unwrap();
            machine
        }

        fn script(&self, path: &str, body: &str) -> OsString {
            let path = self.root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path.into()
        }

        fn compiler(&self, name: &str, version: &str, cpus: &str) -> OsString {
            let sysroot = self.root.join(name);
            fs::create_dir_all(sysroot.join("lib/rustlib/src")).unwrap();
            let body = format!(
                "case \"$*\" in\n-vV) echo 'rustc {version} (x)'; echo 'release: {version}';;\n\
                 '--print sysroot') echo '{0}';;\n*target-cpus*) echo '{cpus}';;\n\
                 *target-spec-json*) cat '{0}/spec.json' 2>/dev/null;;\n*) exit 1;;\nesac",
                sysroot.display()
            );
            self.script(&format!("{name}/bin/rustc"), &body)
        }

        fn add_core(&self, name: &str) {
            let path = self.root.join(name).join(CORE_SOURCES);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }

        /// A compiler that lists `sm_70` first, and says that it excludes `sm_61`.
        fn newer_compiler(&self, name: &str, version: &str) -> OsString {
            let path = self.compiler(name, version, SM_70);
            let spec = "{\"cpu\":\"sm_70\",\"unsupported-cpus\":[\"sm_60\",\"sm_61\"]}";
            fs::write(self.root.join(name).join("spec.json"), spec).unwrap();
            path
        }

        fn rustup(&self, names: &[&str]) -> OsString {
            let root = self.root.display();
            let list: String = names.iter().map(|name| format!("echo '{name} (active)';")).collect();
            let body = format!(
                "case \"$1 $2\" in\n'toolchain list') {list};;\n'show home') echo '{root}/home';;\n\
                 run*) test \"$3\" = rustc && shift 3 && exec '{root}/'\"$TOOLCHAIN\"/bin/rustc \"$@\";;\nesac"
            );
            self.script("rustup", &format!("TOOLCHAIN=\"$2\"\n{body}").replace(";;;", ";;"))
        }

        fn find(&self, rustc: OsString, rustup: OsString) -> Search {
            Programs { cargo: "own-cargo".into(), rustc, rustup }.find("sm_61")
        }

        fn no_rustup(&self) -> OsString {
            self.root.join("no-rustup").into()
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    #[test]
    fn a_compiler_that_can_is_taken_without_asking_for_others() {
        let machine = Machine::new("own");
        let own = machine.compiler("own", "1.95.0", SM_61);
        machine.add_core("own");
        let rustup = machine.script("rustup", "exit 9");
        let search = machine.find(own, rustup);
        assert_eq!(search.watch, [machine.root.join("own").join(CORE_SOURCES)]);
        let (toolchain, why) = search.result().unwrap();
        assert_eq!((toolchain.name, toolchain.core, why), (None, Core::Sources, None));
        assert_eq!(toolchain.cargo, "own-cargo");
    }

    #[test]
    fn a_newer_compiler_with_sources_is_passed_over_for_the_oldest_that_will_do() {
        let machine = Machine::new("newer");
        let own = machine.compiler("stable", "1.97.0-nightly", SM_70);
        for (name, version, cpus) in
            [("1.96.1", "1.96.1", SM_61), ("1.95.0", "1.95.0", SM_61), ("1.80", "1.80.0", SM_61)]
        {
            machine.compiler(name, version, cpus);
            machine.add_core(name);
        }
        machine.add_core("stable");
        let search = machine.find(own, machine.rustup(&["stable", "1.80", "1.96.1", "1.95.0"]));
        assert!(search.watch.contains(&machine.root.join("home/update-hashes")), "{:?}", search.watch);
        let (toolchain, why) = search.result().unwrap();
        assert_eq!(toolchain.name.as_deref(), Some("1.95.0"));
        assert_eq!(toolchain.rustc, machine.root.join("1.95.0/bin/rustc"));
        assert_eq!(toolchain.cargo, machine.root.join("1.95.0/bin/cargo"));
        assert_eq!(why.unwrap(), "rustc 1.97.0-nightly does not compile for sm_61");
    }

    #[test]
    fn a_compiler_that_excludes_the_architecture_is_told_of_it() {
        let machine = Machine::new("told");
        let own = machine.newer_compiler("stable", "1.99.1");
        let compiled = machine.root.join("stable/lib/rustlib").join(TARGET).join("lib");
        fs::create_dir_all(&compiled).unwrap();
        fs::write(compiled.join("libcore-1.rlib"), "").unwrap();
        let error = machine.find(own.clone(), machine.no_rustup()).result().unwrap_err();
        assert_eq!(error.tried[0].1, Unusable::NoCore, "a compiled core is for another architecture");

        machine.add_core("stable");
        let (toolchain, why) = machine.find(own, machine.no_rustup()).result().unwrap();
        assert_eq!((&toolchain.name, toolchain.core, why), (&None, Core::Sources, None));
        assert_eq!(toolchain.description.as_deref(), Some("{\"cpu\":\"sm_61\"}"));
        assert!(toolchain.oldest_isa() < (6, 4));
        assert_eq!(Toolchain { description: None, ..toolchain }.oldest_isa(), (7, 0));

        let without = machine.compiler("beta", "1.98.0", SM_70);
        machine.newer_compiler("1.97.0", "1.97.0");
        machine.compiler("1.96.0", "1.96.0", SM_61);
        for name in ["1.97.0", "1.96.0"] {
            machine.add_core(name);
        }
        let names =
            |names: &[&str]| machine.find(without.clone(), machine.rustup(names)).result().unwrap().0.name;
        assert_eq!(names(&["1.97.0", "1.96.0"]).as_deref(), Some("1.96.0"), "one that lists it comes first");
        assert_eq!(names(&["1.97.0"]).as_deref(), Some("1.97.0"));
    }

    #[test]
    fn a_toolchain_without_sources_is_named_and_watched() {
        let machine = Machine::new("sources");
        let own = machine.compiler("stable", "1.97.0", SM_70);
        machine.compiler("1.95.0", "1.95.0", SM_61);
        let search = machine.find(own.clone(), machine.rustup(&["stable", "1.95.0"]));
        let place = machine.root.join("1.95.0/lib/rustlib/src");
        assert!(search.watch.contains(&place), "{:?}", search.watch);
        let error = search.result().unwrap_err();
        assert_eq!(error.tried.len(), 2, "{error}");
        assert_eq!(error.tried[1].1, Unusable::NoCore);
        assert!(error.to_string().contains("`rustup component add rust-src --toolchain 1.95.0`"), "{error}");

        machine.add_core("1.95.0");
        let search = machine.find(own, machine.rustup(&["stable", "1.95.0"]));
        assert_eq!(search.result().unwrap().0.name.as_deref(), Some("1.95.0"));
    }

    #[test]
    fn the_command_for_missing_sources_is_that_of_this_builds_own_toolchain() {
        let machine = Machine::new("own-sources");
        let own = machine.compiler("stable", "1.95.0", SM_61);
        machine.compiler("1.96.0", "1.96.0", SM_61);
        let search = machine.find(own, machine.rustup(&["1.96.0", "stable"]));
        let error = search.result().unwrap_err();
        assert!(error.to_string().ends_with("--toolchain stable` installs them"), "{error}");
        assert_eq!(error.tried.len(), 2, "its own is listed once: {error}");
    }

    #[test]
    fn without_rustup_or_any_fitting_toolchain_the_error_says_what_to_install() {
        let machine = Machine::new("nothing");
        let own = machine.compiler("stable", "1.97.0", SM_70);
        let alone = machine.find(own.clone(), machine.no_rustup()).result().unwrap_err();
        assert_eq!(alone.tried, [("rustc 1.97.0".into(), Unusable::NoArchitecture("sm_61".into()))]);
        assert!(alone.to_string().contains("https://rustup.rs"), "{alone}");
        let others = machine.find(own, machine.rustup(&["stable"])).result().unwrap_err();
        assert!(
            others.to_string().contains(INSTALL) && !others.to_string().contains("rustup.rs"),
            "{others}"
        );
        let none = machine.find(machine.no_rustup(), machine.no_rustup()).result().unwrap_err();
        assert!(matches!(none.tried[0].1, Unusable::NotStarted(_)), "{none}");
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(number("1.100.0") > number("1.97.0-nightly"));
        assert_eq!(number("unknown"), (0, 0));
    }
}
