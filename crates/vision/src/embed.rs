//! Converts an image to the input of an embedding model.

use base::{Error, Result};

use crate::Image;
use crate::pixels::{FittedSize, RESIZED_BYTES, RGB_BYTES};

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

/// Method that brings an image to the shape of the model's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Scale each side on its own.
    Stretch,
    /// Scale until the image covers the input, then take its middle.
    CentreCrop,
    /// Scale until the image fits, then pad with the colour that becomes the mean.
    Pad,
}

/// Input format of a model. [`Preprocess::default`] is ImageNet's convention.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocess {
    /// Columns of the input.
    pub width: u32,
    /// Rows of the input.
    pub height: u32,
    /// Order of the axes.
    pub layout: Layout,
    /// Order of the channels.
    pub order: Order,
    /// First step: factor of each byte.
    pub scale: f32,
    /// Second step: subtracted from red, green and blue.
    pub mean: [f32; 3],
    /// Last step: divisor of red, green and blue.
    pub std: [f32; 3],
    /// Method that fits the image's shape.
    pub fit: Fit,
}

impl Default for Preprocess {
    /// Returns the input of torchvision's models: 224 x 224, channels first, red first, ImageNet's
    /// mean and deviation, stretched.
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
    /// Returns the number of values of one image's input: 3 * width * height.
    pub fn len(&self) -> usize {
        3 * self.width as usize * self.height as usize
    }

    /// Returns true if the input has no pixels.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the input of one image.
    ///
    /// # Errors
    /// `InvalidArgument` if `out` does not have [`Preprocess::len`] values.
    ///
    /// # Example: two pixels, channels last
    /// ```
    /// use millpond_vision::{Image, Layout, Preprocess};
    ///
    /// let image = Image { width: 2, height: 1, rgb: vec![255, 0, 0, 0, 0, 255] };
    /// let format = Preprocess {
    ///     width: 2,
    ///     height: 1,
    ///     layout: Layout::Nhwc,
    ///     mean: [0.0; 3],
    ///     std: [1.0; 3],
    ///     ..Preprocess::default()
    /// };
    /// let mut input = vec![0.0; format.len()];
    /// format.write(&image, &mut input)?;
    /// assert_eq!(input, [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    /// # Ok::<(), base::Error>(())
    /// ```
    pub fn write(&self, image: &Image, out: &mut [f32]) -> Result<()> {
        if out.len() != self.len() || self.is_empty() {
            let room = out.len();
            let needed = self.len();
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

    /// Returns an upper bound of the bytes that [`Preprocess::write`] allocates for an image of
    /// these sides or of the turned image. A wide image needs far more than its pixels, because its
    /// rows are scaled first.
    pub fn work_bytes(&self, width: u32, height: u32) -> u64 {
        let of_image = |width: u32, height: u32| {
            let fitted = self.fitted_size(width, height);
            let rows = u64::from(fitted.height);
            RESIZED_BYTES * u64::from(width) * rows + RGB_BYTES * u64::from(fitted.width) * rows
        };
        let input = RGB_BYTES * u64::from(self.width) * u64::from(self.height);
        of_image(width, height).max(of_image(height, width)) + input
    }

    fn fitted(&self, image: &Image) -> Image {
        let FittedSize { width, height } = self.fitted_size(image.width, image.height);
        let resized = image.resized(width, height);
        if self.fit == Fit::Stretch { resized } else { self.placed(&resized) }
    }

    /// Returns the size that an image of these sides is scaled to before it is cut or padded.
    fn fitted_size(&self, width: u32, height: u32) -> FittedSize {
        if self.fit == Fit::Stretch {
            return FittedSize { width: self.width, height: self.height };
        }
        let wide = f64::from(self.width) / f64::from(width);
        let high = f64::from(self.height) / f64::from(height);
        let factor = if self.fit == Fit::Pad { wide.min(high) } else { wide.max(high) };
        // A side of one pixel may have to become very long to keep the shape, so it is cut.
        let side = |length: u32, wanted: u32| {
            let scaled = ((f64::from(length) * factor).round() as u32).max(1);
            if self.fit == Fit::Pad {
                scaled.min(wanted)
            } else {
                scaled.clamp(wanted, wanted.saturating_mul(16))
            }
        };
        FittedSize { width: side(width, self.width), height: side(height, self.height) }
    }

    /// Returns `inner` in the middle of the input's frame. Pixels outside the frame are cut off,
    /// and the rest of the frame has the colour of the mean.
    fn placed(&self, inner: &Image) -> Image {
        let colour = self.mean.map(|mean| (mean / self.scale).clamp(0.0, 255.0) as u8);
        let (width, height) = (self.width as usize, self.height as usize);
        let mut rgb = colour.repeat(width * height);
        let offset = |inner: u32, outer: u32| {
            let inner = inner as usize;
            let outer = outer as usize;
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
