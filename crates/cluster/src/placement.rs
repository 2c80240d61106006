//! Placement of segments on search servers, by weighted rendezvous hashing (Thaler and
//! Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM Transactions on
//! Networking 6(1), 1998).
//!
//! Each pair of server and segment gets a score from a hash. The servers with the highest scores
//! hold the segment. If a server joins, only the segments that it now holds move. If a server
//! leaves, only its segments move.

/// Maximum weight of a server.
pub const WEIGHT_MAX: u32 = 64;
/// Maximum copies of a segment.
pub const COPIES_MAX: usize = 8;

/// A search server that is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchServer {
    /// Name of the server. It stays the same across restarts, so that the cache stays useful.
    pub name: String,
    /// Share of the segments relative to other servers, such as tens of gigabytes of its cache; at
    /// most [`WEIGHT_MAX`]. 0 takes no segments: the server drains.
    pub weight: u32,
}

/// Returns the score of a server for a segment. Each unit of weight draws once and the best draw
/// counts. A server of weight w then wins with the probability of w servers of weight 1. This needs
/// no logarithm, so builds for different machines agree to the last bit.
fn score(searcher: &SearchServer, segment: &[u8; 16]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(segment).update(searcher.name.as_bytes());
    let mut draws = hasher.finalize_xof();
    let mut best = 0;
    for _ in 0..searcher.weight.min(WEIGHT_MAX) {
        let mut draw = [0; 8];
        draws.fill(&mut draw);
        best = best.max(u64::from_le_bytes(draw));
    }
    best
}

/// Returns the positions in `searchers` of the servers that hold the segment `segment`: at most
/// `copies`, fewer if there are fewer servers with a weight. The first is asked first. The order of
/// `searchers` has no effect on the choice.
///
/// # Example: a segment stays if another server leaves
/// ```
/// use millpond_cluster::{SearchServer, holders};
///
/// let server = |name: &str| SearchServer { name: name.to_owned(), weight: 1 };
/// let servers = [server("a"), server("b"), server("c")];
/// let segment = b"segment 00000001";
/// let held = holders(segment, &servers, 2);
/// assert_eq!(held.len(), 2);
///
/// let remaining: Vec<SearchServer> = held.iter().map(|&at| servers[at].clone()).collect();
/// assert_eq!(holders(segment, &remaining, 2), [0, 1]);
/// ```
pub fn holders(segment: &[u8; 16], searchers: &[SearchServer], copies: usize) -> Vec<usize> {
    let active = searchers.iter().enumerate().filter(|(_, searcher)| searcher.weight > 0);
    let mut ranked: Vec<(u64, &str, usize)> = active
        .map(|(at, searcher)| (score(searcher, segment), searcher.name.as_str(), at))
        .collect();
    ranked.sort_by(|a, b| b.cmp(a));
    ranked.into_iter().take(copies.min(COPIES_MAX)).map(|(.., at)| at).collect()
}
