//! `millpond images`: adds images to a running server's collections and searches them, over HTTP.

mod duplicates;
mod index;
mod list;
mod search;
mod terminal;
mod upload;
mod walk;

use clap::{Args, Subcommand};
use command_line::environment;
use command_line::exit::CommandResult;

use crate::client::{ServerArgs, ServerClient};
use loadgen::connection::url_segment;

/// `millpond images ACTION`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  millpond serve .cache/images/models            (in another terminal)
  millpond images index ~/Pictures --collection photos
  millpond images search crop.jpg --collection photos
  millpond images list

The server does the work: it reads each image, computes its embedding with a served model and its keypoints, and \
stores the image with its features. The page http://127.0.0.1:8501/images searches too.")]
pub struct ImagesCommand {
    #[command(subcommand)]
    action: ImagesAction,
}

#[derive(Debug, Subcommand)]
enum ImagesAction {
    /// Add folders of images to a collection, which is created if missing
    Index(index::IndexArgs),
    /// Find images similar to an image
    Search(search::SearchArgs),
    /// Find the images that a collection has more than once
    Duplicates(duplicates::DuplicatesArgs),
    /// List collections, or the images of a collection
    #[command(visible_alias = "ls")]
    List(list::ListArgs),
    /// Delete images, or a whole collection
    Delete(list::DeleteArgs),
}

/// Runs `millpond images`.
///
/// # Errors
/// Returns the server's error, or a silent error with code 1 if some images failed.
pub fn run(args: &ImagesCommand) -> CommandResult {
    match &args.action {
        ImagesAction::Index(args) => index::run(args),
        ImagesAction::Search(args) => search::run(args),
        ImagesAction::Duplicates(args) => duplicates::run(args),
        ImagesAction::List(args) => list::run(args),
        ImagesAction::Delete(args) => list::delete(args),
    }
}

/// Address and key of a server.
#[derive(Args, Clone, Debug)]
struct ImagesServerArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The server's API key, if it has one [default: MILLPOND_API_KEY]
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
}

impl ImagesServerArgs {
    fn client(&self) -> CommandResult<ServerClient> {
        let key = self.api_key.clone().or_else(|| environment::API_KEY.text());
        Ok(ServerClient::new(&self.server)?.with_key(key))
    }
}

/// Returns `/v1/images/COLLECTION` with `rest` and the parameters that have a value.
fn path(collection: &str, rest: &str, query: &[(&str, Option<String>)]) -> String {
    let mut path = format!("/v1/images/{}{rest}", url_segment(collection));
    let mut sign = '?';
    for (name, value) in query {
        if let Some(value) = value {
            path.push_str(&format!("{sign}{name}={}", url_segment(value)));
            sign = '&';
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_carry_their_query() {
        let query =
            [("k", Some("3".to_owned())), ("filter", None), ("name", Some("a b&c".to_owned()))];
        assert_eq!(
            path("my photos", "/search", &query),
            "/v1/images/my%20photos/search?k=3&name=a%20b%26c"
        );
        assert_eq!(path("p", "", &[]), "/v1/images/p");
    }
}
