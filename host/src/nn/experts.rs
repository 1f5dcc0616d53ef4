//! Mixture of experts in place of an MLP.

use super::checks::misfit;
use super::expert_cache::{ExpertCache, Hits};
use super::hosted::{ExpertStream, Hosted};
use super::map::Map;
use super::matrix::Matrix;
use super::norm::RmsNorm;
use crate::ops::{self, ExpertRows, Routes};
use crate::problem::experts::Places;
use crate::{DType, Device, Error, Result, Tensor};
use std::sync::Arc;

/// Tokens that are computed at a time, which bounds the memory of what is between the products; more would not make them faster.
const TOKENS: usize = 1024;

/// Σ weight · down(silu(gate(x)) ⊙ up(x)) over the experts of each token, which a router chooses:
/// [`ops::route`], [`ops::experts_linear`], [`ops::experts_sum`].
///
/// ```
/// use pascaline::nn::Experts;
/// use pascaline::{Device, Tensor};
/// let tensor = |values: &[f32]| Tensor::from_slice(values, [2, 1], &Device::Cpu); // a row for each of two experts
/// let experts = Experts::new(tensor(&[5.0, -5.0])?, tensor(&[100.0, 1.0])?, tensor(&[2.0, 1.0])?, tensor(&[1.0, 1.0])?, 1)?;
/// let y = experts.forward(&Tensor::from_slice(&[3.0f32], [1, 1], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec::<f32>()?, [300.0 * 6.0]); // the first one's
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Experts {
    router: Tensor,
    /// On the router's device, or in pinned memory where its kernels read them.
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    hosted: Option<Arc<Hosted>>,
    top_k: usize,
    normalized: bool,
}

impl Experts {
    /// `router`: [experts, hidden]; `gate`, `up`: [experts · inner, hidden], `down`: [experts · hidden, inner], each expert's rows below
    /// the previous one's. Each token has `top_k` experts, whose weights are divided by their sum.
    ///
    /// # Errors
    /// [`Error::Shape`] if the matrices do not match each other; [`Error::Unsupported`] if one has several types or an adapter, or if
    /// `top_k` is not 1 to the number of experts.
    pub fn new(
        router: Tensor,
        gate: impl Into<Matrix>,
        up: impl Into<Matrix>,
        down: impl Into<Matrix>,
        top_k: usize,
    ) -> Result<Self> {
        let (gate, up, down) = (gate.into(), up.into(), down.into());
        let &[experts, hidden] = router.dims() else {
            return Err(misfit("Experts", "router", "[experts, hidden]", &router));
        };
        if !(1..=experts).contains(&top_k) {
            let reason = format!("not 1 to {experts}, the number of experts");
            return Err(Error::Unsupported {
                op: "Experts",
                argument: "top_k",
                value: top_k.to_string(),
                reason,
            });
        }
        let inner = gate.dims().first().map_or(0, |rows| rows / experts);
        for (argument, matrix, rows, columns) in [
            ("gate", &gate, experts * inner, hidden),
            ("up", &up, experts * inner, hidden),
            ("down", &down, experts * hidden, inner),
        ] {
            if matrix.dims() != [rows, columns] {
                let (expected, found) = (format!("[{rows}, {columns}]"), matrix.dims().into());
                return Err(Error::Shape { op: "Experts", argument, expected, found });
            }
            if !matches!(matrix, Matrix::Plain(_) | Matrix::Quantized(_)) {
                let reason = "experts' matrices have one type and no adapter".into();
                let value = "a matrix of parts".into();
                return Err(Error::Unsupported { op: "Experts", argument, value, reason });
            }
        }
        Ok(Self { router, gate, up, down, hosted: None, top_k, normalized: true })
    }

    /// With the probabilities among all experts as weights, not divided by their sum.
    pub fn unnormalized(self) -> Self {
        Self { normalized: false, ..self }
    }

    /// `x`: [rows, hidden] f32 → the same shape.
    ///
    /// # Errors
    /// [`Error::Shape`] if `x` does not match.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_fused(x, None, None)
    }

    /// experts(norm(x)) + residual.
    pub(super) fn forward_fused(
        &self,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let own = [&self.gate, &self.up, &self.down];
        let rows = x.dims().first().copied().unwrap_or(0);
        let few = rows <= ExpertStream::READ_ROWS;
        match &self.hosted {
            None => self.forward_with(x, norm, residual, Where::Device(&own, None)),
            Some(hosted) if hosted.is_for_cpu(rows) => {
                let there = hosted.cpu().map(|tensors| of_tensors(&own, tensors)).transpose()?;
                let cache = if few { hosted.cache()? } else { None };
                self.forward_with(
                    x,
                    norm,
                    residual,
                    Where::Cpu(there.as_ref(), cache.map(|cache| (&own, cache))),
                )
            }
            Some(hosted) if !few => hosted.on_device(|tensors| {
                let [gate, up, down] = of_tensors(&own, tensors)?;
                self.forward_with(x, norm, residual, Where::Device(&[&gate, &up, &down], None))
            }),
            // a few rows read few experts, where they are
            Some(hosted) => {
                let cache = hosted.cache()?;
                self.forward_with(x, norm, residual, Where::Device(&own, cache))
            }
        }
    }

    fn forward_with(
        &self,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        residual: Option<&Tensor>,
        matrices: Where,
    ) -> Result<Tensor> {
        let &[rows, hidden] = x.dims() else { return Err(misfit("Experts", "x", "[rows, hidden]", x)) };
        let mut y = Tensor::uninitialized([rows, hidden], DType::F32, &x.device())?;
        for start in (0..rows).step_by(TOKENS) {
            let len = TOKENS.min(rows - start);
            let x = x.narrow(0, start, len)?;
            let x = norm.map_or(Ok(x.clone()), |norm| norm.forward(&x))?;
            let residual = residual.map(|residual| residual.narrow(0, start, len)).transpose()?;
            let routes = self.route(&x)?;
            let y = y.view_mut()?.narrow(0, start, len)?;
            match matrices {
                Where::Device(matrices, cache) => {
                    let down = match cache {
                        None => products(&x, matrices, &routes, None)?,
                        Some(cache) => cache
                            .with_places(false, |places| products(&x, matrices, &routes, Some(places)))?,
                    };
                    ops::experts_sum_into(y, &down, &routes, residual.as_ref())?;
                }
                Where::Cpu(there, None) => {
                    let Some(there) = there else { continue }; // a plan
                    let host = OnHost::read(&x, &routes, residual.as_ref())?;
                    y.write(&Device::Cpu.pass(|| host.sum(there))?.to_vec::<f32>()?)?;
                }
                Where::Cpu(there, Some((own, cache))) => {
                    let away = match there {
                        Some(_) => pairs_away(&routes, &cache.is_here())?,
                        None => Vec::new(), // a plan
                    };
                    // before the GPU has more to do
                    let host = match away.is_empty() {
                        true => None,
                        false => Some(OnHost::read(&x, &routes, residual.as_ref())?),
                    };
                    let down = cache.with_places(true, |places| products(&x, own, &routes, Some(places)))?;
                    let others = match (there, host) {
                        (Some(there), Some(host)) => {
                            let sum = Device::Cpu.pass(|| host.sum_of_pairs(there, &away))?;
                            Some(sum.to_device(&x.device())?)
                        }
                        (Some(_), None) => None,
                        (None, _) => Some(Tensor::uninitialized([len, hidden], DType::F32, &x.device())?),
                    };
                    ops::experts_sum_into(y, &down, &routes, others.as_ref().or(residual.as_ref()))?;
                }
            }
        }
        Ok(y)
    }

    /// The experts of these rows, which are counted where some have slots.
    fn route(&self, x: &Tensor) -> Result<Routes> {
        match self.hosted.as_ref().and_then(|hosted| hosted.counted()) {
            None => ops::route(x, &self.router, self.top_k, self.normalized),
            Some(cache) => cache.counting(|uses| {
                let uses = Some(uses.view_mut()?);
                ops::route_counted(x, &self.router, self.top_k, self.normalized, uses)
            }),
        }
    }

    /// The same with its matrices in host memory: [`ExpertStream`] says which rows the CPU computes. The others' results have the same
    /// bits as before; the CPU's differ by the order of its sums. The router stays where it is.
    ///
    /// # Errors
    /// A device error, or [`Error::Unsupported`] if they are not on the stream's device.
    pub fn in_host_memory(&self, stream: &ExpertStream) -> Result<Self> {
        if !self.router.device().same(&stream.device()) || self.hosted.is_some() {
            let (op, argument, value) = ("in_host_memory", "experts", format!("on {}", self.router.device()));
            let reason = format!("they must be on {}, and not in host memory yet", stream.device());
            return Err(Error::Unsupported { op, argument, value, reason });
        }
        let own = [&self.gate, &self.up, &self.down];
        let (hosted, tensors) = Hosted::new(stream, &tensors(&own)?, self.router.dims()[0])?;
        let [gate, up, down] = of_tensors(&own, &tensors)?;
        Ok(Self { gate, up, down, hosted: Some(Arc::new(hosted)), ..self.clone() })
    }

    pub(super) fn is_in_host_memory(&self) -> bool {
        self.hosted.is_some()
    }

    /// How often the router's choice was in device memory, where experts in host memory have slots there.
    pub(super) fn hits(&self) -> Hits {
        self.hosted.as_ref().map(|hosted| hosted.hits()).unwrap_or_default()
    }

    /// As [`Linear::map`](super::Linear::map).
    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        if self.hosted.is_some() {
            return Ok(Self { router: f(&self.router)?, ..self.clone() }); // the others are in place
        }
        let (gate, up, down) = (self.gate.map(f)?, self.up.map(f)?, self.down.map(f)?);
        Ok(Self { router: f(&self.router)?, gate, up, down, ..self.clone() })
    }

    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        vec![&self.gate, &self.up, &self.down]
    }

    /// Bytes of the stored weights that a token reads.
    pub(super) fn weight_bytes(&self) -> usize {
        let all: usize = self.matrices().into_iter().map(Matrix::bytes).sum();
        let router = self.router.shape().elements() * self.router.dtype().size();
        router + all / self.router.dims()[0] * self.top_k // `new` has checked that it is a matrix of experts
    }
}

/// The matrices of a pass, and who computes with them.
#[derive(Clone, Copy)]
enum Where<'a> {
    /// The GPU, or whoever has the rows. Of a cache the matrices of its experts are read there.
    Device(&'a [&'a Matrix; 3], Option<&'a ExpertCache>),
    /// The CPU, with its matrices, `None` in a plan; the GPU, with its own, computes the experts of a cache.
    Cpu(Option<&'a [Matrix; 3]>, Option<(&'a [&'a Matrix; 3], &'a ExpertCache)>),
}

/// The tensors of matrices.
fn tensors(matrices: &[&Matrix; 3]) -> Result<Vec<Tensor>> {
    let mut all = Vec::new();
    for matrix in matrices {
        matrix.map(&mut |tensor| {
            all.push(tensor.clone());
            Ok(tensor.clone())
        })?;
    }
    Ok(all)
}

/// Matrices like these of other tensors.
fn of_tensors([gate, up, down]: &[&Matrix; 3], tensors: &[Tensor]) -> Result<[Matrix; 3]> {
    let mut tensors = tensors.iter();
    let mut next = |like: &Tensor| {
        let next = tensors.next().filter(|tensor| tensor.shape() == like.shape());
        next.cloned().ok_or_else(|| misfit("Experts", "tensors", "the shapes of the matrices", like))
    };
    Ok([gate.map(&mut next)?, up.map(&mut next)?, down.map(&mut next)?])
}

/// down(silu(gate(x)) ⊙ up(x)) for each pair, in the order of the routes.
fn products(
    x: &Tensor,
    matrices: &[&Matrix; 3],
    routes: &Routes,
    places: Option<[Places; 3]>,
) -> Result<Tensor> {
    x.device().pass(|| products_of(x, matrices, routes, places))
}

fn products_of(
    x: &Tensor,
    [gate, up, down]: &[&Matrix; 3],
    routes: &Routes,
    places: Option<[Places; 3]>,
) -> Result<Tensor> {
    let place = |matrix: usize| places.map(|places| places[matrix]);
    if let (Matrix::Quantized(gate), Matrix::Quantized(up), Matrix::Quantized(down)) = (gate, up, down)
        && routes.are_sorted()
    {
        let inner = ops::quant_experts_gated(x, gate, up, routes)?;
        return ops::quant_experts_rows(&inner, down, routes);
    }
    let gate = product(ExpertRows::Tokens(x), gate, routes, place(0))?;
    let up = product(ExpertRows::Tokens(x), up, routes, place(1))?;
    let inner = ops::silu_mul(&gate, &up)?;
    drop((gate, up));
    product(ExpertRows::Pairs(&inner), down, routes, place(2))
}

fn product(x: ExpertRows, w: &Matrix, routes: &Routes, places: Option<Places>) -> Result<Tensor> {
    match w {
        Matrix::Quantized(w) => ops::quant_experts_linear_at(x, w, routes, places),
        Matrix::Plain(w) => ops::experts_linear_at(x, w, routes, places),
        Matrix::Stacked(_) | Matrix::Adapted(_) => {
            let (argument, value) = ("w", "a matrix of parts".to_owned());
            let reason = "`Experts::new` refuses it".into();
            Err(Error::Unsupported { op: "Experts", argument, value, reason })
        }
    }
}

/// The pairs whose experts are not `here`. Waits for the device.
fn pairs_away(routes: &Routes, here: &[bool]) -> Result<Vec<usize>> {
    let is_away = |id: u32| !here.get(id as usize).is_some_and(|here| *here);
    let ids = routes.ids.to_vec::<u32>()?;
    Ok((0..ids.len()).filter(|&pair| is_away(ids[pair])).collect())
}

/// Rows of a pass with their experts, in host memory.
struct OnHost {
    x: Tensor,
    routes: Routes,
    residual: Option<Tensor>,
}

impl OnHost {
    /// Waits for the device once.
    fn read(x: &Tensor, routes: &Routes, residual: Option<&Tensor>) -> Result<Self> {
        let with: Vec<&Tensor> = [x].into_iter().chain(residual).collect();
        let (routes, mut with) = routes.to_cpu(&with)?;
        let residual = if residual.is_some() { with.pop() } else { None };
        let x = with.pop().ok_or_else(|| misfit("Experts", "x", "a copy of it", x))?;
        Ok(Self { x, routes, residual })
    }

    /// residual + Σ weight · down(silu(gate(x)) ⊙ up(x)) over all experts of each row.
    fn sum(&self, [gate, up, down]: &[Matrix; 3]) -> Result<Tensor> {
        let rows = products(&self.x, &[gate, up, down], &self.routes, None)?;
        ops::experts_sum(&rows, &self.routes, self.residual.as_ref())
    }

    /// The same over these pairs.
    fn sum_of_pairs(&self, [gate, up, down]: &[Matrix; 3], pairs: &[usize]) -> Result<Tensor> {
        let (ids, weights) = self.routes.to_vecs()?;
        // each pair is a row of its own, with one expert
        let tokens: Vec<u32> = pairs.iter().map(|&pair| (pair / self.routes.top_k()) as u32).collect();
        let rows = Tensor::from_slice(&tokens, [tokens.len()], &Device::Cpu)?;
        let ids: Vec<u32> = pairs.iter().map(|&pair| ids[pair]).collect();
        let weights: Vec<f32> = pairs.iter().map(|&pair| weights[pair]).collect();
        let routes = Routes::from_slices(&ids, &weights, 1, self.routes.experts(), &Device::Cpu)?;
        let rows = products(&ops::embedding(&self.x, &rows)?, &[gate, up, down], &routes, None)?;
        let rows = ops::experts_sum(&rows, &routes, None)?.to_vec::<f32>()?; // weight · row, in the order of the pairs
        let hidden = self.x.dims()[1];
        let mut sum = match &self.residual {
            Some(residual) => residual.to_vec()?,
            None => vec![0.0f32; self.x.shape().elements()],
        };
        for (&token, row) in tokens.iter().zip(rows.chunks_exact(hidden.max(1))) {
            let sum = &mut sum[token as usize * hidden..][..hidden];
            sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        Tensor::from_slice(&sum, self.x.shape(), &Device::Cpu)
    }
}
