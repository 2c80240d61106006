//! Converts an image to a tensor: `(pixel * scale - mean) / std`, planar unless the model takes
//! channels last.

use std::io::Cursor;
use std::str::FromStr;

use base::{DType, Tensor};
use clap::{Args, ValueEnum};
use command_line::exit::{CommandError, CommandResult};
use image::imageops::FilterType;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Rgb, RgbImage};

use crate::infer::input::numbers;
use crate::infer::metadata::InputSpec;

/// Maximum edge of an image in pixels, before and after resizing.
const EDGE_MAX: u32 = 16_384;
/// Axes of an image of any size.
const ANY_AXES: [i64; 3] = [-1; 3];

/// Options of an image file.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Images")]
pub(crate) struct ImageArgs {
    /// Order of the axes [default: nhwc if only the model's last axis can be channels, else nchw]
    #[arg(long, value_name = "ORDER")]
    layout: Option<AxisOrder>,
    /// Resize to this size [default: the model's if it is fixed, else the image's]
    #[arg(long, value_name = "WxH", conflicts_with = "height")]
    size: Option<ImageSize>,
    /// Resize to this height and keep the proportions
    #[arg(long, value_name = "H", value_parser = clap::value_parser!(u32).range(1..=EDGE_MAX as i64))]
    height: Option<u32>,
    /// Mean, subtracted after scaling: one number, or one per channel [default: 0]
    #[arg(long, value_name = "A,B,C", allow_hyphen_values = true)]
    mean: Option<PerChannel>,
    /// Standard deviation, divided by last: one number, or one per channel [default: 1]
    #[arg(long, value_name = "A,B,C")]
    std: Option<PerChannel>,
    /// Factor for the pixel values 0..255, applied first [default: 1/255, or 1 if the model takes
    /// integers]
    #[arg(long, value_name = "F")]
    scale: Option<f32>,
    /// Order of the channels [default: rgb, or gray if the model takes one channel]
    #[arg(long, value_name = "CHANNELS")]
    channels: Option<ChannelOrder>,
}

impl ImageArgs {
    /// Returns the names of the stated flags.
    pub(crate) fn stated(&self) -> Vec<&'static str> {
        let flags = [
            ("--layout", self.layout.is_some()),
            ("--size", self.size.is_some()),
            ("--height", self.height.is_some()),
            ("--mean", self.mean.is_some()),
            ("--std", self.std.is_some()),
            ("--scale", self.scale.is_some()),
            ("--channels", self.channels.is_some()),
        ];
        flags.into_iter().filter_map(|(name, is_stated)| is_stated.then_some(name)).collect()
    }
}

/// Order of the axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AxisOrder {
    /// Channels, height, width
    Nchw,
    /// Height, width, channels
    Nhwc,
}

/// Channels and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ChannelOrder {
    /// Red, green, blue
    Rgb,
    /// Blue, green, red
    Bgr,
    /// One channel of luminance
    Gray,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ImageSize {
    width: u32,
    height: u32,
}

impl FromStr for ImageSize {
    type Err = String;

    fn from_str(text: &str) -> Result<ImageSize, String> {
        let edge = |text: &str| text.parse().ok().filter(|edge| (1..=EDGE_MAX).contains(edge));
        text.split_once('x')
            .and_then(|(width, height)| {
                Some(ImageSize { width: edge(width)?, height: edge(height)? })
            })
            .ok_or_else(|| format!("write WIDTHxHEIGHT, each 1 to {EDGE_MAX}"))
    }
}

/// One number for all channels, or one for each of three. It is not empty.
#[derive(Clone, Debug, PartialEq)]
struct PerChannel(Vec<f32>);

impl FromStr for PerChannel {
    type Err = String;

    fn from_str(text: &str) -> Result<PerChannel, String> {
        let values: Option<Vec<f32>> =
            text.split(',').map(|value| value.trim().parse().ok()).collect();
        values
            .filter(|values| matches!(values.len(), 1 | 3))
            .map(PerChannel)
            .ok_or_else(|| "write one number, or three with commas between".to_owned())
    }
}

impl PerChannel {
    /// Returns the value for a channel. A single value is for all channels.
    fn at(&self, channel: usize) -> f32 {
        self.0[channel.min(self.0.len() - 1)]
    }
}

/// Decodes an image and converts it to the tensor for `spec`.
///
/// # Errors
/// Returns an error if it cannot be decoded or the model's input is not shaped like an image.
pub(crate) fn tensor(spec: &InputSpec, file: &[u8], args: &ImageArgs) -> CommandResult<Tensor> {
    let (axes, has_batch) = image_axes(spec)?;
    let layout = args.layout.unwrap_or_else(|| layout_of(axes));
    let (height, width, depth) = match layout {
        AxisOrder::Nchw => (axes[1], axes[2], axes[0]),
        AxisOrder::Nhwc => (axes[0], axes[1], axes[2]),
    };
    let channels =
        args.channels.unwrap_or(if depth == 1 { ChannelOrder::Gray } else { ChannelOrder::Rgb });
    let image = resize(decode(file)?, args, width, height)?;
    let values = values(&image, channels, layout, args, spec.dtype);
    let (w, h) = (image.width() as usize, image.height() as usize);
    let c = values.len() / (w * h);
    let mut shape = match layout {
        AxisOrder::Nchw => vec![c, h, w],
        AxisOrder::Nhwc => vec![h, w, c],
    };
    if has_batch {
        shape.insert(0, 1);
    }
    numbers(spec.dtype, &shape, &values)
}

/// Returns the sizes of the three axes of an image, -1 for any size. The second value is true if
/// the tensor has a batch axis before them.
///
/// # Errors
/// Returns an error if the model's input is not shaped like one image.
fn image_axes(spec: &InputSpec) -> CommandResult<(&[i64], bool)> {
    let (axes, batch) = match spec.shape.as_slice() {
        [batch, axes @ ..] if axes.len() == 3 => (axes, Some(*batch)),
        axes if axes.len() == 3 => (axes, None),
        [] => (&ANY_AXES as &[i64], Some(1)),
        shape => {
            return Err(CommandError::failed(format!(
                "input \"{}\" has shape {shape:?}; an image is [N, C, H, W] or [N, H, W, C]",
                spec.name
            )));
        }
    };
    if batch.is_some_and(|batch| batch > 1) {
        return Err(CommandError::failed(format!(
            "input \"{}\" takes {} images at once",
            spec.name, spec.shape[0]
        )));
    }
    Ok((axes, batch.is_some()))
}

/// Returns channels last if only the last axis can be channels.
fn layout_of(axes: &[i64]) -> AxisOrder {
    let is_depth = |size: i64| matches!(size, 1 | 3);
    if is_depth(axes[2]) && !is_depth(axes[0]) { AxisOrder::Nhwc } else { AxisOrder::Nchw }
}

/// Decodes an image as the server does: upright by its EXIF orientation, transparent pixels over
/// white.
fn decode(file: &[u8]) -> CommandResult<DynamicImage> {
    let unreadable = |error: &dyn std::fmt::Display| {
        CommandError::failed(format!("cannot read the image: {error}"))
    };
    let mut reader = ImageReader::new(Cursor::new(file))
        .with_guessed_format()
        .map_err(|error| unreadable(&error))?;
    if reader.format() == Some(ImageFormat::Jpeg) && !has_jpeg_end(file) {
        return Err(unreadable(&"the JPEG file ends early; get all of it"));
    }
    let mut limits = image::Limits::default();
    limits.max_image_width = Some(EDGE_MAX);
    limits.max_image_height = Some(EDGE_MAX);
    reader.limits(limits.clone());
    let mut decoder = reader.into_decoder().map_err(|error| unreadable(&error))?;
    limits.reserve(decoder.total_bytes()).map_err(|error| unreadable(&error))?;
    // An image with unreadable EXIF data counts as upright.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder).map_err(|error| unreadable(&error))?;
    image.apply_orientation(orientation);
    Ok(if image.color().has_alpha() { on_white(&image) } else { image })
}

/// Returns true if the image of a JPEG file has an end. The decoder fills missing parts with grey.
fn has_jpeg_end(file: &[u8]) -> bool {
    const END_OF_IMAGE: u8 = 0xd9;
    // After the start of the image.
    let mut rest = file.get(2..).unwrap_or_default();
    loop {
        // Any number of fill bytes may come before a marker.
        let marker = rest.windows(2).position(|pair| pair[0] == 0xff && pair[1] != 0xff);
        let Some(at) = marker else { return false };
        let after = &rest[at + 2..];
        rest = match rest[at + 1] {
            END_OF_IMAGE => return true,
            // A byte of a scan, or a marker without a segment.
            0x00 | 0x01 | 0xd0..=0xd8 => after,
            // The next marker is searched behind the segment, which may be the header of a scan.
            _ => {
                let length = after.first_chunk().map_or(0, |length| u16::from_be_bytes(*length));
                after.get(usize::from(length).max(2)..).unwrap_or_default()
            }
        };
    }
}

/// Returns the image over a white background, without transparency.
fn on_white(image: &DynamicImage) -> DynamicImage {
    let pixels = image.to_rgba8();
    let mut opaque = RgbImage::new(pixels.width(), pixels.height());
    for (from, to) in pixels.pixels().zip(opaque.pixels_mut()) {
        let [red, green, blue, alpha] = from.0.map(u32::from);
        let over = |colour| ((colour * alpha + 255 * (255 - alpha) + 127) / 255) as u8;
        *to = Rgb([over(red), over(green), over(blue)]);
    }
    DynamicImage::ImageRgb8(opaque)
}

/// Resizes to the requested size, or to the model's edges `width` and `height` in pixels. A
/// negative edge is not fixed.
///
/// # Errors
/// Returns an error if an edge would not be 1 to [`EDGE_MAX`].
fn resize(
    image: DynamicImage,
    args: &ImageArgs,
    width: i64,
    height: i64,
) -> CommandResult<DynamicImage> {
    let fixed = |edge: i64, own: u32| u32::try_from(edge).unwrap_or(own);
    let (w, h) = match (args.size, args.height) {
        (Some(size), _) => (size.width, size.height),
        (None, Some(height)) => (image.width() * height / image.height().max(1), height),
        (None, None) => (fixed(width, image.width()), fixed(height, image.height())),
    };
    if !(1..=EDGE_MAX).contains(&w) || !(1..=EDGE_MAX).contains(&h) {
        return Err(CommandError::failed(format!(
            "the image would be {w}x{h}; edges are 1 to {EDGE_MAX}"
        )));
    }
    if (w, h) == (image.width(), image.height()) {
        return Ok(image);
    }
    Ok(image.resize_exact(w, h, FilterType::Triangle))
}

/// Returns `(pixel * scale - mean) / std` for each channel of each pixel, in the order of `layout`.
fn values(
    image: &DynamicImage,
    channels: ChannelOrder,
    layout: AxisOrder,
    args: &ImageArgs,
    dtype: DType,
) -> Vec<f32> {
    let (pixels, depth) = match channels {
        ChannelOrder::Gray => (image.to_luma8().into_raw(), 1),
        ChannelOrder::Rgb | ChannelOrder::Bgr => (image.to_rgb8().into_raw(), 3),
    };
    let real = matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    let scale = args.scale.unwrap_or(if real { 1.0 / 255.0 } else { 1.0 });
    let mean = args.mean.as_ref();
    let std = args.std.as_ref();
    let area = pixels.len() / depth;
    let mut values = vec![0f32; pixels.len()];
    for (pixel, colours) in pixels.chunks_exact(depth).enumerate() {
        for channel in 0..depth {
            let colour = if channels == ChannelOrder::Bgr {
                colours[depth - 1 - channel]
            } else {
                colours[channel]
            };
            let shifted = f32::from(colour) * scale - mean.map_or(0.0, |mean| mean.at(channel));
            let at = match layout {
                AxisOrder::Nchw => channel * area + pixel,
                AxisOrder::Nhwc => pixel * depth + channel,
            };
            values[at] = shifted / std.map_or(1.0, |std| std.at(channel));
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        image: ImageArgs,
    }

    fn check(shape: &[i64], dtype: DType, flags: &str) -> (Vec<usize>, Vec<f32>) {
        let mut image = image::RgbImage::new(4, 2);
        image.put_pixel(0, 0, image::Rgb([255, 0, 102]));
        let mut file = Cursor::new(Vec::new());
        image.write_to(&mut file, image::ImageFormat::Png).unwrap();
        let spec = InputSpec { name: "x".into(), dtype, shape: shape.to_vec() };
        let line = Line::parse_from(std::iter::once("test").chain(flags.split_whitespace()));
        let tensor = tensor(&spec, file.get_ref(), &line.image).unwrap();
        let values = match dtype {
            DType::U8 => tensor.to_vec::<u8>().unwrap().into_iter().map(f32::from).collect(),
            _ => tensor.to_vec::<f32>().unwrap(),
        };
        (tensor.shape().to_vec(), values)
    }

    #[test]
    fn images_are_upright_and_opaque() {
        let mut file = Vec::new();
        let mut encoder = image::codecs::jpeg::JpegEncoder::new(&mut file);
        // EXIF with one entry: orientation (0x112) 6, a quarter turn.
        let exif = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
        image::ImageEncoder::set_exif_metadata(&mut encoder, exif.to_vec()).unwrap();
        encoder.encode_image(&RgbImage::new(4, 2)).unwrap();
        let image = decode(&file).unwrap();
        assert_eq!((image.width(), image.height()), (2, 4));

        let clear = image::RgbaImage::from_pixel(1, 1, image::Rgba([9, 8, 7, 0]));
        let mut file = Cursor::new(Vec::new());
        clear.write_to(&mut file, image::ImageFormat::Png).unwrap();
        assert_eq!(decode(file.get_ref()).unwrap().to_rgb8().get_pixel(0, 0).0, [255; 3]);
    }

    #[test]
    fn incomplete_jpegs_are_refused() {
        let mut file = Vec::new();
        let image = RgbImage::from_fn(64, 64, |x, y| Rgb([x as u8 * 4, y as u8 * 4, 0]));
        image::codecs::jpeg::JpegEncoder::new(&mut file).encode_image(&image).unwrap();
        assert_eq!(decode(&file).unwrap().width(), 64);
        assert!(decode(&[&file[..], b"after the end"].concat()).is_ok());
        for end in [file.len() - 2, file.len() - 40, file.len() / 2, 20] {
            assert!(decode(&file[..end]).is_err(), "{end} of {} bytes", file.len());
        }
    }

    #[test]
    fn planes_are_the_default() {
        let (shape, values) = check(&[-1, 3, -1, -1], DType::F32, "");
        assert_eq!(shape, [1, 3, 2, 4]);
        assert_eq!((values[0], values[8]), (1.0, 0.0));
        assert!((values[16] - 0.4).abs() < 1e-6);
    }

    #[test]
    fn channels_last_if_the_model_has_them_last() {
        let (shape, values) = check(&[1, -1, -1, 3], DType::U8, "--channels bgr");
        assert_eq!(shape, [1, 2, 4, 3]);
        assert_eq!(values[..3], [102.0, 0.0, 255.0]);
    }

    #[test]
    fn mean_and_std_are_applied_per_channel() {
        let (_, values) = check(&[1, 3, 2, 4], DType::F32, "--mean 0.5 --std 0.5,0.5,0.25");
        assert_eq!((values[0], values[8]), (1.0, -1.0));
        assert!((values[16] - (0.4 - 0.5) / 0.25).abs() < 1e-6);
    }

    #[test]
    fn sizes_come_from_the_model_the_flags_or_the_image() {
        assert_eq!(check(&[1, 3, 8, 8], DType::F32, "").0, [1, 3, 8, 8]);
        assert_eq!(check(&[1, 3, -1, -1], DType::F32, "--height 6").0, [1, 3, 6, 12]);
        assert_eq!(check(&[1, 3, -1, -1], DType::F32, "--size 3x5").0, [1, 3, 5, 3]);
        assert_eq!(check(&[1, -1, -1], DType::F32, "").0, [1, 2, 4]);
    }
}
