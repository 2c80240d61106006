//! One line in the log for each admin call: the caller, its address, the operation and the outcome.

use base::{Error, Result};

use super::Caller;
use crate::peer::Peer;

/// Target of the lines, by which a filter of the log selects them.
pub(crate) const AUDIT_TARGET: &str = "audit";
/// Maximum bytes of each text in a line. Clients choose names and paths, also if their calls are
/// refused.
const TEXT_BYTES_MAX: usize = 1024;

/// A request for an admin call.
#[derive(Clone, Copy, Debug)]
pub struct AdminRequest<'a> {
    /// Calls of this kind, for errors: "models are loaded and unloaded".
    pub calls: &'a str,
    /// The call, for the log: "load model".
    pub action: &'a str,
    /// Name of the thing that the call changes. May be empty.
    pub subject: &'a str,
    /// Client that sent the request.
    pub caller: Caller<'a>,
}

/// An admin call that has begun. Its line is written when it ends. If it is dropped without an
/// outcome, the client has disconnected. Work on another thread, such as a restore, continues.
#[derive(Debug)]
pub(super) struct AdminCall {
    key: Option<String>,
    peer: Option<Peer>,
    action: String,
    subject: String,
    ended: bool,
}

impl AdminCall {
    pub(super) fn begin(request: &AdminRequest<'_>, key: Option<&str>) -> AdminCall {
        AdminCall {
            key: key.map(str::to_owned),
            peer: request.caller.peer,
            action: cut(request.action),
            subject: cut(request.subject),
            ended: false,
        }
    }

    /// Does the call, and records its outcome.
    ///
    /// # Errors
    /// The errors of `work`.
    pub(super) async fn record<T>(mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let result = work.await;
        match &result {
            Ok(_) => self.write("ok", ""),
            Err(error) => self.write(error.kind().name(), error.message()),
        }
        result
    }

    pub(super) fn refuse(mut self, error: &Error) {
        self.write(error.kind().name(), error.message());
    }

    fn write(&mut self, outcome: &str, error: &str) {
        self.ended = true;
        let key = self.key.as_deref().unwrap_or("-");
        let peer = self.peer.map_or_else(|| "-".to_owned(), |peer| peer.to_string());
        let AdminCall { action, subject, .. } = self;
        let error = cut(error);
        tracing::info!(
            target: AUDIT_TARGET,
            key, peer, action, subject, outcome, error,
            "admin call"
        );
    }
}

impl Drop for AdminCall {
    fn drop(&mut self) {
        if !self.ended {
            self.write("cancelled", "the client has disconnected; the work may continue");
        }
    }
}

/// Returns the text, cut at its maximum.
fn cut(text: &str) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    if end == text.len() { text.to_owned() } else { format!("{}…", &text[..end]) }
}
