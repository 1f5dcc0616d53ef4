//! The options for types of weights, and of keys and values.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use pascaline::DType;
use pascaline::kv::KvFormat;
use pascaline::quant::{self, FORMATS};
use qwen3_vl::{Matrices, VisionScores};

/// `--cache`
pub(super) fn cache_formats() -> impl TypedValueParser<Value = KvFormat> {
    PossibleValuesParser::new(KvFormat::ALL.map(KvFormat::name))
        .try_map(|name| name.to_ascii_lowercase().parse::<KvFormat>())
}

/// `--dtype` for a model that is compared with its reference.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum StorageType {
    F16,
    F32,
}

impl StorageType {
    pub fn dtype(self) -> DType {
        match self {
            Self::F16 => DType::F16,
            Self::F32 => DType::F32,
        }
    }
}

/// `--dtype` for a model that generates.
pub(super) fn weight_types() -> impl TypedValueParser<Value = Matrices> {
    let floats = [("f16", 16.0, Matrices::Float(DType::F16)), ("f32", 32.0, Matrices::Float(DType::F32))];
    let formats = FORMATS.into_iter().filter(|format| format.descriptor().file.is_some());
    let formats = formats
        .map(|format| (quant::name(format), format.descriptor().stored_bits(), Matrices::Quantized(format)));
    let types: Vec<_> = floats.into_iter().chain(formats).collect();
    let value = |(name, bits, _): &(&'static str, f64, _)| {
        PossibleValue::new(*name).help(format!("{bits:.2} bits a value"))
    };
    PossibleValuesParser::new(types.iter().map(value).collect::<Vec<_>>()).try_map(move |given| {
        let found = types.iter().find(|(name, ..)| name.eq_ignore_ascii_case(&given));
        found.map(|(_, _, matrices)| *matrices).ok_or("it must be one of the types")
    })
}

/// `--vision-scores`
#[derive(Clone, Copy, Debug, Default, PartialEq, clap::ValueEnum)]
pub(super) enum VisionScoresArg {
    #[default]
    F32,
    Int8,
}

impl VisionScoresArg {
    pub(super) fn scores(self) -> VisionScores {
        match self {
            Self::F32 => VisionScores::F32,
            Self::Int8 => VisionScores::Int8,
        }
    }
}
