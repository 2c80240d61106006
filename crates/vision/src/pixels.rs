//! Images in memory, in colour or grey: resized, mirrored and cut.

use image::imageops::{self, FilterType};
use image::{ImageBuffer, Rgb};

use crate::photo::PixelRegion;

/// Bytes per pixel of the plane between the two steps of a change of size, first of the rows and
/// then of the columns: four floats.
pub(crate) const RESIZED_BYTES: u64 = 16;
/// Bytes of a pixel.
pub(crate) const RGB_BYTES: u64 = 3;

/// Size that an image is scaled to.
pub(crate) struct FittedSize {
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// An upright colour image.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Columns, at least 1.
    pub width: u32,
    /// Rows, at least 1.
    pub height: u32,
    /// Red, green and blue of each pixel, row by row: 3 * width * height bytes.
    pub rgb: Vec<u8>,
}

/// An image of brightness alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Gray {
    /// Columns, at least 1.
    pub width: u32,
    /// Rows, at least 1.
    pub height: u32,
    /// Brightness row by row: width * height bytes.
    pub pixels: Vec<u8>,
}

impl Image {
    /// Returns the brightness, weighted as in ITU-R BT.601.
    pub fn gray(&self) -> Gray {
        let luma = |pixel: &[u8; 3]| {
            let [red, green, blue] = pixel.map(u32::from);
            ((red * 19_595 + green * 38_470 + blue * 7_471 + 32_768) >> 16) as u8
        };
        let pixels = self.rgb.as_chunks().0.iter().map(luma).collect();
        Gray { width: self.width, height: self.height, pixels }
    }

    /// Returns the image in another size. When it shrinks, each new pixel is the mean of the pixels
    /// it covers.
    pub fn resized(&self, width: u32, height: u32) -> Image {
        let (width, height) = (width.max(1), height.max(1));
        let whole = ImageBuffer::<Rgb<u8>, &[u8]>::from_raw(self.width, self.height, &self.rgb);
        let Some(whole) = whole.filter(|_| (width, height) != (self.width, self.height)) else {
            return self.clone();
        };
        let rgb = imageops::resize(&whole, width, height, FilterType::Triangle).into_raw();
        Image { width, height, rgb }
    }

    /// Returns the image with its longer side at most `longest`. It is never enlarged.
    pub(crate) fn fitted(&self, longest: u32) -> Image {
        let FittedSize { width, height } = self.fitted_size(longest);
        self.resized(width, height)
    }

    /// Returns the size of the image with its longer side at most `longest`.
    pub(crate) fn fitted_size(&self, longest: u32) -> FittedSize {
        let side = self.width.max(self.height);
        if side <= longest {
            return FittedSize { width: self.width, height: self.height };
        }
        let scaled =
            |length: u32| (u64::from(length) * u64::from(longest) / u64::from(side)) as u32;
        FittedSize { width: scaled(self.width).max(1), height: scaled(self.height).max(1) }
    }

    /// Returns the mirror image: left and right exchanged.
    pub fn mirrored(&self) -> Image {
        let rows = self.rgb.chunks_exact(self.width.max(1) as usize * 3);
        let pixels = rows.flat_map(|row| row.as_chunks::<3>().0.iter().rev());
        Image { rgb: pixels.flatten().copied().collect(), ..*self }
    }

    /// Returns the pixels of a region. Omits parts of the region outside the image, and keeps at
    /// least one pixel.
    pub(crate) fn crop(&self, region: PixelRegion) -> Image {
        let x = region.x.min(self.width - 1);
        let y = region.y.min(self.height - 1);
        let width = region.width.clamp(1, self.width - x);
        let height = region.height.clamp(1, self.height - y);
        let rows = self.rgb.chunks_exact(self.width as usize * 3);
        let rows = rows.skip(y as usize).take(height as usize);
        let wanted = x as usize * 3..(x + width) as usize * 3;
        let rgb = rows.flat_map(|row| row.get(wanted.clone()).unwrap_or_default());
        Image { width, height, rgb: rgb.copied().collect() }
    }
}
