use std::process::ExitCode;

fn main() -> ExitCode {
    pascaline::cli::main()
}
