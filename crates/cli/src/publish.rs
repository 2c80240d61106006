//! `millpond publish`, and the child process that converts foreign models for the server.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::Error;
use base::units::format_bytes;
use clap::Args;
use engine::foreign::{self, ForeignFormat};
use engine::publish::{PublishOptions, PublishProgress, WriteOptions};
use engine_onnx::publish as onnx;
use engine_tensorflow::{TensorFlowEngine, publish as tensorflow};
use indicatif::{ProgressBar, ProgressStyle};
use os::Rate;

use crate::environment::tensorflow_search;
use crate::exit::{CommandError, CommandResult, ExitStatus, print};
use crate::layout;
use crate::values::{ByteRate, check_name};

/// Interval between two redraws, so that rate and time left stay current while no data arrive.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);

/// `millpond publish IN --to DIR/NAME`.
#[derive(Args, Debug)]
pub(crate) struct PublishArgs {
    /// ONNX file, directory with model.onnx and its external data, SavedModel, or published version
    #[arg(value_name = "IN")]
    source: PathBuf,
    /// The model's directory; the new version appears in it in one step
    #[arg(long, value_name = "DIR/NAME")]
    to: PathBuf,
    /// Version number [default: one more than the highest existing version]
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    /// Maximum bytes per second [default: unlimited]
    #[arg(long, value_name = "BYTES")]
    rate: Option<ByteRate>,
    /// Write through the page cache instead of with O_DIRECT
    #[arg(long)]
    no_direct_io: bool,
    /// TensorFlow's library, or the directory of its Python package, for a SavedModel [default:
    /// found in a virtual environment, beside the program or in the system]
    #[arg(long, value_name = "PATH")]
    tensorflow: Option<PathBuf>,
}

/// `millpond convert SRC DEST`.
#[derive(Args, Debug)]
pub(crate) struct ConvertArgs {
    /// ONNX file, directory with model.onnx, or SavedModel
    source: PathBuf,
    /// Existing empty directory
    dest: PathBuf,
    /// Maximum bytes per second [default: unlimited]
    #[arg(long, value_name = "BYTES")]
    rate: Option<ByteRate>,
    /// Write through the page cache instead of with O_DIRECT
    #[arg(long)]
    no_direct_io: bool,
    /// TensorFlow's library, or the directory of its Python package
    #[arg(long, value_name = "PATH")]
    tensorflow: Option<PathBuf>,
}

/// Returns the command by which a server starts `program` to convert a model. The environment
/// passes on the library if no flag names it.
pub(crate) fn converter(program: PathBuf, library: Option<&Path>) -> (PathBuf, Vec<String>) {
    let mut args = vec!["convert".to_owned()];
    args.extend(library.map(|path| format!("--tensorflow={}", path.display())));
    (program, args)
}

fn tensorflow_engine(library: Option<&PathBuf>) -> TensorFlowEngine {
    TensorFlowEngine::new(tensorflow_search(library.cloned()))
}

/// Publishes with a progress bar and prints the new directory.
pub(crate) fn run(args: &PublishArgs) -> CommandResult {
    let name =
        args.to.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    check_name(&name)
        .map_err(|error| CommandError::usage(format!("--to {}: {error}", args.to.display())))?;
    check_place(&args.to, &name)?;
    let saved_model = tensorflow::is_source(&args.source);
    if !saved_model {
        check_format(&args.source, &args.to)?;
    }
    let options = PublishOptions {
        source: args.source.clone(),
        dest_root: args.to.clone(),
        version: args.version,
        rate: rate(args.rate),
        direct: !args.no_direct_io,
    };
    let bar = progress_bar();
    let mut progress = |progress| show(&bar, progress);
    let published = match saved_model {
        true => {
            let engine = tensorflow_engine(args.tensorflow.as_ref());
            tensorflow::publish(&engine, &options, &mut progress)
        }
        false => onnx::publish(&options, &mut progress),
    };
    bar.finish_and_clear();
    let published = published?;
    let parameters: u64 = published.manifest.tensors.iter().map(|tensor| tensor.bytes).sum();
    let tensors = published.manifest.tensors.len();
    eprintln!(
        "version {}: {} of parameters in {tensors} tensors",
        published.version,
        format_bytes(parameters)
    );
    print(&format!("{}\n", published.dir.display()))
}

/// Refuses a directory in which a new version would change the meaning of its content: a version's
/// own directory, and a root.
fn check_place(to: &Path, name: &str) -> CommandResult {
    let shown = to.display();
    if layout::is_version(name) {
        return Err(CommandError::usage(format!(
            "--to {shown}: \"{name}\" is a version's number and no model's name"
        ))
        .hint(format!("give the model's directory, and the number with --version {name}")));
    }
    let models = layout::models_in(to);
    match models.first() {
        Some(first) if !layout::is_model(to) => {
            let count = models.len();
            Err(CommandError::usage(format!(
                "--to {shown} is a directory of models ({first}, {count} in all) and no model"
            ))
            .hint(format!("name the model: --to {}/NAME", shown.to_string().trim_end_matches('/'))))
        }
        _ => Ok(()),
    }
}

/// Refuses a file or directory of a format that is not converted, and names the way to serve it.
fn check_format(source: &Path, to: &Path) -> CommandResult {
    let (shown, name) = (source.display().to_string(), to.display().to_string());
    let remedy =
        |text: &str| text.replace("NAME", name.trim_end_matches('/')).replace("FILE", &shown);
    if let Some(ForeignFormat { format, remedy: text }) = foreign::identify(source) {
        return Err(CommandError::usage(format!("{shown} is {format}")).hint(remedy(text)));
    }
    let publishable = ["millpond.json", "model.onnx"].iter().any(|file| source.join(file).exists());
    match foreign::identify_dir(source).filter(|_| !publishable) {
        Some(found) => {
            Err(CommandError::usage(format!("{shown} holds no model that can be published"))
                .hint(remedy(&found)))
        }
        None => Ok(()),
    }
}

/// Converts at the priority of the load thread that started this process. The parent reads the last
/// line of standard error as the reason, so an error is exactly one line without a prefix. The exit
/// code tells it whether to retry.
pub(crate) fn convert(args: &ConvertArgs) -> CommandResult {
    let options = WriteOptions { rate: rate(args.rate), direct: !args.no_direct_io };
    let converted = match tensorflow::is_source(&args.source) {
        true => {
            let engine = tensorflow_engine(args.tensorflow.as_ref());
            tensorflow::convert_into(&engine, &args.source, &args.dest, options, &mut |_| {})
        }
        false => onnx::convert_into(&args.source, &args.dest, options, &mut |_| {}),
    };
    converted.map(drop).map_err(|error: Error| {
        // The reader may have exited, or the disk of a redirected standard error may be full:
        // no reason to panic.
        let _ = writeln!(std::io::stderr(), "{}", error.message().replace('\n', " "));
        CommandError::silent(if error.is_retryable() {
            ExitStatus::TryAgain
        } else {
            ExitStatus::Failed
        })
    })
}

fn rate(rate: Option<ByteRate>) -> Rate {
    match rate {
        None | Some(ByteRate(0)) => Rate::unlimited(),
        Some(ByteRate(bytes)) => Rate::per_second(bytes),
    }
}

/// Creates a progress bar on standard error, which is hidden if that is no terminal.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = "{bar:30} {percent:>3} %  {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

fn show(bar: &ProgressBar, progress: PublishProgress) {
    if bar.length() != Some(progress.bytes_total) {
        // The bar stays hidden until the total is known.
        bar.set_length(progress.bytes_total);
        bar.enable_steady_tick(DRAW_INTERVAL);
    }
    bar.set_position(progress.bytes_done);
}
