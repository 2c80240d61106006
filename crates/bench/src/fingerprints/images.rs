//! Extraction of graphs from images of fingerprints, and its cost.

use base::Result;
use matching::Graph;
use vision::fingerprint::{self, MinutiaeOptions};
use vision::{Limits, decode};

use super::thread_microseconds;

/// Extensions of images.
pub(super) const EXTENSIONS: &[&str] = &["tif", "tiff", "png", "bmp", "jpg", "jpeg", "webp", "wsq"];
/// Plausible resolutions in dots per inch. Many files say 72 or 96 although they were not measured.
const BELIEVED: std::ops::RangeInclusive<f32> = 250.0..=1200.0;

/// Resolution of the images in all folders, or in one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FolderResolution {
    folder: Option<String>,
    dots_per_inch: f32,
}

impl std::str::FromStr for FolderResolution {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<FolderResolution, String> {
        let (folder, number) = match text.rsplit_once('=') {
            Some((folder, number)) => (Some(folder.to_owned()), number),
            None => (None, text),
        };
        let dots_per_inch =
            number.parse().map_err(|_| format!("{number:?} is not a number of dots per inch"))?;
        Ok(FolderResolution { folder, dots_per_inch })
    }
}

/// Extracts minutiae on this thread, and records the processor time of each image.
#[derive(Debug)]
pub(super) struct Extractor<'a> {
    resolutions: &'a [FolderResolution],
    limits: Limits,
    /// Milliseconds of each image, without decoding it.
    milliseconds: Vec<f64>,
}

impl<'a> Extractor<'a> {
    pub(super) fn new(resolutions: &'a [FolderResolution]) -> Extractor<'a> {
        Extractor { resolutions, limits: Limits::default(), milliseconds: Vec::new() }
    }

    /// Returns the graph of an image's file in the folder `database`.
    pub(super) fn graph(&mut self, database: &str, bytes: &[u8]) -> Result<Graph> {
        let decoded = decode(bytes, &self.limits)?;
        let gray = decoded.image.gray();
        let options =
            MinutiaeOptions { dots_per_inch: self.resolution(database, decoded.dots_per_inch) };
        let start = thread_microseconds();
        let extraction = fingerprint::minutiae(&gray, &options)?;
        self.milliseconds.push((thread_microseconds() - start) / 1e3);
        Ok(extraction.graph)
    }

    /// Returns the given resolution of this folder, else of all, else that of the file, else 500.
    fn resolution(&self, database: &str, of_file: Option<f32>) -> f32 {
        let given_for = |folder: Option<&str>| {
            let of = |resolution: &&FolderResolution| resolution.folder.as_deref() == folder;
            self.resolutions.iter().rev().find(of).map(|resolution| resolution.dots_per_inch)
        };
        given_for(Some(database))
            .or_else(|| given_for(None))
            .or_else(|| of_file.filter(|resolution| BELIEVED.contains(resolution)))
            .unwrap_or(MinutiaeOptions::default().dots_per_inch)
    }

    /// Returns the quantile `share` of the processor times of images.
    pub(super) fn milliseconds(&self, share: f64) -> Option<f64> {
        let mut sorted = self.milliseconds.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        sorted.get((last as f64 * share).round() as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::folder;
    use super::*;

    #[test]
    fn the_resolution_of_a_folder_precedes_that_of_all_and_of_the_file() {
        let given: Vec<FolderResolution> =
            ["569", "DB1=600"].map(|text| text.parse().unwrap()).into();
        let extractor = Extractor::new(&given);
        assert_eq!(extractor.resolution("DB1", Some(1000.0)), 600.0);
        assert_eq!(extractor.resolution("DB2", Some(1000.0)), 569.0);
        let silent = Extractor::new(&[]);
        assert_eq!(silent.resolution("DB2", Some(1000.0)), 1000.0);
        assert_eq!(silent.resolution("DB2", Some(72.0)), 500.0);
        assert_eq!(silent.resolution("DB2", None), 500.0);
        assert!("DB1=many".parse::<FolderResolution>().is_err());
    }

    #[test]
    fn extensions_of_images_ignore_case() {
        let root = tempfile::tempdir().unwrap();
        let stripes = image::GrayImage::from_fn(64, 48, |_, y| {
            image::Luma([if y % 9 < 4 { 30 } else { 220 }])
        });
        stripes.save(root.path().join("7_1.PNG")).unwrap();
        std::fs::write(root.path().join("7_1.iso"), b"not an image").unwrap();
        let mut extractor = Extractor::new(&[]);
        let mut read = || {
            folder::read(root.path(), EXTENSIONS, |database, bytes| {
                extractor.graph(database, bytes)
            })
        };
        let found = read().unwrap();
        assert_eq!((found.len(), found[0].finger.as_str()), (1, "7"));
        assert_eq!((found[0].graph.width, found[0].graph.height), (64, 48));
        std::fs::write(root.path().join("7_2.tif"), b"not an image either").unwrap();
        let said = read().unwrap_err().to_string();
        assert!(said.contains("7_2.tif"), "{said}");
        assert!(extractor.milliseconds(0.5).is_some());
    }

    #[test]
    fn times_are_those_of_ranks() {
        let mut extractor = Extractor::new(&[]);
        assert_eq!(extractor.milliseconds(0.5), None);
        extractor.milliseconds = (1..=101).rev().map(f64::from).collect();
        assert_eq!(
            (extractor.milliseconds(0.5), extractor.milliseconds(0.95)),
            (Some(51.0), Some(96.0))
        );
    }
}
