//! A `tokenizer.json` with parts that the models' tokenizer does not have: each is refused by its name.

use pascaline::{Error, Result};
use qwen3_vl::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl/tiny")
}

/// The checkpoint's tokenizer with a change.
fn changed(change: impl FnOnce(&mut Value)) -> Result<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    let mut root = serde_json::from_slice(&fs::read(tiny().join("tokenizer.json")).unwrap()).unwrap();
    change(&mut root);
    fs::write(folder.path().join("tokenizer.json"), root.to_string()).unwrap();
    let begun = Instant::now();
    let loaded = Tokenizer::load(folder.path(), &qwen3_vl::config::load(&tiny()).unwrap());
    assert!(begun.elapsed() < Duration::from_secs(5), "it takes {:?}", begun.elapsed());
    loaded
}

/// The part at fault and what is wrong with it.
fn refused(change: impl FnOnce(&mut Value)) -> (String, String) {
    match changed(change) {
        Err(Error::Checkpoint { item, reason, .. }) => (item.unwrap_or_default(), reason),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it is accepted"),
    }
}

#[test]
fn parts_that_the_models_have_are_read() {
    let tokens = |tokenizer: Tokenizer| tokenizer.encode("Grüße, 3 wórds<|im_end|>\n").unwrap();
    let published = tokens(changed(|_| ()).unwrap());
    assert_eq!(
        published,
        tokens(Tokenizer::load(&tiny(), &qwen3_vl::config::load(&tiny()).unwrap()).unwrap())
    );
    let same = [
        ("/normalizer", json!({"type": "NFC"})),
        ("/model/continuing_subword_prefix", json!("")),
        ("/model/end_of_word_suffix", json!("")),
        (
            "/post_processor",
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}),
        ),
    ];
    for (at, value) in same {
        let found = changed(|root| *root.pointer_mut(at).unwrap() = value.clone());
        assert_eq!(tokens(found.unwrap()), published, "{at}");
    }
    // merges as pairs, the newer spelling
    let found = changed(|root| {
        for merge in root["model"]["merges"].as_array_mut().unwrap() {
            if let Some((a, b)) = merge.as_str().and_then(|merge| merge.split_once(' ')) {
                *merge = json!([a, b]);
            }
        }
    });
    assert_eq!(tokens(found.unwrap()), published);
}

#[test]
fn parts_that_the_models_do_not_have_are_refused_by_name() {
    let truncation = json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 4});
    let padding = json!({"strategy": {"Fixed": 1_000_000_000_000u64}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "x"});
    let fixed_zero = json!({"strategy": {"Fixed": 0}, "direction": "Left", "pad_to_multiple_of": 0, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "x"});
    let template = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "?", "type_id": 0}}],
        "pair": [], "special_tokens": {}});
    let split = |pattern: Value| {
        json!({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": pattern, "behavior": "Isolated",
            "invert": false}, {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})
    };
    for (at, value, item, part) in [
        ("/truncation", truncation, "truncation", "set it to null"),
        ("/padding", padding, "padding", "set it to null"),
        ("/padding", fixed_zero, "padding", "set it to null"),
        (
            "/normalizer",
            json!({"type": "Replace", "pattern": {"String": ""}, "content": "a"}),
            "normalizer.type",
            "Replace",
        ),
        (
            "/normalizer",
            json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
            "normalizer.type",
            "Precompiled",
        ),
        ("/normalizer", json!({"type": "Sequence", "normalizers": []}), "normalizer.type", "Sequence"),
        ("/normalizer", json!({"type": "NFC", "more": 1}), "normalizer.more", "not supported"),
        ("/normalizer", json!([]), "normalizer", "not an object"),
        ("/post_processor", template, "post_processor.type", "TemplateProcessing"),
        ("/decoder", json!(null), "decoder", "missing"),
        (
            "/decoder",
            json!({"type": "WordPiece", "prefix": "", "cleanup": true}),
            "decoder.type",
            "WordPiece",
        ),
        ("/pre_tokenizer", json!(null), "pre_tokenizer", "missing"),
        ("/pre_tokenizer", json!({"type": "Metaspace"}), "pre_tokenizer.type", "Metaspace"),
        (
            "/pre_tokenizer",
            split(json!({"Regex": "(a*)*b"})),
            "pre_tokenizer.pretokenizers[0].pattern",
            "published",
        ),
        (
            "/pre_tokenizer",
            split(json!({"String": ""})),
            "pre_tokenizer.pretokenizers[0].pattern",
            "published",
        ),
        (
            "/pre_tokenizer",
            json!({"type": "Sequence", "pretokenizers": []}),
            "pre_tokenizer.pretokenizers",
            "Split",
        ),
        ("/model/type", json!("Unigram"), "model.type", "Unigram"),
        ("/model/continuing_subword_prefix", json!("##"), "model.continuing_subword_prefix", "##"),
        ("/model/end_of_word_suffix", json!("</w>"), "model.end_of_word_suffix", "</w>"),
        ("/model/dropout", json!(0.5), "model.dropout", "0.5"),
        ("/model/unk_token", json!("?"), "model.unk_token", "?"),
        ("/model/byte_fallback", json!(true), "model.byte_fallback", "true"),
        ("/model/vocab", json!({"a": 4_000_000_000u64}), "model.vocab", "outside the model's vocabulary"),
        ("/model/vocab", json!({"a": -1}), "model.vocab", "outside the model's vocabulary"),
        ("/model/vocab", json!({}), "model.merges", "of a vocabulary of 0"),
        ("/model/merges/0", json!("a b c"), "model.merges", "no pair"),
        ("/model/merges/0", json!(["a"]), "model.merges", "no pair"),
        ("/model/merges/0", json!(7), "model.merges", "no pair"),
        ("/model/merges/0", json!("neither nor"), "", "not a tokenizer"),
        ("/added_tokens/0/content", json!(""), "added_tokens.content", "1 to 256"),
        ("/added_tokens/0/content", json!("x".repeat(32 << 10)), "added_tokens.content", "1 to 256"),
        ("/added_tokens/0/id", json!(4_000_000_000u64), "added_tokens.id", "outside the model's vocabulary"),
        ("/added_tokens/0/single_word", json!(1), "added_tokens.single_word", "true or false"),
        ("/added_tokens", json!({}), "added_tokens", "not a list"),
        ("/added_tokens", json!([]), "added_tokens", "image_token_id 398 is not there"),
    ] {
        let found = refused(|root| *root.pointer_mut(at).unwrap() = value.clone());
        assert_eq!(found.0, item, "{at} = {value:.100}: {}", found.1);
        assert!(found.1.contains(part), "{at}: {}", found.1);
    }
    let more = refused(|root| root["extra"] = json!({}));
    assert_eq!((more.0.as_str(), more.1.contains("not supported")), ("extra", true), "{}", more.1);
    let many = |root: &mut Value| {
        let token = |i: usize| json!({"id": i, "content": format!("{i}{}", "x".repeat(250))});
        root["added_tokens"] = (0..100).map(token).collect();
    };
    assert!(refused(many).1.contains("all together"));
}

/// As many added tokens, and as many merges, as there may be.
#[test]
fn limits_are_inclusive() {
    let added = |root: &mut Value, all: usize| {
        root["model"]["merges"] = json!([]);
        let Value::Object(root) = root else { unreachable!("a file with parts") };
        let mut vocab = root["model"]["vocab"].take();
        let ordinary = vocab.as_object_mut().unwrap();
        ordinary.retain(|_, id| !(256..320).contains(&id.as_u64().unwrap()));
        let tokens = root["added_tokens"].as_array_mut().unwrap();
        let mut left =
            all - tokens.iter().map(|token| token["content"].as_str().unwrap().len()).sum::<usize>();
        for id in 256.. {
            let len = left.min(256);
            let content = format!("{id}{}", "x".repeat(len - 3));
            ordinary.insert(content.clone(), json!(id));
            tokens.push(
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": false}),
            );
            left -= len;
            if left == 0 {
                break;
            }
        }
        root["model"]["vocab"] = vocab;
    };
    changed(|root| added(root, 16 << 10)).unwrap();
    assert!(refused(|root| added(root, (16 << 10) + 1)).1.contains("all together up to 16384"));
    let merges = |root: &mut Value, more: usize| {
        let count = root["model"]["vocab"].as_object().unwrap().len() + more;
        let merges = root["model"]["merges"].as_array_mut().unwrap();
        merges.resize(count, merges[0].clone());
    };
    changed(|root| merges(root, 0)).unwrap();
    assert_eq!(refused(|root| merges(root, 1)).0, "model.merges");
}

/// Long words and texts take time in proportion to their length. In proportion to its square these would take many minutes.
#[test]
fn long_texts_are_encoded_in_time() {
    let tokenizer = changed(|_| ()).unwrap();
    for piece in ["a", "ab", " ", "\n", "1", "é", "<|im_end|>", "<|im", "'s"] {
        let begun = Instant::now();
        let text = piece.repeat((1 << 18) / piece.len());
        let ids = tokenizer.encode(&text).unwrap();
        assert_eq!(
            tokenizer.decode(&ids).len() + 10 * ids.iter().filter(|&&id| id == 394).count(),
            text.len()
        );
        assert!(begun.elapsed() < Duration::from_secs(60), "{piece:?} takes {:?}", begun.elapsed());
    }
}

/// Tokenised text is bounded by the context, wherever it comes from.
#[test]
fn texts_longer_than_any_prompt_are_refused() {
    let tokenizer = Tokenizer::load(&tiny(), &qwen3_vl::config::load(&tiny()).unwrap()).unwrap();
    let most = qwen3_vl::chat::most_bytes(4096);
    assert_eq!(
        (most, qwen3_vl::chat::most_bytes(262_144), qwen3_vl::chat::most_bytes(1 << 24)),
        (1 << 20, 4 << 20, 16 << 20)
    );
    let text = "a ".repeat(most / 2);
    assert!(!tokenizer.encode(&text).unwrap().is_empty());
    for refused in [tokenizer.encode(&format!("{text}a")), tokenizer.encode_ordinary(&format!("{text}a"))] {
        match refused {
            Err(Error::Prompt { reason }) => assert!(reason.contains("at most 1048576"), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    let processor = qwen3_vl::processor(tiny()).unwrap();
    let long = [qwen3_vl::chat::Message::user(0, "a ".repeat(most))];
    match processor.prepare(&long, &[]) {
        Err(Error::Prompt { reason }) => assert!(reason.contains("2097152 bytes"), "{reason}"),
        other => panic!("{other:?}"),
    }
}
