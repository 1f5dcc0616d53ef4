//! Keys and values in the formats that attention reads.

use crate::quant::{self, Format};
use crate::{DType, Device, Error, MAX_ELEMENTS, Result, Tensor, TensorMut, float16::EXPONENT_BITS};
use kernels_gpu::kv::{HostBlocks, Storage};
use kernels_gpu::quant::blocks::BLOCK;
use std::fmt;
use std::str::FromStr;

macro_rules! formats {
    ($($(#[$about:meta])* $format:ident $file:ident $name:literal;)*) => {
        /// The format in which keys and values are stored. Arithmetic on them is f32.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum KvFormat {
            /// Single precision, as computed.
            F32,
            /// A 16-bit float with this many exponent bits (2 to 8). Values beyond the largest number become the largest, except in
            /// IEEE half precision, [`F16`](Self::F16), where they become infinite.
            Float16(u32),
            $($(#[$about])* $format,)*
        }

        impl KvFormat {
            /// Every format.
            pub const ALL: [Self; 8 + [$($name),*].len()] = [
                Self::F32,
                Self::Float16(2),
                Self::Float16(3),
                Self::Float16(4),
                Self::F16,
                Self::Float16(6),
                Self::Float16(7),
                Self::BF16,
                $(Self::$format,)*
            ];

            /// The format of weights with the same blocks, for formats of blocks.
            pub const fn blocks(self) -> Option<Format> {
                match self {
                    Self::F32 | Self::Float16(_) => None,
                    $(Self::$format => Some(Format::$format),)*
                }
            }

            /// A value's error in a format of blocks, at most, relative to the largest of its block.
            pub const fn block_error(self) -> Option<f64> {
                match self {
                    Self::F32 | Self::Float16(_) => None,
                    $(Self::$format => Some(kernels_gpu::kv::$file::$format::LARGEST_ERROR),)*
                }
            }

            /// How kernels store it.
            pub(crate) const fn storage(self) -> Storage {
                match self {
                    Self::F32 => Storage::F32,
                    Self::F16 => Storage::F16,
                    Self::Float16(_) => Storage::Coded,
                    $(Self::$format => Storage::$format,)*
                }
            }
        }
    };
}
kernels_gpu::for_each_kv_format!(formats);

impl KvFormat {
    /// IEEE half precision.
    pub const F16: Self = Self::Float16(5);
    /// bfloat16.
    pub const BF16: Self = Self::Float16(8);

    /// The name for [`from_str`](Self::from_str) and the command line: `f32`, `f16`, `bf16`, that of the format of weights, or `e2` to
    /// `e7` for the 16-bit floats without a common name.
    pub const fn name(self) -> &'static str {
        match (self, self.blocks()) {
            (Self::Float16(2), _) => "e2",
            (Self::Float16(3), _) => "e3",
            (Self::Float16(4), _) => "e4",
            (Self::Float16(5), _) => "f16",
            (Self::Float16(6), _) => "e6",
            (Self::Float16(7), _) => "e7",
            (Self::Float16(8), _) => "bf16",
            (Self::Float16(_), _) => "no format",
            (_, Some(blocks)) => quant::name(blocks),
            (_, None) => "f32",
        }
    }

    /// Bits of a value, not counting scales.
    const fn value_bits(self) -> usize {
        match (self, self.blocks()) {
            (_, Some(blocks)) => quant::bits(blocks),
            (Self::F32, None) => 32,
            (_, None) => 16,
        }
    }

    /// Bits of a value in memory, with its part of a scale.
    pub fn stored_bits(self) -> f64 {
        self.blocks().map_or(self.value_bits() as f64, |blocks| blocks.descriptor().stored_bits())
    }

    /// The relative error on normal values (root mean square), at most.
    pub fn error(self) -> f64 {
        match (self, self.blocks()) {
            (_, Some(blocks)) => quant::error(blocks),
            (Self::Float16(bits), None) => 0.5f64.powi(16 - bits as i32), // half a unit in the last place
            (_, None) => 0.0,
        }
    }

    /// The exponent bits of a 16-bit float, else 0.
    pub(crate) const fn exponent_bits(self) -> u32 {
        if let Self::Float16(bits) = self { bits } else { 0 }
    }

    /// Columns of a row of `dim` in memory, with padding to whole blocks.
    const fn width(self, dim: usize) -> usize {
        if self.blocks().is_some() { dim.next_multiple_of(BLOCK) } else { dim }
    }

    /// Rejects numbers of exponent bits without a format; the error names an op and its argument.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn check(self, op: &'static str, argument: &'static str) -> Result<()> {
        match self {
            Self::Float16(bits) if !EXPONENT_BITS.contains(&bits) => {
                let (value, reason) =
                    (format!("Float16({bits})"), "a format has 2 to 8 exponent bits".into());
                Err(Error::Unsupported { op, argument, value, reason })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for KvFormat {
    type Err = Error;

    /// Parses a [`name`](Self::name).
    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| Error::Unsupported {
            op: "KvFormat",
            argument: "name",
            value: name.into(),
            reason: format!("the formats are {}", Self::ALL.map(Self::name).join(", ")),
        })
    }
}

/// Keys or values [tokens, heads, dim] of one sequence, in a format.
///
/// [`ops::rope_append_into`](crate::ops::rope_append_into) writes them, [`ops::attention_over_into`](crate::ops::attention_over_into)
/// reads them.
///
/// ```
/// use pascaline::Device;
/// use pascaline::kv::{KvFormat, KvTensor};
/// let k = KvTensor::uninitialized([1024, 8, 128], "q8_0".parse()?, &Device::Cpu)?;
/// assert_eq!((k.format(), k.dims()), (KvFormat::Q8_0, [1024, 8, 128]));
/// assert_eq!(k.bytes(), 1024 * 8 * (128 + 4 * 2)); // 8 bits a value, and an f16 scale for 32
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Debug)]
pub struct KvTensor {
    format: KvFormat,
    dims: [usize; 3],
    pub(crate) values: Tensor,
    pub(crate) scales: Option<Tensor>,
}

/// Keys or values as the kernels read them.
#[derive(Clone, Copy)]
pub(crate) struct KvView<'a> {
    pub format: KvFormat,
    /// f32 or f16; for other 16-bit floats the codes as f16 with the same bits; for blocks their quants as words.
    pub values: &'a Tensor,
    /// The scales of blocks.
    pub scales: Option<&'a Tensor>,
}

impl<'a> KvView<'a> {
    /// The view of a tensor in f32 or f16, which `ops` has checked.
    pub fn plain(values: &'a Tensor) -> Self {
        let format = if values.dtype() == DType::F16 { KvFormat::F16 } else { KvFormat::F32 };
        Self { format, values, scales: None }
    }
}

/// Keys or values for writing; see [`KvTensor::view_mut`].
#[derive(Debug)]
pub struct KvMut<'a> {
    pub(crate) format: KvFormat,
    pub(crate) dims: [usize; 3],
    pub(crate) values: TensorMut<'a>,
    pub(crate) scales: Option<TensorMut<'a>>,
}

impl KvTensor {
    /// A tensor with undefined contents, for [`ops::rope_append_into`](crate::ops::rope_append_into) to write.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a number of exponent bits without a format, [`Error::OutOfMemory`].
    pub fn uninitialized(
        dims @ [tokens, heads, dim]: [usize; 3],
        format: KvFormat,
        device: &Device,
    ) -> Result<Self> {
        const OP: &str = "KvTensor";
        format.check(OP, "format")?;
        // the limit includes a row's padding, which is less than a block
        let (elements, limit) =
            (tokens as u128 * heads as u128 * (dim as u128 + BLOCK as u128), MAX_ELEMENTS as u128);
        let none = tokens == 0 || heads == 0;
        if dim > MAX_ELEMENTS - BLOCK || !none && elements > limit {
            return Err(Error::TooLarge { op: OP, argument: "dims", elements, limit });
        }
        let (width, dtype) = match format {
            KvFormat::F32 => (dim, DType::F32),
            KvFormat::Float16(_) => (dim, DType::F16),
            _ => (format.width(dim), DType::U32),
        };
        let shape = [tokens, heads, width * format.value_bits() / (8 * dtype.size())];
        // padding is copied with the other columns, so it must be initialised
        let values = match width == dim {
            true => Tensor::uninitialized(shape, dtype, device)?,
            false => Tensor::zeros(shape, dtype, device)?,
        };
        let scales = || Tensor::uninitialized([tokens, heads, width / BLOCK], DType::F16, device);
        let scales = format.blocks().map(|_| scales()).transpose()?;
        Ok(Self { format, dims, values, scales })
    }

    /// The size in bytes of each allocation for keys or values of these dimensions.
    pub fn part_bytes(format: KvFormat, [tokens, heads, dim]: [usize; 3]) -> Vec<usize> {
        let values = tokens * heads * format.width(dim);
        let scales = format.blocks().map(|_| values / BLOCK * 2);
        [values / 8 * format.value_bits()].into_iter().chain(scales).collect()
    }

    /// The format of its values.
    pub fn format(&self) -> KvFormat {
        self.format
    }

    /// [tokens, heads, dim]
    pub fn dims(&self) -> [usize; 3] {
        self.dims
    }

    /// The device that it is on, with the stream.
    pub fn device(&self) -> Device {
        self.values.device()
    }

    /// Bytes of memory, with padding and scales.
    pub fn bytes(&self) -> usize {
        let bytes = |x: &Tensor| x.shape().elements() * x.dtype().size();
        bytes(&self.values) + self.scales.as_ref().map_or(0, bytes)
    }

    /// The keys or values for writing.
    pub fn view_mut(&mut self) -> Result<KvMut<'_>> {
        let Self { format, dims, values, scales } = self;
        let scales = scales.as_mut().map(Tensor::view_mut).transpose()?;
        Ok(KvMut { format: *format, dims: *dims, values: values.view_mut()?, scales })
    }

    /// The tensors that hold it. f32 or f16 [tokens, heads, dim]; the codes of another 16-bit float are f16 with the same
    /// bits. For [`blocks`](KvFormat::blocks), u32 words of quants, with rows padded to whole blocks of 32, and the blocks' f16
    /// scales.
    pub fn parts(&self) -> (&Tensor, Option<&Tensor>) {
        (&self.values, self.scales.as_ref())
    }

    pub(crate) fn view(&self) -> KvView<'_> {
        KvView { format: self.format, values: &self.values, scales: self.scales.as_ref() }
    }

    /// Columns of a row in memory, with padding.
    pub(crate) fn width(&self) -> usize {
        self.format.width(self.dims[2])
    }
}

impl KvMut<'_> {
    /// `len` tokens from `start` on.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are fewer tokens.
    pub fn narrow(self, start: usize, len: usize) -> Result<Self> {
        let Self { format, dims: [_, heads, dim], values, scales } = self;
        let scales = scales.map(|scales| scales.narrow(0, start, len)).transpose()?;
        Ok(Self { format, dims: [len, heads, dim], values: values.narrow(0, start, len)?, scales })
    }
}
