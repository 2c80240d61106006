//! `millpond models diff`: compares two published versions.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use base::ErrorKind;
use base::units::format_bytes;
use clap::Args;
use command_line::environment;
use command_line::exit::{CommandError, CommandResult, pretty, print};
use engine::layout::{Artifact, MANIFEST_NAME, TensorEntry};
use loadgen::report::TextTable;
use model_store::{ManifestDiff, StorePlace, StoredManifest, TensorChange, is_url};
use serde_json::{Value, json};

/// `millpond models diff A B`.
#[derive(Args, Debug)]
#[command(after_help = "\
Tensors are compared by name and content hash, from the manifests alone. The last line says how many bytes a server \
that has A in its cache fetches for B if both are in an object store; docs/object-stores.md has the details.

  millpond models diff models/ctr/7 s3://bucket/models/ctr/8")]
pub(super) struct DiffArgs {
    /// A published version: its directory, or its URL such as s3://BUCKET/PATH/7
    #[arg(value_name = "A")]
    before: PathBuf,
    /// The version to compare with it
    #[arg(value_name = "B")]
    after: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Compares the versions and prints the result.
pub(super) fn run(args: &DiffArgs) -> CommandResult {
    let before = manifest(&args.before)?;
    let after = manifest(&args.after)?;
    let diff = ManifestDiff::new(&before.layout, &after);
    if args.json { print(&pretty(&to_json(&diff))) } else { print(&to_text(&diff)) }
}

/// Reads the manifest of a version's directory or URL.
fn manifest(version: &Path) -> CommandResult<StoredManifest> {
    if let Some(url) = version.to_str().filter(|text| is_url(text)) {
        let place = StorePlace::open(url, &environment::object_stores())
            .map_err(|error| CommandError::usage(error.message()))?;
        return Ok(place.manifest()?);
    }
    let artifact = Artifact::open(version).map_err(|error| match error.kind() {
        ErrorKind::NotFound => CommandError::failed(format!(
            "{} is not a published version: {}",
            version.display(),
            error.message()
        ))
        .hint("give a version's directory, as in models/NAME/7; millpond publish makes them"),
        _ => CommandError::from(error),
    })?;
    let path = version.join(MANIFEST_NAME);
    let bytes = std::fs::metadata(&path)
        .map_err(|error| CommandError::failed(format!("{}: {error}", path.display())))?
        .len();
    Ok(StoredManifest { layout: artifact.manifest, bytes })
}

/// Returns "added", "removed" or "changed".
fn kind(change: &TensorChange<'_>) -> &'static str {
    match (change.before, change.after) {
        (None, _) => "added",
        (_, None) => "removed",
        _ => "changed",
    }
}

/// Returns the tensor of the second version, or of the first if it was removed.
fn tensor<'a>(change: &TensorChange<'a>) -> Option<&'a TensorEntry> {
    change.after.or(change.before)
}

/// Returns type and shape as in "float32 [1024, 32]".
fn form(tensor: &TensorEntry) -> String {
    format!("{} {:?}", tensor.dtype, tensor.dims)
}

/// Returns the difference as a table of the changed tensors and a summary.
fn to_text(diff: &ManifestDiff<'_>) -> String {
    let mut text = String::new();
    if !diff.changes.is_empty() {
        let mut table = TextTable::left(&["CHANGE", "TENSOR", "TYPE", "BYTES"]);
        for change in &diff.changes {
            let Some(shown) = tensor(change) else { continue };
            let earlier = change.before.map(form).filter(|earlier| *earlier != form(shown));
            let form = match earlier {
                Some(earlier) => format!("{earlier} -> {}", form(shown)),
                None => form(shown),
            };
            table.row([
                kind(change).to_owned(),
                shown.name.clone(),
                form,
                format_bytes(shown.bytes),
            ]);
        }
        text.push_str(&table.to_string());
        text.push('\n');
    }
    let graph = if diff.is_graph_equal { "equal" } else { "changed" };
    let fetch = diff.fetch;
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "graph:  {graph}\nequal:  {} tensors, {}\nfetch:  {} in {} requests; {} from the cached version\n",
        diff.equal_count,
        format_bytes(diff.equal_bytes),
        format_bytes(fetch.bytes),
        fetch.requests,
        format_bytes(fetch.reused_bytes)
    );
    text
}

fn to_json(diff: &ManifestDiff<'_>) -> Value {
    let of = |wanted: &str| -> Vec<Value> {
        let changes = diff.changes.iter().filter(|change| kind(change) == wanted);
        changes.filter_map(change_json).collect()
    };
    json!({
        "added": of("added"),
        "removed": of("removed"),
        "changed": of("changed"),
        "equal": { "tensors": diff.equal_count, "bytes": diff.equal_bytes },
        "graph_equal": diff.is_graph_equal,
        "fetch": {
            "bytes": diff.fetch.bytes,
            "requests": diff.fetch.requests,
            "reused_bytes": diff.fetch.reused_bytes,
        },
    })
}

/// Returns the JSON of a changed tensor, or `None` if it exists in neither version.
fn change_json(change: &TensorChange<'_>) -> Option<Value> {
    let shown = tensor(change)?;
    let mut value = json!({
        "name": shown.name,
        "dtype": shown.dtype,
        "shape": shown.dims,
        "bytes": shown.bytes,
    });
    if let (Some(before), Some(_)) = (change.before, change.after) {
        value["before"] =
            json!({ "dtype": before.dtype, "shape": before.dims, "bytes": before.bytes });
    }
    if change.after.is_some() {
        value["fetched"] = (!change.is_known).into();
    }
    Some(value)
}
