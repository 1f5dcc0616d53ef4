//! The arguments that say where the experts of a mixture are.

use super::failure::Failure;
use super::sizes::bytes;
use qwen3_vl::config::Config;
use qwen3_vl::{ExpertPlacement, LoadOptions};

#[derive(clap::Args, Clone, Copy, Default, PartialEq)]
pub(super) struct ExpertArgs {
    /// Where the experts of a mixture are; auto if not given. The other weights, the router and the cache are on the GPU in any case.
    #[arg(long, value_name = "PLACE")]
    pub experts: Option<Place>,

    /// With experts in host memory, the most bytes of the GPU's memory that hold experts all the same, with K, M or G: of each layer the most
    /// used, counted while answers run. If not given, as many as fit with auto, else none.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub expert_cache: Option<usize>,
}

/// `--experts`
#[derive(Clone, Copy, Debug, Default, PartialEq, clap::ValueEnum)]
pub(super) enum Place {
    /// On the GPU if they fit; otherwise as many of each layer as fit, the most used. Of the others the CPU computes passes of few tokens, and
    /// longer ones are streamed.
    #[default]
    Auto,
    /// On the GPU.
    Gpu,
    /// In pinned host memory. A layer's are copied to the GPU while the layer before computes; a pass of up to 16 tokens reads the chosen
    /// ones over the bus. The answers are the same.
    Stream,
    /// In host memory, and the CPU computes; rows alone go over the bus. Sums are in another order.
    Cpu,
}

impl Place {
    /// As load options have it, if the CPU computes passes of up to `cpu_rows` tokens with auto.
    pub fn placement(self, cpu_rows: usize) -> ExpertPlacement {
        match self {
            Self::Auto => ExpertPlacement::Mixed { cpu_rows },
            Self::Gpu => ExpertPlacement::Gpu,
            Self::Stream => ExpertPlacement::Stream,
            Self::Cpu => ExpertPlacement::Cpu,
        }
    }
}

impl ExpertArgs {
    /// The option that was given and asks for a mixture on a GPU.
    fn given(&self) -> Option<&'static str> {
        match self {
            Self { experts: None | Some(Place::Auto), expert_cache: None } => None,
            Self { experts: None | Some(Place::Auto), expert_cache: Some(_) } => Some("--expert-cache"),
            Self { experts: Some(_), .. } => Some("--experts"),
        }
    }

    /// The place, for a plan; `None` if it is open.
    pub fn asked(&self) -> Option<ExpertPlacement> {
        self.experts.filter(|place| *place != Place::Auto).map(|place| place.placement(0))
    }

    /// Whether a place was given.
    pub fn is_given(&self) -> bool {
        self.given().is_some()
    }

    /// Refuses what does not go with the device and the other options.
    pub fn check(&self, on_gpu: bool, several: bool, gpu_layers: bool) -> Result<(), Failure> {
        let usage = |text: String| Err(Failure::Usage(text));
        let Some(option) = self.given() else { return Ok(()) };
        if self.experts == Some(Place::Gpu) && self.expert_cache.is_some() {
            return usage(
                "--expert-cache is for experts in host memory; with --experts gpu all are on the GPU".into(),
            );
        }
        if !on_gpu {
            return usage(format!("{option} is for a GPU; on the CPU all weights are in host memory"));
        }
        if several {
            return usage(format!(
                "{option} is for one GPU; with --devices the experts are spread over several"
            ));
        }
        if gpu_layers && self.experts != Some(Place::Gpu) {
            return usage(format!("{option} and --gpu-layers: experts are in host memory, or whole layers"));
        }
        Ok(())
    }

    /// Refuses places for the experts of a model that has none.
    pub fn check_model(&self, config: &Config) -> Result<(), Failure> {
        match self.given() {
            Some(option) if config.text.experts.is_none() => Err(Failure::Usage(format!(
                "{option} is for a mixture of experts, and this model is dense; --gpu-layers keeps whole layers in host memory"
            ))),
            _ => Ok(()),
        }
    }
}

/// Where the experts are, for a line about a plan.
pub(super) fn describe(options: &LoadOptions) -> Option<String> {
    let how = match options.experts {
        ExpertPlacement::Gpu => return None,
        ExpertPlacement::Stream => "streamed".to_owned(),
        ExpertPlacement::Cpu => "computed by the CPU".to_owned(),
        ExpertPlacement::Mixed { cpu_rows } => {
            format!("computed by the CPU for up to {cpu_rows} tokens, else streamed")
        }
    };
    Some(match options.cached_experts {
        0 => format!("experts in host memory, {how}"),
        cached => format!(
            "the {cached} most used experts of each layer on the GPU, the others in host memory, {how}"
        ),
    })
}
