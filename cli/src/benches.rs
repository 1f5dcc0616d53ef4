//! `pascaline bench`: which of the benchmarks runs.

use super::bench::{self, Args};
use super::failure::Failure;
use super::model::LoadArgs;
use super::{bench_memory, bench_model, bench_serve};

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if args.memory {
        return bench_memory::run(args);
    }
    if let Some(url) = &args.serve {
        let &[tokens] = args.tokens.as_slice() else {
            return Err(Failure::Usage("--serve takes one number of --tokens".to_owned()));
        };
        return bench_serve::run(args, url, tokens);
    }
    if let Some(model) = &args.of_model.model {
        return bench_model::run(args, model);
    }
    if args.of_model.load != LoadArgs::default() {
        return Err(Failure::Usage(
            "--devices, --dtype and the other options for loading a model go with --model".to_owned(),
        ));
    }
    bench::run(args)
}
