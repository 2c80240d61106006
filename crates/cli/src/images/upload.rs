//! One image to the server, tried again while the server is busy.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::path;
use super::walk::ImageFile;
use crate::client::{HttpClient, HttpReply, RequestContent};
use crate::exit::{CommandError, CommandResult};

/// Larger files are not sent: no image within the server's limit of pixels needs as much.
pub(super) const FILE_BYTES_MAX: u64 = 512 << 20;
/// Tries of one image while the server says that it is busy or does not answer.
const TRIES_MAX: u32 = 8;
/// First wait between two tries where the server does not say; it doubles.
const WAIT: Duration = Duration::from_millis(250);
/// Longest wait between two tries.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// What came of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UploadOutcome {
    /// It is in the collection now.
    Added,
    /// It was there already.
    Present,
    /// It is not, for this reason.
    Failed(String),
}

/// Where images go, and with what.
pub(super) struct UploadTarget<'a> {
    pub(super) client: &'a HttpClient,
    pub(super) collection: &'a str,
    pub(super) kind: Option<&'a str>,
    pub(super) model: Option<&'a str>,
    pub(super) payload: Option<&'a str>,
    /// Leave the machine to searches.
    pub(super) background: bool,
}

impl UploadTarget<'_> {
    /// Which of `ids` (at most 1000) the collection lacks; all of them where there is no collection yet.
    ///
    /// # Errors
    /// What the server said.
    pub(super) fn missing(&self, ids: &[&str]) -> CommandResult<Vec<String>> {
        let body = serde_json::json!({ "ids": ids });
        let reply = persist(|| {
            self.client.call("POST", &path(self.collection, "/missing", &[]), RequestContent::Json(&body))
        })?;
        if reply.status == 404 {
            return Ok(ids.iter().map(|id| (*id).to_owned()).collect());
        }
        let answer = reply.json()?;
        let missing = answer.get("missing").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        Ok(missing.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect())
    }

    /// Sends one image.
    ///
    /// # Errors
    /// What would fail for every other image too: no server, no access, no such model.
    pub(super) fn put(&self, found: &ImageFile) -> CommandResult<UploadOutcome> {
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
        let reply = persist(|| self.client.call("PUT", &path, RequestContent::Bytes(&bytes)))?;
        outcome(&reply)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > FILE_BYTES_MAX {
        return Err(format!("{} is more than the {FILE_BYTES_MAX} bytes of a file that is sent", length));
    }
    std::fs::read(path).map_err(|error| error.to_string())
}

/// What an answer means for its image.
fn outcome(reply: &HttpReply) -> CommandResult<UploadOutcome> {
    match reply.status {
        // The image's own fault, or its size's: the next one may be better.
        400 | 413 | 415 | 422 | 500 => Ok(UploadOutcome::Failed(reply.error())),
        429 | 503 => Ok(UploadOutcome::Failed(format!("the server stayed busy: {}", reply.error()))),
        _ => {
            let answer = reply.json()?;
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

/// Asks until there is an answer other than "busy", or `TRIES_MAX` times.
fn persist(ask: impl Fn() -> CommandResult<HttpReply>) -> CommandResult<HttpReply> {
    let mut wait = WAIT;
    for _ in 1..TRIES_MAX {
        match ask() {
            Ok(reply) if matches!(reply.status, 429 | 503) => {
                std::thread::sleep(reply.retry_after.unwrap_or(wait).min(WAIT_MAX));
            }
            Ok(reply) => return Ok(reply),
            // A server that restarts is back in seconds.
            Err(_) => std::thread::sleep(wait),
        }
        wait = (wait * 2).min(WAIT_MAX);
    }
    ask()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, body: &str) -> HttpReply {
        HttpReply { status, retry_after: Some(Duration::ZERO), body: body.into() }
    }

    #[test]
    fn answers_say_what_came_of_a_picture() {
        assert_eq!(outcome(&reply(200, r#"{"status":"added"}"#)).unwrap(), UploadOutcome::Added);
        assert_eq!(outcome(&reply(200, r#"{"status":"present"}"#)).unwrap(), UploadOutcome::Present);
        let failed = |status, words: &str| {
            let body = format!("{{\"error\":\"{words}\"}}");
            match outcome(&reply(status, &body)).unwrap() {
                UploadOutcome::Failed(reason) => assert!(reason.contains(words), "{reason}"),
                other => panic!("{other:?}"),
            }
        };
        failed(400, "not an image");
        failed(413, "too large");
        failed(503, "full");
        // These would be the same for the next one.
        for status in [401, 404, 412] {
            assert!(outcome(&reply(status, r#"{"error":"no"}"#)).is_err());
        }
        assert!(outcome(&reply(200, "{}")).is_err());
    }

    #[test]
    fn busy_servers_are_asked_again_but_not_for_ever() {
        let asked = std::cell::Cell::new(0);
        let busy_until = |free: u32| {
            asked.set(0);
            persist(|| {
                asked.set(asked.get() + 1);
                Ok(reply(if asked.get() < free { 429 } else { 200 }, "{}"))
            })
            .unwrap()
            .status
        };
        assert_eq!((busy_until(3), asked.get()), (200, 3));
        assert_eq!((busy_until(u32::MAX), asked.get()), (429, TRIES_MAX));
    }
}
