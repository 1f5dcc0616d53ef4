//! Random calls of ops on the CPU and on the virtual GPU, in this process and in order:
//!
//! ```text
//! cargo run --release -p pascaline-fuzz --example differential -- CALLS [FIRST]
//! ```
//!
//! Call number n is the same in every run. Each difference is printed with its number, and the program ends with 1. Calls are
//! independent, so that several processes search several ranges at once.

use pascaline_fuzz::ops::{difference, random, verdict};
use std::collections::BTreeMap;
use std::time::Instant;

fn main() {
    let mut numbers =
        std::env::args().skip(1).map(|text| text.parse::<u64>().expect("CALLS and FIRST are numbers"));
    let (calls, first) = (numbers.next().unwrap_or(10_000), numbers.next().unwrap_or(0));
    let begin = Instant::now();
    let mut accepted = BTreeMap::<&str, [u64; 2]>::new();
    let mut differences = 0;
    for number in first..first + calls {
        let choices = random(number);
        if let Some(text) = difference(&choices) {
            println!("call {number}: {text}");
            differences += 1;
            if differences == 50 {
                break;
            }
        }
        if number % 100 == 0 {
            let (name, is_ok) = verdict(&choices);
            accepted.entry(name).or_default()[usize::from(is_ok)] += 1;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("{calls} calls from {first}, {differences} differences, {:.0} a second", calls as f64 / seconds);
    for (name, [refused, accepted]) in accepted {
        println!("{name:32} {accepted:8} accepted, {refused:8} refused of those counted");
    }
    std::process::exit(i32::from(differences > 0));
}
