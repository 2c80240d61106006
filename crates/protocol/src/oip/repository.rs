//! Loads and unloads over gRPC, as Triton's and KServe's clients request them. KServe's messages
//! have the name of the model in the field in which Triton's have the name of a repository.

use prost::Message;

/// The model that a load or an unload names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepositoryTarget<'a> {
    /// Name of the model.
    pub model: &'a str,
    is_kserve: bool,
}

impl<'a> RepositoryTarget<'a> {
    /// Returns the target of a message with these fields. Triton's clients always name the model.
    pub fn new(repository_name: &'a str, model_name: &'a str) -> RepositoryTarget<'a> {
        let is_kserve = model_name.is_empty() && !repository_name.is_empty();
        let model = if is_kserve { repository_name } else { model_name };
        RepositoryTarget { model, is_kserve }
    }

    /// Returns the answer to a request that succeeded. It is empty for Triton's clients.
    pub fn response(&self) -> RepositoryChangeResponse {
        if self.is_kserve {
            RepositoryChangeResponse { model_name: self.model.to_owned(), done: true }
        } else {
            RepositoryChangeResponse::default()
        }
    }
}

/// Answer to a load or an unload, with KServe's fields. Triton's answer has no fields.
#[derive(Clone, PartialEq, Message)]
pub struct RepositoryChangeResponse {
    /// Name of the model.
    #[prost(string, tag = "1")]
    pub model_name: String,
    /// True if the model was loaded or unloaded (`isLoaded`, `isUnloaded`).
    #[prost(bool, tag = "2")]
    pub done: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inference::RepositoryModelLoadRequest;

    #[test]
    fn kserves_messages_name_a_model() {
        let target = |bytes: &[u8]| {
            let request = RepositoryModelLoadRequest::decode(bytes).unwrap();
            let target = RepositoryTarget::new(&request.repository_name, &request.model_name);
            (target.model.to_owned(), target.response().encode_to_vec())
        };
        // KServe's `model_name = 1`, and `model_name = 1, isLoaded = 2` in the answer.
        assert_eq!(target(b"\x0a\x01m"), ("m".to_owned(), b"\x0a\x01m\x10\x01".to_vec()));
        // Triton's `model_name = 2`, alone or with `repository_name = 1`.
        for bytes in [&b"\x12\x01m"[..], b"\x0a\x01r\x12\x01m"] {
            assert_eq!(target(bytes), ("m".to_owned(), Vec::new()));
        }
    }
}
