//! The limits of a request.

use super::account::default_memory;
use qwen3_vl::preprocess::MAX_PIXELS;
use std::time::Duration;

/// The most bytes of a video's decoded frames: 64 of 1182 × 1182 pixels.
const VIDEO_BYTES: usize = 256 << 20;

/// The limits of a request. One that exceeds them is answered with a 4xx and a sentence.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Bytes of a body.
    pub body: usize,
    /// Pictures and videos of a request.
    pub pictures: usize,
    /// Pixels of a picture file; larger ones are not decoded.
    pub pixels: u64,
    /// The most pixels that a request may have pictures resized to. Without a request's own limits, the model's processor has
    /// them.
    pub resized_pixels: usize,
    /// Tokens of a prompt and its answer together.
    pub context: usize,
    /// Time from the request's first byte to the answer's last one.
    pub time: Duration,
    /// Open connections; on more, only `/health` is answered.
    pub connections: usize,
    /// Bytes of host memory that all requests together may take: their bodies, what is parsed of them, and prompts with
    /// their pictures until the answer has ended.
    pub memory: usize,
    /// Hosts from which pictures and videos are fetched.
    pub image_hosts: Vec<String>,
    /// Whether videos are read that are no animated pictures: by the program ffmpeg, which then decodes the files of
    /// strangers.
    pub reads_video_files: bool,
}

impl Limits {
    /// The default limits for a context of `context` tokens.
    pub fn for_context(context: usize) -> Self {
        Self {
            body: 32 << 20,
            pictures: 16,
            pixels: MAX_PIXELS,
            resized_pixels: 1 << 24,
            context,
            time: Duration::from_secs(600),
            connections: 512,
            memory: default_memory(),
            image_hosts: Vec::new(),
            reads_video_files: true,
        }
    }

    /// Bytes of a video's decoded frames; a frame of a video file that has more than its share is shrunk.
    pub(crate) fn video_bytes(&self) -> usize {
        VIDEO_BYTES.min(self.memory / 8)
    }
}
