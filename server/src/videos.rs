//! Which frames of a request's videos are seen. `images` decodes them.

use super::error::ApiError;
use super::fields::{Fields, wrong};
use qwen3_vl::Visual;
use qwen3_vl::preprocess::PictureHeader;
use qwen3_vl::video::FrameSampling;

type Result<T> = std::result::Result<T, ApiError>;

/// The most frames of a video, those of the published processors.
pub(crate) const MAX_FRAMES: usize = 768;
/// The most frames per second.
const MAX_RATE: f64 = 1000.0;

/// The frames that a part or a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Frames {
    rate: Option<f64>,
    most: Option<usize>,
}

impl Frames {
    /// `fps`, and `max_frames` or, as others call it, `num_frames`.
    pub fn read(fields: &Fields) -> Result<Self> {
        let rate = fields.number("fps")?;
        if rate.is_some_and(|rate| !(rate > 0.0 && rate <= MAX_RATE))
            && let Some(found) = fields.get("fps")
        {
            return Err(wrong(&fields.path("fps"), &format!("above 0 and at most {MAX_RATE}"), found));
        }
        let [most, number] = ["max_frames", "num_frames"].map(|name| fields.whole(name, 1, MAX_FRAMES));
        Ok(Self { rate, most: most?.or(number?) })
    }

    /// Those of a whole request, as vLLM takes them: its own, of `mm_processor_kwargs`, and of `media_io_kwargs` for videos.
    pub fn for_all(fields: &Fields) -> Result<Self> {
        let of_readers = fields.object("media_io_kwargs")?;
        let of_videos = of_readers.map(|readers| readers.object("video")).transpose()?.flatten();
        let mut all = Self::read(fields)?;
        for fields in [fields.object("mm_processor_kwargs")?, of_videos].iter().flatten() {
            all = all.or(Self::read(fields)?);
        }
        Ok(all)
    }

    /// These, and those of `others` where these are open.
    pub fn or(self, others: Self) -> Self {
        Self { rate: self.rate.or(others.rate), most: self.most.or(others.most) }
    }

    /// With the published processors' rate, and the usual most, where these are open.
    pub fn sampling(self) -> FrameSampling {
        let FrameSampling { rate, most } = FrameSampling::default();
        FrameSampling { rate: self.rate.unwrap_or(rate), most: self.most.unwrap_or(most) }
    }
}

/// The number of a video's frames, and the size of each.
pub(crate) fn frames(visual: &Visual) -> (usize, PictureHeader) {
    let (frames, of_one) = match visual {
        Visual::Video { frames, .. } => (frames.len(), frames.first()),
        Visual::Image { picture, .. } => (1, Some(picture)),
    };
    let (height, width) = of_one.map_or((0, 0), |frame| (frame.height, frame.width));
    (frames, PictureHeader { height, width, bytes: 3 * height * width })
}
