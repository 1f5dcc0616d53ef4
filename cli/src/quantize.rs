//! `pascaline quantize`: writes a checkpoint as a pair of GGUF files, and reports the error of each tensor.

use super::device::DeviceArg;
use super::failure::Failure;
use super::files::{self, OutputFile};
use super::gguf_file::{GgufFile, targets};
use super::hub;
use super::model::check_directory;
use super::output::Output;
use super::screen::{Screen, Style};
use super::unfinished;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use pascaline::quant::ErrorReport;
use pascaline::{DType, Device, format_bytes};
use qwen3_vl::gguf::{GgmlType, Mix, PlannedTensor, dequantize, encode, text_plan, vision_plan_of};
use qwen3_vl::weights::Weights;
use serde::Serialize;
use std::iter;
use std::path::PathBuf;

/// Writes a checkpoint as a pair of GGUF files: the text model's matrices quantised, the vision tower's in f16 (mmproj).
///
/// `generate --model` takes the text file, and so does llama.cpp. Both start faster with it than with the checkpoint. No
/// GPU is needed. A GPU makes it faster, and the bits are the same.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The checkpoint: a directory with config.json, safetensors and tokenizer.json, as published, or its name on the
    /// Hugging Face hub.
    checkpoint: PathBuf,

    /// Where to write: a folder, which gets model-‹TYPE›.gguf and mmproj-F16.gguf, or the path of the text file; the vision
    /// file is written to the same folder.
    #[arg(long, value_name = "FOLDER|FILE")]
    to: PathBuf,

    /// The type of most matrices. Names that end in M or L, and Q2_K, use more bits for the matrices that matter most; all but
    /// F16, Q8_0 and MXFP4_MOE have the output matrix in Q6_K. MXFP4_MOE stores experts in MXFP4, all else in Q8_0.
    #[arg(long = "type", value_name = "TYPE", default_value = "Q4_K_M", ignore_case = true, value_parser = mixes())]
    mix: Mix,

    /// Write only the text file, for a folder that already has the vision file.
    #[arg(long)]
    no_mmproj: bool,

    #[command(flatten)]
    device: DeviceArg,

    #[command(flatten)]
    output: Output,
}

/// `--type`
pub(super) fn mixes() -> impl TypedValueParser<Value = Mix> {
    let of = |name: String| Mix::ALL.into_iter().find(|mix| mix.name().eq_ignore_ascii_case(&name));
    PossibleValuesParser::new(Mix::ALL.map(Mix::name))
        .try_map(move |name| of(name).ok_or("it must be one of the mixes"))
}

#[derive(Serialize)]
struct Json {
    /// The text file and the vision file.
    files: Vec<Written>,
    tensors: Vec<Report>,
}

#[derive(Serialize)]
struct Written {
    file: String,
    bytes: u64,
    parameters: usize,
}

/// The error of a quantised tensor.
#[derive(Serialize)]
struct Report {
    name: String,
    #[serde(rename = "type")]
    ty: &'static str,
    shape: Vec<usize>,
    bytes: usize,
    relative_rms: f64,
    max: f64,
    cosine: f64,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let output = &args.output;
    let dir = &hub::locate(&args.checkpoint, output)?;
    check_directory(dir)?;
    let processor = qwen3_vl::processor(dir)?;
    let config = &processor.config;
    let (device, _) = args.device.open()?;
    let report = output.report()?;
    let [text, vision] = targets(&args.to, args.mix.name())?;
    let mut plans = vec![(text, text_plan(dir, config, args.mix)?)];
    if !args.no_mmproj {
        plans.extend(vision_plan_of(&dir.join("config.json"), &processor)?.map(|plan| (vision, plan)));
    }
    files::check_apart(iter::empty(), plans.iter().map(|(to, _)| to.as_path()).chain(output.file()))?;
    unfinished::leave_none()?;
    for (to, _) in &plans {
        files::check(to, output.may_replace())?;
    }

    let mut weights = Weights::open(dir, config, DType::F32, &Device::Cpu)?;
    let mut screen = output.screen();
    screen.start_smooth(plans.iter().map(|(_, plan)| plan.parameters()).sum());
    let (mut written, mut tensors, mut finished): (_, Vec<Report>, Vec<OutputFile>) =
        (Vec::new(), Vec::new(), Vec::new());
    for (to, plan) in &plans {
        let mut file = GgufFile::create(to, plan, output.may_replace())?;
        for tensor in &plan.tensors {
            screen.doing(&tensor.name);
            let (bytes, error) = encoded(&mut weights, tensor, &device, &screen)?;
            file.write(&bytes)?;
            file.pad()?;
            if error.relative_rms > 0.0 {
                screen.text(&format!("{}: {}: {error}", tensor.name, tensor.ty.name()), Style::Plain)?;
            }
            let ErrorReport { relative_rms, max, cosine } = error;
            let (name, ty, shape) = (tensor.name.clone(), tensor.ty.name(), tensor.shape.clone());
            tensors.push(Report { name, ty, shape, bytes: bytes.len(), relative_rms, max, cosine });
        }
        let (bytes, parameters) = (file.bytes(), plan.parameters());
        written.push(Written { file: to.display().to_string(), bytes, parameters });
        finished.push(file.finished());
    }
    screen.finish();
    // The text file is written last: if it exists, the pair is complete.
    finished.reverse();
    files::keep_all(finished)?;
    for Written { file, bytes, parameters } in &written {
        let bits = *bytes as f64 * 8.0 / *parameters as f64;
        let size = format_bytes(*bytes as usize);
        screen.line(&format!("{file}: {size}, {parameters} parameters of {bits:.2} bits"))?;
    }
    report.map_or(Ok(()), |report| report.write(&Json { files: written, tensors }))
}

/// Values that are encoded at a time, about: the bar moves after each.
const PIECE: usize = 1 << 22;

/// As [`encode`], some whole rows at a time, of about `piece` values; `advance` is given how many were encoded.
fn in_pieces(
    ty: GgmlType,
    values: &[f32],
    [rows, cols]: [usize; 2],
    piece: usize,
    device: &Device,
    advance: impl Fn(usize),
) -> pascaline::Result<Vec<u8>> {
    if cols == 0 || !cols.is_multiple_of(ty.block()) || rows * cols != values.len() {
        let bytes = encode(ty, values, [rows, cols], device)?; // rows are no whole blocks, or it is refused
        advance(values.len());
        return Ok(bytes);
    }
    let mut bytes = Vec::with_capacity(ty.bytes(values.len()));
    for part in values.chunks((piece / cols).max(1) * cols) {
        bytes.extend(encode(ty, part, [part.len() / cols, cols], device)?);
        advance(part.len());
    }
    Ok(bytes)
}

/// A tensor's bytes, and the error of quantising it.
fn encoded(
    weights: &mut Weights,
    tensor: &PlannedTensor,
    device: &Device,
    screen: &Screen,
) -> Result<(Vec<u8>, ErrorReport), Failure> {
    let values = tensor.values(weights.host(&tensor.published)?);
    let cannot = |error: pascaline::Error| Failure::Failed(format!("{}: {error}", tensor.published));
    let advance = |values| screen.advance(values);
    let bytes = in_pieces(tensor.ty, &values, tensor.matrix(), PIECE, device, advance).map_err(cannot)?;
    if tensor.ty == GgmlType::F32 {
        return Ok((bytes, ErrorReport::new(&[], &[])));
    }
    let mut decoded = vec![0.0; values.len()];
    dequantize(tensor.ty, &bytes, &mut decoded);
    Ok((bytes, ErrorReport::new(&values, &decoded)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn pieces_make_the_same_bytes() {
        let values: Vec<f32> = (0..7 * 256).map(|i| ((i * 37 % 101) as f32 - 50.0) / 16.0).collect();
        for ty in
            [GgmlType::F32, GgmlType::BF16, GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q4_K, GgmlType::Q6_K]
        {
            let whole = encode(ty, &values, [7, 256], &Device::Cpu).unwrap();
            for piece in [1, 256, 600, 10_000] {
                let (done, calls) = (Cell::new(0), Cell::new(0));
                let advance = |values| {
                    done.set(done.get() + values);
                    calls.set(calls.get() + 1);
                };
                let found = in_pieces(ty, &values, [7, 256], piece, &Device::Cpu, advance).unwrap();
                assert!(found == whole, "{} in pieces of {piece}", ty.name());
                assert_eq!((done.get(), calls.get()), (values.len(), 7usize.div_ceil((piece / 256).max(1))));
            }
        }
    }
}
