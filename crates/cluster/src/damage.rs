//! Damaged copies of a shard: the decision to serve or to withdraw one, and when it is replaced.
//!
//! A node marks its damaged copy in etcd. It decides only on a view that shows its own mark. Of two
//! holders that are damaged at the same moment, one therefore sees the mark of the other one, and
//! not both withdraw.

use std::time::Duration;

/// Shortest time from the decision to serve a damaged copy to its replacement, which interrupts its
/// service. It must be longer than a view can be old: a holder that relies on this copy because of
/// an older view has decided before.
pub const REPLACEMENT_DELAY: Duration = Duration::from_secs(10);
/// Time that a served copy waits for the replacement of each damaged copy before it.
pub const REPLACEMENT_TURN: Duration = Duration::from_secs(600);

/// A node that holds a shard, as a view shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderReading<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// True if the node has announced the shard.
    pub serves: bool,
    /// True if the node has marked its copy as damaged. It need not serve the shard.
    pub is_damaged: bool,
}

/// Use of a node's damaged copy of a shard, until the copy is replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DamagedCopyUse {
    /// The view does not show the mark of the copy yet. The announcement stays as it is.
    #[default]
    Undecided,
    /// The copy is not announced, because another holder is whole. It may be replaced at once.
    Withdrawn,
    /// The copy is announced, because no other holder is whole.
    Served {
        /// Damaged copies of other nodes that are replaced before this one.
        ahead: u32,
    },
}

impl DamagedCopyUse {
    /// Returns the use of the copy on the node `own` after a reading of a certain view. `holders`
    /// are the nodes that serve the shard or have marked their copy as damaged.
    ///
    /// A withdrawn copy stays withdrawn while another node serves the shard. Otherwise two nodes
    /// could replace their copies at the same time.
    #[must_use]
    pub fn next(self, own: &str, holders: &[HolderReading<'_>]) -> DamagedCopyUse {
        let is_marked = holders.iter().any(|holder| holder.node == own && holder.is_damaged);
        if !is_marked {
            return self;
        }
        let others = || holders.iter().filter(move |holder| holder.node != own);
        let has_whole = others().any(|other| other.serves && !other.is_damaged);
        let stays_withdrawn =
            self == DamagedCopyUse::Withdrawn && others().any(|other| other.serves);
        if has_whole || stays_withdrawn {
            return DamagedCopyUse::Withdrawn;
        }
        // A copy that is not served is being replaced already.
        let is_ahead =
            |other: &&HolderReading<'_>| other.is_damaged && (!other.serves || other.node < own);
        let ahead = u32::try_from(others().filter(is_ahead).count()).unwrap_or(u32::MAX);
        DamagedCopyUse::Served { ahead }
    }

    /// Returns true if the shard is announced. `is_announced` is true if it is announced now.
    pub fn announces(self, is_announced: bool) -> bool {
        match self {
            DamagedCopyUse::Undecided => is_announced,
            DamagedCopyUse::Withdrawn => false,
            DamagedCopyUse::Served { .. } => true,
        }
    }

    /// Returns true if the copy may be replaced. `decided_for` is the time since the first
    /// decision.
    pub fn may_be_replaced(self, decided_for: Duration) -> bool {
        match self {
            DamagedCopyUse::Undecided => false,
            DamagedCopyUse::Withdrawn => true,
            DamagedCopyUse::Served { ahead } => {
                let turn = REPLACEMENT_TURN.saturating_mul(ahead);
                decided_for >= REPLACEMENT_DELAY.saturating_add(turn)
            }
        }
    }
}
