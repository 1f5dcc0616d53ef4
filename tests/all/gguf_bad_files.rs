//! Every fault of a GGUF file gives one error that names the file and the key or tensor.

use half::f16;
use pascaline::{DType, Device, Error};
use qwen3_vl::gguf::{Array, Container, Gguf, Value};
use qwen3_vl::{Checkpoint, LoadOptions, Pictures, Qwen3Vl, pictures};
use std::fs;
use std::path::{Path, PathBuf};

const TOKENS: &str = "tokenizer.ggml.tokens";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl-gguf")
}

/// The parts of a file. Values and entries of tensors are the bytes after their names.
#[derive(Clone)]
struct Parts {
    keys: Vec<(Vec<u8>, Vec<u8>)>,
    tensors: Vec<(Vec<u8>, Vec<u8>)>,
    data: Vec<u8>,
    /// The whole file instead of the parts, if it is set.
    raw: Option<Vec<u8>>,
}

/// Bytes and how far they have been read.
struct Cursor<'a>(&'a [u8], usize);

impl Cursor<'_> {
    fn take(&mut self, count: usize) -> &[u8] {
        self.1 += count;
        &self.0[self.1 - count..self.1]
    }

    fn u32(&mut self) -> usize {
        u32::from_le_bytes(self.take(4).try_into().unwrap()) as usize
    }

    fn u64(&mut self) -> usize {
        u64::from_le_bytes(self.take(8).try_into().unwrap()) as usize
    }

    fn string(&mut self) -> Vec<u8> {
        let len = self.u64();
        self.take(len).to_vec()
    }

    fn skip(&mut self, kind: usize) {
        match kind {
            0 | 1 | 7 => drop(self.take(1)),
            2 | 3 => drop(self.take(2)),
            4..=6 => drop(self.take(4)),
            8 => drop(self.string()),
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                (0..count).for_each(|_| self.skip(kind));
            }
            _ => drop(self.take(8)),
        }
    }
}

impl Parts {
    fn read(name: &str) -> Self {
        let bytes = fs::read(fixtures().join(name)).unwrap();
        let mut cursor = Cursor(&bytes, 8);
        let (tensors, keys) = (cursor.u64(), cursor.u64());
        let keys = (0..keys).map(|_| {
            let (key, from) = (cursor.string(), cursor.1);
            let kind = cursor.u32();
            cursor.skip(kind);
            (key, bytes[from..cursor.1].to_vec())
        });
        let keys = keys.collect();
        let tensors = (0..tensors).map(|_| {
            let (name, from) = (cursor.string(), cursor.1);
            let rank = cursor.u32();
            cursor.take(8 * rank + 4 + 8);
            (name, bytes[from..cursor.1].to_vec())
        });
        let tensors = tensors.collect();
        Self { keys, tensors, data: bytes[cursor.1.next_multiple_of(32)..].to_vec(), raw: None }
    }

    /// The header, counts that are larger by `more` included.
    fn header(&self, more: [u64; 2]) -> Vec<u8> {
        let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes()].concat();
        for (count, more) in [self.tensors.len(), self.keys.len()].into_iter().zip(more) {
            bytes.extend((count as u64).wrapping_add(more).to_le_bytes());
        }
        for (name, rest) in self.keys.iter().chain(&self.tensors) {
            bytes.extend((name.len() as u64).to_le_bytes());
            bytes.extend(name.iter().chain(rest));
        }
        bytes
    }

    fn file(&self) -> Vec<u8> {
        let mut bytes = self.header([0; 2]);
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&self.data);
        bytes
    }

    fn key(&mut self, key: &str) -> &mut Vec<u8> {
        &mut self.keys.iter_mut().find(|(name, _)| name == key.as_bytes()).expect(key).1
    }

    fn set(&mut self, key: &str, value: Vec<u8>) {
        match self.keys.iter_mut().find(|(name, _)| name == key.as_bytes()) {
            Some((_, old)) => *old = value,
            None => self.keys.push((key.into(), value)),
        }
    }

    fn remove(&mut self, key: &str) {
        self.keys.retain(|(name, _)| name != key.as_bytes());
    }

    /// A tensor's entry: rank, dimensions, type, offset.
    fn tensor(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self.tensors.iter_mut().find(|(found, _)| found == name.as_bytes()).expect(name).1
    }

    fn offset(&mut self, name: &str) -> u64 {
        let entry = self.tensor(name);
        u64::from_le_bytes(entry[entry.len() - 8..].try_into().unwrap())
    }

    fn set_offset(&mut self, name: &str, offset: u64) {
        let entry = self.tensor(name);
        let at = entry.len() - 8;
        entry[at..].copy_from_slice(&offset.to_le_bytes());
    }

    fn set_dims(&mut self, name: &str, dims: &[u64]) {
        let entry = self.tensor(name);
        let tail = entry[entry.len() - 12..].to_vec();
        *entry = (dims.len() as u32).to_le_bytes().to_vec();
        entry.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        entry.extend(tail);
    }

    fn set_type(&mut self, name: &str, id: u32) {
        let entry = self.tensor(name);
        let at = entry.len() - 12;
        entry[at..at + 4].copy_from_slice(&id.to_le_bytes());
    }
}

/// A file's beginning with these counts of tensors and keys, and zeros after it.
fn beginning(counts: [u64; 2], zeros: usize) -> Vec<u8> {
    let counts = counts.map(u64::to_le_bytes).concat();
    [&b"GGUF"[..], &3u32.to_le_bytes(), &counts, &vec![0; zeros]].concat()
}

fn one_key(value: &[u8]) -> Vec<u8> {
    [&1u64.to_le_bytes()[..], b"k", value].concat()
}

fn value(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), bytes].concat()
}

fn u32_value(number: u32) -> Vec<u8> {
    value(4, &number.to_le_bytes())
}

fn f32_value(number: f32) -> Vec<u8> {
    value(6, &number.to_le_bytes())
}

fn string_value(text: &[u8]) -> Vec<u8> {
    [&8u32.to_le_bytes()[..], &(text.len() as u64).to_le_bytes(), text].concat()
}

fn array(kind: u32, count: u64, values: &[u8]) -> Vec<u8> {
    [&9u32.to_le_bytes()[..], &kind.to_le_bytes(), &count.to_le_bytes(), values].concat()
}

fn strings(texts: &[&str]) -> Vec<u8> {
    let one = |text: &&str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    array(8, texts.len() as u64, &texts.iter().flat_map(one).collect::<Vec<_>>())
}

/// A change to a file, and its error: the key or tensor, and a part of the reason.
struct Fault {
    change: Box<dyn Fn(&mut Parts)>,
    item: Option<&'static str>,
    reason: &'static str,
}

impl Fault {
    /// The error names something else than what is changed.
    fn at(self, item: &'static str) -> Self {
        Self { item: Some(item), ..self }
    }
}

fn fault(item: Option<&'static str>, reason: &'static str, change: impl Fn(&mut Parts) + 'static) -> Fault {
    Fault { change: Box::new(change), item, reason }
}

/// These bytes instead of the file.
fn raw(reason: &'static str, file: impl Fn(&Parts) -> Vec<u8> + 'static) -> Fault {
    fault(None, reason, move |parts| parts.raw = Some(file(parts)))
}

/// Another value of a key.
fn set(key: &'static str, value: Vec<u8>, reason: &'static str) -> Fault {
    fault(Some(key), reason, move |parts| parts.set(key, value.clone()))
}

fn missing(key: &'static str) -> Fault {
    fault(Some(key), "missing", move |parts| parts.remove(key))
}

/// Other dimensions, another type, another place of a tensor.
fn dims(tensor: &'static str, dims: &'static [u64], reason: &'static str) -> Fault {
    fault(Some(tensor), reason, move |parts| parts.set_dims(tensor, dims))
}

fn of_type(tensor: &'static str, id: u32, reason: &'static str) -> Fault {
    fault(Some(tensor), reason, move |parts| parts.set_type(tensor, id))
}

fn placed(tensor: &'static str, offset: u64, reason: &'static str) -> Fault {
    fault(Some(tensor), reason, move |parts| parts.set_offset(tensor, offset))
}

/// Faults of the container, which is the same for every file; they are tried on a text file.
fn container_faults() -> Vec<Fault> {
    const NAME: &str = "general.name";
    const ALIGNMENT: &str = "general.alignment";
    const EMBEDDING: &str = "token_embd.weight";
    const NORM: &str = "output_norm.weight";
    const LAST: &str = "blk.3.ffn_up.weight";
    let begun = |begin: &'static [u8]| move |parts: &Parts| [begin, &parts.file()[begin.len()..]].concat();
    let string_of = |len: u64| [&8u32.to_le_bytes()[..], &len.to_le_bytes()].concat();
    vec![
        raw("truncated", |_| Vec::new()),
        raw("truncated", |parts| parts.file()[..23].to_vec()),
        raw("does not begin with GGUF", begun(b"GGML")),
        raw("Git LFS", |_| [&b"version https://git-lfs.github.com/spec/v1\n"[..], &[b'x'; 90]].concat()),
        raw("version 1", begun(b"GGUF\x01\0\0\0")),
        raw("version 4", begun(b"GGUF\x04\0\0\0")),
        raw("big-endian", begun(b"GGUF\0\0\0\x03")),
        // counts
        raw("tensors, of at most", |parts| parts.header([u64::MAX / 2, 0])),
        raw("keys, of at most", |parts| parts.header([0, u64::MAX / 2])),
        raw("keys, of at most", |parts| parts.header([0, 60_000])),
        raw("name is empty", |parts| [parts.header([1, 0]), vec![0; 2 << 20]].concat()),
        raw("truncated", |parts| parts.header([0, 0])).at(EMBEDDING),
        // 33 bytes are the least that a tensor takes, 14 that a key takes
        raw("tensors, of at most 100 in", |_| beginning([u64::MAX, 0], 3300 - 8)),
        raw("keys, of at most 100 in", |_| beginning([0, u64::MAX], 1400)),
        raw("missing", |_| beginning([0, 0], 0)).at("general.architecture"),
        raw("truncated: 60 bytes are to follow at 32, 50 do", |_| {
            [beginning([0, 1], 0), 60u64.to_le_bytes().to_vec(), vec![b'k'; 50]].concat()
        }),
        raw("a list of 3 values in 10 bytes", |_| {
            [beginning([0, 1], 0), one_key(&array(4, 3, &[0; 10]))].concat()
        })
        .at("k"),
        // strings
        raw("a string of 18446744073709551615 bytes", |parts| {
            let mut bytes = parts.file();
            bytes[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
            bytes
        }),
        fault(None, "a key is empty", |parts| parts.keys[0].0 = Vec::new()),
        fault(None, "not UTF-8", |parts| parts.keys[0].0 = vec![0xff]),
        fault(None, "a string of 2000 bytes", |parts| parts.keys[0].0 = vec![b'k'; 2000]),
        set(NAME, string_of(1 << 40), "a string of"),
        set(NAME, string_of(90_000_000), "truncated"),
        set(NAME, string_value(b"\xc3("), "not UTF-8"),
        // keys and values
        fault(Some("qwen3vl.block_count"), "comes twice", |parts| parts.keys.push(parts.keys[3].clone())),
        set(NAME, vec![13, 0, 0, 0], "no type of a value"),
        set(NAME, vec![7, 0, 0, 0, 2], "not a boolean"),
        set(NAME, array(13, 0, &[]), "no type of a list's values"),
        set(NAME, array(4, u64::MAX, &[]), "truncated: a list of"),
        set(NAME, array(8, 1 << 60, &[]), "truncated: a list of"),
        set(NAME, (0..2000).fold(array(4, 0, &[]), |list, _| array(9, 1, &list[4..])), "lists in lists"),
        set(
            NAME,
            (0..3).fold(array(9, 0, &[]), |list, _| array(9, 1, &list[4..])),
            "lists in lists, deeper than 3",
        ),
        set(NAME, array(0, 9_000_000, &vec![0; 9_000_000]), "more than 8388608 values"),
        set(ALIGNMENT, u32_value(0), "power of two"),
        set(ALIGNMENT, u32_value(48), "power of two"),
        set(ALIGNMENT, value(10, &(1u64 << 32).to_le_bytes()), "no power of two of 32 bits"),
        set(ALIGNMENT, string_value(b"32"), "is a string"),
        set(ALIGNMENT, u32_value(1 << 31), "multiple of the alignment").at(EMBEDDING),
        // tensors
        fault(Some(EMBEDDING), "comes twice", |parts| parts.tensors.push(parts.tensors[1].clone())),
        fault(None, "a tensor's name is empty", |parts| parts.tensors[1].0 = Vec::new()),
        dims(NORM, &[], "has 0 dimensions"),
        dims(NORM, &[1, 1, 1, 1, 256], "has 5 dimensions"),
        dims(NORM, &[256, 0], "has no values"),
        dims(NORM, &[1 << 32, 1 << 32], "truncated"),
        dims(NORM, &[1 << 40], "truncated"),
        dims(EMBEDDING, &[248, 512], "not whole blocks of Q6_K"),
        of_type(EMBEDDING, 4, "type number 4 is not supported"),
        of_type(EMBEDDING, u32::MAX, "is not supported"),
        placed(EMBEDDING, 1025, "multiple of the alignment"),
        placed(EMBEDDING, u64::MAX - 31, "a hole").at("blk.0.attn_k.weight"),
        placed(EMBEDDING, 992, "overlaps"),
        fault(Some(LAST), "a hole", |parts| parts.set_offset(LAST, parts.data.len() as u64)),
        fault(Some(LAST), "truncated", |parts| parts.data.truncate(parts.data.len() - 40)),
        fault(None, "64 bytes after the last tensor", |parts| parts.data.extend([0; 64])),
    ]
}

/// Faults of a text file.
fn text_faults() -> Vec<Fault> {
    const BLOCKS: &str = "qwen3vl.block_count";
    const SECTIONS: &str = "qwen3vl.rope.dimension_sections";
    const FREQ_BASE: &str = "qwen3vl.rope.freq_base";
    const MERGES: &str = "tokenizer.ggml.merges";
    const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
    let negative = [5u32.to_le_bytes(), (-4i32).to_le_bytes()].concat();
    vec![
        missing("general.architecture"),
        set("general.architecture", string_value(b"llama"), "\"llama\" is not supported"),
        fault(Some(BLOCKS), "a floating-point number, expected a whole number", |parts| {
            parts.key(BLOCKS)[0] = 6;
        }),
        set(BLOCKS, u32_value(0), "not between 1 and"),
        set(BLOCKS, u32_value(16_000_000), "the files only 122"), // 46 and 76
        set(BLOCKS, u32_value(5), "is not in the file").at("blk.4.attn_norm.weight"),
        set(BLOCKS, u32_value(3), "is not a tensor of this model").at("blk.3.attn_k.weight"),
        set(BLOCKS, negative, "expected a whole number that is not negative"),
        missing("qwen3vl.embedding_length"),
        set("qwen3vl.feed_forward_length", u32_value(768), "the metadata says [256, 768]")
            .at("blk.0.ffn_down.weight"),
        set("qwen3vl.attention.head_count_kv", u32_value(3), "does not divide"),
        set("qwen3vl.attention.value_length", u32_value(32), "is not the keys' 64"),
        set(SECTIONS, array(5, 3, &[0; 12]), "four numbers"),
        set(SECTIONS, array(5, 4, &[0; 16]), "does not sum"),
        set(FREQ_BASE, f32_value(f32::NAN), "not a positive number"),
        set(FREQ_BASE, f32_value(f32::INFINITY), "not a positive number"),
        set(FREQ_BASE, f32_value(0.0), "not a positive number"),
        set("qwen3vl.rope.scaling.type", string_value(b"yarn"), "\"yarn\" is not supported"),
        set("qwen3vl.n_deepstack_layers", u32_value(2), "is not the 3 of"),
        set("qwen3vl.vocab_size", u32_value(500), "has 496 rows"),
        // the tokenizer
        set(MERGES, strings(&["a b c"]), "is no pair of tokens"),
        set(MERGES, strings(&["a "]), "is no pair of tokens"),
        set("tokenizer.ggml.model", string_value(b"llama"), "\"llama\" is not supported"),
        set("tokenizer.ggml.pre", string_value(b"llama-bpe"), "is not supported"),
        set(TOKENS, strings(&["a", "b"]), "<|image_pad|> is not among them"),
        set(TOKENS, array(4, 0, &[]), "is a list of whole numbers, expected a list of strings"),
        // the first token becomes the second
        fault(Some(TOKENS), "comes twice", |parts| parts.key(TOKENS)[24] = b'"'),
        fault(Some(TOKENS), "has 497 tokens", |parts| {
            let value = parts.key(TOKENS);
            value[8..16].copy_from_slice(&497u64.to_le_bytes());
            value.extend([1, 0, 0, 0, 0, 0, 0, 0, b'~']);
        }),
        set(TOKEN_TYPE, array(5, 495, &[1; 495 * 4]), "has 495 values for 496 tokens"),
        fault(Some(TOKEN_TYPE), "token 0 is of kind 6", |parts| parts.key(TOKEN_TYPE)[16] = 6),
        set(MERGES, strings(&["a"]), "is no pair"),
        set(MERGES, strings(&["a nowhere"]), "not a tokenizer"),
        set(MERGES, strings(&["a b"; 497]), "497 of a vocabulary of 496"),
        set("tokenizer.ggml.eos_token_id", u32_value(496), "outside the vocabulary"),
        missing("tokenizer.chat_template"),
        set("tokenizer.chat_template", string_value(b"{% if %}"), "").at("chat_template"),
        // weights
        fault(Some("output.bias"), "is not a tensor of this model", |parts| {
            let mut entry = vec![1, 0, 0, 0];
            entry.extend(8u64.to_le_bytes().into_iter().chain([0; 4]));
            entry.extend((parts.data.len() as u64).to_le_bytes());
            parts.tensors.push((b"output.bias".to_vec(), entry));
            parts.data.extend([0; 32]);
        }),
        dims("blk.1.attn_q.weight", &[512, 128], "has shape [128, 512], the metadata says [256, 256]"),
        fault(Some("output_norm.weight"), "value 0 is inf", |parts| {
            let at = parts.offset("output_norm.weight") as usize;
            parts.data[at..at + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
        }),
        fault(Some("token_embd.weight"), "value 512", |parts| {
            let at = parts.offset("token_embd.weight") as usize + 2 * 210 + 208;
            parts.data[at..at + 2].copy_from_slice(&[0x01, 0x7e]); // a NaN
        }),
    ]
}

/// Faults of a vision file.
fn vision_faults() -> Vec<Fault> {
    const DEEPSTACK: &str = "clip.vision.is_deepstack_layers";
    const HEADS: &str = "clip.vision.attention.head_count";
    const MEAN: &str = "clip.vision.image_mean";
    const LEAST: &str = "clip.vision.image_min_pixels";
    vec![
        set("general.architecture", string_value(b"qwen3vl"), "only \"clip\""),
        set("clip.projector_type", string_value(b"qwen2vl_merger"), "only \"qwen3vl_merger\""),
        missing("clip.projector_type"),
        set("clip.vision.projection_dim", u32_value(128), "is not the text's 256"),
        set(DEEPSTACK, array(7, 3, &[1; 3]), "has 3 values"),
        set(DEEPSTACK, array(4, 1, &[1; 4]), "expected a list of booleans"),
        set("clip.vision.block_count", u32_value(3), "one for each of 3 blocks").at(DEEPSTACK),
        set(HEADS, u32_value(0), "not between 1 and"),
        set(HEADS, u32_value(3), "do not divide"),
        set("clip.vision.attention.layer_norm_epsilon", f32_value(1e-5), "is not supported"),
        set("clip.use_gelu", vec![7, 0, 0, 0, 0], "only true"),
        set("clip.vision.patch_size", u32_value(8), "is not 16 patches of 8").at("clip.vision.image_size"),
        set("clip.vision.spatial_merge_size", u32_value(200), "above 16"),
        set("clip.vision.image_std", array(6, 3, &[0; 12]), "not all positive"),
        set(MEAN, array(6, 2, &[0; 8]), "one number per channel"),
        set(MEAN, array(6, 3, &f32::NAN.to_le_bytes().repeat(3)), "one number per channel"),
        set(LEAST, u32_value(0), "between 1 and"),
        set("clip.vision.image_max_pixels", u32_value(100), "above the largest").at(LEAST),
        dims("v.position_embd.weight", &[64, 128, 2], "is not a square"),
        fault(Some("v.patch_embd.weight.1"), "is not in the file", |parts| {
            let frame = parts.tensors.iter_mut().find(|(name, _)| name == b"v.patch_embd.weight.1");
            frame.unwrap().0 = b"v.patch_embd.weight.2".to_vec();
        }),
    ]
}

/// Loads the pair of files.
fn load(text: &Path, vision: &Path) -> Result<(), Error> {
    let options = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(&Device::Cpu) };
    let checkpoint = Checkpoint::open(text, Some(vision))?;
    Qwen3Vl::load_checkpoint(&checkpoint, &Device::Cpu, options, |_| {}).map(drop)
}

fn check(faults: Vec<Fault>, source: &str, load: impl Fn(&Path) -> Result<(), Error>) {
    let folder = tempfile::tempdir().unwrap();
    let whole = Parts::read(source);
    for (number, Fault { change, item, reason }) in faults.iter().enumerate() {
        let mut parts = whole.clone();
        change(&mut parts);
        let bytes = parts.raw.take().unwrap_or_else(|| parts.file());
        let path = folder.path().join("fault.gguf");
        fs::write(&path, bytes).unwrap();
        let said = match load(&path) {
            Err(Error::Checkpoint { file, item, reason }) => (file, item, reason),
            other => panic!("fault {number} ({item:?}, {reason}): {other:?}"),
        };
        assert_eq!(said.0, path.display().to_string(), "fault {number}: {said:?}");
        assert_eq!(said.1.as_deref(), *item, "fault {number} ({reason}): {said:?}");
        assert!(said.2.contains(reason), "fault {number}: {reason} is not in {said:?}");
    }
}

#[test]
fn a_whole_file_is_taken_apart_and_put_together() {
    for name in ["model-Q4_K_M.gguf", "mmproj-F16.gguf"] {
        assert!(Parts::read(name).file() == fs::read(fixtures().join(name)).unwrap(), "{name}");
    }
}

/// Version 2 has the same layout, and a file may end without the last tensor's padding.
#[test]
fn valid_variants_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut parts = Parts::read("model-Q4_K_M.gguf");
    parts.remove("qwen3vl.n_deepstack_layers");
    parts.set("general.alignment", u32_value(32));
    parts.set("general.nested", array(9, 1, &array(8, 0, &[])[4..]));
    parts.set("general.sampling.temp", f32_value(0.5));
    parts.set("general.sampling.top_k", [5u32.to_le_bytes(), 20i32.to_le_bytes()].concat());
    let mut bytes = parts.file();
    bytes[4] = 2;
    fs::write(&path, bytes).unwrap();
    load(&path, &fixtures().join("mmproj-F16.gguf")).unwrap();
    let checkpoint = Checkpoint::open(&path, Some(&fixtures().join("mmproj-F16.gguf"))).unwrap();
    let generation = checkpoint.processor().unwrap().generation;
    assert_eq!((generation.do_sample, generation.temperature, generation.top_k), (true, Some(0.5), Some(20)));

    // what is left out, and what is exactly at a limit
    parts.remove("qwen3vl.attention.key_length");
    parts.set("general.sampling.temp", f32_value(0.0));
    fs::write(&path, parts.file()).unwrap();
    let mut vision = Parts::read("mmproj-F16.gguf");
    vision.set("clip.vision.image_min_pixels", u32_value(65_536));
    vision.set("clip.vision.image_max_pixels", u32_value(65_536));
    let vision_path = folder.path().join("mmproj.gguf");
    fs::write(&vision_path, vision.file()).unwrap();
    let checkpoint = Checkpoint::open(&path, Some(&vision_path)).unwrap();
    let processor = checkpoint.processor().unwrap();
    assert_eq!((processor.config.text.head_dim, processor.generation.do_sample), (64, false));
    let Pictures { images, videos, .. } = pictures(&processor).unwrap();
    let [images, videos] = [images, videos].map(|it| [it.min_pixels, it.max_pixels]);
    assert_eq!((images, videos), ([65_536; 2], [4096, 25_165_824])); // the published limits of videos
}

/// As many rows of the embedding, added tokens and merges as there may be.
#[test]
fn limits_are_inclusive() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let open = |parts: &Parts| -> Result<(), String> {
        fs::write(&path, parts.file()).unwrap();
        let checkpoint = Checkpoint::open(&path, Some(&fixtures().join("mmproj-F16.gguf")));
        let opened = checkpoint.and_then(|checkpoint| checkpoint.processor());
        opened.map(drop).map_err(|error| error.to_string())
    };
    let whole = Parts::read("model-Q4_K_M.gguf");

    let rows = |count: u64| {
        let mut parts = whole.clone();
        parts.tensors.retain(|(name, _)| name == b"token_embd.weight");
        parts.set_dims("token_embd.weight", &[1, count]);
        parts.set_type("token_embd.weight", 1);
        parts.set_offset("token_embd.weight", 0);
        parts.set("qwen3vl.vocab_size", u32_value(5));
        parts.data = vec![0; 2 * count as usize];
        open(&parts).unwrap_err()
    };
    assert!(
        rows(1 << 24).contains("qwen3vl.vocab_size: token_embd.weight has 16777216 rows"),
        "{}",
        rows(1 << 24)
    );
    assert!(rows((1 << 24) + 1).contains("has 16777217 rows, of at most 16777216"));

    // the 256 tokens of bytes, added ones of these lengths, and the control tokens at the end, of 105 bytes
    let tokens = |added: &[usize], merges: usize| {
        let Some(Value::Array(Array::String(mut tokens))) =
            Container::open(fixtures().join("model-Q4_K_M.gguf")).unwrap().metadata().get(TOKENS).cloned()
        else {
            panic!("the file has tokens")
        };
        let mut kinds = vec![1u32; tokens.len()];
        kinds[488..].fill(3);
        for (i, &len) in added.iter().enumerate() {
            tokens[256 + i] = format!("{i:03}{}", "x".repeat(len - 3));
            kinds[256 + i] = 4;
        }
        let mut parts = whole.clone();
        parts.set(TOKENS, strings(&tokens.iter().map(String::as_str).collect::<Vec<_>>()));
        let kinds: Vec<u8> = kinds.into_iter().flat_map(u32::to_le_bytes).collect();
        parts.set("tokenizer.ggml.token_type", array(4, 496, &kinds));
        parts.set("tokenizer.ggml.merges", strings(&vec!["r e"; merges]));
        open(&parts)
    };
    let mut added = vec![256; 64];
    added[63] = (16 << 10) - 63 * 256 - 105;
    assert_eq!(tokens(&added, 0), Ok(()));
    added[63] += 1;
    assert!(tokens(&added, 0).unwrap_err().contains("all together up to 16384"));
    assert!(tokens(&[257], 0).unwrap_err().contains("has 257 bytes"));
    assert_eq!(tokens(&[], 496), Ok(()));
    assert!(tokens(&[], 497).unwrap_err().contains("497 of a vocabulary of 496"));
}

/// Tensors larger than what is read at a time.
#[test]
fn large_tensors_are_read_in_pieces() {
    const VALUES: usize = (1 << 18) + 64;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.gguf");
    let file = |ty: u32, data: Vec<u8>| {
        let entry =
            [&1u32.to_le_bytes()[..], &(VALUES as u64).to_le_bytes(), &ty.to_le_bytes(), &[0; 8]].concat();
        let parts = Parts { keys: Vec::new(), tensors: vec![(b"w".to_vec(), entry)], data, raw: None };
        fs::write(&path, parts.file()).unwrap();
        Gguf::open(&path).unwrap()
    };
    let values: Vec<f32> = (0..VALUES).map(|i| (i % 2039) as f32).collect();
    let f32s = file(0, values.iter().flat_map(|value| value.to_le_bytes()).collect());
    assert!(f32s.read::<f32>("w").unwrap() == values);
    let halves: Vec<f16> = values.iter().map(|&value| f16::from_f32(value)).collect();
    let f16s = file(1, halves.iter().flat_map(|value| value.to_le_bytes()).collect());
    assert!(f16s.read::<half::f16>("w").unwrap() == halves && f16s.read::<f32>("w").unwrap() == values);
    // blocks of 32 values: a scale and a byte for each
    let block = |i: usize| [&f16::from_f32((i % 100) as f32).to_le_bytes()[..], &[i as u8; 32]].concat();
    let mut blocks: Vec<u8> = (0..VALUES / 32).flat_map(block).collect();
    let mut found = vec![0; blocks.len()];
    file(8, blocks.clone()).read_bytes("w", &mut found).unwrap();
    assert!(found == blocks);
    let bad = VALUES / 32 - 1;
    blocks[bad * 34..][..2].copy_from_slice(&f16::NAN.to_le_bytes());
    let refused = file(8, blocks).read_bytes("w", &mut found).unwrap_err().to_string();
    assert!(refused.contains(&format!("block at value {}", bad * 32)), "{refused}");
}

/// Each kind of value, alone and in a list.
#[test]
fn all_kinds_of_values_are_read() {
    let numbers = |kind| match kind {
        0 => (vec![200], Value::Unsigned(200), Array::Unsigned(vec![200; 2])),
        1 => (vec![0xfe], Value::Signed(-2), Array::Signed(vec![-2; 2])),
        2 => (60_000u16.to_le_bytes().to_vec(), Value::Unsigned(60_000), Array::Unsigned(vec![60_000; 2])),
        3 => ((-300i16).to_le_bytes().to_vec(), Value::Signed(-300), Array::Signed(vec![-300; 2])),
        4 => (
            u32::MAX.to_le_bytes().to_vec(),
            Value::Unsigned(0xffff_ffff),
            Array::Unsigned(vec![0xffff_ffff; 2]),
        ),
        5 => ((-70_000i32).to_le_bytes().to_vec(), Value::Signed(-70_000), Array::Signed(vec![-70_000; 2])),
        6 => (1.5f32.to_le_bytes().to_vec(), Value::Float(1.5), Array::Float(vec![1.5; 2])),
        7 => (vec![1], Value::Bool(true), Array::Bool(vec![true; 2])),
        8 => (
            string_value(b"ab")[4..].to_vec(),
            Value::String("ab".into()),
            Array::String(vec!["ab".into(); 2]),
        ),
        10 => {
            (u64::MAX.to_le_bytes().to_vec(), Value::Unsigned(u64::MAX), Array::Unsigned(vec![u64::MAX; 2]))
        }
        11 => (i64::MIN.to_le_bytes().to_vec(), Value::Signed(i64::MIN), Array::Signed(vec![i64::MIN; 2])),
        _ => (2.5f64.to_le_bytes().to_vec(), Value::Float(2.5), Array::Float(vec![2.5; 2])),
    };
    let deepest = array(9, 1, &array(7, 1, &[0])[4..]);
    let nested = array(9, 2, &[&deepest[4..], &array(9, 0, &[])[4..]].concat());
    let mut parts = Parts { keys: Vec::new(), tensors: Vec::new(), data: Vec::new(), raw: None };
    let kinds = (0..=12).filter(|&kind| kind != 9);
    for kind in kinds.clone() {
        let (bytes, ..) = numbers(kind);
        parts.set(&format!("one.{kind}"), value(kind, &bytes));
        parts.set(&format!("two.{kind}"), array(kind, 2, &bytes.repeat(2)));
    }
    parts.set("long", string_value(&[b'x'; 3 << 20])); // more than is read at a time
    parts.set(&"k".repeat(1024), u32_value(1));
    parts.set("nested", nested);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kinds.gguf");
    fs::write(&path, parts.file()).unwrap();
    let container = Container::open(&path).unwrap();
    for kind in kinds {
        let (_, one, two) = numbers(kind);
        assert_eq!(container.metadata().get(&format!("one.{kind}")), Some(&one));
        assert_eq!(container.metadata().get(&format!("two.{kind}")), Some(&Value::Array(two)));
    }
    assert_eq!(container.metadata().get("long"), Some(&Value::String("x".repeat(3 << 20))));
    assert!(container.metadata().keys().any(|key| key.len() == 1024));
    let deepest = Array::Array(vec![Array::Bool(vec![false])]);
    let lists = vec![deepest, Array::Array(Vec::new())];
    assert_eq!(container.metadata().get("nested"), Some(&Value::Array(Array::Array(lists))));
    // up to the file's last byte
    let last = array(0, 10, &[7; 10]);
    fs::write(&path, [beginning([0, 1], 0), one_key(&last)].concat()).unwrap();
    let found = Container::open(&path).unwrap();
    assert_eq!(found.metadata().get("k"), Some(&Value::Array(Array::Unsigned(vec![7; 10]))));
    fs::write(&path, [beginning([0, 1], 0), one_key(&value(7, &[1]))].concat()).unwrap();
    assert_eq!(Container::open(&path).unwrap().metadata().get("k"), Some(&Value::Bool(true)));
    let file = Container::open(fixtures().join("model-Q4_K_M.gguf")).unwrap();
    assert_eq!(file.tensors()["output_norm.weight"].values(), 256);
    // as many values as lists may have
    let longest = array(0, 1 << 23, &vec![0; 1 << 23]);
    fs::write(&path, [beginning([0, 1], 0), one_key(&longest)].concat()).unwrap();
    Container::open(&path).unwrap();
    // and as many bytes as a header may have
    let header = |bytes: u64| {
        let begin = [beginning([0, 1], 0), one_key(&value(8, &(bytes - 45).to_le_bytes()))].concat();
        assert_eq!(begin.len(), 45);
        fs::write(&path, begin).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
        Container::open(&path).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(header(100_000_000), Ok(()));
    assert!(header(100_000_001).unwrap_err().contains("longer than 100000000 bytes"));
}

#[test]
fn faults_of_the_container_are_named() {
    check(container_faults(), "model-Q4_K_M.gguf", |text| load(text, &fixtures().join("mmproj-F16.gguf")));
}

#[test]
fn faults_of_a_text_file_are_named() {
    check(text_faults(), "model-Q4_K_M.gguf", |text| load(text, &fixtures().join("mmproj-F16.gguf")));
}

#[test]
fn faults_of_a_vision_file_are_named() {
    check(vision_faults(), "mmproj-F16.gguf", |vision| load(&fixtures().join("model-Q4_K_M.gguf"), vision));
}

/// A file cut at any length is refused, without a wait or a panic.
#[test]
fn a_file_cut_anywhere_is_refused() {
    let (whole, folder) = (Parts::read("model-Q4_K_M.gguf").file(), tempfile::tempdir().unwrap());
    let path = folder.path().join("cut.gguf");
    for len in (0..400).chain((400..whole.len()).step_by(9973)) {
        fs::write(&path, &whole[..len]).unwrap();
        let found = load(&path, &fixtures().join("mmproj-F16.gguf"));
        assert!(matches!(found, Err(Error::Checkpoint { .. })), "{len}: {found:?}");
    }
}

/// A file that shrinks between the check of its header and the reading of its tensors.
#[test]
fn a_file_that_shrinks_while_it_is_open_gives_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shrinks.gguf");
    fs::copy(fixtures().join("model-Q4_K_M.gguf"), &path).unwrap();
    let checkpoint = Checkpoint::open(&path, Some(&fixtures().join("mmproj-F16.gguf"))).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(200_000).unwrap();
    let options = LoadOptions::for_device(&Device::Cpu);
    match Qwen3Vl::load_checkpoint(&checkpoint, &Device::Cpu, options, |_| {}).map(drop) {
        Err(Error::Checkpoint { file, item: Some(tensor), reason }) => {
            assert!(file.ends_with("shrinks.gguf") && tensor.starts_with("blk."), "{file} {tensor}");
            assert!(reason.contains("can't be read"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

/// A split of the fixture: the number of each tensor's file, by its place.
fn split(folder: &Path, file_of: impl Fn(usize) -> usize, change: impl Fn(usize, &mut Parts)) -> PathBuf {
    const FILES: usize = 3;
    let whole = Parts::read("model-Q4_K_M.gguf");
    for number in 0..FILES {
        let mut parts = Parts { keys: Vec::new(), tensors: Vec::new(), data: Vec::new(), raw: None };
        if number == 0 {
            parts.keys = whole.keys.clone();
        }
        let kind = |value: u16| [&2u32.to_le_bytes()[..], &value.to_le_bytes()].concat();
        parts.set("split.no", kind(number as u16));
        parts.set("split.count", kind(FILES as u16));
        parts.set(
            "split.tensors.count",
            [5u32.to_le_bytes(), (whole.tensors.len() as u32).to_le_bytes()].concat(),
        );
        for (place, (name, entry)) in
            whole.tensors.iter().enumerate().filter(|(place, _)| file_of(*place) == number)
        {
            let begin = whole.clone().offset(str::from_utf8(name).unwrap()) as usize;
            let next = whole.tensors.get(place + 1);
            let end = next.map_or(whole.data.len(), |(name, _)| {
                whole.clone().offset(str::from_utf8(name).unwrap()) as usize
            });
            parts.tensors.push((name.clone(), entry.clone()));
            let at = parts.data.len() as u64;
            parts.set_offset(str::from_utf8(name).unwrap(), at);
            parts.data.extend(&whole.data[begin..end]);
        }
        change(number, &mut parts);
        fs::write(folder.join(format!("m-{:05}-of-{FILES:05}.gguf", number + 1)), parts.file()).unwrap();
    }
    folder.join("m-00001-of-00003.gguf")
}

#[test]
fn a_split_model_is_the_model_and_its_faults_are_named() {
    let vision = fixtures().join("mmproj-F16.gguf");
    let folder = tempfile::tempdir().unwrap();
    for file_of in [|place: usize| place % 3, |place| 1 + place % 2] {
        let first = split(folder.path(), file_of, |_, _| {});
        let (whole, split) = (
            qwen3_vl::gguf::Gguf::open(fixtures().join("model-Q4_K_M.gguf")).unwrap(),
            qwen3_vl::gguf::Gguf::open(&first).unwrap(),
        );
        assert!(whole.names().eq(split.names()));
        Checkpoint::open(folder.path(), Some(&vision)).unwrap(); // its one model
        for name in whole.names() {
            assert_eq!(whole.read::<f32>(name).unwrap(), split.read::<f32>(name).unwrap(), "{name}");
        }
        load(&first, &vision).unwrap();
    }

    let short = |value: u16| [&2u32.to_le_bytes()[..], &value.to_le_bytes()].concat();
    let refused = |change: &dyn Fn(usize, &mut Parts), file: &str, item: Option<&str>, part: &str| {
        let first = split(folder.path(), |place| place % 3, change);
        match load(&first, &vision) {
            Err(Error::Checkpoint { file: found, item: said, reason }) => {
                assert!(found.ends_with(file) && said.as_deref() == item, "{found} {said:?} {reason}");
                assert!(reason.contains(part), "{part} is not in {reason}");
            }
            other => panic!("{part}: {other:?}"),
        }
    };
    let in_file = |wanted: usize, key: &'static str, value: Vec<u8>| {
        move |number: usize, parts: &mut Parts| {
            if number == wanted {
                parts.set(key, value.clone());
            }
        }
    };
    let (second, third) = ("m-00002-of-00003.gguf", "m-00003-of-00003.gguf");
    refused(&in_file(1, "split.no", short(2)), second, Some("split.no"), "is 2, expected 1");
    refused(&in_file(2, "split.count", short(4)), third, Some("split.count"), "is 4, expected 3");
    refused(
        &in_file(0, "split.count", short(2)),
        "m-00001-of-00003.gguf",
        Some("split.count"),
        "the file's name says 3",
    );
    refused(
        &in_file(2, "split.tensors.count", u32_value(45)),
        third,
        Some("split.tensors.count"),
        "expected 46",
    );
    refused(
        &|number, parts| {
            if number == 1 {
                parts.tensors.pop();
                let end = parts.tensors.last().map(|(name, _)| str::from_utf8(name).unwrap().to_owned());
                let at = parts.offset(&end.unwrap());
                parts.data.truncate((at + 1024) as usize);
            }
        },
        second,
        None,
        "",
    );
    refused(
        &|number, parts| {
            if number == 2 {
                parts.keys.retain(|(key, _)| key != b"split.no");
            }
        },
        third,
        Some("split.no"),
        "missing, expected 2",
    );
    refused(
        &|number, parts| {
            if number == 2 {
                parts.tensors[0].0 = b"output_norm.weight".to_vec();
            }
        },
        third,
        Some("output_norm.weight"),
        "m-00001-of-00003.gguf too",
    );
    split(folder.path(), |place| place % 3, |_, _| {});
    let named = load(&folder.path().join(second), &vision).unwrap_err().to_string();
    assert!(named.contains("name the first"), "{named}");
    fs::remove_file(folder.path().join(third)).unwrap();
    let missing = load(&folder.path().join("m-00001-of-00003.gguf"), &vision).unwrap_err().to_string();
    assert!(missing.contains(third), "{missing}");
    fs::rename(folder.path().join("m-00001-of-00003.gguf"), folder.path().join("m.gguf")).unwrap();
    let renamed = load(&folder.path().join("m.gguf"), &vision).unwrap_err().to_string();
    assert!(renamed.contains("does not end in -00001-of-00003.gguf"), "{renamed}");
}

/// The vision file is found by itself where it is the only one that fits, and asked for where it is not.
#[test]
fn the_vision_file_is_found_beside_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    let copy = |name: &str| fs::copy(fixtures().join("mmproj-F16.gguf"), folder.path().join(name)).unwrap();
    fs::copy(fixtures().join("model-IQ4_XS.gguf"), &model).unwrap();
    let open = || Checkpoint::open(&model, None);
    let said = || open().unwrap_err().to_string();
    assert!(said().contains("no vision file") && said().contains("--mmproj"), "{}", said());
    copy("Some-MMPROJ-f16.gguf");
    open().unwrap().processor().unwrap();
    // another model's file is skipped, a second one for this model is not
    let mut other = Parts::read("mmproj-F16.gguf");
    other.set("clip.vision.projection_dim", u32_value(512));
    fs::write(folder.path().join("mmproj-other.gguf"), other.file()).unwrap();
    open().unwrap().processor().unwrap();
    copy("mmproj-b.gguf");
    assert!(said().contains("mmproj-b.gguf") && said().contains("Some-MMPROJ-f16.gguf"), "{}", said());
    fs::remove_file(folder.path().join("mmproj-b.gguf")).unwrap();
    // of files in several types, the one in f16 is taken
    let mut bf16 = Parts::read("mmproj-F16.gguf");
    bf16.set_type("mm.0.weight", 30);
    bf16.set("clip.vision.image_min_pixels", u32_value(70_000));
    for name in ["mmproj-a.gguf", "mmproj-z.gguf"] {
        fs::write(folder.path().join(name), bf16.file()).unwrap();
        assert_ne!(pictures(&open().unwrap().processor().unwrap()).unwrap().images.min_pixels, 70_000);
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    fs::remove_file(folder.path().join("Some-MMPROJ-f16.gguf")).unwrap();
    assert!(said().contains("mmproj-other.gguf") && said().contains("projection_dim"), "{}", said());
    copy("mmproj.gguf");
    Checkpoint::open(folder.path(), None).unwrap().processor().unwrap();
    let published = fixtures().join("../qwen3-vl/tiny");
    let directory = Checkpoint::open(published, Some(&fixtures().join("mmproj-F16.gguf"))).map(drop);
    assert!(directory.unwrap_err().to_string().contains("belongs to a GGUF file"));
}
