//! Mixture of experts: choosing experts, products with their matrices, and the weighted sum.

use super::check::Check;
use super::copy::{aligned, copy_into};
use super::elementwise::silu_mul;
use super::linear::linear_into;
use super::quant::quantize_rows;
use super::{embedding, linear};
use crate::cpu::quant::{GROUP_COLUMNS, Group};
use crate::parallel::InTasks;
use crate::problem::activate::Epilogue;
use crate::problem::experts::{ExpertRows, Places, Routes, Sorted};
use crate::quant::{QuantRows, QuantTensor};
use crate::{DType, Device, Error, Result, Shape, Tensor, TensorMut, cpu, gpu};
use kernels_gpu::experts::MAX_EXPERTS;
use rayon::prelude::*;
use std::ops::Range;

pub(crate) use crate::gpu::experts::MAX_UNSORTED_TOKENS;

const ROUTE: Check = Check("route");

/// The `top_k` experts of each token with the largest probabilities, softmax(x·gateᵀ) over all experts; of equal ones those with
/// lower numbers. Their probabilities are the weights, divided by their sum if `normalized`.
///
/// `x`: [tokens, k] f32, `gate`: [experts, k] f32 or f16, both contiguous. Sums are f32. On a GPU it is one launch, and one more that
/// sorts the pairs of many tokens by expert; the host does not wait.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let gate = Tensor::from_slice(&[0.0f32, 2.0, 1.0], [3, 1], &Device::Cpu)?; // three experts
/// let x = Tensor::from_slice(&[1.0f32, -1.0], [2, 1], &Device::Cpu)?;
/// let (ids, weights) = ops::route(&x, &gate, 2, true)?.to_vecs()?;
/// assert_eq!(ids, [1, 2, 0, 2]);
/// assert!((weights[0] - 1.0 / (1.0 + (-1f32).exp())).abs() < 1e-6);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`] if there are more than 1024 experts, or `top_k` is 0 or more than there are.
pub fn route(x: &Tensor, gate: &Tensor, top_k: usize, normalized: bool) -> Result<Routes> {
    route_counted(x, gate, top_k, normalized, None)
}

/// As [`route`], which adds to `uses`, u32 [experts] on a GPU, how often each expert was chosen.
pub(crate) fn route_counted(
    x: &Tensor,
    gate: &Tensor,
    top_k: usize,
    normalized: bool,
    uses: Option<TensorMut>,
) -> Result<Routes> {
    ROUTE.dtype("x", x, DType::F32)?;
    ROUTE.float("gate", gate)?;
    let &[tokens, k] = x.dims() else { return Err(ROUTE.bad_shape("x", x, "[tokens, k]")) };
    let &[experts, columns] = gate.dims() else {
        return Err(ROUTE.bad_shape("gate", gate, "[experts, k]"));
    };
    if columns != k {
        return Err(ROUTE.bad_shape("gate", gate, format!("[experts, {k}]")));
    }
    ROUTE.contiguous("x", x)?;
    ROUTE.contiguous("gate", gate)?;
    check_counts(experts, top_k)?;
    let device = x.device();
    let mut ids = Tensor::uninitialized([tokens, top_k], DType::U32, &device)?;
    let mut weights = Tensor::uninitialized([tokens, top_k], DType::F32, &device)?;
    let weights_view = weights.view_mut()?;
    ROUTE.device(&weights_view, &[("x", x), ("gate", gate)])?;
    if let Some(uses) = &uses {
        ROUTE.dtype("uses", uses, DType::U32)?;
        ROUTE.shape("uses", uses, &[experts], "[experts]")?;
        ROUTE.device(uses, &[("x", x)])?;
    }
    match &device {
        Device::Cpu => {
            let logits = linear(x, gate, None, &Epilogue::default())?;
            cpu::experts::choose(ids.view_mut()?, weights_view, &logits, normalized)?;
        }
        Device::Cuda(device) => {
            gpu::experts::route(device, ids.view_mut()?, weights_view, x, gate, normalized, uses)?;
        }
    }
    sorted(ids, weights, experts)
}

fn check_counts(experts: usize, top_k: usize) -> Result<()> {
    if experts > MAX_EXPERTS as usize {
        return Err(ROUTE.unsupported(
            "gate",
            experts,
            format!("there may be {MAX_EXPERTS} experts at most"),
        ));
    }
    match (1..=experts).contains(&top_k) {
        true => Ok(()),
        false => Err(ROUTE.unsupported("top_k", top_k, format!("not 1 to {experts}, the number of experts"))),
    }
}

/// With the order of rows: on a GPU few tokens need none.
fn sorted(ids: Tensor, weights: Tensor, experts: usize) -> Result<Routes> {
    let device = ids.device();
    let tokens = ids.dims()[0];
    let mut routes = Routes { ids, weights, experts, sorted: None };
    if matches!(device, Device::Cuda(_)) && tokens <= gpu::experts::MAX_UNSORTED_TOKENS {
        return Ok(routes);
    }
    let pairs = routes.ids.shape().elements();
    let new = |len: usize| Tensor::uninitialized([len], DType::U32, &device);
    let mut order = Sorted { tokens: new(pairs)?, places: new(pairs)?, starts: new(experts + 1)? };
    match &device {
        Device::Cpu => cpu::experts::sort(&mut order, &routes.ids)?,
        Device::Cuda(device) => gpu::experts::sort(device, &mut order, &routes.ids)?,
    }
    routes.sorted = Some(order);
    Ok(routes)
}

impl Routes {
    /// Given experts and weights: `top_k` of each for every token.
    ///
    /// # Errors
    /// [`Error::Shape`] if both are not as many, and whole tokens; [`Error::Unsupported`] as [`route`], or if an id is no expert's.
    pub fn from_slices(
        ids: &[u32],
        weights: &[f32],
        top_k: usize,
        experts: usize,
        device: &Device,
    ) -> Result<Self> {
        check_counts(experts, top_k)?;
        if ids.len() != weights.len() || !ids.len().is_multiple_of(top_k) {
            let (expected, found) = (format!("{} weights, {top_k} for each token", ids.len()), weights.len());
            return Err(Error::Shape { op: "route", argument: "weights", expected, found: [found].into() });
        }
        if let Some(id) = ids.iter().find(|&&id| id as usize >= experts) {
            return Err(ROUTE.unsupported("ids", id, format!("there are {experts} experts")));
        }
        let shape = [ids.len() / top_k, top_k];
        sorted(Tensor::from_slice(ids, shape, device)?, Tensor::from_slice(weights, shape, device)?, experts)
    }

    fn pairs(&self) -> usize {
        self.ids.shape().elements()
    }

    /// The same in host memory with these tensors of its stream, after one wait for the device.
    pub(crate) fn to_cpu(&self, with: &[&Tensor]) -> Result<(Self, Vec<Tensor>)> {
        let all: Vec<&Tensor> = [&self.ids, &self.weights].into_iter().chain(with.iter().copied()).collect();
        let mut copies = Tensor::to_cpu(&all)?;
        let with = copies.split_off(2);
        let (ids, weights) = (copies[0].to_vec()?, copies[1].to_vec()?);
        Ok((Self::from_slices(&ids, &weights, self.top_k(), self.experts, &Device::Cpu)?, with))
    }

    /// A row for each pair, in the order of the rows of products.
    fn rows(&self, x: ExpertRows) -> Result<Tensor> {
        match (x, &self.sorted) {
            (ExpertRows::Pairs(x), _) => Ok(x.clone()),
            (ExpertRows::Tokens(x), Some(sorted)) => embedding(x, &sorted.tokens),
            // not sorted: the kernels read a token's row for each of its pairs
            (ExpertRows::Tokens(x), None) => Ok(x.clone()),
        }
    }
}

const LINEAR: Check = Check("experts_linear");

/// Checks a product; returns the device, the width of x, and the rows of each expert.
fn check_product(
    x: ExpertRows,
    routes: &Routes,
    held: &Tensor,
    w: &[usize],
) -> Result<(Device, usize, usize)> {
    let (x, rows, expected) = match x {
        ExpertRows::Tokens(x) => (x, routes.tokens(), "[tokens, k]"),
        ExpertRows::Pairs(x) => (x, routes.pairs(), "[tokens · top_k, k]"),
    };
    LINEAR.dtype("x", x, DType::F32)?;
    LINEAR.contiguous("x", x)?;
    let &[found, k] = x.dims() else { return Err(LINEAR.bad_shape("x", x, expected)) };
    if found != rows {
        return Err(LINEAR.bad_shape("x", x, format!("{expected}, {rows} rows")));
    }
    let n = check_matrix(k, routes, &[("x", x), ("w", held)], w)?;
    Ok((x.device(), k, n))
}

/// Checks the shape of a matrix for rows of k values, and that these tensors are where the routes are; returns the rows of each expert.
fn check_matrix(
    k: usize,
    routes: &Routes,
    tensors: &[(&'static str, &Tensor)],
    w: &[usize],
) -> Result<usize> {
    let device = routes.ids.device();
    match *w {
        [all, columns] if columns == k && all.is_multiple_of(routes.experts) && k > 0 => {
            let elsewhere = tensors.iter().find(|(_, tensor)| !tensor.device().same(&device));
            elsewhere.map_or(Ok(all / routes.experts), |(argument, tensor)| {
                Err(LINEAR.elsewhere(argument, &tensor.device(), &device))
            })
        }
        _ => Err(misfit("w", format!("[{} · n, {k}] with k > 0", routes.experts), w.into())),
    }
}

fn misfit(argument: &'static str, expected: String, found: Shape) -> Error {
    Error::Shape { op: LINEAR.0, argument, expected, found }
}

/// The output of a product, within 32-bit indices.
fn output(routes: &Routes, n: usize, device: &Device) -> Result<Tensor> {
    let y = Tensor::uninitialized([routes.pairs(), n], DType::F32, device)?;
    LINEAR.size("y", &y)?;
    Ok(y)
}

/// `y[r, :] = x[r, :] · w[e]ᵀ` for each pair, where e is its expert: [pairs, n] f32, in the order of `routes`.
///
/// `x`: f32; `w`: [experts · n, k] f32 or f16, each expert's [n, k] below the previous one's; all contiguous. On a GPU one launch has the
/// products of all experts, and no row is padded.
///
/// ```
/// use pascaline::ops::{self, ExpertRows, Routes};
/// use pascaline::{Device, Tensor};
/// let w = Tensor::from_slice(&[1.0f32, 10.0, 100.0], [3, 1], &Device::Cpu)?; // of three experts
/// let routes = Routes::from_slices(&[2, 0], &[0.5, 0.5], 2, 3, &Device::Cpu)?; // one token has two of them
/// let x = Tensor::from_slice(&[3.0f32], [1, 1], &Device::Cpu)?;
/// let y = ops::experts_linear(ExpertRows::Tokens(&x), &w, &routes)?;
/// assert_eq!(ops::experts_sum(&y, &routes, None)?.to_vec::<f32>()?, [0.5 * 300.0 + 0.5 * 3.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn experts_linear(x: ExpertRows, w: &Tensor, routes: &Routes) -> Result<Tensor> {
    experts_linear_at(x, w, routes, None)
}

/// As [`experts_linear`], with matrices at other places if there are few rows.
pub(crate) fn experts_linear_at(
    x: ExpertRows,
    w: &Tensor,
    routes: &Routes,
    places: Option<Places>,
) -> Result<Tensor> {
    LINEAR.float("w", w)?;
    LINEAR.contiguous("w", w)?;
    let (device, _, n) = check_product(x, routes, w, w.dims())?;
    let mut y = output(routes, n, &device)?;
    if y.shape().elements() == 0 {
        return Ok(y);
    }
    let rows = routes.rows(x)?;
    match &device {
        Device::Cuda(device) => {
            let sharing = if matches!(x, ExpertRows::Tokens(_)) { routes.top_k() } else { 1 };
            gpu::experts::linear(device, y.view_mut()?, &rows, w, routes, (sharing, places))?;
        }
        Device::Cpu => float_products(&mut y, &rows, w, routes)?,
    }
    Ok(y)
}

/// [`experts_linear`] with quantised matrices; activations are quantised to 8 bits.
///
/// ```
/// use pascaline::ops::{self, ExpertRows, Routes};
/// use pascaline::quant::Format;
/// use pascaline::{DType, Device, Tensor};
/// let w = ops::quantize(&Tensor::ones([2, 32], DType::F32, &Device::Cpu)?, Format::Q8_0)?; // two experts of one row
/// let routes = Routes::from_slices(&[1], &[1.0], 1, 2, &Device::Cpu)?;
/// let x = Tensor::ones([1, 32], DType::F32, &Device::Cpu)?;
/// let y = ops::quant_experts_linear(ExpertRows::Tokens(&x), &w, &routes)?;
/// assert!((y.to_vec::<f32>()?[0] - 32.0).abs() < 0.01);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn quant_experts_linear(x: ExpertRows, w: &QuantTensor, routes: &Routes) -> Result<Tensor> {
    quant_experts_linear_at(x, w, routes, None)
}

/// As [`quant_experts_linear`], with matrices at other places if there are few rows.
pub(crate) fn quant_experts_linear_at(
    x: ExpertRows,
    w: &QuantTensor,
    routes: &Routes,
    places: Option<Places>,
) -> Result<Tensor> {
    let (device, k, n) = check_product(x, routes, &w.quants, w.shape().dims())?;
    let rows = routes.rows(x)?;
    let (Device::Cuda(on), None) = (&device, &routes.sorted) else {
        return quant_experts_rows(&quantize_rows(&rows)?, w, routes);
    };
    let mut y = output(routes, n, &device)?;
    if y.shape().elements() > 0 {
        let sharing = if matches!(x, ExpertRows::Tokens(_)) { routes.top_k() } else { 1 };
        let rows = if k.is_multiple_of(4) { aligned(&rows)? } else { padded(&rows)? };
        gpu::experts::vectors(on, y.view_mut()?, &rows, w, routes, (sharing, places))?;
    }
    Ok(y)
}

/// [`quantize_rows`](super::quantize_rows()) of silu(gate)·up for each pair, in the order of `routes`: [pairs, n]. A GPU quantises each token's row once
/// and never stores the products, if both matrices have one format.
///
/// `x`: [tokens, k] f32; `gate`, `up`: [experts · n, k].
///
/// ```
/// use pascaline::ops::{self, Routes};
/// use pascaline::quant::Format;
/// use pascaline::{DType, Device, Tensor};
/// let w = ops::quantize(&Tensor::ones([2, 32], DType::F32, &Device::Cpu)?, Format::Q8_0)?; // two experts of one row
/// let routes = Routes::from_slices(&[1], &[1.0], 1, 2, &Device::Cpu)?;
/// let x = Tensor::ones([1, 32], DType::F32, &Device::Cpu)?;
/// let (quants, scales) = ops::quant_experts_gated(&x, &w, &w, &routes)?.to_vecs()?;
/// assert!((f32::from(quants[0]) * scales[0].0 - 32.0 * 32.0).abs() < 0.5);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`quant_experts_linear`]; [`Error::Shape`] if `up` has another shape than `gate`.
pub fn quant_experts_gated(
    x: &Tensor,
    gate: &QuantTensor,
    up: &QuantTensor,
    routes: &Routes,
) -> Result<QuantRows> {
    const CHECK: Check = Check("quant_experts_gated");
    let tokens = ExpertRows::Tokens(x);
    let (device, _, n) = check_product(tokens, routes, &gate.quants, gate.shape().dims())?;
    check_product(tokens, routes, &up.quants, up.shape().dims())?;
    if gate.shape() != up.shape() {
        return Err(misfit("up", format!("gate's, {}", gate.shape()), up.shape().clone()));
    }
    match (&device, &routes.sorted) {
        (Device::Cuda(device), Some(sorted)) if gate.format() == up.format() => {
            let mut rows = QuantRows::uninitialized([routes.pairs(), n].into(), &x.device())?;
            CHECK.size("y", &rows.quants)?;
            if rows.shape.elements() > 0 {
                gpu::experts::gated(device, &mut rows, &quantize_rows(x)?, [gate, up], sorted)?;
            }
            Ok(rows)
        }
        (Device::Cpu, Some(_)) => {
            let rows = quantize_rows(&routes.rows(tokens)?)?;
            let (mut of_gate, mut of_up) = (output(routes, n, &device)?, output(routes, n, &device)?);
            if of_gate.shape().elements() > 0 {
                let ys = &mut [of_gate.view_mut()?, of_up.view_mut()?];
                cpu::quant::grouped(ys, &rows, &[gate, up], &groups(routes, n)?)?;
            }
            quantize_rows(&silu_mul(&of_gate, &of_up)?)
        }
        (_, Some(_)) => {
            let rows = quantize_rows(&routes.rows(tokens)?)?;
            let [gate, up] = [gate, up].map(|w| quant_experts_rows(&rows, w, routes));
            quantize_rows(&silu_mul(&gate?, &up?)?)
        }
        (_, None) => {
            let [gate, up] = [gate, up].map(|w| quant_experts_linear(tokens, w, routes));
            quantize_rows(&silu_mul(&gate?, &up?)?)
        }
    }
}

/// As [`quant_experts_linear`] of [`ExpertRows::Pairs`], of rows that are quantised.
///
/// ```
/// use pascaline::ops::{self, Routes};
/// use pascaline::quant::Format;
/// use pascaline::{DType, Device, Tensor};
/// let w = ops::quantize(&Tensor::ones([2, 32], DType::F32, &Device::Cpu)?, Format::Q8_0)?; // two experts of one row
/// let routes = Routes::from_slices(&[1, 0], &[1.0, 1.0], 1, 2, &Device::Cpu)?; // two tokens
/// let x = ops::quantize_rows(&Tensor::ones([2, 32], DType::F32, &Device::Cpu)?)?;
/// let y = ops::quant_experts_rows(&x, &w, &routes)?.to_vec::<f32>()?;
/// assert!(y.iter().all(|y| (y - 32.0).abs() < 0.01));
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As there; [`Error::Unsupported`] for few tokens on a GPU, whose rows its kernels quantise themselves.
pub fn quant_experts_rows(x: &QuantRows, w: &QuantTensor, routes: &Routes) -> Result<Tensor> {
    let (pairs, k) = x.shape.rows_cols();
    let n = check_matrix(k, routes, &[("x", &x.quants), ("w", &w.quants)], w.shape().dims())?;
    if pairs != routes.pairs() {
        return Err(misfit("x", format!("[{}, {k}]", routes.pairs()), x.shape.clone()));
    }
    let device = x.quants.device();
    let mut y = output(routes, n, &device)?;
    if y.shape().elements() == 0 {
        return Ok(y);
    }
    match (&device, &routes.sorted) {
        (Device::Cuda(device), Some(_)) => gpu::experts::tiles(device, y.view_mut()?, x, w, routes)?,
        (Device::Cuda(_), None) => {
            let reason = "few tokens on a GPU: their rows stay f32".to_owned();
            return Err(LINEAR.unsupported("x", &x.shape, reason));
        }
        (Device::Cpu, _) => cpu::quant::grouped(&mut [y.view_mut()?], x, &[w], &groups(routes, n)?)?,
    }
    Ok(y)
}

/// The rows with zeros after them, so that each begins at a multiple of 16 bytes.
fn padded(x: &Tensor) -> Result<Tensor> {
    let &[rows, k] = x.dims() else { return Ok(x.clone()) }; // checked before
    let mut wide = Tensor::zeros([rows, k.next_multiple_of(4)], DType::F32, &x.device())?;
    copy_into(wide.view_mut()?.narrow(1, 0, k)?, x)?;
    Ok(wide)
}

/// Pairs whose experts the CPU passes through side by side: the products of so few rows are too short to be divided among threads one by
/// one.
const SIDE_BY_SIDE: usize = 256;

/// The rows of each expert that has any, and of its matrix of n rows; on the CPU.
fn groups(routes: &Routes, n: usize) -> Result<Vec<Group>> {
    let Some(sorted) = &routes.sorted else { return Ok(Vec::new()) }; // on the CPU they are
    let starts = sorted.starts.to_vec::<u32>()?;
    let ranges = starts.windows(2).map(|range| range[0] as usize..range[1] as usize).enumerate();
    Ok(ranges
        .filter(|(_, rows)| !rows.is_empty())
        .map(|(expert, rows)| Group { rows, first: expert * n })
        .collect())
}

/// The products of the experts' rows of x and their matrices of f32 or f16, on the CPU: of few pairs a task has some columns of all rows of an
/// expert.
fn float_products(y: &mut Tensor, x: &Tensor, w: &Tensor, routes: &Routes) -> Result<()> {
    let product = |y: TensorMut, rows: &Range<usize>, first: usize, columns: usize| {
        let (x, w) = (x.narrow(0, rows.start, rows.len())?, w.narrow(0, first, columns)?);
        linear_into(y, &x, &w, None, &Epilogue::default())
    };
    let n = y.dims()[1];
    let groups = groups(routes, n)?;
    if routes.pairs() > SIDE_BY_SIDE {
        return groups.into_iter().try_for_each(|Group { rows, first }| {
            product(y.view_mut()?.narrow(0, rows.start, rows.len())?, &rows, first, n)
        });
    }
    let parts = groups.into_iter().flat_map(|group| {
        (0..n)
            .step_by(GROUP_COLUMNS)
            .map(move |column| (group.clone(), column, GROUP_COLUMNS.min(n - column)))
    });
    let mut parts: Vec<_> = parts.map(|part| (part, None)).collect();
    parts.par_iter_mut().try_in_tasks(|((Group { rows, first }, column, columns), product_of_part)| {
        let mut y = Tensor::uninitialized([rows.len(), *columns], DType::F32, &Device::Cpu)?;
        product(y.view_mut()?, rows, *first + *column, *columns)?;
        *product_of_part = Some(y);
        Ok(())
    })?;
    parts.into_iter().try_for_each(|((Group { rows, .. }, column, columns), part)| match part {
        Some(part) => {
            copy_into(y.view_mut()?.narrow(0, rows.start, rows.len())?.narrow(1, column, columns)?, &part)
        }
        None => Ok(()), // there is none: each task has ended without an error
    })
}

/// `y[t, :] = Σ weight · x[pair, :] + residual[t, :]` over the pairs of each token, the first choice first.
///
/// `x`: [pairs, n] f32 in the order of `routes`, as products give it; `residual`: [tokens, n] f32.
///
/// ```
/// use pascaline::ops::{self, Routes};
/// use pascaline::{Device, Tensor};
/// let routes = Routes::from_slices(&[0, 1], &[0.25, 0.75], 2, 2, &Device::Cpu)?; // one token with both experts
/// let x = Tensor::from_slice(&[4.0f32, 8.0], [2, 1], &Device::Cpu)?;
/// let residual = Tensor::from_slice(&[100.0f32], [1, 1], &Device::Cpu)?;
/// assert_eq!(ops::experts_sum(&x, &routes, Some(&residual))?.to_vec::<f32>()?, [0.25 * 4.0 + 0.75 * 8.0 + 100.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn experts_sum(x: &Tensor, routes: &Routes, residual: Option<&Tensor>) -> Result<Tensor> {
    let n = x.dims().last().copied().unwrap_or(0);
    let mut y = Tensor::uninitialized([routes.tokens(), n], DType::F32, &x.device())?;
    experts_sum_into(y.view_mut()?, x, routes, residual)?;
    Ok(y)
}

/// [`experts_sum`] into `y` [tokens, n].
pub fn experts_sum_into(y: TensorMut, x: &Tensor, routes: &Routes, residual: Option<&Tensor>) -> Result<()> {
    const CHECK: Check = Check("experts_sum");
    CHECK.dtype("x", x, DType::F32)?;
    CHECK.dtype("y", &y, DType::F32)?;
    let &[rows, n] = x.dims() else { return Err(CHECK.bad_shape("x", x, "[tokens · top_k, n]")) };
    if rows != routes.pairs() {
        return Err(CHECK.bad_shape("x", x, format!("[{}, n]", routes.pairs())));
    }
    CHECK.shape("y", &y, &[routes.tokens(), n], "[tokens, n]")?;
    CHECK.contiguous("x", x)?;
    CHECK.contiguous("y", &y)?;
    let mut inputs = vec![("x", x), ("routes", &routes.ids)];
    if let Some(residual) = residual {
        CHECK.dtype("residual", residual, DType::F32)?;
        CHECK.shape("residual", residual, &[routes.tokens(), n], "[tokens, n]")?;
        CHECK.contiguous("residual", residual)?;
        inputs.push(("residual", residual));
    }
    match CHECK.device(&y, &inputs)? {
        Device::Cpu => cpu::experts::sum(y, x, routes, residual),
        Device::Cuda(device) => gpu::experts::sum(&device, y, x, routes, residual),
    }
}
