//! A captured pass over all devices of a model: one graph if they compute at the same time, else a graph for each device and
//! copies of the hidden states between them.

use super::text::TextModel;
use pascaline::cuda::Graph;
use pascaline::{DType, Device, Result, Tensor};

/// The graphs, in the order of the pass, and the output of the last.
pub(super) struct Relay<T> {
    legs: Vec<Leg>,
    result: T,
    /// Whether copies of the last pass may be in flight.
    is_launched: bool,
}

struct Leg {
    graph: Graph,
    /// The copied hidden states that it reads; none for the first.
    input: Option<Tensor>,
    /// The hidden states that it produces; none for the last.
    output: Option<Tensor>,
}

impl<T> Relay<T> {
    /// Captures a pass whose devices compute at the same time, or of one device.
    pub fn capture_at_once(text: &TextModel, pass: impl FnOnce() -> Result<T>) -> Result<Self> {
        let devices = text.stages().iter().map(|stage| match &stage.device {
            Device::Cuda(device) => device.clone(),
            Device::Cpu => unreachable!("only GPUs capture"),
        });
        let devices: Vec<_> = devices.collect();
        text.settle()?; // what is queued uses memory that is given back meanwhile
        let (graph, result) = Graph::capture_over(&devices, pass)?;
        Ok(Self { legs: vec![Leg { graph, input: None, output: None }], result, is_launched: false })
    }

    /// Captures a pass of `rows` rows over devices in turn: `stage` is the part on one device, from the output of the one
    /// before, and `end` is what follows on the first device.
    pub fn capture(
        text: &TextModel,
        rows: usize,
        mut stage: impl FnMut(usize, Option<&Tensor>) -> Result<Tensor>,
        end: impl FnOnce(&Tensor) -> Result<T>,
    ) -> Result<Self> {
        let stages = text.stages();
        let capture = |device: &Device, work: &mut dyn FnMut() -> Result<Tensor>| match device {
            Device::Cuda(device) => Graph::capture(device, work),
            Device::Cpu => unreachable!("only GPUs capture"),
        };
        let room = |device: &Device| Tensor::zeros([rows, text.width()], DType::F32, device);
        let mut legs = Vec::with_capacity(stages.len() + 1);
        for (index, own) in stages.iter().enumerate() {
            let input = if index == 0 { None } else { Some(room(&own.device)?) };
            let (graph, output) = capture(&own.device, &mut || stage(index, input.as_ref()))?;
            legs.push(Leg { graph, input, output: Some(output) });
        }
        let Device::Cuda(home) = text.device() else { unreachable!("only GPUs capture") };
        let input = room(text.device())?;
        let (graph, result) = Graph::capture(home, || end(&input))?;
        legs.push(Leg { graph, input: Some(input), output: None });
        Ok(Self { legs, result, is_launched: false })
    }

    /// Queues the pass once more. The copies of the pass before have ended by then: they are waited for, which costs nothing if
    /// its output has been read.
    pub fn launch(&mut self, text: &TextModel) -> Result<&T> {
        if std::mem::replace(&mut self.is_launched, self.legs.len() > 1) {
            text.settle()?;
        }
        for index in 0..self.legs.len() {
            let (before, rest) = self.legs.split_at_mut(index);
            let leg = &mut rest[0];
            if let (Some(input), Some(output)) =
                (&mut leg.input, before.last().and_then(|before| before.output.as_ref()))
            {
                text.send(index - 1, output, input)?;
            }
            leg.graph.launch()?;
        }
        Ok(&self.result)
    }

    /// Kernel launches of all graphs.
    pub fn nodes(&self) -> usize {
        self.legs.iter().map(|leg| leg.graph.nodes()).sum()
    }
}
