//! `millpond images list` and `delete`.

use base::escape_controls;
use clap::Args;
use command_line::exit::{CommandError, CommandResult, pretty, print, print_note, print_page};
use loadgen::report::TextTable;
use serde_json::Value;

use super::{ImagesServerArgs, path};
use crate::client::{RequestContent, ServerClient, text};

/// Number of images per request.
const PAGE: u32 = 250;
/// Status of a request for an image that is not in the collection.
const NOT_FOUND: u16 = 404;

/// `millpond images list [COLLECTION]`.
#[derive(Args, Debug)]
pub(super) struct ListArgs {
    /// Collection whose images are listed [default: list the collections]
    collection: Option<String>,
    /// List only images that match this filter, in Qdrant's form
    #[arg(long, value_name = "JSON", requires = "collection")]
    filter: Option<String>,
    /// Print JSON, one line per image
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ImagesServerArgs,
}

/// `millpond images delete COLLECTION`.
#[derive(Args, Debug)]
pub(super) struct DeleteArgs {
    /// The collection
    collection: String,
    /// Ids of images to delete
    #[arg(value_name = "ID", required_unless_present = "all")]
    ids: Vec<String>,
    /// Delete the collection with all its images
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    #[command(flatten)]
    server: ImagesServerArgs,
}

/// Lists collections or images.
///
/// # Errors
/// Returns the server's error.
pub(super) fn run(args: &ListArgs) -> CommandResult {
    let client = args.server.client()?;
    match &args.collection {
        Some(collection) => list_images(args, &client, collection),
        None => collections(args, &client),
    }
}

fn collections(args: &ListArgs, client: &ServerClient) -> CommandResult {
    let answer = client.get("/v1/images")?;
    if args.json {
        return print(&pretty(&answer));
    }
    let found =
        answer.get("collections").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if found.is_empty() {
        return print(
            "no collections; make one with `millpond images index DIR --collection NAME`\n",
        );
    }
    let mut table = TextTable::left(&["NAME", "KIND", "IMAGES", "MODEL", "STATE"]);
    for entry in found {
        table.row(["name", "kind", "count", "model", "state"].map(|key| text(entry, key)));
    }
    print(&table.to_string())
}

fn list_images(args: &ListArgs, client: &ServerClient, collection: &str) -> CommandResult {
    let mut offset = None;
    if !args.json {
        print(&format!("{:36}  {:11}  {:>10}  NAME\n", "ID", "SIZE", "BYTES"))?;
    }
    loop {
        let query = [
            ("limit", Some(PAGE.to_string())),
            ("offset", offset.clone()),
            ("filter", args.filter.clone()),
        ];
        let answer =
            client.call("GET", &path(collection, "", &query), RequestContent::None)?.json()?;
        let images = answer.get("images").and_then(Value::as_array).into_iter().flatten();
        let lines: String = images
            .map(|image| if args.json { format!("{image}\n") } else { line(image) })
            .collect();
        if !print_page(&lines)? {
            return Ok(());
        }
        offset = answer.get("next").and_then(|next| match next {
            Value::String(id) => Some(id.clone()),
            Value::Number(id) => Some(id.to_string()),
            _ => None,
        });
        if offset.is_none() {
            return Ok(());
        }
    }
}

fn line(image: &Value) -> String {
    let size = format!("{}x{}", text(image, "width"), text(image, "height"));
    format!(
        "{:36}  {size:11}  {:>10}  {}\n",
        text(image, "id"),
        text(image, "bytes"),
        escape_controls(&text(image, "name"), &[])
    )
}

/// Deletes images or a collection.
///
/// # Errors
/// Returns a usage error before the first request if a text is not an id, and the server's error.
/// Images deleted before that stay deleted. An image that is not in the collection is an error
/// after the others are deleted, so that the same call can be repeated.
pub(super) fn delete(args: &DeleteArgs) -> CommandResult {
    // An id becomes a path segment, so other characters could address something else.
    let is_id = |id: &String| {
        !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    if let Some(id) = args.ids.iter().find(|id| !is_id(id)) {
        return Err(CommandError::usage(format!(
            "{id}: no id; `millpond images list {}` has them",
            args.collection
        )));
    }
    let client = args.server.client()?;
    let remove = |rest: &str| {
        client.call("DELETE", &path(&args.collection, rest, &[]), RequestContent::None)
    };
    if args.all {
        remove("")?.good()?;
        return print(&format!("deleted the collection {}\n", args.collection));
    }
    let mut missing = 0;
    for id in &args.ids {
        let reply = remove(&format!("/{id}"))?;
        if reply.status == NOT_FOUND {
            print_note(&format!("not deleted: {}", reply.error()));
            missing += 1;
            continue;
        }
        reply.good()?;
        print(&format!("deleted {id}\n"))?;
    }
    if missing == 0 {
        return Ok(());
    }
    let count = args.ids.len();
    Err(CommandError::failed(format!("{missing} of {count} images were not found")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_lines() {
        let image = serde_json::json!({"id": "a-1", "width": 640, "height": 480, "bytes": 1234, "name": "b/c.jpg"});
        let line = line(&image);
        assert!(
            line.starts_with("a-1 ")
                && line.contains("  640x480 ")
                && line.ends_with("  1234  b/c.jpg\n"),
            "{line}"
        );
    }

    #[test]
    fn a_name_stays_on_its_line() {
        let image = serde_json::json!({"id": "a-1", "name": "b\nc \u{1b}[31m.jpg"});
        assert!(line(&image).ends_with("  b\\nc \\u001b[31m.jpg\n"), "{}", line(&image));
    }
}
