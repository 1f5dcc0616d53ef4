//! Parameters as the forward pass has them: rounded as files will hold them, with their adapters merged where weights are rounded.

use crate::functions::{adapted, fake_quantize, fake_quantize_learned};
use crate::lora::{Adapter, Lora};
use crate::parameters::Parameters;
use crate::quantize_aware::QuantizeAware;
use crate::tape::{Tape, Var};
use pascaline::{Device, Result};

/// The values of a model's parameters in a pass.
#[derive(Clone, Copy)]
pub(crate) struct Values<'a> {
    pub parameters: &'a Parameters,
    pub lora: &'a Lora,
    pub quantize_aware: &'a QuantizeAware,
    pub device: &'a Device,
}

impl Values<'_> {
    /// A parameter by its name.
    pub fn parameter(&self, tape: &mut Tape, name: &str) -> Result<Var> {
        let whole = self.whole(tape, name)?;
        match (self.quantize_aware.learned(name), self.quantize_aware.ty(name)) {
            (Some(learned), _) => {
                let factors = tape.parameter(self.parameters, learned.factors);
                fake_quantize_learned(tape, &whole, &factors, learned)
            }
            (None, Some(ty)) => fake_quantize(tape, &whole, ty),
            (None, None) => Ok(whole),
        }
    }

    /// A parameter before it is rounded. Where weights are rounded, adapters are merged with theirs, as in the files.
    pub fn whole(&self, tape: &mut Tape, name: &str) -> Result<Var> {
        let weight = tape.parameter(self.parameters, self.parameters.required(name)?);
        match self.adapter_of(name) {
            Some(adapter) if !self.quantize_aware.is_empty() => {
                let [a, b] = self.low_rank(tape, adapter);
                adapted(tape, &weight, [&a, &b], self.lora.scale())
            }
            _ => Ok(weight),
        }
    }

    /// The adapter of a linear map's weight.
    pub fn adapter_of(&self, name: &str) -> Option<Adapter> {
        self.lora.adapter(name.strip_suffix(".weight")?)
    }

    /// A and B of the adapter beside a linear map, and the factor of B·A; none where it is merged.
    pub fn beside(&self, tape: &mut Tape, map: &str) -> Option<(Var, Var, f32)> {
        let adapter = self.lora.adapter(map).filter(|_| self.quantize_aware.is_empty())?;
        let [a, b] = self.low_rank(tape, adapter);
        Some((a, b, self.lora.scale()))
    }

    fn low_rank(&self, tape: &mut Tape, adapter: Adapter) -> [Var; 2] {
        [adapter.a, adapter.b].map(|number| tape.parameter(self.parameters, number))
    }
}
