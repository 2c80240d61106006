//! `millpond demo`: real models with answers that a user can check, and a large model that is
//! swapped under load.
//!
//! # Modules
//! * Models: `ctr` is the large one and `module` the same for LibTorch; `layers`, `contents`;
//!   `digits` and `ocr` are trained.
//! * Answers that a user can check: `text`, `voice`, `images`, `caller`.
//! * Load and output: `traffic`, `live`.

mod caller;
pub mod contents;
pub mod ctr;
mod digits;
mod images;
pub mod layers;
mod live;
pub mod module;
pub mod ocr;
mod text;
pub mod traffic;
mod voice;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::units::{self, MIB, format_bytes};
use base::{Error, Result};
use clap::Args;
use engine_onnx::OnnxEngine;
use engine_onnx::publish::{PublishOptions, publish};
use os::Rate;

use caller::GrpcCaller;
use contents::{DISTINCT, SwapContents};
use ctr::{Ctr, DENSE, TABLES};
use images::{ImageModelFiles, IndexedGallery};
use live::{LiveCounts, Screen, placements};
use loadgen::BenchEnv;
use loadgen::cache;
use loadgen::drive::{DrivePlan, Judge, LoadLoop, SampleSink, drive};
use loadgen::machine::memory_bytes;
use loadgen::println;
use loadgen::process::{self, ServerPlan, ServerPorts, ServerProcess};
use loadgen::report::StepProgress;
use loadgen::samples::SampleLog;
use loadgen::schedule::Arrivals;
use traffic::Traffic;

/// Names of the models.
const MODEL: &str = "ctr";
const TEXT_MODEL: &str = "text";
const VOICE_MODEL: &str = "voice";
/// Files of the fetched models.
const TEXT_FILE: &str = ocr::FILE;
const VOICE_FILE: &str = "silero_vad.onnx";
/// Probability from which a window counts as speech.
const SPEECH_MIN: f32 = 0.5;
/// Largest default size of the click-through model, in bytes.
const BYTES_MAX: u64 = 512 * MIB;
/// The default size is at most one part in this many of the memory.
const MEMORY_SHARE: u64 = 16;
/// Number of rows of a request.
const BATCH: usize = 32;
/// Time between two updates.
const TICK: Duration = Duration::from_millis(500);
/// Number of versions kept on disk.
const VERSIONS_KEPT: u64 = 2;
/// Timeout of the last swap after the traffic has ended.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Serve real models under load and watch them being swapped.
///
/// Reads handwritten digits with a small trained model, then sends requests on a fixed schedule to
/// a click-through model that is replaced every few seconds. Needs no files, no network and no
/// compiler. Runs until Ctrl-C.
///
/// With --assets it also reads a line of text from an image and finds speech in a recording. With
/// --images it puts images into a collection and finds them again by changed copies. `make demo` in
/// a checkout fetches the files of both.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// End after this many seconds; 0 runs until Ctrl-C [default: 0]
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Write the digits model and a request for it into this directory, print how to serve them,
    /// and end
    #[arg(long, value_name = "DIR", exclusive = true)]
    pub export: Option<PathBuf>,
    /// Directory with text.png, text.txt, voice.wav and silence.wav: adds pretrained models of text
    /// and speech
    #[arg(long, value_name = "DIR")]
    pub assets: Option<PathBuf>,
    /// Directory with the pretrained models
    #[arg(long, value_name = "DIR", default_value = ".cache/models")]
    pub models: PathBuf,
    /// Directory with the embedding model and the images of image search: adds image search
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,
    /// Size of the click-through model [default: 512 MiB, or 1/16 of memory if that is less]
    #[arg(long, value_parser = units::parse_bytes)]
    pub bytes: Option<u64>,
    /// Requests per second to the click-through model
    #[arg(long, default_value_t = 300.0)]
    pub rate: f64,
    /// Time from one swap to the next
    #[arg(long, default_value = "5", value_parser = units::parse_duration)]
    pub swap_every: Duration,
    /// HTTP port; replaced by a free one if it is in use
    #[arg(long, default_value_t = 8501)]
    pub http_port: u16,
    /// gRPC port; replaced by a free one if it is in use
    #[arg(long, default_value_t = 8500)]
    pub grpc_port: u16,
}

/// Runs the demo. `time` is its length if `--seconds` is not given.
///
/// # Errors
/// Returns an error if a file or a library is missing. Also at the end, if a request failed, an
/// answer was wrong or a swap did not happen.
pub fn run(args: &DemoArgs, time: Option<Duration>, env: &BenchEnv) -> Result<()> {
    let time = check_times(args, time)?;
    if let Some(dir) = &args.export {
        println!("Serve a trained model:\n{}", digits::export(dir, &command(&env.millpond))?);
        return Ok(());
    }
    let _lock = lock_directories(env)?;
    let engine = OnnxEngine::open(&env.onnxruntime)?;
    let checks = ModelChecks::find(args, &engine)?;
    let bytes =
        args.bytes.unwrap_or_else(|| BYTES_MAX.min((memory_bytes() / MEMORY_SHARE).max(MIB)));
    let ctr = Ctr::of_bytes(bytes);
    let contents = SwapContents::layouts(env, &ctr, DISTINCT)?;
    let traffic = {
        let progress = StepProgress::new(1);
        progress.say("computing the right answers");
        Arc::new(Traffic::new(&ctr, DISTINCT, BATCH)?)
    };
    let gallery = args.images.as_deref().map(ImageModelFiles::find).transpose()?;
    let repository = publish_all(args, env, &contents, gallery.as_ref())?;

    let server_args = server_args(env, &repository, gallery.is_some())?;
    let ports = ServerPorts { http: args.http_port, grpc: args.grpc_port };
    let plan =
        ServerPlan { detached: true, ports: Some(ports), ..ServerPlan::new("demo", server_args) };
    let server = ServerProcess::start(env, &plan)?;
    println!(
        "Millpond serves handwritten digits (\"{}\"){} and click-through rates (\"{MODEL}\", {} of \
         parameters) from {}",
        digits::MODEL,
        if args.assets.is_some() { ", text, speech" } else { "" },
        format_bytes(bytes),
        repository.display()
    );
    let mut caller = GrpcCaller::connect(server.grpc())?;
    for line in digits::check(&mut caller)?.drawing.into_iter().chain(checks.run(&mut caller)?) {
        println!("  {line}");
    }
    // Only a call drives this connection, so it answers no pings of the server in between. The
    // server would close it while the traffic runs.
    drop(caller);
    let indexed = search_images(gallery.as_ref(), &server)?;
    print_urls(&server, indexed.as_ref());

    let stage = TrafficStage {
        args,
        time,
        contents: &contents,
        server: &server,
        model_dir: repository.join(MODEL),
    };
    let seen = stage.play(&traffic)?;
    let swapped = stage.wait_swapped(seen.swaps)?;
    let mut again = checks.run(&mut GrpcCaller::connect(server.grpc())?)?;
    if let Some(indexed) = &indexed {
        again.extend(indexed.find()?);
    }
    server.stop()?;
    println!("\n{}{}\nafter {} swaps:", seen.table(), fault_lines(&seen), seen.swaps);
    again.iter().for_each(|line| println!("  {line}"));
    verdict(&seen, swapped)?;
    print_next_step(&env.millpond);
    Ok(())
}

/// Returns the length of the demo, `None` if it has no end. `default` is the length if `--seconds`
/// is not given.
///
/// # Errors
/// `InvalidArgument` if versions change too often, or if there are no requests.
fn check_times(args: &DemoArgs, default: Option<Duration>) -> Result<Option<Duration>> {
    if args.swap_every < Duration::from_secs(1) || !(args.rate > 0.0 && args.rate.is_finite()) {
        return Err(Error::invalid("--swap-every must be at least 1s, --rate above 0"));
    }
    Ok(match args.seconds {
        Some(0) => None,
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => default,
    })
}

fn print_next_step(program: &Path) {
    println!(
        "\nTo serve a model yourself: {} demo --export .    # writes a small model, and prints the commands for it",
        command(program)
    );
}

/// Returns the program as a command of the terminal: its path in a checkout, else its name.
fn command(program: &Path) -> String {
    let here = std::env::current_dir().ok();
    let below = here.as_deref().and_then(|here| program.strip_prefix(here).ok());
    let built = below.filter(|path| path.starts_with("target"));
    built.map_or_else(|| "millpond".to_owned(), |path| path.display().to_string())
}

fn fault_lines(seen: &LiveCounts) -> String {
    let mut text = format!("failed {}, wrong {}", seen.faults.failed, seen.faults.wrong);
    seen.faults.lines().iter().for_each(|line| text.push_str(&format!("\n  {line}")));
    text
}

/// Checks that no request failed, and that the server has swapped all versions.
fn verdict(seen: &LiveCounts, swapped: u64) -> Result<()> {
    if seen.faults.failed + seen.faults.wrong > 0 {
        return Err(Error::internal(
            "the demo had failed requests or wrong answers; its server's log says more",
        ));
    }
    if swapped < seen.swaps {
        return Err(Error::internal(format!(
            "{} versions were published, the server swapped {swapped}",
            seen.swaps
        )));
    }
    Ok(())
}

/// Returns the arguments of the server, with an empty directory for collections if there are
/// images.
fn server_args(env: &BenchEnv, repository: &Path, images: bool) -> Result<Vec<String>> {
    let mut args = vec![repository.display().to_string(), "--poll".into(), "200ms".into()];
    let collections = env.cache_dir.join("run").join("demo-collections");
    cache::create_empty_dir(&collections)?;
    let place = if images { collections.display().to_string() } else { "none".into() };
    args.extend(["--collections-dir".into(), place]);
    Ok(args)
}

/// Indexes the images and finds them by changed copies.
fn search_images<'a>(
    gallery: Option<&'a ImageModelFiles>,
    server: &ServerProcess,
) -> Result<Option<IndexedGallery<'a>>> {
    let Some(gallery) = gallery else { return Ok(None) };
    let (indexed, line) =
        IndexedGallery::index(gallery, format!("http://{}", server.http().authority))?;
    println!("  {line}");
    indexed.find()?.iter().for_each(|line| println!("  {line}"));
    Ok(Some(indexed))
}

/// Locks the directories of the demo, which each start creates again.
fn lock_directories(env: &BenchEnv) -> Result<File> {
    let run = env.cache_dir.join("run");
    std::fs::create_dir_all(&run).map_err(|e| Error::io(&run, &e))?;
    let path = run.join("demo.lock");
    let lock = File::create(&path).map_err(|e| Error::io(&path, &e))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(Error::unavailable(format!(
            "another demo runs in {}; end it, or set MILLPOND_CACHE_DIR to another directory",
            run.display()
        ))),
        Err(TryLockError::Error(e)) => Err(Error::io(&path, &e)),
    }
}

/// Publishes the models' first versions into a new repository.
fn publish_all(
    args: &DemoArgs,
    env: &BenchEnv,
    contents: &SwapContents,
    gallery: Option<&ImageModelFiles>,
) -> Result<PathBuf> {
    let repository = env.cache_dir.join("run").join("demo");
    cache::create_empty_dir(&repository)?;
    let digits = env.cache_dir.join("run").join("digits.onnx");
    digits::write(&digits)?;
    let mut sources = vec![(digits::MODEL, digits)];
    if args.assets.is_some() {
        sources.push((TEXT_MODEL, args.models.join(TEXT_FILE)));
        sources.push((VOICE_MODEL, args.models.join(VOICE_FILE)));
    }
    sources.extend(gallery.map(|gallery| (images::MODEL, gallery.model.clone())));
    for (name, source) in sources {
        let options = PublishOptions {
            source: source.clone(),
            dest_root: repository.join(name),
            version: Some(1),
            rate: Rate::unlimited(),
            direct: true,
        };
        publish(&options, &mut |_| {})
            .map_err(|e| e.context(format!("cannot publish {}", source.display())))?;
    }
    cache::publish_link(contents.of(1), &repository.join(MODEL), 1)?;
    Ok(repository)
}

fn print_urls(server: &ServerProcess, indexed: Option<&IndexedGallery<'_>>) {
    let http = format!("http://{}", server.http().authority);
    let zeros = |count: usize| vec!["0"; count].join(",");
    println!("\nIn a browser:\n  {http}/  models, their latency, swaps");
    if let Some(indexed) = indexed {
        println!("  {}  drop an image, see its matches", indexed.page());
    }
    println!("\nTry it from another terminal:");
    println!("  curl {http}/v2/models/{}", digits::MODEL);
    println!("  curl {http}/v1/models/{MODEL}");
    println!("  curl -s {http}/metrics | grep millpond_window");
    println!(
        "  curl -d '{{\"inputs\":{{\"sparse\":[[{}]],\"dense\":[[{}]]}}}}' {http}/v1/models/{MODEL}:predict",
        zeros(TABLES),
        zeros(DENSE)
    );
    println!(
        "  gRPC (Open Inference Protocol and TensorFlow Serving): {}",
        server.grpc().authority
    );
    println!("  server's log: {}\n", server.log().display());
}

/// Checks of the models' answers that a user can follow.
struct ModelChecks<'a> {
    pretrained: Option<PretrainedChecks<'a>>,
}

impl<'a> ModelChecks<'a> {
    fn find(args: &'a DemoArgs, engine: &OnnxEngine) -> Result<ModelChecks<'a>> {
        let find = |assets: &'a PathBuf| PretrainedChecks::find(assets, &args.models, engine);
        Ok(ModelChecks { pretrained: args.assets.as_ref().map(find).transpose()? })
    }

    /// Returns the models' answers as lines.
    ///
    /// # Errors
    /// Returns an error if an answer is wrong.
    fn run(&self, caller: &mut GrpcCaller) -> Result<Vec<String>> {
        let mut lines = vec![digits::check(caller)?.summary];
        if let Some(pretrained) = &self.pretrained {
            lines.extend(pretrained.run(caller)?);
        }
        Ok(lines)
    }
}

/// Inputs of the fetched models, with answers that a user can check.
struct PretrainedChecks<'a> {
    assets: &'a Path,
    text: String,
    characters: Vec<String>,
}

impl<'a> PretrainedChecks<'a> {
    fn find(assets: &'a Path, models: &Path, engine: &OnnxEngine) -> Result<PretrainedChecks<'a>> {
        let path = assets.join("text.txt");
        let text = std::fs::read_to_string(&path).map_err(|e| {
            Error::io(&path, &e).context(
                "run `make demo` in a checkout, which makes these inputs, or leave --assets out",
            )
        })?;
        let characters = ocr::characters(engine, &models.join(TEXT_FILE))?;
        Ok(PretrainedChecks { assets, text: text.trim().to_owned(), characters })
    }

    /// Returns the models' answers, a line each.
    ///
    /// # Errors
    /// Returns an error if an answer is wrong.
    fn run(&self, caller: &mut GrpcCaller) -> Result<Vec<String>> {
        let read = text::read(caller, TEXT_MODEL, &self.assets.join("text.png"), &self.characters)?;
        if read != self.text {
            return Err(Error::internal(format!(
                "the image says \"{}\", the model read \"{read}\"",
                self.text
            )));
        }
        let voice = voice::speech(caller, VOICE_MODEL, &self.assets.join("voice.wav"))?;
        let silence = voice::speech(caller, VOICE_MODEL, &self.assets.join("silence.wav"))?;
        if voice < SPEECH_MIN || silence >= SPEECH_MIN {
            return Err(Error::internal(format!(
                "speech {voice:.2} in voice.wav and {silence:.2} in silence.wav: wanted at least {SPEECH_MIN}, and less"
            )));
        }
        Ok(vec![
            format!("text.png reads \"{read}\", as written in text.txt"),
            format!(
                "voice.wav has speech (probability {voice:.2}), silence.wav has none ({silence:.2})"
            ),
        ])
    }
}

/// The part with traffic and swaps.
struct TrafficStage<'a> {
    args: &'a DemoArgs,
    /// Time after which the demo ends by itself.
    time: Option<Duration>,
    contents: &'a SwapContents,
    server: &'a ServerProcess,
    model_dir: PathBuf,
}

impl TrafficStage<'_> {
    /// Runs the traffic until it is interrupted or its time is up. Returns the counts.
    fn play(&self, traffic: &Arc<Traffic>) -> Result<LiveCounts> {
        let endpoint = self.server.grpc();
        let (template, bodies) = traffic.encode(&endpoint, MODEL)?;
        let pace = LoadLoop::Open { arrivals: Arrivals::Poisson, rate: self.args.rate, seed: 1 };
        let plan = DrivePlan::new(endpoint, template, bodies, pace, Duration::MAX);
        let log = Arc::new(SampleLog::default());
        let (judge, sink): (Arc<dyn Judge>, Arc<dyn SampleSink>) = (traffic.clone(), log.clone());
        process::handle_interrupts();
        std::thread::scope(|scope| {
            let driver = scope.spawn(|| drive(&plan, &judge, &sink));
            let watched = self.watch(&plan, &log, || driver.is_finished());
            plan.stop.store(true, Ordering::Relaxed);
            driver.join().unwrap_or_else(|_| Err(Error::internal("the driver panicked")))?;
            let (mut seen, starts) = watched?;
            seen.add(log.take(), &starts, self.window(), TICK);
            Ok(seen)
        })
    }

    /// Returns the time after a swap's start in which a due request counts as during the swap.
    fn window(&self) -> Duration {
        self.swap_every() / 2
    }

    /// Returns `--swap-every`, or a third of the demo's time if that is shorter, so that a short
    /// demo shows a swap or two.
    fn swap_every(&self) -> Duration {
        let short = self.time.map_or(Duration::MAX, |time| time / 3);
        self.args.swap_every.min(short).max(TICK)
    }

    /// Shows the traffic until it has ended, and swaps the model at each interval. Returns the
    /// counts, and the start of each swap since the begin of the traffic.
    fn watch(
        &self,
        plan: &DrivePlan,
        log: &SampleLog,
        ended: impl Fn() -> bool,
    ) -> Result<(LiveCounts, Vec<Duration>)> {
        let limit = self.time.unwrap_or(Duration::MAX);
        let mut seen = LiveCounts::default();
        let mut screen = Screen::new();
        let mut starts: Vec<Duration> = Vec::new();
        let mut last_shown = plan.start;
        while !ended() && !process::interrupted() && plan.start.elapsed() < limit {
            std::thread::sleep(TICK);
            let elapsed = plan.start.elapsed();
            let next = self.swap_every() * u32::try_from(starts.len() + 1).unwrap_or(u32::MAX);
            if elapsed >= next && elapsed + self.window() < limit {
                starts.push(elapsed);
                let version = starts.len() as u64 + 1;
                cache::publish_link(self.contents.of(version), &self.model_dir, version)?;
                cache::prune(&self.model_dir, version, VERSIONS_KEPT)?;
            }
            seen.add(log.take(), &starts, self.window(), last_shown.elapsed());
            last_shown = Instant::now();
            seen.swaps = starts.len() as u64;
            screen.show(&seen, &placements(&self.server.metrics()?), elapsed);
        }
        Ok((seen, starts))
    }

    /// Waits until the server has made `wanted` swaps. Returns the number of its swaps.
    fn wait_swapped(&self, wanted: u64) -> Result<u64> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let swapped =
                self.server.metrics()?.sum("millpond_swaps_total", &[("model", MODEL)]) as u64;
            if swapped >= wanted || Instant::now() > deadline {
                return Ok(swapped);
            }
            std::thread::sleep(TICK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_of_a_checkout_is_its_program() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(command(&here.join("target/release/millpond")), "target/release/millpond");
        assert_eq!(command(&here.join("venv/bin/millpond")), "millpond");
        assert_eq!(command(Path::new("/usr/bin/millpond")), "millpond");
    }
}
