//! A file to be written: its keys and tensors, laid out before any value is known.

use pascaline::quant::GgmlType;

/// A key's value as it is written.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// Unsigned, of 32 bits.
    U32(u32),
    /// Of 32 bits.
    F32(f32),
    /// A boolean.
    Bool(bool),
    /// Text.
    Text(String),
    /// Signed numbers of 32 bits.
    I32s(Vec<i32>),
    /// Floating-point numbers of 32 bits.
    F32s(Vec<f32>),
    /// Booleans.
    Bools(Vec<bool>),
    /// Texts.
    Texts(Vec<String>),
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

impl Field {
    /// Appends the type's number, for lists also the element type's, and the value.
    fn write(&self, bytes: &mut Vec<u8>) {
        let list = |bytes: &mut Vec<u8>, kind: u32, count: usize| {
            bytes.extend(9u32.to_le_bytes().into_iter().chain(kind.to_le_bytes()));
            bytes.extend((count as u64).to_le_bytes());
        };
        match self {
            Self::U32(value) => bytes.extend(4u32.to_le_bytes().into_iter().chain(value.to_le_bytes())),
            Self::F32(value) => bytes.extend(6u32.to_le_bytes().into_iter().chain(value.to_le_bytes())),
            Self::Bool(value) => bytes.extend(7u32.to_le_bytes().into_iter().chain([u8::from(*value)])),
            Self::Text(value) => {
                bytes.extend(8u32.to_le_bytes());
                text(bytes, value);
            }
            Self::I32s(values) => {
                list(bytes, 5, values.len());
                bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Self::F32s(values) => {
                list(bytes, 6, values.len());
                bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Self::Bools(values) => {
                list(bytes, 7, values.len());
                bytes.extend(values.iter().map(|&value| u8::from(value)));
            }
            Self::Texts(values) => {
                list(bytes, 8, values.len());
                values.iter().for_each(|value| text(bytes, value));
            }
        }
    }
}

/// A tensor of a file to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedTensor {
    /// Its name in the file.
    pub name: String,
    /// How it is stored.
    pub ty: GgmlType,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The published tensor whose values it has.
    pub published: String,
    /// For a patch embedding's weight [rows, channels, frames, height, width]: which frame it is, and of how many.
    pub frame: Option<(usize, usize)>,
}

impl PlannedTensor {
    /// Its bytes without padding.
    pub fn bytes(&self) -> usize {
        self.ty.bytes(self.shape.iter().product())
    }

    /// Its rows and columns.
    pub fn matrix(&self) -> [usize; 2] {
        [self.shape[..self.shape.len() - 1].iter().product(), self.shape[self.shape.len() - 1]]
    }

    /// Extracts its values from those of the published tensor.
    pub fn values(&self, published: Vec<f32>) -> Vec<f32> {
        let Some((frame, frames)) = self.frame else { return published };
        let patch = self.shape[2..].iter().product();
        published.chunks_exact(patch).skip(frame).step_by(frames).flatten().copied().collect()
    }
}

/// A file to be written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Its keys, in order.
    pub keys: Vec<(String, Field)>,
    /// Its tensors, in order.
    pub tensors: Vec<PlannedTensor>,
}

impl Plan {
    /// Tensors and their padding end at multiples of this.
    pub const ALIGNMENT: usize = 32;

    /// Everything before the tensors, with padding. Each tensor follows, padded with zeros to
    /// [`ALIGNMENT`](Self::ALIGNMENT).
    pub fn header(&self) -> Vec<u8> {
        let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes()].concat();
        for count in [self.tensors.len(), self.keys.len()] {
            bytes.extend((count as u64).to_le_bytes());
        }
        for (key, field) in &self.keys {
            text(&mut bytes, key);
            field.write(&mut bytes);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            text(&mut bytes, &tensor.name);
            bytes.extend((tensor.shape.len() as u32).to_le_bytes());
            bytes.extend(tensor.shape.iter().rev().flat_map(|&dim| (dim as u64).to_le_bytes()));
            bytes.extend(tensor.ty.id().to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            offset += tensor.bytes().next_multiple_of(Self::ALIGNMENT) as u64;
        }
        bytes.resize(bytes.len().next_multiple_of(Self::ALIGNMENT), 0);
        bytes
    }

    /// The parameters of all tensors.
    pub fn parameters(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A weight [rows, channels, frames, height, width] of 2 × 1 × 2 × 1 × 3 values.
    #[test]
    fn a_frame_has_the_values_of_its_place() {
        let of = |frame| {
            let (name, published) = (String::new(), String::new());
            let tensor = PlannedTensor { name, ty: GgmlType::F32, shape: vec![2, 1, 1, 3], published, frame };
            tensor.values((0..12u8).map(f32::from).collect())
        };
        assert_eq!(of(None).len(), 12);
        assert_eq!(of(Some((0, 2))), [0.0, 1.0, 2.0, 6.0, 7.0, 8.0]);
        assert_eq!(of(Some((1, 2))), [3.0, 4.0, 5.0, 9.0, 10.0, 11.0]);
    }
}
