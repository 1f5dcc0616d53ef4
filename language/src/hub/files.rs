//! The files of a repository that loading needs.

use crate::checkpoint::SMALL_FILES;

/// The list of tensors of a model in several files.
const INDEX: &str = "model.safetensors.index.json";
/// The types to choose from if none is given: the first one that the repository has.
const USUAL_TYPES: [&str; 3] = ["Q4_K_M", "Q8_0", "Q4_0"];
/// The types of a vision file in the order in which they are preferred.
const VISION_TYPES: [&str; 4] = ["F16", "BF16", "Q8_0", "F32"];

pub(super) fn is_gguf(name: &str) -> bool {
    name.to_lowercase().ends_with(".gguf")
}

/// Whether loading reads the file as text and not as weights.
pub(super) fn is_small(name: &str) -> bool {
    SMALL_FILES.contains(&name) || name == INDEX
}

/// A GGUF file's name without folder, ending and part number, in lower case.
fn stem(name: &str) -> String {
    let name = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    let name = name.strip_suffix(".gguf").unwrap_or(&name);
    match part(name) {
        Some(_) => name[..name.len() - "-00001-of-00002".len()].to_owned(),
        None => name.to_owned(),
    }
}

/// The number of a split file's part, from 1, of a name without its ending.
fn part(name: &str) -> Option<u32> {
    let (head, count) = name.rsplit_once("-of-")?;
    let (_, number) = head.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.chars().all(|c| c.is_ascii_digit());
    if digits(number) && digits(count) { number.parse().ok() } else { None }
}

fn has_type(stem: &str, kind: &str) -> bool {
    let kind = kind.to_lowercase();
    stem.strip_suffix(&kind).is_some_and(|rest| rest.ends_with(['-', '.', '_']))
}

/// The files of a repository that loading needs, the model's first.
pub(super) fn choose<'a>(names: &[&'a str], kind: Option<&str>) -> std::result::Result<Vec<&'a str>, String> {
    let all: Vec<&str> = names.iter().copied().filter(|name| is_gguf(name)).collect();
    let (vision, text): (Vec<&str>, Vec<&str>) =
        all.into_iter().partition(|name| stem(name).contains("mmproj"));
    let weights = |name: &str| {
        let shard = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
        name == "model.safetensors" || shard.is_some_and(|shard| part(&format!("-{shard}")).is_some())
    };
    if kind.is_none() && names.iter().any(|name| weights(name) || *name == INDEX) {
        let wanted = |name: &&str| is_small(name) || weights(name);
        return Ok(names.iter().copied().filter(wanted).collect());
    }
    if text.is_empty() {
        return Err("it has neither safetensors nor GGUF files".to_owned());
    }
    let with = |files: &[&'a str], kind: &str| -> Option<Vec<&'a str>> {
        // `X-Q4_K_M` rather than `X-UD-Q4_K_M`
        let model = files
            .iter()
            .map(|name| stem(name))
            .filter(|stem| has_type(stem, kind))
            .min_by_key(String::len)?;
        let mut parts: Vec<&str> = files.iter().copied().filter(|name| stem(name) == model).collect();
        parts.sort_unstable();
        Some(parts)
    };
    let mut files = match kind {
        Some(kind) => with(&text, kind),
        None => USUAL_TYPES.iter().find_map(|kind| with(&text, kind)).or_else(|| match &text[..] {
            [only] => Some(vec![*only]),
            _ => None,
        }),
    }
    .ok_or_else(|| {
        let wanted = kind.map_or_else(|| USUAL_TYPES.join(", "), str::to_owned);
        format!("it has no {wanted}; it has {}", text.join(", "))
    })?;
    let preferred = VISION_TYPES.iter().find_map(|kind| with(&vision, kind));
    files.extend(preferred.or_else(|| vision.first().map(|file| vec![*file])).into_iter().flatten());
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_of_gguf_files_gives_one_type_and_the_vision_file() {
        let names = [
            ".gitattributes",
            "README.md",
            "Qwen3VL-2B-Instruct-F16.gguf",
            "Qwen3VL-2B-Instruct-Q4_K_M.gguf",
            "Qwen3VL-2B-Instruct-UD-Q4_K_M.gguf",
            "Qwen3VL-2B-Instruct-Q8_0.gguf",
            "big/Qwen3VL-2B-Instruct-BF16-00001-of-00002.gguf",
            "big/Qwen3VL-2B-Instruct-BF16-00002-of-00002.gguf",
            "mmproj-Qwen3VL-2B-Instruct-F16.gguf",
            "mmproj-Qwen3VL-2B-Instruct-Q8_0.gguf",
        ];
        let vision = "mmproj-Qwen3VL-2B-Instruct-F16.gguf";
        assert_eq!(choose(&names, None).unwrap(), ["Qwen3VL-2B-Instruct-Q4_K_M.gguf", vision]);
        assert_eq!(choose(&names, Some("q8_0")).unwrap(), ["Qwen3VL-2B-Instruct-Q8_0.gguf", vision]);
        assert_eq!(
            choose(&names, Some("BF16")).unwrap(),
            [
                "big/Qwen3VL-2B-Instruct-BF16-00001-of-00002.gguf",
                "big/Qwen3VL-2B-Instruct-BF16-00002-of-00002.gguf",
                vision
            ]
        );
        let error = choose(&names, Some("Q5_K_M")).unwrap_err();
        assert!(error.starts_with("it has no Q5_K_M; it has Qwen3VL-2B-Instruct-F16.gguf, "), "{error}");
        assert!(choose(&["README.md"], None).unwrap_err().contains("neither"));
        assert_eq!(choose(&["x.gguf"], None).unwrap(), ["x.gguf"]);
    }

    #[test]
    fn a_repository_of_safetensors_gives_what_loading_reads() {
        let names = [
            "README.md",
            "chat_template.json",
            "config.json",
            "merges.txt",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "training_args.bin",
            "vocab.json",
        ];
        let wanted = [names[1], names[2], names[4], names[5], names[6], names[7]];
        assert_eq!(choose(&names, None).unwrap(), wanted);
    }
}
