//! Roles, and the operations that need them.

use serde::Deserialize;

/// Rights of a key. Each role includes the rights of the roles before it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum KeyRole {
    /// Runs models and recognisers, and reads their metadata.
    Infer,
    /// Also searches collections and images, and reads metrics and pages.
    Read,
    /// Also changes collections and images.
    Write,
    /// Also loads and unloads models, enrols voices and reads folders of the server.
    Admin,
}

impl KeyRole {
    /// Returns the name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            KeyRole::Infer => "infer",
            KeyRole::Read => "read",
            KeyRole::Write => "write",
            KeyRole::Admin => "admin",
        }
    }
}

/// The collections that an operation uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectionScope {
    /// No collection.
    Server,
    /// The names of the collections that the key may use.
    Names,
    /// One collection, which the path names.
    Points(String),
    /// One collection, which is created, removed or changed as a whole.
    Whole(String),
    /// Any, which the body names.
    Any,
}

/// An operation of a request, and the names in its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Minimum role that may do the operation.
    pub role: KeyRole,
    /// Name of the model or recogniser that the path names.
    pub model: Option<String>,
    /// Collections that the operation reads or changes.
    pub collections: CollectionScope,
}

impl Operation {
    /// Returns an operation without a model and a collection.
    pub fn new(role: KeyRole) -> Operation {
        Operation { role, model: None, collections: CollectionScope::Server }
    }
}
