//! Damaged copies of a shard: the decision to serve or to withdraw one, and when it is replaced.
//!
//! A node marks its damaged copy in etcd. It decides only on a view that shows its own mark. Of two
//! holders that are damaged at the same moment, one therefore sees the mark of the other one, and
//! not both withdraw.

use std::time::Duration;

/// Shortest time from the decision to serve or to withdraw a damaged copy to its replacement, which
/// interrupts its service. It must be longer than a view can be old. Then a holder that relies on
/// this copy because of an older view has decided before. If this holder relies on another one
/// because of an older view, it sees that one leave.
pub const REPLACEMENT_DELAY: Duration = Duration::from_secs(10);
/// Time that a served copy waits for the replacement of each served copy before it.
pub const REPLACEMENT_TURN: Duration = Duration::from_secs(600);
/// Number of turns that a served copy waits for each copy that is not served. Such a copy was
/// replaced and follows the log, which may have all changes of the shard.
const REPLACING_TURNS: u32 = 6;
/// Maximum age of the view of the last decision when a replacement begins. Without newer views,
/// another holder may have left meanwhile.
pub const DECISION_AGE_MAX: Duration = Duration::from_secs(5);

/// A node that holds a shard, as a view shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderReading<'a> {
    /// Name under which the node is in the view.
    pub node: &'a str,
    /// True if the node has announced the shard.
    pub serves: bool,
    /// True if the node has marked its copy as damaged. It need not serve the shard.
    pub is_damaged: bool,
}

impl HolderReading<'_> {
    /// Returns true if this is the mark of the node `own`.
    pub fn is_mark_of(&self, own: &str) -> bool {
        self.node == own && self.is_damaged
    }
}

/// Age of the decision about a damaged copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionAge {
    /// Time since the decision to serve, or to withdraw, the copy.
    pub decided: Duration,
    /// Time since the request for the view that confirmed it last. Only a view that shows the mark
    /// of the copy confirms it.
    pub confirmed: Duration,
}

/// Use of a node's damaged copy of a shard, until the copy is replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DamagedCopyUse {
    /// The view does not show the mark of the copy yet. The announcement stays as it is.
    #[default]
    Undecided,
    /// The copy is not announced, because another holder is whole.
    Withdrawn,
    /// The copy is announced, because no other holder is whole.
    Served {
        /// Number of turns of other damaged copies that it waits before it is replaced.
        turns: u32,
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
        if !holders.iter().any(|holder| holder.is_mark_of(own)) {
            return self;
        }
        let others = || holders.iter().filter(move |holder| holder.node != own);
        let has_whole = others().any(|other| other.serves && !other.is_damaged);
        let stays_withdrawn =
            self == DamagedCopyUse::Withdrawn && others().any(|other| other.serves);
        if has_whole || stays_withdrawn {
            return DamagedCopyUse::Withdrawn;
        }
        let turns_of = |other: &HolderReading<'_>| match (other.is_damaged, other.serves) {
            (true, false) => REPLACING_TURNS,
            (true, true) if other.node < own => 1,
            _ => 0,
        };
        let turns = others().map(turns_of).fold(0, u32::saturating_add);
        DamagedCopyUse::Served { turns }
    }

    /// Returns true if the copy is served although it is damaged.
    pub fn is_served(self) -> bool {
        matches!(self, DamagedCopyUse::Served { .. })
    }

    /// Returns true if the shard is announced. `is_announced` is true if it is announced now.
    pub fn announces(self, is_announced: bool) -> bool {
        match self {
            DamagedCopyUse::Undecided => is_announced,
            DamagedCopyUse::Withdrawn => false,
            DamagedCopyUse::Served { .. } => true,
        }
    }

    /// Returns true if the copy may be replaced.
    pub fn may_be_replaced(self, age: DecisionAge) -> bool {
        let turns = match self {
            DamagedCopyUse::Undecided => return false,
            DamagedCopyUse::Withdrawn => 0,
            DamagedCopyUse::Served { turns } => turns,
        };
        let wait = REPLACEMENT_DELAY.saturating_add(REPLACEMENT_TURN.saturating_mul(turns));
        age.decided >= wait && age.confirmed <= DECISION_AGE_MAX
    }
}
