//! Writes pictures of coloured shapes and their captions: `shapes DIR [COUNT] [SEED]`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize, usual: u64| arguments.get(at).map_or(Some(usual), |text| text.parse().ok());
    let (Some(dir), Some(count), Some(seed)) = (arguments.get(1), number(2, 200), number(3, 0)) else {
        eprintln!("usage: shapes DIR [COUNT] [SEED]");
        return ExitCode::from(2);
    };
    let made = std::fs::create_dir_all(dir).map_err(|error| error.to_string());
    let written = made.and_then(|()| {
        pascaline_train::shapes::write(Path::new(dir), count as usize, seed)
            .map_err(|error| error.to_string())
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{dir}: {reason}");
            ExitCode::FAILURE
        }
    }
}
