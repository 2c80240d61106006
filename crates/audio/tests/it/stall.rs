//! Uploads that stall with their connection open.

use std::io::{Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use millpond_audio::AudioModel;
use millpond_audio::decode::AudioInput;
use millpond_audio::pipeline::{PipelineEvent, PipelineOptions, ReadMeter, recognise};

use crate::fake::*;

/// Time that a read blocks before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A reader that blocks once, after `left` bytes, until it is released.
struct Stalling {
    before: Cursor<Vec<u8>>,
    after: Cursor<Vec<u8>>,
    go: Receiver<()>,
    /// Signalled when the bytes before have been read, and on drop.
    at: Sender<&'static str>,
    silent: bool,
}

impl Read for Stalling {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.before.read(buffer)?;
        if count > 0 {
            return Ok(count);
        }
        if !self.silent {
            self.silent = true;
            self.at.send("silent").ok();
            if self.go.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                self.at.send("nobody let it go on").ok();
            }
        }
        self.after.read(buffer)
    }
}

impl Drop for Stalling {
    fn drop(&mut self) {
        self.at.send("dropped").ok();
    }
}

/// Returns `samples` as an upload that stalls after `seconds`, its release, and a receiver of its
/// state.
fn stalling(samples: &[f32], seconds: f64) -> (AudioInput, Sender<()>, Receiver<&'static str>) {
    let all = wav(samples);
    let head = all.len() - samples.len() * 4;
    let count = if seconds > 0.0 { head + (seconds * f64::from(RATE)) as usize * 4 } else { 0 };
    let (before, after) = (Cursor::new(all[..count].to_vec()), Cursor::new(all[count..].to_vec()));
    let ((let_go, go), (at, heard)) = (unbounded(), unbounded());
    (AudioInput::Stream(Box::new(Stalling { before, after, go, at, silent: false })), let_go, heard)
}

#[test]
fn labels_come_while_an_upload_is_silent() {
    // Bursts begin every 1.7 s: six have ended, and been followed by silence, after 10.2 s.
    let (samples, sent, ended) = (bursts(20.0), 10.2, 6);
    // Runs that are full by then, and runs that are never full.
    for batch in [1, 7, 1000] {
        let text = format!("batch = {batch}");
        let model: Arc<dyn AudioModel> = Arc::new(energy_detector(Answers::OutOfOrder));
        let (input, let_go, heard) = stalling(&samples, sent);
        let labels = AtomicUsize::new(0);
        let summary =
            recognise(input, Some("wav"), &events(&text), &model, &in_flight(3), &mut |event| {
                if matches!(event, PipelineEvent::Label(_))
                    && labels.fetch_add(1, Ordering::SeqCst) + 1 == ended
                {
                    let_go.send(()).ok();
                }
                Ok(())
            });
        let summary = summary.unwrap();
        assert_eq!((summary.labels, summary.seconds), (12, 20.0), "batch {batch}");
        // The reading thread has ended with the work.
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["silent", "dropped"], "batch {batch}");
    }
}

#[test]
fn a_run_that_is_short_makes_no_difference() {
    let samples = bursts(20.0);
    let model: Arc<dyn AudioModel> = Arc::new(energy_detector(Answers::OutOfOrder));
    let whole = hear(sound(&samples), &events("batch = 100"), &model, &in_flight(2)).unwrap();
    let (input, let_go, _heard) = stalling(&samples, 5.0);
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(1500));
        let_go.send(()).ok();
    });
    assert_eq!(hear(input, &events("batch = 100"), &model, &in_flight(2)).unwrap(), whole);
    later.join().unwrap();
}

#[test]
fn an_end_does_not_wait_for_a_silent_upload() {
    let model: Arc<dyn AudioModel> = Arc::new(energy_detector(Answers::AtOnce));
    // Runs of a thousand windows are never full, so they return their labels after a pause.
    for (seconds, why) in [(0.0, "stop"), (5.0, "stop"), (5.0, "sink")] {
        let (input, let_go, heard) = stalling(&bursts(20.0), seconds);
        let options = PipelineOptions::default();
        let stop = options.stop.clone();
        let watcher = std::thread::spawn(move || {
            assert_eq!(heard.recv_timeout(PATIENCE), Ok("silent"));
            if why == "stop" {
                stop.store(true, Ordering::SeqCst);
            }
            heard
        });
        let begun = Instant::now();
        let mut sink = |event: PipelineEvent| match event {
            PipelineEvent::Label(_) if why == "sink" => {
                Err(Error::cancelled("the client has gone"))
            }
            _ => Ok(()),
        };
        let error = recognise(input, None, &events("batch = 1000"), &model, &options, &mut sink)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert!(begun.elapsed() < PATIENCE / 2);
        let heard = watcher.join().unwrap();
        assert!(heard.is_empty(), "the read still blocks");
        let_go.send(()).unwrap();
        assert_eq!(heard.recv_timeout(PATIENCE), Ok("dropped"));
    }
}

#[test]
fn the_thread_that_reads_has_the_given_name() {
    /// Records the reading thread.
    struct Named(Cursor<Vec<u8>>, Sender<Option<String>>);
    impl Read for Named {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.1.send(std::thread::current().name().map(str::to_owned)).ok();
            self.0.read(buffer)
        }
    }
    let (names, seen) = unbounded();
    let input = AudioInput::Stream(Box::new(Named(Cursor::new(wav(&bursts(2.0))), names)));
    let model: Arc<dyn AudioModel> = Arc::new(energy_detector(Answers::AtOnce));
    let options = PipelineOptions { reader: "audio-7-in".to_owned(), ..PipelineOptions::default() };
    hear(input, &events(""), &model, &options).unwrap();
    assert!(seen.try_iter().all(|name| name.as_deref() == Some("audio-7-in")));
}

#[test]
fn every_step_of_the_thread_that_reads_is_measured() {
    /// Counts the calls on the reading thread.
    #[derive(Debug, Default)]
    struct Counting(AtomicUsize);
    impl ReadMeter for Counting {
        fn measure(&self, work: &mut dyn FnMut()) {
            assert_eq!(std::thread::current().name(), Some("audio-in"));
            self.0.fetch_add(1, Ordering::SeqCst);
            work();
        }
    }
    let model: Arc<dyn AudioModel> = Arc::new(energy_detector(Answers::AtOnce));
    let expected =
        hear(sound(&bursts(4.0)), &events(""), &model, &PipelineOptions::default()).unwrap();
    let meter = Arc::new(Counting::default());
    let options = PipelineOptions { read_meter: Some(meter.clone()), ..PipelineOptions::default() };
    let heard = hear(sound(&bursts(4.0)), &events(""), &model, &options).unwrap();
    assert_eq!(heard, expected);
    // The opening, the blocks, and the end.
    assert!(meter.0.load(Ordering::SeqCst) > 2);
}
