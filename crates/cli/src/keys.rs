//! `millpond keys`: keys for the file of `serve --keys`.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::{Args, Subcommand, ValueEnum};
use command_line::exit::{CommandError, CommandResult, print};
use toml::Value;

/// Random bytes of a key.
const KEY_BYTES: usize = 32;
/// Start of every key, by which scanners for leaked keys recognise one.
const PREFIX: &str = "mp_";
/// Number of digits of the hash in the name of a key without one.
const NAME_DIGITS: usize = 8;

/// `millpond keys COMMAND`.
#[derive(Args, Debug)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Make a key: print it on standard error, and its lines for the file on standard output
    New(NewArgs),
}

/// Roles, each of which may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RoleName {
    /// Run models and recognisers
    Infer,
    /// Also search collections and images, and read metrics and pages
    Read,
    /// Also change collections and images
    Write,
    /// Also load and unload models
    Admin,
}

/// `millpond keys new`.
#[derive(Args, Debug)]
#[command(after_help = "\
The file of keys has only a hash, so a lost key cannot be shown again: make another.

    millpond keys new --role infer --models 'rank*' >> keys.toml
    millpond serve models --keys keys.toml

A running server reads the file when it changes. Patterns name models and collections; * matches any text. Without \
--models all models are permitted, with --models '' none; the same applies to collections.")]
struct NewArgs {
    /// Role of the key
    #[arg(long, value_name = "ROLE")]
    role: RoleName,
    /// Name in the log and in messages [default: made of the hash]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Patterns of the models and recognisers that it may use [default: all]
    #[arg(long, value_name = "PATTERNS", value_delimiter = ',')]
    models: Option<Vec<String>>,
    /// Patterns of the collections that it may use [default: all]
    #[arg(long, value_name = "PATTERNS", value_delimiter = ',')]
    collections: Option<Vec<String>>,
    /// Maximum requests per second; more get 429 or RESOURCE_EXHAUSTED [default: no limit]
    #[arg(long, value_name = "N", value_parser = rate)]
    requests_per_second: Option<f64>,
    /// Maximum CPU seconds per minute of model runs, searches, image and audio work; more get 429
    /// or RESOURCE_EXHAUSTED. Requests in one batch share its time by items. After a pause, the key
    /// can use the quota of five seconds at once [default: no limit]
    #[arg(long, value_name = "N", value_parser = rate)]
    cpu_seconds_per_minute: Option<f64>,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: Option<f64> = text.parse().ok();
    rate.filter(|rate| *rate > 0.0 && rate.is_finite()).ok_or_else(|| "it must be above 0".into())
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the system gives no random bytes.
pub(crate) fn run(args: &KeysArgs) -> CommandResult {
    let KeysCommand::New(args) = &args.command;
    let mut bytes = [0; KEY_BYTES];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).map_err(
        |error| CommandError::failed(format!("the system gives no random bytes: {error}")),
    )?;
    let key = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
    // The key is shown once its lines are written.
    print(&lines(args, &key))?;
    writeln!(std::io::stderr(), "the key, which is shown only now: {key}").map_err(|error| {
        CommandError::failed(format!("cannot write the key to standard error: {error}"))
            .hint("remove the printed lines, and run the command again")
    })
}

/// Returns the lines of `key` for the file.
fn lines(args: &NewArgs, key: &str) -> String {
    let hash = blake3::hash(key.as_bytes()).to_hex();
    let role =
        args.role.to_possible_value().map_or_else(String::new, |role| role.get_name().into());
    let name = args.name.clone().unwrap_or_else(|| format!("{role}-{}", &hash[..NAME_DIGITS]));
    let text = |text: &str| Value::String(text.to_owned()).to_string();
    let mut lines = format!(
        "\n[[keys]]\nname = {}\nhash = \"blake3:{hash}\"\nrole = \"{role}\"\n",
        text(&name)
    );
    for (setting, patterns) in [("models", &args.models), ("collections", &args.collections)] {
        if let Some(patterns) = patterns {
            let patterns = patterns.iter().filter(|pattern| !pattern.is_empty());
            let patterns: Vec<_> = patterns.map(|pattern| text(pattern)).collect();
            let _ = writeln!(lines, "{setting} = [{}]", patterns.join(", "));
        }
    }
    for (setting, limit) in [
        ("requests-per-second", args.requests_per_second),
        ("cpu-seconds-per-minute", args.cpu_seconds_per_minute),
    ] {
        if let Some(limit) = limit {
            let _ = writeln!(lines, "{setting} = {limit:?}");
        }
    }
    lines
}
