//! Qdrant's REST interface over collections.

pub mod json;
