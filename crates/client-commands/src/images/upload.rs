//! Sends one image to the server, with retries while the server is busy.

use std::path::Path;
use std::time::Duration;

use command_line::exit::{CommandError, CommandResult};
use serde_json::Value;

use super::path;
use super::walk::WalkedFile;
use crate::client::{ANSWER_MAX, HttpReply, RequestContent, ServerClient};

/// Maximum size of a file. No image within the server's limit of pixels is larger.
pub(super) const FILE_BYTES_MAX: u64 = 512 << 20;
/// Maximum number of attempts per image while the server is busy or does not answer.
const TRIES_MAX: u32 = 8;
/// Failed attempts of a request after which the caller is notified of the reason.
const NOTIFY_TRIES: u32 = 3;
/// First delay between two attempts if the server names none. It doubles each time.
const WAIT: Duration = Duration::from_millis(250);
/// Maximum delay between two attempts.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Result of sending one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UploadOutcome {
    /// The server added it.
    Added,
    /// The collection had it already.
    Present,
    /// The server refused it for this reason.
    Failed(String),
}

/// The collection to send to, and the properties of new images.
pub(super) struct UploadTarget<'a> {
    pub(super) client: &'a ServerClient,
    pub(super) collection: &'a str,
    pub(super) kind: Option<&'a str>,
    pub(super) model: Option<&'a str>,
    pub(super) payload: Option<&'a str>,
    /// Send as background work.
    pub(super) background: bool,
    /// Called with the reason if a request waits for a server that stays busy.
    pub(super) on_busy: &'a (dyn Fn(&str) + Sync),
}

impl UploadTarget<'_> {
    /// Returns the ids (of at most 1000) that the collection lacks. A missing collection lacks all.
    ///
    /// # Errors
    /// Returns the server's error.
    pub(super) fn missing(&self, ids: &[&str]) -> CommandResult<Vec<String>> {
        let body = serde_json::json!({ "ids": ids });
        let reply = retry_while_busy(self.on_busy, || {
            let path = path(self.collection, "/missing", &[]);
            self.client.call_within("POST", &path, RequestContent::Json(&body), ANSWER_MAX)
        })?;
        if reply.status == 404 {
            return Ok(ids.iter().map(|id| (*id).to_owned()).collect());
        }
        let answer = reply.json()?;
        let missing =
            answer.get("missing").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        Ok(missing.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect())
    }

    /// Sends one image.
    ///
    /// # Errors
    /// Returns errors that every other image would cause too: no server, no access, no such model.
    pub(super) fn put(&self, found: &WalkedFile) -> CommandResult<UploadOutcome> {
        let bytes = match read(&found.path) {
            Ok(bytes) => bytes,
            Err(reason) => return Ok(UploadOutcome::Failed(reason)),
        };
        let owned = |value: Option<&str>| value.map(str::to_owned);
        let query = [
            ("name", Some(found.name.clone())),
            ("kind", owned(self.kind)),
            ("model", owned(self.model)),
            ("payload", owned(self.payload)),
            ("background", self.background.then(|| "1".to_owned())),
        ];
        let path = path(self.collection, "", &query);
        // A notice for each of many images would disturb the progress bar.
        let put =
            || self.client.call_within("PUT", &path, RequestContent::Bytes(&bytes), ANSWER_MAX);
        let reply = retry_while_busy(self.on_busy, put)?;
        outcome(&reply)
    }
}

/// Reads an image file. Returns the reason if it is too large or cannot be read.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > FILE_BYTES_MAX {
        return Err(format!(
            "{} is more than the {FILE_BYTES_MAX} bytes of a file that is sent",
            length
        ));
    }
    std::fs::read(path).map_err(|error| error.to_string())
}

/// Converts a response to the result for its image.
fn outcome(reply: &HttpReply) -> CommandResult<UploadOutcome> {
    match reply.status {
        // These errors concern this image only, so the next one may succeed.
        400 | 413 | 415 | 422 | 500 => Ok(UploadOutcome::Failed(reply.error())),
        _ if reply.is_busy() => {
            Ok(UploadOutcome::Failed(format!("the server stayed busy: {}", reply.error())))
        }
        _ => {
            let answer = reply.json()?;
            if let Some(reason) = refused_prints(&answer) {
                return Ok(UploadOutcome::Failed(reason));
            }
            match answer.get("status").and_then(Value::as_str) {
                Some("added") => Ok(UploadOutcome::Added),
                Some("present") => Ok(UploadOutcome::Present),
                _ => Err(CommandError::failed(format!(
                    "the server's answer says neither added nor present: {answer}"
                ))),
            }
        }
    }
}

/// Returns the number of prints of a file that the server refused, with the first reason. `None` if
/// it refused none.
fn refused_prints(answer: &Value) -> Option<String> {
    let prints = answer.get("prints")?.as_array()?;
    let is_refused = |print: &&Value| print.get("status").is_some_and(|status| status == "failed");
    let refused: Vec<&Value> = prints.iter().filter(is_refused).collect();
    let error = refused.first()?.get("error").and_then(Value::as_str).unwrap_or_default();
    Some(format!("the server refused {} of its {} prints: {error}", refused.len(), prints.len()))
}

/// Calls `ask` until the server is not busy, at most [`TRIES_MAX`] times. Calls `on_busy` with the
/// reason after [`NOTIFY_TRIES`] of them.
fn retry_while_busy(
    on_busy: &dyn Fn(&str),
    ask: impl Fn() -> CommandResult<HttpReply>,
) -> CommandResult<HttpReply> {
    let mut wait = WAIT;
    for tries in 1..TRIES_MAX {
        match ask() {
            Ok(reply) if reply.is_busy() => {
                if tries == NOTIFY_TRIES {
                    on_busy(&reply.error());
                }
                std::thread::sleep(reply.retry_after.unwrap_or(wait).min(WAIT_MAX));
            }
            Ok(reply) => return Ok(reply),
            // A restarted server answers again within seconds.
            Err(error) => {
                if tries == NOTIFY_TRIES {
                    on_busy(error.message());
                }
                std::thread::sleep(wait);
            }
        }
        wait = (wait * 2).min(WAIT_MAX);
    }
    ask()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, body: &str) -> HttpReply {
        HttpReply { status, retry_after: Some(Duration::ZERO), json_bytes: None, body: body.into() }
    }

    #[test]
    fn responses_become_outcomes() {
        assert_eq!(outcome(&reply(200, r#"{"status":"added"}"#)).unwrap(), UploadOutcome::Added);
        assert_eq!(
            outcome(&reply(200, r#"{"status":"present"}"#)).unwrap(),
            UploadOutcome::Present
        );
        let failed = |status, words: &str| {
            let body = format!("{{\"error\":\"{words}\"}}");
            match outcome(&reply(status, &body)).unwrap() {
                UploadOutcome::Failed(reason) => assert!(reason.contains(words), "{reason}"),
                other => panic!("{other:?}"),
            }
        };
        let prints = r#"{"status":"added","prints":[{"status":"added"},
            {"status":"failed","error":"poor"},{"status":"present"}]}"#;
        let reason = "the server refused 1 of its 3 prints: poor".to_owned();
        assert_eq!(outcome(&reply(200, prints)).unwrap(), UploadOutcome::Failed(reason));
        let prints = r#"{"status":"present","prints":[{"status":"present"}]}"#;
        assert_eq!(outcome(&reply(200, prints)).unwrap(), UploadOutcome::Present);
        failed(400, "not an image");
        failed(413, "too large");
        for status in [408, 429, 502, 503, 504] {
            failed(status, "full");
        }
        // These would fail for every other image too.
        for status in [401, 404, 412] {
            assert!(outcome(&reply(status, r#"{"error":"no"}"#)).is_err());
        }
        assert!(outcome(&reply(200, "{}")).is_err());
    }

    #[test]
    fn requests_to_a_busy_server_are_repeated_up_to_a_limit() {
        let asked = std::cell::Cell::new(0);
        let notices = std::cell::RefCell::new(Vec::new());
        let busy_until = |free: u32| {
            asked.set(0);
            let notify = |reason: &str| notices.borrow_mut().push(reason.to_owned());
            retry_while_busy(&notify, || {
                asked.set(asked.get() + 1);
                let status = if asked.get() < free { 429 } else { 200 };
                Ok(reply(status, r#"{"error":"no node with the role extract"}"#))
            })
            .unwrap()
            .status
        };
        assert_eq!((busy_until(3), asked.get()), (200, 3));
        assert!(notices.borrow().is_empty());
        assert_eq!((busy_until(u32::MAX), asked.get()), (429, TRIES_MAX));
        assert_eq!(*notices.borrow(), ["no node with the role extract"]);
    }
}
