//! Made-up images: shapes of random colours, positions and sizes, as JPEG files in folders. No two
//! are equal.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, Result};
use image::codecs::jpeg::JpegEncoder;

use loadgen::random::{RandomSequence, at};

/// Size of an image in pixels.
const WIDTH: usize = 320;
const HEIGHT: usize = 240;
/// Number of shapes of an image.
const SHAPES: usize = 60;
/// Quality of the JPEG files.
const QUALITY: u8 = 85;
/// Seed of the images.
const SEED: u64 = 62;

/// Returns image `number` as a JPEG file.
///
/// # Errors
/// `Internal` if the encoder refuses.
pub(super) fn jpeg(number: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let (width, height) = (WIDTH as u32, HEIGHT as u32);
    JpegEncoder::new_with_quality(&mut bytes, QUALITY)
        .encode(&drawn(number), width, height, image::ExtendedColorType::Rgb8)
        .map_err(|error| Error::internal("a generated image cannot be encoded").caused_by(error))?;
    Ok(bytes)
}

/// Draws a shaded ground and shapes with edges and corners on it, three bytes a pixel.
fn drawn(number: u64) -> Vec<u8> {
    let mut random = RandomSequence::new(at(SEED, number));
    let mut below = |limit: usize| (random.bits() % limit.max(1) as u64) as usize;
    let ground = [below(200), below(200), below(200)];
    let mut pixels = Vec::with_capacity(WIDTH * HEIGHT * 3);
    for place in 0..WIDTH * HEIGHT {
        let shade = place % WIDTH / 10 + place / WIDTH / 10;
        pixels.extend(ground.iter().map(|value| (value + shade).min(255) as u8));
    }
    for _ in 0..SHAPES {
        let x = below(WIDTH);
        let y = below(HEIGHT);
        let w = 6 + below(60);
        let h = 6 + below(50);
        let colour = [below(256) as u8, below(256) as u8, below(256) as u8];
        let round = below(2) == 0;
        let slant = below(5) as isize - 2;
        for dy in 0..h.min(HEIGHT - y) {
            for dx in 0..w {
                let across = (2 * dx) as f32 / w as f32 - 1.0;
                let down = (2 * dy) as f32 / h as f32 - 1.0;
                let left = x as isize + dx as isize + slant * dy as isize / 2;
                let inside = !round || across * across + down * down <= 1.0;
                if inside && (0..WIDTH as isize).contains(&left) {
                    let start = ((y + dy) * WIDTH + left as usize) * 3;
                    pixels[start..start + 3].copy_from_slice(&colour);
                }
            }
        }
    }
    pixels
}

/// Writes images `first` to before `first + count` into the new folder `folder`, as NUMBER.jpg, on
/// all cores.
///
/// # Errors
/// Returns an error if the disk cannot be written.
pub(super) fn write(folder: &Path, first: u64, count: u64) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| Error::io(folder, &error))?;
    let next = AtomicU64::new(first);
    let end = first + count;
    let work = || -> Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= end {
                return Ok(());
            }
            let path = path(folder, number);
            std::fs::write(&path, jpeg(number)?).map_err(|error| Error::io(&path, &error))?;
        }
    };
    std::thread::scope(|scope| {
        let threads = loadgen::machine::cores();
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined.into_iter().try_for_each(|ended| {
            ended.unwrap_or_else(|_| Err(Error::internal("a thread that draws images panicked")))
        })
    })
}

/// Returns the path of image `number` in a folder.
pub(super) fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:08}.jpg"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_readable_different_and_reproducible() {
        let [first, second] = [1, 2].map(|number| jpeg(number).unwrap());
        assert_ne!(first, second);
        assert_eq!(first, jpeg(1).unwrap());
        let read = image::load_from_memory(&first).unwrap();
        assert_eq!((read.width() as usize, read.height() as usize), (WIDTH, HEIGHT));
    }

    #[test]
    fn a_folder_gets_the_requested_images() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("a"), 5, 7).unwrap();
        let names: Vec<_> = std::fs::read_dir(dir.path().join("a")).unwrap().collect();
        assert_eq!(names.len(), 7);
        assert_eq!(std::fs::read(path(&dir.path().join("a"), 11)).unwrap(), jpeg(11).unwrap());
    }
}
