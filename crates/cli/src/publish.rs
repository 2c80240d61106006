//! `millpond publish`, and the child process that converts foreign models for the server.

mod store;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::Error;
use base::units::format_bytes;
use clap::Args;
use command_line::environment::tensorflow_search;
use command_line::exit::{CommandError, CommandResult, ExitStatus, print, print_note};
use command_line::values::{ByteRate, check_home, check_name};
use engine::foreign::{self, ForeignFormat};
use engine::publish::{PublishOptions, PublishProgress, Published, WriteOptions};
use engine_onnx::publish as onnx;
use engine_tensorflow::publish::SavedModelGraph;
use engine_tensorflow::{TensorFlowEngine, publish as tensorflow};
use indicatif::{ProgressBar, ProgressStyle};
use model_store::{STORE_SCHEMES, is_url};
use os::{ChildProgram, Rate};

use crate::child_process::ChildArgs;
use crate::layout;

/// Interval between two redraws, so that rate and time left stay current while no data arrive.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Files that make a directory publishable.
const PUBLISHABLE: [&str; 3] = ["millpond.json", "model.onnx", "saved_model.pb"];

/// `millpond publish IN --to DIR/NAME`.
#[derive(Args, Debug)]
#[command(after_help = "\
If --to is a URL, the version is written below MILLPOND_CACHE_DIR, uploaded, and removed there. Its manifest is \
uploaded last, so servers never see an incomplete version. An existing version is never replaced. Credentials come \
from the provider's environment variables; docs/object-stores.md has the details.

  millpond publish model.onnx --to models/ctr
  millpond publish model.onnx --to s3://bucket/models/ctr --version 7")]
pub(crate) struct PublishArgs {
    /// ONNX file, directory with model.onnx and its external data, SavedModel, or published version
    #[arg(value_name = "IN")]
    source: PathBuf,
    /// The model's directory, or its URL such as s3://BUCKET/PATH/NAME; the new version appears in
    /// it in one step
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
    /// Tags of the graph to publish, of a SavedModel with several graphs [default: serve]
    #[arg(long, value_name = "TAG,TAG", value_delimiter = ',')]
    tags: Vec<String>,
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
    /// Tags of the graph of a SavedModel [default: serve]
    #[arg(long, value_name = "TAG", value_delimiter = ',')]
    tags: Vec<String>,
    #[command(flatten)]
    child: ChildArgs,
}

/// Returns the command by which a server starts `program` to convert a model. The environment
/// passes on the library if no flag names it.
pub(crate) fn converter(
    program: &ChildProgram,
    library: Option<&Path>,
) -> (ChildProgram, Vec<String>) {
    let mut args = vec!["convert".to_owned(), ChildArgs::flag(program)];
    args.extend(library.map(|path| format!("--tensorflow={}", path.display())));
    (program.clone(), args)
}

fn tensorflow_engine(library: Option<&PathBuf>) -> TensorFlowEngine {
    TensorFlowEngine::new(tensorflow_search(library.cloned()))
}

/// Publishes with a progress bar and prints the new directory or URL.
pub(crate) fn run(args: &PublishArgs) -> CommandResult {
    let name =
        args.to.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    check_name(&name)
        .map_err(|error| CommandError::usage(format!("--to {}: {error}", args.to.display())))?;
    check_number(&args.to, &name)?;
    check_slashes(&args.to)?;
    if !tensorflow::is_source(&args.source) {
        check_no_tags(&args.tags)?;
        check_format(&args.source, &args.to)?;
    }
    if let Some(url) = args.to.to_str().filter(|text| is_url(text)) {
        return store::run(args, url);
    }
    check_home("--to", &args.to).map_err(|error| CommandError::usage(error.message()))?;
    check_place(&args.to)?;
    let published = write(args, &args.to, args.version)?;
    announce(published.version, &published);
    print(&format!("{}\n", published.dir.display()))
}

/// Writes the version below `model` with a progress bar.
fn write(args: &PublishArgs, model: &Path, version: Option<u64>) -> CommandResult<Published> {
    let options = PublishOptions {
        source: args.source.clone(),
        dest_root: model.to_owned(),
        version,
        rate: rate(args.rate),
        direct: !args.no_direct_io,
    };
    let bar = progress_bar();
    let mut progress =
        |progress: PublishProgress| show(&bar, progress.bytes_done, progress.bytes_total);
    let published = if tensorflow::is_source(&args.source) {
        let engine = tensorflow_engine(args.tensorflow.as_ref());
        tensorflow::publish(&engine, &options, &args.tags, &mut progress)
    } else {
        onnx::publish(&options, &mut progress)
    };
    bar.finish_and_clear();
    Ok(published?)
}

/// Prints number and size of a published version to standard error.
fn announce(version: u64, published: &Published) {
    let parameters: u64 = published.manifest.tensors.iter().map(|tensor| tensor.bytes).sum();
    let tensors = published.manifest.tensors.len();
    let size = format_bytes(parameters);
    print_note(&format!("version {version}: {size} of parameters in {tensors} tensors"));
}

/// Refuses tags for a model that has no graphs to select from.
fn check_no_tags(tags: &[String]) -> CommandResult {
    if tags.is_empty() {
        Ok(())
    } else {
        Err(CommandError::usage(
            "--tags selects a graph of a SavedModel, and IN is not one: leave it out",
        ))
    }
}

/// Refuses a version's own directory.
fn check_number(to: &Path, name: &str) -> CommandResult {
    if layout::is_version(name) {
        Err(CommandError::usage(format!(
            "--to {}: \"{name}\" is a version's number, not a model's name",
            to.display()
        ))
        .hint(format!("give the model's directory, and the number with --version {name}")))
    } else {
        Ok(())
    }
}

/// Refuses a root, in which a new version would change the meaning of its content.
fn check_place(to: &Path) -> CommandResult {
    if layout::is_model(to) {
        Ok(())
    } else {
        check_models(&to.display().to_string(), &layout::models_in(to))
    }
}

/// Refuses a directory of the models `models`.
fn check_models(to: &str, models: &[String]) -> CommandResult {
    let Some(first) = models.first() else { return Ok(()) };
    let count = models.len();
    Err(CommandError::usage(format!(
        "--to {to} is a directory of models ({first}, {count} in all), not a model"
    ))
    .hint(format!("name the model: --to {}/NAME", to.trim_end_matches('/'))))
}

/// Refuses a file or directory of a format that is not converted. The error says how to serve it.
fn check_format(source: &Path, to: &Path) -> CommandResult {
    let shown = source.display().to_string();
    let name = to.display().to_string();
    let remedy =
        |text: &str| text.replace("NAME", name.trim_end_matches('/')).replace("FILE", &shown);
    if let Some(ForeignFormat { format, remedy: text }) = foreign::identify(source) {
        return Err(CommandError::usage(format!("{shown} is {format}")).hint(remedy(text)));
    }
    // The publication itself reports a file that does not exist.
    if !source.is_dir() || PUBLISHABLE.iter().any(|file| source.join(file).is_file()) {
        return Ok(());
    }
    // The directories of a model are its versions, and `no_model` names one of them.
    let is_version = layout::latest_version(source).is_none();
    let below = || is_version.then(|| foreign::identify_below(source)).flatten();
    match foreign::identify_dir(source).or_else(below) {
        Some(found) => {
            Err(CommandError::usage(format!("{shown} holds no model that can be published"))
                .hint(remedy(&found)))
        }
        None => Err(no_model(source)),
    }
}

/// Returns the error for a directory without a file that can be published.
fn no_model(source: &Path) -> CommandError {
    let shown = source.display();
    let failure = CommandError::failed(format!("{shown} holds none of {}", PUBLISHABLE.join(", ")));
    match layout::latest_version(source) {
        Some(version) => failure
            .hint(format!("it is a model: give one of its versions, such as {shown}/{version}")),
        None => failure,
    }
}

/// Refuses a URL with one slash too few, which would be a directory of this machine.
fn check_slashes(to: &Path) -> CommandResult {
    let text = to.to_string_lossy();
    match text.split_once(":/") {
        Some((scheme, rest)) if STORE_SCHEMES.contains(&scheme) && !rest.starts_with('/') => {
            let host = if scheme == "file" { "/" } else { "" };
            Err(CommandError::usage(format!("--to {text}: a URL has two slashes after the colon"))
                .hint(format!("give {scheme}://{host}{rest}")))
        }
        _ => Ok(()),
    }
}

/// Converts at the priority of the load thread that started this process. The parent reads the last
/// line of standard error as the reason, so an error is exactly one line without a prefix. The exit
/// code shows if a retry can succeed.
pub(crate) fn convert(args: &ConvertArgs) -> CommandResult {
    args.child.name_process();
    let options = WriteOptions { rate: rate(args.rate), direct: !args.no_direct_io };
    let converted = if tensorflow::is_source(&args.source) {
        let search = tensorflow_search(args.tensorflow.clone());
        let engine = TensorFlowEngine::new(args.child.beside(search));
        let graph = SavedModelGraph { source: &args.source, tags: &args.tags };
        tensorflow::convert_into(&engine, graph, &args.dest, options, &mut |_| {})
    } else {
        onnx::convert_into(&args.source, &args.dest, options, &mut |_| {})
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

/// Creates a progress bar on standard error, which is hidden if standard error is not a terminal.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = "{bar:30} {percent:>3} %  {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

fn show(bar: &ProgressBar, bytes_done: u64, bytes_total: u64) {
    if bar.length() != Some(bytes_total) {
        // The bar stays hidden until the total is known.
        bar.set_length(bytes_total);
        bar.enable_steady_tick(DRAW_INTERVAL);
    }
    bar.set_position(bytes_done);
}
