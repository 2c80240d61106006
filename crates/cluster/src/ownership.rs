//! Ownership of shards: the decision to acquire, to keep and to release a log.
//!
//! etcd has one key for each owner. The revision in which a key was created is the epoch of the
//! ownership, so each epoch has one owner. Placement says which node should be the owner.

use crate::entry::Epoch;

/// Owner of a shard in a node's view of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenOwner<'a> {
    /// Name of the node that owns the shard.
    pub node: &'a str,
    /// Number of the ownership.
    pub epoch: Epoch,
}

/// Returns true if the node `own` keeps the ownership with the number `epoch`. `wanted` is the node
/// that should own the shard.
pub fn keeps_ownership(
    own: &str,
    epoch: Epoch,
    seen: Option<SeenOwner<'_>>,
    wanted: Option<&str>,
) -> bool {
    // The view may not show a new ownership yet, so an ownership that is absent may still exist. A
    // larger epoch of this node belongs to a key that was created again: no writer has it yet.
    let is_seen = seen.is_none_or(|seen| seen.node == own && seen.epoch <= epoch);
    is_seen && wanted.is_none_or(|wanted| wanted == own)
}

/// Step of a node that does not write a shard's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnershipStep {
    /// Do nothing: another node should own the shard, or owns it still.
    Wait,
    /// Release an ownership that no writer of this node has. Its number must not be used again,
    /// since entries of an earlier writer may still arrive.
    Release(Epoch),
    /// Ask for the ownership.
    Acquire,
}

/// Returns the next step of the node `own`, which does not write the shard's log. `wanted` is the
/// node that should own the shard.
pub fn ownership_step(
    own: &str,
    seen: Option<SeenOwner<'_>>,
    wanted: Option<&str>,
) -> OwnershipStep {
    match seen {
        // Releases the ownership also if another node should own the shard: that node waits for the
        // release.
        Some(seen) if seen.node == own => OwnershipStep::Release(seen.epoch),
        None if wanted == Some(own) => OwnershipStep::Acquire,
        _ => OwnershipStep::Wait,
    }
}

/// A node's own knowledge about a shard when it reads the key of the shard's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownOwnership<'a, L> {
    /// Name of this node.
    pub node: &'a str,
    /// Lease of the node.
    pub lease: L,
    /// Epoch in which it owns the shard, if it knows one.
    pub epoch: Option<Epoch>,
}

/// Meaning of the key of a shard's owner for the node that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerReading {
    /// Another node owns the shard.
    Other,
    /// This node owns the shard, in the epoch that it knows.
    Own,
    /// This node acquired the shard by a request whose outcome it does not know. No writer has the
    /// epoch, so the key is removed.
    Orphan,
    /// The key is of an earlier process of this name, and ends with its lease.
    Earlier,
}

impl OwnerReading {
    /// Compares the key of an owner, which has the lease `lease`, with the node's own knowledge.
    pub fn of<L: PartialEq>(
        known: &KnownOwnership<'_, L>,
        seen: SeenOwner<'_>,
        lease: Option<&L>,
    ) -> OwnerReading {
        if seen.node != known.node {
            OwnerReading::Other
        } else if known.epoch == Some(seen.epoch) {
            OwnerReading::Own
        } else if lease == Some(&known.lease) {
            OwnerReading::Orphan
        } else {
            OwnerReading::Earlier
        }
    }
}
