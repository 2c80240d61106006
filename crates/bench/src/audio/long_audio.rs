//! A long recording made of real clips: decoded, mixed to one channel, and joined until it is long
//! enough.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use audio::decode::{AudioInput, Decoder};
use audio::resample::{Channel, Mono};
use base::{Error, Result};
use hound::{SampleFormat, WavSpec, WavWriter};

use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::report::StepProgress;

/// Sampling rate of the recording in Hz.
pub(super) const RATE: u32 = 16_000;
/// Silence between two clips, in samples.
const PAUSE_SAMPLES: usize = RATE as usize / 2;
/// Maximum number of clips.
const CLIPS_MAX: usize = 4096;
/// Maximum depth of directories that are searched.
const DEPTH_MAX: usize = 8;
/// Extensions of clips.
const EXTENSIONS: [&str; 6] = ["wav", "flac", "mp3", "ogg", "m4a", "aiff"];
/// Default directory of clips.
const USUAL_DIR: &str = ".cache/audio/clips";
/// Name of the recording in its directory of the cache.
const FILE: &str = "recording.wav";

/// Returns the directory of clips: the given one, the one of the environment, or the project's own.
///
/// # Errors
/// `NotFound` with the remedy.
pub(super) fn clips_dir(env: &BenchEnv, given: Option<&Path>) -> Result<PathBuf> {
    if let Some(dir) = given.or(env.audio_data.as_deref()) {
        return if dir.is_dir() {
            Ok(dir.to_owned())
        } else {
            Err(Error::not_found(format!("{}: there is no such directory of clips", dir.display())))
        };
    }
    env.in_checkout(USUAL_DIR).ok_or_else(|| {
        Error::not_found(format!(
            "no clips in {USUAL_DIR}: run `make recognisers`, or give --clips DIR"
        ))
    })
}

/// Returns a recording of `minutes` from the clips in `dir`, and the number of clips. The cache
/// keeps the recording.
///
/// # Errors
/// Returns an error if there is no clip, no clip can be decoded, or the disk is full.
pub(super) fn make(env: &BenchEnv, dir: &Path, minutes: u32) -> Result<(PathBuf, usize)> {
    let clips = clips(dir)?;
    let wanted = u64::from(minutes) * 60 * u64::from(RATE);
    let key = format!("recording-{minutes}m-{:016x}", key(&clips));
    let made = cache::ensure(&env.cache_dir, &key, wanted * 2, |part| {
        write(&clips, wanted, &part.join(FILE))
    })?;
    Ok((made.join(FILE), clips.len()))
}

/// File of a clip. Clips are ordered by path.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct AudioClip {
    path: PathBuf,
    bytes: u64,
}

/// Returns the clips below a directory in their order.
fn clips(dir: &Path) -> Result<Vec<AudioClip>> {
    let mut found = Vec::new();
    scan(dir, 0, &mut found)?;
    found.sort();
    found.truncate(CLIPS_MAX);
    if found.is_empty() {
        Err(Error::not_found(format!("{}: no clip ({})", dir.display(), EXTENSIONS.join(", "))))
    } else {
        Ok(found)
    }
}

/// Adds the audio files below `dir`, which has `depth` parents in the scan, to `found`.
fn scan(dir: &Path, depth: usize, found: &mut Vec<AudioClip>) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, &e))? {
        let path = entry.map_err(|e| Error::io(dir, &e))?.path();
        let Ok(meta) = std::fs::metadata(&path) else { continue };
        let extension =
            path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
        if meta.is_dir() && depth < DEPTH_MAX {
            scan(&path, depth + 1, found)?;
        } else if meta.is_file() && extension.is_some_and(|own| EXTENSIONS.contains(&own.as_str()))
        {
            found.push(AudioClip { path, bytes: meta.len() });
        }
        if found.len() >= CLIPS_MAX {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns a hash of a set of clips.
fn key(clips: &[AudioClip]) -> u64 {
    let bytes = clips.iter().flat_map(|AudioClip { path, bytes }| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.into_bytes().into_iter().chain(bytes.to_le_bytes())
    });
    bytes.fold(RATE.into(), |hash, byte| loadgen::random::at(hash, byte.into()))
}

/// Writes the clips one after another as one WAV file, until it has `wanted` samples.
fn write(clips: &[AudioClip], wanted: u64, path: &Path) -> Result<()> {
    let mut recording = RecordingWriter::create(path, wanted)?;
    while !recording.is_full() {
        let mut decoded = 0;
        for AudioClip { path: clip, .. } in clips {
            match append(clip, &mut recording) {
                Ok(()) => decoded += 1,
                Err(error) => {
                    let line = format!("{}: left out: {error}", clip.display());
                    recording.progress.line(&line);
                }
            }
            recording.put(&[0.0; PAUSE_SAMPLES])?;
            if recording.is_full() {
                break;
            }
        }
        if decoded == 0 && !recording.is_full() {
            return Err(Error::invalid("no clip can be decoded"));
        }
    }
    recording.finish()
}

/// Writer of the recording.
struct RecordingWriter<'a> {
    path: &'a Path,
    file: WavWriter<BufWriter<File>>,
    progress: StepProgress,
    /// Number of samples written.
    done: u64,
    /// Number of samples of the whole recording.
    wanted: u64,
}

impl RecordingWriter<'_> {
    fn create(path: &Path, wanted: u64) -> Result<RecordingWriter<'_>> {
        let progress = StepProgress::new(wanted);
        progress.say("samples of the recording, made once");
        let spec = WavSpec {
            channels: 1,
            sample_rate: RATE,
            bits_per_sample: 16,
            sample_format: SampleFormat::Int,
        };
        let file = WavWriter::create(path, spec).map_err(|error| wav_error(path, error))?;
        Ok(RecordingWriter { path, file, progress, done: 0, wanted })
    }

    /// Appends samples of -1 to 1. Leaves out samples once the recording is full.
    fn put(&mut self, samples: &[f32]) -> Result<()> {
        let left = (self.wanted - self.done) as usize;
        for sample in samples.iter().take(left) {
            let level = (sample.clamp(-1.0, 1.0) * f32::from(i16::MAX)).round() as i16;
            self.file.write_sample(level).map_err(|error| wav_error(self.path, error))?;
            self.done += 1;
        }
        self.progress.at(self.done, self.wanted);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.done == self.wanted
    }

    fn finish(self) -> Result<()> {
        self.file.finalize().map_err(|error| wav_error(self.path, error))
    }
}

fn wav_error(path: &Path, error: hound::Error) -> Error {
    Error::internal(path.display().to_string()).caused_by(error)
}

/// Appends a clip, or its beginning if the recording is full before its end.
fn append(clip: &Path, recording: &mut RecordingWriter<'_>) -> Result<()> {
    let file = File::open(clip).map_err(|e| Error::io(clip, &e))?;
    let hint = clip.extension().and_then(|extension| extension.to_str());
    let mut decoder = Decoder::open(AudioInput::File(file), hint)?;
    let format = decoder.format();
    let mut mono = Mono::new(format.rate, format.channels, RATE, Channel::Mix)?;
    let mut samples = Vec::new();
    while let Some(block) = decoder.next()? {
        samples.clear();
        mono.push(&block.samples, &mut samples)?;
        recording.put(&samples)?;
        if recording.is_full() {
            return Ok(());
        }
    }
    samples.clear();
    mono.finish(&mut samples)?;
    recording.put(&samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clip(path: &Path, rate: u32, samples: usize) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let spec = WavSpec {
            channels: 2,
            sample_rate: rate,
            bits_per_sample: 16,
            sample_format: SampleFormat::Int,
        };
        let mut file = WavWriter::create(path, spec).unwrap();
        for sample in 0..samples {
            let value = ((sample as f64 * 0.1).sin() * 8000.0) as i16;
            (0..2).for_each(|_| file.write_sample(value).unwrap());
        }
        file.finalize().unwrap();
    }

    #[test]
    fn clips_are_joined_until_it_is_long_enough() {
        let dir = tempfile::tempdir().unwrap();
        let clips = dir.path().join("clips");
        clip(&clips.join("b.wav"), 16_000, 4_000);
        clip(&clips.join("deep/a.WAV"), 44_100, 20_000);
        std::fs::write(clips.join("c.wav"), b"no sound").unwrap();
        std::fs::write(clips.join("notes.txt"), b"no clip").unwrap();
        let env = crate::bare::tests::env(dir.path());
        let (path, count) = make(&env, &clips, 1).unwrap();
        assert_eq!(count, 3);
        let reader = hound::WavReader::open(&path).unwrap();
        assert_eq!((reader.spec().sample_rate, reader.spec().channels), (RATE, 1));
        assert_eq!(reader.len(), 60 * RATE);
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(make(&env, &clips, 1).unwrap().0, path);
        assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), modified, "made once");
    }

    #[test]
    fn an_empty_folder_of_clips_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let env = crate::bare::tests::env(dir.path());
        assert!(make(&env, dir.path(), 1).unwrap_err().message().contains("no clip"));
        assert!(clips_dir(&env, Some(&dir.path().join("none"))).is_err());
        std::fs::write(dir.path().join("c.wav"), b"no sound").unwrap();
        assert_eq!(make(&env, dir.path(), 1).unwrap_err().message(), "no clip can be decoded");
    }
}
