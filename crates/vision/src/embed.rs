//! An image as the input of an embedding model.

use base::{Error, Result};

use crate::Image;

/// The order of a tensor's axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Item, channel, row, column.
    Nchw,
    /// Item, row, column, channel.
    Nhwc,
}

/// The order of the channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Red first.
    Rgb,
    /// Blue first.
    Bgr,
}

/// How an image of any shape becomes one of the model's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// All of it, its sides scaled apart.
    Stretch,
    /// Scaled until it covers, then its middle.
    CentreCrop,
    /// Scaled until it fits, then grey around it: the colour that becomes the mean.
    Pad,
}

/// What a model expects of its input; [`Preprocess::default`] is ImageNet's convention.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocess {
    /// Columns of the input.
    pub width: u32,
    /// Rows of the input.
    pub height: u32,
    /// The order of its axes.
    pub layout: Layout,
    /// The order of its channels.
    pub order: Order,
    /// What a byte is multiplied by first.
    pub scale: f32,
    /// What is subtracted from red, green and blue then.
    pub mean: [f32; 3],
    /// What they are divided by last.
    pub std: [f32; 3],
    /// How the shape is made to fit.
    pub fit: Fit,
}

impl Default for Preprocess {
    /// 224 x 224, channels first, red first, ImageNet's mean and deviation (of torchvision's
    /// models), stretched.
    fn default() -> Self {
        Preprocess {
            width: 224,
            height: 224,
            layout: Layout::Nchw,
            order: Order::Rgb,
            scale: 1.0 / 255.0,
            mean: [0.485, 0.456, 0.406],
            std: [0.229, 0.224, 0.225],
            fit: Fit::Stretch,
        }
    }
}

impl Preprocess {
    /// Numbers of one image's input: 3 * width * height.
    pub fn len(&self) -> usize {
        3 * self.width as usize * self.height as usize
    }

    /// Whether the input has no pixels.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes one image's input.
    ///
    /// # Errors
    /// `InvalidArgument` when `out` does not have [`Preprocess::len`] numbers.
    pub fn write(&self, image: &Image, out: &mut [f32]) -> Result<()> {
        if out.len() != self.len() || self.is_empty() {
            let (room, needed) = (out.len(), self.len());
            return Err(Error::invalid(format!(
                "a model's input of {needed} numbers does not fit into {room}"
            )));
        }
        let fitted = self.fitted(image);
        let plane = self.width as usize * self.height as usize;
        for (channel, (mean, std)) in self.mean.iter().zip(self.std).enumerate() {
            let place = if self.order == Order::Rgb { channel } else { 2 - channel };
            let (start, step) = match self.layout {
                Layout::Nchw => (place * plane, 1),
                Layout::Nhwc => (place, 3),
            };
            let values = fitted.rgb.iter().skip(channel).step_by(3);
            for (out, &byte) in out.iter_mut().skip(start).step_by(step).zip(values) {
                *out = (f32::from(byte) * self.scale - mean) / std;
            }
        }
        Ok(())
    }

    fn fitted(&self, image: &Image) -> Image {
        if self.fit == Fit::Stretch {
            return image.resized(self.width, self.height);
        }
        let (wide, high) = (
            f64::from(self.width) / f64::from(image.width),
            f64::from(self.height) / f64::from(image.height),
        );
        let factor = if self.fit == Fit::Pad { wide.min(high) } else { wide.max(high) };
        // A side of one pixel may have to become very long to keep a shape; it is cut to what is
        // looked at.
        let side = |length: u32, wanted: u32| {
            let scaled = ((f64::from(length) * factor).round() as u32).max(1);
            if self.fit == Fit::Pad {
                scaled.min(wanted)
            } else {
                scaled.clamp(wanted, wanted.saturating_mul(16))
            }
        };
        self.placed(&image.resized(side(image.width, self.width), side(image.height, self.height)))
    }

    /// `inner` in the middle of the input's frame; what lies outside is cut, what is missing is the
    /// mean's colour.
    fn placed(&self, inner: &Image) -> Image {
        let colour = self.mean.map(|mean| (mean / self.scale).clamp(0.0, 255.0) as u8);
        let (width, height) = (self.width as usize, self.height as usize);
        let mut rgb = colour.repeat(width * height);
        let offset = |inner: u32, outer: u32| {
            let (inner, outer) = (inner as usize, outer as usize);
            (inner.saturating_sub(outer) / 2, outer.saturating_sub(inner) / 2, inner.min(outer))
        };
        let (from_x, to_x, columns) = offset(inner.width, self.width);
        let (from_y, to_y, rows) = offset(inner.height, self.height);
        let source = inner.rgb.chunks_exact(inner.width as usize * 3).skip(from_y);
        for (to, from) in rgb.chunks_exact_mut(width * 3).skip(to_y).zip(source).take(rows) {
            let to = to.iter_mut().skip(to_x * 3);
            to.zip(from.iter().skip(from_x * 3))
                .take(columns * 3)
                .for_each(|(to, from)| *to = *from);
        }
        Image { width: self.width, height: self.height, rgb }
    }
}
