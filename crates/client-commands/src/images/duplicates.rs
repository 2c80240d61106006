//! `millpond images duplicates`: finds the images that a collection has more than once.

use std::time::Duration;

use base::escape_controls;
use clap::Args;
use command_line::exit::{CommandError, CommandResult, print, print_note};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};

use super::{ImagesServerArgs, path};
use crate::client::{RequestContent, ServerClient};
use crate::poll::poll;

/// Interval between two requests for the progress.
const POLL: Duration = Duration::from_millis(500);
/// Status of a request for a job that is running already, and for a collection without embeddings.
const CONFLICT: u16 = 409;
/// Hint if the progress cannot be read.
const CONTINUES: &str =
    "the search continues on the server, and the same command shows its progress again";

/// `millpond images duplicates COLLECTION`.
#[derive(Args, Debug)]
#[command(after_help = "\
The server compares each image with its nearest neighbours in the background and verifies pairs by their keypoints. \
Ctrl-C ends this command only: the search continues, and the same call shows its progress again. If the server \
stopped during the search, the same call continues the search.

Each group is printed with its pairs: SIMILARITY of the embeddings, SCORE of the keypoints.

Examples:
  millpond images duplicates photos
  millpond images duplicates photos --threshold 0.9 --json > groups.ndjson
  millpond images duplicates photos --cancel")]
pub(super) struct DuplicatesArgs {
    /// The collection
    collection: String,
    /// Minimum similarity of embeddings [default: the server's for the collection's kind]
    #[arg(long, value_name = "SIMILARITY", allow_negative_numbers = true)]
    threshold: Option<f32>,
    /// Minimum score of verified pairs [default: the server's for the collection's kind]
    #[arg(long, value_name = "SCORE")]
    score: Option<f32>,
    /// Do not compare keypoints
    #[arg(long, conflicts_with = "score")]
    no_verify: bool,
    /// Maximum points per second, 0 for no limit [default: the server's]
    #[arg(long, value_name = "N")]
    rate: Option<u64>,
    /// Discard an earlier result
    #[arg(long)]
    restart: bool,
    /// Start the search and do not wait for it
    #[arg(long, conflicts_with = "json")]
    no_wait: bool,
    /// Cancel a running search, or remove the result of an ended one
    #[arg(long, conflicts_with_all = ["threshold", "score", "no_verify", "rate", "restart", "no_wait", "json"])]
    cancel: bool,
    /// Print one line of JSON per group
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ImagesServerArgs,
}

/// Starts the search, waits for its end and prints the groups.
///
/// # Errors
/// Returns the server's error; an error if the search has failed or was cancelled.
pub(super) fn run(args: &DuplicatesArgs) -> CommandResult {
    let client = args.server.client()?;
    let job = path(&args.collection, "/duplicates", &[]);
    if args.cancel {
        let reply = client.call("DELETE", &job, RequestContent::None)?.json()?;
        let cancelled = reply.get("cancelled").is_some();
        return print(if cancelled { "cancelled\n" } else { "the result is removed\n" });
    }
    let reply = client.call("POST", &job, RequestContent::Json(&request(args)))?;
    let has_job = || -> CommandResult<bool> {
        Ok(client.call("GET", &job, RequestContent::None)?.good().is_ok())
    };
    // A collection that cannot be searched for duplicates has the same status, and no job.
    if reply.status == CONFLICT && has_job()? {
        print_note("a search is running already; its options hold");
    } else {
        reply.good()?;
    }
    if args.no_wait {
        return Ok(());
    }
    wait(&client, &job)?;
    let groups = path(&args.collection, "/duplicates/groups", &[]);
    let lines = client.call("GET", &groups, RequestContent::None)?;
    let text = String::from_utf8_lossy(lines.good()?).into_owned();
    if args.json {
        return print(&text);
    }
    print(&format_groups(&text)?)
}

fn request(args: &DuplicatesArgs) -> Value {
    let mut request = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            request.insert(key.to_owned(), value);
        }
    };
    put("threshold", args.threshold.map(|value| json!(value)));
    put("score", args.score.map(|value| json!(value)));
    put("verify", args.no_verify.then_some(false.into()));
    put("points_per_second", args.rate.map(|value| json!(value)));
    put("restart", args.restart.then_some(true.into()));
    Value::Object(request)
}

/// Shows the progress until the search has ended.
fn wait(client: &ServerClient, job: &str) -> CommandResult {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos} of {len} points, {msg}") {
        bar.set_style(style);
    }
    loop {
        let progress = poll(client, job, CONTINUES, Ok)?;
        let number = |key: &str| progress.get(key).and_then(Value::as_u64).unwrap_or(0);
        bar.set_length(number("total").max(number("done")));
        bar.set_position(number("done"));
        bar.set_message(format!("{} pairs", number("pairs")));
        let text = |key: &str| progress.get(key).and_then(Value::as_str).unwrap_or_default();
        match text("state") {
            "running" => std::thread::sleep(POLL),
            "done" => {
                bar.finish_and_clear();
                return Ok(());
            }
            "failed" => return Err(CommandError::failed(text("error"))),
            state => {
                return Err(CommandError::failed(format!("the search is {state}"))
                    .hint("the same command continues it"));
            }
        }
    }
}

/// Returns the groups as text.
fn format_groups(lines: &str) -> CommandResult<String> {
    let mut out = String::new();
    let mut number = 0;
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line)
            .map_err(|error| CommandError::failed(format!("a line is not JSON: {error}")))?;
        if let Some(summary) = line.get("summary") {
            let count = |key: &str| summary.get(key).and_then(Value::as_u64).unwrap_or(0);
            out.push_str(&format!("{} groups, {} images\n", count("groups"), count("images")));
            continue;
        }
        number += 1;
        let items =
            |key: &str| line.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
        let images = items("images");
        out.push_str(&format!("group {number}: {} images\n", images.len()));
        for image in &images {
            let name = image.get("name").and_then(Value::as_str).unwrap_or_default();
            let name = escape_controls(name, &[]);
            out.push_str(&format!("  {}  {name}\n", id(image.get("id"))));
        }
        for pair in items("pairs") {
            let figure = |key: &str, digits: usize| {
                let value = pair.get(key).and_then(Value::as_f64);
                value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
            };
            out.push_str(&format!(
                "    {} = {}  similarity {}, score {}\n",
                id(pair.get("a")),
                id(pair.get("b")),
                figure("similarity", 3),
                figure("score", 0)
            ));
        }
    }
    Ok(out)
}

fn id(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_shown_with_their_pairs() {
        let lines = concat!(
            r#"{"images":[{"id":"u-1","name":"a.jpg"},{"id":7,"name":null}],"#,
            r#""pairs":[{"a":"u-1","b":7,"similarity":0.9123,"score":null}]}"#,
            "\n",
            r#"{"summary":{"groups":1,"images":2}}"#,
            "\n"
        );
        let text = "group 1: 2 images\n  u-1  a.jpg\n  7  \n    u-1 = 7  similarity 0.912, score -\n1 groups, 2 images\n";
        assert_eq!(format_groups(lines).unwrap(), text);
        assert!(format_groups("{").is_err());
    }
}
