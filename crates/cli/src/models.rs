//! `millpond models`: what a running server serves, and telling it to load and unload.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::client::{Client, ServerArgs, segment};
use crate::environment;
use crate::exit::{Exit, Failure, Outcome, print};
use crate::table::Table;

/// `millpond models ACTION`.
#[derive(Args, Debug)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List models, versions and states
    Ls(LsArgs),
    /// Load a model and wait until it is ready
    Load(LoadArgs),
    /// Unload a model
    Unload(NameArgs),
    /// Show the state of each version, with the reason where it is not served
    Status(StatusArgs),
}

#[derive(Args, Debug)]
struct LsArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct LoadArgs {
    /// The model
    name: String,
    /// This version, beside what the model's version policy picks
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    key: KeyArgs,
}

#[derive(Args, Debug)]
struct NameArgs {
    /// The model
    name: String,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    key: KeyArgs,
}

/// The key of admin calls.
#[derive(Args, Debug)]
struct KeyArgs {
    /// The server's admin key, or its API key, if it has one [default: MILLPOND_ADMIN_KEY, else MILLPOND_API_KEY]
    #[arg(long, value_name = "KEY")]
    admin_key: Option<String>,
}

impl KeyArgs {
    fn key(&self) -> Option<String> {
        self.admin_key
            .clone()
            .or_else(|| environment::ADMIN_KEY.text())
            .or_else(|| environment::API_KEY.text())
    }
}

#[derive(Args, Debug)]
struct StatusArgs {
    /// The model [default: all]
    name: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `millpond models`.
pub(crate) fn run(args: &ModelsArgs) -> Outcome {
    match &args.action {
        Action::Ls(args) => list(args),
        Action::Load(args) => load(args),
        Action::Unload(args) => unload(args),
        Action::Status(args) => status(args),
    }
}

fn list(args: &LsArgs) -> Outcome {
    let index = Client::new(&args.server)?.post("/v2/repository/index", &json!({}))?;
    if args.json {
        return print(&pretty(&index));
    }
    let models = index.as_array().map(Vec::as_slice).unwrap_or_default();
    if models.is_empty() {
        return print("no models\n");
    }
    let mut table = Table::new(["NAME", "VERSION", "STATE", "REASON"]);
    for model in models {
        table.row([text(model, "name"), text(model, "version"), text(model, "state"), text(model, "reason")]);
    }
    print(&table.text())
}

fn load(args: &LoadArgs) -> Outcome {
    let body = match args.version {
        Some(version) => json!({ "parameters": { "version": version } }),
        None => json!({}),
    };
    let client = Client::new(&args.server)?.with_key(args.key.key());
    client.post(&format!("/v2/repository/models/{}/load", segment(&args.name)), &body)?;
    let versions = ready_versions(&client, &args.name)?;
    print(&format!("loaded {} ({versions})\n", args.name))
}

fn unload(args: &NameArgs) -> Outcome {
    let path = format!("/v2/repository/models/{}/unload", segment(&args.name));
    Client::new(&args.server)?.with_key(args.key.key()).post(&path, &json!({}))?;
    print(&format!("unloaded {}\n", args.name))
}

/// "version 3", "versions 3, 4" or "no version is ready".
fn ready_versions(client: &Client, name: &str) -> Outcome<String> {
    let status = client.get(&format!("/v1/models/{}", segment(name)))?;
    let ready: Vec<String> = versions(&status)
        .iter()
        .filter(|version| text(version, "state") == "AVAILABLE")
        .map(|version| text(version, "version"))
        .collect();
    Ok(match ready.as_slice() {
        [] => "no version is ready".to_owned(),
        [one] => format!("version {one}"),
        several => format!("versions {}", several.join(", ")),
    })
}

fn status(args: &StatusArgs) -> Outcome {
    let client = Client::new(&args.server)?;
    let names = match &args.name {
        Some(name) => vec![name.clone()],
        None => names(&client.post("/v2/repository/index", &json!({}))?),
    };
    let mut models = Vec::new();
    for name in names {
        models.push((client.get(&format!("/v1/models/{}", segment(&name)))?, name));
    }
    if args.json {
        let object: serde_json::Map<String, Value> =
            models.into_iter().map(|(status, name)| (name, status)).collect();
        return print(&pretty(&Value::Object(object)));
    }
    let mut table = Table::new(["NAME", "VERSION", "STATE", "REASON"]);
    let mut answering = true;
    for (status, name) in &models {
        answering &= versions(status).iter().any(|version| text(version, "state") == "AVAILABLE");
        for version in versions(status) {
            let reason =
                version.get("status").map(|status| text(status, "error_message")).unwrap_or_default();
            table.row([name.clone(), text(version, "version"), text(version, "state"), reason]);
        }
    }
    print(&table.text())?;
    match &args.name {
        // A script asks about one model to learn whether it answers.
        Some(_) if !answering => Err(Failure::silent(Exit::Failed)),
        _ => Ok(()),
    }
}

/// The names in a repository index, each once.
fn names(index: &Value) -> Vec<String> {
    let mut names: Vec<String> =
        index.as_array().into_iter().flatten().map(|model| text(model, "name")).collect();
    names.sort();
    names.dedup();
    names
}

fn versions(status: &Value) -> &[Value] {
    status.get("model_version_status").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The text at `key`, or what a number there looks like; empty where there is neither.
fn text(object: &Value, key: &str) -> String {
    match object.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

/// JSON for people, with a line break at the end.
pub(crate) fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
