//! Photographs of a folder, or made-up images.

use std::path::{Path, PathBuf};

use base::{Error, Result};
use vision::{Image, Limits, decode};

use super::attacks::encode;
use loadgen::random::RandomSequence;

/// Extensions of images.
const EXTENSIONS: [&str; 7] = ["jpg", "jpeg", "png", "webp", "tif", "tiff", "bmp"];
/// Maximum depth of folders.
const DEPTH_MAX: usize = 8;
/// Maximum number of photographs, because their files are kept in memory.
const PHOTOS_MAX: usize = 20_000;
/// Width and height of a made-up image in pixels.
const MADE_UP_SIZE: (u32, u32) = (320, 240);
/// Number of shapes in a made-up image.
const SHAPES: usize = 90;

#[derive(Clone, Debug)]
pub(super) struct Photo {
    /// Path, or the name of a made-up image.
    pub(super) name: String,
    /// Content of the file.
    pub(super) bytes: Vec<u8>,
}

impl Photo {
    /// Decodes the pixels.
    pub(super) fn image(&self) -> Result<Image> {
        Ok(decode(&self.bytes, &Limits::default())
            .map_err(|error| error.context(&self.name))?
            .image)
    }

    /// Returns the name without folders and extension.
    pub(super) fn stem(&self) -> &str {
        Path::new(&self.name).file_stem().and_then(|stem| stem.to_str()).unwrap_or("photo")
    }
}

/// Reads all images below `dir`, in the order of their paths. Appends the errors of files that
/// cannot be decoded to `skipped`.
pub(super) fn read(dir: &Path, skipped: &mut Vec<String>) -> Result<Vec<Photo>> {
    let mut paths = Vec::new();
    if !dir.is_dir() {
        return Err(Error::invalid(format!("--dir {}: there is no such folder", dir.display())));
    }
    collect(dir, DEPTH_MAX, &mut paths)?;
    paths.sort();
    if paths.len() > PHOTOS_MAX {
        return Err(Error::invalid(format!(
            "--dir {}: {} images, at most {PHOTOS_MAX} are taken: name a folder with fewer",
            dir.display(),
            paths.len()
        )));
    }
    let mut photos = Vec::new();
    for path in paths {
        let bytes = std::fs::read(&path).map_err(|e| Error::io(&path, &e))?;
        let photo = Photo { name: path.display().to_string(), bytes };
        match photo.image() {
            Ok(_) => photos.push(photo),
            Err(error) => skipped.push(error.message().to_owned()),
        }
    }
    Ok(photos)
}

fn collect(dir: &Path, depth: usize, paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, &e))? {
        let path = entry.map_err(|e| Error::io(dir, &e))?.path();
        let extension =
            path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if path.is_dir() && depth > 0 {
            collect(&path, depth - 1, paths)?;
        } else if EXTENSIONS.iter().any(|known| known.eq_ignore_ascii_case(extension)) {
            paths.push(path);
        }
    }
    Ok(())
}

/// Draws images of overlapping boxes and discs in random colours. They do not look like
/// photographs, but have corners.
pub(super) fn draw_photos(count: usize) -> Result<Vec<Photo>> {
    (0..count)
        .map(|number| {
            let bytes = encode(&scene(number as u64), 95)?;
            Ok(Photo { name: format!("made-{number}"), bytes })
        })
        .collect()
}

/// Draws a made-up image: shapes of random size, position and colour.
fn scene(seed: u64) -> Image {
    let (width, height) = MADE_UP_SIZE;
    let mut random = RandomSequence::new(seed);
    let mut image = Image { width, height, rgb: vec![128; (width * height * 3) as usize] };
    for _ in 0..SHAPES {
        let colour = random.bits().to_le_bytes();
        let (x, y) = (random.unit() * f64::from(width), random.unit() * f64::from(height));
        let half_width = 4.0 + 40.0 * random.unit();
        let half_height = 4.0 + 40.0 * random.unit();
        let round = random.bits() & 1 == 0;
        for (index, pixel) in image.rgb.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let (column, row) = (index as u32 % width, index as u32 / width);
            let off_x = (f64::from(column) - x) / half_width;
            let off_y = (f64::from(row) - y) / half_height;
            let inside =
                if round { off_x.hypot(off_y) < 1.0 } else { off_x.abs().max(off_y.abs()) < 1.0 };
            if inside {
                *pixel = [colour[0], colour[1], colour[2]];
            }
        }
    }
    image
}
