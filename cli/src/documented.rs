//! The commands of the documents are ones that the program takes: each `$ pascaline …`, and what follows `cargo run … --`.

use super::Cli;
use clap::Parser;
use std::fs;
use std::path::{Path, PathBuf};

/// The Markdown files of the repository, without those of the example's and fixtures' own.
fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        let name = entry.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if entry.is_dir() && !matches!(name, "target" | "fixtures" | "node_modules") && !name.starts_with('.')
        {
            documents(&entry, found);
        } else if name.ends_with(".md") {
            found.push(entry);
        }
    }
}

/// The arguments of the commands in a document's blocks, the program's name first.
fn commands(text: &str) -> Vec<Vec<String>> {
    let text = text.replace("\\\n", " ");
    let (mut found, mut is_elsewhere) = (Vec::new(), false);
    for line in text.lines().map(str::trim_start) {
        // a block that enters a folder is about that folder's program
        is_elsewhere = !line.starts_with("```") && (is_elsewhere || line.starts_with("$ cd "));
        if !is_elsewhere {
            found.extend(line.strip_prefix("$ ").and_then(arguments));
        }
    }
    found
}

/// The arguments of the first command of a line that starts the program.
fn arguments(line: &str) -> Option<Vec<String>> {
    let mut words = words(line);
    words.retain(|word| !word.is_empty());
    let assigns = |word: &String| word.split_once('=').is_some_and(|(name, _)| !name.contains(['-', '/']));
    let start = words.iter().position(|word| !assigns(word))?;
    let words = &words[start..];
    let first = match words.first()?.as_str() {
        "pascaline" | "target/release/pascaline" => 1,
        "cargo"
            if words.get(1)? == "run"
                && !words.iter().any(|word| matches!(word.as_str(), "--manifest-path" | "--example")) =>
        {
            words.iter().position(|word| word == "--").map_or(words.len(), |at| at + 1)
        }
        _ => return None,
    };
    Some(std::iter::once("pascaline".to_owned()).chain(words[first..].iter().cloned()).collect())
}

/// Words of a shell's line up to a comment, a pipe or a redirection; quotes are taken off.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            (None, '#') if word.is_empty() => break,
            (None, '>') if word.bytes().all(|digit| digit.is_ascii_digit()) => {
                word.clear(); // a file's number
                break;
            }
            (None, '|' | '>' | ';' | '&') => break,
            (None, ' ') => words.push(std::mem::take(&mut word)),
            _ => word.push(letter),
        }
    }
    words.push(word);
    words
}

#[test]
fn the_documents_commands_are_taken() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let mut files = Vec::new();
    documents(root, &mut files);
    let (mut found, mut wrong) = (0, Vec::new());
    for file in files {
        // what it says of the past may name options that are gone
        if file.ends_with("CHANGELOG.md") {
            continue;
        }
        for command in commands(&fs::read_to_string(&file).expect("text")) {
            found += 1;
            if let Err(error) = Cli::try_parse_from(&command)
                && error.exit_code() != 0
            {
                wrong.push(format!("{}: {}\n{error}", file.display(), command.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(found > 25, "{found} commands");
}

#[test]
fn commands_are_found_in_lines() {
    let found = commands(
        "$ A=1 pascaline fit \"a b\" \\\n  --json   # all\n$ cargo run --release -- bench | less\n$ cargo test\npascaline\n",
    );
    assert_eq!(found, [vec!["pascaline", "fit", "a b", "--json"], vec!["pascaline", "bench"]]);
}
