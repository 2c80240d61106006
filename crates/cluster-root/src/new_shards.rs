//! Parameters of the query string that choose the shards of a new collection.

use base::{Error, Result};
use cluster::{COPIES_MAX, SHARDS_MAX};

use super::collections::{COPIES_DEFAULT, SHARDS_DEFAULT};

/// Shards of a collection, if the request creates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewShards {
    /// Number of shards.
    pub shards: u32,
    /// Number of copies of each shard, each on another node.
    pub copies: u32,
}

impl NewShards {
    /// Checks the parameters `shard_number` and `replication_factor`.
    ///
    /// # Errors
    /// `InvalidArgument` that names the parameter out of its limits.
    pub fn checked(shards: Option<u32>, copies: Option<u32>) -> Result<NewShards> {
        let within = |name: &str, value: Option<u32>, default: u32, max: u32| match value {
            None => Ok(default),
            Some(value) if (1..=max).contains(&value) => Ok(value),
            Some(_) => Err(Error::invalid(format!("{name}= is 1 to {max}"))),
        };
        Ok(NewShards {
            shards: within("shard_number", shards, SHARDS_DEFAULT, SHARDS_MAX)?,
            copies: within("replication_factor", copies, COPIES_DEFAULT, COPIES_MAX as u32)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_and_copies_have_defaults_and_limits() {
        let new = NewShards::checked(None, None).unwrap();
        assert_eq!(new, NewShards { shards: SHARDS_DEFAULT, copies: COPIES_DEFAULT });
        let own = NewShards::checked(Some(3), Some(1)).unwrap();
        assert_eq!(own, NewShards { shards: 3, copies: 1 });
        for (shards, copies, word) in [
            (Some(0), None, "shard_number"),
            (Some(SHARDS_MAX + 1), None, "shard_number"),
            (None, Some(9), "replication_factor"),
        ] {
            let error = NewShards::checked(shards, copies).unwrap_err();
            assert!(error.message().contains(word), "{error}");
        }
    }
}
