//! How fast GPUs read matrices: what decides how layers are shared out among unlike ones.

use super::fit::memory_speed;
use pascaline::cuda::CudaDevice;
use pascaline::nn::Linear;
use pascaline::{DType, Device, Error, Result, Tensor, memory};

/// Bytes of the matrix that is read: beyond every Pascal card's L2 cache.
const BYTES: usize = 128 << 20;
const WIDTH: usize = 4096;
/// Times that it is read; the fastest counts.
const TIMES: usize = 5;

/// Bytes per second of each GPU: measured where their kinds differ, else by their clocks, as alike ones get equal shares anyway. Those of
/// virtual ones are by their clocks. Also returns a note for the user.
pub(super) fn speeds(gpus: &[&CudaDevice]) -> Result<(Vec<f64>, Option<String>)> {
    let by_clocks = || gpus.iter().map(|gpu| memory_speed(gpu.properties())).collect::<Vec<_>>();
    let name = |gpu: &CudaDevice| gpu.properties().name.clone();
    if gpus.iter().all(|gpu| gpu.is_virtual() || name(gpu) == name(gpus[0])) {
        return Ok((by_clocks(), None));
    }
    let measured = gpus.iter().map(|gpu| measured(gpu, BYTES)).collect::<Result<Vec<_>>>();
    let measured = match measured {
        Err(Error::OutOfMemory { .. }) => {
            let note = "there is no room to measure how fast the cards read; their memory clocks decide";
            return Ok((by_clocks(), Some(note.to_owned())));
        }
        measured => measured?,
    };
    let each =
        gpus.iter().zip(&measured).map(|(gpu, speed)| format!("{} {:.0} GB/s", name(gpu), speed / 1e9));
    let note = format!("measured, a matrix-vector product reads: {}", each.collect::<Vec<_>>().join(", "));
    Ok((measured, Some(note)))
}

/// Bytes per second of a product of an f16 matrix of so many bytes and a vector, to two digits: what varies from run to run moves no
/// layer.
fn measured(gpu: &CudaDevice, bytes: usize) -> Result<f64> {
    let device = Device::Cuda(gpu.clone());
    let rows = bytes / (WIDTH * DType::F16.size());
    let matrix = Linear::new(Tensor::zeros([rows, WIDTH], DType::F16, &device)?, None)?;
    let x = Tensor::zeros([1, WIDTH], DType::F32, &device)?;
    matrix.forward(&x)?; // the kernel is loaded
    let [begin, end] = [gpu.event()?, gpu.event()?];
    let mut least = f64::INFINITY;
    for _ in 0..TIMES {
        begin.record(gpu.stream())?;
        matrix.forward(&x)?;
        end.record(gpu.stream())?;
        end.synchronize()?;
        least = least.min(end.since(&begin)?.as_secs_f64());
    }
    drop((matrix, x));
    memory::pool(gpu)?.trim()?;
    Ok(two_digits(bytes as f64 / least.max(f64::MIN_POSITIVE)))
}

fn two_digits(value: f64) -> f64 {
    let unit = 10f64.powf(value.log10().floor() - 1.0);
    (value / unit).round() * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_moves_no_digit() {
        assert_eq!([two_digits(346.4e9), two_digits(349.9e9)], [350e9; 2]);
        assert_eq!(two_digits(48.2e9).round(), 48e9);
    }

    #[test]
    fn a_card_reads_no_faster_than_its_memory() {
        let Ok(device) = Device::virtual_gpu() else { return };
        let Device::Cuda(gpu) = device else { unreachable!("a virtual GPU") };
        let (found, most) = (measured(&gpu, 4 << 20).unwrap(), memory_speed(gpu.properties()));
        assert!(found > most / 20.0 && found < most * 1.05, "{found:e} of {most:e}");
    }
}
