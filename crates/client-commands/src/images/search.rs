//! `millpond images search`: prints the most similar images as a table.

use std::path::PathBuf;

use base::escape_controls;
use clap::Args;
use command_line::exit::{CommandError, CommandResult, pretty, print, print_image};
use loadgen::report::TextTable;
use serde_json::{Value, json};

use super::terminal::{Terminal, show};
use super::{ImagesServerArgs, path};
use crate::client::{RequestContent, ServerClient, text};

/// Maximum number of results shown as images.
const SHOWN_MAX: usize = 5;
/// Longest side of a shown image in pixels.
const SHOWN_PIXELS: u32 = 384;

/// `millpond images search FILE...`.
#[derive(Args, Debug)]
#[command(after_help = "\
A search has two stages. First, embeddings select candidates (COARSE, a cosine up to 1). Then the keypoints of each \
candidate are matched with the query's (SCORE, from 0; hundreds and more for the same image). ACCEPTED means that the score reaches the \
threshold: the result is the same image or shows the same object. Other results follow, ordered by COARSE.

Examples:
  millpond images search crop.jpg --collection photos
  millpond images search crop.jpg --collection photos -k 3 --explain --json
  millpond images search crop.jpg --collection photos --filter '{\"must\":[{\"key\":\"album\",\"match\":{\"value\":\"holidays\"}}]}'

Terminals with the image protocol of kitty or iTerm2 show the images; others with 24-bit colours (COLORTERM) show mosaics.")]
pub(super) struct SearchArgs {
    /// Query images, searched one after the other; - is standard input
    #[arg(value_name = "FILE", required_unless_present = "id")]
    files: Vec<PathBuf>,
    /// Use this image of the collection as the query
    #[arg(long, value_name = "ID", conflicts_with = "files")]
    id: Option<String>,
    /// Collection to search
    #[arg(long, value_name = "NAME")]
    collection: String,
    /// Number of results
    #[arg(short, long, value_name = "N", default_value_t = 10)]
    k: u32,
    /// Minimum score of accepted images [default: the server's for the collection's kind]
    #[arg(long, value_name = "SCORE")]
    threshold: Option<f32>,
    /// Number of candidates whose keypoints are matched [default: the server's]
    #[arg(long, value_name = "N")]
    candidates: Option<u32>,
    /// Search only images that match this filter, in Qdrant's form
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
    /// Do not search for the mirror image and parts if nothing is accepted
    #[arg(long)]
    no_views: bool,
    /// Show how many keypoints matched, and with --json which ones
    #[arg(long)]
    explain: bool,
    /// Print the server's JSON response
    #[arg(long)]
    json: bool,
    /// Do not show images in the terminal
    #[arg(long, alias = "no-pictures")]
    no_images: bool,
    #[command(flatten)]
    server: ImagesServerArgs,
}

/// Searches and prints the results.
///
/// # Errors
/// Returns an error if the file cannot be read, and the server's error.
pub(super) fn run(args: &SearchArgs) -> CommandResult {
    let client = args.server.client()?;
    if args.files.is_empty() {
        return show_answer(args, &client, &request_search(args, &client, None)?);
    }
    for (index, file) in args.files.iter().enumerate() {
        let answer = request_search(args, &client, Some(file))?;
        // With several files each table is headed by its file. JSON has one object per file, in
        // order.
        if args.files.len() > 1 && !args.json {
            let gap = if index > 0 { "\n" } else { "" };
            print(&format!("{gap}{}\n", file.display()))?;
        }
        show_answer(args, &client, &answer)?;
    }
    Ok(())
}

fn show_answer(args: &SearchArgs, client: &ServerClient, answer: &Value) -> CommandResult {
    if args.json {
        return print(&pretty(answer));
    }
    let results =
        answer.get("results").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if results.is_empty() {
        return print("nothing found\n");
    }
    print(&table(results, args.explain))?;
    if let Some(coverage) = coverage(answer) {
        print(&format!("{coverage}\n"))?;
    }
    print(&format!("{}\n", stages(answer)))?;
    match Terminal::detect() {
        Some(terminal) if !args.no_images => {
            show_images(client, &args.collection, results, terminal)
        }
        _ => Ok(()),
    }
}

fn request_search(
    args: &SearchArgs,
    client: &ServerClient,
    file: Option<&PathBuf>,
) -> CommandResult<Value> {
    let query = [
        ("k", Some(args.k.to_string())),
        ("threshold", args.threshold.map(|value| value.to_string())),
        ("candidates", args.candidates.map(|value| value.to_string())),
        ("filter", args.filter.clone()),
        ("views", args.no_views.then(|| "0".to_owned())),
        ("explain", args.explain.then(|| "1".to_owned())),
    ];
    let path = path(&args.collection, "/search", &query);
    let reply = match (file, &args.id) {
        (_, Some(id)) => {
            client.call("POST", &path, RequestContent::Json(&json!({ "id": id_value(id) })))?
        }
        (Some(file), None) => client.call("POST", &path, RequestContent::Bytes(&read(file)?))?,
        (None, None) => return Err(CommandError::usage("name an image to search with")),
    };
    reply.json()
}

/// Returns an id as JSON. Points that were written by their features may have numbers.
fn id_value(id: &str) -> Value {
    id.parse::<u64>().map_or_else(|_| json!(id), |number| json!(number))
}

/// Returns a line on how many images were compared, and whether results may be missing.
fn coverage(answer: &Value) -> Option<String> {
    let number = |key: &str| answer.get(key).and_then(Value::as_u64);
    let compared = number("compared")?;
    let of = number("of")?;
    let partial = if answer.get("partial") == Some(&json!(true)) {
        "; partial: results may be missing (damaged data, a timeout, or a limit)"
    } else {
        ""
    };
    Some(format!("compared {compared} of {of}{partial}"))
}

fn read(file: &PathBuf) -> CommandResult<Vec<u8>> {
    let wrong = |error: std::io::Error| {
        CommandError::failed(format!("cannot read {}: {error}", file.display()))
    };
    if file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes).map_err(wrong)?;
        return Ok(bytes);
    }
    std::fs::read(file).map_err(wrong)
}

/// Returns hits as a table. With `explain`, it has a column for the matched keypoints.
fn table(results: &[Value], explain: bool) -> String {
    let number = |value: &Value, key: &str, digits: usize| {
        value
            .get(key)
            .and_then(Value::as_f64)
            .map_or("-".to_owned(), |number| format!("{number:.digits$}"))
    };
    let mut table = if explain {
        TextTable::left(&["RANK", "SCORE", "COARSE", "ACCEPTED", "MATCHED", "NAME", "ID"])
    } else {
        TextTable::left(&["RANK", "SCORE", "COARSE", "ACCEPTED", "NAME", "ID"])
    };
    for (rank, result) in results.iter().enumerate() {
        let accepted = match result.get("view").and_then(|view| view.get("kind")?.as_str()) {
            _ if result.get("accepted") != Some(&json!(true)) => "no".to_owned(),
            Some(view) => format!("yes, {view}"),
            None => "yes".to_owned(),
        };
        let head = [
            (rank + 1).to_string(),
            number(result, "score", 1),
            number(result, "coarse", 3),
            accepted,
        ];
        let name = text(result, "name");
        let id = text(result, "id");
        let [rank, score, coarse, accepted] = head;
        if explain {
            let pairs =
                result.get("pairs").and_then(Value::as_array).map_or(0, Vec::len).to_string();
            table.row([rank, score, coarse, accepted, pairs, name, id]);
        } else {
            table.row([rank, score, coarse, accepted, name, id]);
        }
    }
    table.to_string()
}

/// Returns, for example, "decode 3.1 ms, embed 20.4 ms, keypoints 9.0 ms, search 1.2 ms".
fn stages(answer: &Value) -> String {
    let stages = answer.get("stages").and_then(Value::as_object);
    let words = stages.into_iter().flatten().filter_map(|(name, value)| {
        Some(format!("{} {:.1} ms", name.strip_suffix("_ms")?, value.as_f64()?))
    });
    words.collect::<Vec<_>>().join(", ")
}

fn show_images(
    client: &ServerClient,
    collection: &str,
    results: &[Value],
    terminal: Terminal,
) -> CommandResult {
    for result in results.iter().take(SHOWN_MAX) {
        let id = text(result, "id");
        let query = [("size", Some(SHOWN_PIXELS.to_string()))];
        let reply = client.call(
            "GET",
            &path(collection, &format!("/{id}/thumbnail"), &query),
            RequestContent::None,
        )?;
        // The table is printed already, so a missing thumbnail is not an error.
        if let Some(drawn) = reply.good().ok().and_then(|bytes| show(bytes, terminal)) {
            let name = result.get("name").and_then(Value::as_str).unwrap_or(&id);
            print(&format!("\n{}\n", escape_controls(name, &[])))?;
            print_image(&format!("{drawn}\n"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;

    #[test]
    fn the_old_name_of_no_images_is_an_alias() {
        let command = SearchArgs::augment_args(clap::Command::new("search"));
        let words = ["search", "a.jpg", "--collection", "photos", "--no-pictures"];
        let matches = command.try_get_matches_from(words).unwrap();
        assert!(SearchArgs::from_arg_matches(&matches).unwrap().no_images);
    }

    fn answer() -> Value {
        json!({
            "results": [
                {"id": "a-1", "score": 2091.7034, "coarse": 0.7, "accepted": true, "name": "sea.jpg", "pairs": [[1, 2, 3, 4]]},
                {"id": "b-2", "score": 0.0, "coarse": 0.9, "accepted": false, "name": "hill.jpg"},
            ],
            "stages": {"decode_ms": 3.06, "embed_ms": 20.0},
        })
    }

    #[test]
    fn results_are_a_table() {
        let answer = answer();
        let results = answer["results"].as_array().unwrap();
        let expected = "RANK  SCORE   COARSE  ACCEPTED  NAME      ID\n\
                        1     2091.7  0.700   yes       sea.jpg   a-1\n\
                        2     0.0     0.900   no        hill.jpg  b-2\n";
        assert_eq!(table(results, false), expected);
        assert!(
            table(results, true).lines().nth(1).unwrap().contains("yes       1        sea.jpg")
        );
        let numbered = json!({"id": 7, "score": 1.0, "coarse": 0.5, "name": null});
        assert!(table(&[numbered], false).ends_with("no        -     7\n"));
        assert_eq!((id_value("7"), id_value("a-1")), (json!(7), json!("a-1")));
        // Malformed results are shown as "-".
        assert!(table(&[json!(null), json!({"score": "x"})], true).contains("-"));
    }

    #[test]
    fn an_answer_says_how_much_was_compared() {
        let full = json!({"compared": 3, "of": 40, "partial": false});
        assert_eq!(coverage(&full).unwrap(), "compared 3 of 40");
        let cut = json!({"compared": 16384, "of": 20000, "partial": true});
        assert!(coverage(&cut).unwrap().starts_with("compared 16384 of 20000; partial"));
        assert_eq!(coverage(&json!({})), None, "an older server");
    }

    #[test]
    fn stages_are_named() {
        assert_eq!(stages(&answer()), "decode 3.1 ms, embed 20.0 ms");
        assert_eq!(stages(&json!({})), "");
    }
}
